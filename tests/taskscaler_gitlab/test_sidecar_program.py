"""The program that is brought to an instance: which one is started there, whatever becomes of its file meanwhile."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from attrs import define, field

from fleeting import Completed, ConnectError
from fleeting.connectors import BaseConnection, Detached, Invocation
from taskscaler_gitlab._settings import SidecarSettings
from taskscaler_gitlab.relay._sidecar import Place, ProgramUnfit, Sidecars, start, tidy

pytestmark = pytest.mark.anyio

NOBODY = 65534
BROUGHT = "the program that was brought"
FORGED = "one of a job's own"
HASH = shutil.which("sha256sum") or ""


def program(says: str) -> str:
    """A program that says what it is, and is new enough."""
    return f"#!/bin/sh\necho 'Version: 18.0.0'\necho {says}\n"


@define
class Host(BaseConnection):
    """An instance in a directory; its hash program notes whenever it has hashed, and may be disturbed by then."""

    protocol = "a directory"

    top: Path
    user: int | None = None
    at_upload: Callable[[], object] = lambda: None
    said: str = ""
    """What the last sidecar has said."""

    names: list[str] = field(factory=list)

    @property
    def home(self) -> Path:
        """Where commands start."""
        return self.top / "home"

    @property
    def there(self) -> Path:
        """The one program there."""
        (path,) = (self.home / "sidecars" / "bin").iterdir()
        return path

    @property
    def hashes(self) -> int:
        """How often something was hashed."""
        path = self.home / "hashed"
        return len(path.read_text().splitlines()) if path.exists() else 0

    @property
    def disturbance(self) -> Path:
        """A file that takes the place of the program as soon as that was hashed."""
        return self.home / "disturbance"

    async def perform(self, invocation: Invocation) -> Completed:
        """Run a command in the directory."""
        stdin, command = invocation.stdin, invocation.command
        if stdin is not None and not isinstance(stdin, bytes):
            self.at_upload()
            stdin = b"".join([chunk async for chunk in stdin])
        done = await to_thread.run_sync(self._run, command, stdin or b"")
        await invocation.stdout(done.stdout)
        await invocation.stderr(done.stderr)
        return Completed(exit_status=done.returncode)

    def _run(self, command: str | Sequence[str], stdin: bytes) -> "subprocess.CompletedProcess[bytes]":
        """Run it; that it may read nothing of its input is no error."""
        path = f"{self.top / 'tools'}:{os.environ['PATH']}"
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            check=False,
            cwd=self.home,
            env={"PATH": path, "HOME": str(self.home)},
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
        )

    async def wait_closed(self) -> str:
        """It never ends."""
        await anyio.sleep_forever()
        raise AssertionError

    async def start(self, name: str, command: str | Sequence[str], *, stdin: bytes, keep: int) -> None:
        """Run a command to its end, of which something is known only here."""
        assert keep
        self.names.append(name)
        self.said = (await self.run(command, stdin=stdin)).stdout.decode()

    async def attach(self, name: str, *, offset: int = 0, output: object = None) -> Completed:
        """It has ended."""
        return Completed(exit_status=0)

    async def list_detached(self) -> list[Detached]:
        """None: each has ended, and nobody asks for it again."""
        return []

    async def kill(self, name: str) -> None:
        """It has ended."""

    async def forget(self, name: str) -> None:
        """Strike its name."""
        self.names.remove(name)


@pytest.fixture
def directory() -> Iterator[Path]:
    """One that every user may enter: those of pytest are for their owner alone."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def host(directory: Path) -> Host:
    """One whose user is none that may read every file."""
    user = None if os.geteuid() else NOBODY
    for name in ("home", "tools"):
        (directory / name).mkdir()
    tool = directory / "tools" / "sha256sum"
    tool.write_text(
        f"#!/bin/sh\nhas=$({HASH}) || exit\n"
        'case $has in e3b0c442*) ;; *) echo >> "$HOME/hashed"\n'
        '[ ! -e "$HOME/disturbance" ] || mv -f "$HOME/disturbance" "$HOME"/sidecars/bin/gitlab-runner-*\n'
        'esac\necho "$has"\n'
    )
    tool.chmod(0o755)
    if user is not None:
        os.chown(directory / "home", user, user)
    return Host(directory, user)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The program here."""
    path = tmp_path / "gitlab-runner"
    path.write_text(program(BROUGHT))
    path.chmod(0o755)
    return path


def forge(host: Host, path: Path, mode: int) -> None:
    """Have a job put a program of its own somewhere; it is of the user as which all is done there."""
    path.unlink(missing_ok=True)
    path.write_text(program(FORGED))
    path.chmod(mode)
    if host.user is not None:
        os.chown(path, host.user, host.user)


def sidecars(source: Path) -> Sidecars:
    """What brings it."""
    return Sidecars(SidecarSettings(upload=str(source), executor="shell"))


async def started(host: Host, place: Place) -> str:
    """Start a sidecar; what it has said, or who has refused it."""
    settings = SidecarSettings(executor="shell")
    await start(host, place, "d1", url="http://127.0.0.1:1", secret="s", settings=settings, ca_chain="")
    return host.said


@pytest.mark.parametrize("mode", [0o111, 0o700, 0o500])
async def test_another_program_is_not_started_whatever_its_mode(host: Host, source: Path, mode: int) -> None:
    """Also if it may be executed and not be read, so that it has no hash."""
    place = await sidecars(source).prepare(host, "i-1", "r-0")
    assert BROUGHT in await started(host, place)
    forge(host, host.there, mode)
    assert "is not the program that was brought any more" in await started(host, place)


async def test_a_program_that_cannot_be_read_is_brought_again(host: Host, source: Path) -> None:
    """A manager that comes later takes none for the right one because it has no hash."""
    await sidecars(source).prepare(host, "i-1", "r-0")
    forge(host, host.there, 0o111)
    place = await sidecars(source).prepare(host, "i-1", "r-0")
    assert host.there.read_text() == program(BROUGHT)
    assert BROUGHT in await started(host, place)


async def test_a_host_without_hashes_has_the_program_it_was_given(host: Host, source: Path) -> None:
    """None of the programs for that works there: that is no reason to run nothing."""
    for name in ("sha256sum", "shasum", "sha256"):
        tool = host.top / "tools" / name
        tool.write_text("#!/bin/sh\nexit 1\n")
        tool.chmod(0o755)
    place = await sidecars(source).prepare(host, "i-1", "r-0")
    host.there.touch()
    assert BROUGHT in await started(host, place)


@pytest.mark.parametrize("is_there", [True, False])
async def test_what_is_marked_is_what_was_hashed(host: Host, source: Path, *, is_there: bool) -> None:
    """A job that renames its own over the program as soon as that was hashed has nothing of it."""
    if is_there:
        await sidecars(source).prepare(host, "i-1", "r-0")
    forge(host, host.disturbance, 0o700)
    later = sidecars(source)
    if not is_there:
        with pytest.raises(ConnectError, match=r"what has arrived is something else$"):
            await later.prepare(host, "i-1", "r-0")
    place = await later.prepare(host, "i-1", "r-0")
    assert not host.disturbance.exists()
    assert BROUGHT in await started(host, place)


async def test_a_file_that_is_replaced_here_meanwhile_is_brought_as_it_is_then(host: Host, source: Path) -> None:
    """No instance is blamed for that, and nothing has a name that says something else."""
    newer = "a newer one"
    host.at_upload = lambda: source.write_text(program(newer))
    place = await sidecars(source).prepare(host, "i-1", "r-0")
    assert str(host.there) == place.program
    assert host.there.read_text() == program(newer)
    assert newer in await started(host, place)


async def test_a_file_that_is_never_the_same_is_the_settings_fault(host: Host, source: Path) -> None:
    """After some times the job's log says what to do; no other instance would be better."""
    times = iter(range(100))
    host.at_upload = lambda: source.write_text(program(f"number {next(times)}"))
    with pytest.raises(ProgramUnfit, match=r"was changed each of the 3 times .*write a new one beside it"):
        await sidecars(source).prepare(host, "i-1", "r-0")
    assert [*(host.home / "sidecars" / "bin").iterdir()] == []


async def test_room_is_spoken_of_where_it_may_be_missing(host: Host, source: Path) -> None:
    """What could not be written there is the instance's fault."""
    (host.home / "sidecars").mkdir()
    (host.home / "sidecars" / "bin").touch()
    with pytest.raises(ConnectError, match="it needs room for") as raised:
        await sidecars(source).prepare(host, "i-1", "r-0")
    assert not isinstance(raised.value, ProgramUnfit)


async def test_a_program_that_was_touched_is_hashed_once_more(host: Host, source: Path) -> None:
    """As the job ends that has done so; later starts are as quick as before."""
    known = sidecars(source)
    place = await known.prepare(host, "i-1", "r-0")
    await started(host, place)
    before = host.hashes
    host.there.touch()
    for _ in range(2):
        await tidy(host, place, host.names[-1])
        place = await known.prepare(host, "i-1", "r-0")
        assert BROUGHT in await started(host, place)
    assert host.hashes == before + 1


async def test_a_program_that_was_changed_is_not_known_by_its_new_mark(host: Host, source: Path) -> None:
    """A job's end does not make its own program the right one."""
    known = sidecars(source)
    place = await known.prepare(host, "i-1", "r-0")
    await started(host, place)
    forge(host, host.there, 0o700)
    await tidy(host, place, host.names[-1])
    later = await known.prepare(host, "i-1", "r-0")
    assert "is not the program that was brought any more" in await started(host, later)
