"""What all parts of a plan work on. Pure.

The plan calls its parts, and a part only those below it: growth, power and deletions lie above the views, and all of
them above what stands here. Nothing calls upwards.
"""

from itertools import repeat

from attrs import define

from fleeting.core._due import OF_A_LIFE, Timer
from fleeting.core._plan_config import PlanConfig
from fleeting.core._table import InstanceTable
from fleeting.core._timers import Timers
from fleeting.core._turn import Turn

REMEMBER_LOST = 3600.0
"""Seconds for which a gone instance is remembered, so that a stale view cannot bring it back to work."""


@define(kw_only=True)
class Context:
    """What the parts share, and what is so of the group as a whole, which only the plan sets."""

    config: PlanConfig
    table: InstanceTable
    timers: Timers[Timer]
    turn: Turn

    disowned: str = ""
    """Why nothing may be changed at the cloud, as long as the group is not known to be ours; empty if it is."""

    shutting_down: bool = False

    @property
    def pool(self) -> str:
        """The group's name."""
        return self.config.name

    def stop(self, instance: str) -> None:
        """Nothing is due for it any more, but perhaps its deletion."""
        # pairs are as good as timers to look them up by, and made in a fraction of the time
        self.timers.cancel_all(zip(OF_A_LIFE, repeat(instance)))  # type: ignore[arg-type]
