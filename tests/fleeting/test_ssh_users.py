"""Who logs in over SSH need not be root, and has whatever login shell the system gave them."""

import re
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from attrs import evolve

from fleeting import ConnectInfo
from tests.fleeting.sshd import dialled, only_root, private, sshd
from tests.fleeting.test_ssh_dial import tool

pytestmark = [pytest.mark.anyio, pytest.mark.needs("mount", "openssl", "unshare"), only_root]

UID = 54321
"""Nobody's on a system that was not made for this."""

SHELLS = [shell for shell in ("/bin/dash", "/bin/bash", "/usr/bin/zsh", "/usr/bin/fish") if Path(shell).exists()]

AWKWARD = ["$HOME", "a  b", "it's", '"', "\\", r"\\", r"\'\n", r"\c", "ü", "!x", "*", "", "~", "two\nlines"]


@pytest.fixture(params=SHELLS)
def user(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ConnectInfo]:
    """A server on which somebody has an account, in files of accounts that only it sees."""
    secret = tool("openssl", "passwd", "-6", "open sesame").strip()
    accounts = {
        "passwd": f"{Path('/etc/passwd').read_text()}ci:x:{UID}:{UID}::/:{request.param}\n",
        "shadow": f"ci:{secret}:19000::::::\n",
    }
    binds = [f"mount --bind {private(tmp_path / name, text)} /etc/{name}" for name, text in accounts.items()]
    (tmp_path / "passwd").chmod(0o644)
    by = ["unshare", "-m", "sh", "-c", f'{" && ".join(binds)} && exec "$@"', "sh"]
    with sshd(tmp_path, "PasswordAuthentication yes", "PubkeyAuthentication no", by=by) as server:
        yield evolve(server.info, user="ci", key=None, password="open sesame")


async def test_a_command_is_what_was_written(user: ConnectInfo) -> None:
    """Nothing of it means anything to the login shell, be it a line for sh or a program and its arguments."""
    async with dialled(user) as connection:
        line = await connection.run('id -u; echo "$X" $((6 * 7)); pwd; exit 3', env={"X": "it's  $X"}, cwd="/usr")
        assert (line.stdout.decode(), line.exit_status) == (f"{UID}\nit's  $X 42\n/usr\n", 3)
        words = await connection.run(["printf", "%s|", *AWKWARD])
        assert words.stdout.decode() == "".join(f"{word}|" for word in AWKWARD)


async def test_a_cancelled_command_ends(user: ConnectInfo) -> None:
    """With all that it has started, by the rights of the user alone."""
    async with dialled(user) as connection:
        seen = bytearray()
        told = anyio.Event()

        async def listen(data: bytes) -> None:
            seen.extend(data)
            if b"\n" in seen:
                told.set()
            await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: connection.run("sleep 600 & echo $!; wait", stdout=listen))
            await told.wait()
            tasks.cancel_scope.cancel()
        (pid,) = re.findall(rb"\d+", seen)
        while runs(int(pid)):  # noqa: ASYNC110  (on a busy host, longer than a cancelled caller waits)
            await anyio.sleep(0.05)


def runs(pid: int) -> bool:
    """Whether there is such a process, and not only what its parent has not yet heard of."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
