"""A scaler at one moment: what all answers about it are made from. What takes long is worked out once, if at all."""

from functools import cached_property

from attrs import define

from taskscaler._types import Policy
from taskscaler.core._decide import Decision
from taskscaler.core._mediator import Core
from taskscaler.diagnose._forecast import Upcoming, forecast


@define(slots=False)
class Snapshot:
    """Taken of a core, which must not go on before all is asked."""

    core: Core
    now: float
    """Seconds since the epoch."""

    def __attrs_post_init__(self) -> None:
        """Have the core note what it took in: since when something is to spare counts from there."""
        self.core.heed(self.now)

    @cached_property
    def foreseen(self) -> tuple[Policy, Decision]:
        """The policy that holds, and what would be decided."""
        return self.core.foresee(self.now)

    @cached_property
    def upcoming(self) -> list[Upcoming]:
        """All that time alone will bring, soonest first."""
        return forecast(self.core, self.now)

    def upcoming_of(self, pool: str, instance: str) -> list[Upcoming]:
        """What of that concerns one instance."""
        return [item for item in self.upcoming if item.pool == pool and instance in item.instances]
