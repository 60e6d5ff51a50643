"""One event of the log for each unit of work of a fleet: what became of an instance, of a lease, of a decision.

They are those that observers hear of, and are logged where somebody reads the log as it is written: by a daemon, and by
a batch that was asked to. Elsewhere the results have them.
"""

import logging

from taskscaler._observe import DecisionEvent, InstanceEvent, LeaseEvent, ScalerEvent
from taskscaler.core._decide import Decision

log = logging.getLogger("taskscaler.work")

_ENDS = frozenset({"released", "lost", "expired", "replaced"})
"""What ends a lease."""


class FleetLog:
    """An observer that logs what it hears."""

    def __init__(self) -> None:
        """No lease has begun."""
        self._since: dict[str, float] = {}

    def __call__(self, event: ScalerEvent) -> None:
        """Log an event."""
        if not log.isEnabledFor(logging.INFO):
            return
        match event:
            case LeaseEvent():
                self._log_lease(event)
            case InstanceEvent():
                log.info(
                    "instance_changed",
                    extra={
                        "pool": event.pool,
                        "instance": event.instance,
                        "state": event.state,
                        "why": event.why,
                        "lost": event.lost,
                    },
                )
            case DecisionEvent(decision=decision):
                _log_decision(decision)

    def _log_lease(self, event: LeaseEvent) -> None:
        """Log a lease once, when it is over; what happens to it until then is for who looks closely."""
        if event.what == "acquired":
            self._since[event.key] = event.at
        where = {"key": event.key, "pool": event.pool, "instance": event.instance, "slot": event.slot}
        if event.what in _ENDS:
            since = self._since.pop(event.key, None)
            held = None if since is None else round(event.at - since, 3)
            log.info("lease_ended", extra={**where, "how": event.what, "why": event.why, "held_s": held})
        else:
            log.debug("lease_changed", extra={**where, "what": event.what, "why": event.why})


def _acts(decision: Decision) -> bool:
    """Whether a decision does anything."""
    grows = any(pool.increase or pool.withdraw or pool.moved for pool in decision.pools)
    return grows or any((decision.removals, decision.sleeps, decision.wakes))


def _log_decision(decision: Decision) -> None:
    """Log what a decision rests on, and what it does."""
    level = logging.INFO if _acts(decision) else logging.DEBUG
    if not log.isEnabledFor(level):
        return
    about = {
        "in_use": decision.demand.in_use,
        "reserved": decision.demand.reserved,
        "waiting": decision.demand.pending,
        "idle_target": decision.idle_target,
        "target": decision.target,
        "increase": decision.increase,
        "removals": len(decision.removals),
        "text": str(decision),
    }
    log.log(level, "scaling_decided", extra=about)
