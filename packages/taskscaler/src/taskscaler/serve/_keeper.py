"""The leases that outlive their clients: written down, ended when their time has come, with what was left in them.

While no client has one, it is detached in the scaler, without a bound there: `_kept` says until when it is kept, and
this sees to it. A daemon that is killed finds all of them again on the disk, and the slots in the scaler's journal.
"""

import json
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from math import inf
from pathlib import Path
from secrets import token_hex

import anyio
from anyio import to_thread
from attrs import asdict, define, field

from fleeting import ConfigError, FleetingError
from fleeting.plugins import make_private, span, structure, write_whole
from taskscaler._errors import DaemonRefused, NotDetached
from taskscaler._lease import Lease
from taskscaler._left_there import is_running, remove_all
from taskscaler._observe import LeaseEvent, ScalerEvent
from taskscaler._scaler import Taskscaler, bound_detached
from taskscaler.serve._bodies import Keep
from taskscaler.serve._kept import Due, Kept
from taskscaler.serve._peers import Peer
from taskscaler.serve._shares import has_room

MOST_KEPT = 1_000
"""At a time."""

MOST_REMEMBERED = 1_000
"""Of those that have ended, by which those who come back learn why."""

END_TIMEOUT = 60.0
"""Seconds that ending what was left on an instance may take. After them the instance goes, and so does that."""

LOOK_TIMEOUT = 30.0
"""Seconds that looking may take."""

RETRY = 60.0
"""Seconds until what could not be done is tried again, as when the daemon is draining."""

_ENDED: Mapping[str, str] = {
    "released": "was given back",
    "lost": "was lost",
    "suspended": "was suspended",
    "expired": "has expired",
    "replaced": "was replaced",
}
"""What becomes of leases that are kept no longer, as the scaler calls it and in words."""

log = logging.getLogger("taskscaler.serve")


@define(eq=False)
class Keeper:
    """Keeps them."""

    scaler: Taskscaler
    now: Callable[[], float]
    start_soon: Callable[..., object]
    """Runs a task for as long as the daemon."""

    directory: Path | None = None
    """Where they are written down. None: nowhere, so that they end with the daemon."""

    kept: dict[str, Kept] = field(factory=dict, init=False)
    """By key."""

    ended: OrderedDict[str, str] = field(factory=OrderedDict, init=False)
    """What became of the last that have ended, by key."""

    _in_hand: dict[str, Lease] = field(factory=dict, init=False)
    """Leases that no client has and that are not detached, because a drain is to wait for them."""

    _at_work: dict[str, anyio.Event] = field(factory=dict, init=False)
    """Keys of leases that are being looked at or ended, with what is set afterwards."""

    _started: set[str] = field(factory=set, init=False)
    """Keys of leases of which something is due that is being done."""

    _not_before: dict[str, float] = field(factory=dict, init=False)
    """When to try again what could not be done, by key."""

    _holds: bool = field(default=False, init=False)
    """Whether leases that clients let go of are to stay in hand."""

    _disk: anyio.Lock = field(factory=anyio.Lock, init=False)
    _unwritten: set[str] = field(factory=set, init=False)
    _news: anyio.Event = field(factory=anyio.Event, init=False)
    """Set when something may be due sooner than the last look has shown, or is to be written."""

    @property
    def left(self) -> int:
        """How many no client has."""
        return sum(kept.left_at is not None for kept in self.kept.values())

    @property
    def in_hand(self) -> int:
        """How many no client has, and are waited for before the instances are deleted."""
        return len(self._in_hand)

    # --- the daemon's life -------------------------------------------------------------------------------

    async def take_up(self) -> None:
        """Keep what an earlier daemon has kept, if the slots are still there.

        Raises:
            OSError: The directory cannot be used.
        """
        if self.directory is None:
            return
        there = {each.key for each in self.scaler.detached}
        for kept in await to_thread.run_sync(_found, self.directory):
            if kept.key in there:
                self.kept[kept.key] = kept.left(self.now())
                bound_detached(self.scaler, kept.key, inf)
            else:
                self._forget(kept.key, "was lost while the daemon was away")
            self._note(kept.key)

    async def watch(self) -> None:
        """End leases whose time has come, and write down what changes, for as long as the daemon runs."""
        while True:
            self._news = anyio.Event()
            for key, kept in list(self.kept.items()):
                if self._is_free(key):
                    match kept.due(self.now()):
                        case Due.LOOK:
                            self._start(self._look, key)
                        case Due.END:
                            self._start(self._end_in_time, key)
            while self._unwritten:
                await self._write_quietly(self._unwritten.pop())
            wait = min((self._next(key) for key in self.kept if key not in self._started), default=inf) - self.now()
            with anyio.move_on_after(None if wait == inf else max(0.0, wait)):
                await self._news.wait()

    def hear(self, event: ScalerEvent) -> None:
        """Learn what becomes of the leases; an observer."""
        if isinstance(event, LeaseEvent) and event.what in _ENDED and event.key in self.kept:
            self._forget(event.key, _ENDED[event.what] + (f": {event.why}" if event.why else ""))

    async def hold_all(self) -> None:
        """Have all leases in hand, so that whoever waits until none is held waits for these, too."""
        self._holds = True
        for key, kept in list(self.kept.items()):
            if kept.left_at is not None and key not in self._in_hand:
                await self._try(self._hold, key)

    # --- what clients do ---------------------------------------------------------------------------------

    async def keep(self, key: str, uid: int, asked: Keep) -> Kept:
        """Keep a lease that a client has, beyond the client's end; or keep it otherwise.

        Raises:
            DaemonRefused: There are too many, or it cannot be written down.
        """
        known = self.kept.get(key)
        if known is None and not has_room(MOST_KEPT, Counter(each.uid for each in self.kept.values()), Peer(uid)):
            why = f"{MOST_KEPT} leases are kept already, or too many of this user's"
            raise DaemonRefused(f"{why}; `taskscaler stop` ends one", status=503)
        kept = known or Kept(key=key, name=token_hex(8), uid=uid)
        self.kept[key] = kept.wanted(
            asked.ttl, asked.idle_timeout, stays=asked.stays, there=asked.there, noted=asked.noted
        )
        self.ended.pop(key, None)
        try:
            await self._write(key)
        except OSError as error:
            if known is None:
                self.kept.pop(key, None)
            why = f"the lease cannot be kept, because that could not be stored ({error.strerror}); try later"
            raise DaemonRefused(why, status=507) from error
        return self.kept.get(key, kept)

    def take(self, key: str) -> None:
        """A client is about to have it; nothing happens if there is none."""
        if kept := self.kept.get(key):
            self.kept[key] = kept.taken()
            self._note(key)

    def leave(self, key: str, lease: Lease | None = None) -> None:
        """Its client is gone, or never got it; nothing happens if there is none.

        Args:
            key: Of the lease.
            lease: What the client had of it.
        """
        if kept := self.kept.get(key):
            self.kept[key] = kept.left(self.now())
            if lease is not None:
                self._put_back(key, lease)
            self._note(key)

    async def settle(self, key: str) -> None:
        """Wait until nothing is being done about a lease."""
        while at_work := self._at_work.get(key):
            await at_work.wait()

    async def end(self, key: str, why: str, lease: Lease | None = None) -> bool:
        """End a lease, and what was left in it, even if whoever waits for that goes away.

        Args:
            key: Of a lease that is kept.
            why: What is said to those who come back.
            lease: What a client had of it until now.

        Returns:
            Whether all that was left is gone; if not, its instance is removed.

        Raises:
            LeaseLost: It was lost before.
            NoCapacity: The daemon is draining; the next one ends it.
        """
        removed: list[bool] = []
        failures: list[FleetingError] = []
        over = anyio.Event()

        async def end() -> None:
            try:
                removed.append(await self._end(key, why, lease))
            except FleetingError as error:
                failures.append(error)
            finally:
                over.set()

        self.start_soon(end)
        await over.wait()
        if failures:
            raise failures[0]
        return all(removed)

    # --- inside ------------------------------------------------------------------------------------------

    def _is_free(self, key: str) -> bool:
        return key not in self._started and self._not_before.get(key, 0.0) <= self.now()

    def _next(self, key: str) -> float:
        return max(self.kept[key].next_at, self._not_before.get(key, 0.0))

    def _start(self, what: Callable[[str], object], key: str) -> None:
        self._started.add(key)
        self.start_soon(self._try, what, key)

    async def _try(self, what: Callable[[str], object], key: str) -> None:
        """Do something about a lease; what fails is tried again later."""
        try:
            await what(key)  # type: ignore[misc]
        except FleetingError as error:
            log.info("lease_not_ended", extra={"key": key, "error": str(error)})
            if key in self.kept:
                self._not_before[key] = self.now() + RETRY
        finally:
            self._started.discard(key)
            self._news.set()

    @asynccontextmanager
    async def _working(self, key: str) -> AsyncIterator[None]:
        """Be the only one who does something about a lease."""
        await self.settle(key)
        done = self._at_work[key] = anyio.Event()
        try:
            yield
        finally:
            del self._at_work[key]
            done.set()
            self._news.set()

    async def _pick_up(self, key: str) -> Lease:
        """Take a lease that no client has."""
        return self._in_hand.pop(key, None) or await self.scaler.reattach(key)

    def _put_back(self, key: str, lease: Lease) -> None:
        """Let it wait for the next client."""
        if self._holds and not lease.ended:
            self._in_hand[key] = lease
        else:
            lease.detach()
            bound_detached(self.scaler, key, inf)

    async def _hold(self, key: str) -> None:
        async with self._working(key):
            kept = self.kept.get(key)
            if kept is not None and kept.left_at is not None and key not in self._in_hand:
                self._in_hand[key] = await self.scaler.reattach(key, timeout=LOOK_TIMEOUT)

    async def _end_in_time(self, key: str) -> None:
        if kept := self.kept.get(key):
            await self._end(key, f"has ended: nobody used it for {span(kept.bound)}", in_time=True)

    async def _end(self, key: str, why: str, lease: Lease | None = None, *, in_time: bool = False) -> bool:
        async with self._working(key):
            kept = self.kept.get(key)
            if kept is None or (in_time and kept.due(self.now()) is not Due.END):  # a client was sooner
                return True
            lease = lease or await self._pick_up(key)
            removed = await self._remove(kept, lease)
            self._forget(key, why)
            if removed:
                lease.release()
            else:
                lease.detach()
                bound_detached(self.scaler, key, self.now())
            return removed

    async def _remove(self, kept: Kept, lease: Lease) -> bool:
        """Remove what was left on the instance; returns whether it is gone."""
        if not kept.there:
            return True
        try:
            with anyio.fail_after(END_TIMEOUT):
                async with lease.unless_lost(), lease.dial() as connection:
                    await remove_all(connection, kept.name, noted=kept.noted)
        except Exception as error:
            log.warning("left_on_instance", exc_info=error, extra={"key": kept.key, "instance": lease.instance})
            return False
        return True

    async def _look(self, key: str) -> None:
        """See whether a command still runs; one that cannot be looked at counts as running."""
        async with self._working(key):
            kept = self.kept.get(key)
            if kept is None or kept.due(self.now()) is not Due.LOOK:
                return
            lease, running = await self._pick_up(key), True
            try:
                with anyio.fail_after(LOOK_TIMEOUT):
                    async with lease.unless_lost(), lease.dial() as connection:
                        running = await is_running(connection, kept.name)
            except Exception as error:  # noqa: BLE001  (the same)
                log.info("not_looked_at", extra={"key": key, "error": str(error)})
            if kept := self.kept.get(key):  # else it was lost meanwhile
                self.kept[key] = kept.seen(self.now(), running=running)
                self._put_back(key, lease)
                self._note(key)

    def _forget(self, key: str, why: str) -> None:
        self.kept.pop(key, None)
        self._in_hand.pop(key, None)
        self._not_before.pop(key, None)
        self.ended.pop(key, None)
        self.ended[key] = why
        while len(self.ended) > MOST_REMEMBERED:
            self.ended.popitem(last=False)
        self._note(key)

    def _note(self, key: str) -> None:
        """It has changed."""
        self._unwritten.add(key)
        self._news.set()

    async def _write_quietly(self, key: str) -> None:
        try:
            await self._write(key)
        except OSError as error:  # the next daemon takes it for one that was left later, or ends it sooner
            log.warning("lease_not_written", extra={"key": key, "error": str(error)})

    async def _write(self, key: str) -> None:
        """Write down how it is now."""
        if self.directory is not None:
            async with self._disk:
                await to_thread.run_sync(_store, self.directory, key, self.kept.get(key))


def check_detached(keeper: Keeper, key: str, error: NotDetached) -> NotDetached:
    """Say of a lease that is kept no longer what became of it."""
    why = keeper.ended.get(key)
    return error if why is None or error.held else NotDetached(key, why, held=False)


def _file_of(directory: Path, key: str) -> Path:
    return directory / f"{sha256(key.encode()).hexdigest()[:32]}.json"


def _store(directory: Path, key: str, kept: Kept | None) -> None:
    path = _file_of(directory, key)
    if kept is None:
        path.unlink(missing_ok=True)
    else:
        make_private(directory)
        write_whole(path, json.dumps(asdict(kept)).encode())


def _found(directory: Path) -> list[Kept]:
    """Read all; what is damaged is none, and its slot goes as if nobody had kept it."""
    found: list[Kept] = []
    for path in sorted(directory.glob("*.json")):
        try:
            found.append(structure(json.loads(path.read_bytes()), Kept))
        except (ConfigError, ValueError) as error:
            log.warning("kept_lease_damaged", extra={"file": str(path), "error": str(error)})
            path.unlink()
    return found
