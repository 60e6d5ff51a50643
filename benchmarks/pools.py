"""What several pools promise: how soon another is asked, that nothing is bought twice, that preempted jobs finish.

The first figure is real time on the real event loops; the others are counted over many random lives in virtual time.
"""

import logging
import statistics
from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from time import perf_counter
from typing import Literal

import anyio
from _figures import report
from attrs import define, field

from fleeting import Capability, CapacityUnavailable, LoopClock, ScaleThrottle
from fleeting.events import LossKind
from fleeting.testing import FakeCloud, FakeGroup, IncreaseFault, virtual_run
from taskscaler import LeaseLost, Pool, Taskscaler
from taskscaler.batch import BatchState, Begun, Ended, JobState, Planned, Started

FAILOVERS = 300
STOCK_OUTS = 1_000
PREEMPTED_LIVES = 200
BACKENDS: tuple[Literal["asyncio", "trio"], ...] = ("asyncio", "trio")


class Stopwatch(FakeGroup):
    """A group that notes when it was asked for instances last, and perhaps has none."""

    def __init__(self, name: str, *, empty: bool) -> None:
        """Over a cloud of its own."""
        super().__init__(FakeCloud(identity=name))
        self.empty = empty
        self.asked = anyio.Event()
        self.asked_at = 0.0

    async def increase(self, count: int, *, intent: str) -> int:
        """Note the time."""
        self.asked_at = perf_counter()
        self.asked.set()
        if self.empty:
            raise CapacityUnavailable("none left")
        return await super().increase(count, intent=intent)


async def failovers() -> Sequence[float]:
    """Seconds from the refusal of one pool to the call that asks the next; many times."""
    logging.disable(logging.CRITICAL)
    seconds = []
    for _ in range(FAILOVERS):
        groups = [Stopwatch("spot", empty=True), Stopwatch("on-demand", empty=False)]
        pools = [Pool(group, name=group.cloud.identity, dial=group.dial) for group in groups]
        scaler = Taskscaler(pools, delete_instances_on_shutdown=False)  # the clouds go, too
        async with scaler, anyio.create_task_group() as tasks:
            tasks.start_soon(scaler.acquire_lease, "job")
            await groups[1].asked.wait()
            seconds.append(groups[1].asked_at - groups[0].asked_at)
            tasks.cancel_scope.cancel()
    return seconds


@define
class Life:
    """Three pools, jobs that each use up an instance, and what goes wrong; all of it by a seed."""

    random: Random
    clouds: Mapping[str, FakeCloud] = field(init=False)
    state: BatchState = field(init=False)
    clock: LoopClock = field(init=False)
    scaler: Taskscaler = field(init=False)
    bought: int = field(init=False)
    """Instances that ever existed."""

    def __attrs_post_init__(self) -> None:
        """Draw the clouds and the jobs."""
        self.clouds = {name: self._cloud(name) for name in ("spot", "other-spot", "on-demand")}
        count = self.random.randrange(1, 15)
        self.state = BatchState(Begun(at=0.0, jobs=tuple(Planned(name=f"{n}", retries=0) for n in range(count))))

    def _cloud(self, name: str) -> FakeCloud:
        can = {Capability.NAMED_CREATE, Capability.NOTICES}
        can |= self.random.choice([{Capability.WITHDRAW}, {Capability.WITHDRAW}, set()])
        return FakeCloud(
            identity=name,
            offering=name,
            capabilities=frozenset(can),
            boot_time=self.random.uniform(0, 60),
            appear_after=self.random.choice([0.0, 5.0]),
            latency={method: self.random.choice([0.0, 0.5]) for method in ("update", "increase", "withdraw")},
        )

    async def stock_outs(self) -> None:
        """Pools run out at any moment, also while requests are under way, for up to ten minutes."""
        for cloud in [*self.clouds.values()][:2]:
            if self.random.choice([True, False]):
                cloud.faults.increase.once(IncreaseFault(late=inf), times=2)
        await self._live(self._run_out)

    async def preemptions(self) -> None:
        """The cloud takes instances that have work, with a notice, and now and then before its time."""
        await self._live(self._preempt)

    async def _live(self, trouble: object) -> None:
        self.clock = LoopClock(epoch=1e9)
        self.scaler = Taskscaler(
            [
                Pool(group := FakeGroup(cloud), name=name, dial=group.dial, max_use_count=1, scale_throttle=UNLIMITED)
                for name, cloud in self.clouds.items()
            ],
            clock=self.clock,
            random=self.random.random,
        )
        async with self.scaler, anyio.create_task_group() as tasks:
            for cloud in [*self.clouds.values()][:2]:
                tasks.start_soon(trouble, cloud)  # type: ignore[arg-type]
            async with anyio.create_task_group() as jobs:
                for record in self.state.records:
                    jobs.start_soon(self._bring, record.name)
            tasks.cancel_scope.cancel()
            await anyio.sleep(1000)  # what was asked for twice has time to appear
        self.bought = sum(len(cloud.billed) for cloud in self.clouds.values())

    async def _run_out(self, cloud: FakeCloud) -> None:
        for _ in range(self.random.randrange(1, 4)):
            await anyio.sleep(self.random.uniform(0, 200))
            cloud.run_out()
            await anyio.sleep(self.random.uniform(0, 600))
            cloud.restock()

    async def _preempt(self, cloud: FakeCloud) -> None:
        for _ in range(10):
            await anyio.sleep(self.random.uniform(0, 60))
            busy = [
                view.id for view in await self.scaler.instances() if view.pool == cloud.identity and any(view.slots)
            ]
            if busy:
                victim = self.random.choice(busy)
                cloud.notice(victim, in_seconds=self.random.choice([5.0, 30.0, 120.0]))
                if self.random.choice([True, False]):
                    await anyio.sleep(1)
                    cloud.vanish(victim)

    async def _bring(self, name: str) -> None:
        await anyio.sleep(self.random.uniform(0, 300))
        lasts = self.random.uniform(10, 200)
        while not self.state[name].state.final:
            try:
                async with self.scaler.acquire(name, timeout=inf) as lease:
                    now, pool, instance = self.clock.now(), lease.pool, lease.instance
                    self.state.apply(Started(at=now, job=name, pool=pool, instance=instance, slot=lease.slot))
                    await anyio.sleep(lasts)
                    ended = Ended(at=self.clock.now(), job=name, state=JobState.SUCCEEDED, exit_code=0)
            except LeaseLost as error:
                preempted = error.loss.kind is LossKind.PREEMPTED
                ended = Ended(
                    at=self.clock.now(), job=name, state=JobState.LOST, why=str(error.loss), preempted=preempted
                )
            self.state.apply(ended)


UNLIMITED = ScaleThrottle(limit=-1)


def over_buy() -> int:
    """Instances that were bought beyond one for each job, over many stock-outs."""
    more = 0
    for seed in range(STOCK_OUTS):
        life = Life(Random(seed))  # noqa: S311  (repeatable)
        anyio.run(life.stock_outs, **virtual_run("asyncio"))
        more += life.bought - life.state.count(JobState.SUCCEEDED)
    return more


def finished_elsewhere() -> float:
    """Share in per cent of the jobs that were preempted and had no retries, and succeeded on another instance."""
    preempted = finished = 0
    for seed in range(PREEMPTED_LIVES):
        life = Life(Random(seed))  # noqa: S311  (repeatable)
        anyio.run(life.preemptions, **virtual_run("asyncio"))
        for record in life.state.records:
            if any(attempt.preempted for attempt in record.attempts):
                preempted += 1
                places = {(attempt.pool, attempt.instance) for attempt in record.attempts}
                finished += record.state is JobState.SUCCEEDED and len(places) == len(record.attempts)
    return 100 * finished / preempted


if __name__ == "__main__":
    seconds = [each for backend in BACKENDS for each in anyio.run(failovers, backend=backend)]
    report("pool_failover_decision_ms", statistics.quantiles(seconds, n=100)[98] * 1e3, "ms", 20)
    report("pool_over_buy", over_buy(), "instances", 0)
    report("preempted_finished_elsewhere", finished_elsewhere(), "%", 100)
