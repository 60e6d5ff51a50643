"""The scaler, for threads."""

import math
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, Self, overload

from anyio.from_thread import start_blocking_portal

import taskscaler
from fleeting import GroupInfo
from fleeting.config import check
from taskscaler._arguments import refuse_with
from taskscaler._attempts import Tries
from taskscaler._errors import TaskscalerError
from taskscaler._types import Policy
from taskscaler.core._slots import Capacity, DetachedLease
from taskscaler.diagnose._explain import Explanation, InstanceView
from taskscaler.diagnose._explain_instance import InstanceExplanation
from taskscaler.diagnose._explain_key import KeyExplanation
from taskscaler.sync._attempts import Attempt, Attempts
from taskscaler.sync._lease import Lease
from taskscaler.sync._portal import Portal

if TYPE_CHECKING:
    from taskscaler import remote

P = ParamSpec("P")


def connect(
    socket: str | os.PathLike[str] | None = None,
    *,
    ttl: float = 30.0,
    patience: float = 300.0,
    token_file: str | os.PathLike[str] | None = None,
) -> "Taskscaler":
    """Use the fleet of a daemon. Arguments and errors are those of `taskscaler.remote.connect`."""
    from taskscaler import remote  # needs what only some have installed

    return Taskscaler.of(remote.connect(socket, ttl=ttl, patience=patience, token_file=token_file))


def _like(
    _: Callable[Concatenate[taskscaler.Taskscaler, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate["Taskscaler", P], None]]:
    """Give a constructor the arguments of the asynchronous one's."""
    return lambda constructor: constructor


class Taskscaler:
    """Hands out slots on instances; `taskscaler.Taskscaler` for threads.

    A context manager; entered once. Leaving it breaks what leases are still held (`drain` first to let work end),
    deletes the instances unless a journal remembers them, and closes the groups; so does an interrupt.
    """

    backend: str = "asyncio"
    """On which event loop it runs, ``asyncio`` or ``trio``; to be set before it is entered."""

    @_like(taskscaler.Taskscaler.__init__)
    def __init__(self, *args: Any, **settings: Any) -> None:  # noqa: ANN401  (the signature is the other's)
        """Prepare; nothing is opened yet. Arguments are those of `taskscaler.Taskscaler`."""
        self._wrap(taskscaler.Taskscaler(*args, **settings))

    @classmethod
    def of(cls, scaler: "taskscaler.Taskscaler | remote.Taskscaler") -> Self:
        """Make one of an asynchronous scaler that is not open, as `taskscaler.config` and `remote.connect` give it."""
        self = cls.__new__(cls)
        self._wrap(scaler)
        return self

    def _wrap(self, scaler: "taskscaler.Taskscaler | remote.Taskscaler") -> None:
        self.scaler = scaler
        """The asynchronous one, for those who build on it: to be used in its own event loop only."""

        self._open: Portal | None = None

    # --- slots -------------------------------------------------------------------------------------------

    def acquire_lease(
        self,
        key: str,
        *,
        timeout: float | None = None,
        expected_duration: float = math.inf,
        place: int | None = None,
        persistent: bool = False,
        pools: Sequence[str] | None = None,
    ) -> Lease:
        """Wait for a slot. Arguments and errors are those of `taskscaler.Taskscaler.acquire_lease`."""

        async def acquire() -> Lease:
            lease = await self.scaler.acquire_lease(
                key,
                timeout=timeout,
                expected_duration=expected_duration,
                place=place,
                persistent=persistent,
                pools=pools,
            )
            return Lease(lease, self.portal)

        return self.portal.call(acquire, undo=Lease.release)

    @contextmanager
    def acquire(
        self,
        key: str,
        *,
        timeout: float | None = None,
        expected_duration: float = math.inf,
        place: int | None = None,
        persistent: bool = False,
        pools: Sequence[str] | None = None,
    ) -> Iterator[Lease]:
        """Hold a slot for as long as the body runs. Arguments and errors are those of `acquire_lease`.

        Raises:
            LeaseLost: The instance was lost. Nobody can break the body off, but what it waits for on a connection
                ends, and leaving raises in any case.
        """
        lease = self.acquire_lease(
            key,
            timeout=timeout,
            expected_duration=expected_duration,
            place=place,
            persistent=persistent,
            pools=pools,
        )
        with lease.hold():
            yield lease

    def resume(self, key: str, *, timeout: float = math.inf) -> Lease:
        """Take up a lease that was suspended. Arguments and errors are those of `taskscaler.Taskscaler.resume`."""

        async def resume() -> Lease:
            return Lease(await self.scaler.resume(key, timeout=timeout), self.portal)

        return self.portal.call(resume, undo=Lease.suspend_again)

    @property
    def detached(self) -> Sequence[DetachedLease]:
        """Persistent leases that an earlier scaler left, and that nobody has reattached yet; oldest first."""
        return self.portal.do(lambda: self.scaler.detached)

    def reattach(self, key: str, *, timeout: float = math.inf) -> Lease:
        """Take up a persistent lease. Arguments and errors are those of `taskscaler.Taskscaler.reattach`."""

        async def reattach() -> Lease:
            return Lease(await self.scaler.reattach(key, timeout=timeout), self.portal)

        return self.portal.call(reattach, undo=Lease.detach)

    def keep(self, lease: Lease, *, ttl: float | None = None, idle_timeout: float | None = None) -> None:
        """Have a lease outlive this program and the daemon. Arguments and errors are those of `remote.Taskscaler.keep`.

        Raises:
            TaskscalerError: The fleet is this program's own.
        """
        check("lease", lease, Lease)
        if isinstance(self.scaler, taskscaler.Taskscaler):
            raise TaskscalerError(
                "only a daemon keeps leases for a bound; use taskscaler.sync.connect(), or acquire a persistent lease"
            )
        kept = lease._lease  # noqa: SLF001  (this package's own)
        self.portal.call(partial(self.scaler.keep, kept, ttl=ttl, idle_timeout=idle_timeout))

    def replace(self, key: str, *, why: str = "", timeout: float | None = None) -> Lease:
        """Give a lease's slot back for one on another instance, as `taskscaler.Taskscaler.replace`."""

        async def replace() -> Lease:
            return Lease(await self.scaler.replace(key, why=why, timeout=timeout), self.portal)

        return self.portal.call(replace, undo=Lease.release)

    def attempts(
        self, key: str, *, tries: int = 3, timeout: float | None = None, expected_duration: float = math.inf
    ) -> Attempts:
        """Try a body on another instance each time that it loses one.

        ::

            for attempt in scaler.attempts("job-1"):
                with attempt as lease:
                    ...

        Arguments and errors are those of `taskscaler.Taskscaler.attempts`.
        """

        def make(number: int, is_last: bool) -> Attempt:  # noqa: FBT001  (for `Tries` alone)
            acquired = self.acquire(key, timeout=timeout, expected_duration=expected_duration)
            return Attempt(key, number, acquired, is_last=is_last)

        return Attempts(Tries(make, tries))

    def reserve(self, key: str, *, timeout: float | None = None) -> None:
        """Keep a slot for an acquire to come. Arguments and errors are those of `taskscaler.Taskscaler.reserve`."""
        self.portal.call(partial(self.scaler.reserve, key, timeout=timeout), undo=lambda _: self.unreserve(key))

    def unreserve(self, key: str) -> None:
        """Give a reservation up; nothing happens if there is none."""
        self.portal.call(self.scaler.unreserve, key)

    def cordon(self, instance: str, why: str = "") -> None:
        """Give an instance no new work. Arguments and errors are those of `taskscaler.Taskscaler.cordon`."""
        self.portal.call(self.scaler.cordon, instance, why)

    def uncordon(self, instance: str) -> None:
        """Give it work again."""
        self.portal.call(self.scaler.uncordon, instance)

    def retain(self, instance: str, why: str = "") -> None:
        """Do not delete an instance. Arguments and errors are those of `taskscaler.Taskscaler.retain`."""
        self.portal.call(self.scaler.retain, instance, why)

    def unretain(self, instance: str) -> None:
        """Let it be deleted."""
        self.portal.call(self.scaler.unretain, instance)

    def configure(self, *, policies: Sequence[Policy]) -> None:
        """Change the policies while running."""
        self.portal.call(partial(self.scaler.configure, policies=policies))

    # --- looking -----------------------------------------------------------------------------------------

    def capacity(self) -> Capacity:
        """Slots by state, and who waits."""
        return self.portal.call(self.scaler.capacity)

    def instances(self) -> Sequence[InstanceView]:
        """All known instances, oldest first, for people to look at."""
        return self.portal.call(self.scaler.instances)

    @property
    def delete_instances_on_shutdown(self) -> bool:
        """Whether leaving the scaler removes every instance, as `taskscaler.Taskscaler` has it."""
        return self.scaler.delete_instances_on_shutdown

    @delete_instances_on_shutdown.setter
    def delete_instances_on_shutdown(self, delete: bool) -> None:
        self.scaler.delete_instances_on_shutdown = delete

    @property
    def groups(self) -> Mapping[str, GroupInfo]:
        """What each group said of itself when it was opened, by the names of the pools."""
        return self.portal.do(lambda: self.scaler.groups)

    @overload
    def explain(self) -> Explanation: ...
    @overload
    def explain(self, *, instance: str) -> InstanceExplanation: ...
    @overload
    def explain(self, *, key: str) -> KeyExplanation: ...
    def explain(
        self, *, instance: str | None = None, key: str | None = None
    ) -> Explanation | InstanceExplanation | KeyExplanation:
        """Why there is what there is, and what will happen next; of all, of one instance, or of one key."""
        answer: Callable[..., Awaitable[Explanation | InstanceExplanation | KeyExplanation]] = self.scaler.explain
        return self.portal.call(partial(answer, instance=instance, key=key))

    # --- ending ------------------------------------------------------------------------------------------

    def drain(self, timeout: float = math.inf) -> bool:
        """Hand out no more slots, refuse those who wait, and wait until no lease is held.

        Returns:
            Whether all leases have ended within so many seconds.
        """
        return self.portal.call(self.scaler.drain, timeout)

    def stop(self) -> None:
        """Hand out no more slots, refuse those who wait, and break every lease."""
        self.portal.call(self.scaler.stop)

    async def __aenter__(self) -> NoReturn:
        """Refuse: this scaler is for threads."""
        refuse_with("async with", "with", "taskscaler.Taskscaler")

    async def __aexit__(self, *_: object) -> None:
        """Belong to `__aenter__`, which is never left."""

    def __enter__(self) -> Self:
        """Open groups and journal, and see each group once. Raises as the asynchronous one."""
        with ExitStack() as stack:
            portal = Portal(stack.enter_context(start_blocking_portal(self.backend)))
            stack.callback(portal.close)
            stack.enter_context(portal.held(self.scaler))
            self._open = portal
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, delete the instances if that was asked for, and close everything."""
        self._stack.close()

    @property
    def portal(self) -> Portal:
        """The way into the event loop, for those who build on it."""
        if self._open is None:
            raise TaskscalerError("the scaler is not open yet: enter it first, with `with`")
        return self._open
