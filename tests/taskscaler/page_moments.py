"""Moments of fleets for the status page: real scalers over clouds in memory, in virtual time, as a daemon sees them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial
from random import Random

import anyio
from anyio.abc import TaskGroup
from attrs import asdict, define, evolve, field, frozen

from fleeting import LoopClock
from fleeting.testing import FakeCloud, FakeGroup, virtual_run
from taskscaler import LeaseLost, Policy, Pool, ScalerEvent, Taskscaler
from taskscaler._cost import Spending, Tariff, cost_as_data
from taskscaler._observe import InstanceEvent
from taskscaler.serve._page._history import History
from taskscaler.serve._page._view import PoolRow, Scene
from taskscaler.serve._page._watch import Watch
from tests.taskscaler.topped import PLANTED, fleet_of

MONDAY = 1_772_442_000.0
"""09:00 UTC on 2 March 2026."""


@frozen
class Moment:
    """What there was to see, and when."""

    scene: Scene = field(factory=Scene)
    history: History = field(factory=History)
    now: float = MONDAY


@define(eq=False)
class _Cloud(FakeCloud):
    """A cloud whose ids look like those of others."""

    _random: Random = field(factory=lambda: Random(1), init=False)

    def _new_id(self) -> str:
        return f"worker-{self._random.getrandbits(32):08x}"


@define(eq=False)
class Story:
    """A fleet, and what has happened to it."""

    cloud: FakeCloud
    most: int
    capacity: int = 2
    tariff: Tariff = field(factory=Tariff)
    policy: Policy = field(factory=lambda: Policy(idle_time=300))
    clock: LoopClock = field(init=False)
    scaler: Taskscaler = field(init=False)
    tasks: TaskGroup = field(init=False)
    _spending: Spending = field(init=False)

    async def status(self) -> dict[str, object]:
        """Say what a daemon says of itself."""
        explanation = await self.scaler.explain()
        return {
            "fleet": "/srv/ci.toml",
            "state": "serving",
            "answer": explanation.answer,
            "capacity": asdict(explanation.capacity),
            "pools": {pool.name: pool.counts() for pool in explanation.pools},
            "cost": cost_as_data(self._spending.so_far(self.clock.now())),
        }

    def bring(self, jobs: Mapping[str, float]) -> None:
        """Have jobs come, each of which takes so many seconds."""
        for name, seconds in jobs.items():
            self.tasks.start_soon(self._work, name, seconds)

    async def _work(self, name: str, seconds: float) -> None:
        while True:
            try:
                async with self.scaler.acquire(name, timeout=float("inf")):
                    await anyio.sleep(seconds)
            except LeaseLost:
                continue
            return

    async def tell(self, plot: "Callable[[Story], Awaitable[object]]") -> Moment:
        """Play it, and look."""
        self.clock = LoopClock(epoch=MONDAY)
        self._spending = Spending.at({"linux": self.tariff})
        watch, group = Watch(self, self.clock), FakeGroup(self.cloud)

        def hear(event: ScalerEvent) -> None:
            watch.hear(event)
            if isinstance(event, InstanceEvent):
                self._spending.take(event)

        pool = Pool(group, name="linux", dial=group.dial, capacity_per_instance=self.capacity, max_instances=self.most)
        self.scaler = Taskscaler(
            pool, policies=[self.policy], clock=self.clock, observers=[hear], random=Random(1).random
        )
        async with self.scaler, anyio.create_task_group() as self.tasks:
            await plot(self)
            await watch._look()
            history, now = deepcopy(watch._history), self.clock.now()
            self.tasks.cancel_scope.cancel()
        assert watch._scene is not None
        return Moment(evolve(watch._scene, revision=1), history, now)

    def moment(self, plot: "Callable[[Story], Awaitable[object]]") -> Moment:
        """Play it in virtual time; in a thread of its own, for there may be a browser's event loop in this one."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(partial(anyio.run, self.tell, plot, **virtual_run("asyncio"))).result()


def builds(first: int, last: int, seconds: float = 400.0) -> Mapping[str, float]:
    """Name jobs."""
    return {f"build-{number}": seconds for number in range(first, last + 1)}


def at_the_ceiling() -> Moment:
    """Six jobs run on three instances, which is all there may be; four wait."""

    async def plot(story: Story) -> None:
        story.bring(builds(1, 2, 130))
        await anyio.sleep(120)
        story.bring(builds(3, 9))
        await anyio.sleep(90)
        story.bring(builds(10, 12))
        await anyio.sleep(47)

    return Story(_Cloud(boot_time=30), most=3).moment(plot)


def out_of_stock() -> Moment:
    """Two instances are there, and the cloud has no third."""

    async def plot(story: Story) -> None:
        story.bring(builds(1, 4))
        await anyio.sleep(100)
        story.cloud.run_out("no capacity for m5.large in zone-a")
        story.bring(builds(5, 7))
        await anyio.sleep(72)

    return Story(_Cloud(boot_time=30), most=6, tariff=Tariff(price_per_hour=0.096, currency="USD")).moment(plot)


def cordoned() -> Moment:
    """Two of three instances get no new work, because an operator wants to look at them."""

    async def plot(story: Story) -> None:
        story.bring({**builds(1, 2), **builds(3, 6, 110)})
        await anyio.sleep(100)
        for each in [each for each in await story.scaler.instances() if "build-1" not in each.slots]:
            await story.scaler.cordon(each.id, "disk errors, ticket OPS-4711")
            await story.scaler.retain(each.id, "disk errors, ticket OPS-4711")
        await anyio.sleep(80)
        story.bring(builds(7, 9))
        await anyio.sleep(73)

    return Story(_Cloud(boot_time=30), most=3).moment(plot)


def busy() -> Moment:
    """A quarter of an hour of jobs on up to five instances, one of which was lost."""

    async def plot(story: Story) -> None:
        random = Random(5)
        for number in range(1, 58):
            story.bring({f"build-{number}": random.uniform(60, 240)})
            await anyio.sleep(random.uniform(4, 24))
            if number == 30:
                instances = await story.scaler.instances()
                story.cloud.vanish(next(each.id for each in instances if all(each.slots) and each.slots))

    tariff = Tariff(price_per_hour=0.096, currency="USD", minimum_billing=60)
    return Story(_Cloud(boot_time=45, delete_time=10), most=5, tariff=tariff).moment(plot)


def hostile() -> Moment:
    """Everything has a name that a browser or a reader could take for something else."""
    named = f"<img src=x onerror=\"document.title='owned'\">{PLANTED}</script><script>document.title='owned'</script>"
    fleet = fleet_of(4, waiting=2)
    instances = [
        evolve(each, pool=named, id=f"{named}{number}", why=named, cordoned=named, slots=(named, None))
        for number, each in enumerate(fleet.instances.values())
    ]
    return Moment(
        Scene(
            fleet=evolve(
                fleet,
                name=named,
                answer=named,
                instances={each.place: each for each in instances},
                waiting=tuple(evolve(each, key=named, why=named) for each in fleet.waiting),
                decisions=tuple(evolve(each, text=named) for each in fleet.decisions),
            ),
            next=(named,),
        ),
        now=fleet.decisions[0].at,
    )


def many(count: int = 1000) -> Moment:
    """So many instances, two thirds of which run a job."""
    fleet = fleet_of(count, waiting=0)
    now = fleet.decisions[0].at
    free = count - count // 3
    said = [f"{free - back} slots, {count} instances ({free - back} in use)" for back in range(5)]
    fleet = evolve(
        fleet,
        answer=f"nothing is waiting; {free} slots are idle",
        decisions=tuple(evolve(each, text=text) for each, text in zip(fleet.decisions, said, strict=True)),
    )
    pool = PoolRow(
        name="default",
        counts=f"{count - count // 3} ready, {count // 3} booting",
        ceiling=count,
        cost=f"{count / 4:g} instance-hours, price unknown",
    )
    return Moment(Scene(fleet=fleet, pools=(pool,), revision=1), now=now)


WAITING: Sequence[tuple[str, Callable[[], Moment]]] = (
    ("ceiling", at_the_ceiling),
    ("stock-out", out_of_stock),
    ("cordoned", cordoned),
)
"""Why a job may wait: what it is called, and what makes the moment."""
