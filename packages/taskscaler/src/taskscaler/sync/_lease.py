"""A lease, for threads."""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Self, TypeVar, TypeVarTuple

import anyio
from attrs import frozen

import taskscaler
from fleeting import ConnectInfo, Duration
from fleeting.config import check
from fleeting.events import Loss
from taskscaler._errors import LeaseLost
from taskscaler._lease import only_unreachable
from taskscaler.sync._connection import Connection
from taskscaler.sync._portal import Portal

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@frozen(eq=False)
class Lease:
    """A slot that work may run in; `taskscaler.Lease` for threads."""

    _lease: taskscaler.Lease
    _portal: Portal

    def __repr__(self) -> str:
        """Key, instance and slot."""
        return repr(self._lease)

    @property
    def key(self) -> str:
        """What it was acquired under."""
        return self._lease.key

    @property
    def pool(self) -> str:
        """Name of the pool the instance belongs to."""
        return self._lease.pool

    @property
    def instance(self) -> str:
        """The instance's id."""
        return self._lease.instance

    @property
    def slot(self) -> int:
        """Number of the slot on its instance, from 0; no two leases hold the same one at a time."""
        return self._lease.slot

    @property
    def place(self) -> int:
        """Where in the scaler's queue it was served from; lower places are served first. See `acquire_lease`."""
        return self._lease.place

    @property
    def persistent(self) -> bool:
        """Whether it outlives the scaler; see `taskscaler.Taskscaler.acquire_lease`."""
        return self._lease.persistent

    @property
    def cut_off(self) -> bool:
        """Whether a connection to the instance died, or could not be made; see `taskscaler.Lease.cut_off`."""
        return self._lease.cut_off

    @property
    def trace_env(self) -> Mapping[str, str]:
        """The variables with which what runs in the slot joins the lease's trace; see `taskscaler.Lease.trace_env`."""
        return self._lease.trace_env

    @property
    def loss(self) -> Loss | None:
        """Why it was lost; None while it is held, and after a proper release."""
        return self._lease.loss

    def lost(self, timeout: float = math.inf) -> Loss | None:
        """Wait until the lease is lost.

        Args:
            timeout: Seconds to wait; 0 asks whether it is.

        Returns:
            Why it was lost; None if it was not in time, or was released.
        """

        async def wait() -> Loss | None:
            with anyio.move_on_after(timeout):
                return await self._lease.wait_ended()
            return self._lease.loss

        return self.loss if self._lease.ended else self._portal.call(wait)

    def connect_info(self) -> ConnectInfo:
        """How to connect to the instance; fetched again when credentials have expired."""
        return self.call(self._lease.connect_info)

    @contextmanager
    def dial(self) -> Iterator[Connection]:
        """Connect to the instance; leaving the context closes the connection."""
        with self._portal.held(self._lease.dial()) as connection:
            yield Connection(connection, self)

    @contextmanager
    def hold(self) -> Iterator[Self]:
        """Run a body, and release the lease after it.

        Raises:
            LeaseLost: On leaving, if the lease was lost. Any error of the body's wins, unless it only says that the
                instance cannot be reached.
        """
        try:
            yield self
        except Exception as error:
            if only_unreachable(error):
                self._raise_if_lost(error)
            raise
        else:
            self._raise_if_lost(None)
        finally:
            self.release()

    def release(self) -> None:
        """Give the slot back. Does nothing if it was released or lost before."""
        if not self._lease.ended:
            self._portal.do(self._lease.release)

    def mark_suspect(self, why: str) -> None:
        """Say that something is wrong with the instance, as `taskscaler.Lease.mark_suspect`."""
        if not self._lease.ended:
            self._portal.do(self._lease.mark_suspect, why)

    def suspend(self, ttl: float = math.inf) -> None:
        """Let the work sleep, as `taskscaler.Lease.suspend`."""
        check("ttl", ttl, Duration, least=0, endless=True)
        if not self._lease.ended:
            self._portal.do(self._lease.suspend, ttl)

    def suspend_again(self) -> None:
        """Undo `Taskscaler.resume`, as `taskscaler.Lease.suspend_again`."""
        if not self._lease.ended:
            self._portal.do(self._lease.suspend_again)

    def detach(self) -> None:
        """Let go of a persistent lease, as `taskscaler.Lease.detach`."""
        if not self._lease.ended:
            self._portal.do(self._lease.detach)

    def call(self, function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Wait for something that makes sense only while the lease is held; for `Connection`.

        Raises:
            LeaseLost: It was lost meanwhile.
        """

        async def unless_lost() -> T:
            async with self._lease.unless_lost():
                return await function(*args)

        return self._portal.call(unless_lost)

    def stay_in(self, manager: AbstractAsyncContextManager[T]) -> AbstractContextManager[T]:
        """Enter an asynchronous context, and leave it after the body; for `Connection`."""
        return self._portal.held(manager)

    def _raise_if_lost(self, error: Exception | None) -> None:
        if self.loss is not None:
            raise LeaseLost(self.key, self.instance, self.loss) from error
