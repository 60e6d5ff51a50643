"""Hosts that report what no host of ours does about detached commands: each is an error, of bounded size, in time."""

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest
from attrs import define

from fleeting import Completed, ConnectError, Unreachable
from fleeting.connectors import Invocation, PosixConnection
from fleeting.connectors._detached_report import LONGEST_REPORT, PATIENCE
from fleeting.testing import virtual_time

anyio_backend = virtual_time
pytestmark = pytest.mark.anyio

CHUNK = b"x" * 60_000 + b"\n" + b"a running\n" * 500


async def ignore(_: bytes) -> None:
    """Take output."""


@define
class Host(PosixConnection):
    """Answers each command with the same words, on both outputs, so many times."""

    protocol = "a protocol of the tests"

    said: bytes
    times: float = 1
    passed_on: int = 0
    status: int = 0

    async def perform(self, invocation: Invocation) -> Completed:
        """Report; for good, if that is asked for."""
        while self.times > 0:
            self.times -= 1
            for sink in (invocation.stderr, invocation.stdout):
                self.passed_on += len(self.said)
                await sink(self.said)
            await anyio.lowlevel.checkpoint()
        return Completed(exit_status=self.status)

    async def wait_closed(self) -> str:
        """Never."""
        await anyio.sleep_forever()
        raise AssertionError


class Silent(Host):
    """Takes what it is given and answers nothing."""

    async def perform(self, invocation: Invocation) -> Completed:
        """Wait for ever, once the input has come."""
        if not isinstance(invocation.stdin, bytes | None):
            async for _ in invocation.stdin:
                pass
        await anyio.sleep_forever()
        raise AssertionError


Act = Callable[[PosixConnection], Awaitable[object]]

ACTS: dict[str, Act] = {
    "start": lambda host: host.start("a", "true"),
    "attach": lambda host: host.attach("a", output=ignore),
    "list": lambda host: host.list_detached(),
    "kill": lambda host: host.kill("a"),
    "forget": lambda host: host.forget("a"),
}

by_act = pytest.mark.parametrize("act", ACTS.values(), ids=list(ACTS))


@by_act
async def test_an_endless_report_is_not_listened_to(act: Act) -> None:
    """It is given up after a mebibyte, however long it would go on."""
    host = Host(CHUNK, times=float("inf"))
    with pytest.raises(ConnectError, match="more than 1024 KiB"):
        await act(host)
    assert host.passed_on <= 2 * (LONGEST_REPORT + 2 * len(CHUNK))


@pytest.mark.parametrize("name", ["start", "list", "kill", "forget"])
async def test_silence_is_not_waited_for(name: str) -> None:
    """The outcome is unknown then, as when the connection breaks."""
    begun = anyio.current_time()
    with pytest.raises(Unreachable, match="within 2m"):
        await ACTS[name](Silent(b""))
    assert anyio.current_time() == begun + PATIENCE


async def test_input_may_take_its_time() -> None:
    """The host's time begins when it has all of it."""

    async def slow() -> AsyncIterator[bytes]:
        for _ in range(3):
            await anyio.sleep(PATIENCE)
            yield b"part"

    begun = anyio.current_time()
    with pytest.raises(Unreachable, match="within 2m"):
        await Silent(b"").start("a", "cat", stdin=slow())
    assert anyio.current_time() == begun + 4 * PATIENCE


@pytest.mark.parametrize("said", [b"", b"ended 0", b"ended 0::x", b"\xff\n", b"ended 0::0 ended", b"\0", b"running\n"])
@pytest.mark.parametrize("name", ["start", "attach", "kill"])
async def test_no_other_report_is_believed(name: str, said: bytes) -> None:
    """What is none of our words is an error, on one line and of a reasonable length, and so is a word out of place."""
    for words in (said, said * 5000):
        with pytest.raises(ConnectError) as raised:
            await ACTS[name](Host(words))
        assert len(str(raised.value)) < 1500
        assert str(raised.value).isprintable()


async def test_one_that_says_it_has_begun_and_goes_on_is_not_believed() -> None:
    """The shell that starts a command is killed when that runs; one that ends by itself could not start all of it."""
    with pytest.raises(ConnectError, match="could not be started: its shell exited with 2; check how many processes"):
        await Host(b"started\n", status=2).start("a", "true")
    await Host(b"started\n", status=137).start("a", "true")


async def test_a_login_shell_may_say_something_first() -> None:
    """The word is on the last line."""
    await Host(b"welcome\nstarted\n", status=137).start("a", "true")
    assert (await Host(b"welcome\n\n\nended 3::0\n").attach("a", output=ignore)).exit_status == 3
