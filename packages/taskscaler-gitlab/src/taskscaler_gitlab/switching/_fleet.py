"""What of a fleet is there, as its clouds have it: a look that changes nothing, beside a manager or without one."""

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
from attrs import frozen

from fleeting import ConnectorConfig, InstanceGroup, LoopClock, ProviderError, Settings, State
from fleeting.plugins import span
from taskscaler.config import RunnerConfig

CALL_TIMEOUT = 300.0
"""Seconds that a cloud has for each call."""

CLOSE_TIMEOUT = 10.0
"""Seconds that closing a group may take."""

_GOING = frozenset({State.DELETING, State.DELETED})


@frozen(kw_only=True)
class Fleet:
    """All groups of a runner."""

    identities: frozenset[str]
    """What names them at their clouds."""

    instances: int
    """Those that stay until somebody deletes them."""

    going: int
    """Those that are being deleted."""


async def look_at(config: RunnerConfig) -> Fleet:
    """See all groups of a runner once.

    Raises:
        FleetingError, OSError: One of them cannot be opened or seen: that it has no instances is not known then.
    """
    identities, states = set[str](), list[State]()
    for pool, group in zip(config.autoscaler.all_pools, config.groups(), strict=True):
        identity, seen = await _look(group, pool.connector_config)
        identities.add(identity)
        states += seen
    going = sum(state in _GOING for state in states)
    gone = states.count(State.DELETED)
    return Fleet(identities=frozenset(identities), instances=len(states) - going, going=going - gone)


async def _look(group: InstanceGroup, connector: ConnectorConfig) -> tuple[str, list[State]]:
    settings = Settings(owner="switch", clock=LoopClock(), connector=connector, observe_only=True)
    with _in_time():
        info = await group.init(settings)
    try:
        with _in_time():
            view = await group.update()
        return info.identity, [each.state for each in view.instances.values()]
    finally:
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
            await group.shutdown()


@contextmanager
def _in_time() -> Iterator[None]:
    try:
        with anyio.fail_after(CALL_TIMEOUT):
            yield
    except TimeoutError as error:
        raise ProviderError(f"the cloud did not answer within {span(CALL_TIMEOUT)}") from error
