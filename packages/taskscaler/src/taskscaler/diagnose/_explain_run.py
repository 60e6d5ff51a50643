"""Answers about a batch, from its results: about the whole, of one job, of one instance. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from operator import itemgetter

from attrs import asdict, frozen

from fleeting.plugins import span
from taskscaler._observe import GONE, DecisionEvent
from taskscaler._recorded_run import Progress, RecordedInstance, RecordedRun
from taskscaler._uses import StepUse, in_words, limit_in_words
from taskscaler._wording import counted, enumerated, iso, used_in_words
from taskscaler.batch import Attempt, Ended, JobRecord, JobState, Resumed, Started
from taskscaler.batch._graph import lacking
from taskscaler.core._decide import Decision
from taskscaler.diagnose._answer import Answer, Row
from taskscaler.diagnose._explain import STATES, decision_dict

MOST = 10
"""So many jobs or instances are described one by one; the rest is counted."""

_USUAL = frozenset({"acquired", "released"})
"""What happens to an instance with each job."""

ON_THE_WAY = "instances on their way"
"""What jobs wait for that no limit keeps from being served."""


def waits_of(run: RecordedRun, until: float) -> dict[str, float]:
    """For how many seconds jobs waited, by what kept them waiting, the longest first."""
    seconds: dict[str, float] = {}
    what = ""
    for event, following in zip_longest(run.events, run.events[1:]):
        match event:
            case DecisionEvent(decision=decision):
                what = _kept_waiting_by(decision) if decision.demand.pending else ""
            case Resumed():
                what = ""
        if what and not isinstance(following, Resumed):  # else its manager was gone in between
            lasted = (until if following is None else following.at) - event.at
            seconds[what] = seconds.get(what, 0.0) + max(0.0, lasted)
    return dict(sorted(seconds.items(), key=itemgetter(1), reverse=True))


def _kept_waiting_by(decision: Decision) -> str:
    last = decision.pools[-1]
    if last.wanted <= last.increase:
        return ON_THE_WAY
    return " and ".join(dict.fromkeys(pool.limited_by for pool in decision.pools if pool.limited_by))


@frozen(kw_only=True)
class RunAnswer(Answer):
    """An answer about a batch, from its event log."""

    run: RecordedRun

    def as_dict(self) -> dict[str, object]:
        """See `Answer.as_dict`."""
        return {**super().as_dict(), "progress": self.run.progress.value}


# --- the whole -------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class RunExplanation(RunAnswer):
    """A batch."""

    about = "run"

    @property
    def answer(self) -> str:
        """How it stands, in one sentence."""
        states = Counter(_standing_of(self.run, job) for job in self.run.jobs.values())
        counts = ", ".join(f"{number} {words}" for words, number in states.items())
        jobs = f"{counted(len(self.run.jobs), 'job')}: {counts or 'none started'}"
        match self.run.progress:
            case Progress.RUNNING:
                return f"the batch has been running for {span(self.at - self.run.started)}; {jobs}"
            case Progress.INTERRUPTED if self._ended_by_itself:
                return f"the batch ended early after {span(self.run.last - self.run.started)}; {jobs}"
            case Progress.INTERRUPTED:
                return f"the batch was interrupted (last event {self._when(self.run.last)}); {jobs}"
            case Progress.OVER:
                return f"the batch ended after {span(self.run.last - self.run.started)}; {jobs}"

    @property
    def _ended_by_itself(self) -> bool:
        """Whether the last command knew what became of every job, whatever made it end."""
        return all(job.state.final for job in self.run.jobs.values())

    @property
    def next(self) -> str:
        """What will happen next, as far as can be known from outside."""
        match self.run.progress:
            case Progress.RUNNING:
                return "the running command continues; its last decision shows what it is waiting for"
            case Progress.INTERRUPTED:
                return f"nothing by itself; resume with taskscaler run --resume {self.run.directory}"
            case Progress.OVER:
                return "nothing, the batch is over"

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
        """See `Answer.rows`."""
        yield "batch", self.answer
        yield from (("capacity", line) for line in self._on_capacity())
        yield from (("retried", line) for line in _at_most([*self._retries()], "more reason"))
        yield from (("trouble", line) for line in _at_most([*self._failures()], "more reason"))
        yield from (("instances", line) for line in self._on_instances())
        if self.decision is not None:
            yield "decided last", f"{self._when(self.decision.at)}: {self.decision.decision}"
        yield "next", self.next

    def data(self) -> Mapping[str, object]:
        """See `Answer.data`."""
        instances = self.run.instances.values()
        return {
            "started": iso(self.run.started),
            "last": iso(self.run.last),
            "jobs": [_job_dict(job) for job in self.run.jobs.values()],
            "waits": [{"for": what, "seconds": round(seconds, 3)} for what, seconds in self.waits.items()],
            "instances": [_instance_dict(instance) for instance in instances],
            "decision": None if self.decision is None else decision_dict(self.decision.decision),
            "next": self.next,
        }

    def _when(self, at: float) -> str:
        return _when(self.run, at, self.at)

    def _on_capacity(self) -> Iterator[str]:
        if not self.run.fleet_recorded:
            yield "the fleet was not recorded"
            return
        if self.decision is None:
            yield "no scaling decision was recorded, so what jobs waited for is unknown"
            return
        waits = {what: seconds for what, seconds in self.waits.items() if round(seconds, 1)}
        if not waits:
            yield "no job had to wait"
        for what, seconds in waits.items():
            yield f"jobs waited {span(seconds)} {'for' if what == ON_THE_WAY else 'because of'} {what}"

    def _retries(self) -> Iterator[str]:
        """Which jobs were tried again, and why; those with one reason together, as an instance takes many with it."""
        names: dict[str, list[str]] = {}
        for job in self.run.jobs.values():
            if followed := _followed(self.run, job):
                names.setdefault("; then ".join(each.why for each in followed), []).append(job.name)
        yield from (f"{enumerated(jobs, most=MOST)}: {why}" for why, jobs in names.items())

    def _failures(self) -> Iterator[str]:
        """Which jobs did not succeed, and why; those with one reason together, as Ctrl-C cancels all that wait."""
        names: dict[tuple[str, str], list[str]] = {}
        for job in self.run.jobs.values():
            if _is_interrupted(self.run, job) or (job.state.final and job.state is not JobState.SUCCEEDED):
                names.setdefault((_ending(self.run, job), job.why), []).append(job.name)
        for (ending, why), jobs in names.items():
            said = ending if len(jobs) == 1 else ending.replace("was ", "were ", 1)
            yield f"{enumerated(jobs, most=MOST)} {said}: {why}"

    def _on_instances(self) -> Iterator[str]:
        instances = self.run.instances.values()
        fates = Counter(each.fate for each in instances if each.state == GONE)
        for fate, number in fates.most_common():
            yield f"{number} {fate}"
        left = [_standing(self.run, each) for each in instances if each.state != GONE]
        yield from _at_most(left, "more instance")


def _in_words(state: str) -> str:
    return STATES.get(state, state)  # which a later release may have added


def _standing(run: RecordedRun, instance: RecordedInstance) -> str:
    """How an instance stands that is not known to be gone."""
    state = _in_words(instance.state)
    if not instance.seen:
        return f"{instance.id} was {state} when its manager was stopped, and has not been seen since"
    if run.progress is not Progress.RUNNING:
        return f"{instance.id} was {state} when the record ended"
    match instance.state:
        case "running":
            jobs = [instance.holding[slot] for slot in sorted(instance.holding)]
            return f"{instance.id} is {state}, " + (f"in use by {enumerated(jobs)}" if jobs else "idle")
        case "deleting" | "unusable":
            return f"{instance.id} is {state} ({instance.changes[-1].why})"
    return f"{instance.id} is {state}"


def _when(run: RecordedRun, at: float, now: float) -> str:
    """Say when something happened: how long ago while the batch runs, else how long after its start."""
    if run.progress is Progress.RUNNING:
        return f"{span(now - at)} ago"
    return f"{span(at - run.started)} after the start"


def _is_interrupted(run: RecordedRun, job: JobRecord) -> bool:
    """Whether it ran when its command was stopped, and no command runs the batch since."""
    return job.interrupted and run.progress is not Progress.RUNNING


def _followed(run: RecordedRun, job: JobRecord) -> Sequence[Attempt]:
    """The tries that were followed by another, or will be, because they did not end well."""
    waits_again = job.state is JobState.QUEUED and not _is_interrupted(run, job)
    followed = job.attempts if waits_again else job.retried_attempts
    return [attempt for attempt in followed if attempt.state is not JobState.SUCCEEDED]


def _standing_of(run: RecordedRun, job: JobRecord) -> str:
    """The state in a word or two."""
    return "interrupted" if _is_interrupted(run, job) else job.state.words


def _ending(run: RecordedRun, job: JobRecord) -> str:
    """How it ended, to follow its name."""
    return "was interrupted" if _is_interrupted(run, job) else job.state.said


def _at_most(lines: Sequence[str], noun: str) -> Iterator[str]:
    yield from lines[:MOST]
    if len(lines) > MOST:
        yield f"and {counted(len(lines) - MOST, noun)}"


# --- one job ---------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class JobExplanation(RunAnswer):
    """One job of a batch."""

    about = "run_job"

    job: JobRecord

    @property
    def answer(self) -> str:
        """How it stands and why it was tried as often as it was, in one sentence."""
        name, tries = self.job.name, self.job.attempts
        often = f" on try {len(tries)}" if len(tries) > 1 else ""
        why = f": {self.job.why}" if self.job.why else ""
        match self.job.state:
            case JobState.QUEUED if _is_interrupted(self.run, self.job):
                return f"{name} was interrupted{often}{why}{self._again}"
            case JobState.QUEUED if self._rests:
                return f"{name} retries in {span(self._rests)}: {tries[-1].why}"
            case JobState.QUEUED if tries:
                return f"{name} is waiting to be retried: {tries[-1].why}"
            case JobState.QUEUED:
                return f"{name} is waiting for {self._awaited}"
            case JobState.RUNNING:
                number = f" (try {len(tries)})" if often else ""
                return f"{name} is running on {tries[-1].instance}{number}{self._again}"
            case _:
                return f"{name} {_ending(self.run, self.job)}{often}{why}{self._again}"

    @property
    def _rests(self) -> float:
        """Seconds until it may be tried again, if a command waits for that."""
        return max(0.0, self.job.retry_at - self.at) if self.run.progress is Progress.RUNNING else 0.0

    @property
    def _awaited(self) -> str:
        """What it waits for that has not been tried yet."""
        if self._has_no_room:
            return f"other jobs of its table, of which {self._at_once} may run at once"
        return enumerated(self._needed) or "its first slot"

    @property
    def _needed(self) -> Sequence[str]:
        """Names of what it needs that is not over."""
        return lacking(self.run.state.plan, self.job.number, self.run.state.is_over)

    @property
    def _at_once(self) -> int:
        """How many jobs of its table may run at once; 0: any number."""
        return self.run.state.plan.like(self.job.number).max_parallel

    @property
    def _has_no_room(self) -> bool:
        """Whether as many jobs of its table run as may."""
        plan = self.run.state.plan
        group = plan.like(self.job.number).group
        running = sum(plan.like(each.number).group == group for each in self.run.state.running.values())
        return 0 < self._at_once <= running

    @property
    def _again(self) -> str:
        """Why it was tried more than once, to follow a sentence."""
        whys = dict.fromkeys(each.why for each in _followed(self.run, self.job))
        return f"; it was retried: {'; then: '.join(whys)}" if whys else ""

    @property
    def next(self) -> str:
        """What will happen to it next, as far as can be known from outside."""
        if self.run.progress is Progress.OVER or self.job.state.stands:
            return "nothing, the job is over"
        if self.run.progress is Progress.INTERRUPTED or self.job.state.final:  # it was cancelled, say
            last = self.job.last_attempt
            runs_on = self.job.interrupted and last and last.detached
            what = "it may run on there by itself; join" if runs_on else "nothing by itself; run"
            return f"{what} it with taskscaler run --resume {self.run.directory}"
        if self.job.state is JobState.RUNNING:
            return "it runs to its end; if its instance is lost, it is retried while it has retries left"
        if self._rests:
            return f"it waits {span(self._rests)}, as its `backoff` says, and then for a slot"
        if self._needed:
            succeeded = "is over" if self.run.state.plan.like(self.job.number).when == "always" else "has succeeded"
            return f"it waits for a slot once all that it needs {succeeded}"
        return "it gets the next free slot after the jobs ahead of it"

    def rows(self) -> Iterator[Row]:
        """See `Answer.rows`."""
        yield "job", self.answer
        if self.job.attempts:
            yield "waited", f"{span(self.job.attempts[0].started - self.run.started)} for its first slot"
        elif not self.job.state.final:
            yield "waits", f"for {span(self._until - self.run.started)} so far"
        used = self.steps
        for number, attempt in enumerate(self.job.attempts, 1):
            yield f"try {number}", self._on_try(attempt)
            if attempt.memory_limit is not None:
                yield "memory limit", limit_in_words(attempt.memory_limit)
            yield from (("steps", line) for line in in_words(used.get(number, ())))
        if self.job.state is JobState.QUEUED and not self._rests:
            yield from self._why_waiting()
        yield "next", self.next

    def data(self) -> Mapping[str, object]:
        """See `Answer.data`."""
        return {
            **_job_dict(self.job, self.steps),
            "next": self.next,
        }

    @property
    def steps(self) -> Mapping[int, Sequence[StepUse]]:
        """What the steps of each try used, by its number from 1; of those of which that is known."""
        number, found = 0, dict[int, Sequence[StepUse]]()
        for event in self.run.events:
            match event:
                case Started(job=self.job.name):
                    number += 1
                case Ended(job=self.job.name, steps=steps) if steps:
                    found[number] = steps
        return found

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
            ends = f"running for {lasted}"
        used = used_in_words(attempt.cpu_time, attempt.peak_memory, attempt.disk_written)
        why, use = f": {attempt.why}" if attempt.why else "", f"; it used {used}" if used else ""
        return f"{when}, in {place}: {ends}{why}{use}"

    def _why_waiting(self) -> Iterator[Row]:
        decision = RunExplanation(run=self.run, at=self.at).decision
        if decision is not None:
            yield "decided last", f"{_when(self.run, decision.at, self.at)}: {decision.decision}"


# --- one instance ----------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class InstanceOfRun(RunAnswer):
    """One instance of a batch's fleet."""

    about = "run_instance"

    instance: RecordedInstance

    @property
    def answer(self) -> str:
        """How it stands and why, in one sentence."""
        known = self.instance
        if known.state == GONE:
            return f"{known.id} is gone ({known.fate or 'the reason was not recorded'})"
        later = "" if self.run.progress is Progress.RUNNING else "; the next command that uses its group takes it over"
        return f"{_standing(self.run, known)}{later}"

    def rows(self) -> Iterator[Row]:
        """See `Answer.rows`."""
        yield "instance", self.answer
        jobs = [job for job, _ in self.instance.attempts]
        yield "jobs", f"{len(jobs)}: {enumerated(jobs, most=MOST)}" if jobs else "none"
        history = _history(self.instance)
        shown = _worth_a_line(history)
        for number, moment in enumerate(shown):
            if number == MOST and (left_out := len(history) - len(shown)):
                yield "", f"… and {counted(left_out, 'time')} that a slot was acquired or released; --json has them all"
            yield span(moment.at - self.run.started), moment.words

    def data(self) -> Mapping[str, object]:
        """See `Answer.data`."""
        return {
            **_instance_dict(self.instance),
            "history": [
                {"at": iso(moment.at), "what": moment.what, "key": moment.key, "why": moment.why}
                for moment in _history(self.instance)
            ],
        }


@frozen(kw_only=True)
class _Moment:
    """Something that happened to an instance."""

    at: float
    what: str
    why: str
    words: str
    key: str | None = None


def _history(instance: RecordedInstance) -> list[_Moment]:
    """All that was recorded of it, in order."""
    moments = []
    for change in instance.changes:
        words = "lost" if change.lost else _in_words(change.state)
        moments.append(_Moment(at=change.at, what=change.state, why=change.why, words=_with(words, change.why)))
    for job, attempt in instance.attempts:
        words = f"slot {attempt.slot} acquired by {job}"
        moments.append(_Moment(at=attempt.started, what="acquired", why="", words=words, key=job))
        if attempt.ended is not None:
            what, why = ("lost", attempt.why) if attempt.state is JobState.LOST else ("released", "")
            words = _with(f"slot {attempt.slot} {what} by {job}", why)
            moments.append(_Moment(at=attempt.ended, what=what, why=why, words=words, key=job))
    return sorted(moments, key=lambda moment: moment.at)


def _worth_a_line(history: Sequence[_Moment]) -> Sequence[_Moment]:
    """Leave out the middle of a long history, but not what says more than that jobs came and went."""
    middle = [each for each in history[MOST:-MOST] if each.what not in _USUAL]
    return history if len(history) <= 2 * MOST else [*history[:MOST], *middle, *history[-MOST:]]


def _with(words: str, why: str) -> str:
    return f"{words}: {why}" if why else words


# --- asking ----------------------------------------------------------------------------------------------------


def explain_run(run: RecordedRun, at: float) -> RunExplanation:
    """Describe the whole batch."""
    return RunExplanation(run=run, at=at)


def explain_job(run: RecordedRun, name: str, at: float) -> JobExplanation:
    """Describe one job.

    Raises:
        NotRecorded: The batch has none of that name.
    """
    return JobExplanation(run=run, job=run.job(name), at=at)


def explain_instance_of(run: RecordedRun, name: str, at: float) -> InstanceOfRun:
    """Describe one instance, by its id, or by ``pool/id``.

    Raises:
        NotRecorded: None of that name was recorded.
    """
    return InstanceOfRun(run=run, instance=run.instance(name), at=at)


def _job_dict(job: JobRecord, steps: Mapping[int, Sequence[StepUse]] | None = None) -> dict[str, object]:
    """Describe a job, with what its steps used if that was looked up."""
    return {
        "name": job.name,
        "state": job.state.value,
        "why": job.why,
        "retried": max(0, len(job.attempts) - 1),
        "retry_at": iso(job.retry_at) if job.state is JobState.QUEUED and job.retry_at else None,
        "attempts": [
            {
                "pool": each.pool,
                "instance": each.instance,
                "slot": each.slot,
                "state": each.state.value,
                "why": each.why,
                "interrupted": each.interrupted,
                "preempted": each.preempted,
                "cpu_time": each.cpu_time,
                "peak_memory": each.peak_memory,
                "disk_written": each.disk_written,
                "memory_limit": None if each.memory_limit is None else asdict(each.memory_limit),
                **({} if steps is None else {"steps": [*map(asdict, steps.get(number, ()))]}),
                "started": iso(each.started),
                "ended": None if each.ended is None else iso(each.ended),
            }
            for number, each in enumerate(job.attempts, 1)
        ],
    }


def _instance_dict(instance: RecordedInstance) -> dict[str, object]:
    return {
        "instance": instance.id,
        "pool": instance.pool,
        "state": instance.state,
        "since": iso(instance.changes[-1].at),
        "why": instance.fate,
        "holding": [{"slot": slot, "key": key} for slot, key in sorted(instance.holding.items())],
        "uses": len(instance.attempts),
    }
