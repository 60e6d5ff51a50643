"""A scaler over the fake cloud in virtual time, and jobs for it: what tests of the scaler share."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import anyio

from fleeting import Connection, JournalError, LoopClock, MemoryJournal, Unreachable
from fleeting.core import Write
from fleeting.testing import FakeCloud, FakeGroup
from taskscaler import Policy, Pool, ScalerObserver, Taskscaler

EPOCH = 1_700_000_000.0


@asynccontextmanager
async def in_vain(*_: object) -> AsyncIterator[Connection]:
    """Dial, for as long as an instance may take to come up."""
    await anyio.sleep(600)
    raise Unreachable("could not be reached within 600 s")
    yield


@asynccontextmanager
async def scaling(
    cloud: FakeCloud,
    *,
    policies: Sequence[Policy] = (),
    journal: MemoryJournal | None = None,
    delete: bool = False,
    keep_used: bool = False,
    acquire_timeout: float = 900.0,
    reattach_timeout: float = 600.0,
    observers: Sequence[ScalerObserver] = (),
    **settings: object,
) -> AsyncIterator[Taskscaler]:
    """A scaler over one pool on the cloud."""
    group = FakeGroup(cloud)
    pool = Pool(group, **{"dial": group.dial, **settings})  # type: ignore[arg-type]
    async with Taskscaler(
        pool,
        policies=policies,
        journal=journal,
        delete_instances_on_shutdown=delete,
        keep_instance_with_acquisitions=keep_used,
        acquire_timeout=acquire_timeout,
        reattach_timeout=reattach_timeout,
        observers=observers,
        clock=virtual_clock(),
        random=Random(len(cloud.calls)).random,  # another for each manager: intents are named by it
    ) as scaler:
        yield scaler


class FullDisk(MemoryJournal):
    """A journal that can be told to fail."""

    full = False

    async def commit(self, writes: Sequence[Write]) -> None:
        """Fail while the disk is full."""
        if self.full:
            raise JournalError("no space left on device")
        await super().commit(writes)


def virtual_clock() -> LoopClock:
    """One that goes on where that of an earlier scaler of the same test was."""
    return LoopClock(epoch=EPOCH + anyio.current_time())


def asked(cloud: FakeCloud) -> list[int]:
    """How many instances the cloud was asked for, request by request."""
    return [int(str(call.arguments["count"])) for call in cloud.calls if call.method == "increase"]


async def work(scaler: Taskscaler, key: str, seconds: float, seen: list[str] | None = None) -> None:
    """Hold a slot for some time."""
    async with scaler.acquire(key) as lease:
        if seen is not None:
            seen.append(lease.instance)
        await anyio.sleep(seconds)
