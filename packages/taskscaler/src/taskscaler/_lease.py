"""A lease: one slot on one instance, held until it is released or lost."""

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, Self

import anyio

from fleeting import ConnectInfo, Connection, Duration, Unreachable
from fleeting.config import check
from fleeting.events import Loss
from fleeting.plugins import one_line
from taskscaler._errors import LeaseLost, TaskscalerError
from taskscaler._tracer import Trace
from taskscaler.core._slots import LeaseId

VERDICT_TIMEOUT = 30.0
"""Seconds for which a body that failed with `Unreachable` waits to hear whether its instance is lost."""


def only_unreachable(error: Exception) -> bool:
    """Whether an error, or every error of a group, says that an instance could not be reached."""
    if isinstance(error, ExceptionGroup):
        return error.split(Unreachable)[1] is None
    return isinstance(error, Unreachable)


class LeaseState:
    """What a lease and its scaler share: the ledger's side, and how the lease stands."""

    def __init__(self, id_: LeaseId, place: int, *, persistent: bool = False) -> None:
        """Held from now on."""
        self.id = id_
        """Names it for good: its key may be used again once it has ended."""

        self.place = place
        """Where in the queue it was served from."""

        self.persistent = persistent
        """Whether it outlives its manager."""

        self.trace: Trace | None = None
        """What follows it; None: nothing does."""

        self.is_traced_alone = False
        """Whether that trace is of nothing but this lease."""

        self.ended = False
        self.loss: Loss | None = None
        self.unhealthy = ""
        """Why the instance is unhealthy; empty if it is not, as far as is known."""

        self.cut_off = False
        """Whether a connection to the instance died, or could not be made."""

        self.out_of_reach = False
        """Whether somebody has dialled the unhealthy instance for as long as that is worth it."""

        self.bodies: set[anyio.CancelScope] = set()
        """Cancelled when the lease is lost."""

        self.dials: set[anyio.CancelScope] = set()
        """Cancelled when the instance turns out unhealthy."""

        self._news: anyio.Event | None = None
        """Set when it ends or the instance is unhealthy; made by those who wait, which most leases never see."""

    async def wait_for_news(self) -> None:
        """Wait until the lease ends, or its instance is unhealthy."""
        if self._news is None:
            self._news = anyio.Event()
        await self._news.wait()

    async def wait_ended(self) -> Loss | None:
        """Wait until the lease is released, suspended or lost; returns why it was lost, None if it was not."""
        while not self.ended:
            await self.wait_for_news()
        return self.loss

    def end(self, loss: Loss | None = None) -> bool:
        """End the lease, and cancel what relies on it if it is lost; False: it has ended before."""
        if self.ended:
            return False
        self.ended = True
        self.loss = loss
        self._announce()
        if loss is not None:
            for body in self.bodies:
                body.cancel()
        return True

    def mark_unhealthy(self, why: str) -> None:
        """What waits for a connection to the instance waits no more."""
        self.unhealthy = why
        self._announce()
        for dial in self.dials:
            dial.cancel()

    def _announce(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None


class LeaseOwner(Protocol):
    """What a lease needs of its scaler."""

    def release(self, id_: LeaseId) -> None:
        """Take the slot back."""
        ...

    def suspend(self, id_: LeaseId, ttl: float | None) -> None:
        """Keep the slot, for nobody to use until the lease is resumed, or for so long; None: for as long as before."""
        ...

    def detach(self, id_: LeaseId) -> None:
        """Keep the slot and what runs there, until the lease is reattached or the time for that has passed."""
        ...

    def mark_unreachable(self, id_: LeaseId, why: str) -> None:
        """The instance is unhealthy, and cannot be reached: take the slot away."""
        ...

    def mark_suspect(self, id_: LeaseId, why: str) -> None:
        """Something is wrong with the instance, although the cloud shows it: it gets no new work."""
        ...

    def note_death(self, state: LeaseState, why: str) -> None:
        """A connection to the instance died, or could not be made."""
        ...

    async def connect_info(self, id_: LeaseId) -> ConnectInfo:
        """How to connect to the instance."""
        ...

    def dial(self, state: LeaseState) -> AbstractAsyncContextManager[Connection]:
        """Connect to the instance."""
        ...


def inside(lease: "Lease") -> tuple[LeaseState, LeaseOwner]:
    """Give what a lease is made of, to the daemon, which does for its clients what leases do here."""
    return lease._state, lease._owner  # noqa: SLF001  (this module's own)


class Lease:
    """A slot that work may run in. Made by `Taskscaler.acquire_lease`; may outlive any scope."""

    def __init__(self, state: LeaseState, owner: LeaseOwner) -> None:
        """Wrap what is shared with the scaler."""
        self._state = state
        self._owner = owner

    def __repr__(self) -> str:
        """Key, instance and slot."""
        return f"<Lease {self.key} on {self.instance} slot {self.slot}>"

    @property
    def key(self) -> str:
        """What it was acquired under."""
        return self._state.id.key

    @property
    def pool(self) -> str:
        """Name of the pool the instance belongs to."""
        return self._state.id.pool

    @property
    def instance(self) -> str:
        """The instance's id."""
        return self._state.id.instance

    @property
    def slot(self) -> int:
        """Number of the slot on its instance, from 0; no two leases hold the same one at a time."""
        return self._state.id.slot

    @property
    def place(self) -> int:
        """Where in the scaler's queue it was served from; lower places are served first. See `acquire_lease`."""
        return self._state.place

    @property
    def persistent(self) -> bool:
        """Whether it outlives the scaler; see `acquire_lease`."""
        return self._state.persistent

    @property
    def cut_off(self) -> bool:
        """Whether a connection to the instance died, or could not be made; then the scaler finds out what is wrong.

        Work that finds nobody to answer although its connection lives has to say so: see `mark_suspect`.
        """
        return self._state.cut_off

    @property
    def trace_env(self) -> Mapping[str, str]:
        """The variables with which what runs in the slot joins the trace that this lease is in, as W3C names it.

        ``TRACEPARENT``, and ``TRACESTATE`` if there is one; empty: nothing follows it, see
        `taskscaler.observers.traces`.
        """
        return {} if self._state.trace is None else self._state.trace.env

    async def connect_info(self) -> ConnectInfo:
        """How to connect to the instance; fetched again when credentials have expired.

        Raises:
            Unreachable: It cannot be found out.
        """
        return await self._owner.connect_info(self._state.id)

    def dial(self) -> AbstractAsyncContextManager[Connection]:
        """Connect to the instance; leaving the context closes the connection."""
        return self._owner.dial(self._state)

    @property
    def loss(self) -> Loss | None:
        """Why it was lost; None while it is held, and after a proper release."""
        return self._state.loss

    @property
    def ended(self) -> bool:
        """Whether it was released, suspended, detached or lost."""
        return self._state.ended

    async def wait_ended(self) -> Loss | None:
        """Wait until the lease is released, suspended, detached or lost.

        Returns:
            Why it was lost; None if it was not.
        """
        return await self._state.wait_ended()

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
            LeaseLost: On leaving, if the body was cut short by the loss, even if its clean-up failed then. An outer
                cancellation wins.
        """
        body = anyio.CancelScope()
        try:
            with body:
                self._state.bodies.add(body)
                if self.loss is not None:  # while the lease was on its way to its holder
                    body.cancel()
                try:
                    yield
                except Exception as error:
                    self._state.bodies.discard(body)  # the loss is waited for now, and must not cut the waiting short
                    await self._raise_if_lost(error)
                    raise
                finally:
                    self._state.bodies.discard(body)
        except Exception as error:  # what a body raises that was cut short comes from its clean-up
            if body.cancel_called and self.loss is not None and not isinstance(error, LeaseLost):
                raise LeaseLost(self.key, self.instance, self.loss) from error
            raise
        if body.cancelled_caught and self.loss is not None:
            raise LeaseLost(self.key, self.instance, self.loss)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Self]:
        """Run a body as `unless_lost` does, and release the lease after it."""
        try:
            async with self.unless_lost():
                yield self
        finally:
            self.release()

    async def _raise_if_lost(self, error: Exception) -> None:
        """Wait for the verdict on an instance that was cut off; one that is not lost is suspect."""
        state = self._state
        if state.cut_off and only_unreachable(error):
            with anyio.move_on_after(VERDICT_TIMEOUT):
                while not (state.ended or state.unhealthy):
                    await state.wait_for_news()
                if state.unhealthy:
                    self._owner.mark_unreachable(state.id, state.unhealthy)
                    await state.wait_ended()
            if self.loss is not None:
                raise LeaseLost(self.key, self.instance, self.loss) from error
            self._owner.mark_suspect(state.id, "it could not be reached")

    def release(self) -> None:
        """Give the slot back. Returns at once; does nothing if it was released or lost before."""
        if self._state.end():
            self._owner.release(self._state.id)

    def mark_suspect(self, why: str) -> None:
        """Say that something is wrong with the instance: it gets no new work, and is replaced once it is free.

        The lease itself stays held. Does nothing after it was released or lost.

        Args:
            why: In a few words.
        """
        if not self._state.ended:
            self._owner.mark_suspect(self._state.id, one_line(why))

    def suspend(self, ttl: float = math.inf) -> None:
        """Let the work sleep: the slot stays kept, out of the scaling maths, also over restarts. Returns at once.

        This lease has ended then; `Taskscaler.resume` with its key gives a new one for the same slot. Does
        nothing if it was released or lost before.

        Args:
            ttl: Seconds for which the slot is kept, by the wall clock, so that the time without a manager counts, too.
                Once they are over, the slot is freed as if it had been released, and `resume` raises `LeaseExpired`.
                Somebody who waits in `resume` has come in time. Infinite, or more than a hundred years: for ever.
        """
        check("ttl", ttl, Duration, least=0, endless=True)
        if self._state.end():
            self._owner.suspend(self._state.id, ttl)

    def suspend_again(self) -> None:
        """Undo `Taskscaler.resume`: the work sleeps as before, and expires when it would have; see `suspend`."""
        if self._state.end():
            self._owner.suspend(self._state.id, None)

    def detach(self) -> None:
        """Let go of a persistent lease, and keep its slot and what runs there, as when its scaler ends.

        Returns at once. This lease has ended then; `Taskscaler.reattach` with its key gives a new one for the same
        slot, within the scaler's `reattach_timeout`. Does nothing if it was released or lost before.

        Raises:
            TaskscalerError: It is not persistent.
        """
        if not self.persistent:
            raise TaskscalerError(f"the lease of {self.key!r} is not persistent; acquire it with persistent=True")
        if self._state.end():
            self._owner.detach(self._state.id)
