"""Looks at a group and its instances that change nothing: what ``check`` and ``doctor`` have in common."""

from collections.abc import Iterator

import anyio
from attrs import evolve

from fleeting import ConnectInfo, GroupInfo, InstanceGroup, Observation, ProviderError, dial
from fleeting.connectors import overridden
from fleeting.plugins import span
from fleeting.runtime import Dial
from taskscaler._wording import counted
from taskscaler.config import PoolTable

PATIENCE = 30.0
"""Seconds that the cloud may take to show the group, and an instance to answer, whatever the file says."""


async def view_of(group: InstanceGroup, patience: float = PATIENCE) -> Observation:
    """See the whole group.

    Raises:
        ProviderError: The cloud refused, or did not answer in time.
    """
    try:
        with anyio.fail_after(patience):
            return await group.update()
    except TimeoutError as error:
        raise ProviderError(f"the cloud did not report the group within {span(patience)}") from error


async def dial_once(info: ConnectInfo, pool: PoolTable, *, dial: Dial = dial, patience: float = PATIENCE) -> str:
    """Connect to an instance, and leave again; return the protocol.

    Args:
        info: As the group reports it; what the pool's connector says wins over it.
        pool: Whose instance it is.
        dial: Connects.
        patience: Seconds that connecting may take, if the pool allows more.

    Raises:
        FleetingError, OSError: Says what is wrong.
    """
    connector = evolve(pool.connector_config, timeout=min(pool.connector_config.timeout, patience))
    info = await overridden(info, connector)
    async with dial(info, connector):
        return info.protocol


def too_small(info: GroupInfo, wanted: int) -> Iterator[str]:
    """Say that the group may not have as many instances as are wanted; 0: as many as it may have."""
    if info.max_size is not None and info.max_size < wanted:
        most = f"the group may have at most {counted(info.max_size, 'instance')} ({info.max_size_is})"
        yield f"{most}, and max_instances is {wanted}; raise the group's limit, or lower max_instances"
