"""GitLab's jobs as traces: one for each, from when it waited at GitLab until GitLab has its end.

Its ids are made of what is noted down of it: a later process goes on with the same span, which the last one gives away.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from attrs import define, field

from fleeting import Clock, Usage
from gitlab_jobs import End, Job, Outcome
from taskscaler.tracing import UNFINISHED, Attributes, SpanContext, Trace, Tracer, within
from taskscaler_gitlab._names_of_traces import OF_SCRIPT, context_of, ending, ending_of, names_of, queued, repeats

MOST_REMEMBERED: Final = 10_000
"""Jobs that are over whose repetitions are linked to them."""


class Standing(Protocol):
    """What is written down of a job."""

    @property
    def taken_at(self) -> float:
        """When GitLab handed it out."""
        ...

    @property
    def tries(self) -> int:
        """How often it was placed."""
        ...

    @property
    def outcome(self) -> Outcome | None:
        """How it ended."""
        ...


class Followed(Protocol):
    """A job, and what becomes of it."""

    @property
    def job(self) -> Job:
        """As GitLab described it."""
        ...

    @property
    def record(self) -> Standing:
        """What is written down of it."""
        ...

    @property
    def name(self) -> str:
        """Names it among all jobs of all GitLabs, also after a restart."""
        ...

    @property
    def context(self) -> SpanContext | None:
        """What it is a part of, if the job does not say it any more."""
        ...

    @property
    def clock(self) -> Clock:
        """Says the time."""
        ...

    @property
    def scaler(self) -> object:
        """Has the tracer, if there is one."""
        ...

    @property
    def outlives(self) -> bool:
        """Whether a later process may go on with it."""
        ...

    end: End | None
    problem: str
    interrupted: str
    trace: Trace | None
    """While it is followed."""

    @property
    def usage(self) -> Usage:
        """What it has used, as far as that is known."""
        ...


@define
class Follows:
    """How the jobs of a runner are followed, if they are."""

    _before: OrderedDict[tuple[int, int, str], SpanContext] = field(factory=OrderedDict, init=False)
    """What is over, by what GitLab says of it when it is repeated."""

    @contextmanager
    def job(self, work: Followed) -> Iterator[None]:
        """Follow a job while the body sees it through."""
        tracer = getattr(work.scaler, "tracer", None)
        if not isinstance(tracer, Tracer):
            yield
            return
        work.trace = trace = self._begun(tracer, work)
        try:
            with within(trace):
                yield
        finally:
            self._end(work, trace)

    def _begun(self, tracer: Tracer, work: Followed) -> Trace:
        job, taken_at = work.job, work.record.taken_at
        began, alike = taken_at - queued(job), repeats(job)
        before = None if alike is None else self._before.get(alike)
        trace = tracer.begin(
            "job",
            began,
            names_of(job),
            parent=context_of(job) or work.context or tracer.surroundings(),
            links=() if before is None else (before,),
            seed=work.name,
        )
        trace.tries = work.record.tries - 1
        return trace

    def _end(self, work: Followed, trace: Trace) -> None:
        now, outcome = work.clock.now(), work.record.outcome
        if work.end is None and not work.problem:
            if work.outlives:
                trace.leave()
            else:
                trace.end(now, UNFINISHED)
            return
        how = ending(outcome, work.end, is_stuck=bool(work.problem))
        used = {name: value for name, value in _used(work.usage).items() if value is not None}
        if queued(work.job):
            trace.add_first("queue", work.record.taken_at)
        trace.end(now, how.error, {**how.attributes, **used, "taskscaler.tries": work.record.tries})
        if trace.context.is_sampled and (alike := repeats(work.job)) is not None:
            self._before[alike] = trace.context
            self._before.move_to_end(alike)
            if len(self._before) > MOST_REMEMBERED:
                self._before.popitem(last=False)


def _used(usage: Usage) -> dict[str, float | int | None]:
    return {
        "taskscaler.cpu_time": usage.cpu_time,
        "taskscaler.peak_memory": usage.peak_memory,
        "taskscaler.disk_written": usage.disk_written,
    }


@define
class Tried:
    """How a try has gone, for its span: whoever tries says it."""

    outcome: Outcome | None = None
    error: str = ""

    def ended(self, outcome: Outcome) -> Outcome:
        """It has an outcome; returns that."""
        self.outcome = outcome
        return outcome


@contextmanager
def followed_try(work: Followed) -> Iterator[Tried]:
    """Follow a try at a job while the body is at it: with a slot, or waiting for one."""
    tried, trace = Tried(), work.trace
    if trace is None or not trace.is_followed:
        yield tried
        return
    # An earlier process may have begun the first try here: all that it did was since the job was taken.
    trace.begin_try(work.clock.now() if trace.has_been_tried else work.record.taken_at)
    try:
        yield tried
    except Exception as error:
        tried.error = tried.error or getattr(error, "kind", "runner_system_failure")
        raise
    except BaseException:  # it is ended here, or left to a later process
        tried.error = "interrupted" if work.interrupted or not work.outlives else ""
        if not tried.error:
            trace.leave_try()
        raise
    finally:
        how = None if tried.outcome is None else ending_of(tried.outcome)
        known: Attributes = (
            {}
            if how is None
            else {name: value for name, value in how.attributes.items() if name == "process.exit.code"}
        )
        trace.end_try(
            work.clock.now(),
            tried.error if how is None else how.error,
            known,
            has_run_badly=how is not None and how.error in OF_SCRIPT,
        )
