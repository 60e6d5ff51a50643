"""What the conformance suite is given to check, and what its checks are written with."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from uuid import uuid4

import anyio
from attrs import define, evolve, field, frozen

from fleeting._clock import LoopClock
from fleeting._errors import ProviderError
from fleeting._protocols import InstanceGroup
from fleeting._types import Capability, GroupInfo, Observed, Settings, State


class Violation(AssertionError):
    """A group does not keep the contract; says which clause, and what was seen."""

    def __init__(self, clause: str, seen: str) -> None:
        """Take the clause that is not kept, and what was seen instead."""
        self.clause = clause
        self.seen = seen
        super().__init__(f"the contract says: {clause}; seen: {seen}")


class NotApplicable(Exception):
    """A check does not concern this group, or the harness lacks what it needs; says which."""


def _settings() -> Settings:
    """Settings on the event loop's clock."""
    return Settings(owner="conformance", clock=LoopClock())


@frozen(kw_only=True)
class Harness:
    """One cloud resource to check a group on, made inside the event loop.

    It must have room for three more instances. What it holds already must stay as it is meanwhile.
    """

    make: Callable[[], InstanceGroup]
    """Makes a group object for the resource, not opened yet; called for every one that a check needs."""

    settings: Settings = field(factory=_settings)
    kill: Callable[[str], Awaitable[None]] | None = None
    """Ends an instance behind the group's back; without it, what depends on that is not checked."""

    alive: Callable[[], Awaitable[Collection[str]]] | None = None
    """Tells the ids of all instances that really exist, not by way of the group; None: cannot be told."""

    deadline: float = 60.0
    """Seconds within which what was asked for comes, runs, or is gone."""

    settle: float = 1.0
    """Seconds after which the outcome of a call that was broken off shows itself."""

    poll: float = 0.05
    """Seconds between two views while something is waited for."""

    unknown_id: str = "i-00000000000000000"
    """An id that the cloud could have given, and has not."""

    @asynccontextmanager
    async def opened(self, *, keep: bool = False, observe_only: bool = False) -> AsyncIterator["Probe"]:
        """Open a group, and in the end close it, after deleting what came meanwhile unless that is to be kept."""
        group = self.make()
        info = await group.init(evolve(self.settings, observe_only=observe_only))
        probe = Probe(harness=self, group=group, info=info)
        try:
            probe.found = dict(await probe.shown())
            yield probe
        finally:
            with anyio.move_on_after(self.deadline, shield=True):
                if not keep:
                    await probe.tidy()
                await group.shutdown()


MakeHarness = Callable[[], AbstractAsyncContextManager[Harness]]
"""Sets a cloud resource up for one check, and clears it away after that."""


@define(kw_only=True)
class Probe:
    """An open group, and the questions that checks ask of it."""

    harness: Harness
    group: InstanceGroup
    info: GroupInfo
    found: dict[str, Observed] = field(factory=dict)
    """The first view: the instances that were there when it was opened."""

    async def shown(self) -> Mapping[str, Observed]:
        """The instances in the group's view, less those that it reports as deleted."""
        view = await self.group.update()
        return {instance: each for instance, each in view.instances.items() if each.state is not State.DELETED}

    async def added(self) -> Mapping[str, Observed]:
        """Of those, the ones that came since the group was opened."""
        return without(await self.shown(), self.found)

    async def rest(self, seconds: float) -> None:
        """Let time pass."""
        clock = self.harness.settings.clock
        await clock.sleep_until(clock.now() + seconds)

    async def until(self, clause: str, met: Callable[[Mapping[str, Observed]], bool]) -> Mapping[str, Observed]:
        """Poll the instances shown until they are as the clause says."""
        clock = self.harness.settings.clock
        end = clock.now() + self.harness.deadline
        while not met(shown := await self.shown()):
            if clock.now() >= end:
                raise Violation(clause, f"after {self.harness.deadline:g} s the view has {describe(shown)}")
            await self.rest(self.harness.poll)
        return shown

    async def increase(self, count: int, intent: str = "") -> int:
        """Ask for instances, and look at the answer."""
        accepted = await self.group.increase(count, intent=intent or new_intent())
        if not 0 <= accepted <= count:
            clause = "increase returns how many the cloud accepted, 0 to count"
            raise Violation(clause, f"increase({count}) returned {accepted!r}")
        return accepted

    async def grow(self, count: int, intent: str = "") -> list[str]:
        """Add instances and wait until they run; returns their ids."""
        before = set(await self.shown())
        accepted = await self.increase(count, intent)
        if accepted < count:
            raise Violation("the harness has room for three instances", f"increase({count}) returned {accepted}")
        await self.until(
            "as many instances as increase accepted appear in update",
            lambda shown: len(shown.keys() - before) >= accepted,
        )
        shown = await self.until(
            "an instance that was asked for comes to run",
            lambda shown: sum(each.state is State.RUNNING for each in without(shown, before).values()) >= accepted,
        )
        return list(without(shown, before))

    async def remove(self, instances: Sequence[str]) -> None:
        """Delete instances, asking again for those that were not accepted, and wait until they are gone."""
        asked: set[str] = set()
        clock = self.harness.settings.clock
        end = clock.now() + self.harness.deadline
        while left := [instance for instance in instances if instance not in asked]:
            if clock.now() >= end:
                raise Violation("decrease accepts deletions sooner or later", f"it never accepted {left}")
            asked |= set(await self.group.decrease(left))
            await self.rest(self.harness.poll)
        await self.until(
            "an instance whose deletion was accepted leaves the view, or is reported deleted",
            lambda shown: not shown.keys() & set(instances),
        )

    async def tidy(self) -> None:
        """Delete what came since the group was opened, as far as it lets itself be deleted."""
        with suppress(ProviderError):
            if added := list(await self.added()):
                await self.group.decrease(added)

    def needs(self, capability: Capability) -> None:
        """End the check unless the group has the capability."""
        if capability not in self.info.capabilities:
            raise NotApplicable(f"the group does not claim {capability.name}")


def without(shown: Mapping[str, Observed], instances: Collection[str]) -> dict[str, Observed]:
    """What is shown, less these."""
    return {instance: each for instance, each in shown.items() if instance not in instances}


def describe(shown: Mapping[str, Observed]) -> str:
    """In words, such as ``i-1 running, i-2 creating``."""
    return ", ".join(f"{instance} {each.state.value}" for instance, each in shown.items()) or "no instances"


def new_intent() -> str:
    """An id for an intent that no other run of the suite has used."""
    return f"conformance-{uuid4().hex}"


async def fails(call: Awaitable[object]) -> ProviderError | None:
    """Await the call; returns the error with which it said no, or None if it did not."""
    try:
        await call
    except ProviderError as error:
        return error
    return None
