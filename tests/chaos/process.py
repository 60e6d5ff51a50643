"""A manager's process, which can be killed: its hold on journal and cloud ends at one instant.

What `Life.kill` does is what ``kill -9`` does: of what the manager was about to do nothing happens any more. Its
tasks are cancelled and run their clean-up code, but every call of its group and journal fails without effect.
Requests that were on their way reach the cloud or do not, as it falls out; their answers reach nobody.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Self, TypeVar

import anyio
from anyio.abc import TaskGroup
from attrs import Factory, define

from fleeting import JournalError, Notice, Observation, OutcomeUnknown, Unreachable
from fleeting.core import Put, Write
from fleeting.journal import Recovered
from fleeting.testing import FakeGroup, Fault
from fleeting.testing._faults import Script
from fleeting.testing._machine import Method
from taskscaler import Taskscaler
from tests.chaos.observer import Observer
from tests.chaos.repeatable import InOrder
from tests.chaos.story import CrashPoint

F = TypeVar("F", bound=Fault)


class Killed(OutcomeUnknown, JournalError):
    """Meets the clean-up code of a dead manager wherever it reaches out."""


class Life:
    """One process, from its start to its death or its orderly end."""

    scaler: Taskscaler

    def __init__(self, number: int, random: Random, places: Counter[str], crash: CrashPoint | None) -> None:
        """Begin.

        Args:
            number: The so-manieth of its story, from 1.
            random: Decides which requests of a dead process still arrive.
            places: Counts where managers of the story came by, over all lives.
            crash: Where to die, if that is settled.
        """
        self.number = number
        self.dead = False
        self.death = ""
        self.over = anyio.Event()
        self.leave = anyio.Event()
        self.jobs: TaskGroup | None = None
        """In which jobs are brought, once it can be given any."""

        self.scope = anyio.CancelScope()
        self.calls: InOrder[anyio.CancelScope] = InOrder()
        self.on_death: Callable[[Life], None] = lambda _: None
        self.lethal: tuple[str, bool] | None = None
        """A place, and whether it dies after or before what it does there, the next time that it comes by."""

        self._random = random
        self._places = places
        self._crash = crash

    def pass_by(self, place: str, *, after: bool) -> None:
        """Come by a place; raises `Killed` if the process is dead, or dies there."""
        if self.dead:
            raise Killed(f"process {self.number} is dead")
        self._places[place] += not after
        here = (place, after)
        crash = self._crash
        if self.lethal == here or (
            crash and (crash.place, crash.after) == here and crash.number == self._places[place]
        ):
            self.kill(f"{'after' if after else 'before'} {place}")
            raise Killed(f"process {self.number} was killed")

    def kill(self, how: str) -> None:
        """Die at once."""
        self.dead = True
        self.death = how
        for call in list(self.calls):
            if self._random.random() < 0.5:
                call.cancel()
        self.on_death(self)
        self.scope.cancel()
        self.over.set()


@define(eq=False)
class Disk:
    """What outlives all managers of a story: the journal's records, and the trouble with storing them."""

    records: dict[str, dict[str, Any]] = Factory(dict)
    epoch: int = 0
    full: bool = False
    commit_time: float = 0.0
    on_storing: Callable[[Sequence[Write]], None] = lambda _: None
    """Told what is about to be stored."""

    on_commit: Callable[[Sequence[Write]], None] = lambda _: None
    refused: Callable[[], None] = lambda: None


class MortalJournal:
    """One process's access to the disk."""

    def __init__(self, life: Life, disk: Disk) -> None:
        """Open nothing yet."""
        self._life = life
        self._disk = disk

    @property
    def place(self) -> str:
        """The same for all managers of a story: they are one to the cloud."""
        return "the disk"

    async def open(self, identities: Sequence[str], owner: str, kinds: Mapping[str, type]) -> Recovered:
        """Read what there is; the lock of a dead process is no obstacle."""
        self._life.pass_by("open", after=False)
        self._disk.epoch += 1
        records = {kind: dict(self._disk.records.get(kind, {})) for kind in kinds}
        return Recovered(epoch=self._disk.epoch, records=records)

    async def commit(self, writes: Sequence[Write]) -> None:
        """Store them, if the process lives and the disk has room."""
        self._life.pass_by("commit", after=False)
        self._disk.on_storing(writes)
        await anyio.sleep(self._disk.commit_time)
        if self._life.dead:
            raise Killed("too late")
        if self._disk.full:
            self._disk.refused()
            raise JournalError("no space left on device")
        for write in writes:
            kept = self._disk.records.setdefault(write.kind, {})
            if isinstance(write, Put):
                kept[write.key] = write.record
            else:
                kept.pop(write.key, None)
        self._disk.on_commit(writes)
        self._life.pass_by("commit", after=True)

    async def close(self) -> None:
        """Nothing to give up."""


class MortalGroup(FakeGroup):
    """One process's access to the cloud, under the observer's eyes."""

    def __init__(self, life: Life, observer: Observer) -> None:
        """Open nothing yet."""
        super().__init__(observer.cloud)
        self._life = life
        self._observer = observer

    async def update(self) -> Observation:
        """Note which view the manager was given."""
        view = await super().update()
        self._observer.view_given(self._life, view)
        return view

    async def increase(self, count: int, *, intent: str) -> int:
        """Check the ceiling before anything happens."""
        if self._life.dead:
            raise Killed("dead processes ask for nothing")
        with self._observer.increasing(self._life, count, intent):
            return await super().increase(count, intent=intent)

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        """Check that nothing runs there."""
        if self._life.dead:
            raise Killed("dead processes delete nothing")
        self._observer.decreasing(instances)
        return await super().decrease(instances)

    async def suspend(self, instances: Sequence[str]) -> Sequence[str]:
        """Check that nothing runs there."""
        if self._life.dead:
            raise Killed("dead processes suspend nothing")
        self._observer.suspending(instances)
        return await super().suspend(instances)

    async def resume(self, instances: Sequence[str]) -> Sequence[str]:
        """Only while the process lives."""
        if self._life.dead:
            raise Killed("dead processes resume nothing")
        return await super().resume(instances)

    async def heartbeat(self, instance: str) -> None:
        """Note when an instance showed that it lives."""
        await super().heartbeat(instance)
        self._observer.beat(self._life, instance)

    async def shutdown(self) -> None:
        """A dead process closes nothing."""
        if not self._life.dead:
            await super().shutdown()

    def notices(self) -> AsyncIterator[Notice]:
        """As they come."""
        if self._life.dead:
            raise Killed("a dead process hears nothing")
        return _Heard(super().notices(), self._life, self._observer)

    @asynccontextmanager
    async def _call(self, method: Method, script: Script[F], **arguments: object) -> AsyncIterator[F]:
        """Reach the cloud while the process lives; what is on its way at its death may still arrive."""
        self._life.pass_by(method, after=False)
        with anyio.CancelScope() as scope:
            self._life.calls.add(scope)
            try:
                async with super()._call(method, script, **arguments) as fault:
                    yield fault
            except Unreachable:
                self._observer.connection_died(str(arguments["instance"]))
                raise
            finally:
                self._life.calls.discard(scope)
        self._life.pass_by(method, after=True)


@define
class _Heard:
    """Notices, noted as they reach the manager. No generator: those have to be closed by whoever stops listening."""

    _notices: AsyncIterator[Notice]
    _life: Life
    _observer: Observer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Notice:
        notice = await anext(self._notices)
        self._observer.hear(self._life, notice)
        return notice
