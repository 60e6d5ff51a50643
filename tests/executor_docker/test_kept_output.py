"""Of jobs that outlive their manager, what needs no daemon: what is read from its log, byte for byte."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from struct import pack
from typing import Any

import anyio
import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from executor_docker import DockerConfig, DockerExecutor, DockerOptions
from executor_docker._kept import Kept, Printed
from executor_docker._owner import Unit
from executor_docker._rules import admit
from executor_docker._script import END
from executor_docker._work import Work
from fleeting import Connection
from fleeting_docker_engine import STDERR, STDOUT, ContainerState, Inspected, Stats
from fleeting_docker_engine._frames import PIECE
from taskscaler.executors import JobSpec, Reattaches, Verdict
from tests.taskscaler.leased import Slot


def test_the_docker_executor_reattaches() -> None:
    """As whoever has an executor finds out."""
    assert isinstance(DockerExecutor(DockerConfig()), Reattaches)


def logged(said: bytes, *, has_line_ends: bool) -> Iterator[bytes]:
    """Write an output as a daemon does: line by line, long ones in pieces; an older one forgets the ends of those."""
    for line in said.splitlines(keepends=True) if said else ():
        text = line.removesuffix(b"\n")
        pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)] or [b""]
        if len(pieces[-1]) == PIECE:
            pieces.append(b"")
        end = b"\n" if has_line_ends or len(pieces) == 1 else b""
        for piece in (*pieces[:-1], pieces[-1] + end):
            yield pack(">BxxxL", STDOUT, len(piece)) + piece


@settings(max_examples=60)
@given(
    said=st.lists(
        st.sampled_from([b"a", b"\n", END, END[:1], END[:5], b"\0\xff", b"x" * PIECE, b"y" * 20_000]), max_size=6
    ).map(b"".join),
    ended=st.booleans(),
    has_line_ends=st.booleans(),
    cuts=st.lists(st.integers(0, 50_000), max_size=8),
    offset=st.integers(0, 50_000),
)
def test_each_byte_of_a_log_is_passed_on_once_and_ours_are_not(
    said: bytes,
    ended: bool,  # noqa: FBT001  (drawn)
    has_line_ends: bool,  # noqa: FBT001
    cuts: list[int],
    offset: int,
) -> None:
    """However it comes in pieces, and wherever somebody left off; also if the log has to be asked for again."""
    if not ended and said and not said.endswith(b"\n"):
        said += b"\n"  # as the daemon does, without our end
    expected = said if ended else said.removesuffix(END)
    report = pack(">BxxxL", STDERR, 2) + b"x\n"
    log = b"".join(each + report for each in logged(said + END * ended, has_line_ends=has_line_ends))
    printed = Printed(min(offset, len(expected)))
    got = bytearray(expected[: printed.size])
    for _ in range(2):
        printed.begin()
        for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(log)], strict=True):
            chunk = printed.feed(log[start:end])
            printed.passed(chunk)
            got += chunk
    got += printed.finish()
    assert bytes(got) == expected
    assert not bytes(printed.report).strip(b"x\n")


@define
class Endless:
    """A daemon that has killed a job, and never comes to the end of its log."""

    asked: list[str] = field(factory=list)

    async def ask(self, method: str, path: str, **_: object) -> None:
        """Do it."""
        self.asked.append(f"{method} {path}")

    async def ask_for(self, kind: type[object], *_: object, **__: object) -> object:
        """Say that the job runs."""
        return Stats() if kind is Stats else Inspected(State=ContainerState(Running=True))

    async def download(self, *_: object, **__: object) -> None:
        """Read, and read."""
        self.asked.append("the log")
        await anyio.sleep_forever()


@pytest.mark.anyio
async def test_a_daemon_that_never_ends_a_log_holds_no_job_whose_time_is_over() -> None:
    """Its verdict is known; what is missing of its output is given up."""
    config = DockerConfig(image="busybox", cleanup_timeout=0.01)
    job = JobSpec(name="job", script="sleep 1000", timeout=60.0)
    daemon: Any = Endless()
    unit = Unit(id="0123456789ab-job", labels={})
    work = Work(config, daemon, admit(config, DockerOptions()), job, unit, Slot("i-1", _nowhere))
    work.container = "c"
    with anyio.fail_after(30):
        outcome = await Kept(work)._follow_in_time(7200.0, Printed(0), _drop)
    assert (outcome.verdict, outcome.why) == (Verdict.TIMED_OUT, "took longer than 1m0s")
    assert daemon.asked == ["the log", "POST /containers/c/kill", "POST /containers/c/wait", "the log"]


async def _drop(_: bytes) -> None:
    """Take output for which there is no log."""


def _nowhere() -> AbstractAsyncContextManager[Connection]:
    """Never called."""
    raise AssertionError("nothing is dialled")
