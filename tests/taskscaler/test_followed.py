"""The jobs of a batch as traces, over the commands that run it: which spans are the same, and which are others."""

from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from attrs import define, field

from fleeting.errors import NameUnknown
from taskscaler._span import Span, SpanContext, context_in
from taskscaler._tracer import Sampling, Tracer, current, within
from taskscaler.batch import Job
from taskscaler.batch._addresses import Addresses
from taskscaler.batch._events import Begun, Ended, GivenUp, Joined, RecordedEvent, Rerun, Resumed, Started
from taskscaler.batch._followed import Following, followed_try
from taskscaler.batch._job_state import JobState
from taskscaler.batch._log import JobLog
from taskscaler.batch._outliving import Outliving
from taskscaler.batch._state import BatchState
from taskscaler.executors import JobOutcome, JobSpec, Verdict

JOB = Job(spec=JobSpec(name="a", script="true"))


@define
class Still:
    """A clock that stands still unless it is set."""

    at: float

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.at

    async def sleep_until(self, at: float) -> None:
        """Nobody waits."""
        raise NotImplementedError


class Killed(Exception):
    """So is the command."""


def command(events: Sequence[RecordedEvent], first: int, *, is_kept: bool = False, is_left: bool = False) -> list[Span]:
    """Run a batch as a command that meets these events, of which the *first* ones happened before."""
    begun, *before = events[:first]
    assert isinstance(begun, Begun)
    state, spans = BatchState(begun), list[Span]()
    for event in before:
        state.apply(event)
    tracer = Tracer(spans.append, lambda *_: Sampling(is_sampled=True), random=Random(first))
    clock = Still(begun.at)
    tracer.now = clock.now
    left = list(events[first:])

    def take(kinds: tuple[type, ...]) -> None:
        while left and isinstance(left[0], kinds):
            clock.at = left[0].at
            state.apply(left.pop(0))

    clock.at = events[first - 1].at
    with suppress(Killed), Following(tracer=tracer).job(JOB, state, clock, is_kept=is_kept):
        while left:
            with followed_try(JOB, state, clock, is_kept=is_kept):
                take((GivenUp,))
                take((Started, Joined))
                trace = current()
                trace.enter("run", clock.now())  # type: ignore[union-attr]  # it is one
                take((Ended,))
            is_kept = False
        if is_left and state["a"].state is JobState.QUEUED:
            raise Killed
    return spans


def named(spans: Sequence[Span], name: str) -> list[SpanContext]:
    """The spans of a name."""
    return [each.context for each in spans if each.name == name]


BEGUN = Begun.of([JOB], at=1000.0, id="0123456789ab")
RESUMED = Resumed(at=1100.0)


def started(at: float, *, detached: bool = True) -> Started:
    """A try that begins."""
    return Started(at=at, job="a", pool="", instance="i-1", slot=0, detached=detached)


def ended(at: float, state: JobState = JobState.SUCCEEDED) -> Ended:
    """A try that ends."""
    return Ended(at=at, job="a", state=state, exit_code=0)


def test_a_try_that_runs_on_is_the_same() -> None:
    """Its span, the job's, and that which it was told of, are those of the command that was killed."""
    whole = command([BEGUN, started(1010.0), ended(1150.0)], 1)
    first = command([BEGUN, started(1010.0)], 1)
    later = command([BEGUN, started(1010.0), RESUMED, Joined(at=1101.0, job="a"), ended(1150.0)], 3, is_kept=True)
    assert not named(first, "job") + named(first, "try") + named(first, "run")
    for name in ("job", "try", "run"):
        assert named(later, name) == named(whole, name) != []
    (run,) = [each for each in later if each.name == "run"]
    assert (run.began, run.ended) == (1010.0, 1150.0)


def test_a_try_that_was_lost_with_its_command_is_sent_by_the_next() -> None:
    """With those that follow it, in the same trace."""
    lost = started(1010.0, detached=False)
    later = command([BEGUN, lost, RESUMED, started(1110.0), ended(1150.0)], 3)
    tries = [each for each in later if each.name == "try"]
    assert [(each.attributes["taskscaler.try"], each.error) for each in tries] == [(1, "lost"), (2, "")]
    whole = command([BEGUN, started(1010.0), ended(1150.0)], 1)
    assert named(later, "job") == named(whole, "job")
    assert tries[0].context == named(whole, "try")[0]


@pytest.mark.parametrize(
    "before",
    [
        [GivenUp(at=1020.0, jobs=("a",), state=JobState.CANCELLED, why="")],
        [started(1010.0), ended(1020.0)],
    ],
    ids=["given up", "over"],
)
def test_a_job_that_is_run_once_more_is_another_span(before: list[RecordedEvent]) -> None:
    """That of the command before was sent."""
    first = command([BEGUN, *before], 1)
    again = [Rerun(at=1100.0, jobs=("a",))] if isinstance(before[-1], Ended) else []
    history = [BEGUN, *before, RESUMED, *again]
    later = command([*history, started(1110.0), ended(1150.0)], len(history))
    assert len(named(first, "job") + named(later, "job")) == 2
    assert named(first, "job") != named(later, "job")


@define
class Starting:
    """An executor that knows of no try before it is to start it."""

    told: list[SpanContext | None] = field(factory=list)

    async def run(self, *_: Any, **__: Any) -> JobOutcome:  # noqa: ANN401  (as others have it)
        """It outlives commands."""
        raise NotImplementedError

    async def start(self, job: JobSpec, _: object, *, name: str) -> None:
        """Keep what the job is told of its trace."""
        assert name
        self.told.append(context_in(job.env))

    async def attach(self, *_: Any, name: str, **__: Any) -> JobOutcome:  # noqa: ANN401  (as others have it)
        """It ends at once, if it was started."""
        if not self.told:
            raise NameUnknown(name)
        return JobOutcome(verdict=Verdict.SUCCEEDED, exit_code=0)

    async def end(self, _: object, *, name: str) -> None:
        """Nothing is left of it."""
        assert name


@pytest.mark.anyio
async def test_a_job_that_only_the_next_command_starts_is_told_its_span(tmp_path: Path) -> None:
    """As one is that a command starts itself: the one before had written down that it begins, and was killed."""
    tracer = Tracer(lambda _: None, lambda *_: Sampling(is_sampled=True))
    trace, executor = tracer.begin("job", 1.0), Starting()
    trace.begin_try(1.0)
    outliving = Outliving(executor, None, JOB, "try-1", tmp_path)  # type: ignore[arg-type]  # nothing asks for a slot
    with closing(JobLog(JOB.log_limit, Addresses())) as output, within(trace):
        await outliving.go_on(output, 0, began=0.0)
    assert executor.told == [trace.inner]
