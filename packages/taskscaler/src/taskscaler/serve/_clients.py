"""Who holds what of the fleet, and until when: the clients of a daemon. Pure.

A client is one program that uses the fleet. It lives while a connection of its own is open, and for its bound after
the last one was closed or it last renewed; what it holds then goes back. A key is one client's at a time:

    (nothing) ──ask──► WAITING ──grant──► HELD ──drop──► (nothing)
        │                ▲  └───replace────┘
        └──reserve──► RESERVED

The scaler says who gets a slot; this says whose it is. Nothing here awaits, reads a clock or calls the scaler.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from itertools import count
from math import inf

from attrs import define, field, frozen

from taskscaler._errors import DaemonRefused, KeyInUse, NotHeld
from taskscaler._wire import ClientUnknown
from taskscaler.serve._peers import Peer
from taskscaler.serve._shares import has_room

MOST_CLIENTS = 10_000
"""At a time; one that opens a client for each job has a mistake in it."""

MOST_HELD = 100_000
"""Keys of one client."""


class Hold(Enum):
    """What a client has under a key."""

    WAITING = "waiting"
    HELD = "held"
    RESERVED = "reserved"


@frozen
class GiveBack:
    """A client is gone: give back what it had under a key."""

    key: str
    hold: Hold


@define(eq=False)
class Client:
    """One program that uses the fleet."""

    id: str = field(repr=False)
    """Its secret: whoever knows it, and has its user, is this client."""

    uid: int
    pid: int
    ttl: float
    """Seconds that it may be silent without a connection."""

    until: float
    """When it ends, in seconds since the epoch; infinite while it is connected."""

    looked_at: float = inf
    """When it is next looked at whether it has ended; infinite: not at all."""

    connections: int = 0
    holds: dict[str, tuple[Hold, str]] = field(factory=dict)
    """By key, with the request that it came from: who asks once more for the same gets the same."""


@define(eq=False)
class Clients:
    """All clients of a daemon."""

    _clients: dict[str, Client] = field(factory=dict, init=False)
    _owners: dict[str, Client] = field(factory=dict, init=False)
    """By key."""

    _looks: list[tuple[float, int, Client]] = field(factory=list, init=False)
    """Heap of when to look at which client; the number keeps clients from being compared."""

    _users: Counter[int] = field(factory=Counter, init=False)
    """How many each user has."""

    _numbers: Iterator[int] = field(factory=count, init=False)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._clients)

    def open(self, id_: str, uid: int, pid: int, ttl: float, now: float) -> Client:
        """Begin a client, or have one that is there live on.

        Raises:
            DaemonRefused: It is another user's, or there are too many.
        """
        client = self._clients.get(id_)
        if client is None:
            if not has_room(MOST_CLIENTS, self._users, Peer(uid)):
                why = f"the daemon has {MOST_CLIENTS} clients already, or this user has more than a fair share of them"
                raise DaemonRefused(f"{why}; use one for many leases")
            client = self._clients[id_] = Client(id_, uid, pid, ttl, now)
            self._users[uid] += 1
        elif client.uid != uid:
            raise DaemonRefused("the client belongs to another user; make one of your own")
        client.pid, client.ttl = pid, ttl
        self._renew(client, now)
        return client

    def find(self, id_: str, uid: int) -> Client:
        """Give a client to whoever knows its secret and has its user.

        Raises:
            ClientUnknown: There is none, or no longer.
        """
        client = self._clients.get(id_)
        if client is None or client.uid != uid:
            raise ClientUnknown
        return client

    def connect(self, client: Client) -> None:
        """It has one more connection open, and lives as long."""
        client.connections += 1
        client.until = inf

    def disconnect(self, client: Client, now: float) -> None:
        """It has closed a connection, or died."""
        client.connections -= 1
        self._renew(client, now)

    def renew(self, client: Client, now: float) -> None:
        """It gave a sign of life."""
        self._renew(client, now)

    def ask(self, client: Client, key: str, request: str) -> bool:
        """Let a client wait for a slot.

        Returns:
            Whether it has the slot already, from this very request, whose answer it never got.

        Raises:
            KeyInUse: The key is another client's, or this one's from another request.
            DaemonRefused: The client has too many.
        """
        owner = self._owners.get(key)
        if owner is not None:
            hold, origin = owner.holds[key]
            if owner is client and hold is Hold.HELD and origin == request:
                return True
            if owner is not client or hold is not Hold.RESERVED:
                raise KeyInUse(key)
        self._put(client, key, Hold.WAITING, request)
        return False

    def replace(self, client: Client, key: str, request: str) -> bool:
        """Let a client wait for another slot than it has, or than sleeps under the key; returns as `ask`.

        Raises:
            NotHeld: It has none that could be replaced.
        """
        owner = self._owners.get(key)
        if owner is not None and (owner is not client or owner.holds[key][0] is not Hold.HELD):
            raise NotHeld(key)
        if owner is client and client.holds[key] == (Hold.HELD, request):
            return True
        self._put(client, key, Hold.WAITING, request)
        return False

    def keep(self, client: Client, key: str, request: str) -> bool:
        """Let a client have again what it had from a request; False: it is gone, or has something else."""
        if self._clients.get(client.id) is not client or key in self._owners:
            return False
        self._put(client, key, Hold.HELD, request)
        return True

    def grant(self, client: Client, key: str, request: str) -> bool:
        """Let a client have the slot that it waited for; False: it is gone, and the slot goes back."""
        if self._owners.get(key) is not client or client.holds[key] != (Hold.WAITING, request):
            return False
        client.holds[key] = Hold.HELD, request
        return True

    def reserve(self, client: Client, key: str, request: str = "") -> bool:
        """Let a client keep a slot for later; returns whether this very request has asked before. Raises as `ask`."""
        owner = self._owners.get(key)
        if owner is client and request and client.holds[key] == (Hold.RESERVED, request):
            return True
        if owner is not None:
            raise KeyInUse(key)
        self._put(client, key, Hold.RESERVED, request)
        return False

    def drop(self, key: str) -> None:
        """Nobody has anything under the key any more."""
        owner = self._owners.pop(key, None)
        if owner is not None:
            del owner.holds[key]

    def give_up(self, client: Client, key: str, request: str) -> None:
        """The request waits no more; what became of its key meanwhile is not its business."""
        if self._owners.get(key) is client and client.holds[key] == (Hold.WAITING, request):
            self.drop(key)

    def holder(self, key: str) -> Client | None:
        """Whose a key is."""
        return self._owners.get(key)

    def hold_of(self, client: Client, key: str) -> Hold | None:
        """What a client has under a key; None: nothing."""
        return client.holds[key][0] if self._owners.get(key) is client else None

    def end(self, client: Client) -> list[GiveBack]:
        """End a client: all that it has goes back."""
        if self._clients.get(client.id) is not client:
            return []
        del self._clients[client.id]
        self._users[client.uid] -= 1
        if not self._users[client.uid]:
            del self._users[client.uid]
        given = [GiveBack(key, hold) for key, (hold, _) in client.holds.items()]
        for each in given:
            self.drop(each.key)
        return given

    def expire(self, now: float) -> Iterator[GiveBack]:
        """End the clients whose time has come. O(log n) each."""
        while self._looks and self._looks[0][0] <= now:
            at, _, client = heapq.heappop(self._looks)
            if client.looked_at == at:
                client.looked_at = inf
                if client.until <= now:
                    yield from self.end(client)
                else:
                    self._look_at(client)

    @property
    def next_end(self) -> float:
        """When to look again, in seconds since the epoch; infinite: not until a client is silent."""
        return self._looks[0][0] if self._looks else inf

    def _renew(self, client: Client, now: float) -> None:
        if not client.connections:
            client.until = now + client.ttl
            self._look_at(client)

    def _look_at(self, client: Client) -> None:
        """See to it that a client is looked at in time; one that lives on is looked at once for each bound."""
        if client.until < client.looked_at:
            client.looked_at = client.until
            heapq.heappush(self._looks, (client.until, next(self._numbers), client))

    def _put(self, client: Client, key: str, hold: Hold, request: str) -> None:
        if len(client.holds) >= MOST_HELD and key not in client.holds:
            raise DaemonRefused(f"one client has at most {MOST_HELD} keys; release some")
        client.holds[key] = hold, request
        self._owners[key] = client
