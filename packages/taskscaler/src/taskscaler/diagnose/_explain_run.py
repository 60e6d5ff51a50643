"""Answers about a batch, from what its results tell: of the whole, of one job, of one instance. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from operator import itemgetter

from attrs import define, frozen

from fleeting.config import did_you_mean
from fleeting.plugins import span
from taskscaler._errors import NothingTold
from taskscaler._observe import GONE, DecisionEvent, InstanceEvent, LeaseEvent
from taskscaler._told import JobTold, Progress, RunTold
from taskscaler._wording import counted, enumerated, iso
from taskscaler.batch import Attempt, JobState, Opened, RecordedEvent
from taskscaler.core._decide import Decision
from taskscaler.diagnose._answer import SCHEMA_VERSION
from taskscaler.diagnose._explain import STATES, decision_dict

Row = tuple[str, str]
"""A label, and what is said under it."""

MOST = 10
"""So many jobs or instances are told of one by one; the rest is counted."""

ON_THE_WAY = "instances on their way"
"""What jobs wait for that no limit keeps from being served."""


_ENDINGS = {
    JobState.LOST: "was lost",
    JobState.CANCELLED: "was cancelled",
    JobState.NO_CAPACITY: "got no slot",
}
"""How it is said that a job ended so, where the state's own words will not do."""


# --- what the record of the fleet says -------------------------------------------------------------------------


@define
class InstanceTold:
    """One instance, as far as was recorded."""

    id: str
    pool: str
    changes: list[InstanceEvent]
    """At least one, in order."""

    leases: list[LeaseEvent]

    @property
    def state(self) -> str:
        """The last one that was recorded; see `InstanceEvent.state`."""
        return self.changes[-1].state

    @property
    def fate(self) -> str:
        """Why it went, or goes: in words, empty if it does not."""
        lost = next((change for change in self.changes if change.lost), None)
        if lost is not None:
            return f"lost: {lost.why}"
        removed = next((change for change in self.changes if change.state == "deleting"), None)
        return f"removed: {removed.why}" if removed is not None else ""

    @property
    def history(self) -> list[InstanceEvent | LeaseEvent]:
        """All that was recorded of it, in order."""
        return sorted([*self.changes, *self.leases], key=lambda event: event.at)

    @property
    def holding(self) -> dict[int, str]:
        """Who holds which slot."""
        held: dict[int, str] = {}
        for lease in self.leases:
            held.pop(lease.slot, None)
            if lease.what in {"acquired", "resumed", "suspended"}:
                held[lease.slot] = lease.key
        return held


def instances_of(events: Iterable[RecordedEvent]) -> dict[tuple[str, str], InstanceTold]:
    """Collect what was recorded of each instance, by pool and id, oldest first."""
    told: dict[tuple[str, str], InstanceTold] = {}
    for event in events:
        match event:
            case InstanceEvent(pool=pool, instance=instance):
                told.setdefault((pool, instance), InstanceTold(instance, pool, [], [])).changes.append(event)
            case LeaseEvent(pool=pool, instance=instance) if (pool, instance) in told:
                told[pool, instance].leases.append(event)
            case _:
                pass
    return told


def waits_of(run: RunTold, until: float) -> dict[str, float]:
    """Tell for how many seconds jobs waited, by what kept them waiting, the longest first."""
    seconds: dict[str, float] = {}
    what = ""
    for event, following in zip_longest(run.events, run.events[1:]):
        match event:
            case DecisionEvent(decision=decision):
                what = _kept_waiting_by(decision) if decision.demand.pending else ""
            case Opened():
                what = ""
        if what and not isinstance(following, Opened):  # else its manager was gone in between
            lasted = (until if following is None else following.at) - event.at
            seconds[what] = seconds.get(what, 0.0) + max(0.0, lasted)
    return dict(sorted(seconds.items(), key=itemgetter(1), reverse=True))


def _kept_waiting_by(decision: Decision) -> str:
    last = decision.pools[-1]
    if last.wanted <= last.increase:
        return ON_THE_WAY
    return " and ".join(dict.fromkeys(pool.limited_by for pool in decision.pools if pool.limited_by))


# --- the whole -------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class RunExplanation:
    """A batch; `rows` are for people."""

    run: RunTold
    at: float
    """Of the question, seconds since the epoch."""

    @property
    def answer(self) -> str:
        """How it stands, in one sentence."""
        states = Counter(_standing_of(job) for job in self.run.jobs.values())
        counts = ", ".join(f"{number} {words}" for words, number in states.items())
        jobs = f"{counted(len(self.run.jobs), 'job')}: {counts or 'none was begun'}"
        match self.run.progress:
            case Progress.RUNNING:
                return f"the batch runs, for {span(self.at - self.run.started)} so far; {jobs}"
            case Progress.INTERRUPTED if self._ended_by_itself:
                return f"the batch ended early, after {span(self.run.last - self.run.started)}; {jobs}"
            case Progress.INTERRUPTED:
                return f"the batch was interrupted, after a last sign of life {self._when(self.run.last)}; {jobs}"
            case Progress.OVER:
                return f"the batch is over, after {span(self.run.last - self.run.started)}; {jobs}"

    @property
    def _ended_by_itself(self) -> bool:
        """Whether the last command knew what became of every job, whatever made it end."""
        return all(job.state.final and not _is_interrupted(job) for job in self.run.jobs.values())

    @property
    def next(self) -> str:
        """What will happen next, as far as can be known from outside."""
        match self.run.progress:
            case Progress.RUNNING:
                return "the command that runs it goes on; its last decision says what it waits for"
            case Progress.INTERRUPTED:
                return f"nothing by itself; taskscaler run --resume {self.run.directory} goes on"
            case Progress.OVER:
                return "nothing: there is nothing left to do"

    @property
    def decision(self) -> DecisionEvent | None:
        """The last one; None if none was recorded."""
        decisions = (event for event in reversed(self.run.events) if isinstance(event, DecisionEvent))
        return next(decisions, None)

    @property
    def waits(self) -> Mapping[str, float]:
        """For how many seconds jobs waited, by what kept them waiting."""
        return waits_of(self.run, self.at if self.run.progress is Progress.RUNNING else self.run.last)

    def rows(self) -> Iterator[Row]:
        """All of it, under labels."""
        yield "batch", self.answer
        yield from (("capacity", line) for line in self._on_capacity())
        yield from (("retried", line) for line in _at_most([*self._retries()], "more job"))
        yield from (("trouble", line) for line in _at_most([*self._failures()], "more job"))
        yield from (("instances", line) for line in self._on_instances())
        if self.decision is not None:
            yield "decided last", f"{self._when(self.decision.at)}: {self.decision.decision}"
        yield "next", self.next

    def as_dict(self) -> dict[str, object]:
        """Plain data, as docs/reference/explain-json.md describes it."""
        told = instances_of(self.run.events).values()
        return {
            "version": SCHEMA_VERSION,
            "about": "run",
            "at": iso(self.at),
            "answer": self.answer,
            "progress": self.run.progress.value,
            "started": iso(self.run.started),
            "last": iso(self.run.last),
            "jobs": [_job_dict(job) for job in self.run.jobs.values()],
            "waits": [{"for": what, "seconds": round(seconds, 3)} for what, seconds in self.waits.items()],
            "instances": [_instance_dict(instance) for instance in told],
            "decision": None if self.decision is None else decision_dict(self.decision.decision),
            "next": self.next,
        }

    def _when(self, at: float) -> str:
        return _when(self.run, at, self.at)

    def _on_capacity(self) -> Iterator[str]:
        if not self.run.events:
            yield "nothing was recorded of the fleet"
            return
        waits = {what: seconds for what, seconds in self.waits.items() if round(seconds, 1)}
        if not waits:
            yield "no job had to wait"
        for what, seconds in waits.items():
            yield f"jobs waited {span(seconds)} {'for' if what == ON_THE_WAY else 'because of'} {what}"

    def _retries(self) -> Iterator[str]:
        for job in self.run.jobs.values():
            if followed := _followed(job):
                yield f"{job.name}: {'; then '.join(each.why for each in followed)}"

    def _failures(self) -> Iterator[str]:
        for job in self.run.jobs.values():
            if job.state.final and job.state is not JobState.SUCCEEDED:
                yield f"{job.name} {_ending(job)}: {job.why}"

    def _on_instances(self) -> Iterator[str]:
        told = instances_of(self.run.events).values()
        fates = Counter(each.fate for each in told if each.state == GONE)
        for fate, number in fates.most_common():
            yield f"{number} {fate}"
        left = [each for each in told if each.state != GONE]
        if self.run.progress is not Progress.RUNNING:
            yield from (f"{each.id} was {STATES[each.state]} when the record ends" for each in left[:MOST])
        else:
            yield from _at_most([_standing(each) for each in left], "more instance")


def _standing(instance: InstanceTold) -> str:
    jobs = [instance.holding[slot] for slot in sorted(instance.holding)]
    words = f"{instance.id} is {STATES[instance.state]}"
    match instance.state:
        case "running":
            return f"{words}, " + (f"in use by {enumerated(jobs)}" if jobs else "and idle")
        case "deleting" | "unusable":
            return f"{words} ({instance.changes[-1].why})"
    return words


def _when(run: RunTold, at: float, now: float) -> str:
    """Say when something happened: how long ago while the batch runs, else how long after its start."""
    if run.progress is Progress.RUNNING:
        return f"{span(now - at)} ago"
    return f"{span(at - run.started)} after the start"


def _is_interrupted(job: JobTold) -> bool:
    """Whether it ran when its command was stopped, and has not been tried again."""
    return job.state is JobState.LOST and bool(job.attempts) and job.attempts[-1].interrupted


def _followed(job: JobTold) -> tuple[Attempt, ...]:
    """The tries that were followed by another, or will be."""
    return job.attempts if job.state is JobState.QUEUED else job.attempts[:-1]


def _standing_of(job: JobTold) -> str:
    """The state in a word or two."""
    return "interrupted" if _is_interrupted(job) else job.state.words


def _ending(job: JobTold) -> str:
    """How it ended, to follow its name."""
    return "was interrupted" if _is_interrupted(job) else _ENDINGS.get(job.state, job.state.words)


def _at_most(lines: Sequence[str], noun: str) -> Iterator[str]:
    yield from lines[:MOST]
    if len(lines) > MOST:
        yield f"and {counted(len(lines) - MOST, noun)}"


# --- one job ---------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class JobExplanation:
    """One job of a batch; `rows` are for people."""

    run: RunTold
    job: JobTold
    at: float
    """Of the question, seconds since the epoch."""

    @property
    def answer(self) -> str:
        """How it stands and why it was tried as often as it was, in one sentence."""
        name, tries = self.job.name, self.job.attempts
        often = f" at try {len(tries)}" if len(tries) > 1 else ""
        why = f": {self.job.why}" if self.job.why else ""
        match self.job.state:
            case JobState.QUEUED if tries:
                return f"{name} waits to be tried again: {tries[-1].why}"
            case JobState.QUEUED:
                return f"{name} waits for its first slot"
            case JobState.RUNNING:
                return f"{name} runs on {tries[-1].instance}{often}{self._again}"
            case _:
                return f"{name} {_ending(self.job)}{often}{why}{self._again}"

    @property
    def _again(self) -> str:
        """Why it was tried more than once, to follow a sentence."""
        whys = dict.fromkeys(each.why for each in _followed(self.job))
        return f"; it was tried again because {', and because '.join(whys)}" if whys else ""

    @property
    def next(self) -> str:
        """What will happen to it next, as far as can be known from outside."""
        if self.run.progress is Progress.OVER or (self.job.state.stands and not _is_interrupted(self.job)):
            return "nothing: it is over"
        if self.run.progress is Progress.INTERRUPTED:
            return f"nothing by itself; taskscaler run --resume {self.run.directory} tries it"
        if self.job.state is JobState.RUNNING:
            return "it goes on to its end, and is tried again if its instance is lost and it has retries left"
        return "it is given the next slot that is free once those before it have theirs"

    def rows(self) -> Iterator[Row]:
        """All of it, under labels."""
        yield "job", self.answer
        if self.job.attempts:
            yield "waited", f"{span(self.job.attempts[0].started - self.run.started)} for its first slot"
        else:
            yield "waits", f"for {span(self._until - self.run.started)} so far"
        for number, attempt in enumerate(self.job.attempts, 1):
            yield f"try {number}", self._on_try(attempt)
        if self.job.state is JobState.QUEUED:
            yield from self._why_waiting()
        yield "next", self.next

    def as_dict(self) -> dict[str, object]:
        """Plain data, as docs/reference/explain-json.md describes it."""
        return {
            "version": SCHEMA_VERSION,
            "about": "run_job",
            "at": iso(self.at),
            "answer": self.answer,
            "progress": self.run.progress.value,
            **_job_dict(self.job),
            "next": self.next,
        }

    @property
    def _until(self) -> float:
        return self.at if self.run.progress is Progress.RUNNING else self.run.last

    def _on_try(self, attempt: Attempt) -> str:
        ended = self._until if attempt.ended is None else attempt.ended
        place = f"slot {attempt.slot} of {attempt.place}"
        when = f"{span(attempt.started - self.run.started)} after the start"
        lasted = span(ended - attempt.started)
        ends = f"{attempt.state.words} after {lasted}"
        if attempt.interrupted:
            ends = "interrupted"
        elif attempt.state is JobState.RUNNING:
            ends = f"runs for {lasted}"
        return f"{when}, in {place}: {ends}" + (f": {attempt.why}" if attempt.why else "")

    def _why_waiting(self) -> Iterator[Row]:
        decision = RunExplanation(run=self.run, at=self.at).decision
        if decision is not None:
            yield "decided last", f"{_when(self.run, decision.at, self.at)}: {decision.decision}"


# --- one instance ----------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class InstanceOfRun:
    """One instance of a batch's fleet; `rows` are for people."""

    run: RunTold
    instance: InstanceTold
    at: float
    """Of the question, seconds since the epoch."""

    @property
    def answer(self) -> str:
        """How it stands and why, in one sentence."""
        told = self.instance
        if told.state == GONE:
            return f"{told.id} is gone, {told.fate or 'for reasons that were not recorded'}"
        if self.run.progress is Progress.RUNNING:
            return _standing(told)
        return f"{told.id} was {STATES[told.state]} when the record ends; whoever uses the group next takes it over"

    def rows(self) -> Iterator[Row]:
        """All of it, under labels."""
        yield "instance", self.answer
        jobs = [lease.key for lease in self.instance.leases if lease.what == "acquired"]
        yield "jobs", f"{len(jobs)}: {enumerated(jobs, most=MOST)}" if jobs else "none"
        for event in self.instance.history:
            yield span(event.at - self.run.started), _in_words(event)

    def as_dict(self) -> dict[str, object]:
        """Plain data, as docs/reference/explain-json.md describes it."""
        return {
            "version": SCHEMA_VERSION,
            "about": "run_instance",
            "at": iso(self.at),
            "answer": self.answer,
            "progress": self.run.progress.value,
            **_instance_dict(self.instance),
            "history": [
                {"at": iso(event.at), "what": _what(event), "key": getattr(event, "key", None), "why": event.why}
                for event in self.instance.history
            ],
        }


def _what(event: InstanceEvent | LeaseEvent) -> str:
    return event.state if isinstance(event, InstanceEvent) else event.what


def _in_words(event: InstanceEvent | LeaseEvent) -> str:
    why = f": {event.why}" if event.why else ""
    if isinstance(event, InstanceEvent):
        return f"{'lost' if event.lost else STATES[event.state]}{why}"
    return f"slot {event.slot} {event.what} by {event.key}{why}"


# --- asking ----------------------------------------------------------------------------------------------------


def explain_run(run: RunTold, at: float) -> RunExplanation:
    """Tell of the whole batch."""
    return RunExplanation(run=run, at=at)


def explain_job(run: RunTold, name: str, at: float) -> JobExplanation:
    """Tell of one job.

    Raises:
        NothingTold: The batch has none of that name.
    """
    return JobExplanation(run=run, job=run.job(name), at=at)


def explain_instance_of(run: RunTold, name: str, at: float) -> InstanceOfRun:
    """Tell of one instance, by its id, or by ``pool/id``.

    Raises:
        NothingTold: None of that name was recorded.
    """
    told = instances_of(run.events)
    for (pool, id_), instance in told.items():
        if name in {id_, f"{pool}/{id_}"}:
            return InstanceOfRun(run=run, instance=instance, at=at)
    known = [id_ for _, id_ in told]
    hint = did_you_mean(name, known) or (f"it had {enumerated(known)}" if known else "nothing was recorded of it")
    raise NothingTold(f"the fleet of {run.directory} had no instance {name!r}; {hint}")


def _job_dict(job: JobTold) -> dict[str, object]:
    return {
        "name": job.name,
        "state": job.state.value,
        "why": job.why,
        "retried": max(0, len(job.attempts) - 1),
        "attempts": [
            {
                "pool": each.pool,
                "instance": each.instance,
                "slot": each.slot,
                "state": each.state.value,
                "why": each.why,
                "interrupted": each.interrupted,
                "preempted": each.preempted,
                "started": iso(each.started),
                "ended": None if each.ended is None else iso(each.ended),
            }
            for each in job.attempts
        ],
    }


def _instance_dict(instance: InstanceTold) -> dict[str, object]:
    return {
        "instance": instance.id,
        "pool": instance.pool,
        "state": instance.state,
        "since": iso(instance.changes[-1].at),
        "why": instance.fate,
        "holding": [{"slot": slot, "key": key} for slot, key in sorted(instance.holding.items())],
        "uses": sum(lease.what == "acquired" for lease in instance.leases),
    }
