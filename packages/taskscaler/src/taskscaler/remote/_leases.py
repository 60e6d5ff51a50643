"""The leases that this program has of a daemon; they are `taskscaler.Lease`, with another owner."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from math import inf
from secrets import token_hex
from typing import Any

import anyio
from attrs import define, field

from fleeting import ConnectInfo, Connection, ConnectorConfig, FleetingError, Unreachable
from fleeting.events import Loss, LossKind
from fleeting.runtime import Dial
from taskscaler._connections import Connections
from taskscaler._errors import DaemonRefused, KeyInUse, NoCapacity, NoDaemon, NotDetached, NotHeld, NotSuspended
from taskscaler._lease import Lease, LeaseState, inside
from taskscaler._wire import KeptFacts, LeaseFacts, from_plain, loss_of
from taskscaler.core._slots import DetachedLease, LeaseId
from taskscaler.remote._link import PROMPT, Link

MOST_AT_ONCE = 1000
"""Leases that are named in one request."""

log = logging.getLogger("taskscaler.remote")


@define(eq=False)
class _Held:
    """A lease."""

    state: LeaseState
    name: str
    """The daemon's name for it: another one after each restart."""

    coming_back: bool = False
    """Whether a daemon that was restarted is being asked for it."""


@define(eq=False)
class _Old:
    """A lease that is to be replaced. Should its daemon end once its slot is back, the next one knows nothing of it."""

    place: int
    persistent: bool
    daemon: str
    """Which start of the daemon has it, for all that is known."""

    held: _Held | None = None
    """None: it sleeps."""

    @property
    def instance(self) -> str:
        """On which it is held; empty: it sleeps."""
        return "" if self.held is None else self.held.state.id.instance


@define(eq=False)
class _Asking:
    """Somebody who waits for a lease."""

    path: str
    """Of what is asked."""

    scope: anyio.CancelScope = field(factory=anyio.CancelScope)
    refusal: str = ""


@define(eq=False)
class RemoteLeases:
    """Those of one program (`LeaseOwner`)."""

    _link: Link
    _start_soon: Callable[..., object]
    _dial: Dial
    held: dict[str, _Held] = field(factory=dict, init=False)
    """By key."""

    _asking: dict[str, _Asking] = field(factory=dict, init=False)
    _reserving: list[_Asking] = field(factory=list, init=False)
    _posts: dict[str, int] = field(factory=dict, init=False)
    """How many messages about a key are on their way to the daemon: who asks for it again waits for them."""

    _connectors: dict[str, ConnectorConfig] = field(factory=dict, init=False)
    """By pool; known from the first answer to who dials."""

    _daemon: str = field(default="", init=False)
    """Which start of the daemon this is."""

    _changed: anyio.Event = field(factory=anyio.Event, init=False)
    _connections: Connections = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Hold nothing yet."""
        self._connections = Connections(self._start_soon, self._dial_of, self.connect_info, self.note_death)

    def has(self, key: str) -> bool:
        """Whether the key is in use here."""
        return key in self.held or key in self._asking

    def new_request(self) -> str:
        """Name a request."""
        return token_hex(8)

    # --- waiting -----------------------------------------------------------------------------------------

    async def wait(self, path: str, key: str, asked: Mapping[str, object], old: _Old | None = None) -> Lease:
        """Wait for what is asked under a key, in place of an old lease if there is one.

        A daemon that is restarted meanwhile is asked again.
        """
        asking = self._asking[key] = _Asking(path)
        request = self.new_request()
        try:
            with asking.scope:
                while key in self._posts:
                    await self._changed.wait()
                return await self._granted(path, {"key": key, "request": request}, asked, old)
            self._post("/abandon", key, request=request)
            raise NoCapacity(asking.refusal)
        except BaseException as error:
            if not isinstance(error, Exception):  # cancelled: the slot may be on its way
                self._post("/abandon", key, request=request)
            raise
        finally:
            del self._asking[key]
            self._change()

    async def _granted(
        self, path: str, named: Mapping[str, object], asked: Mapping[str, object], old: _Old | None
    ) -> Lease:
        """Wait for the answer. A daemon that ended after it had granted the request has kept the lease for us."""
        while True:
            daemon = self._daemon if old is None else old.daemon
            data: Mapping[str, Any] | None
            try:
                data = await self._link.ask("POST", path, {**named, **asked}, wait=inf)
            except (KeyInUse, NotHeld, NotSuspended):
                if daemon == self._daemon:
                    raise
                data = await self._kept(named if old is None else {**named, "request": self.new_request()})
                if data is None and old is not None:  # it was given back, and the other one had not come
                    again = {"place": old.place, "persistent": old.persistent}
                    timeout = {name: value for name, value in asked.items() if name == "timeout"}
                    return await self._granted("/acquire", named, {**again, **timeout}, None)
                if data is None:
                    raise
                if old is not None and data["instance"] == old.instance:  # not replaced yet
                    old.daemon = self._daemon
                    if old.held is not None:
                        old.held.name = data["lease"]
                    asked = {**asked, "lease": data["lease"]}
                    continue
            return self._take(from_plain(data, LeaseFacts))

    async def _kept(self, named: Mapping[str, object]) -> Mapping[str, Any] | None:
        try:
            return await self._link.ask("POST", "/reattach", named, wait=inf)
        except NotDetached:
            return None

    def _take(self, facts: LeaseFacts) -> Lease:
        id_ = LeaseId(facts.key, int(facts.lease, 16), facts.pool, facts.instance, facts.slot)
        state = LeaseState(id_, facts.place, persistent=facts.persistent)
        self.held[facts.key] = _Held(state, facts.lease)
        return Lease(state, self)

    async def reserve(self, key: str, asked: Mapping[str, object], wait: float) -> None:
        """Keep a slot for later."""
        asking = _Asking("/reserve")
        self._reserving.append(asking)
        try:
            with asking.scope:
                await self._link.ask(
                    "POST", asking.path, {"key": key, "request": self.new_request(), **asked}, wait=wait
                )
                return
            self._post("/unreserve", key)
            raise NoCapacity(asking.refusal)
        except BaseException as error:
            if not isinstance(error, Exception):  # cancelled: the slot may be kept already
                self._post("/unreserve", key)
            raise
        finally:
            self._reserving.remove(asking)

    async def replace(self, key: str, why: str, asked: Mapping[str, object]) -> Lease:
        """Swap a lease that is held here, or suspended, for one on another instance.

        Raises:
            NotHeld, KeyInUse, NoCapacity: As `taskscaler.Taskscaler.replace`.
        """
        if asking := self._asking.get(key):
            raise KeyInUse(key) if asking.path == "/resume" else NotHeld(key)
        while (old := self.held.get(key)) is not None and old.coming_back:
            await self._changed.wait()
        if old is None:
            sleeping = await self._look_up(key)
            if self.has(key):  # since then
                raise KeyInUse(key)
            return await self.wait("/replace", key, {"why": _printable(why), **asked}, sleeping)
        del self.held[key]
        known = _Old(old.state.place, old.state.persistent, self._daemon, old)
        try:
            lease = await self.wait("/replace", key, {"lease": old.name, "why": _printable(why), **asked}, known)
        except BaseException as error:
            if isinstance(error, Exception) and await self._has_still(key):
                self.held[key] = old
            else:
                old.state.end()
                self._post("/release", key, lease=old.name)
            raise
        old.state.end()
        return lease

    async def _look_up(self, key: str) -> _Old | None:
        """Learn of a lease that sleeps what is to be known of it when its slot is back; None: nothing sleeps."""
        while key in self._posts:
            await self._changed.wait()
        answer = await self._link.ask("POST", "/client", {"ttl": self._link.ttl, "leases": [key]})
        found = [each for each in answer.get("suspended", ()) if each["key"] == key]
        return _Old(found[0]["place"], found[0]["persistent"], str(answer["daemon"])) if found else None

    async def _has_still(self, key: str) -> bool:
        """Whether the daemon has left a lease as it was, because it hands out no more."""
        try:
            answer = await self._link.once("POST", "/client", {"ttl": self._link.ttl, "leases": [key]})
        except FleetingError:
            return False
        return any(each["key"] == key for each in answer["leases"])

    def refuse(self, why: str) -> None:
        """Whoever waits waits no more."""
        for asking in (*self._asking.values(), *self._reserving):
            asking.refusal = why
            asking.scope.cancel()

    # --- the daemon's side -------------------------------------------------------------------------------

    async def begin(self) -> Sequence[DetachedLease]:
        """Have the daemon know this client, and learn what it still has of its leases.

        Returns:
            Leases that may be reattached.
        """
        keys = [key for key, held in self.held.items() if not held.state.ended]
        detached: list[DetachedLease] = []
        for first in range(0, max(1, len(keys)), MOST_AT_ONCE):
            named = keys[first : first + MOST_AT_ONCE]
            answer = await self._link.once("POST", "/client", {"ttl": self._link.ttl, "leases": named})
            self._daemon = str(answer["daemon"])
            found = {each["key"]: str(each["lease"]) for each in answer["leases"]}
            detached = [from_plain(each, DetachedLease) for each in answer["detached"]]
            left = {each.key for each in detached}
            for key in named:
                if key not in self.held or self.held[key].coming_back:  # it ended, or its reattachment is under way
                    continue
                if key in found:
                    self.held[key].name = found[key]
                elif key in left:
                    self.held[key].coming_back = True
                    self._start_soon(self._reattach, key, self.held[key])
                else:
                    self._lose(key, Loss(LossKind.KILLED, "it was lost while the daemon could not be reached"))
        return [each for each in detached if each.key not in self.held]

    async def _reattach(self, key: str, held: _Held) -> None:
        """Have a lease again that the daemon kept over its restart."""
        try:
            data = await self._link.ask("POST", "/reattach", {"key": key, "request": self.new_request()}, wait=inf)
        except FleetingError as error:
            if self.held.get(key) is held:
                self._lose(key, getattr(error, "loss", None) or Loss(LossKind.KILLED, str(error)))
            return
        held.name, held.coming_back = from_plain(data, LeaseFacts).lease, False
        self._change()
        if self.held.get(key) is not held:  # it was released meanwhile
            self._post("/release", key, lease=held.name)

    def hear(self, message: Mapping[str, Any]) -> None:
        """Learn what has happened to a lease."""
        key = message.get("key")
        held = self.held.get(key) if isinstance(key, str) else None
        if held is None or held.name != message.get("lease"):
            return
        if message["event"] == "lost":
            self._lose(held.state.id.key, loss_of(message.get("loss")))
        elif message["event"] == "unhealthy":
            held.state.mark_unhealthy(str(message.get("why")))

    def break_all(self, why: str) -> None:
        """Lose all leases: the daemon is gone for good, or we are; it takes them back."""
        for key, held in list(self.held.items()):
            self._lose(key, Loss(LossKind.KILLED, why))
            self._post("/detach" if held.state.persistent else "/release", key, lease=held.name)

    # --- what leases ask (`LeaseOwner`) ------------------------------------------------------------------

    def release(self, id_: LeaseId) -> None:
        """Give a slot back; the daemon learns of it soon."""
        self._end("/release", id_)

    def suspend(self, id_: LeaseId, ttl: float | None) -> None:
        """Let a lease sleep."""
        asked: dict[str, object] = {"again": True} if ttl is None else {} if ttl == inf else {"ttl": ttl}
        self._end("/suspend", id_, **asked)

    def detach(self, id_: LeaseId) -> None:
        """Let go of a lease, for whoever reattaches it."""
        self._end("/detach", id_)

    def mark_unreachable(self, id_: LeaseId, why: str) -> None:
        """The instance is unhealthy, and cannot be reached: the daemon takes the slot away."""
        self._suspect(id_, "unreachable", why)

    def mark_suspect(self, id_: LeaseId, why: str) -> None:
        """The instance misbehaves although the cloud shows it."""
        self._suspect(id_, "suspect", why)

    def note_death(self, state: LeaseState, why: str) -> None:
        """A connection to the lease's instance died, or could not be made."""
        state.cut_off = True
        self._suspect(state.id, "cut_off", why)

    async def connect_info(self, id_: LeaseId) -> ConnectInfo:
        """How to connect: this program dials by itself.

        Raises:
            Unreachable: It cannot be found out.
        """
        try:
            answer = await self._ask_of(id_, "/dial", {})
        except NoDaemon as error:
            raise Unreachable(str(error)) from error
        self._connectors[id_.pool] = from_plain(answer["connector"], ConnectorConfig)
        return from_plain(answer["info"], ConnectInfo)

    def dial(self, state: LeaseState) -> AbstractAsyncContextManager[Connection]:
        """Connect, from here. When the connection dies, the daemon asks the cloud for the instance at once."""
        return self._connections.dial(state)

    def _dial_of(self, pool: str) -> Callable[[ConnectInfo], AbstractAsyncContextManager[Connection]]:
        return lambda info: self._dial(info, self._connectors[pool])

    async def keep(self, lease: Lease, asked: Mapping[str, object]) -> KeptFacts:
        """Have a lease outlive this program, for a bound.

        Raises:
            DaemonRefused: It has ended, or cannot be kept.
        """
        state, _ = inside(lease)
        if state.ended:
            raise DaemonRefused(f"the lease {lease.key!r} has ended; acquire another, and keep that")
        facts = from_plain(await self._ask_of(state.id, "/keep", asked), KeptFacts)
        state.persistent = True
        return facts

    async def _ask_of(self, id_: LeaseId, path: str, asked: Mapping[str, object]) -> Mapping[str, Any]:
        """Ask something of a lease, by the name that the daemon has for it, also over its restarts."""
        while True:
            held = self.held.get(id_.key)
            while held is not None and held.coming_back:
                await self._changed.wait()
            name = f"{id_.number:016x}" if held is None else held.name
            try:
                return await self._link.ask("POST", path, {**asked, "key": id_.key, "lease": name})
            except DaemonRefused:
                if held is None or (held.name == name and not held.coming_back):
                    raise

    # --- waiting for the end -----------------------------------------------------------------------------

    async def wait_until_empty(self) -> None:
        """Wait until nothing is held."""
        while self.held:
            await self._changed.wait()

    async def settle(self) -> None:
        """Wait until the daemon knows all that it should."""
        while self._posts:
            await self._changed.wait()

    # --- inside ------------------------------------------------------------------------------------------

    def _end(self, path: str, id_: LeaseId, **asked: object) -> None:
        held = self.held.get(id_.key)
        if held is not None and held.state.id == id_:
            del self.held[id_.key]
            self._post(path, id_.key, lease=held.name, **asked)
            self._change()

    def _lose(self, key: str, loss: Loss) -> None:
        held = self.held.pop(key)
        held.coming_back = False
        held.state.end(loss)
        self._change()

    def _suspect(self, id_: LeaseId, what: str, why: str) -> None:
        held = self.held.get(id_.key)
        if held is not None and held.state.id == id_:
            self._post("/suspect", id_.key, lease=held.name, what=what, why=_printable(why))

    def _post(self, path: str, key: str, **asked: object) -> None:
        """Notify the daemon, in the background."""
        self._posts[key] = self._posts.get(key, 0) + 1
        self._start_soon(self._send, path, key, asked)

    async def _send(self, path: str, key: str, asked: Mapping[str, object]) -> None:
        daemon = self._daemon
        try:
            await self._link.ask("POST", path, {"key": key, **asked}, wait=PROMPT)
            if daemon != self._daemon and "lease" in asked:  # what another one has kept for us ends there
                kept = await self._kept({"key": key, "request": self.new_request()})
                if kept is not None:
                    await self._link.ask("POST", path, {**asked, "key": key, "lease": kept["lease"]}, wait=PROMPT)
        except Exception as error:  # noqa: BLE001  (nobody waits for it; the daemon learns it from our silence)
            log.warning("not_notified", extra={"path": path, "key": key, "error": str(error)})
        finally:
            self._posts[key] -= 1
            if not self._posts[key]:
                del self._posts[key]
            self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _printable(why: str) -> str:
    return "".join(each for each in why if each.isprintable())[:1000]
