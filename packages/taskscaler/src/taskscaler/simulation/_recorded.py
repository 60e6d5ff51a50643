"""What recorded runs say: the jobs that were run, and what their cloud was like. Both from the event log.

A job of a batch is submitted when the batch begins, or when all that it needs is over; another try at it, when the try
before has ended. Each try is a job of its own here.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path

from attrs import define, evolve, field

from taskscaler._errors import NotRecorded, RecordUnreadable, TraceUnreadable
from taskscaler._observe import GONE, DecisionEvent, InstanceEvent
from taskscaler._recorded_run import RecordedRun, read_run
from taskscaler._wording import counted
from taskscaler.batch import Begun, Results, Resumed
from taskscaler.simulation._cells import LONGEST_JOB
from taskscaler.simulation._distributions import Constant, Distribution, Empirical, Exponential, InOrder
from taskscaler.simulation._environment import Environment, PoolEnvironment, Preemptions
from taskscaler.simulation._jobs import Jobs
from taskscaler.simulation._tables import Gathered

BEFORE_VIEW = 0.001
"""Seconds."""

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
    without = f"{counted(gathered.without, 'try')} without an end left out".replace("trys", "tries")
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
        for attempt in run.jobs[planned.name].attempts:
            if attempt.ended is None:
                yield None
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
        )


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
    requests = _requests(run)
    for place, instance in run.instances.items():
        changes = instance.changes
        if changes[0].kept_since is None and (changes[0].state == "creating" or place in requests):
            asked_at = requests.get(place, changes[0].at)
            _follow(pools.setdefault(instance.pool, _Times()), changes, asked_at)


def _requests(run: RecordedRun) -> Mapping[tuple[str, str], float]:
    """When each instance was asked for, by pool and id: those that were asked for first come first."""
    open_: dict[str, deque[float]] = {}
    found: dict[tuple[str, str], float] = {}
    seen: set[tuple[str, str]] = set()
    for event in run.events:
        match event:
            case Resumed():
                open_.clear()
            case DecisionEvent(at=at, decision=decision) if not decision.observed:
                for pool in decision.pools:
                    open_.setdefault(pool.pool, deque()).extend([at] * pool.increase)
            case InstanceEvent(pool=name, instance=id_) if (name, id_) not in seen:
                seen.add((name, id_))
                if event.kept_since is None and open_.get(name):
                    found[name, id_] = open_[name].popleft()
    return found


def _follow(times: _Times, changes: list[InstanceEvent], asked_at: float) -> None:
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
                    times.ready.append((at["pending"], since["pending"]))
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


def _account(times: _Times, at: Mapping[str, float], changes: list[InstanceEvent]) -> None:
    """Whether it came to be of use, and for how long it was."""
    ended = "deleting" in at or GONE in at
    if "running" in at:
        times.lived += at.get("deleting", at.get(GONE, changes[-1].at)) - at["running"]
    elif ended and any(event.lost for event in changes):
        times.never_ran += "pending" not in at
        times.never_ready += "pending" in at
