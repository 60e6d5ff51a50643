"""What scaling decisions and calls to clouds say of themselves as attributes of spans. Pure.

What clouds say in their errors does not stand in them, only the kind of what that has led to. What else others have a
hand in, such as the name of a group, is cut if it is long, and addresses in it lose what may be a password.
"""

from collections.abc import Mapping
from typing import Final

from attrs import evolve

from fleeting.runtime import CloudCall
from taskscaler._span import Attributes, harmless, kind
from taskscaler._tracer import Tracer
from taskscaler.core._decide import Decision

MOST_POOLS: Final = 20
"""Pools of a decision that are described one by one."""

CHANGES: Final = frozenset({"increase", "decrease", "suspend", "resume", "withdraw"})
"""Calls that a decision has led to, mostly."""


def _in_our_words(decision: Decision) -> Decision:
    """Leave out of a decision what clouds have said."""
    return evolve(
        decision,
        pools=tuple(evolve(pool, limited_by=kind(pool.limited_by)) for pool in decision.pools),
        removals=tuple(evolve(removal, why=kind(removal.why)) for removal in decision.removals),
    )


def of_decision(decision: Decision) -> Attributes:
    """Describe a decision: what it was made of, what it came to, and what held it back."""
    decision = _in_our_words(decision)
    demand = decision.demand
    found: dict[str, str | int | float | bool] = {
        "taskscaler.decision.text": harmless(str(decision)),
        "taskscaler.demand.in_use": demand.in_use,
        "taskscaler.demand.reserved": demand.reserved,
        "taskscaler.demand.pending": demand.pending,
        "taskscaler.idle_target": decision.idle_target,
        "taskscaler.target.slots": decision.target,
        "taskscaler.target.instances": decision.target_instances,
        "taskscaler.spare": decision.spare,
        "taskscaler.increase": decision.increase,
        "taskscaler.remove": len(decision.removals),
    }
    if decision.sleeps or decision.wakes:
        found |= {"taskscaler.suspend": len(decision.sleeps), "taskscaler.resume": len(decision.wakes)}
    if decision.observed:
        found["taskscaler.observed_only"] = True
    for pool in decision.pools[:MOST_POOLS]:
        of_pool: Mapping[str, int | str] = {
            "have": pool.have,
            "wanted": pool.wanted,
            "increase": pool.increase,
            "withdraw": pool.withdraw,
            "limited_by": pool.limited_by,
            "set_back": harmless(pool.set_back),
        }
        found |= {f"taskscaler.pool.{pool.pool}.{name}": value for name, value in of_pool.items() if value}
    return found


def of_call(call: CloudCall) -> Attributes:
    """Describe a call: which, of which group, about what, and how much of it was accepted."""
    found: dict[str, str | int] = {"taskscaler.pool": call.pool, "taskscaler.call": call.name}
    if call.identity:
        found["cloud.resource_id"] = harmless(call.identity)
    if provider := PROVIDERS.get(call.plugin):
        found["cloud.provider"] = provider
    if call.instance:
        found["host.id"] = call.instance
    if call.asked is not None:
        found["taskscaler.asked"] = call.asked
    if call.accepted is not None:
        found["taskscaler.accepted"] = call.accepted
    return found


PROVIDERS: Final = {"fleeting_aws": "aws", "fleeting_azure": "azure", "fleeting_gcp": "gcp"}
"""OpenTelemetry's names of clouds, by the package of the plugin."""


def note_decision(tracer: Tracer, at: float, decision: Decision) -> None:
    """Have a decision be a span; what it leads to is linked to it."""
    tracer.decided(at, tracer.single("decide", at, at, lambda: of_decision(decision)))


def note_call(tracer: Tracer, call: CloudCall) -> None:
    """Have a call be a span. Heartbeats are too many, and too alike, unless one fails."""
    if call.name == "heartbeat" and not call.error:
        return
    links = tracer.decision_before(call.began) if call.name in CHANGES else ()
    tracer.single(
        f"cloud {call.name}",
        call.began,
        call.ended,
        lambda: of_call(call),
        links=links,
        error=call.error,
    )
