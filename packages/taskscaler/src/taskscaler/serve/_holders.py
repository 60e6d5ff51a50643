"""The leases of clients: the scaler's, in the hands of whoever is at the other end of a socket."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from secrets import token_hex

import anyio
from attrs import define, evolve, field, frozen

from fleeting import FleetingError
from fleeting.events import Loss, LossKind
from fleeting.plugins import one_line
from taskscaler._errors import DaemonRefused, KeyInUse, NoCapacity, NotDetached, NotHeld
from taskscaler._lease import Lease, inside
from taskscaler._scaler import Taskscaler
from taskscaler._wire import LeaseFacts, loss_as_data
from taskscaler.serve._bodies import Acquire, Keep, OfLease, OfRequest, Replace, Reserve, Resume, Suspect, Suspend
from taskscaler.serve._clients import Client, Clients, GiveBack, Hold
from taskscaler.serve._keeper import Keeper, check_detached
from taskscaler.serve._kept import Kept

log = logging.getLogger("taskscaler.serve")


@frozen
class Held:
    """A lease in a client's hands."""

    lease: Lease
    name: str
    """Names it for good, also over restarts of the daemon."""

    client: Client
    since: float
    undo: Callable[[Lease], None]
    """Leaves things as they were, should nobody want it."""

    persistent: bool
    """Whether it outlives its client."""

    @property
    def facts(self) -> LeaseFacts:
        """For the client."""
        lease = self.lease
        return LeaseFacts(
            key=lease.key,
            lease=self.name,
            pool=lease.pool,
            instance=lease.instance,
            slot=lease.slot,
            place=lease.place,
            persistent=self.persistent,
        )


@define(eq=False)
class Holders:
    """Does for clients what they would do with the scaler themselves, and gives back what they leave behind."""

    scaler: Taskscaler
    now: Callable[[], float]
    start_soon: Callable[..., object]
    """Runs a task for as long as the daemon."""

    notify: Callable[[Client, Mapping[str, object]], None]
    """Called with news for a client."""

    directory: Path | None = None
    """Where leases are written down that outlive their clients. None: nowhere."""

    clients: Clients = field(factory=Clients, init=False)
    keeper: Keeper = field(init=False)
    held: dict[str, Held] = field(factory=dict, init=False)
    """By key."""

    _resuming: set[str] = field(factory=set, init=False)
    """Keys of suspended leases that somebody waits to resume."""

    _news: anyio.Event = field(factory=anyio.Event, init=False)
    """Set when a client may end sooner than the last look has shown."""

    def __attrs_post_init__(self) -> None:
        """Keep nothing yet."""
        self.keeper = Keeper(self.scaler, self.now, self.start_soon, self.directory)

    # --- clients -----------------------------------------------------------------------------------------

    def open(self, id_: str, uid: int, pid: int, ttl: float) -> Client:
        """Begin a client, or have it live on. Raises as `Clients.open`."""
        client = self.clients.open(id_, uid, pid, ttl, self.now())
        self._news.set()
        return client

    def close(self, client: Client) -> None:
        """End a client, and give back what it has."""
        self._give_back(self.clients.end(client))

    @contextmanager
    def connected(self, client: Client) -> Iterator[None]:
        """Keep a client alive while one of its connections is open."""
        self.clients.connect(client)
        try:
            yield
        finally:
            self.clients.disconnect(client, self.now())
            self._news.set()

    def renew(self, client: Client) -> None:
        """It gave a sign of life."""
        self.clients.renew(client, self.now())
        self._news.set()

    async def reclaim(self, client: Client, keys: Iterable[str]) -> Sequence[Held]:
        """Give those leases that a client still has, of those that it had when it lost its connection."""
        return [held for key in keys if (held := self.held.get(key)) is not None and held.client is client]

    async def watch(self) -> None:
        """End clients that are gone, and leases that nobody needs, for as long as the daemon runs."""
        self.start_soon(self.keeper.watch)
        while True:
            self._give_back(self.clients.expire(self.now()))
            self._news = anyio.Event()
            wait = self.clients.next_end - self.now()
            with anyio.move_on_after(None if wait == inf else max(0.0, wait)):
                await self._news.wait()

    # --- their leases ------------------------------------------------------------------------------------

    async def acquire(self, client: Client, asked: Acquire) -> Held:
        """Wait for a slot, as `Taskscaler.acquire_lease` does."""
        if self.clients.ask(client, asked.key, asked.request):
            return self.held[asked.key]
        lease = self._acquire(asked)
        return await self._receive(client, asked.key, asked.request, lease, Lease.release, persistent=asked.persistent)

    async def reattach(self, client: Client, asked: Resume) -> Held:
        """Wait for a detached lease, as `Taskscaler.reattach` does."""
        if self.clients.ask(client, asked.key, asked.request):
            return self.held[asked.key]
        waiting = self._reattach(asked)
        kept = asked.key in self.keeper.kept
        return await self._receive(client, asked.key, asked.request, waiting, self._let_go, persistent=kept)

    def abandon(self, client: Client, asked: OfRequest) -> None:
        """Give back what a request has got; one that still waits waits for nothing."""
        hold = self.clients.hold_of(client, asked.key)
        if hold is Hold.WAITING:
            self.clients.give_up(client, asked.key, asked.request)
        elif hold is Hold.HELD and client.holds[asked.key][1] == asked.request:
            held = self.held[asked.key]
            self._forget(asked.key)
            held.undo(held.lease)

    def detach(self, client: Client, named: OfLease) -> None:
        """Let go of a lease, and keep its slot; nothing happens if it has ended."""
        if held := self._find(client, named):
            self._forget(named.key)
            self._let_go(held.lease)

    async def keep(self, client: Client, asked: Keep) -> Kept:
        """Have a lease outlive its client, within its bounds.

        Raises:
            DaemonRefused: The client has no such lease, or it cannot be kept.
        """
        self.lease(client, asked)
        kept = await self.keeper.keep(asked.key, client.uid, asked)
        if held := self._find(client, asked):
            self.held[asked.key] = evolve(held, persistent=True, undo=self._let_go)
        return kept

    async def stop(self, key: str, hint: str = "") -> bool:
        """End a lease that is kept, whoever has it; returns whether all that was left in it is gone.

        Args:
            key: Of the lease.
            hint: What to do if there is none.

        Raises:
            DaemonRefused: None is kept under the key.
        """
        await self.keeper.settle(key)
        if key not in self.keeper.kept:
            raise DaemonRefused(self._why_not_kept(key, hint), status=404)
        held = self.held.get(key)
        if held is not None:
            self._forget(key)
            loss = loss_as_data(Loss(LossKind.KILLED, "it was stopped"))
            self.notify(held.client, {"event": "lost", "key": key, "lease": held.name, "loss": loss})
        try:
            return await self.keeper.end(key, "was stopped", None if held is None else held.lease)
        except NoCapacity as error:
            why = f"the daemon is draining, and leaves the lease {key!r} to the next one; stop it there"
            raise DaemonRefused(why, status=503) from error

    async def resume(self, client: Client, asked: Resume) -> Held:
        """Wait for a suspended lease, as `Taskscaler.resume` does."""
        if self.clients.ask(client, asked.key, asked.request):
            return self.held[asked.key]
        self._resuming.add(asked.key)
        try:
            return await self._receive(client, asked.key, asked.request, self._resume(asked), Lease.suspend_again)
        finally:
            self._resuming.discard(asked.key)

    async def replace(self, client: Client, asked: Replace) -> Held:
        """Wait for a slot on another instance, as `Taskscaler.replace` does."""
        if asked.key in self._resuming:
            raise KeyInUse(asked.key)
        if asked.key in self.keeper.kept:  # with what was left on its instance
            raise DaemonRefused(f"the lease {asked.key!r} is kept where it is; stop it, and acquire another one")
        old = self.held.get(asked.key)
        if old is not None and old.client is client and asked.lease != old.name and not self._is_from(old, asked):
            raise NotHeld(asked.key)  # it has ended, and the key is used again
        origin = client.holds.get(asked.key)
        if self.clients.replace(client, asked.key, asked.request):
            return self.held[asked.key]
        old = self.held.pop(asked.key, None)
        waiting = self.scaler.replace(asked.key, why=asked.why, timeout=asked.timeout)
        persistent = old is not None and old.persistent
        try:
            return await self._receive(client, asked.key, asked.request, waiting, Lease.release, persistent=persistent)
        except BaseException:
            if old is not None and origin is not None and not old.lease.ended:  # no slot is handed out any more
                self._keep(old, asked.key, origin[1])
            raise

    def release(self, client: Client, named: OfLease) -> None:
        """Take a slot back; nothing happens if the lease has ended."""
        if held := self._find(client, named):
            self._forget(named.key)
            kept = self.keeper.kept.get(named.key)
            if kept is not None and kept.there:
                self.start_soon(self._end_kept, held.lease)
            else:
                held.lease.release()

    def suspend(self, client: Client, asked: Suspend) -> None:
        """Let a lease sleep; nothing happens if it has ended."""
        if held := self._find(client, asked):
            self._forget(asked.key)
            if asked.again:
                held.lease.suspend_again()
            else:
                held.lease.suspend(inf if asked.ttl is None else asked.ttl)

    def suspect(self, client: Client, asked: Suspect) -> None:
        """Note that something is wrong with a lease's instance; nothing happens if it has ended."""
        if held := self._find(client, asked):
            state, owner = inside(held.lease)
            match asked.what:
                case "cut_off":
                    owner.note_death(state, one_line(asked.why))
                case "unreachable":
                    owner.mark_unreachable(state.id, one_line(asked.why))
                case _:
                    held.lease.mark_suspect(asked.why)

    def lease(self, client: Client, named: OfLease) -> Lease:
        """Give a lease that a client holds.

        Raises:
            DaemonRefused: It holds none of that name.
        """
        if held := self._find(client, named):
            return held.lease
        raise DaemonRefused(f"the client holds no lease under the key {named.key!r}; it has ended")

    async def reserve(self, client: Client, asked: Reserve) -> None:
        """Keep a slot, as `Taskscaler.reserve` does."""
        if self.clients.reserve(client, asked.key, asked.request):
            return
        try:
            await self.scaler.reserve(asked.key, timeout=asked.timeout)
        except BaseException:
            if self.clients.hold_of(client, asked.key) is Hold.RESERVED:
                self.clients.drop(asked.key)
            raise
        if self.clients.hold_of(client, asked.key) is None:  # it was closed meanwhile
            await self.scaler.unreserve(asked.key)

    async def unreserve(self, client: Client, key: str) -> None:
        """Give up a reservation; nothing happens if there is none."""
        if self.clients.hold_of(client, key) is Hold.RESERVED:
            self.clients.drop(key)
            await self.scaler.unreserve(key)

    # --- inside ------------------------------------------------------------------------------------------

    async def _acquire(self, asked: Acquire) -> Lease:
        duration = inf if asked.expected_duration is None else asked.expected_duration
        return await self.scaler.acquire_lease(  # persistent in any case: it outlives this daemon
            asked.key,
            timeout=asked.timeout,
            expected_duration=duration,
            place=asked.place,
            persistent=True,
            pools=asked.pools or None,
        )

    async def _reattach(self, asked: Resume) -> Lease:
        await self.keeper.settle(asked.key)
        self.keeper.take(asked.key)
        try:
            return await self.scaler.reattach(asked.key, timeout=inf if asked.timeout is None else asked.timeout)
        except NotDetached as error:
            self.keeper.leave(asked.key)
            raise check_detached(self.keeper, asked.key, error) from error
        except BaseException:
            self.keeper.leave(asked.key)
            raise

    def _let_go(self, lease: Lease) -> None:
        """Keep a lease whose client is gone."""
        if lease.key in self.keeper.kept:
            self.keeper.leave(lease.key, lease)
        else:
            lease.detach()

    async def _end_kept(self, lease: Lease) -> None:
        """Take a slot back, with what was left in it."""
        with suppress(FleetingError):  # it is lost, so there is nothing left
            await self.keeper.end(lease.key, "was given back", lease)

    def _why_not_kept(self, key: str, hint: str) -> str:
        """Say why there is nothing to stop."""
        held = self.held.get(key)
        if held is not None:
            who = f"process {held.client.pid}" if held.client.pid else "its client"
            return f"the lease {key!r} is not kept: it ends with {who}; end that"
        if why := self.keeper.ended.get(key):
            return f"the lease {key!r} {why}; `taskscaler leases` lists all leases"
        return f"no lease is kept under the key {key!r}; {hint or '`taskscaler leases` lists all leases'}"

    async def _resume(self, asked: Resume) -> Lease:
        return await self.scaler.resume(asked.key, timeout=inf if asked.timeout is None else asked.timeout)

    async def _receive(
        self,
        client: Client,
        key: str,
        request: str,
        lease: Awaitable[Lease],
        undo: Callable[[Lease], None],
        *,
        persistent: bool = False,
    ) -> Held:
        """Wait for a lease, and put it into a client's hands, if that is still there to take it."""
        try:
            got = await lease
        except BaseException:
            self.clients.give_up(client, key, request)
            raise
        if not self.clients.grant(client, key, request):
            undo(got)
            raise NoCapacity("the client was closed, or gave up, while it waited")
        held = self.held[key] = Held(got, token_hex(8), client, self.now(), undo, persistent)
        self.start_soon(self._attend, held)
        return held

    async def _attend(self, held: Held) -> None:
        """Report what becomes of a lease to its client."""
        state, _ = inside(held.lease)
        unhealthy = ""
        while not state.ended:
            if state.unhealthy != unhealthy:
                unhealthy = state.unhealthy
                self.notify(
                    held.client, {"event": "unhealthy", "key": state.id.key, "lease": held.name, "why": unhealthy}
                )
            await state.wait_for_news()
        now = self.held.get(state.id.key)
        if state.loss is not None and now is not None and now.name == held.name:  # it may be kept by now
            self._forget(state.id.key)
            loss = loss_as_data(state.loss)
            self.notify(held.client, {"event": "lost", "key": state.id.key, "lease": held.name, "loss": loss})

    @staticmethod
    def _is_from(held: Held, asked: Replace) -> bool:
        """Whether a lease comes from this very request."""
        return held.client.holds[asked.key] == (Hold.HELD, asked.request)

    def _keep(self, held: Held, key: str, request: str) -> None:
        """Leave a lease in its client's hands after all, if there are any."""
        if self.clients.keep(held.client, key, request):
            self.held[key] = held
        else:
            held.undo(held.lease)

    def _find(self, client: Client, named: OfLease) -> Held | None:
        held = self.held.get(named.key)
        return held if held is not None and held.client is client and held.name == named.lease else None

    def _forget(self, key: str) -> None:
        self.held.pop(key, None)
        self.clients.drop(key)

    def _give_back(self, left: Iterable[GiveBack]) -> None:
        """Give back what clients had that are gone. Who still waits gives up when the slot comes."""
        for each in left:
            log.info("client_gone", extra={"key": each.key, "had": each.hold.value})
            match each.hold:
                case Hold.HELD:
                    held = self.held.pop(each.key)
                    if held.persistent:
                        self._let_go(held.lease)
                    else:
                        held.lease.release()
                case Hold.RESERVED:
                    self.start_soon(self.scaler.unreserve, each.key)
