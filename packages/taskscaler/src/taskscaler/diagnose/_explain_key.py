"""Where a key stands: what can be told of a job, or of whoever else asked for a slot."""

from collections.abc import Iterator

from attrs import frozen

from fleeting.config import did_you_mean
from fleeting.plugins import span
from taskscaler._wording import iso
from taskscaler.core._mediator import Core
from taskscaler.core._slots import Closed, Held, LostLease, Waiter
from taskscaler.diagnose._explain import SCHEMA_VERSION, explain, in_lines
from taskscaler.diagnose._forecast import Next, Upcoming, forecast


@frozen(kw_only=True)
class KeyExplanation:
    """One key; `str()` of it is for people."""

    at: float
    """Seconds since the epoch."""

    key: str
    state: str
    """``waiting``, ``reserved``, ``assigned`` (a slot, not handed over yet), ``holding``, ``suspended``, ``lost`` or
    ``unknown``."""

    since: float | None = None
    """When it came to be so, seconds since the epoch."""

    place: int | None = None
    """In the queue, from 1; None if it is not there, as when a slot is kept for its reservation."""

    queue: int = 0
    """How many are in the queue."""

    instance: str | None = None
    """Which holds, or held, its slot."""

    pool: str | None = None
    slot: int | None = None
    why: str
    """Why it stands there."""

    lost: str = ""
    """How it lost a slot before, if it did; also if it has another by now."""

    next: tuple[Upcoming, ...] = ()
    """What time alone will bring that concerns it, soonest first."""

    @property
    def answer(self) -> str:
        """Where it stands, in one sentence."""
        for_ = f" for {span(self.at - self.since)}" if self.since is not None else ""
        match self.state:
            case "waiting":
                return f"{self.key} waits for a slot{for_}{self._in_queue}: {self.why}"
            case "reserved":
                return f"{self.key} has a reservation{for_}{self._in_queue}: {self.why}"
            case "assigned":
                return f"{self.key} is being handed slot {self.slot} of {self.instance}{for_}: {self.why}"
            case "holding" | "suspended":
                does = "holds" if self.state == "holding" else "sleeps in"
                return f"{self.key} {does} slot {self.slot} of {self.instance}{for_}" + (self.why and f": {self.why}")
            case "lost":
                return f"{self.key} {self.lost}; nobody has asked for a slot under this key since"
        return f"{self.key} is not known: {self.why}"

    @property
    def _in_queue(self) -> str:
        return f", as number {self.place} of {self.queue}" if self.place and self.queue > 1 else ""

    def details(self) -> Iterator[str]:
        """One thought each."""
        if self.lost and self.state != "lost":
            yield f"it {self.lost}"

    def sentences(self) -> Iterator[str]:
        """The answer, what belongs to it, and what will happen next: one thought each."""
        yield self.answer
        yield from self.details()
        yield from map(str, self.next)

    def __str__(self) -> str:
        """All sentences, a line each."""
        return in_lines(self.answer, self.details(), self.next)

    def as_dict(self) -> dict[str, object]:
        """Plain data, as docs/reference/explain-json.md describes it."""
        return {
            "version": SCHEMA_VERSION,
            "about": "key",
            "at": iso(self.at),
            "answer": self.answer,
            "details": list(self.details()),
            "key": self.key,
            "state": self.state,
            "since": None if self.since is None else iso(self.since),
            "place": self.place,
            "queue": self.queue,
            "instance": self.instance,
            "pool": self.pool,
            "slot": self.slot,
            "why": self.why,
            "lost": self.lost,
            "next": [each.as_dict() for each in self.next],
        }


def explain_key(core: Core, key: str, now: float) -> KeyExplanation:
    """Tell where a key stands."""
    ledger = core.ledger
    loss = ledger.lost.get(key)
    lost = _lost(loss, now) if loss else ""
    if held := ledger.leases.get(key):
        return _holding(core, held, lost, now)
    if waiter := ledger.waiter(key):
        return _waiting(core, waiter, lost, now)
    if loss:
        return _gone(key, loss, lost, now)
    hint = did_you_mean(key, [*ledger.leases, *(waiter.key for waiter in ledger.queue())])
    why = "it holds no slot and waits for none" + (f"; {hint}" if hint else "")
    return KeyExplanation(at=now, key=key, state="unknown", why=why)


def _holding(core: Core, held: Held, lost: str, now: float) -> KeyExplanation:
    host = held.host
    on_host = (item for item in forecast(core, now) if item.pool == host.pool and host.instance in item.instances)
    return KeyExplanation(
        at=now,
        key=held.key,
        state="suspended" if held.suspended else "holding" if held.delivered else "assigned",
        since=held.since,
        instance=host.instance,
        pool=host.pool,
        slot=held.slot,
        why=_on_its_sleep(held) if held.delivered else core.journal_error or "that is remembered first",
        lost=lost,
        next=tuple(item for item in on_host if item.what is not Next.CHECK),
    )


def _on_its_sleep(held: Held) -> str:
    """How far it is with the instance of a lease that sleeps, if that sleeps, too."""
    waits = "it is to be resumed, and " if held.resuming else ""
    match held.host.closed if held.suspended else None:
        case Closed.ASLEEP:
            return f"{waits}its instance sleeps, too"
        case Closed.WAKING:
            return f"{waits}its instance is being resumed"
    return ""


def _waiting(core: Core, waiter: Waiter, lost: str, now: float) -> KeyExplanation:
    overall = explain(core, now)
    queue = [each.key for each in core.ledger.queue()]
    kept = waiter.key not in queue
    return KeyExplanation(
        at=now,
        key=waiter.key,
        state="reserved" if waiter.reserves else "waiting",
        since=waiter.asked_at,
        place=None if kept else queue.index(waiter.key) + 1,
        queue=len(queue),
        why="a slot is kept for it" if kept else overall.answer,
        lost=lost,
        next=() if kept else overall.next,
    )


def _gone(key: str, loss: LostLease, lost: str, now: float) -> KeyExplanation:
    return KeyExplanation(
        at=now,
        key=key,
        state="lost",
        since=loss.at,
        instance=loss.host.instance,
        pool=loss.host.pool,
        slot=loss.slot,
        why=str(loss.loss),
        lost=lost,
    )


def _lost(loss: LostLease, now: float) -> str:
    return f"lost slot {loss.slot} of {loss.host.instance} {span(now - loss.at)} ago: {loss.loss}"
