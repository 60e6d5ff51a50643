"""Finds the cheapest policy with which jobs wait no longer than they may. Pure, but for what it reports on its way.

A policy is searched by shapes: how many slots it keeps idle, as a number or as a share of those in use, and whether it
learns. Within a shape, a longer `idle_time` costs more and lets jobs wait less, so the shortest that suffices is found
by halving; and no shape is followed further where it waits too long and costs more than the best so far. That takes
some thirty simulations and not the thousands of a grid. Of a long trace, the last days alone are simulated to find out
which shapes are worth it, and only a few of these on all of it.

What suffices on the days at hand by a hair will not on the next. So it has to suffice in most draws of these days, too.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import define, evolve, field, frozen

from taskscaler._types import ADAPTIVE, Policy
from taskscaler.simulation._bound import clairvoyant
from taskscaler.simulation._days import DAY, FEWEST, Days, Draw, days_of, draws, share_met
from taskscaler.simulation._engine import simulate
from taskscaler.simulation._environment import Environment
from taskscaler.simulation._fleet import Fleet
from taskscaler.simulation._jobs import Jobs
from taskscaler.simulation._outcome import Outcome
from taskscaler.simulation._targets import Target

_MINUTES = (1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 20, 22, 25, 30, 35, 40, 50)
_HOURS = (1, 1.25, 1.5, 2, 2.5, 3, 4)

TIMES = (0.0, 15.0, 30.0, 45.0, *(60.0 * each for each in _MINUTES), *(3600.0 * each for each in _HOURS))
"""Seconds that `idle_time` may be: as people would write them, each some tenth longer than the one before."""

COUNTS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000, 10000)
"""Slots that `idle_count` may be."""

FACTORS = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
"""What `scale_factor` may be."""

LIMITS = (1, 2, 3, 5, 8, 12, 20, 30, 50, 100, 200, 500, 1000)
"""What `scale_factor_limit` may be."""

MODES_AROUND = 6
"""So many idle times longer than the static one's are tried as the price of an adaptive one, which idles less."""

VAIN = 2
"""After so many shapes in a row that are no better, their like is given up."""

SURE = 0.95
"""In so large a share of the draws of the fitted days, the target has to be met."""

SCREENED = 30_000
"""Of more jobs than that, the last days that have so many are simulated to find out which shapes are worth it."""

SHORT_LIST = 3
"""So many of these are simulated on all jobs."""


@frozen
class Shape:
    """A policy but for its `idle_time`."""

    idle_count: int = 0
    scale_factor: float = 0.0
    scale_factor_limit: int = 0
    preemptive_mode: bool | None = None
    mode: str = "static"

    def policy(self, place: int) -> Policy:
        """It, with the idle time at that place."""
        return Policy(
            idle_count=self.idle_count,
            idle_time=TIMES[place],
            scale_factor=self.scale_factor,
            scale_factor_limit=self.scale_factor_limit,
            preemptive_mode=self.preemptive_mode,
            mode=self.mode,
        )


@frozen(kw_only=True)
class Candidate:
    """A policy, and what came of it on the jobs that are fitted to."""

    policy: Policy
    shape: Shape
    place: int
    """Of its idle time in `TIMES`."""

    cost: float
    """In money if all prices are known, else in billed hours."""

    values: Sequence[float]
    """Of what the targets are about, in seconds."""

    missed_by: float
    """By how much it misses the target that it misses most; 0: it meets all."""

    share: float | None
    """In which share of the draws of days it meets all; None: there are too few days to draw from."""

    @property
    def is_met(self) -> bool:
        """Whether it meets all targets."""
        return self.missed_by == 0

    @property
    def suffices(self) -> bool:
        """Whether it meets them so clearly that it will on other days."""
        return self.is_met and (self.share is None or self.share >= SURE)

    @property
    def rank(self) -> tuple[object, ...]:
        """The better, the lower: one that suffices, one that meets the targets, one that misses them by little."""
        return not self.suffices, not self.is_met, self.missed_by, self.cost, self.policy.idle_time


@frozen(kw_only=True)
class Tuned:
    """What was found."""

    best: Candidate
    tried: Sequence[Candidate]
    """All that were simulated on all jobs, the cheapest first."""

    simulations: int
    """How many it took, those on a part of the jobs included."""


Report = Callable[[int, Candidate], None]
"""Hears how many simulations were run, and what is best so far."""


def cost_of(outcome: Outcome) -> float:
    """What it costs in money if all prices are known, else in billed hours."""
    return outcome.billed_hours if outcome.cost is None else outcome.cost


def tune(
    fleet: Fleet,
    jobs: Jobs,
    targets: Sequence[Target],
    *,
    since: float | None = None,
    environment: Environment | None = None,
    seed: int = 0,
    report: Report | None = None,
    screened: int = SCREENED,
) -> Tuned:
    """Find the cheapest policy for these jobs.

    Args:
        fleet: Its policies are replaced by one that always holds.
        jobs: At least one.
        targets: At least one; all must be met.
        since: When the first day begins, at most a day before the first job; None: with that job.
        environment: As `simulate` has it.
        seed: Of all that is left to chance.
        report: Hears how it goes on.
        screened: Of more jobs than that, a part is simulated first.

    Raises:
        SimulationStuck: Some jobs get no slot, ever.
    """
    begins = jobs.begins if since is None else since
    given = {each.preemptive_mode for each in fleet.policies}
    plain = Shape(preemptive_mode=given.pop() if len(given) == 1 else None)
    whole = _Search(fleet, jobs, targets, begins, environment or Environment(), seed, report)
    last = _last_days(jobs, begins, screened)
    if last is None:
        whole.explore(plain)
    else:
        since, some = last
        screening = _Search(fleet, some, targets, since, whole.environment, seed, report)
        screening.explore(plain)
        whole.simulations = screening.simulations
        for each in screening.short_list():
            whole.follow(each.shape, each.place)
    return Tuned(
        best=whole.best,
        tried=sorted(whole.tried.values(), key=lambda each: (each.cost, each.policy.idle_time)),
        simulations=whole.simulations,
    )


def _last_days(jobs: Jobs, begins: float, enough: int) -> tuple[float, Jobs] | None:
    """The last days with so many jobs as suffice to find out what is worth it; None: there are no more than those."""
    if len(jobs) <= enough:
        return None
    days = days_of(jobs, begins)
    for day in reversed(range(days)):
        since = begins + day * DAY
        some = jobs.between(since, float("inf"))
        if len(some) >= enough:
            return (since, some) if day else None
    return None


@define(eq=False)
class _Search:
    """One search, on one set of jobs."""

    fleet: Fleet
    jobs: Jobs
    targets: Sequence[Target]
    since: float
    environment: Environment
    seed: int
    report: Report | None
    simulations: int = 0
    tried: dict[tuple[Shape, int], Candidate] = field(factory=dict)
    _drawn: Sequence[Draw] = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Draw days once: all candidates are held against the same."""
        days = days_of(self.jobs, self.since)
        self._drawn = draws(days, self.seed, "fitted") if days >= FEWEST else ()

    @property
    def best(self) -> Candidate:
        """Of those tried, of which there must be one."""
        return min(self.tried.values(), key=lambda each: each.rank)

    def short_list(self) -> Iterator[Candidate]:
        """The best of each of the shapes that are worth another look, the best first."""
        seen: set[Shape] = set()
        for each in sorted(self.tried.values(), key=lambda each: each.rank):
            if each.shape not in seen and len(seen) < SHORT_LIST:
                seen.add(each.shape)
                yield each

    def look(self, shape: Shape, place: int) -> Candidate:
        """Simulate it, unless that was done."""
        if (shape, place) not in self.tried:
            policy = shape.policy(place)
            fleet = evolve(self.fleet, policies=(policy,))
            outcome = simulate(fleet, self.jobs, environment=self.environment, seed=self.seed)
            self.simulations += 1
            self.tried[shape, place] = self._candidate(policy, shape, place, outcome)
            if self.report is not None:
                self.report(self.simulations, self.best)
        return self.tried[shape, place]

    def _candidate(self, policy: Policy, shape: Shape, place: int, outcome: Outcome) -> Candidate:
        values = [target.of(outcome.waits) for target in self.targets]
        missed = max(target.missed_by(found) for target, found in zip(self.targets, values, strict=True))
        if outcome.refused:  # who sends jobs away has no waiting
            missed = max(missed, outcome.refused / outcome.jobs)
        share = None
        if self._drawn:
            days = Days.of(outcome, self.jobs, self.since)
            share = 0.0 if missed else share_met(days, self.targets, self._drawn)
        return Candidate(
            policy=policy,
            shape=shape,
            place=place,
            cost=cost_of(outcome),
            values=values,
            missed_by=missed,
            share=share,
        )

    # --- where to look -----------------------------------------------------------------------------------

    def explore(self, plain: Shape) -> None:
        """Try all kinds of shapes, in the order in which they are likely to be worth it."""
        top, slots = len(TIMES) - 1, self._slots()
        counts = [each for each in COUNTS if each <= max(slots, 1)]
        first = self._first(plain, counts, top)
        self.narrow(evolve(plain, idle_count=counts[first]), 0, top)
        self._each(evolve(plain, idle_count=each) for each in counts[first + 1 :])
        for count in dict.fromkeys((0, self.best.shape.idle_count)):
            self._each(evolve(plain, idle_count=count, scale_factor=each) for each in FACTORS)
        best = self.best.shape
        if best.scale_factor:
            self._each(evolve(best, scale_factor_limit=each) for each in reversed(LIMITS) if each < slots)
        found = self.best  # to learn takes a price above 0
        self.narrow(evolve(found.shape, mode=ADAPTIVE), 1, min(top, found.place + MODES_AROUND))

    def follow(self, shape: Shape, place: int) -> None:
        """Find the shortest idle time of a shape that suffices, beginning at a likely place."""
        step, low, high = 1, place, place
        if self.look(shape, place).suffices:
            least = 1 if shape.mode == ADAPTIVE else 0
            while low > least and self.look(shape, low).suffices:
                high, low, step = low, max(least, low - step), 2 * step
            self.narrow(shape, low, high)
        else:
            while high < len(TIMES) - 1 and not self.look(shape, high).suffices and not self._is_beaten(shape, high):
                low, high, step = high, min(len(TIMES) - 1, high + step), 2 * step
            self.narrow(shape, low, high)

    def narrow(self, shape: Shape, low: int, high: int) -> None:
        """Find the shortest idle time of a shape that suffices, from the place *low* to *high*, by halving."""
        while low <= high:
            middle = (low + high) // 2
            if self.look(shape, middle).suffices:
                high = middle - 1
            elif self._is_beaten(shape, middle):
                return
            else:
                low = middle + 1

    def _is_beaten(self, shape: Shape, place: int) -> bool:
        """Whether it costs more than the best although it does not suffice: with a longer idle time, it costs more."""
        best = self.best
        return best.suffices and self.look(shape, place).cost > best.cost

    def _first(self, plain: Shape, counts: Sequence[int], top: int) -> int:
        """The place of the least idle count with which any idle time suffices; the last, if none does."""
        low, high = 0, len(counts) - 1
        middle = 0  # the likely answer
        while low < high:
            if self.look(evolve(plain, idle_count=counts[middle]), top).suffices:
                high = middle
            else:
                low = middle + 1
            middle = (low + high) // 2
        return low

    def _each(self, shapes: Iterable[Shape]) -> None:
        """Narrow down one after the other, until they are no better."""
        vain = 0
        for shape in shapes:
            before = self.best
            self.narrow(shape, 0, before.place if before.suffices else len(TIMES) - 1)
            vain = vain + 1 if self.best is before else 0
            if vain == VAIN:
                return

    def _slots(self) -> int:
        """The most that are in use at once, if nobody waits."""
        return clairvoyant(self.jobs, boot=0.0).peak
