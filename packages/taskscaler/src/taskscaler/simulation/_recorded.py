"""What recorded runs say: the jobs that were run, and what their cloud was like. Both from the event log.

A job of a batch is submitted when the batch begins, or when all that it needs is over; another try at it, when the try
before has ended. Each try is a job of its own here, but for those that were lost: a simulated cloud takes instances,
too, and jobs that were on them run again there. A job waits from when it was ready for the try that was not lost.
"""

import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from math import inf
from operator import itemgetter
from pathlib import Path

from attrs import define, evolve, field

from taskscaler._errors import NotRecorded, RecordUnreadable, TraceUnreadable
from taskscaler._observe import GONE, DecisionEvent, InstanceEvent
from taskscaler._recorded_run import RecordedRun, read_run
from taskscaler._wording import counted
from taskscaler.batch import Begun, JobState, Results, Resumed
from taskscaler.core._decide import PoolDecision
from taskscaler.simulation._cells import LONGEST_JOB
from taskscaler.simulation._distributions import Constant, Distribution, Empirical, Exponential, InOrder
from taskscaler.simulation._environment import Course, Environment, Fate, PoolEnvironment, Preemptions
from taskscaler.simulation._jobs import Jobs
from taskscaler.simulation._tables import Gathered

BEFORE_VIEW = 0.001
"""Seconds."""

ONE_BY_ONE = 2e-6
"""Seconds between what happened at once, one after the other."""

OVERDUE = "it was not ready within"
"""So begins why one is given up of which nothing was heard."""

SHUTDOWN = "shutdown"
"""Why all are given up in the end."""

REFUSED = "the cloud refused"
"""Why a request was refused of which no more is known."""

BACKS_OFF = re.compile(r"backoff \((.*)\)", re.DOTALL)
"""What a pool is limited by after a request that was refused, and why it was."""

MOST_RUNS = 10_000
"""Directories of results that are read at once."""


def find_runs(place: Path) -> list[Path]:
    """Find the results in a directory: its own, or those of the directories in it.

    Raises:
        TraceUnreadable: There are none.
    """
    if _has_results(place):
        return [place]
    inside = sorted(each for each in place.iterdir() if each.is_dir() and _has_results(each))
    if not inside:
        raise TraceUnreadable(
            f"{place} holds no results of a batch; name a directory that `taskscaler run` wrote, or one with several"
        )
    if len(inside) > MOST_RUNS:
        raise TraceUnreadable(f"{place} holds the results of more than {MOST_RUNS} batches; name fewer")
    return inside


def _has_results(place: Path) -> bool:
    return Results(place).events.exists() or (place / "resume").exists()


def _read(place: Path) -> RecordedRun:
    try:
        return read_run(place)
    except (NotRecorded, RecordUnreadable) as error:
        raise TraceUnreadable(str(error)) from error


def read_results(place: Path) -> tuple[Jobs, list[str]]:
    """Read the jobs of recorded runs; returns and raises as `find_runs` and `read_csv`."""
    gathered, runs = Gathered(), find_runs(place)
    for each in runs:
        run = _read(each)
        try:
            for job in _tries(run):
                gathered.add(job)
        except ValueError as error:
            raise TraceUnreadable(f"{each}: {error}; name fewer batches") from error
    without = f"{counted(gathered.without, 'try')} without an end left out"
    notes = [f"the jobs of {counted(len(runs), 'run')}".replace("the jobs of 1 run", "the jobs of one run")]
    return gathered.jobs(), [*notes, *([without] if gathered.without else [])]


def _tries(run: RecordedRun) -> Iterator[tuple[float, float] | None]:
    began = [event.at for event in run.events if isinstance(event, Begun | Resumed)]
    ends: dict[str, float] = {}
    """When each job was over, and each group."""

    for planned in run.state.plan:
        last = max((each.ended or inf for each in run.jobs[planned.name].attempts), default=inf)
        for name in filter(None, (planned.name, planned.group)):
            ends[name] = max(ends.get(name, -inf), last)
    for planned in run.state.plan:
        ready = max(
            [run.jobs[planned.name].queued, *(ends[name] for name in planned.needs if ends.get(name, inf) < inf)]
        )
        attempts = run.jobs[planned.name].attempts
        for number, attempt in enumerate(attempts, start=1):
            is_lost = attempt.state is JobState.LOST
            if attempt.ended is None or (is_lost and number == len(attempts)):
                yield None
            if attempt.ended is None or is_lost:
                continue
            submitted = max(ready, began[min(attempt.run, len(began)) - 1])
            took = max(0.0, attempt.ended - attempt.started)
            if took > LONGEST_JOB:
                raise ValueError(f"job {planned.name!r} ran for longer than a year")
            yield min(submitted, attempt.started), took
            ready = attempt.ended


@define
class _Times:
    """What happened to the instances of one pool, in seconds."""

    boot: list[tuple[float, float]] = field(factory=list)
    """Of each that came: when it was asked for, and how many seconds it took."""

    ready: list[tuple[float, float]] = field(factory=list)
    delete: list[tuple[float, float]] = field(factory=list)
    resume: list[tuple[float, float]] = field(factory=list)
    came: int = 0
    never_ran: int = 0
    never_ready: int = 0
    taken: int = 0
    """Instances that were lost when they had been ready."""

    lived: float = 0.0
    """Seconds for which all were ready, together."""

    fates: list[tuple[float, Fate]] = field(factory=list)
    """What became of each, and when it was asked for."""

    refusals: Mapping[int, str] = field(factory=dict)
    """Why requests were refused, by their number."""

    def environment(self, *, in_order: bool) -> PoolEnvironment:
        """A cloud like that; what nothing is known of is as usual."""
        usual = PoolEnvironment()
        ran = self.came - self.never_ran
        preemptions = None
        if self.taken and self.lived:
            preemptions = Preemptions(after=Exponential(round(self.lived / self.taken, 6)))
        return evolve(
            usual,
            boot=_measured(self.boot, usual.boot, in_order=in_order),
            ready=_measured(self.ready, usual.ready, in_order=in_order),
            delete=_measured(self.delete, usual.delete, in_order=in_order),
            resume=_measured(self.resume, usual.resume, in_order=in_order),
            boot_failure=round(self.never_ran / self.came, 6) if self.came else 0.0,
            ready_failure=round(self.never_ready / ran, 6) if ran else 0.0,
            preemptions=preemptions,
            course=self._course() if in_order else None,
        )

    def _course(self) -> Course:
        fates = sorted(self.fates, key=itemgetter(0))
        return Course(fates=tuple(fate for _, fate in fates), refusals=self.refusals)


def _measured(found: list[tuple[float, float]], usual: Distribution, *, in_order: bool) -> Distribution:
    if not found:
        return usual
    values = [round(value, 6) for _, value in sorted(found)]
    if len(set(values)) == 1:
        return Constant(values[0])
    return InOrder(tuple(values), Empirical.of(values)) if in_order else Empirical.of(values)


def fit(places: Sequence[Path], *, in_order: bool = False) -> tuple[Environment, list[str]]:
    """Find out from recorded runs what a cloud is like.

    Args:
        places: Directories of results, or with such.
        in_order: Whether times come as they were recorded, one after the other, and at random only when they are used
            up; else at random from the beginning.

    Returns:
        What pools of those names are like, and what was found, in sentences. Stock-outs are not found: what would have
        been asked for in them nobody knows.

    Raises:
        TraceUnreadable: They hold no results, or no instance in them has come to take jobs.
        OSError: They cannot be read.
    """
    pools: dict[str, _Times] = {}
    for place in places:
        for each in find_runs(place):
            _take(_read(each), pools)
    fitted = {name: times.environment(in_order=in_order) for name, times in pools.items() if times.boot}
    if not fitted:
        named = ", ".join(map(str, places))
        raise TraceUnreadable(f"no instance became ready in {named}, so there is nothing to fit; name other results")
    notes = [f"{name}: {_in_words(pools[name], environment)}" for name, environment in fitted.items()]
    default = next(iter(fitted.values())) if len(fitted) == 1 else PoolEnvironment()
    return Environment(pools=fitted, default=default), notes


def _in_words(times: _Times, found: PoolEnvironment) -> str:
    parts = [f"boot {found.boot}"]
    parts += [f"ready {found.ready}"] if times.ready else []
    parts += [f"deletion {found.delete}"] if times.delete else []
    parts += [f"resume {found.resume}"] if times.resume else []
    parts += [f"{found.boot_failure:.1%} fail to boot"] if times.never_ran else []
    parts += [f"{found.ready_failure:.1%} never become ready"] if times.never_ready else []
    parts += [f"one is lost in {found.preemptions.after}"] if found.preemptions else []
    return ", ".join(parts)


def _take(run: RecordedRun, pools: dict[str, _Times]) -> None:
    refusals, order = _refusals(run), _order(run)
    requests = _requests(run, refusals)
    for place, instance in run.instances.items():
        changes = instance.changes
        if changes[0].kept_since is None and (changes[0].state == "creating" or place in requests):
            asked_at = requests.get(place, changes[0].at)
            _follow(pools.setdefault(instance.pool, _Times()), changes, asked_at, order.get(place, 0))
    for pool, refused in refusals.items():
        pools.setdefault(pool, _Times()).refusals = refused


def _order(run: RecordedRun) -> Mapping[tuple[str, str], int]:
    """Which of those that were ready at the same moment each was, by pool and id."""
    found: dict[tuple[str, str], int] = {}
    together: Counter[float] = Counter()
    for event in run.events:
        if isinstance(event, InstanceEvent) and event.state == "running":
            found.setdefault((event.pool, event.instance), together[event.at])
            together[event.at] += 1
    return found


def _requests(run: RecordedRun, refusals: Mapping[str, Mapping[int, str]]) -> Mapping[tuple[str, str], float]:
    """When each instance was asked for, by pool and id: those that were asked for first come first."""
    open_: dict[str, deque[float]] = {}
    numbers: dict[str, count[int]] = {}
    found: dict[tuple[str, str], float] = {}
    seen: set[tuple[str, str]] = set()
    for event in run.events:
        match event:
            case Resumed():
                open_.clear()
            case DecisionEvent(at=at, decision=decision) if not decision.observed:
                for pool in (each for each in decision.pools if each.increase):
                    number = next(numbers.setdefault(pool.pool, count()))
                    if number not in refusals.get(pool.pool, {}):
                        open_.setdefault(pool.pool, deque()).extend([at] * pool.increase)
            case InstanceEvent(pool=name, instance=id_) if (name, id_) not in seen:
                seen.add((name, id_))
                if event.kept_since is None and open_.get(name):
                    found[name, id_] = open_[name].popleft()
    return found


def _refusals(run: RecordedRun) -> Mapping[str, Mapping[int, str]]:
    """Why requests of each pool were refused, by their number.

    No event says so, but the decision after the request: the pool is limited by a backoff, or has as many as before.
    """
    found: dict[str, _Refusals] = {}
    for event in run.events:
        match event:
            case InstanceEvent(pool=name, state=state) if state not in ("creating", "pending", "running"):
                found.setdefault(name, _Refusals()).quiet = False
            case DecisionEvent(decision=decision) if not decision.observed:
                for pool in decision.pools:
                    backs_off = BACKS_OFF.fullmatch(pool.limited_by)
                    why = backs_off[1] if backs_off is not None and not _names_one(backs_off[1], run) else ""
                    removed = sum(removal.pool == pool.pool for removal in decision.removals)
                    found.setdefault(pool.pool, _Refusals()).take(pool, why, has=pool.have + removed)
    return {name: each.whys for name, each in found.items()}


@define
class _Refusals:
    """Those of one pool."""

    whys: dict[int, str] = field(factory=dict)
    quiet: bool = True
    """Whether it has as many instances as at the last decision, but for what was asked for then."""

    _requests: int = 0
    _had: int | None = None
    """How many it had when it was decided to ask for more; None: the last decision did not."""

    def take(self, pool: PoolDecision, why: str, has: int) -> None:
        """The next decision; *why*: what the pool backs off for, *has*: those included that go with this decision."""
        last = self._requests - 1
        backs_off = why and not pool.increase
        if self._had is not None and (backs_off or (self.quiet and has == self._had)):
            self.whys[last] = why or REFUSED
        elif self.whys.get(last) == REFUSED and why:  # nothing more was wanted until now
            self.whys[last] = why
        self._requests += bool(pool.increase)
        self._had, self.quiet = (pool.have if pool.increase else None), True


def _names_one(why: str, run: RecordedRun) -> bool:
    """Whether it is an instance that failed: ``instance i-1 failed while it was created``, ``instance i-1: …``."""
    words = why.split(maxsplit=2)
    named = words[1].removesuffix(":") if len(words) > 1 and words[0] == "instance" else ""
    return any(named == id_ for _, id_ in run.instances)


def _follow(times: _Times, changes: list[InstanceEvent], asked_at: float, nth: int) -> None:
    """Add up one life, from when it was asked for.

    What a view shows has happened a little before: so the view that showed it would show it again.
    """
    at: dict[str, float] = {"creating": asked_at}
    times.came += 1
    for event in changes:
        since = {state: max(0.0, event.at - when - BEFORE_VIEW) for state, when in at.items()}
        match event.state:
            case "pending" if "pending" not in at:
                times.boot.append((at["creating"], since["creating"]))
            case "running" if "running" not in at:
                if "pending" in since:
                    times.ready.append((at["pending"], event.at - at["pending"]))  # which no view shows
                else:
                    times.boot.append((at["creating"], since["creating"]))
            case "running" if "resuming" in since and at["resuming"] > at["running"]:
                times.resume.append((at["resuming"], since["resuming"]))
            case "gone" if "deleting" in since:
                times.delete.append((at["deleting"], since["deleting"]))
        if event.lost and "running" in at and "deleting" not in at:
            times.taken += 1
        at.setdefault(event.state, event.at)
        if event.state == "resuming":
            at["resuming"] = event.at
    _account(times, at, changes)
    times.fates.append((asked_at, _fate(asked_at, changes, nth)))


def _fate(asked_at: float, changes: Sequence[InstanceEvent], nth: int) -> Fate:
    """What became of one, the *nth* of those that were ready at once, in seconds from when it was asked for."""

    def after(event: InstanceEvent) -> float:
        return round(max(0.0, event.at - asked_at - BEFORE_VIEW), 6)

    ran = next((event for event in changes if event.state in ("pending", "running")), None)
    ready = next((event for event in changes if event.state == "running"), None)
    failed = _failed(changes)
    fails = failed if ran is None and not _is_overdue(failed) else None
    shown = fails or ran
    deleted = next((event for event in changes if event.state == "deleting"), None)
    gone = next((event for event in changes if event.state == GONE), None)
    taken = gone if gone is not None and gone.lost else None
    return Fate(
        boot=inf if shown is None else after(shown),
        fails=fails is not None,
        ready=None if ran is None or ready is None else round(ready.at - ran.at + nth * ONE_BY_ONE, 6),
        never_ready=ran is not None and failed is not None,
        delete=None if deleted is None or gone is None else max(0.0, gone.at - deleted.at - BEFORE_VIEW),
        taken=inf if taken is None else after(taken),
    )


def _failed(changes: Sequence[InstanceEvent]) -> InstanceEvent | None:
    """When one that never took jobs was given up for that; None: it came to, or was not given up for that."""
    if any(event.state == "running" for event in changes):
        return None
    return next((event for event in changes if event.state == "deleting" and event.why != SHUTDOWN), None)


def _is_overdue(failed: InstanceEvent | None) -> bool:
    """Whether it was given up because nothing was heard of it."""
    return failed is not None and failed.why.startswith(OVERDUE)


def _account(times: _Times, at: Mapping[str, float], changes: list[InstanceEvent]) -> None:
    """Whether it came to be of use, and for how long it was."""
    ended = "deleting" in at or GONE in at
    if "running" in at:
        times.lived += at.get("deleting", at.get(GONE, changes[-1].at)) - at["running"]
    elif ended and (_failed(changes) is not None or any(event.lost for event in changes)):
        times.never_ran += "pending" not in at
        times.never_ready += "pending" in at
