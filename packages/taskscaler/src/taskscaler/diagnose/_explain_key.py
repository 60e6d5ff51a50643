"""Where a key stands: what is known about a job, or whoever else asked for a slot."""

from collections.abc import Iterator, Mapping

from attrs import frozen

from fleeting.config import did_you_mean
from fleeting.plugins import span
from taskscaler._wording import finite, iso
from taskscaler.core._slots import Assignment, Closed, ExpiredRecord, LostLease, Waiter
from taskscaler.diagnose._answer import ScalerAnswer
from taskscaler.diagnose._explain import explain
from taskscaler.diagnose._forecast import Next
from taskscaler.diagnose._snapshot import Snapshot


@frozen(kw_only=True)
class KeyExplanation(ScalerAnswer):
    """One key, and what time alone will bring that concerns it."""

    about = "key"

    key: str
    """The key that was asked about."""

    state: str
    """``waiting``, ``reserved``, ``assigned`` (a slot, not handed over yet), ``holding``, ``detached``, ``suspended``,
    ``expired`` (suspended for too long), ``lost`` or ``unknown``."""

    since: float | None = None
    """When it came to be so, seconds since the epoch."""

    place: int | None = None
    """In the queue, from 1; None if it is not there, as when a slot is kept for its reservation."""

    queue: int = 0
    """How many are in the queue."""

    instance: str | None = None
    """Which holds, or held, its slot."""

    pool: str | None = None
    """Name of the pool that its instance belongs to."""

    pools: tuple[str, ...] = ()
    """Of which pools the slot may be that it waits for, in order of preference; empty: of any."""

    slot: int | None = None
    """The number of its slot, from 0."""

    expires_at: float | None = None
    """When it expires unless it is resumed by then, seconds since the epoch; None: it does not."""

    reattach_by: float | None = None
    """When it is given up unless it is reattached by then, seconds since the epoch; None: it is not."""

    why: str
    """Why it stands there."""

    lost: str = ""
    """How it lost a slot before, if it did; also if it has another by now."""

    @property
    def answer(self) -> str:
        """Where it stands, in one sentence."""
        for_ = f" for {span(self.at - self.since)}" if self.since is not None else ""
        match self.state:
            case "waiting":
                return f"{self.key} has been waiting for a slot{self._of_pools}{for_}{self._in_queue}: {self.why}"
            case "reserved":
                made = f", made {span(self.at - self.since)} ago" if self.since is not None else ""
                return f"{self.key} has a reservation{made}{self._in_queue}: {self.why}"
            case "assigned":
                return f"{self.key} has been waiting to receive slot {self.slot} of {self.instance}{for_}: {self.why}"
            case "holding" | "suspended" | "detached":
                ends = "" if self.state == "holding" else f" and is {self.state}"
                why = self.why and f": {self.why}"
                return f"{self.key} has held slot {self.slot} of {self.instance}{for_}{ends}{why}"
            case "lost":
                return f"{self.key} {self.lost}; nobody has requested a slot for this key since"
        ended = "is unknown" if self.since is None else f"expired {span(self.at - self.since)} ago"
        return f"{self.key} {ended}: {self.why}"

    @property
    def _of_pools(self) -> str:
        return f" of {' or '.join(self.pools)}" if self.pools else ""

    @property
    def _in_queue(self) -> str:
        return f", number {self.place} of {self.queue} in the queue" if self.place and self.queue > 1 else ""

    def details(self) -> Iterator[str]:
        """One thought each."""
        if self.lost and self.state != "lost":
            yield f"it {self.lost}"

    def data(self) -> Mapping[str, object]:
        """See `Answer.data`."""
        return {
            "key": self.key,
            "state": self.state,
            "since": None if self.since is None else iso(self.since),
            "place": self.place,
            "queue": self.queue,
            "instance": self.instance,
            "pool": self.pool,
            "pools": list(self.pools),
            "slot": self.slot,
            "expires_at": None if self.expires_at is None else iso(self.expires_at),
            "reattach_by": None if self.reattach_by is None else iso(self.reattach_by),
            "why": self.why,
            "lost": self.lost,
        }


def explain_key(snapshot: Snapshot, key: str) -> KeyExplanation:
    """Where a key stands."""
    ledger, now = snapshot.core.ledger, snapshot.now
    loss = ledger.lost.get(key)
    lost = _lost(loss, now) if loss else ""
    if assignment := ledger.leases.get(key):
        return _holding(snapshot, assignment, lost)
    if waiter := ledger.waiter(key):
        return _waiting(snapshot, waiter, lost)
    expired = ledger.expiries.expired.get(key)
    if expired and not (loss and loss.at > expired.at):
        return _expired(key, expired, lost, now)
    if loss:
        return _gone(key, loss, lost, now)
    hint = did_you_mean(key, [*ledger.leases, *(waiter.key for waiter in ledger.queue())])
    why = "it neither holds a slot nor waits for one" + (f"; {hint}" if hint else "")
    return KeyExplanation(at=now, key=key, state="unknown", why=why)


def _holding(snapshot: Snapshot, assignment: Assignment, lost: str) -> KeyExplanation:
    node, unwritten = assignment.node, snapshot.core.journal_error or "the journal records that first"
    on_node = snapshot.upcoming_of(node.pool, node.instance)
    return KeyExplanation(
        at=snapshot.now,
        key=assignment.key,
        state=_state(assignment),
        since=assignment.since,
        instance=node.instance,
        pool=node.pool,
        slot=assignment.slot,
        expires_at=snapshot.core.ledger.expiries.at(assignment.key),
        reattach_by=finite(assignment.reattach_by),
        why=_on_its_way_back(assignment) if assignment.delivered else unwritten,
        lost=lost,
        next=tuple(item for item in on_node if item.what is not Next.CHECK),
    )


def _state(assignment: Assignment) -> str:
    if not assignment.delivered:
        return "assigned"
    return "suspended" if assignment.suspended else "detached" if assignment.detached else "holding"


def _on_its_way_back(assignment: Assignment) -> str:
    """What a lease waits for that nobody holds, or that sleeps."""
    if assignment.detached:
        if not assignment.resuming:
            return "it waits for somebody to reattach it"
        return "somebody is reattaching it, and waits for its instance to be ready"
    waits = "it is resuming, and " if assignment.resuming else ""
    match assignment.node.closed if assignment.suspended else None:
        case Closed.ASLEEP:
            return f"{waits}its instance is suspended too"
        case Closed.WAKING:
            return f"{waits}its instance is resuming"
    return ""


def _waiting(snapshot: Snapshot, waiter: Waiter, lost: str) -> KeyExplanation:
    overall = explain(snapshot)
    queue = [each.key for each in snapshot.core.ledger.queue()]
    kept = waiter.key not in queue
    return KeyExplanation(
        at=snapshot.now,
        key=waiter.key,
        state="reserved" if waiter.reserves else "waiting",
        since=waiter.asked_at,
        place=None if kept else queue.index(waiter.key) + 1,
        queue=len(queue),
        pools=waiter.pools,
        why="a slot is kept for it" if kept else overall.answer,
        lost=lost,
        next=() if kept else overall.next,
    )


def _expired(key: str, expired: ExpiredRecord, lost: str, now: float) -> KeyExplanation:
    pool, _, instance = expired.host.partition("/")
    return KeyExplanation(
        at=now,
        key=key,
        state="expired",
        since=expired.at,
        instance=instance,
        pool=pool,
        slot=expired.slot,
        why=f"nobody resumed it in time; it was suspended in slot {expired.slot} of {instance}",
        lost=lost,
    )


def _gone(key: str, loss: LostLease, lost: str, now: float) -> KeyExplanation:
    return KeyExplanation(
        at=now,
        key=key,
        state="lost",
        since=loss.at,
        instance=loss.lease.instance,
        pool=loss.lease.pool,
        slot=loss.lease.slot,
        why=str(loss.loss),
        lost=lost,
    )


def _lost(loss: LostLease, now: float) -> str:
    return f"lost slot {loss.lease.slot} of {loss.lease.instance} {span(now - loss.at)} ago: {loss.loss}"
