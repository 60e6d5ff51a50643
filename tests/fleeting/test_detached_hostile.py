"""Hosts that report what no host of ours does about detached commands: each is an error, of bounded size, in time."""

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest
from attrs import define
from hypothesis import given
from hypothesis import strategies as st

from fleeting import Completed, ConnectError, Unreachable
from fleeting.connectors import Invocation, PosixConnection
from fleeting.connectors._detached_posix import _Marked
from fleeting.connectors._detached_report import LONGEST_REPORT, PATIENCE
from fleeting.testing import virtual_time

anyio_backend = virtual_time
pytestmark = pytest.mark.anyio

CHUNK = b"x" * 60_000 + b"\n" + b"a running\n" * 500


async def ignore(_: bytes) -> None:
    """Take output."""


def never() -> None:
    """Hear of a start."""
    raise AssertionError("nothing was started")


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
    "start_attached": lambda host: host.start_attached("a", "true", started=never, output=ignore),
    "list": lambda host: host.list_detached(),
    "kill": lambda host: host.kill("a"),
    "forget": lambda host: host.forget("a"),
}

by_act = pytest.mark.parametrize("act", ACTS.values(), ids=list(ACTS))


@by_act
async def test_an_endless_report_is_not_listened_to(act: Act) -> None:
    """It is given up after two mebibytes, however long it would go on."""
    host = Host(CHUNK, times=float("inf"))
    with pytest.raises(ConnectError, match="more than 2048 KiB"):
        await act(host)
    assert host.passed_on <= 2 * (LONGEST_REPORT + 2 * len(CHUNK))


@pytest.mark.parametrize("name", ["start", "start_attached", "list", "kill", "forget"])
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
@pytest.mark.parametrize("name", ["start", "start_attached", "attach", "kill"])
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


async def test_whether_a_shell_that_was_killed_has_started_it_is_unknown() -> None:
    """That which would follow the command may be killed before it says so."""
    with pytest.raises(Unreachable, match="unknown whether the command 'a' was started: its shell exited with 137"):
        await Host(b"", status=137).start_attached("a", "true", started=never, output=ignore)


MARK = b"aab\n"


@given(st.lists(st.sampled_from([b"", b"a", b"b", b"\n", b"ab", b"aab", MARK, b"x" * 100])))
async def test_a_start_is_reported_once_and_before_the_output(chunks: list[bytes]) -> None:
    """However the mark arrives, and whatever comes before it, of which no more is held than may be its beginning."""
    heard = list[bytes]()

    async def hear(chunk: bytes) -> None:
        heard.append(chunk)

    marked = _Marked(MARK, lambda: heard.append(b"started:"), hear)
    for chunk in chunks:
        await marked(chunk)
        assert len(marked._held) < len(MARK)
    _, found, rest = b"".join(chunks).partition(MARK)
    assert b"".join(heard) == (b"started:" + rest if found else b"")
    assert marked.is_found == bool(found)


async def test_a_login_shell_may_say_something_first() -> None:
    """The word is on the last line."""
    await Host(b"welcome\nstarted\n", status=137).start("a", "true")
    assert (await Host(b"welcome\n\n\nended 3::0\n").attach("a", output=ignore)).exit_status == 3
