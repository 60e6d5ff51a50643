"""The fake group keeps the contract, however slow and eventual its cloud is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from fleeting import AuthFailed, Capability, Completed, ProviderError, QuotaExceeded, RateLimited
from fleeting.testing import (
    Command,
    DecreaseFault,
    FakeCloud,
    FakeGroup,
    Fault,
    GroupConformance,
    Harness,
    IncreaseFault,
    MakeHarness,
    SuspendFault,
    Trouble,
    UpdateFault,
    virtual_time,
)

anyio_backend = virtual_time

CLOUDS = {
    "prompt": lambda: FakeCloud(max_size=5),
    "slow": lambda: FakeCloud(
        max_size=4,
        capabilities=frozenset(Capability) - {Capability.PRICES},
        boot_time=90,
        appear_after=20,
        delete_time=40,
        linger=60,
        suspend_time=30,
        resume_time=70,
        notice_probe="curl --silent --max-time 3 http://169.254.169.254/notices",
        latency={
            "init": 1,
            "update": 2,
            "increase": 6,
            "decrease": 3,
            "connect_info": 1,
            "heartbeat": 1,
            "suspend": 4,
            "resume": 4,
            "mark_owner": 2,
            "read_marks": 1,
        },
    ),
    "plain": lambda: FakeCloud(capabilities=frozenset(), boot_time=5),
}


def harness_for(cloud: FakeCloud, group: type[FakeGroup] = FakeGroup) -> Harness:
    """A harness around a fake cloud that may take its virtual time; it has no pages, no other states, no time-outs."""

    async def kill(instance: str) -> None:
        cloud.vanish(instance)

    async def alive() -> frozenset[str]:
        return cloud.alive

    async def launch(number: int) -> None:
        cloud.launch(number)

    async def notice(instance: str) -> None:
        cloud.notice(instance, in_seconds=120)

    async def probed(instance: str) -> Completed:
        return await cloud.obey(instance, Command(command=cloud.notice_probe or ""))

    return Harness(
        make=lambda: group(cloud),
        kill=kill,
        alive=alive,
        launch=launch,
        notice=notice,
        probed=probed,
        loops=(),
        room=0 if cloud.max_size is not None else 100,
        requests=lambda: len(cloud.calls),
        retry_after=7,
        elsewhere=lambda: group(FakeCloud(identity="fake/other")),
        writes=lambda: sum(call.method in WRITES for call in cloud.calls),
        troubles={kind: partial(trouble, cloud, kind) for kind in (*REFUSALS, Trouble.STOCK_OUT, *FAULTS)},
        cannot=dict.fromkeys(
            ("troubles", "trouble_after", "set_state", "loops", "respelled", "room"),
            "the cloud in memory answers at once, in one piece and in its own event loop, and has no states but ours",
        ),
        deadline=600,
        patience=600,
        settle=60,
        poll=1,
    )


WRITES = {"increase", "decrease", "withdraw", "suspend", "resume", "mark_owner"}

REFUSALS = {
    Trouble.ERROR: ProviderError("it does not work"),
    Trouble.GARBAGE: ProviderError("it does not make sense"),
    Trouble.AUTH: AuthFailed("who are you?"),
    Trouble.RATE_LIMIT: RateLimited("not so fast", retry_after=7),
}
"""What the fake answers to every request."""

FAULTS = {
    Trouble.QUOTA: IncreaseFault(refuse=QuotaExceeded("that is all you get")),
    Trouble.PARTIAL: IncreaseFault(accept=1),
    Trouble.LOST_ANSWER: IncreaseFault(lose=True),
}
"""What befalls a request for instances."""


@asynccontextmanager
async def trouble(cloud: FakeCloud, kind: Trouble) -> AsyncIterator[None]:
    """Let the fake cloud have a trouble."""
    faults = cloud.faults
    if kind is Trouble.STOCK_OUT:
        cloud.run_out()
    elif kind in FAULTS:
        faults.increase.always(FAULTS[kind])
    else:
        faults.update.always(UpdateFault(refuse=REFUSALS[kind]))
        faults.increase.always(IncreaseFault(refuse=REFUSALS[kind]))
        faults.decrease.always(DecreaseFault(refuse=REFUSALS[kind]))
        faults.connect_info.always(Fault(refuse=REFUSALS[kind]))
        faults.heartbeat.always(Fault(refuse=REFUSALS[kind]))
        faults.withdraw.always(Fault(refuse=REFUSALS[kind]))
        faults.suspend.always(SuspendFault(refuse=REFUSALS[kind]))
        faults.resume.always(SuspendFault(refuse=REFUSALS[kind]))
        faults.mark_owner.always(Fault(refuse=REFUSALS[kind]))
        faults.read_marks.always(Fault(refuse=REFUSALS[kind]))
    yield
    cloud.restock()
    faults.clear()


class TestFake(GroupConformance):
    """The suite, over clouds of different temper."""

    @pytest.fixture(params=CLOUDS)
    def make_harness(self, request: pytest.FixtureRequest) -> MakeHarness:
        """Make a cloud that holds an instance already, and find all else deleted after the check."""

        @asynccontextmanager
        async def make() -> AsyncIterator[Harness]:
            cloud = CLOUDS[request.param]()
            found = cloud.launch(1)
            yield harness_for(cloud)
            left = [machine for machine in cloud.machines.values() if machine.ended_at > cloud.now < machine.gone_at]
            assert [machine.id for machine in left] == found

        return make
