"""Groups on a cloud of ours, opened."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from attrs import frozen

from fleeting import GroupInfo, LoopClock, Observed, Settings, State
from fleeting_azure import AzureConfig, AzureGroup
from tests.fleeting_azure.arm_cloud import Cloud, Mode
from tests.fleeting_azure.arm_server import group_of, running
from tests.fleeting_azure.harness import HurriedClock


def hurried() -> HurriedClock:
    """Make a clock, inside the event loop."""
    return HurriedClock(anyio.current_time(), LoopClock().now())


@frozen(kw_only=True)
class Opened:
    """A cloud, and a group that is open on it."""

    cloud: Cloud
    config: AzureConfig
    group: AzureGroup
    info: GroupInfo
    clock: HurriedClock

    async def shown(self) -> Mapping[str, Observed]:
        """The instances in the group's view."""
        return (await self.group.update()).instances

    async def until(self, *states: State) -> list[str]:
        """Wait until the instances are in these states, in their order; returns their ids."""
        shown = await self.shown()
        while [each.state for each in shown.values()] != [*states]:
            shown = await self.shown()
        return list(shown)

    async def grow(self, count: int) -> list[str]:
        """Add instances and wait until all run; returns the ids of all."""
        before = len(await self.shown())
        assert await self.group.increase(count, intent="i") == count
        return await self.until(*[State.RUNNING] * (before + count))


@asynccontextmanager
async def opened(
    directory: Path,
    mode: Mode = "Uniform",
    *,
    observe_only: bool = False,
    **settings: Any,  # noqa: ANN401  (those of the cloud)
) -> AsyncIterator[Opened]:
    """Run a cloud and open a group on it."""
    async with running(directory, mode, **settings) as (cloud, config):
        group, clock = group_of(config), hurried()
        info = await group.init(Settings(owner="tests", clock=clock, observe_only=observe_only))
        try:
            yield Opened(cloud=cloud, config=config, group=group, info=info, clock=clock)
        finally:
            with anyio.CancelScope(shield=True):
                await group.shutdown()
