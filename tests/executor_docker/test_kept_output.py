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
from fleeting import Connection, FleetingError
from fleeting.connectors import Sink
from fleeting_docker_engine import (
    STDERR,
    STDOUT,
    ContainerState,
    EngineRefused,
    EngineUnreachable,
    Inspected,
    Stats,
    Waited,
)
from fleeting_docker_engine._frames import PIECE
from taskscaler.executors import JobOutcome, JobSpec, Reattaches, Verdict
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


REPORT = (b"taskscaler ended 0\n", b"taskscaler memory 4096\n", b"taskscaler whole 1\n")


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
    outcome = await Kept(work)._follow_in_time(7200.0, Printed(0), _drop)
    assert (outcome.verdict, outcome.why) == (Verdict.TIMED_OUT, "took longer than 1m0s")
    assert daemon.asked == ["the log", "POST /containers/c/kill", "POST /containers/c/wait", "the log"]


@define
class Hasty:
    """A daemon that ends a log which is followed before its last frames."""

    frames: list[bytes]
    lost: int

    async def ask_for(self, kind: type[object], *_: object, **__: object) -> object:
        """Say that the job has ended well."""
        return Waited(StatusCode=0) if kind is Waited else Inspected(State=ContainerState(Running=False))

    async def download(self, _: str, sink: Sink, *, query: dict[str, bool], patience: float | None) -> None:
        """Read, and read not all."""
        assert patience is None or query["follow"], "what has ended is only read"
        for frame in self.frames[: len(self.frames) - self.lost if query["follow"] else None]:
            await sink(frame)


@pytest.mark.anyio
@pytest.mark.parametrize("lost", range(6))
async def test_a_daemon_that_ends_a_followed_log_early_makes_nobody_believe_in_a_kill(lost: int) -> None:
    """What it kept back, be it the job's last line or our report, is read once more."""
    report = (pack(">BxxxL", STDERR, len(line)) + line for line in REPORT)
    daemon: Any = Hasty([*logged(b"said\n" + END, has_line_ends=True), *report], lost)
    said = bytearray()
    outcome = await followed(daemon, said)
    assert (outcome.verdict, outcome.peak_memory, bytes(said)) == (Verdict.SUCCEEDED, 4096, b"said\n")


@define
class Killed(Hasty):
    """A daemon whose job was killed: for its memory, or by somebody."""

    for_memory: bool
    breaks: Exception | None = None
    """How reading the log once more breaks off."""

    code: int = 137

    reads: int = field(default=0, init=False)

    async def ask_for(self, kind: type[object], *_: object, **__: object) -> object:
        """Say how it has ended."""
        state = ContainerState(Running=False, OOMKilled=self.for_memory, ExitCode=self.code)
        return Waited(StatusCode=self.code) if kind is Waited else Inspected(State=state)

    async def download(self, _: str, sink: Sink, *, query: dict[str, bool], patience: float | None) -> None:
        """Read."""
        self.reads += 1
        await super().download(_, sink, query=query, patience=patience)
        if self.breaks and not query["follow"]:
            raise self.breaks


async def followed(daemon: Any, said: bytearray) -> JobOutcome:  # noqa: ANN401  (stands for a client)
    """What becomes of a job, and what it has said."""
    config, job = DockerConfig(image="busybox"), JobSpec(name="job", script="echo said")
    unit = Unit(id="0123456789ab-job", labels={})
    work = Work(config, daemon, admit(config, DockerOptions()), job, unit, Slot("i-1", _nowhere))
    work.container = "c"

    async def keep(chunk: bytes) -> None:
        said.extend(chunk)

    return await Kept(work)._follow_in_time(1.0, Printed(0), keep)


@pytest.mark.anyio
async def test_the_log_of_a_job_that_could_write_no_end_is_read_once() -> None:
    """It may be gigabytes, and whoever was killed for memory has left none."""
    daemon, said = Killed([*logged(b"said\n", has_line_ends=True)], 0, for_memory=True), bytearray()
    outcome = await followed(daemon, said)
    assert (outcome.verdict, bytes(said), daemon.reads) == (Verdict.FAILED, b"said\n", 1)


@pytest.mark.anyio
@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("lost", range(6))
async def test_a_job_that_goes_on_without_a_process_killed_for_memory_keeps_its_last_lines(
    lost: int, code: int
) -> None:
    """The daemon says of its container that memory ran out, yet its shell has lived, and written an end."""
    report = (pack(">BxxxL", STDERR, len(line)) + line for line in REPORT)
    frames = [*logged(b"said\n" + END, has_line_ends=True), *report]
    daemon, said = Killed(frames, lost, for_memory=True, code=code), bytearray()
    outcome = await followed(daemon, said)
    assert (outcome.exit_code, outcome.peak_memory, bytes(said)) == (code, 4096, b"said\n")


BREAKS = [EngineUnreachable("the connection broke"), EngineRefused(500, "the log was rotated")]


@pytest.mark.anyio
@pytest.mark.parametrize("breaks", BREAKS, ids=["unreachable", "refused"])
async def test_what_is_known_of_a_job_counts_although_its_log_cannot_be_read_again(breaks: Exception) -> None:
    """Its end was in the first part, so it is over, and not to be run again; what it has printed is there once."""
    report = [pack(">BxxxL", STDERR, len(line)) + line for line in REPORT]
    frames = [*logged(b"said\n" + END, has_line_ends=True), *report]
    daemon, said = Killed(frames, 1, for_memory=False, breaks=breaks), bytearray()
    outcome = await followed(daemon, said)
    assert (outcome.verdict, outcome.exit_code, outcome.peak_memory) == (Verdict.FAILED, 137, 4096)
    assert (bytes(said), daemon.reads) == (b"said\n", 2)


@pytest.mark.anyio
@pytest.mark.parametrize("breaks", BREAKS, ids=["unreachable", "refused"])
async def test_a_job_whose_end_was_in_neither_part_is_lost(breaks: Exception) -> None:
    """Nobody knows how it went."""
    frames = [*logged(b"said\n" + END, has_line_ends=True)]
    with pytest.raises(FleetingError, match=str(breaks).rpartition(": ")[2]):
        await followed(Killed(frames, 0, for_memory=False, breaks=breaks), bytearray())


async def _drop(_: bytes) -> None:
    """Take output for which there is no log."""


def _nowhere() -> AbstractAsyncContextManager[Connection]:
    """Never called."""
    raise AssertionError("nothing is dialled")
