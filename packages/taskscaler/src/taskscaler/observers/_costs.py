"""What the instances of a fleet have cost, for Prometheus; pools without a price have no cost, which is not 0."""

from collections.abc import Callable, Iterable, Mapping

from attrs import define
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from taskscaler._cost import PoolCost
from taskscaler.observers._catalogue import COSTS
from taskscaler.observers._families import Families


@define(eq=False)
class OfCosts(Collector):
    """Shows what each pool has come to."""

    families: Families
    so_far: Callable[[], Mapping[str, PoolCost]]
    """Gives it, by pool."""

    def describe(self) -> Iterable[Metric]:
        """Name the metric."""
        return self.families.empty(COSTS)

    def collect(self) -> Iterable[Metric]:
        """Ask: the sums are there."""
        costs = {(pool, each.tariff.currency): each.cost for pool, each in self.so_far().items()}
        yield self.families.some(
            "taskscaler_cost_total", {key: cost for key, cost in costs.items() if cost is not None}
        )
