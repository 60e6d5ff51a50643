"""A scaler whose slots are a daemon's."""

import logging
import math
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from types import TracebackType
from typing import Any, NoReturn, Self, overload

import anyio
from anyio.abc import TaskGroup

from fleeting import Duration, GroupInfo, dial
from fleeting.config import check
from fleeting.runtime import Dial
from taskscaler._arguments import check_wait, refuse_with
from taskscaler._attempts import Attempt, Attempts, Tries
from taskscaler._errors import DaemonRefused, KeyInUse, NoCapacity, TaskscalerError
from taskscaler._kept_bounds import check_bound
from taskscaler._lease import Lease
from taskscaler._observe import Observers, ScalerObserver, event_from_data
from taskscaler._socket import find_socket
from taskscaler._types import Policy
from taskscaler._url import DaemonUrl
from taskscaler._wire import DEFAULT_TTL, LEAST_TTL, MOST_TTL, ClientUnknown, KeptFacts, from_plain
from taskscaler.core._slots import Capacity, DetachedLease
from taskscaler.diagnose._explain import Explanation, InstanceView
from taskscaler.diagnose._explain_instance import InstanceExplanation
from taskscaler.diagnose._explain_key import KeyExplanation
from taskscaler.remote._leases import RemoteLeases
from taskscaler.remote._link import PROMPT, Link

LONGEST_WAIT = 10 * 365 * 86400.0
"""Seconds: JSON has no word for for ever."""

log = logging.getLogger("taskscaler.remote")

FAREWELL = 5.0
"""Seconds that the daemon has, on leaving, to hear what is given back; else it learns that from our silence."""


def connect(
    socket: str | os.PathLike[str] | DaemonUrl | None = None,
    *,
    ttl: float = DEFAULT_TTL,
    patience: float = 300.0,
    observers: Sequence[ScalerObserver] = (),
    token_file: str | os.PathLike[str] | None = None,
) -> "Taskscaler":
    """Use the fleet of the daemon that listens on *socket*. Nothing is asked until the scaler is entered.

    Args:
        socket: Its path, or its address, as ``https://build.example:8443``: over TCP, leases cannot be dialled. None:
            as TASKSCALER_SOCKET has it, or the only one of the user's daemons.
        ttl: Seconds after which the daemon takes back what this program holds, if the program is gone: 1 to 600.
        patience: Seconds for which a daemon that is being restarted is waited for.
        observers: Hear what happens to the fleet while the daemon is there; only the daemon's own user may.
        token_file: For an address: the file with the token. None: as TASKSCALER_TOKEN_FILE has it.

    Raises:
        NoDaemon: No socket was named, and there is none, or there are several.
        WrongArguments: The address cannot be used, or there is no token for it.
    """
    return Taskscaler(socket, ttl=ttl, patience=patience, observers=observers, token_file=token_file)


class Taskscaler:
    """Hands out slots on a daemon's instances; `taskscaler.Taskscaler` at the other end of a socket.

    An async context manager; entered once. Leaving it gives back what is still held: the fleet is the daemon's. If the
    daemon is restarted meanwhile, leases go on, and whoever waits waits on.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | DaemonUrl | None = None,
        *,
        ttl: float = DEFAULT_TTL,
        patience: float = 300.0,
        observers: Sequence[ScalerObserver] = (),
        token_file: str | os.PathLike[str] | None = None,
        client: str = "",
        dial: Dial = dial,
    ) -> None:
        """Prepare; nothing is asked yet. Arguments and errors not named here are those of `connect`.

        Args:
            socket: Of the daemon.
            ttl: Of what is held.
            patience: With a daemon that is away.
            observers: Of the fleet.
            token_file: For an address.
            client: Names this program for good: one that was killed is succeeded by the next of its name, and what it
                held goes back as soon as that enters. A secret. Empty: it is nobody's successor.
            dial: Connects to instances.
        """
        check("ttl", ttl, Duration, least=0)
        if not LEAST_TTL <= ttl <= MOST_TTL:
            raise ValueError(f"ttl: expected {LEAST_TTL:g} to {MOST_TTL:g} seconds, found {ttl!r}")
        check("patience", patience, Duration, least=0, endless=True)
        self._groups: Mapping[str, GroupInfo] = {}
        self._detached: Sequence[DetachedLease] = ()
        self._shut = ""
        self._succeeds = bool(client)
        named = {"id": client} if client else {}
        place = find_socket(socket, token_file)
        self._link = Link(place, patience, self._begin, self._hear, self._lose_all, ttl, **named)
        self._observers = Observers(observers)
        self._dial = dial
        self._leases: RemoteLeases | None = None
        self._tasks: TaskGroup

    # --- slots -------------------------------------------------------------------------------------------

    async def acquire_lease(
        self,
        key: str,
        *,
        timeout: float | None = None,
        expected_duration: float = math.inf,
        place: int | None = None,
        persistent: bool = False,
        pools: Sequence[str] | None = None,
    ) -> Lease:
        """Wait for a slot. Arguments and errors are those of `taskscaler.Taskscaler.acquire_lease`.

        A persistent lease outlives this program: it is detached then, for `reattach`. Each outlives the daemon.

        Raises:
            NoDaemon: The daemon is not there, and was not for `patience`.
        """
        check_wait(key, timeout, expected_duration)
        check("persistent", persistent, bool)
        asked: dict[str, object] = {
            **_finite(expected_duration=expected_duration),
            "place": place,
            "persistent": persistent,
        }
        if pools is not None:  # which daemons before 0.2 do not know
            asked["pools"] = [pools] if isinstance(pools, str) else [*pools]
        return await self._wait("/acquire", key, timeout, asked)

    @asynccontextmanager
    async def acquire(
        self,
        key: str,
        *,
        timeout: float | None = None,
        expected_duration: float = math.inf,
        place: int | None = None,
        persistent: bool = False,
        pools: Sequence[str] | None = None,
    ) -> AsyncIterator[Lease]:
        """Hold a slot for as long as the body runs. Arguments and errors are those of `acquire_lease`.

        Raises:
            LeaseLost: The instance was lost, and the body cancelled.
        """
        lease = await self.acquire_lease(
            key,
            timeout=timeout,
            expected_duration=expected_duration,
            place=place,
            persistent=persistent,
            pools=pools,
        )
        async with lease.hold():
            yield lease

    async def resume(self, key: str, *, timeout: float = math.inf) -> Lease:
        """Take up a suspended lease. Arguments and errors are those of `taskscaler.Taskscaler.resume`."""
        check_wait(key, timeout)
        return await self._wait("/resume", key, timeout, {})

    @property
    def detached(self) -> Sequence[DetachedLease]:
        """Leases that may be reattached, as the daemon had them when it was last reached; oldest first."""
        return self._detached

    async def reattach(self, key: str, *, timeout: float = math.inf) -> Lease:
        """Take up a detached lease. Arguments and errors are those of `taskscaler.Taskscaler.reattach`."""
        check_wait(key, timeout)
        return await self._wait("/reattach", key, timeout, {})

    async def keep(self, lease: Lease, *, ttl: float | None = None, idle_timeout: float | None = None) -> None:
        """Have a lease outlive this program and the daemon, for a bound of its own.

        From when this program has detached it or is gone, the daemon keeps it for whoever reattaches it.

        Args:
            lease: One of this program's; it is persistent from now on.
            ttl: Seconds for which it is kept, whatever runs in it: 1 to 604,800. None: as before, 8 hours at first.
            idle_timeout: Seconds for which it is kept while nothing runs in it, if that is less. None: as before; at
                first, only *ttl* counts.

        Raises:
            DaemonRefused: It has ended, or cannot be kept.
            ValueError: A bound is out of range.
        """
        check("lease", lease, Lease)
        check_bound("ttl", ttl)
        check_bound("idle_timeout", idle_timeout)
        await self._open.keep(lease, _finite(ttl=ttl, idle_timeout=idle_timeout))

    async def replace(self, key: str, *, why: str = "", timeout: float | None = None) -> Lease:
        """Give a lease's slot back for one on another instance: as `taskscaler.Taskscaler.replace`.

        The lease is one that this program holds, or a suspended one of the same user.
        """
        check_wait(key, timeout)
        check("why", why, str)
        self._refuse_if_shut()
        return await self._open.replace(key, why, _finite(timeout=timeout))

    def attempts(
        self, key: str, *, tries: int = 3, timeout: float | None = None, expected_duration: float = math.inf
    ) -> Attempts:
        """Try a body on another instance each time that it loses one; as `taskscaler.Taskscaler.attempts`."""
        check_wait(key, timeout, expected_duration)

        def make(number: int, is_last: bool) -> Attempt:  # noqa: FBT001  (for `Tries` alone)
            acquired = self.acquire(key, timeout=timeout, expected_duration=expected_duration)
            return Attempt(key, number, acquired, is_last=is_last)

        return Attempts(Tries(make, tries))

    async def reserve(self, key: str, *, timeout: float | None = None) -> None:
        """Keep a slot for an acquire to come. Arguments and errors are those of `taskscaler.Taskscaler.reserve`."""
        check_wait(key, timeout)
        self._refuse_if_shut()
        await self._open.reserve(key, _finite(timeout=timeout), PROMPT + (timeout or 0.0))

    async def unreserve(self, key: str) -> None:
        """Give a reservation up; nothing happens if there is none."""
        check("key", key, str)
        await self._change("/unreserve", key=key)

    async def cordon(self, instance: str, why: str = "") -> None:
        """Give an instance no new work. Arguments and errors are those of `taskscaler.Taskscaler.cordon`."""
        await self._change("/cordon", instance=instance, why=why)

    async def uncordon(self, instance: str) -> None:
        """Give it work again."""
        await self._change("/uncordon", instance=instance)

    async def retain(self, instance: str, why: str = "") -> None:
        """Do not delete an instance. Arguments and errors are those of `taskscaler.Taskscaler.retain`."""
        await self._change("/retain", instance=instance, why=why)

    async def unretain(self, instance: str) -> None:
        """Let it be deleted."""
        await self._change("/unretain", instance=instance)

    async def configure(self, *, policies: Sequence[Policy]) -> NoReturn:
        """Refuse: the policies are everybody's, and stand in the daemon's file."""
        del policies
        raise DaemonRefused("the policies stand in the daemon's file; change them there, and run taskscaler reload")

    # --- looking -----------------------------------------------------------------------------------------

    async def capacity(self) -> Capacity:
        """Slots by state, and who waits: of all that use the daemon."""
        return from_plain(await self._look("/capacity"), Capacity)

    async def instances(self) -> Sequence[InstanceView]:
        """All known instances, oldest first, for people to look at."""
        return [from_plain(each, InstanceView) for each in (await self._look("/instances"))["instances"]]

    async def is_draining(self) -> bool:
        """Whether the daemon hands out no more slots, because it is about to end."""
        return bool((await self._look("/status"))["state"] == "draining")

    @property
    def delete_instances_on_shutdown(self) -> bool:
        """Whether leaving deletes the instances: never, they are the daemon's."""
        return False

    @delete_instances_on_shutdown.setter
    def delete_instances_on_shutdown(self, delete: bool) -> NoReturn:
        """Refuse."""
        del delete
        raise DaemonRefused("the instances are the daemon's; `taskscaler drain --delete` deletes them")

    @property
    def groups(self) -> Mapping[str, GroupInfo]:
        """What each group said of itself when the daemon opened it, by the names of the pools."""
        return self._groups

    @overload
    async def explain(self) -> Explanation: ...
    @overload
    async def explain(self, *, instance: str) -> InstanceExplanation: ...
    @overload
    async def explain(self, *, key: str) -> KeyExplanation: ...
    async def explain(
        self, *, instance: str | None = None, key: str | None = None
    ) -> Explanation | InstanceExplanation | KeyExplanation:
        """Why there is what there is, and what will happen next; as `taskscaler.Taskscaler.explain`."""
        if instance is not None and key is not None:
            raise ValueError("pass an instance or a key, not both")
        params = {name: value for name, value in (("instance", instance), ("key", key)) if value is not None}
        data = (await self._look("/explain", form="value", **params))["explanation"]
        if instance is not None:
            return from_plain(data, InstanceExplanation)
        return from_plain(data, Explanation) if key is None else from_plain(data, KeyExplanation)

    # --- ending ------------------------------------------------------------------------------------------

    async def drain(self, timeout: float = math.inf) -> bool:
        """Ask for no more slots, refuse those of this program who wait, and wait until it holds none.

        Others who use the daemon notice nothing; `taskscaler drain` ends the daemon.

        Returns:
            Whether all leases have ended within so many seconds.
        """
        check("timeout", timeout, Duration, least=0, endless=True)
        self._shut = self._shut or "the scaler is draining"
        self._open.refuse(self._shut)
        with anyio.move_on_after(timeout):
            await self._open.wait_until_empty()
        return not self._open.held

    async def stop(self) -> None:
        """Ask for no more slots, refuse those of this program who wait, and break its leases."""
        self._shut = "the scaler was stopped"
        self._open.refuse(self._shut)
        self._open.break_all(self._shut)

    def __enter__(self) -> NoReturn:
        """Refuse: this scaler is for coroutines."""
        refuse_with("with", "async with", "taskscaler.sync.connect")

    def __exit__(self, *_: object) -> None:
        """Belong to `__enter__`, which is never left."""

    async def __aenter__(self) -> Self:
        """Reach the daemon.

        Raises:
            NoDaemon: It does not answer.
            DaemonRefused: It wants nothing of us.
        """
        self._stack = AsyncExitStack()
        try:
            await self._stack.enter_async_context(self._link.opened())
            self._tasks = anyio.create_task_group()
            await self._tasks.__aenter__()
            self._stack.push_async_callback(self._end_tasks)
            self._leases = RemoteLeases(self._link, self._tasks.start_soon, self._dial)
            if self._succeeds:
                with suppress(ClientUnknown):
                    await self._link.once("DELETE", "/client")
            await self._tasks.start(self._link.keep)
            if self._observers:
                await self._tasks.start(self._link.listen, self._observe)
            infos = (await self._link.ask("GET", "/groups"))["groups"]
            self._groups = {name: from_plain(info, GroupInfo) for name, info in infos.items()}
        except BaseException as error:
            await self._stack.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give back what is still held, and let go of the daemon."""
        with anyio.CancelScope(shield=True):
            await self.stop()
            with anyio.move_on_after(FAREWELL):
                await self._open.settle()
                await self._farewell()
        await self._stack.__aexit__(kind, error, trace)

    # --- inside ------------------------------------------------------------------------------------------

    @property
    def _open(self) -> RemoteLeases:
        if self._leases is None:
            raise TaskscalerError("the scaler is not open yet; enter it with `async with` first")
        return self._leases

    async def _wait(self, path: str, key: str, timeout: float | None, asked: Mapping[str, object]) -> Lease:
        self._refuse_if_shut()
        if self._open.has(key):
            raise KeyInUse(key)
        return await self._open.wait(path, key, {**asked, **_finite(timeout=timeout)})

    async def _change(self, path: str, **asked: str) -> None:
        for name, value in asked.items():
            check(name, value, str)
        self._open  # noqa: B018  (raises unless it is entered)
        await self._link.ask("POST", path, asked)

    async def _look(self, path: str, **params: str) -> dict[str, Any]:
        self._open  # noqa: B018  (raises unless it is entered)
        return await self._link.ask("GET", path, params=params)

    def _refuse_if_shut(self) -> None:
        if self._shut:
            raise NoCapacity(self._shut)

    async def _begin(self) -> None:
        """Have the daemon know this client, and what it holds."""
        self._detached = await self._open.begin()

    def _hear(self, message: Mapping[str, Any]) -> None:
        self._open.hear(message)

    def _observe(self, message: Mapping[str, Any]) -> None:
        """Have the observers hear an event that this release understands."""
        try:
            event = event_from_data(message)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            log.warning("event_not_understood", extra={"error": repr(error)})
            return
        if event is not None:
            self._observers.notify(event)

    def _lose_all(self, why: str) -> None:
        self._open.break_all(why)

    async def _farewell(self) -> None:
        with suppress(Exception):  # it learns that from our silence
            await self._link.once("DELETE", "/client")

    async def _end_tasks(self) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)


def _finite(**spans: float | None) -> dict[str, float]:
    """Write spans of time for JSON; those that were not given are left out."""
    return {name: min(value, LONGEST_WAIT) for name, value in spans.items() if value is not None}


async def keep_for_command(scaler: Taskscaler, lease: Lease, **asked: object) -> KeptFacts:
    """Keep a lease as `Taskscaler.keep` does, for the command line, which leaves things on the instance.

    Args:
        scaler: That has it.
        lease: Which.
        asked: As in the API's request; None: as before.
    """
    wanted = {name: value for name, value in asked.items() if value is not None}
    return await scaler._open.keep(lease, wanted)  # noqa: SLF001  (this module's own)
