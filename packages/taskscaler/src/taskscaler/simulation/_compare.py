"""Several fleets on the same jobs, beside what a clairvoyant and a fleet that never shrinks would have cost. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from random import Random

from attrs import frozen

from taskscaler.simulation._bound import Bound, always_max, clairvoyant
from taskscaler.simulation._engine import simulate
from taskscaler.simulation._environment import Environment
from taskscaler.simulation._fleet import Fleet
from taskscaler.simulation._jobs import Jobs
from taskscaler.simulation._outcome import Outcome

SAMPLES = 1000
"""Of a boot that takes now this long and now that: so many are drawn, for their mean."""

WAITS = 0.95
"""The quantile of waiting that is set against cost."""


@frozen(kw_only=True)
class Entry:
    """One fleet of a comparison."""

    name: str
    fleet: Fleet
    outcome: Outcome

    @property
    def wait(self) -> float:
        """Seconds that 95 % of the jobs did not exceed."""
        return self.outcome.waits.quantile(WAITS)


@frozen(kw_only=True)
class Comparison:
    """What came of all of them."""

    entries: Sequence[Entry]
    """In the order in which they were given."""

    clairvoyant: Bound
    always_max: Bound
    boot: float
    """Seconds that both of these take a boot to last."""

    currency: str | None
    """In which all costs are; None: they are compared by billed hours."""

    def cost(self, entry: Entry) -> float:
        """What it costs in `currency`, or in billed hours."""
        cost = entry.outcome.cost
        return entry.outcome.billed_hours if self.currency is None or cost is None else cost

    def times_the_bound(self, entry: Entry) -> float:
        """Its instance-hours as a multiple of the clairvoyant's."""
        hours = self.clairvoyant.instance_hours
        return entry.outcome.instance_hours / hours if hours else 1.0

    @property
    def frontier(self) -> Sequence[Entry]:
        """Those of which no other is as cheap and lets jobs wait as little, the cheapest first.

        One that refuses jobs is not among them: who sends away those that would wait has no waiting, and saves money.
        """
        frontier: list[Entry] = []
        serving = [entry for entry in self.entries if not entry.outcome.refused]
        for entry in sorted(serving, key=lambda each: (self.cost(each), each.wait)):
            if not frontier or entry.wait < frontier[-1].wait:
                frontier.append(entry)
        return frontier


def compare(
    fleets: Mapping[str, Fleet], jobs: Jobs, *, environment: Environment | None = None, seed: int = 0
) -> Comparison:
    """Simulate all of them on the same jobs.

    Args:
        fleets: By name, at least one.
        jobs: At least one.
        environment: As `simulate` has it.
        seed: Of all that is left to chance, for each of them the same.

    Raises:
        SimulationStuck: One of them never serves some of the jobs.
    """
    environment = environment or Environment()
    entries = [
        Entry(name=name, fleet=fleet, outcome=simulate(fleet, jobs, environment=environment, seed=seed))
        for name, fleet in fleets.items()
    ]
    currencies = {entry.outcome.currency if entry.outcome.cost is not None else None for entry in entries}
    bound, most, boot = bounds(fleets.values(), jobs, environment, seed)
    return Comparison(
        entries=entries,
        clairvoyant=bound,
        always_max=most,
        boot=boot,
        currency=currencies.pop() if len(currencies) == 1 else None,
    )


def bounds(fleets: Iterable[Fleet], jobs: Jobs, environment: Environment, seed: int) -> tuple[Bound, Bound, float]:
    """Find both bounds for instances as good as the best of any pool: the most slots and uses, and the shortest boot.

    Returns:
        The clairvoyant's, that of a fleet of the peak's size, and the seconds of a boot.
    """
    pools = [pool for fleet in fleets for pool in fleet.pools]
    boot = min(mean_boot(environment, pool.name, seed) for pool in pools)
    capacity = max(pool.capacity_per_instance for pool in pools)
    uses = 0 if any(not pool.max_use_count for pool in pools) else max(pool.max_use_count for pool in pools)
    bound = clairvoyant(jobs, boot=boot, capacity=capacity, max_use_count=uses)
    return bound, always_max(jobs, boot=boot, capacity=capacity), boot


def mean_boot(environment: Environment, pool: str, seed: int) -> float:
    """Seconds from a request until the instance is ready, on average."""
    place, random = environment.of(pool), Random(f"{seed}/{pool}/boot")  # noqa: S311  (nothing is secret here)
    return sum(place.boot.sample(random) + place.ready.sample(random) for _ in range(SAMPLES)) / SAMPLES
