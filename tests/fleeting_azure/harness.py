"""What the conformance suite may do to the cloud."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial

import anyio
from attrs import define, evolve

from fleeting import Completed, Settings, State
from fleeting.testing import Harness, Trouble
from fleeting_azure import AzureConfig
from tests.fleeting_azure.arm_cloud import Cloud
from tests.fleeting_azure.arm_rules import TOKEN
from tests.fleeting_azure.arm_server import group_of, trouble
from tests.fleeting_azure.metadata import event, metadata

STATES = {
    "Creating": State.CREATING,
    "Creating/starting": State.CREATING,
    "Creating/running": State.CREATING,
    "Succeeded/running": State.RUNNING,
    "Updating/running": State.RUNNING,
    "Failed/running": State.RUNNING,
    "Updating/starting": State.RESUMING,
    "Updating/stopping": State.SUSPENDING,
    "Updating/deallocating": State.SUSPENDING,
    "Succeeded/deallocated": State.SUSPENDED,
    "Failed/deallocated": State.SUSPENDED,
    "Succeeded/stopped": State.FAILED,
    "Failed": State.FAILED,
    "Canceled": State.FAILED,
    "Canceled/running": State.RUNNING,
    "Succeeded/unknown": State.CREATING,
    "Succeeded": State.CREATING,
    "Deleting/running": State.DELETING,
    "Deleting": State.DELETING,
}
"""Provisioning and power state, as `Cloud.set_state` takes them."""


UNKNOWN = {Trouble.PARTIAL, Trouble.UNREACHABLE, Trouble.MALFORMED, Trouble.EMPTY_PAGE}
"""Troubles that the server cannot be made to have."""


@define
class HurriedClock:
    """Fifty seconds in one, so that nobody has to wait for a budget."""

    begun: float
    epoch: float

    def now(self) -> float:
        """Seconds since the epoch, or so."""
        return self.epoch + 50 * (anyio.current_time() - self.begun)

    async def sleep_until(self, at: float) -> None:
        """Return once it is later."""
        await anyio.sleep(max(0.0, (at - self.now()) / 50))


async def probed(cloud: Cloud, instance: str) -> Completed:
    """Run the probe as on an instance, with the events that the cloud has announced."""
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    name = cloud.instances[instance].name
    events = [event("Preempt", soon, cloud.instances[each].name) for each in cloud.announced]
    async with metadata(json.dumps({"DocumentIncarnation": 1, "Events": events}), name) as probe:
        ended = await anyio.run_process(["sh", "-c", probe], check=False)
    return Completed(exit_status=ended.returncode, signal=None, stdout=ended.stdout, stderr=ended.stderr)


def harness_for(cloud: Cloud, config: AzureConfig, clock: HurriedClock) -> Harness:
    """All that it may do."""
    cloud.since = datetime.fromtimestamp(clock.now(), UTC).isoformat()
    return Harness(
        make=lambda: group_of(evolve(config, owner_mark=True)),
        settings=Settings(owner="conformance", clock=clock),
        kill=cloud.kill,
        alive=cloud.alive,
        launch=cloud.launch,
        troubles={kind: trouble(cloud, kind) for kind in Trouble if kind not in UNKNOWN},
        states=STATES,
        set_state=cloud.set_state,
        writes=cloud.writes,
        secrets=[TOKEN],
        unknown_id="00000000-0000-4000-8000-000000000000",
        deadline=300,
        patience=30,
        settle=1,
        poll=0.5,
        notice=cloud.announce,
        probed=partial(probed, cloud),
        retry_after=7,
        cannot={
            "troubles": "a scale set's capacity is taken whole or not at all, and the server is always there",
            **dict.fromkeys(
                ("trouble_after", "requests", "room", "respelled", "elsewhere"),
                "the server has one scale set, and a quota that a crowd exceeds",
            ),
        },
    )
