"""Several pools behind one scaler, over fake clouds in virtual time."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf
from random import Random

import anyio
import pytest
from anyio.abc import TaskGroup

from fleeting import (
    AuthFailed,
    Capability,
    CapacityUnavailable,
    GroupRefused,
    Preexisting,
    ProviderError,
    ScaleThrottle,
)
from fleeting.testing import FakeCloud, FakeGroup, Fault, IncreaseFault, UpdateFault, virtual_time
from taskscaler import LeaseLost, Policy, Pool, Taskscaler
from tests.taskscaler.scaling import asked, virtual_clock, work

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

WITHDRAWS = frozenset({Capability.NAMED_CREATE, Capability.WITHDRAW, Capability.NOTICES})


def a_cloud(name: str, *, withdraws: bool = True, boot_time: float = 20.0) -> FakeCloud:
    """One whose instances are of the offering of its name."""
    capabilities = WITHDRAWS if withdraws else frozenset({Capability.NAMED_CREATE})
    return FakeCloud(identity=f"fake/{name}", offering=f"{name}/small", capabilities=capabilities, boot_time=boot_time)


@asynccontextmanager
async def pooling(
    clouds: Mapping[str, FakeCloud],
    *,
    policies: Sequence[Policy] = (),
    max_instances: int = 0,
    settings: Mapping[str, Mapping[str, object]] | None = None,
) -> AsyncIterator[Taskscaler]:
    """A scaler over pools of these names, in this order, with these settings by pool."""
    pools = []
    for name, cloud in clouds.items():
        group = FakeGroup(cloud)
        own = {"scale_throttle": ScaleThrottle(limit=-1), **(settings or {}).get(name, {})}
        pools.append(Pool(group, name=name, dial=group.dial, **own))  # type: ignore[arg-type]
    async with Taskscaler(
        pools, policies=policies, max_instances=max_instances, clock=virtual_clock(), random=Random(1).random
    ) as scaler:
        yield scaler


async def wait_for(scaler: Taskscaler, *keys: str) -> dict[str, tuple[str, float]]:
    """From which pool each job got its slot, and after how many seconds."""
    begun, got = anyio.current_time(), {}

    async def one(key: str) -> None:
        lease = await scaler.acquire_lease(key)
        got[key] = lease.pool, anyio.current_time() - begun

    async with anyio.create_task_group() as tasks:
        for key in keys:
            tasks.start_soon(one, key)
    return got


def runs_out_after_the_request(cloud: FakeCloud, tasks: TaskGroup) -> None:
    """The next request is accepted and not filled; a second later the cloud says why."""

    async def run_out() -> None:
        await anyio.sleep(1)
        cloud.run_out()

    cloud.faults.increase.once(IncreaseFault(late=inf))
    tasks.start_soon(run_out)


# --- demand goes to who can serve it ----------------------------------------------------------------------


async def test_a_refusal_moves_the_demand_at_once() -> None:
    """The next decision asks the next pool; the lease says which it is."""
    clouds = {"spot": a_cloud("spot"), "on-demand": a_cloud("on-demand")}
    clouds["spot"].faults.increase.once(IncreaseFault(refuse=CapacityUnavailable("none left")))
    async with pooling(clouds) as scaler:
        got = await wait_for(scaler, "job")
    assert got["job"][0] == "on-demand"
    assert got["job"][1] < 25
    assert [asked(cloud) for cloud in clouds.values()] == [[1], [1]]


async def test_a_stock_out_after_the_request_moves_what_is_not_filled() -> None:
    """The pool says so in its view: what is unfilled is taken back, then the other is asked, and for no more."""
    clouds = {"spot": a_cloud("spot"), "on-demand": a_cloud("on-demand")}
    async with pooling(clouds) as scaler, anyio.create_task_group() as tasks:
        runs_out_after_the_request(clouds["spot"], tasks)
        got = await wait_for(scaler, "job-1", "job-2")
        clouds["spot"].restock()
        await anyio.sleep(600)
    assert {pool for pool, _ in got.values()} == {"on-demand"}
    assert max(after for _, after in got.values()) < 30
    assert [len(cloud.billed) for cloud in clouds.values()] == [0, 2]


async def test_what_cannot_be_taken_back_is_not_bought_twice() -> None:
    """It counts until it expires; only then another is asked, and what is delivered afterwards is removed at sight."""
    clouds = {"spot": a_cloud("spot", withdraws=False), "on-demand": a_cloud("on-demand")}
    async with (
        pooling(clouds, settings={"spot": {"intent_timeout": 120.0}}) as scaler,
        anyio.create_task_group() as tasks,
    ):
        runs_out_after_the_request(clouds["spot"], tasks)
        got = await wait_for(scaler, "job")
    assert got["job"][0] == "on-demand"
    assert 120 < got["job"][1] < 160


async def test_preference_returns_with_capacity() -> None:
    """The first view without the problem is enough, however long the back-off would last."""
    clouds = {"spot": a_cloud("spot"), "on-demand": a_cloud("on-demand")}
    clouds["spot"].run_out()
    async with pooling(clouds) as scaler:
        for number in range(8):
            assert (await wait_for(scaler, f"job-{number}"))[f"job-{number}"][0] == "on-demand"
            await anyio.sleep(60)
        clouds["spot"].restock()
        await anyio.sleep(65)
        assert (await wait_for(scaler, "last"))["last"][0] == "spot"


async def test_demand_that_no_other_can_take_stays() -> None:
    """The second pool is full: the rest waits where it was requested, and is served there in the end."""
    clouds = {"spot": a_cloud("spot"), "on-demand": a_cloud("on-demand")}
    async with (
        pooling(clouds, settings={"on-demand": {"max_instances": 1}}) as scaler,
        anyio.create_task_group() as tasks,
    ):
        runs_out_after_the_request(clouds["spot"], tasks)
        tasks.start_soon(work, scaler, "job-1", 1000)
        tasks.start_soon(work, scaler, "job-2", 1000)
        await anyio.sleep(120)
        assert [len(cloud.alive) for cloud in clouds.values()] == [0, 1]
        said = str(await scaler.explain())
        assert "1 instance, requested 2m ago, has not come" in said
        assert "the cloud says: no capacity for this offering" in said
        clouds["spot"].restock()
        await anyio.sleep(120)
        assert [len(cloud.alive) for cloud in clouds.values()] == [1, 1]


async def test_the_ceiling_over_all_pools() -> None:
    """Whichever pool an instance is of; `explain` says what holds back."""
    clouds = {"spot": a_cloud("spot"), "on-demand": a_cloud("on-demand")}
    async with (
        pooling(clouds, max_instances=3, settings={"spot": {"max_instances": 2}}) as scaler,
        anyio.create_task_group() as tasks,
    ):
        for number in range(5):
            tasks.start_soon(work, scaler, f"job-{number}", 500)
        await anyio.sleep(60)
        assert [len(cloud.alive) for cloud in clouds.values()] == [2, 1]
        assert "the limit of 3 instances (max_instances over all pools) is reached" in str(await scaler.explain())


async def test_what_is_over_the_ceiling_over_all_pools_goes_idle_first_least_preferred_first() -> None:
    """Whoever has added it; a busy instance stays, and no more go than are over."""
    clouds = {"spot": a_cloud("spot", boot_time=0), "on-demand": a_cloud("on-demand", boot_time=0)}
    adopt = {"preexisting": Preexisting.ADOPT}
    idle = [Policy(idle_count=9, idle_time=1000)]
    for cloud in clouds.values():
        cloud.launch(3)
    async with pooling(clouds, max_instances=4, policies=idle, settings={"spot": adopt, "on-demand": adopt}) as scaler:
        await anyio.sleep(120)
        assert [len(cloud.alive) for cloud in clouds.values()] == [3, 1]
        assert len(await scaler.instances()) == 4


# --- one that fails delays no other -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [UpdateFault(slow=10_000.0), UpdateFault(refuse=ProviderError("internal error"))],
    ids=["hangs", "raises"],
)
async def test_a_pool_that_shows_nothing_delays_no_other(trouble: UpdateFault) -> None:
    """What it holds is not known, so nothing is asked of it."""
    clouds = {"spot": a_cloud("spot"), "on-demand": a_cloud("on-demand")}
    clouds["spot"].faults.update.always(trouble)
    begun = anyio.current_time()
    async with pooling(clouds) as scaler:
        assert anyio.current_time() - begun <= 31
        got = await wait_for(scaler, "job")
    assert got["job"][0] == "on-demand"
    assert got["job"][1] < 25


async def test_a_pool_that_does_not_answer_gets_no_new_demand() -> None:
    """What it was requested counts until that is settled; what comes later goes elsewhere."""
    clouds = {"spot": a_cloud("spot"), "on-demand": a_cloud("on-demand")}
    clouds["spot"].faults.increase.once(IncreaseFault(slow=250.0))
    async with pooling(clouds) as scaler, anyio.create_task_group() as tasks:
        tasks.start_soon(work, scaler, "job-1", 1000)
        await anyio.sleep(40)
        assert asked(clouds["on-demand"]) == []
        tasks.start_soon(work, scaler, "job-2", 1000)
        await anyio.sleep(1)
        assert asked(clouds["on-demand"]) == [1]
        assert len(asked(clouds["spot"])) == 1
        assert "has not answered the last request" in str(await scaler.explain())
        tasks.cancel_scope.cancel()


async def test_groups_are_opened_at_the_same_time() -> None:
    """Three that take ten seconds take ten; and the error of one that cannot be opened is raised as it is."""
    clouds = {name: a_cloud(name) for name in ("a", "b", "c")}
    for cloud in clouds.values():
        cloud.faults.init.always(Fault(slow=10.0))
    begun = anyio.current_time()
    async with pooling(clouds):
        assert anyio.current_time() - begun < 11
    clouds["b"].faults.init.always(Fault(refuse=AuthFailed("the key was revoked")))
    with pytest.raises(AuthFailed, match="the key was revoked"):
        async with pooling(clouds):
            pass


# --- what is taken away -----------------------------------------------------------------------------------


async def test_a_pool_from_which_much_is_taken_is_asked_later() -> None:
    """Three of three: the next one goes to the steady pool, `explain` says why, and in time all is as before."""
    clouds = {"spot": a_cloud("spot", boot_time=0), "on-demand": a_cloud("on-demand", boot_time=0)}
    async with pooling(clouds) as scaler:
        for number in range(3):
            lease = await scaler.acquire_lease(f"job-{number}")
            assert lease.pool == "spot"
            clouds["spot"].notice(lease.instance, in_seconds=10.0)
            with pytest.raises(LeaseLost, match="preemption announced"):
                async with lease.hold():
                    await anyio.sleep_forever()
        lease = await scaler.acquire_lease("another")
        assert lease.pool == "on-demand"
        said = str(await scaler.explain())
        assert "pool spot is deprioritised: the cloud took 3 of the 3 instances that ended" in said
        lease.release()
        await anyio.sleep(3600)
        assert (await scaler.acquire_lease("later")).pool == "spot"


async def test_an_end_before_its_time_is_a_preemption_too() -> None:
    """It was announced: that the cloud did not keep to it makes no other loss of it."""
    cloud = a_cloud("spot", boot_time=0)
    async with pooling({"spot": cloud}) as scaler:
        lease = await scaler.acquire_lease("job")
        cloud.notice(lease.instance, in_seconds=300.0)
        await anyio.sleep(1)
        cloud.vanish(lease.instance)
        with pytest.raises(LeaseLost) as lost:
            async with lease.hold():
                await anyio.sleep_forever()
    assert lost.value.loss.kind.value == "preempted"


async def test_one_group_is_no_two_pools() -> None:
    """Its instances would be counted twice, and each pool would delete the other's."""
    cloud = a_cloud("spot")
    with pytest.raises(GroupRefused, match="pools first and second are the same group, fake/spot; give each"):
        async with pooling({"first": cloud, "second": cloud}):
            pass


# --- work that needs certain pools ------------------------------------------------------------------------


async def test_work_gets_a_slot_of_the_pools_that_it_names() -> None:
    """In its own order, whatever is idle elsewhere; it is passed by who can use that."""
    clouds = {"spot": a_cloud("spot"), "on-demand": a_cloud("on-demand"), "gpu": a_cloud("gpu")}
    async with pooling(clouds, policies=[Policy(idle_count=1, idle_time=1000)]) as scaler:
        await anyio.sleep(60)
        lease = await scaler.acquire_lease("bound", pools=["gpu", "spot"])
        assert lease.pool == "spot", "one that is there is better than one that has to boot"
        async with anyio.create_task_group() as tasks:

            async def gpu() -> None:
                async with scaler.acquire("gpu", pools=["gpu"]) as other:
                    assert other.pool == "gpu"

            tasks.start_soon(gpu)
            await anyio.sleep(1)
            said = await scaler.explain(key="gpu")
            assert "has been waiting for a slot of gpu" in str(said)
            assert said.pools == ("gpu",)
        assert [len(cloud.billed) for cloud in clouds.values()] == [2, 0, 1]


async def test_a_reservation_is_no_promise_of_a_pool() -> None:
    """What was kept for it goes to others, if the work turns out to need another pool."""
    clouds = {"spot": a_cloud("spot"), "on-demand": a_cloud("on-demand")}
    async with pooling(clouds) as scaler:
        (await scaler.acquire_lease("first")).release()
        await scaler.reserve("job")
        async with anyio.create_task_group() as tasks:
            got: list[str] = []

            async def take(key: str, *pools: str) -> None:
                async with scaler.acquire(key, pools=pools or None) as lease:
                    got.append(f"{key} {lease.pool}")
                    await anyio.sleep(5)

            tasks.start_soon(take, "other")
            await anyio.sleep(1)
            assert got == []
            tasks.start_soon(take, "job", "on-demand")
            await anyio.sleep(1)
            assert got == ["other spot"]
        assert got == ["other spot", "job on-demand"]


@pytest.mark.parametrize("pools", [[], ["gpu"], ["spot", "gpu"], "gpu"])
async def test_pools_that_there_are_not_are_refused(pools: str | list[str]) -> None:
    """Who asks for them learns which there are."""
    async with pooling({"spot": a_cloud("spot"), "on-demand": a_cloud("on-demand")}) as scaler:
        with pytest.raises(ValueError, match=r"expected names among spot, on-demand, found"):
            await scaler.acquire_lease("key", pools=pools)
