"""The part of a fleet that one batch has, where several batches and programs share it."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio
from attrs import define, field, frozen

from taskscaler._errors import KeyInUse, NoCapacity, NoDaemon
from taskscaler._lease import Lease
from taskscaler.core._slots import DetachedLease
from taskscaler.diagnose._explain import Explanation

if TYPE_CHECKING:
    from taskscaler import remote

SUBMITTED = "batch:"
"""What the keys of all leases begin with of batches that the daemon owns: nobody else's do."""

RUN = "run:"
"""What those of batches begin with that a command runs on a daemon's fleet."""

PAUSE = 0.5
"""Seconds between two tries to have a key that an earlier command has not let go of yet."""

DRAINING_PAUSE = 2.0
"""Seconds between two looks at a daemon that drains, whether another one has come."""

T = TypeVar("T")


class Shared(Protocol):
    """The part of a `Taskscaler`, here or a daemon's, that this needs."""

    def acquire(
        self,
        key: str,
        *,
        timeout: float | None = None,
        expected_duration: float = math.inf,
        place: int | None = None,
        persistent: bool = False,
    ) -> AbstractAsyncContextManager[Lease]:
        """Hold a slot for the time of the context."""
        ...

    @property
    def detached(self) -> Sequence[DetachedLease]:
        """Leases that may be reattached."""
        ...

    async def reattach(self, key: str) -> Lease:
        """Take up one of them."""
        ...

    async def explain(self) -> Explanation:
        """Why there is what there is."""
        ...


@frozen
class _Kept:
    """A lease of the batch's that nobody holds."""

    key: str


@define(eq=False)
class Share:
    """A `Scaler` for one batch: its keys are the names of its jobs, and it sees and ends no lease of anybody else."""

    _scaler: Shared
    prefix: str
    """What the keys of its leases begin with: no other batch's of the fleet do, for good."""

    waiting: int = field(default=0, init=False)
    """How many of its jobs wait for a slot."""

    @asynccontextmanager
    async def acquire(
        self,
        key: str,
        *,
        timeout: float | None = None,
        expected_duration: float = math.inf,
        place: int | None = None,
        persistent: bool = False,
    ) -> AsyncIterator[Lease]:
        """Hold a slot, as `Taskscaler.acquire` does."""
        async with AsyncExitStack() as stack:

            async def get() -> Lease:
                return await stack.enter_async_context(
                    self._scaler.acquire(
                        f"{self.prefix}{key}",
                        timeout=timeout,
                        expected_duration=expected_duration,
                        place=place,
                        persistent=persistent,
                    )
                )

            self.waiting += 1
            try:
                lease = await self._get(get)
            finally:
                self.waiting -= 1
            yield lease

    @property
    def detached(self) -> Sequence[_Kept]:
        """Its leases that nobody has reattached."""
        mine = (lease.key for lease in self._scaler.detached if lease.key.startswith(self.prefix))
        return [_Kept(key.removeprefix(self.prefix)) for key in mine]

    async def reattach(self, key: str) -> Lease:
        """Take up one of them. Raises as `Taskscaler.reattach`."""
        return await self._get(lambda: self._scaler.reattach(f"{self.prefix}{key}"))

    async def explain(self) -> str:
        """Why there is no capacity."""
        return (await self._scaler.explain()).answer

    async def stop(self) -> None:
        """Do nothing: the batch ends its own leases and waits, and others' are not its business."""

    async def _get(self, get: Callable[[], Awaitable[T]]) -> T:
        """Get a lease."""
        return await get()


@define(eq=False)
class SubmittedShare(Share):
    """That of a batch which the daemon runs."""

    discreet: bool = field(default=False, kw_only=True)
    """Whether reasons are cut where they may name others' work."""

    @classmethod
    def of(cls, scaler: Shared, batch: str, *, discreet: bool = False) -> "SubmittedShare":
        """Make that of a batch, by its id."""
        return cls(scaler, f"{SUBMITTED}{batch}:", discreet=discreet)

    async def _get(self, get: Callable[[], Awaitable[T]]) -> T:
        """Get a lease, or learn discreetly why there is none."""
        try:
            return await get()
        except NoCapacity as error:
            if not self.discreet:
                raise
            why = str(error).partition("\n")[0]
            raise NoCapacity(why, possible=error.possible, capacity=error.capacity) from error


@define(eq=False)
class RunShare(Share):
    """That of a batch which a command runs on a daemon's fleet; it outlasts the daemon's restarts."""

    _daemon: "remote.Taskscaler" = field(kw_only=True)
    _looking: anyio.Lock = field(factory=anyio.Lock, init=False)
    _serving_at: float = field(default=-math.inf, init=False)
    """When a daemon was last seen that hands out slots, by the event loop's clock."""

    @classmethod
    def of(cls, daemon: "remote.Taskscaler", batch: str) -> "RunShare":
        """Make that of a batch, by its id."""
        return cls(daemon, f"{RUN}{batch}:", daemon=daemon)

    async def _get(self, get: Callable[[], Awaitable[T]]) -> T:
        """Get a lease: also if a command that was killed has the key a little longer, or the daemon is exchanged.

        Raises:
            NoCapacity: As usual; or because no daemon is there for too long.
        """
        try:
            while True:
                refused_at = anyio.current_time()
                try:
                    return await get()
                except KeyInUse:
                    await anyio.sleep(PAUSE)
                except NoCapacity:
                    if not await self._was_draining(refused_at):
                        raise
        except NoDaemon as error:
            raise NoCapacity(str(error)) from error

    async def _was_draining(self, asked_at: float) -> bool:
        """Wait until a daemon hands out slots again; says whether that made a difference. One looks for all."""
        async with self._looking:
            if self._serving_at > asked_at:
                return True
            drained = False
            while await self._daemon.is_draining():
                drained = True
                await anyio.sleep(DRAINING_PAUSE)
            if drained:
                self._serving_at = anyio.current_time()
            return drained
