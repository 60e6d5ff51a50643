"""What stories know of leases that outlive their clients: where they were left, until when, and what runs there."""

from math import inf

import anyio
from attrs import Factory, define, field, frozen

from taskscaler import Lease
from taskscaler._left_there import command_name
from taskscaler.serve._keeper import END_TIMEOUT, LOOK_TIMEOUT, RETRY, Keeper
from tests.chaos.process import Life
from tests.taskscaler.leaving import Left

LATE = 30.0 + 2 * RETRY + END_TIMEOUT + LOOK_TIMEOUT
"""Seconds by which a bound may be overdrawn at most: its client's death has to be noticed, the daemon may be dead, and
what runs there may be looked at or ended just then."""


@frozen(kw_only=True)
class Leaver:
    """A client that has a lease kept, goes, and may come back."""

    name: str
    at: float
    seconds: float
    """How long it works before it goes."""

    ttl: float
    idle_timeout: float | None = None
    runs: float = 0.0
    """How long the command runs that it leaves there; 0: it leaves none."""

    returns_at: float = inf
    """When it comes back, works again, and gives the slot back."""

    stopped_at: float = inf
    """When somebody ends the lease, whoever has it."""

    dies_at: float = inf
    """When it is killed, in the middle of whatever it does."""


@define
class Place:
    """A slot that was kept for somebody."""

    leaver: Leaver
    instance: str
    slot: int
    command: str
    """Names what may run there; empty: nothing."""

    earliest: float = inf
    """When it may be somebody else's; infinite: its client has it."""

    command_ends: float = -inf
    over: bool = False
    """Whether it was given back, or is somebody else's."""

    def may_end(self, at: float) -> None:
        """From then on it need not be kept."""
        self.earliest = min(self.earliest, at)


@define(eq=False)
class Kept:
    """All slots that are kept."""

    left: Left
    wrong: list[str]
    places: dict[str, Place] = Factory(dict)
    """The last of each leaver."""

    stopping: set[str] = Factory(set)
    """Names of those whose leases somebody asks to end."""

    def keep(self, leaver: Leaver, lease: Lease, name: str) -> Place:
        """The daemon has promised to keep a lease."""
        command = command_name(name) if leaver.runs else ""
        place = self.places[leaver.name] = Place(leaver, lease.instance, lease.slot, command)
        if leaver.name in self.stopping:
            place.may_end(anyio.current_time())
        return place

    async def run_command(self, place: Place) -> None:
        """Run what a client leaves behind; it ends by itself, unless somebody ends it."""
        self.left.running.add(place.command)
        place.command_ends = anyio.current_time() + place.leaver.runs
        await anyio.sleep_until(place.command_ends)
        if place.command in self.left.running:
            self.left.running.remove(place.command)
            self.left.ended.add(place.command)

    def leave(self, place: Place) -> None:
        """Its client goes: from now on, its bounds count."""
        if place.earliest < inf:
            return
        now, leaver = anyio.current_time(), place.leaver
        idle = inf if leaver.idle_timeout is None else max(now, place.command_ends) + leaver.idle_timeout
        place.earliest = min(now + leaver.ttl, idle) - 0.001  # a wall clock has less digits after its point

    def take(self, place: Place, lease: Lease) -> None:
        """Its client is back."""
        if (lease.instance, lease.slot) != (place.instance, place.slot) or place.over:
            self.wrong.append(
                f"{place.leaver.name} left {place}, and came back to slot {lease.slot} of {lease.instance}"
            )
        if place.leaver.name not in self.stopping:
            place.earliest = inf

    def refuse(self, place: Place, why: object, lost: set[str]) -> None:
        """Its client is told that there is no such lease."""
        if anyio.current_time() < place.earliest and place.instance not in lost:
            self.wrong.append(f"{place.leaver.name} lost {place} too early: {why}")
        place.over = True

    def check_free(self, instance: str, slot: int, who: str) -> None:
        """Somebody begins to work in a slot: it is kept for nobody any more, and nothing was left in it."""
        for place in self.places.values():
            if (place.instance, place.slot) == (instance, slot) and place.leaver.name != who and not place.over:
                if anyio.current_time() < place.earliest:
                    self.wrong.append(f"at {anyio.current_time():.1f}, {who} works in {place}")
                if place.command in self.left.running:
                    self.wrong.append(f"{who} works in {place}, where {place.command} runs")
                place.over = True


@define(eq=False)
class MortalKeeper(Keeper):
    """One life's keeper: it can be killed at each of its writes."""

    life: Life = field(kw_only=True)

    async def _write(self, key: str) -> None:
        """Write down how it is now, while the process lives."""
        self.life.pass_by("keep", after=False)
        await super()._write(key)
        self.life.pass_by("keep", after=True)
