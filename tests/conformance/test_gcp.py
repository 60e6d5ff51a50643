"""Managed instance groups keep the contract, zonal and regional: the real SDK over an endpoint of our own.

Each kind is checked on one backend, since the SDK runs in threads and knows of neither. The suite checks each clause on
one of the two, and the whole contract so on both; the other half runs with ``--rest``.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from fleeting import Completed
from fleeting.testing import Check, GroupConformance, Harness, MakeHarness, Trouble
from fleeting_gcp import GcpGroup
from fleeting_gcp._answers import ACTIONS, STATUSES
from tests.conformance.harnesses import LONG, call_timeout
from tests.fleeting_gcp.clouds import REGIONAL, config, private_key, run_probe, serving, write_credentials
from tests.fleeting_gcp.compute_endpoint import Cloud, Fault

ALL_OR_NOTHING = (
    "createInstances plans all of the instances or none, and the endpoint is always there, with pages in order"
)
STATES = {f"{action}/RUNNING": state for action, state in ACTIONS.items()} | {
    f"NONE/{status}": state for status, state in STATUSES.items()
}
TROUBLES = {
    Trouble.ERROR: Fault.ERROR,
    Trouble.GARBAGE: Fault.GARBAGE,
    Trouble.AUTH: Fault.AUTH,
    Trouble.RATE_LIMIT: Fault.RATE_LIMIT,
    Trouble.QUOTA: Fault.QUOTA,
    Trouble.PROTECTED: Fault.PROTECTED,
    Trouble.LOST_ANSWER: Fault.LOST_ANSWER,
    Trouble.SILENCE: Fault.SILENCE,
    Trouble.SLOW: Fault.SLOW,
    Trouble.BROKEN_PAGE: Fault.BROKEN_PAGE,
    Trouble.PAGE_LOOP: Fault.PAGE_LOOP,
}


def during(make: Callable[[], AbstractContextManager[None]]) -> Callable[[], AbstractAsyncContextManager[None]]:
    """Let a trouble be entered as the suite does it."""

    @asynccontextmanager
    async def having() -> AsyncIterator[None]:
        with make():
            yield

    return having


def harness_for(cloud: Cloud, credentials: Path, timeout: float) -> Harness:
    """What the suite may do to the cloud."""

    async def kill(instance: str) -> None:
        cloud.preempt(instance)

    async def alive() -> list[str]:
        return cloud.alive()

    async def launch(number: int) -> None:
        cloud.launch(number)

    async def set_state(instance: str, state: str) -> None:
        cloud.set_state(instance, state)

    async def notice(instance: str) -> None:
        announced.add(instance)

    async def probed(instance: str) -> Completed:
        told = {"preempted": "TRUE" if instance in announced else "FALSE", "maintenance_event": "NONE"}
        done = await to_thread.run_sync(lambda: run_probe(credentials.parent / "tools", **told))
        return Completed(exit_status=done.returncode, stdout=done.stdout)

    announced = set[str]()
    troubles = {trouble: during(partial(cloud.fault, fault)) for trouble, fault in TROUBLES.items()}
    return Harness(
        make=lambda: GcpGroup(config(cloud, credentials, owner_mark=True, timeout=timeout)),
        kill=kill,
        alive=alive,
        launch=launch,
        troubles=troubles | {Trouble.STOCK_OUT: during(cloud.stock_out)},
        states=STATES,
        set_state=set_state,
        notice=notice,
        probed=probed,
        writes=cloud.writes,
        secrets=cloud.tokens,
        unknown_id="fleeting-0123456789-1-0",
        deadline=LONG,
        patience=LONG,
        settle=0.05,
        poll=0.01,
        cannot={
            "troubles": ALL_OR_NOTHING,
            **dict.fromkeys(
                ("trouble_after", "requests", "room", "respelled", "elsewhere"),
                "the endpoint has one group, and a quota that a crowd exceeds",
            ),
        },
    )


def make_clouds(directory: Path, moment: float, timeout: float, **kind: Any) -> MakeHarness:  # noqa: ANN401  (as the cloud knows them)
    """Run a cloud for each check, with an instance in it that somebody else made, and three on a page."""

    @asynccontextmanager
    async def make() -> AsyncIterator[Harness]:
        addresses = map("10.0.0.{}".format, count(1))
        cloud = Cloud(page=3, boot=moment, delay=moment, tokens={private_key()}, addresses=addresses, **kind)
        cloud.launch(1)
        with serving(cloud):
            yield harness_for(cloud, write_credentials(directory), timeout)

    return make


class TestGcp(GroupConformance):
    """The suite, over a group in one zone, where everything takes a moment, or in three, where it is done at once."""

    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(self, request: pytest.FixtureRequest) -> str:
        """One for each kind."""
        backend: str = request.param
        return backend

    @pytest.fixture
    def make_harness(self, tmp_path: Path, anyio_backend: str, check: Check) -> MakeHarness:
        """Run clouds with a group: zonal on asyncio, regional on trio."""
        timeout = call_timeout(check, 1.0)
        if anyio_backend == "asyncio":
            return make_clouds(tmp_path, 0.02, timeout)
        return make_clouds(tmp_path, 0.0, timeout, **REGIONAL)
