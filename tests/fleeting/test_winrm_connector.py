"""Commands over WinRM: shells and their quota, long commands, much data, and hosts that stall, die or lie."""

import os
import resource
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import define

from fleeting import ConnectError, Connection, Unreachable, Unsupported
from fleeting.connectors.powershell import powershell
from fleeting.connectors.winrm import WinrmConnector, _run, _shells
from tests.fleeting.sshd import configured
from tests.fleeting.winrm_host import Host, winrm_host

pytestmark = pytest.mark.anyio

MIB = 1 << 20
HASTY = WinrmConnector(operation_timeout=1.0)
"""Has the host answer after a second, be there something to tell or not."""


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Run a server for tests that make no trouble."""
    with winrm_host(tmp_path_factory.mktemp("host")) as found:
        yield found


@asynccontextmanager
async def connected(host: Host, connector: WinrmConnector | None = None, **config: Any) -> AsyncIterator[Connection]:  # noqa: ANN401
    """Connect, for as long as a test may take."""
    async with (connector or WinrmConnector()).dial(host.info, configured(**config)) as connection:
        yield connection


@define
class Seen:
    """What a server sees from now on."""

    host: Host
    before: dict[str, int]

    @classmethod
    async def by(cls, host: Host) -> "Seen":
        """Begin to look."""
        return cls(host, (await host.control())["seen"])

    async def count(self, what: str) -> int:
        """How often it has seen something."""
        seen: int = (await self.host.control())["seen"].get(what, 0)
        return seen - self.before.get(what, 0)


# --- shells ----------------------------------------------------------------------------------------------


async def test_a_shell_is_used_again(host: Host) -> None:
    """Each command in the same environment and directory needs no more than itself; others get a shell of their own."""
    seen = await Seen.by(host)
    async with connected(host) as connection:
        for _ in range(3):
            await connection.run("true", check=True)
        assert await seen.count("Create") == 1
        for _ in range(2):
            await connection.run("true", env={"A": "1"}, check=True)
            await connection.run("true", cwd="/", check=True)
        assert await seen.count("Create") == 3
    assert (await host.control())["shells"] == 0


async def test_text_is_utf8(host: Host) -> None:
    """The shell has that code page; variables with any text arrive, line ends of all kinds among it."""
    text = "äöü€ 漢字 \U0001f389 <&> ]]> 'x' \"y\"\r\n\tz\r"
    async with connected(host) as connection:
        assert (await connection.run('printf %s "$A"', env={"A": text})).stdout.decode() == text
        assert (await host.control())["last"]["codepage"] == "65001"


async def test_more_commands_than_shells_wait_for_their_turn(host: Host) -> None:
    """Of fifty commands at once only so many run as there may be shells; all run in the end."""
    before = (await host.control())["most_shells"]
    done: list[int | None] = []
    async with connected(host, WinrmConnector(shells=5)) as connection, anyio.create_task_group() as tasks:

        async def run(number: int) -> None:
            env = {"N": str(number % 7)}
            done.append((await connection.run(f"sleep 0.1; exit {number}", env=env)).exit_status)

        for number in range(50):
            tasks.start_soon(run, number)
    assert sorted(number for number in done if number is not None) == list(range(50))
    assert (await host.control())["most_shells"] <= max(5, before)


async def test_the_host_s_own_quota_is_kept(tmp_path: Path) -> None:
    """A host that allows fewer shells than we would use says so, and commands wait; idle ones make room."""
    done: list[bool] = []
    with winrm_host(tmp_path, max_shells=3) as host:
        async with connected(host) as connection, anyio.create_task_group() as tasks:

            async def run(number: int) -> None:
                done.append((await connection.run("true", env={"N": str(number % 4)})).ok)

            for number in range(20):
                tasks.start_soon(run, number)
    assert done == [True] * 20


async def test_a_quota_that_others_have_used_up_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for a while; the error has the host's own words."""
    monkeypatch.setattr(_shells, "QUOTA_PATIENCE", 0.2)
    with winrm_host(tmp_path, max_shells=0) as host:
        async with connected(host) as connection:
            with pytest.raises(ConnectError, match=r"allows no more shells: .* maximum number of 0 concurrent shells"):
                await connection.run("true")


async def test_a_shell_that_has_done_its_work_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows counts the commands of a shell, ended or not; a new shell begins anew, whoever notices first."""
    for uses, quota in (4, 1500), (200, 4):
        monkeypatch.setattr(_shells, "USES", uses)
        with winrm_host(tmp_path, max_operations=quota) as host:
            async with connected(host) as connection:
                for _ in range(8):
                    await connection.run("true", check=True)
            assert (await host.control())["seen"]["Create"] == 2


async def test_a_service_that_was_started_anew_is_used_on(tmp_path: Path) -> None:
    """Its shells are gone, and so are the connections whose encryption it knew."""
    with winrm_host(tmp_path) as host:
        async with connected(host) as connection:
            await connection.run("true", check=True)
            await host.control(forget=True)
            await connection.run("true", check=True)
            host.process.kill()
            host.process.wait()
            with winrm_host(tmp_path, port=host.port):
                assert (await connection.run("echo again")).stdout == b"again\n"


# --- commands --------------------------------------------------------------------------------------------


async def test_a_command_may_outlast_the_operation_time_out(tmp_path: Path) -> None:
    """A host that has nothing to tell says so, and is asked again."""
    with winrm_host(tmp_path) as host:
        async with connected(host, HASTY) as connection:
            assert (await connection.run("sleep 2.3; echo done; exit 4")).exit_status == 4
        assert (await host.control())["seen"]["Receive"] >= 3


async def test_input_that_is_not_read_for_long_arrives_once(tmp_path: Path) -> None:
    """The host goes on handing over what it could not in time, and is busy until then."""
    data = bytes(range(256)) * 4096
    with winrm_host(tmp_path) as host:
        async with connected(host, HASTY) as connection:
            assert (await connection.run("sleep 2.5; cat", stdin=data)).stdout == data


async def test_a_program_that_may_not_be_run(host: Host, tmp_path: Path) -> None:
    """As in a shell, that is 126, and a sink hears why."""
    (tmp_path / "data").write_text("text")
    said: list[bytes] = []

    async def hear(data: bytes) -> None:
        said.append(data)

    async with connected(host) as connection:
        assert (await connection.run([str(tmp_path / "data")], stderr=hear)).exit_status == 126
    assert said == [b"Access is denied.\n"]


async def test_a_script_longer_than_a_command_line_is_run(tmp_path: Path) -> None:
    """It goes through the environment, and arrives whole; what it runs does not see those variables."""
    (tmp_path / "powershell.exe").write_text('#!/bin/sh\nenv | grep -c "^FLEETING_SCRIPT_"; echo "$@" | wc -c\n')
    (tmp_path / "powershell.exe").chmod(0o755)
    with winrm_host(tmp_path, programs=str(tmp_path)) as host:
        async with connected(host) as connection:
            short = (await connection.run(powershell("exit 0"))).stdout.split()
            long = (await connection.run(powershell("#" * 200_000))).stdout.split()
            with pytest.raises(ConnectError, match=r"400\d+ characters, too many"):
                await connection.run(powershell("#" * 400_000))
    assert (int(short[0]), int(long[0])) == (0, 9)
    assert int(long[1]) < 2000


async def test_there_are_no_tunnels(host: Host) -> None:
    """The errors say what to use instead."""
    async with connected(host) as connection:
        with pytest.raises(Unsupported, match="WinRM does not support tunnels, so localhost port 80"):
            await connection.open_tcp("localhost", 80)
        with pytest.raises(Unsupported, match="WinRM does not support tunnels, so /a/b"):
            await connection.open_unix("/a/b")


async def test_much_output_streams_in_bounded_memory(tmp_path: Path) -> None:
    """Of 48 MiB the first are heard before the command has ended, and hardly any is held."""
    go, size = tmp_path / "go", 0

    async def hear(chunk: bytes) -> None:
        nonlocal size
        size += len(chunk)
        if size >= MIB:
            go.touch()

    with winrm_host(tmp_path, auth=["Basic"]) as host:
        async with connected(host, allow_plaintext=True) as connection:
            await connection.run(f"head -c {MIB} /dev/zero; rm -f {go}", stdout=hear)
            before, size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
            wait = f"until [ -e {go} ]; do sleep 0.05; done"
            await connection.run(
                f"head -c {MIB} /dev/zero; {wait}; head -c {47 * MIB} /dev/zero", stdout=hear, check=True
            )
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert size == 48 * MIB
    assert after - before < 16 << 10


# --- hosts that stall, die or lie ------------------------------------------------------------------------

VERBS = ("Create", "Command", "Send", "Receive")

LIES: list[dict[str, Any]] = [
    {"kind": "body", "body": "no XML"},
    {"kind": "body", "body": "<a/>"},
    {"kind": "body", "body": ""},
    {"kind": "body", "body": "<html>", "status": 500},
    {"kind": "body", "body": "gone", "status": 404},
    {"kind": "body", "status": 302, "headers": {"Location": "http://127.0.0.1:9/"}},
    {"kind": "body", "status": 401},
    {"kind": "body", "body": "x", "headers": {"Content-Encoding": "gzip"}},
    {"kind": "body", "body": "x", "headers": {"Content-Type": "multipart/encrypted"}},
    {"kind": "fault", "code": 1},
    {"kind": "hang up"},
    {"kind": "flood"},
]
"""What a host may do in place of answering; and what has not been thought of is no worse."""

SILENCES = "drip", "stall"
"""These take as long as an answer may."""

STREAM = "http://schemas.microsoft.com/wbem/wsman/1/windows/shell"

ANSWERS = [
    f'<a><b><Stream xmlns="{STREAM}" Name="stdout">!!!!!</Stream></b></a>',
    f'<a><b><Stream xmlns="{STREAM}">AAAA</Stream></b></a>',
    f'<a><b><CommandState xmlns="{STREAM}" State="{STREAM}/CommandState/Done"/></b></a>',
    f'<a><b><c State="{STREAM}/CommandState/Done"/><ExitCode>many</ExitCode></b></a>',
    '<!DOCTYPE a [<!ENTITY x "y">]><a>&z;</a>',
]
"""Such that only the answer to a request for output would be read like this."""


@pytest.mark.parametrize("auth", ["Negotiate", "Basic"])
async def test_a_host_that_lies_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auth: str) -> None:
    """Whatever it does at whatever time, a command ends in one of our errors, in time, or has not been harmed."""
    monkeypatch.setattr(_shells, "END_TIMEOUT", 1.0)
    connector = WinrmConnector(operation_timeout=1.0, patience=0.2)
    lies = [{"verb": verb, **lie} for lie in LIES for verb in VERBS]
    lies += [{"verb": "Receive", "kind": "body", "body": answer} for answer in ANSWERS]
    silences = [{"verb": verb, "kind": kind, "times": 1} for kind in SILENCES for verb in ("Create", "Receive")]
    with winrm_host(tmp_path, auth=[auth]) as host:
        async with connected(host, connector, allow_plaintext=True) as connection:
            for lie in lies:
                await host.control(lie)
                if lie["verb"] == "Send":  # the command may have ended before it is known
                    with suppress(ConnectError):
                        await connection.run("cat", stdin=b"x", env={"A": "B"})
                    continue
                with pytest.raises(ConnectError) as error:
                    await connection.run("true", env={"A": "B"})
                assert host.options.password not in str(error.value)
            seen = await Seen.by(host)
            await host.control(*silences)
            async with anyio.create_task_group() as tasks:  # each meets one of them, and all wait at once

                async def fail(number: int) -> None:
                    with pytest.raises(ConnectError) as error:
                        await connection.run("true", env={"A": str(number)})
                    assert host.options.password not in str(error.value)

                for number in range(len(silences)):
                    tasks.start_soon(fail, number)
            assert all([await seen.count(kind) for kind in SILENCES])
            await host.control({"verb": "None", "kind": "stall"})
            assert (await connection.run("echo well")).stdout == b"well\n"


@pytest.mark.parametrize("verb", ["Signal", "Delete"])
async def test_a_host_that_does_not_clear_up_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """What a command came to is known by then."""
    monkeypatch.setattr(_shells, "END_TIMEOUT", 0.5)
    with winrm_host(tmp_path) as host:
        await host.control({"verb": verb, "kind": "stall"})
        async with connected(host, WinrmConnector(shells=2)) as connection:
            for _ in range(4):
                assert (await connection.run("echo hi")).stdout == b"hi\n"


async def test_a_host_that_dies_under_a_command(tmp_path: Path) -> None:
    """Nobody knows whether the command has ended, and the error says so; who dials next dials anew."""
    connector = WinrmConnector()
    with winrm_host(tmp_path) as host:

        async def die(said: bytes) -> None:
            host.process.kill()
            os.kill(int(said), signal.SIGKILL)  # as on a machine that goes

        async with connected(host, connector) as connection:
            with pytest.raises(Unreachable, match="it is unknown whether the command has ended"):
                await connection.run("echo $$; exec sleep 1000", stdout=die)
            with pytest.raises(Unreachable, match="could not be reached within 1s"):
                async with connected(host, connector, timeout=1.0):
                    pass


async def test_a_host_that_falls_silent_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for a sign of life, given up, and with it what runs there."""
    monkeypatch.setattr(_shells, "SUSPECT_TIMEOUT", 0.2)
    reasons: list[str] = []
    with winrm_host(tmp_path) as host:
        async with connected(host, keepalive=1.0, keepalive_misses=2) as connection:
            await connection.run("sleep 2.2", check=True)
            await host.control({"verb": "Probe", "kind": "stall"}, {"verb": "Receive", "kind": "stall"})
            async with anyio.create_task_group() as tasks:

                async def wait() -> None:
                    reasons.append(await connection.wait_closed())

                tasks.start_soon(wait)
                with pytest.raises(Unreachable, match="does not answer"):
                    await connection.run("sleep 1000")
            with pytest.raises(Unreachable, match="is closed: the host was silent for 2s"):
                await connection.run("true")
    assert reasons == ["the host was silent for 2s"]


# --- cancelling ------------------------------------------------------------------------------------------


async def test_a_cancelled_command_leaves_no_shell(tmp_path: Path) -> None:
    """What runs in a shell goes with it: that is how Windows ends a process tree."""
    with winrm_host(tmp_path) as host:
        async with connected(host) as connection:
            await connection.run("true")
            async with anyio.create_task_group() as tasks:

                async def cancel(_: bytes) -> None:
                    tasks.cancel_scope.cancel()

                await connection.run("echo here; sleep 1000", stdout=cancel)
            assert (await host.control())["shells"] == 0
            assert (await host.control())["seen"]["Signal"] == 2
            assert (await connection.run("echo well")).stdout == b"well\n"


@pytest.mark.parametrize("verb", ["Create", "Command", "Receive", "Signal"])
async def test_cancelling_does_not_wait_for_a_host_that_stalls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """It is bounded, whatever is under way."""
    monkeypatch.setattr(_shells, "END_TIMEOUT", 0.3)
    with winrm_host(tmp_path) as host:
        async with connected(host) as connection:
            await host.control({"verb": verb, "kind": "stall"})
            with anyio.move_on_after(0.5) as scope:
                await connection.run("sleep 1000", env={"A": "B"})
            assert scope.cancelled_caught


async def test_a_shell_that_comes_too_late_is_ended(tmp_path: Path) -> None:
    """Who asked for it was cancelled meanwhile; the answer is waited for, so that nothing is left on the host."""
    with winrm_host(tmp_path) as host:
        async with connected(host) as connection:
            seen = await Seen.by(host)
            await host.control({"verb": "Create", "kind": "late"})
            with anyio.move_on_after(0.2):
                await connection.run("true", env={"A": "B"})
            while not await seen.count("Create"):  # noqa: ASYNC110  (another process is asked)
                await anyio.sleep(0.05)
            assert (await host.control())["shells"] == 1


async def test_nobody_is_sent_on_to_another_host(tmp_path: Path) -> None:
    """What is meant for one host is not shown to another, whatever the first one says."""
    with winrm_host(tmp_path) as host, winrm_host(tmp_path) as other:
        async with connected(host) as connection:
            where = {"Location": f"http://127.0.0.1:{other.port}/wsman"}
            await host.control({"verb": "Command", "kind": "body", "status": 307, "headers": where})
            with pytest.raises(Unreachable, match="cannot be understood"):
                await connection.run("true")
        assert (await other.control())["seen"] == {}


def test_the_pieces_of_input_fit_into_an_envelope() -> None:
    """The smallest that any Windows takes has 150 KiB."""
    assert _run.PIECE * 4 / 3 + 4096 < 150 << 10
