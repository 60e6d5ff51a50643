"""A lease: one slot on one instance, held until it is released or lost."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, Self

import anyio

from fleeting import ConnectInfo, Connection, Unreachable
from fleeting.events import Loss, LossKind
from fleeting.plugins import one_line
from taskscaler._errors import LeaseLost
from taskscaler.core._slots import Held

VERDICT_TIMEOUT = 30.0
"""Seconds for which a body that failed with `Unreachable` waits to hear whether its instance is lost."""


def only_unreachable(error: Exception) -> bool:
    """Whether an error, or every error of a group, says that an instance could not be reached."""
    if isinstance(error, ExceptionGroup):
        return error.split(Unreachable)[1] is None
    return isinstance(error, Unreachable)


class LeaseOwner(Protocol):
    """What a lease needs of its scaler."""

    def release(self, lease: "Lease") -> None:
        """Take the slot back."""
        ...

    def suspend(self, lease: "Lease") -> None:
        """Keep the slot, for nobody to use until the lease is resumed."""
        ...

    def forsake(self, lease: "Lease", loss: Loss) -> None:
        """The instance is unhealthy, and cannot be reached: take the slot away."""
        ...

    def distrust(self, lease: "Lease", why: str) -> None:
        """The instance behaves as none that is in order does, although the cloud shows it."""
        ...

    async def connect_info(self, lease: "Lease") -> ConnectInfo:
        """How to connect to the instance."""
        ...

    def dial(self, lease: "Lease") -> AbstractAsyncContextManager[Connection]:
        """Connect to the instance."""
        ...


class Lease:
    """A slot that work may run in. Made by `Taskscaler.acquire_lease`; may outlive any scope."""

    def __init__(self, held: Held, owner: LeaseOwner) -> None:
        """Wrap the ledger's side of the lease."""
        self.held = held
        """The ledger's side; not for users."""

        self._owner = owner
        self._ended = anyio.Event()
        self._bodies: set[anyio.CancelScope] = set()
        self._doubted = anyio.Event()
        self._doubt = ""
        self._dials: set[anyio.CancelScope] = set()
        self.cut_off = False
        """Whether a connection to the instance died, or could not be made."""

        self.loss: Loss | None = None
        """Why it was lost; None while it is held, and after a proper release."""

    def __repr__(self) -> str:
        """Key, instance and slot."""
        return f"<Lease {self.key} on {self.instance} slot {self.slot}>"

    @property
    def key(self) -> str:
        """What it was acquired under."""
        return self.held.key

    @property
    def pool(self) -> str:
        """Name of the pool the instance belongs to."""
        return self.held.host.pool

    @property
    def instance(self) -> str:
        """The instance's id."""
        return self.held.host.instance

    @property
    def slot(self) -> int:
        """Number of the slot on its instance, from 0; no two leases hold the same one at a time."""
        return self.held.slot

    async def connect_info(self) -> ConnectInfo:
        """How to connect to the instance; fetched again when credentials have expired.

        Raises:
            Unreachable: It cannot be told.
        """
        return await self._owner.connect_info(self)

    def dial(self) -> AbstractAsyncContextManager[Connection]:
        """Connect to the instance; leaving the context closes the connection."""
        return self._owner.dial(self)

    @property
    def ended(self) -> bool:
        """Whether it was released, suspended or lost."""
        return self._ended.is_set()

    async def wait_ended(self) -> Loss | None:
        """Wait until the lease is released, suspended or lost.

        Returns:
            Why it was lost; None if it was not.
        """
        await self._ended.wait()
        return self.loss

    async def lost(self) -> Loss:
        """Wait until the lease is lost. Returns never if it is released before."""
        loss = await self.wait_ended()
        while loss is None:
            await anyio.sleep_forever()
        return loss

    @asynccontextmanager
    async def unless_lost(self) -> AsyncIterator[None]:
        """Run a body that is cancelled when the lease is lost.

        A body that fails because its connection died waits a little to hear whether the instance is lost.

        Raises:
            LeaseLost: On leaving, if the body was cut short by the loss. A cancellation from outside wins.
        """
        with anyio.CancelScope() as body:
            self._bodies.add(body)
            if self.loss is not None:  # while the lease was on its way to its holder
                body.cancel()
            try:
                yield
            except Exception as error:
                self._bodies.discard(body)  # the loss is waited for now, and must not cut the waiting short
                await self._raise_if_lost(error)
                raise
            finally:
                self._bodies.discard(body)
        if body.cancelled_caught and self.loss is not None:
            raise LeaseLost(self.key, self.instance, self.loss)

    @asynccontextmanager
    async def unless_doubted(self) -> AsyncIterator[Callable[[], None]]:
        """Run a body that dials, and is cancelled if the instance turns out unhealthy before it says that it connected.

        Yields what the body says so with: from then on it is safe. On an instance that is in doubt already it has
        some time, for one that only fails its heartbeats may be reached all the same.

        Raises:
            Unreachable: On leaving, if the body was cancelled.
        """
        with anyio.CancelScope() as dial:

            def connected() -> None:
                self._dials.discard(dial)
                dial.deadline = math.inf

            if self._doubted.is_set():
                dial.deadline = anyio.current_time() + VERDICT_TIMEOUT
            self._dials.add(dial)
            try:
                yield connected
            finally:
                self._dials.discard(dial)
        if dial.cancelled_caught:
            self.cut_off = True
            raise Unreachable(f"{self.instance} is unhealthy, and could not be connected to")

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Self]:
        """Run a body as `unless_lost` does, and release the lease after it."""
        try:
            async with self.unless_lost():
                yield self
        finally:
            self.release()

    async def _raise_if_lost(self, error: Exception) -> None:
        """Wait for the verdict on an instance that was cut off; one that is not lost is not trusted any more."""
        if self.cut_off and only_unreachable(error):
            with anyio.move_on_after(VERDICT_TIMEOUT):
                await self._verdict()
                if self._doubted.is_set():
                    self._owner.forsake(self, Loss(LossKind.UNHEALTHY, self._doubt))
                    await self._ended.wait()
            if self.loss is not None:
                raise LeaseLost(self.key, self.instance, self.loss) from error
            self._owner.distrust(self, "it could not be reached")

    async def _verdict(self) -> None:
        """Wait until the lease is lost, or is not to be relied on any more."""
        async with anyio.create_task_group() as tasks:

            async def wait(event: "anyio.Event") -> None:
                await event.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait, self._ended)
            tasks.start_soon(wait, self._doubted)

    def release(self) -> None:
        """Give the slot back. Does nothing if it was released or lost before."""
        if not self._ended.is_set():
            self._ended.set()
            self._owner.release(self)

    def mark_suspect(self, why: str) -> None:
        """Say that something is wrong with the instance: it gets no new work, and is replaced once it is free.

        The lease itself stays held. Does nothing after it was released or lost.

        Args:
            why: In a few words.
        """
        if not self._ended.is_set():
            self._owner.distrust(self, one_line(why))

    def suspend(self) -> None:
        """Let the work sleep: the slot stays kept, out of the scaling maths, also over restarts.

        This lease has ended then; `Taskscaler.resume` with its key gives a new one for the same slot. Does
        nothing if it was released or lost before.
        """
        if not self._ended.is_set():
            self._ended.set()
            self._owner.suspend(self)

    def doubt(self, why: str) -> None:
        """The instance is unhealthy: what waits for a connection to it waits no more. Called by the scaler."""
        self._doubt = why
        self._doubted.set()
        for dial in self._dials:
            dial.cancel()

    def lose(self, loss: Loss) -> None:
        """The slot is gone: the holder is told, what runs under `unless_lost` cancelled. Called by the scaler."""
        if not self._ended.is_set():
            self.loss = loss
            self._ended.set()
            for body in self._bodies:
                body.cancel()
