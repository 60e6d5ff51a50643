"""The ledger against a model that is slow, plain and obvious, whatever happens to nodes, keys and deliveries.

The model never guesses which of several equally good slots is taken: it checks the choice, then follows it.
"""

from collections.abc import Iterable
from math import inf
from typing import Any

import pytest
from attrs import Factory, define
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pytest import raises  # noqa: PT013  (reads as a sentence)

from fleeting.core import NOTHING, Drop, Put, Step
from fleeting.events import Loss, LossKind
from taskscaler._errors import KeyInUse, LeaseExpired, LeaseLost, NoCapacity, NotDetached, NotHeld, NotSuspended
from taskscaler._types import PoolSettings
from taskscaler.core._ledger import Ledger
from taskscaler.core._restart import Left
from taskscaler.core._slots import (
    AWAY,
    CORDON,
    DIRTY,
    EXPIRED,
    LEASE,
    ORDINARY,
    USES,
    Break,
    Capacity,
    Check,
    Clean,
    Closed,
    CordonRecord,
    Counts,
    Deliver,
    DirtyRecord,
    Expired,
    ExpiredRecord,
    LeaseId,
    LeaseRecord,
    Lists,
    Node,
    PoolSlots,
    Rarities,
    Refuse,
    UsesRecord,
    contribution,
)
from tests.strategies import EPOCH, QUICK, Records, of_type

LOSS = Loss(LossKind.VANISHED, "it is not there")
KEYS = st.integers(0, 7).map("key-{}".format)
PICKS = st.integers(0, 1000)
NOT_YET: Any = object()
"""In the place of a clean-up that is to be asked for."""

FOR_GOOD = {Closed.UNHEALTHY, Closed.DRAINING, Closed.DOOMED, Closed.RETIRED}


@define
class ModelHost:
    """An instance: what it is used for, and whether it may be used more."""

    id: str
    pool: str
    slots: int
    uses: int
    max_uses: int
    idle_since: float
    closed: Closed | None = None
    cordoned: bool = False
    retained: bool = False
    suspect: bool = False
    """Whether it is to be given no work once it is ready again."""

    taken: dict[int, str] = Factory(dict)
    dirty: dict[int, str] = Factory(dict)
    """By slot: the last user's key, if it was not cleaned since."""

    cleaning: dict[int, Clean] = Factory(dict)
    cleans: bool = True
    """Whether dirty slots are cleaned. Otherwise it gets no more work while it has any."""

    @property
    def busy(self) -> int:
        """Slots that somebody holds, or that are being cleaned."""
        return len(self.taken) + len(self.cleaning)

    @property
    def free(self) -> int:
        """Slots that nobody holds, and that are not being cleaned."""
        return self.slots - self.busy

    @property
    def room(self) -> int:
        """Slots that could be handed out, were it open."""
        return max(0, min(self.free, self.max_uses - self.uses)) if self.max_uses else self.free

    @property
    def usable(self) -> int:
        """Slots that may be handed out now."""
        return 0 if self.closed or self.cordoned else self.room

    @property
    def paused(self) -> int:
        """Slots that could be handed out, were it not paused."""
        return self.room if self.closed is Closed.PAUSED and not self.cordoned else 0

    @property
    def kept(self) -> bool:
        """Whether it counts as capacity."""
        return bool(self.busy or self.usable or self.paused) and self.closed not in AWAY

    @property
    def offered(self) -> int:
        """Slots that could be handed out, were it not asleep."""
        return 0 if self.cordoned or self.spoiled or self.suspect else self.room

    @property
    def spoiled(self) -> bool:
        """Whether something may still run in a free slot."""
        return bool(self.dirty) and not self.cleans

    @property
    def to_be_removed(self) -> bool:
        """Free, and never to be used again, and nobody has given it up yet, nor wants it kept."""
        spent = self.closed in FOR_GOOD or self.worn_out or self.suspect
        return spent and not self.busy and not self.retained and self.closed is not Closed.RETIRED

    @property
    def worn_out(self) -> bool:
        """Whether it was used as often as it may be."""
        return bool(self.max_uses) and self.uses >= self.max_uses

    def close(self, closed: Closed) -> None:
        """Take no more work; for good, it need not be clean either."""
        if self.closed not in FOR_GOOD:
            self.closed = closed
            if closed in FOR_GOOD:
                self.cleaning.clear()


@define
class ModelLease:
    """A slot in somebody's hands."""

    node: ModelHost
    slot: int
    since: float
    ticket: int
    ends_by: float
    id: LeaseId
    asked: bool = False
    """Whether a sign of life of its node is waited for."""

    delivered: bool = False
    persistent: bool = False
    pools: tuple[str, ...] = ()


@define
class ModelWaiter:
    """A place in the queue."""

    key: str
    ticket: int
    reserves: bool
    expected: float
    persistent: bool = False
    pools: tuple[str, ...] = ()


def place(id_: str) -> tuple[str, str]:
    """Pool and instance."""
    pool, _, instance = id_.partition("/")
    return pool, instance


def ids(nodes: Iterable[Node]) -> set[str]:
    """Of these nodes."""
    return {node.id for node in nodes}


class LedgerMachine(RuleBasedStateMachine):
    """Everything that may happen to a ledger, in any order."""

    @initialize(
        slots=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=2),
        cleans=st.booleans(),
        checks=st.booleans(),
        dirty=st.dictionaries(st.tuples(st.sampled_from(["p0/old", "p0/older"]), st.integers(0, 2)), KEYS, max_size=3),
        recovered=st.dictionaries(st.sampled_from(["p0/0", "p0/1", "p1/2"]), st.integers(1, 4)),
        cordons=st.dictionaries(st.sampled_from(["p0/0", "p0/1", "p1/2"]), st.sampled_from(["", "a disk fails"])),
        nodes=st.integers(0, 4),
    )
    def start(
        self,
        *,
        slots: list[tuple[int, int]],
        cleans: bool,
        checks: bool,
        dirty: dict[tuple[str, int], str],
        recovered: dict[str, int],
        cordons: dict[str, str],
        nodes: int,
    ) -> None:
        """One or two pools; some instances were used in an earlier life, maybe more often than is allowed now."""
        self.pools = {f"p{number}": each for number, each in enumerate(slots)}
        self.cleans, self.checks = cleans, checks
        recovered = {node: uses for node, uses in recovered.items() if place(node)[0] in self.pools}
        cordons = {node: why for node, why in cordons.items() if place(node)[0] in self.pools}
        left = [DirtyRecord(node, slot, key) for (node, slot), key in dirty.items()] if cleans else []
        self.ledger = Ledger(self.pool_slots(), recovered, cordons=cordons, dirty=left)
        self.cordons = cordons
        self.uses = dict(recovered)
        uses_kept = {node: UsesRecord(uses) for node, uses in recovered.items()}
        self.records = Records({USES: uses_kept, CORDON: {node: CordonRecord(why) for node, why in cordons.items()}})
        self.now = EPOCH
        self.nodes: dict[str, ModelHost] = {}
        self.leases: dict[str, ModelLease] = {}
        self.waiters: list[ModelWaiter] = []
        self.deliveries: list[Deliver] = []
        self.questions: list[Check] = []
        """To be asked of nodes before slots of theirs are delivered."""

        self.broken: list[LeaseId] = []
        self.asleep: set[str] = set()
        self.resuming: set[str] = set()
        self.called: set[str] = set()
        """Those that sleep, and that somebody waits for."""

        self.detached: dict[str, float] = {}
        """Those that nobody holds, and until when."""

        self.claimed: set[str] = set()
        """Of those, the ones that somebody waits for."""

        self.lost_detached: dict[str, bool] = {}
        """Of keys whose lease was lost: whether nobody held it when that happened last."""

        self.expires: dict[str, float] = {}
        """When those that sleep, or did, expire."""

        self.expired: dict[str, ExpiredRecord] = {}
        """Those that have, until their keys hold slots again."""

        self.tickets = 0
        self.added = self.expiries = 0
        self.shut = self.over = ""
        self.cleanups: list[Clean] = []
        """Told to be done, and not known to be over."""

        for number in range(nodes):
            self.add(number)
        if cleans:
            self.records.apply(Put(DIRTY, key, record) for key, record in self.ledger.dirty().items())
            for node in sorted({node for node, _ in dirty}):
                self.return_with(node, {slot: key for (each, slot), key in dirty.items() if each == node})

    def pool_slots(self) -> list[PoolSlots]:
        """Of all pools, without nodes."""
        return [
            PoolSlots.empty(pool, slots, uses, cleans=self.cleans, checks=self.checks)
            for pool, (slots, uses) in self.pools.items()
        ]

    def return_with(self, node: str, dirty: dict[int, str]) -> None:
        """An instance of an earlier life is ready again: what is dirty there is cleaned before it is used."""
        slots, max_uses = self.pools["p0"]
        model = ModelHost(node, "p0", slots, self.uses.get(node, 0), max_uses, self.now)
        model.dirty = {slot: key for slot, key in dirty.items() if slot < slots}
        self.nodes[node] = model
        model.cleaning = dict(self.ledger.nodes[node].cleaning)
        assert {slot: clean.key for slot, clean in model.cleaning.items()} == model.dirty
        step = self.ledger.add("p0", node.partition("/")[2], self.now)
        assert set(of_type(Clean, step.actions)) == set(model.cleaning.values())
        self.took(step)

    # --- the model -------------------------------------------------------------------------------------------

    @property
    def usable(self) -> int:
        """Slots that may be handed out now."""
        return sum(node.usable for node in self.nodes.values())

    def ticket(self) -> int:
        """The next place in the queue."""
        self.tickets += 1
        return self.tickets

    def wait(
        self,
        key: str,
        ticket: int,
        *,
        reserves: bool,
        expected: float = inf,
        persistent: bool = False,
        pools: tuple[str, ...] = (),
    ) -> None:
        """Queue up, by ticket."""
        self.waiters.append(ModelWaiter(key, ticket, reserves, expected, persistent, pools))
        self.waiters.sort(key=lambda waiter: (waiter.ticket, waiter.key))

    def waiter(self, key: str) -> ModelWaiter | None:
        """Whoever waits under the key."""
        return next((waiter for waiter in self.waiters if waiter.key == key), None)

    def took(self, step: Step) -> None:
        """Follow a step: who is served, first come first served, and from which slots."""
        self.records.apply(step.writes)
        delivered = [each for each in step.actions if isinstance(each, Check if self.checks else Deliver)]
        served = [waiter for waiter in self.turn() if not waiter.reserves]
        assert [each.lease.key for each in delivered] == [waiter.key for waiter in served], "out of turn"
        for waiter, deliver in zip(served, delivered, strict=True):
            self.waiters.remove(waiter)
            self.follow(waiter, deliver.lease)
        self.deliveries += of_type(Deliver, step.actions)
        self.questions += of_type(Check, step.actions)
        self.cleanups += of_type(Clean, step.actions)

    def turn(self) -> list[ModelWaiter]:
        """Who is given a slot, or has one kept: first come first served, but whoever is bound with what he can use."""
        turn: list[ModelWaiter] = []
        usable = {pool: sum(h.usable for h in self.nodes.values() if h.pool == pool) for pool in self.pools}
        kept = 0
        for waiter in self.waiters if not self.shut else []:
            pool = next((each for each in waiter.pools or self.pools if usable[each]), None)
            if pool is not None and sum(usable.values()) > kept:
                turn.append(waiter)
                kept += waiter.reserves
                usable[pool] -= not waiter.reserves
        return turn

    def follow(self, waiter: ModelWaiter, lease: LeaseId) -> None:
        """Check which slot was chosen, and take it in the model."""
        node = self.nodes[f"{lease.pool}/{lease.instance}"]
        assert node.usable, "a slot that may not be handed out"
        self.check_packing(node, waiter.pools)
        assert lease.slot not in node.taken, "a slot was handed out twice"
        assert lease.slot not in node.dirty, "a dirty slot was handed out"
        assert lease.slot == min(set(range(node.slots)) - set(node.taken) - set(node.cleaning))
        node.taken[lease.slot] = waiter.key
        node.uses += 1
        self.uses[node.id] = node.uses
        self.expired.pop(waiter.key, None)
        ends_by = self.now + waiter.expected
        self.leases[waiter.key] = ModelLease(
            node,
            lease.slot,
            self.now,
            waiter.ticket,
            ends_by,
            lease,
            persistent=waiter.persistent,
            pools=waiter.pools,
        )

    def check_packing(self, chosen: ModelHost, pools: tuple[str, ...]) -> None:
        """The first wanted pool that has room; there the fullest node; among free ones the last to fall idle."""
        with_room = {each.pool for each in self.nodes.values() if each.usable}
        pool = next(pool for pool in pools or self.pools if pool in with_room)
        choice = [node for node in self.nodes.values() if node.usable and node.pool == pool]
        assert chosen.pool == pool, "a less preferred pool was used"
        assert chosen.busy == max(node.busy for node in choice), "not the fullest node with room"
        if not chosen.busy:
            assert chosen.idle_since == max(node.idle_since for node in choice), "not the last to fall idle"

    def vacate(self, key: str, *, broken: bool = False) -> ModelLease:
        """Free the slot; one that was used is cleaned first, if it may be used again and nothing runs there."""
        lease = self.leases.pop(key)
        node = lease.node
        self.asleep.discard(key)
        self.resuming.discard(key)
        self.called.discard(key)
        self.claimed.discard(key)
        self.detached.pop(key, None)
        self.expires.pop(key, None)
        del node.taken[lease.slot]
        if self.cleans and lease.delivered:
            node.dirty[lease.slot] = key
            if not (broken or node.closed in FOR_GOOD or node.worn_out or node.suspect):
                node.cleaning[lease.slot] = NOT_YET
        if self.rests(node):
            node.idle_since = self.now
        return lease

    def rests(self, node: ModelHost) -> bool:
        """Whether nothing runs there."""
        return not node.cleaning and self.asleep.issuperset(node.taken.values())

    def gave_back(self, step: Step) -> None:
        """Follow what comes of a slot that was given back: exactly those that have to be are cleaned, if they can."""
        for away in [node for node in self.nodes.values() if node.closed in AWAY]:
            away.cleaning = dict(self.ledger.nodes[away.id].cleaning)
            assert away.cleaning.keys() <= away.dirty.keys()
        for clean in of_type(Clean, step.actions):
            node = self.nodes[f"{clean.pool}/{clean.instance}"]
            assert node.cleaning[clean.slot] is NOT_YET
            assert node.dirty[clean.slot] == clean.key
            node.cleaning[clean.slot] = clean
        assert not any(clean is NOT_YET for node in self.nodes.values() for clean in node.cleaning.values())
        self.took(step)

    def broke(self, node: ModelHost, step: Step, keep_until: float, *, delivered_too: bool = True) -> None:
        """Follow a break: holders are told, those not handed their slot yet wait again and notice nothing."""
        told, refused = [], []
        for key in list(node.taken.values()):
            lease = self.leases[key]
            if lease.ends_by <= keep_until or (lease.delivered and not delivered_too):
                continue
            was_detached = key in self.detached
            self.vacate(key, broken=True)
            if lease.delivered:
                told.append(lease.id)
                self.lost_detached[key] = was_detached
            elif self.over:
                refused.append(key)
            else:
                expected = lease.ends_by - lease.since
                self.wait(
                    key,
                    lease.ticket,
                    reserves=False,
                    expected=expected,
                    persistent=lease.persistent,
                    pools=lease.pools,
                )
        breaks = of_type(Break, step.actions)
        assert {each.lease for each in breaks} == set(told)
        assert sorted(each.key for each in of_type(Refuse, step.actions)) == sorted(refused)
        self.took(step)

    def a_host(self, pick: int, nodes: Iterable[ModelHost] | None = None) -> tuple[ModelHost, Node]:
        """Any of them, in the model and in the ledger."""
        among = list(self.nodes.values() if nodes is None else nodes)
        node = among[pick % len(among)]
        return node, self.ledger.nodes[node.id]

    # --- what may happen -------------------------------------------------------------------------------------

    @rule(seconds=st.floats(0.0, 100.0))
    def time_passes(self, seconds: float) -> None:
        """Later; what has slept for too long by then has expired when it had to, one after the other."""
        until = self.now + seconds
        expiries = self.ledger.expiries.timers
        while expiries.next is not None and (at := expiries.next) <= until:
            self.now = max(self.now, at)
            (key,) = [each for each in self.asleep - self.called if self.expires.get(each, inf) <= self.now]
            lease = self.vacate(key)
            self.expired[key] = ExpiredRecord(lease.node.id, lease.slot, at)
            step = self.ledger.expire(self.now)
            assert of_type(Expired, step.actions) == [Expired(lease.id)]
            self.gave_back(step)
        assert not [key for key in self.asleep - self.called if self.expires.get(key, inf) <= until]
        self.now = until

    @rule(pick=PICKS, draining=st.sampled_from(["", "", "too old"]))
    def add(self, pick: int, draining: str = "") -> None:
        """An instance became ready, perhaps too late to be of use."""
        pool = list(self.pools)[pick % len(self.pools)]
        slots, max_uses = self.pools[pool]
        instance = str(self.added)
        self.added += 1
        id_ = f"{pool}/{instance}"
        uses, cordoned = self.uses.get(id_, 0), id_ in self.cordons
        closed = Closed.DRAINING if draining else None
        self.nodes[id_] = ModelHost(
            id_, pool, slots, uses, max_uses, self.now, closed, cordoned=cordoned, cleans=self.cleans
        )
        self.took(self.ledger.add(pool, instance, self.now, draining=draining))

    @rule(
        key=KEYS,
        expected=st.sampled_from([inf, 10.0, 50.0]),
        persistent=st.booleans(),
        pools=st.sampled_from([(), (), ("p0",), ("p1",), ("p1", "p0")]),
    )
    def acquire(self, key: str, expected: float, *, persistent: bool, pools: tuple[str, ...] = ()) -> None:
        """Somebody wants a slot, reserved or not, of any pool or of certain ones."""
        pools = tuple(each for each in pools if each in self.pools)
        waiter = self.waiter(key)
        if key in self.leases or (waiter is not None and not waiter.reserves):
            with raises(KeyInUse):
                self.ledger.acquire(key, self.now, expected)
            return
        if self.over:
            with raises(NoCapacity):
                self.ledger.acquire(key, self.now, expected)
            return
        if waiter is not None:
            waiter.reserves, waiter.expected, waiter.persistent, waiter.pools = False, expected, persistent, pools
        else:
            self.wait(key, self.ticket(), reserves=False, expected=expected, persistent=persistent, pools=pools)
        self.took(self.ledger.acquire(key, self.now, expected, persistent=persistent, pools=pools))

    @precondition(lambda self: not self.over)
    @rule(key=KEYS, place=st.integers(0, 30), pools=st.sampled_from([(), ("p1",)]))
    def acquire_at(self, key: str, place: int, pools: tuple[str, ...]) -> None:
        """Somebody whose lease was lost wants another, and goes back to the place where it was."""
        if key in self.leases or self.waiter(key) is not None:
            return
        pools = tuple(each for each in pools if each in self.pools)
        self.wait(key, min(place, self.tickets), reserves=False, pools=pools)
        self.took(self.ledger.acquire(key, self.now, inf, place, pools=pools))

    @rule(key=KEYS, potential=st.integers(0, 6))
    def reserve(self, key: str, potential: int) -> None:
        """Somebody wants a slot kept."""
        if key in self.leases or self.waiter(key) is not None:
            with raises(KeyInUse):
                self.ledger.reserve(key, self.now, potential)
        elif self.shut or not self.has_room(potential):
            with raises(NoCapacity):
                self.ledger.reserve(key, self.now, potential)
        else:
            self.wait(key, self.ticket(), reserves=True)
            self.took(self.ledger.reserve(key, self.now, potential))

    def has_room(self, potential: int) -> bool:
        """Whether one more may be promised a slot: those that are bound, and wait, can only use what is to come."""
        bound = sum(bool(waiter.pools) for waiter in self.waiters)
        return self.usable + max(0, potential - bound) > len(self.waiters) - bound

    @rule(key=KEYS)
    def unreserve(self, key: str) -> None:
        """A reservation is given up."""
        self.waiters = [waiter for waiter in self.waiters if waiter.key != key or not waiter.reserves]
        self.took(self.ledger.unreserve(key, self.now))

    @rule(key=KEYS)
    def cancel(self, key: str) -> None:
        """Whoever waits, has reserved or holds wants it no more; what was to be handed over again is as it was."""
        if key in self.detached:
            self.claimed.discard(key)
            assert self.ledger.cancel(key, self.now) == NOTHING
            return
        if key in self.resuming:
            self.resuming.discard(key)
            self.asleep.add(key)
        elif key in self.leases:
            self.vacate(key)
        self.waiters = [waiter for waiter in self.waiters if waiter.key != key]
        self.gave_back(self.ledger.cancel(key, self.now))

    @precondition(lambda self: self.leases)
    @rule(pick=PICKS)
    def release(self, pick: int) -> None:
        """A slot comes back."""
        key = list(self.leases)[pick % len(self.leases)]
        self.vacate(key)
        self.gave_back(self.ledger.release(key, self.now))

    @precondition(lambda self: self.cleanups)
    @rule(pick=PICKS)
    def cleaned(self, pick: int) -> None:
        """A clean-up ends well, maybe after nobody wants it any more."""
        clean = self.cleanups.pop(pick % len(self.cleanups))
        node = self.nodes.get(f"{clean.pool}/{clean.instance}")
        wanted = node is not None and node.cleaning.get(clean.slot) is clean
        assert self.ledger.wants(clean) == wanted
        if node is not None and wanted:
            del node.cleaning[clean.slot], node.dirty[clean.slot]
            if not node.busy:
                node.idle_since = self.now
        self.took(self.ledger.cleaned(clean, self.now))

    @precondition(lambda self: self.deliveries)
    @rule(pick=PICKS)
    def deliver(self, pick: int) -> None:
        """A commit ends, maybe long after the slot was taken away again."""
        id_ = self.deliveries.pop(pick % len(self.deliveries)).lease
        lease = self.leases.get(id_.key)
        wanted = lease is not None and (not lease.delivered or id_.key in self.resuming | self.called | self.claimed)
        stands = lease is not None and wanted and lease.id == id_
        assert self.ledger.deliver(id_) is stands
        if lease is not None and stands:
            lease.delivered = True
            self.resuming.discard(id_.key)
            self.claimed.discard(id_.key)
            self.detached.pop(id_.key, None)

    @precondition(lambda self: self.questions)
    @rule(pick=PICKS)
    def ask(self, pick: int) -> None:
        """A commit ends, and the node is to be asked, if the slot still stands."""
        id_ = self.questions.pop(pick % len(self.questions)).lease
        lease = self.leases.get(id_.key)
        stands = lease is not None and lease.id == id_
        assert self.ledger.check(id_) is stands
        if lease is not None and stands:
            lease.asked = True

    @precondition(lambda self: self.nodes)
    @rule(pick=PICKS)
    def confirm_alive(self, pick: int) -> None:
        """A node gives a sign of life: what it was asked for is delivered, once."""
        model, node = self.a_host(pick)
        asked = [self.leases[key] for key in model.taken.values() if self.leases[key].asked]
        step = self.ledger.confirm_alive(node)
        assert {each.lease for each in of_type(Deliver, step.actions)} == {lease.id for lease in asked}
        for lease in asked:
            lease.asked = False
        self.deliveries += of_type(Deliver, step.actions)

    @precondition(lambda self: self.questions)
    @rule()
    def ask_and_confirm(self) -> None:
        """As after a quick commit, and of nodes that are well."""
        while self.questions:
            self.ask(0)
        for number in range(len(self.nodes)):
            self.confirm_alive(number)

    @precondition(lambda self: self.awake())
    @rule(pick=PICKS, ttl=st.sampled_from([None, inf, 0.0, 5.0, 90.0]))
    def suspend(self, pick: int, ttl: float | None) -> None:
        """A lease sleeps, for ever, for so long, or for as long as before, and leaves the scaling maths."""
        awake = self.awake()
        lease = self.leases[awake[pick % len(awake)]]
        self.expiries += 1
        expires_at = None if ttl is None else self.now + ttl + self.expiries / 1000  # no two at the same moment
        if expires_at is not None:
            self.expires[lease.id.key] = expires_at
        self.asleep.add(lease.id.key)
        if self.rests(lease.node):
            lease.node.idle_since = self.now
        self.took(self.ledger.suspend(lease.id, self.now, expires_at))

    def awake(self) -> list[str]:
        """Those that are in somebody's hands."""
        others = self.asleep | self.resuming | self.detached.keys()
        return [key for key, each in self.leases.items() if each.delivered and key not in others]

    @rule(key=KEYS)
    def resume(self, key: str) -> None:
        """A lease that sleeps is handed out again, the same slot on the same node; no other is."""
        if key not in self.asleep:
            late = key in self.expired and key not in self.leases
            with raises(LeaseExpired if late else NotSuspended, match="expired" if late else "no lease"):
                self.ledger.resume(key)
            return
        if key in self.called:
            with raises(NotSuspended):
                self.ledger.resume(key)
            return
        step = self.ledger.resume(key)
        if self.leases[key].node.closed in AWAY:
            self.called.add(key)
            assert step == NOTHING
            return
        self.asleep.discard(key)
        self.resuming.add(key)
        self.records.apply(step.writes)
        (deliver,) = of_type(Deliver, step.actions)
        assert deliver.lease == self.leases[key].id
        self.deliveries.append(deliver)

    @rule(key=KEYS)
    def reattach(self, key: str) -> None:
        """A lease that nobody holds is handed over, in its slot on its node; no other is, and none to two."""
        if key in self.detached and key not in self.claimed and not self.over:
            step = self.ledger.reattach(key)
            self.claimed.add(key)
            deliveries = of_type(Deliver, step.actions)
            away = self.leases[key].node.closed in AWAY
            assert [each.lease for each in deliveries] == ([] if away else [self.leases[key].id])
            assert not step.writes
            self.deliveries += deliveries
            return
        lost = self.lost_detached.get(key, False) and key not in self.leases
        free = key in self.detached and key not in self.claimed
        with raises(LeaseLost if lost else NoCapacity if free else NotDetached):
            self.ledger.reattach(key)

    @precondition(lambda self: any(self.leases[key].persistent for key in self.awake()))
    @rule(pick=PICKS)
    def detach(self, pick: int) -> None:
        """Whoever holds a persistent lease lets go of it."""
        keys = [key for key in self.awake() if self.leases[key].persistent]
        key = keys[pick % len(keys)]
        self.detached[key] = self.now + 30.0
        self.ledger.detach(self.leases[key].id, self.now + 30.0)

    @rule(key=KEYS, by=st.sampled_from([5.0, 90.0, inf]))
    def bound_detached(self, key: str, by: float) -> None:
        """A detached lease is kept for another time, or for ever; no other is touched."""
        if key in self.detached:
            self.detached[key] = self.now + by
        self.ledger.bound_detached(key, self.now + by)

    @precondition(lambda self: self.detached.keys() - self.claimed)
    @rule(pick=PICKS, used_on=st.booleans())
    def give_up(self, pick: int, *, used_on: bool) -> None:
        """Nobody has come for a detached lease: its slot is cleaned, or its node gets no more work."""
        keys = sorted(self.detached.keys() - self.claimed)
        key = keys[pick % len(keys)]
        lease, node = self.leases[key], self.leases[key].node
        cleaned = used_on or (self.cleans and (len(node.taken) > 1 or node.retained))
        step = self.ledger.give_up(key, self.now, used_on=used_on)
        assert [each.lease for each in of_type(Break, step.actions)] == [lease.id]
        self.lost_detached[key] = True
        self.vacate(key, broken=not cleaned)
        if not cleaned:
            node.dirty[lease.slot] = key
            if node.closed not in AWAY or not node.taken:
                node.close(Closed.DRAINING)
        self.gave_back(step)

    @precondition(lambda self: all(self.expires.get(key, inf) > self.now for key in self.called))
    @rule(keep_used=st.booleans(), ended=st.booleans())
    def restart(self, *, keep_used: bool, ended: bool) -> None:
        """The manager is killed, or ends without deleting anything; the next one goes on with what the journal has."""
        if ended:
            self.end()
        leases, cleans = self.records[LEASE], self.cleans
        kept = {key: record for key, record in leases.items() if record.suspended or record.persistent}
        used = {(record.host, record.slot): key for key, record in leases.items() if key not in kept}
        used |= {(record.host, record.slot): record.key for record in self.records[DIRTY].values()}
        settings = [
            PoolSettings(name=pool, capacity_per_instance=slots, instance_cleanup_command="clean" if cleans else None)
            for pool, (slots, _) in self.pools.items()
        ]
        left = Left.of(settings, self.records.kinds, keep_used=keep_used)
        self.ledger = Ledger(
            self.pool_slots(),
            left.uses,
            left.kept,
            left.cordons,
            left.dirty,
            expired=left.expired,
            reattach_by=self.now + 60.0,
        )
        self.records.apply(left.writes(self.ledger))
        self.detached = {key: self.now + 60.0 for key, record in kept.items() if not record.suspended}
        self.asleep = kept.keys() - self.detached.keys()
        self.expires = {key: at for key, at in self.expires.items() if key in self.asleep}
        self.nodes, self.leases, self.waiters = {}, {}, []
        for stale in (self.resuming, self.called, self.claimed, self.lost_detached):
            stale.clear()
        for queue in (self.deliveries, self.questions, self.cleanups):
            queue.clear()
        self.tickets, self.shut, self.over = 0, "", ""
        lasting = {record.host for record in kept.values() if record.persistent}
        for host in sorted({*(record.host for record in kept.values()), *(host for host, _ in used)}):
            own = {key: record for key, record in kept.items() if record.host == host}
            dirty = {slot: key for (each, slot), key in used.items() if each == host}
            stays = host in lasting or (cleans and bool(own))
            self.come_back(host, own, dirty if (cleans if keep_used else stays) else {})
            if dirty and not (stays or keep_used) and host in self.nodes:
                self.lose_node(host)

    @precondition(lambda self: not (self.over or self.called))
    @rule(pick=PICKS, keep_used=st.booleans(), ended=st.booleans(), ready=st.booleans(), comes=st.booleans())
    def leases_outlive_their_manager(
        self, *, pick: int, keep_used: bool, ended: bool, ready: bool, comes: bool
    ) -> None:
        """Leases are handed out, persistent ones among them; a manager follows, and perhaps who had them."""
        self.add(pick)
        keys = [f"key-{(pick + number) % 8}" for number in range(1 + pick % 4)]
        for number, key in enumerate(keys):
            self.acquire(key, inf, persistent=(pick >> number) % 3 > 0)
        self.ask_and_confirm()
        self.deliver_all()
        self.restart(keep_used=keep_used, ended=ended)
        for key in keys if comes else []:
            self.reattach(key)
        while pick % 2 and self.detached.keys() - self.claimed:
            self.give_up(pick, used_on=keep_used)
        for node in [node for node in self.nodes.values() if ready and node.closed in AWAY]:
            self.wake([each.id for each in self.nodes.values() if each.closed in AWAY].index(node.id), True, "")

    def end(self) -> None:
        """A manager ends: who holds or waits for a persistent lease hears so, and the next manager has it."""
        self.shut_down()
        leaves = {key for key, each in self.leases.items() if each.persistent and each.delivered} - self.asleep
        step = self.ledger.detach_all("the end")
        assert {each.lease.key for each in of_type(Break, step.actions)} == leaves - self.detached.keys()
        assert {each.key for each in of_type(Refuse, step.actions)} == self.claimed
        assert not step.writes
        for node in list(self.ledger.nodes.values()):
            self.records.apply(self.ledger.break_all(node, LOSS, self.now, all_too=False).writes)
        assert self.records[LEASE].keys() == leaves | self.asleep
        assert self.ledger.detached.keys() == leaves

    def come_back(self, host: str, kept: dict[str, LeaseRecord], dirty: dict[int, str]) -> None:
        """An instance is a node from the start if leases on it go on, or if it has to be cleaned."""
        if not (kept or dirty):
            assert host not in self.ledger.nodes
            return
        pool, _ = place(host)
        slots, max_uses = self.pools[pool]
        model = ModelHost(host, pool, slots, self.uses.get(host, 0), max_uses, 0.0, Closed.RETURNING)
        model.cordoned, model.cleans, model.dirty = host in self.cordons, self.cleans, dirty
        self.nodes[host] = model
        model.cleaning = dict(self.ledger.nodes[host].cleaning)
        assert {slot: clean.key for slot, clean in model.cleaning.items()} == (dirty if self.cleans else {})
        for key, record in kept.items():
            id_ = self.ledger.leases[key].id
            model.taken[record.slot] = key
            self.leases[key] = ModelLease(
                model, record.slot, record.since, 0, inf, id_, delivered=True, pools=record.pools
            )
            self.leases[key].persistent = record.persistent

    @precondition(lambda self: self.called)
    @rule(pick=PICKS)
    def give_up_resuming(self, pick: int) -> None:
        """Whoever waits for a sleeping instance does so no more; the lease sleeps on."""
        key = sorted(self.called)[pick % len(self.called)]
        self.called.discard(key)
        assert self.ledger.cancel(key, self.now) == NOTHING

    @precondition(lambda self: self.replaceable())
    @rule(pick=PICKS)
    def replace(self, pick: int) -> None:
        """A lease gives its slot back, and waits for one elsewhere at its old place: there it is served again."""
        keys = self.replaceable()
        key = keys[pick % len(keys)]
        if self.over:
            with raises(NoCapacity):
                self.ledger.replace(key, self.now, "it is slow")
            return
        lease = self.leases[key]
        node = lease.node
        if node.closed in AWAY:
            node.suspect = True
            node.cleaning.clear()
        else:
            node.close(Closed.UNHEALTHY)
        self.vacate(key, broken=True)
        expected = lease.ends_by - lease.since
        self.wait(key, lease.ticket, reserves=False, expected=expected, persistent=lease.persistent, pools=lease.pools)
        self.broke(node, self.ledger.replace(key, self.now, "it is slow"), -inf, delivered_too=False)
        assert key not in self.leases or self.leases[key].node is not node

    def replaceable(self) -> list[str]:
        """Those that somebody holds, or that sleep and nobody waits for."""
        others = self.resuming | self.called | self.detached.keys()
        return [key for key, each in self.leases.items() if each.delivered and key not in others]

    @rule(key=KEYS)
    def replace_what_is_not_held(self, key: str) -> None:
        """Nothing happens."""
        if key not in self.replaceable():
            with raises(KeyInUse if key in self.resuming | self.called else NotHeld):
                self.ledger.replace(key, self.now, "it is slow")

    @precondition(lambda self: any(self.may_sleep(node) for node in self.nodes.values()))
    @rule(pick=PICKS)
    def fall_asleep(self, pick: int) -> None:
        """An instance on which nothing runs is suspended, or could not be resumed."""
        model, node = self.a_host(pick, filter(self.may_sleep, self.nodes.values()))
        model.closed = Closed.ASLEEP
        self.ledger.sleep(node.pool, node.instance, "nothing runs there")

    def may_sleep(self, node: ModelHost) -> bool:
        """Whether its instance may be suspended."""
        return (self.rests(node) or node.closed is Closed.RETURNING) and node.closed not in FOR_GOOD

    @rule()
    def appear_asleep(self) -> None:
        """An instance that was never ready is suspended."""
        slots, max_uses = self.pools["p0"]
        id_, self.added = f"p0/{self.added}", self.added + 1
        uses, cordoned = self.uses.get(id_, 0), id_ in self.cordons
        self.nodes[id_] = ModelHost(
            id_, "p0", slots, uses, max_uses, 0.0, Closed.ASLEEP, cordoned=cordoned, cleans=self.cleans
        )
        self.ledger.sleep("p0", id_.partition("/")[2], "somebody else did it")

    @precondition(lambda self: any(node.closed in AWAY for node in self.nodes.values()))
    @rule(pick=PICKS, ready=st.booleans(), draining=st.sampled_from(["", "", "too old"]))
    def wake(self, pick: int, ready: bool, draining: str) -> None:  # noqa: FBT001  (drawn)
        """A suspended instance is on its way, and perhaps ready: who waits for a lease there is handed its slot."""
        model, node = self.a_host(pick, [node for node in self.nodes.values() if node.closed in AWAY])
        model.closed = Closed.WAKING
        self.ledger.wake(node)
        if not ready:
            return
        closed = draining or model.spoiled or model.suspect
        model.closed, model.idle_since = Closed.DRAINING if closed else None, self.now
        if closed:
            model.cleaning.clear()
        step = self.ledger.add(node.pool, node.instance, self.now, draining=draining)
        awaited = self.called | self.claimed
        woken = [each for each in of_type(Deliver, step.actions) if each.lease.key in awaited]
        assert {each.lease.key for each in woken} == awaited & set(model.taken.values())
        for each in [each for each in woken if each.lease.key in self.called]:
            self.called.discard(each.lease.key)
            self.asleep.discard(each.lease.key)
            self.resuming.add(each.lease.key)
        self.deliveries += woken
        self.took(Step(step.writes, [each for each in step.actions if each not in woken]))

    @precondition(lambda self: self.deliveries)
    @rule()
    def deliver_all(self) -> None:
        """As after a quick commit."""
        while self.deliveries:
            self.deliver(0)

    @precondition(lambda self: self.nodes)
    @rule(pick=PICKS, closed=st.sampled_from([Closed.PAUSED, Closed.LEAVING, Closed.UNHEALTHY, Closed.DRAINING]))
    def close(self, pick: int, closed: Closed) -> None:
        """A node takes no new work."""
        model, node = self.a_host(pick)
        if model.closed not in AWAY:
            model.close(closed)
            self.ledger.close(node, closed, "a reason")

    @precondition(lambda self: any(node.closed or self.shut for node in self.nodes.values()))
    @rule(pick=PICKS)
    def take_back(self, pick: int) -> None:
        """Of a closed node, slots that are still on their way are handed out elsewhere; what is held stays held."""
        model, node = self.a_host(pick, [node for node in self.nodes.values() if node.closed or self.shut])
        self.broke(model, self.ledger.take_back(node, self.now), -inf, delivered_too=False)

    @precondition(lambda self: self.nodes)
    @rule(pick=PICKS)
    def reopen(self, pick: int) -> None:
        """A node takes new work again, unless closed for good."""
        model, node = self.a_host(pick)
        if model.closed in AWAY:
            return
        if model.closed not in FOR_GOOD:
            model.closed = None
        self.took(self.ledger.reopen(node, self.now))

    @precondition(lambda self: self.nodes)
    @rule(pick=PICKS, seconds=st.sampled_from([5.0, 30.0, 200.0]))
    def doom(self, pick: int, seconds: float) -> None:
        """A node goes at a deadline; work that ends before it stays."""
        model, node = self.a_host(pick)
        if model.closed in AWAY:
            return
        model.close(Closed.DOOMED)
        deadline = self.now + seconds
        self.ledger.close(node, Closed.DOOMED, "notice was given")
        self.broke(model, self.ledger.break_late(node, deadline, LOSS, self.now), deadline)

    @precondition(lambda self: any(node.closed in FOR_GOOD or self.over for node in self.nodes.values()))
    @rule(pick=PICKS)
    def break_all(self, pick: int) -> None:
        """Only where nothing is handed out any more: else a retry could meet what broke it."""
        model, node = self.a_host(pick, [node for node in self.nodes.values() if node.closed in FOR_GOOD or self.over])
        self.broke(model, self.ledger.break_all(node, LOSS, self.now), -inf)

    @precondition(lambda self: self.nodes)
    @rule(pick=PICKS)
    def lose(self, pick: int) -> None:
        """A node is gone."""
        self.lose_node(self.a_host(pick)[0].id)

    def lose_node(self, id_: str) -> None:
        """It is no more, and neither is what was held there."""
        node, model = self.ledger.nodes[id_], self.nodes.pop(id_)
        model.close(Closed.RETIRED)
        self.broke(model, self.ledger.lose(node, LOSS, self.now), -inf)

    @rule(pick=PICKS, why=st.sampled_from(["", "it is slow"]))
    def cordon(self, pick: int, why: str) -> None:
        """An operator wants an instance to get no new work, whether or not it is a node yet."""
        ids = [*self.nodes, "p0/99"]
        id_ = ids[pick % len(ids)]
        self.cordons[id_] = why
        if id_ in self.nodes:
            self.nodes[id_].cordoned = True
        self.took(self.ledger.cordon(*place(id_), why))

    @precondition(lambda self: self.cordons or self.nodes)
    @rule(pick=PICKS)
    def uncordon(self, pick: int) -> None:
        """It may be given work again, unless it is closed for another reason."""
        ids = [*self.cordons, *self.nodes]
        id_ = ids[pick % len(ids)]
        self.cordons.pop(id_, None)
        if id_ in self.nodes:
            self.nodes[id_].cordoned = False
        self.took(self.ledger.uncordon(*place(id_), self.now))

    @precondition(lambda self: any(node.closed is not Closed.RETIRED for node in self.nodes.values()))
    @rule(pick=PICKS, retained=st.booleans())
    def retain(self, pick: int, retained: bool) -> None:  # noqa: FBT001  (drawn)
        """An operator wants a node to be kept, or no longer."""
        model, node = self.a_host(pick, [node for node in self.nodes.values() if node.closed is not Closed.RETIRED])
        model.retained = retained
        self.ledger.retain(node, retained=retained)

    @precondition(lambda self: any(not (node.busy or node.retained) for node in self.nodes.values()))
    @rule(pick=PICKS)
    def retire(self, pick: int) -> None:
        """A free node is given up."""
        free = [node for node in self.nodes.values() if not (node.busy or node.retained)]
        model, node = self.a_host(pick, free)
        model.closed = Closed.RETIRED
        self.ledger.retire(node)

    @precondition(lambda self: any(node.busy or node.retained for node in self.nodes.values()))
    @rule(pick=PICKS)
    def retire_what_is_busy_or_retained(self, pick: int) -> None:
        """Nobody can have a busy or a retained node removed by mistake."""
        _, node = self.a_host(pick, [node for node in self.nodes.values() if node.busy or node.retained])
        with raises(AssertionError):
            self.ledger.retire(node)

    @precondition(lambda self: bool({*self.uses, *self.cordons} - set(self.nodes)))
    @rule(pick=PICKS)
    def forget(self, pick: int) -> None:
        """A gone node's uses and cordon need not be known any longer."""
        gone = sorted({*self.uses, *self.cordons} - set(self.nodes))
        node = gone[pick % len(gone)]
        self.uses.pop(node, None)
        self.cordons.pop(node, None)
        self.took(self.ledger.end(*place(node), self.now))

    @rule()
    def hold_back(self) -> None:
        """The journal fails."""
        self.shut = self.shut or "the journal fails"
        self.ledger.hold_back("the journal fails")

    @precondition(lambda self: self.shut)
    @rule()
    def hand_out_again(self) -> None:
        """The journal works again."""
        self.shut = self.over
        self.took(self.ledger.hand_out_again("the journal fails", self.now))

    @precondition(lambda self: self.tickets > 12)
    @rule()
    def shut_down(self) -> None:
        """The scaler is being stopped: whoever waits is refused."""
        waiting = [waiter.key for waiter in self.waiters if not waiter.reserves]
        self.waiters = []
        self.shut = self.over = "the end"
        step = self.ledger.shut_down("the end")
        assert sorted(each.key for each in of_type(Refuse, step.actions)) == sorted(waiting)
        self.took(step)

    # --- what always holds -----------------------------------------------------------------------------------

    @invariant()
    def never_above_capacity_or_the_use_limit(self) -> None:
        """No node has more leases than slots, and none was used more often than allowed in this life."""
        for node in self.ledger.nodes.values():
            slots, _ = self.pools[node.pool]
            assert len(node.leases) + len(node.cleaning) == node.busy <= slots
            assert 0 <= node.usable <= slots - node.busy
            assert node.usable <= max(0.0, node.uses_left)

    @invariant()
    def no_slot_is_handed_out_twice(self) -> None:
        """Every lease has a slot to itself, and every taken slot is some lease's."""
        leased = {(lease.node.id, lease.slot): key for key, lease in self.ledger.leases.items()}
        taken = {
            (node.id, number): lease.key
            for node in self.ledger.nodes.values()
            for among in (node.awake, node.asleep)
            for number, lease in among.items()
        }
        assert len(leased) == len(self.ledger.leases)
        assert leased == taken
        assert set(leased.values()) == set(self.leases)

    @invariant()
    def each_slot_is_in_one_state_and_the_sums_are_right(self) -> None:
        """The counts of all states are those of a recount from scratch, and add up to all slots."""
        nodes = self.nodes.values()
        capacity = self.ledger.capacity()
        reservations = sum(waiter.reserves for waiter in self.waiters)
        fulfilled = min(self.usable, reservations) if not self.shut else capacity.reserved
        suspended = len(self.asleep)
        acquired = len(self.leases) - suspended
        unhealthy = sum(node.free for node in nodes if node.closed is Closed.UNHEALTHY)
        every = sum(node.slots for node in nodes)
        fulfilled = sum(waiter.reserves for waiter in self.turn()) if not self.shut else fulfilled
        assert capacity == Capacity(
            idle=self.usable - fulfilled,
            reserved=fulfilled,
            acquired=acquired,
            suspended=suspended,
            unavailable=every - acquired - suspended - unhealthy - self.usable,
            unhealthy=unhealthy,
            pending=len(self.waiters) - reservations,
            promised=reservations - fulfilled,
        )
        free = (capacity.idle, capacity.reserved, capacity.unavailable, capacity.unhealthy)
        states = (*free, capacity.acquired, capacity.suspended)
        assert sum(states) == every
        assert min(states) >= 0

    @invariant()
    def nobody_waits_while_a_slot_is_idle(self) -> None:
        """No waiter starves: who still waits could not be served."""
        capacity = self.ledger.capacity()
        if not self.shut:
            assert not (capacity.idle and (self.ledger.pending_for_any or capacity.promised))
            usable = {node.pool for node in self.nodes.values() if node.usable}
            assert not (capacity.idle and any(not usable.isdisjoint(pools) for pools in self.ledger.bound))

    @invariant()
    def the_queue_is_in_order(self) -> None:
        """First come, first served; who was taken off a lost node before delivery keeps the place."""
        acquires = [waiter.key for waiter in self.ledger.queue() if not waiter.reserves]
        assert acquires == [waiter.key for waiter in self.waiters if not waiter.reserves]
        assert self.ledger.reserved == sum(waiter.reserves for waiter in self.waiters)

    @invariant()
    def a_busy_node_is_never_to_be_removed(self) -> None:
        """What is to be removed is free and spent; and everything free and spent is to be removed."""
        assert not any(node.busy for node in self.ledger.to_remove)
        assert ids(self.ledger.to_remove) == {node.id for node in self.nodes.values() if node.to_be_removed}

    @invariant()
    def the_pools_count_right(self) -> None:
        """The counters that decisions read are those of a recount from scratch."""
        for pool, pool_slots in self.ledger.pools.items():
            nodes = [node for node in self.nodes.values() if node.pool == pool]
            assert ids(pool_slots.nodes.values()) == {node.id for node in nodes}
            assert pool_slots.counts.usable == sum(node.usable for node in nodes)
            taken = [key for node in nodes for key in node.taken.values()]
            assert pool_slots.counts.rare.suspended == sum(key in self.asleep for key in taken)
            assert pool_slots.counts.acquired == len(taken) - pool_slots.counts.rare.suspended
            assert pool_slots.counts.rare.cleaning == sum(len(node.cleaning) for node in nodes)
            active = [node for node in nodes if not self.rests(node)]
            assert pool_slots.counts.blocked == sum(
                node.free - (node.offered if node.closed in AWAY else node.usable) for node in active
            )
            assert pool_slots.counts.rare.asleep == sum(node.offered for node in nodes if node.closed is Closed.ASLEEP)
            returners = [node for node in nodes if node.closed in {Closed.WAKING, Closed.RETURNING}]
            assert pool_slots.counts.rare.returning == sum(node.offered for node in returners)
            assert pool_slots.counts.rare.returners == len(returners)
            assert pool_slots.counts.rare.paused == sum(node.paused for node in nodes)
            assert pool_slots.counts.kept == sum(node.kept for node in nodes)
            assert pool_slots.counts.rare.unhealthy == sum(
                node.free for node in nodes if node.closed is Closed.UNHEALTHY
            )
        assert self.ledger.usable == self.usable

    @invariant()
    def the_counters_are_what_the_nodes_contribute(self) -> None:
        """What was added and subtracted with each change comes to what a recount gives."""
        for pool_slots in self.ledger.pools.values():
            counted = [contribution(node) for node in pool_slots.nodes.values()]
            assert [node.counts for node in pool_slots.nodes.values()] == counted
            assert pool_slots.counts == Counts(
                acquired=sum(each.acquired for each in counted),
                usable=sum(each.usable for each in counted),
                kept=sum(each.kept for each in counted),
                blocked=sum(each.blocked for each in counted),
                to_remove=sum(each.to_remove for each in counted),
                rare=Rarities(
                    *(sum(values) for values in zip(ORDINARY, *(each.rare for each in counted), strict=True))
                ),
            )
            assert ids(pool_slots.to_remove.values()) == ids(
                node for node in pool_slots.nodes.values() if node.counts.to_remove
            )
            for nodes, each in zip(pool_slots.lists, Lists._fields, strict=True):
                assert ids(nodes.values()) == ids(
                    node for node in pool_slots.nodes.values() if getattr(node.counts.rare, each)
                )

    @invariant()
    def what_sleeps_or_might_is_known(self) -> None:
        """No index misses a node, nor holds one that does not belong there."""
        nodes, ledger = self.nodes.values(), self.ledger
        asleep = {
            node.id
            for node in nodes
            if node.closed is Closed.ASLEEP and not node.suspect and (node.offered or not node.busy)
        }
        resting = [node for node in nodes if self.rests(node) and node.taken and not (node.cordoned or node.retained)]
        wears = [node for node in resting if node.closed is None or (node.closed is Closed.DRAINING and not node.dirty)]
        assert ids(node for each in ledger.pools.values() for node in each.lists.sleepers.values()) == asleep
        assert ids(ledger.suspendable) == {node.id for node in wears}
        to_be_cleaned = {node.id for node in nodes if node.closed in AWAY and node.cleaning}
        awaited = [self.leases[key].node for key in self.called | self.claimed]
        assert ids(ledger.wake_requested) == {node.id for node in awaited if node.closed in AWAY} | to_be_cleaned

    @invariant()
    def a_detached_lease_is_reattached_or_given_up_never_both(self) -> None:
        """It can be given up for as long as nobody has come for it, and no other lease can."""
        ledger = self.ledger
        assert {key: each.reattach_by for key, each in ledger.detached.items()} == self.detached
        assert dict(ledger.deadlines.items()) == {
            key: by for key, by in self.detached.items() if key not in self.claimed
        }
        assert {key for key, each in ledger.leases.items() if each.detached} == self.detached.keys()
        assert {each.key for each in ledger.list_detached()} == self.detached.keys()
        assert ledger.held == ledger.acquired - len(self.detached.keys() - self.claimed)

    @invariant()
    def no_slot_of_a_detached_lease_is_handed_out(self) -> None:
        """It counts as acquired, and is neither free nor cleaned."""
        for lease in self.ledger.detached.values():
            assert lease.node.awake[lease.slot] is lease
            assert lease.slot not in lease.node.vacant
            assert lease.slot not in lease.node.cleaning

    @invariant()
    def who_is_bound_is_counted_by_the_pools(self) -> None:
        """The decision reads how many wait for a slot of which pools."""
        bound = [waiter.pools for waiter in self.waiters if waiter.pools and not waiter.reserves]
        assert self.ledger.bound == {pools: bound.count(pools) for pools in bound}
        assert self.ledger.pending_for_any == self.ledger.pending - len(bound)

    @invariant()
    def the_longest_idle_is_given_up_first(self) -> None:
        """The free usable nodes of a pool are offered for removal in the order in which they fell idle."""
        for pool in self.pools:
            idle = [node for node in self.nodes.values() if node.pool == pool and node.usable and not node.busy]
            order = [self.nodes[node.id].idle_since for node in self.ledger.longest_idle(pool)]
            assert order == sorted(node.idle_since for node in idle)

    @invariant()
    def what_is_cordoned_may_go_once_it_is_idle(self) -> None:
        """Cordoned nodes that hold nothing, and are neither closed nor spent nor to be kept, may be given up."""
        for pool in self.pools:
            idle = [node for node in self.nodes.values() if node.pool == pool and not (node.busy or node.closed)]
            offered = {node.id for node in self.ledger.idle_cordoned(pool)}
            assert offered == {node.id for node in idle if node.cordoned and node.room and not node.retained}

    @invariant()
    def what_is_cleaned_is_dirty(self) -> None:
        """A slot is cleaned, or it is free, or somebody holds it."""
        for node in self.nodes.values():
            assert self.ledger.nodes[node.id].cleaning == node.cleaning
            assert set(node.cleaning) <= set(node.dirty)
            assert not set(node.dirty) & set(node.taken)

    @invariant()
    def the_journal_holds_exactly_the_leases_uses_cordons_and_dirty_slots(self) -> None:
        """A restart at any moment finds all of them: no slot is given to anybody who should not have it."""
        leases = {
            key: LeaseRecord(
                lease.node.id,
                lease.slot,
                lease.since,
                key in self.asleep,
                self.when_expired(key),
                lease.persistent,
                lease.pools,
            )
            for key, lease in self.leases.items()
        }
        assert self.records[EXPIRED] == self.expired
        assert self.records[LEASE] == leases
        assert self.records[USES] == {node: UsesRecord(uses) for node, uses in self.uses.items()}
        assert self.records[CORDON] == {node: CordonRecord(why) for node, why in self.cordons.items()}
        assert self.records[DIRTY] == {
            f"{node.id}/{slot}": DirtyRecord(node.id, slot, key)
            for node in self.nodes.values()
            for slot, key in node.dirty.items()
        }

    def when_expired(self, key: str) -> float | None:
        """When a lease ends if it sleeps on; None: never, or it does not sleep."""
        at = self.expires.get(key, inf) if key in self.asleep else inf
        return at if at < inf else None


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=150, stateful_step_count=50, phases=QUICK)


# --- single rules, and what the machine found -----------------------------------------------------------------


def a_ledger(slots: int = 1, max_uses: int = 0, uses: dict[str, int] | None = None, nodes: int = 0) -> Ledger:
    """One pool with so many nodes, named 0, 1 and so on."""
    ledger = Ledger([PoolSlots.empty("p", slots, max_uses)], uses)
    for number in range(nodes):
        ledger.add("p", str(number), EPOCH + number)
    return ledger


def test_an_instance_used_more_than_is_allowed_now_offers_nothing() -> None:
    """After a restart with a lower `max_use_count` an instance may be past it: it is free, and to be removed."""
    ledger = a_ledger(slots=2, max_uses=2, uses={"p/0": 5}, nodes=1)
    assert ledger.usable == 0
    assert ids(ledger.to_remove) == {"p/0"}
    assert ledger.capacity().unavailable == 2


def test_without_a_journal_leases_come_and_go_without_a_record() -> None:
    """Nobody would keep one, and there is one for each job."""
    ledger = Ledger([PoolSlots.empty("p", slots=1, max_uses=0)], journaled=False)
    ledger.add("p", "0", EPOCH)
    steps = [ledger.acquire("first", EPOCH), ledger.acquire("second", EPOCH)]
    steps += [ledger.release(key, EPOCH) for key in ("first", "second")]
    assert not any(step.writes for step in steps)
    assert [each.lease.key for step in steps for each in step.actions] == ["first", "second"]


def test_who_loses_a_slot_before_delivery_while_the_journal_fails_goes_on_waiting() -> None:
    """Holding back is for a moment: nobody is refused because of it."""
    ledger = a_ledger(nodes=1)
    ledger.acquire("key", EPOCH)
    ledger.hold_back("the journal fails")
    step = ledger.lose(ledger.nodes["p/0"], LOSS, EPOCH)
    assert step.actions == ()
    assert [waiter.key for waiter in ledger.queue()] == ["key"]
    ledger.add("p", "1", EPOCH)
    (deliver,) = ledger.hand_out_again("the journal fails", EPOCH).actions
    assert isinstance(deliver, Deliver)
    assert deliver.lease.instance == "1"


def test_who_lost_a_slot_before_delivery_passes_a_later_reservation() -> None:
    """The place in the queue is kept: a slot kept for a later reservation goes to whoever came first."""
    ledger = a_ledger(nodes=2)
    (deliver,) = of_type(Deliver, ledger.acquire("first", EPOCH).actions)
    ledger.reserve("second", EPOCH, 0)
    (again,) = of_type(Deliver, ledger.lose(ledger.nodes[f"p/{deliver.lease.instance}"], LOSS, EPOCH).actions)
    assert again.lease.key == "first"
    assert ledger.capacity().promised == 1


def test_a_lost_lease_goes_back_to_its_old_place() -> None:
    """Whoever was first is first again, before those who came while it held its slot, and before what they reserved."""
    ledger = a_ledger(nodes=2)
    (first,) = of_type(Deliver, ledger.acquire("first", EPOCH).actions)
    (second,) = of_type(Deliver, ledger.acquire("second", EPOCH).actions)
    places = {lease.key: ledger.leases[lease.key].ticket for lease in (first.lease, second.lease)}
    for key in ("first", "second"):
        ledger.deliver(ledger.leases[key].id)
    ledger.acquire("third", EPOCH)
    ledger.reserve("fourth", EPOCH, 4)
    for lost in (first, second):
        ledger.lose(ledger.nodes[f"p/{lost.lease.instance}"], LOSS, EPOCH)
    ledger.acquire("second", EPOCH, place=places["second"])
    ledger.acquire("first", EPOCH, place=places["first"])
    assert [waiter.key for waiter in ledger.queue()] == ["first", "second", "third", "fourth"]
    ledger.acquire("fifth", EPOCH)
    assert ledger.queue()[-1].key == "fifth"


@pytest.mark.parametrize(("key", "is_served"), [("first", True), ("third", False)])
def test_a_place_that_a_reservation_has_is_shared_in_the_order_of_the_queue(key: str, *, is_served: bool) -> None:
    """A ticket of before a restart may be somebody else's by now; both wait as the queue says, slot or none."""
    ledger = a_ledger(nodes=1)
    ledger.reserve("second", EPOCH, 1)
    (place,) = [waiter.ticket for waiter in ledger._fulfilled.values()]
    assert bool(of_type(Deliver, ledger.acquire(key, EPOCH, place=place).actions)) is is_served


def test_reservations_that_come_and_go_leave_nothing_behind() -> None:
    """A runner that reserves, finds no job and gives up, all day long, on an empty fleet, costs no memory."""
    ledger = a_ledger()
    for number in range(1000):
        ledger.reserve(f"key-{number}", EPOCH, 1)
        ledger.unreserve(f"key-{number}", EPOCH)
    assert len(ledger._queue) <= 100


def test_a_host_that_paused_for_a_moment_keeps_its_idle_order() -> None:
    """One bad read does not make the longest idle node the last to go."""
    ledger = a_ledger(nodes=2)
    ledger.close(ledger.nodes["p/0"], Closed.PAUSED, "one bad read")
    ledger.reopen(ledger.nodes["p/0"], EPOCH + 10)
    assert [node.id for node in ledger.longest_idle("p")] == ["p/0", "p/1"]


def test_an_operators_wish_leaves_the_idle_order_alone() -> None:
    """An instance that was held for a while is given up in its turn."""
    ledger = a_ledger(nodes=3)
    ledger.cordon("p", "0", "")
    ledger.uncordon("p", "0", EPOCH + 10)
    ledger.retain(ledger.nodes["p/1"], retained=True)
    ledger.retain(ledger.nodes["p/1"], retained=False)
    assert [node.id for node in ledger.longest_idle("p")] == ["p/0", "p/1", "p/2"]


def test_a_use_counts_when_the_slot_is_handed_out() -> None:
    """A cancelled hand-over frees the slot and keeps the use."""
    ledger = a_ledger(max_uses=1, nodes=1)
    step = ledger.acquire("key", EPOCH)
    assert Put(USES, "p/0", UsesRecord(1)) in step.writes
    assert Drop(LEASE, "key") in ledger.cancel("key", EPOCH).writes
    assert ledger.usable == 0
    assert ids(ledger.to_remove) == {"p/0"}
