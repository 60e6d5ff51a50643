"""Who holds what of a daemon's fleet, against a naive model: clients come, fall silent, come back, and go."""

import os
from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from taskscaler import KeyInUse
from taskscaler._errors import DaemonRefused, NotHeld
from taskscaler._wire import ClientUnknown
from taskscaler.serve import _clients
from taskscaler.serve._clients import Client, Clients, Hold
from taskscaler.serve._peers import Peer
from taskscaler.serve._shares import has_room

MEMBER = 4001
"""A user that is not the daemon's own."""

IDS, KEYS = st.sampled_from("pqrs"), st.sampled_from("abcdef")
SECONDS = st.floats(0.5, 20)


class ClientsMachine(RuleBasedStateMachine):
    """The model: for each client when it ends and how many connections it has; for each key whose it is, and how."""

    def __init__(self) -> None:
        """Nobody is there."""
        super().__init__()
        self.clients = Clients()
        self.now = 1000.0
        self.known: dict[str, Client] = {}
        self.until: dict[str, float] = {}
        self.open: dict[str, int] = {}
        self.keys: dict[str, tuple[str, Hold, str]] = {}
        self.requests = 0

    def find(self, id_: str) -> Client | None:
        """Give the client if the model knows it."""
        return self.known.get(id_)

    def renewed(self, id_: str) -> None:
        """A client without a connection lives for its bound from now."""
        if not self.open[id_]:
            self.until[id_] = self.now + self.known[id_].ttl

    def gone(self, ids: set[str]) -> dict[str, Hold]:
        """Forget clients; gives what they had."""
        had = {key: hold for key, (owner, hold, _) in self.keys.items() if owner in ids}
        self.keys = {key: value for key, value in self.keys.items() if value[0] not in ids}
        for id_ in ids:
            del self.known[id_], self.until[id_], self.open[id_]
        return had

    @rule(id_=IDS, ttl=SECONDS)
    def opens(self, id_: str, ttl: float) -> None:
        """It begins, or lives on with another bound."""
        self.known[id_] = self.clients.open(id_, 7, 1, ttl, self.now)
        self.open.setdefault(id_, 0)
        self.renewed(id_)

    @rule(id_=IDS)
    def is_another_users(self, id_: str) -> None:
        """Nobody else gets at it."""
        if self.find(id_):
            with pytest.raises(DaemonRefused):
                self.clients.open(id_, 8, 1, 5, self.now)
        with pytest.raises(ClientUnknown):
            self.clients.find(id_, 8)

    @rule(id_=IDS)
    def connects(self, id_: str) -> None:
        """It has a connection more."""
        if client := self.find(id_):
            self.clients.connect(client)
            self.open[id_] += 1
            self.until[id_] = inf

    @rule(id_=IDS)
    def disconnects(self, id_: str) -> None:
        """It has one less."""
        client = self.find(id_)
        if client and self.open[id_]:
            self.open[id_] -= 1
            self.clients.disconnect(client, self.now)
            self.renewed(id_)

    @rule(id_=IDS)
    def renews(self, id_: str) -> None:
        """It gives a sign of life."""
        if client := self.find(id_):
            self.clients.renew(client, self.now)
            self.renewed(id_)

    @rule(id_=IDS, key=KEYS)
    def asks(self, id_: str, key: str) -> None:
        """It waits for a slot, unless the key is taken; a reservation of its own is used up."""
        if not (client := self.find(id_)):
            return
        self.requests += 1
        owner, hold, _ = self.keys.get(key, (id_, Hold.RESERVED, ""))
        if owner == id_ and hold is Hold.RESERVED:
            assert not self.clients.ask(client, key, str(self.requests))
            self.keys[key] = id_, Hold.WAITING, str(self.requests)
        else:
            with pytest.raises(KeyInUse):
                self.clients.ask(client, key, str(self.requests))

    @rule(key=KEYS)
    def is_granted(self, key: str) -> None:
        """The slot comes; asking once more with the same request says so, and changes nothing."""
        if key in self.keys:
            id_, hold, request = self.keys[key]
            assert self.clients.grant(self.known[id_], key, request) is (hold is Hold.WAITING)
            if hold is Hold.WAITING:
                self.keys[key] = id_, Hold.HELD, request
                assert self.clients.ask(self.known[id_], key, request)

    @rule(id_=IDS, key=KEYS)
    def replaces(self, id_: str, key: str) -> None:
        """It waits once more, for another slot than it has, or than sleeps under the key, which nobody has."""
        if not (client := self.find(id_)):
            return
        self.requests += 1
        owner, hold, _ = self.keys.get(key, (id_, Hold.HELD, ""))
        if owner == id_ and hold is Hold.HELD:
            assert not self.clients.replace(client, key, str(self.requests))
            self.keys[key] = id_, Hold.WAITING, str(self.requests)
        else:
            with pytest.raises(NotHeld):
                self.clients.replace(client, key, str(self.requests))

    @rule(id_=IDS, key=KEYS)
    def keeps(self, id_: str, key: str) -> None:
        """It has again what could not be replaced, unless the key is taken or it is gone."""
        client = self.find(id_) or Client(id_, 7, 1, 5, self.now)
        self.requests += 1
        kept = self.clients.keep(client, key, str(self.requests))
        assert kept is (self.find(id_) is not None and key not in self.keys)
        if kept:
            self.keys[key] = id_, Hold.HELD, str(self.requests)
            assert self.clients.replace(client, key, str(self.requests))

    @rule(key=KEYS)
    def gives_up(self, key: str) -> None:
        """Only who waits can; one that got its slot meanwhile keeps it."""
        if key in self.keys:
            id_, hold, request = self.keys[key]
            self.clients.give_up(self.known[id_], key, request)
            if hold is Hold.WAITING:
                del self.keys[key]

    @rule(id_=IDS, key=KEYS)
    def reserves(self, id_: str, key: str) -> None:
        """It keeps a slot, unless the key is taken."""
        if not (client := self.find(id_)):
            return
        if key in self.keys:
            with pytest.raises(KeyInUse):
                self.clients.reserve(client, key)
        else:
            self.clients.reserve(client, key)
            self.keys[key] = id_, Hold.RESERVED, ""

    @rule(key=KEYS)
    def drops(self, key: str) -> None:
        """The lease is released, lost, or never was."""
        self.clients.drop(key)
        self.keys.pop(key, None)

    @rule(id_=IDS)
    def ends(self, id_: str) -> None:
        """All that it had goes back, once."""
        if client := self.find(id_):
            had = self.gone({id_})
            assert {each.key: each.hold for each in self.clients.end(client)} == had
            assert self.clients.end(client) == []

    @rule(seconds=SECONDS)
    def passes(self, seconds: float) -> None:
        """Whoever was silent for too long ends, with all that it had, and nobody else."""
        self.now += seconds
        had = self.gone({id_ for id_, until in self.until.items() if until <= self.now})
        given = [*self.clients.expire(self.now)]
        assert {each.key: each.hold for each in given} == had
        assert len(given) == len(had)

    @precondition(lambda self: self.until)
    @invariant()
    def nobody_outlives_its_bound_unseen(self) -> None:
        """Whoever looks when it is told to is in time for everybody."""
        assert self.clients.next_end <= min(self.until.values())

    @invariant()
    def each_key_is_one_clients(self) -> None:
        """The clients and the model agree on whose each key is, and how."""
        assert len(self.clients) == len(self.known)
        for key in "abcdef":
            holder = self.clients.holder(key)
            assert (holder and holder.id) == (self.keys[key][0] if key in self.keys else None)
            for client in self.known.values():
                hold = self.keys[key][1] if key in self.keys and holder is client else None
                assert self.clients.hold_of(client, key) is hold


TestClientsMachine = ClientsMachine.TestCase


def test_one_user_leaves_the_others_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """And who is gone makes room."""
    monkeypatch.setattr(_clients, "MOST_CLIENTS", 4)
    clients = Clients()
    mine = [clients.open(f"p{number}", MEMBER, 1, 5, 0.0) for number in range(2)]
    with pytest.raises(DaemonRefused, match="more than a fair share"):
        clients.open("p2", MEMBER, 1, 5, 0.0)
    clients.open("q", MEMBER + 1, 1, 5, 0.0)
    with pytest.raises(DaemonRefused):
        clients.open("r", MEMBER + 2, 1, 5, 0.0)
    clients.open("s", os.geteuid(), 1, 5, 0.0)
    clients.end(mine[0])
    clients.open("r", MEMBER + 2, 1, 5, 0.0)


@given(st.integers(2, 100), st.lists(st.sampled_from([0, MEMBER, MEMBER + 1, MEMBER + 2]), max_size=200))
def test_a_bound_is_shared(most: int, wanted: list[int]) -> None:
    """However users ask: never more than fit, none of a group more than half, and something is left for ourselves."""
    taken: Counter[int] = Counter()
    for uid in wanted:
        if has_room(most, taken, Peer(uid)):
            taken[uid] += 1
    members = {uid: count for uid, count in taken.items() if uid != 0}
    assert sum(taken.values()) <= most
    assert all(count <= most // 2 for count in members.values())
    assert sum(members.values()) <= most - most // 4
    if not taken[0]:
        assert has_room(most, taken, Peer(0)) or most < 4
    if not members:
        assert has_room(most, taken, Peer(MEMBER)) == (taken[0] < most)


def test_there_are_no_more_clients_and_keys_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many is refused; those that are there go on."""
    monkeypatch.setattr(_clients, "MOST_CLIENTS", 2)
    monkeypatch.setattr(_clients, "MOST_HELD", 2)
    clients, us = Clients(), os.geteuid()
    first = clients.open("p", us, 1, 5, 0.0)
    clients.open("q", us, 1, 5, 0.0)
    with pytest.raises(DaemonRefused, match="2 clients"):
        clients.open("r", us, 1, 5, 0.0)
    assert clients.open("p", us, 1, 5, 0.0) is first
    clients.reserve(first, "a")
    clients.ask(first, "b", "1")
    with pytest.raises(DaemonRefused, match="2 keys"):
        clients.ask(first, "c", "2")
    assert not clients.ask(first, "a", "3")
