"""Tells the story of a stock-out as a timeline, the same one each time: ``python docs/pictures/stock_out.py``.

A real scaler over two clouds in memory, in virtual time. The guide on pools has what it prints; a test compares them.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from random import Random

import anyio
from attrs import define, field

from fleeting import Capability, LoopClock, ScaleThrottle
from fleeting.testing import Bill, FakeCloud, FakeGroup, virtual_run
from taskscaler import Pool, Taskscaler

MONDAY = 1_772_442_000.0
"""09:00 UTC on 2 March 2026."""

PRICES = {"spot": 0.04, "on-demand": 0.12}
"""Of an instance, for an hour."""

EMPTY, FULL = 120.0, 720.0
"""When the first pool has nothing left, and when it has again: seconds from the beginning."""

JOBS = {f"job-{number:02}": (75.0 * number, 100.0) for number in range(13)}
"""When each comes, and how long it takes, in seconds."""


@define
class Story:
    """The two pools, and what has happened so far."""

    clouds: Mapping[str, FakeCloud]
    told: list[tuple[float, str]] = field(factory=list)
    clock: LoopClock = field(init=False)
    bills: Mapping[str, Sequence[Bill]] = field(factory=dict, init=False)

    def tell(self, what: str) -> None:
        """Note that it happens now."""
        self.told.append((self.clock.now() - MONDAY, what))

    async def play(self) -> None:
        """From the first job to the last instance."""
        self.clock = LoopClock(epoch=MONDAY)
        pools = []
        for name, cloud in self.clouds.items():
            group = FakeGroup(cloud)
            pools.append(Pool(group, name=name, dial=group.dial, scale_throttle=ScaleThrottle(limit=-1)))
        scaler = Taskscaler(
            pools,
            clock=self.clock,
            random=Random(1).random,
        )
        async with scaler, anyio.create_task_group() as tasks:
            tasks.start_soon(self._stock)
            tasks.start_soon(self._watch)
            async with anyio.create_task_group() as jobs:
                for key, (at, lasts) in JOBS.items():
                    jobs.start_soon(self._bring, scaler, key, at, lasts)
            await anyio.sleep(120)
            tasks.cancel_scope.cancel()
        self.bills = {name: cloud.billed for name, cloud in self.clouds.items()}

    async def _stock(self) -> None:
        await self.clock.sleep_until(MONDAY + EMPTY)
        self.clouds["spot"].run_out("no capacity for m5.large in zone-a")
        self.tell("pool spot has nothing left")
        await self.clock.sleep_until(MONDAY + FULL)
        self.clouds["spot"].restock()
        self.tell("pool spot has capacity again")

    async def _bring(self, scaler: Taskscaler, key: str, at: float, lasts: float) -> None:
        await self.clock.sleep_until(MONDAY + at)
        async with scaler.acquire(key) as lease:
            waited = self.clock.now() - MONDAY - at
            self.tell(f"{key} runs on {lease.pool}, after {waited:.0f} s")
            await anyio.sleep(lasts)

    async def _watch(self) -> None:
        """Tell of what the clouds are asked for."""
        seen = dict.fromkeys(self.clouds, 0)
        while True:
            for name, cloud in self.clouds.items():
                for call in cloud.calls[seen[name] :]:
                    if call.method in {"increase", "withdraw"}:
                        what = "requested" if call.method == "increase" else "withdrawn"
                        self.told.append((call.at - MONDAY, f"pool {name}: {call.arguments['count']} {what}"))
                seen[name] = len(cloud.calls)
            await anyio.sleep(0.5)

    def costs(self) -> Iterator[str]:
        """What each pool's instances cost, and what the same hours would have cost on the dear one alone."""
        hours = {
            name: sum(bill.until - bill.since for bill in bills if bill.until is not None) / 3600
            for name, bills in self.bills.items()
        }
        cost = {name: hours[name] * PRICES[name] for name in hours}
        for name, bills in self.bills.items():
            yield f"{name}: {len(bills)} instances, {hours[name]:.2f} h at {PRICES[name]:.2f}: {cost[name]:.3f}"
        dear = sum(hours.values()) * PRICES["on-demand"]
        yield f"in all {sum(cost.values()):.3f}; on demand alone {dear:.3f}"


def a_cloud(name: str) -> FakeCloud:
    """One that takes requests back, as most do."""
    return FakeCloud(
        identity=f"fake/{name}",
        offering=f"zone-a/m5.large/{name}",
        capabilities=frozenset({Capability.NAMED_CREATE, Capability.WITHDRAW}),
        boot_time=25.0,
        delete_time=5.0,
    )


def timeline() -> str:
    """Play the story, and set it out in lines."""
    story = Story({name: a_cloud(name) for name in PRICES})
    anyio.run(story.play, **virtual_run("asyncio"))
    lines = [f"{at // 60:02.0f}:{at % 60:04.1f}  {what}" for at, what in sorted(story.told, key=lambda each: each[0])]
    return "\n".join([*lines, "", *story.costs(), ""])


if __name__ == "__main__":
    sys.stdout.write(timeline())
