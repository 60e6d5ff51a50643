"""Makes the plan of a group that was just opened, and says why a group was refused."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fleeting._types import Capability, GroupInfo
from fleeting.core import messages
from fleeting.core._chance import Chance
from fleeting.core._plan import Plan
from fleeting.core._plan_config import PlanConfig

if TYPE_CHECKING:
    from fleeting.journal import Recovered

FEW = 5
"""So many instances are named in a message."""


def build_plan(
    config: PlanConfig,
    info: GroupInfo,
    recovered: "Recovered",
    now: float,
    *,
    random: Callable[[], float] | None,
    observing: bool = False,
    journaled: bool = True,
) -> Plan:
    """A plan for a group that was just opened, from what the journal knows of it.

    Intents are named after a random token, not after the journal's epoch: a journal may have been lost,
    and an intent that an instance of an earlier manager carries must not come up again.
    """
    chance = random or _chance()
    prefix = f"{config.name}/"
    own = {
        kind: {key: record for key, record in records.items() if key.startswith(prefix)}
        for kind, records in recovered.records.items()
    }
    return Plan(
        config,
        now=now,
        token=f"{int(chance() * 2**40):010x}",
        chance=Chance(int(chance() * 2**53)),
        max_size=info.max_size,
        max_size_is=info.max_size_is,
        named=Capability.NAMED_CREATE in info.capabilities,
        withdraws=Capability.WITHDRAW in info.capabilities,
        suspends=Capability.SUSPEND_RESUME in info.capabilities,
        recovered=own,
        observing=observing,
        journaled=journaled,
    )


def _chance() -> Callable[[], float]:
    """Numbers from 0 to 1, as they come."""
    from random import SystemRandom  # which brings hashing along, that a bare ``import fleeting`` need not pay for

    return SystemRandom().random


def refusal_of(event: messages.Refused) -> str:
    """The error for the manager that was refused."""
    count, some = len(event.instances), ", ".join(event.instances[:FEW])
    return (
        f"the group already holds {count} instance{'s' if count > 1 else ''} unknown to the journal"
        f" ({some}{', …' if count > FEW else ''});"
        ' set preexisting to "adopt" to use them, or to "remove" to delete them'
    )
