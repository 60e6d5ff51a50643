"""What `top` knows of a daemon's fleet: read from answers, kept up to date by events. Pure.

Events say at once what has happened to an instance or a lease. What they do not say (who waits, how often an instance
was used, that somebody has cordoned it) comes with the next answers.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from attrs import evolve, field, frozen

from taskscaler.cli._operate import cost_rows

MOST_DECISIONS = 200
"""Of the last ones, so many are kept."""

Place = tuple[str, str]
"""A pool's name, and an instance's id."""

READ_AS = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading an answer raises that is not the daemon's of our release."""


@frozen(kw_only=True)
class Instance:
    """One instance."""

    pool: str
    id: str
    state: str
    """As `InstanceView` has it."""

    since: float
    """When it was first seen, in seconds since the epoch."""

    slots: tuple[str | None, ...] = ()
    """By slot number: the key that holds it, or None."""

    cleaning: int = 0
    """How many of them are being cleaned."""

    uses: int = 0
    why: str = ""
    cordoned: str | None = None
    retained: str | None = None

    @property
    def place(self) -> Place:
        """What tells it from all others."""
        return self.pool, self.id

    @property
    def held(self) -> int:
        """How many of its slots are held."""
        return sum(key is not None for key in self.slots)

    @property
    def notes(self) -> str:
        """What is to be known of it besides its state; empty: nothing."""
        wishes = (("cordoned", self.cordoned), ("retained", self.retained))
        words = [f"{word} ({why})" if why else word for word, why in wishes if why is not None]
        cleaning = [f"{self.cleaning} being cleaned"] if self.cleaning else []
        return ", ".join([*words, *([self.why] if self.why else []), *cleaning])


@frozen(kw_only=True)
class Job:
    """A key: it waits for a slot, or holds one."""

    key: str
    state: str
    """``waiting``, ``reserved`` or ``running``."""

    since: float | None = None
    """Seconds since the epoch; None: before anybody looked."""

    place: int | None = None
    """In the queue, from 1."""

    pool: str = ""
    instance: str = ""
    slot: int = 0
    why: str = ""
    """What it waits for."""


@frozen(kw_only=True)
class Said:
    """A decision in words."""

    at: float
    text: str


@frozen(kw_only=True)
class Fleet:
    """All of it, at one moment."""

    name: str = ""
    """The file of the fleet."""

    state: str = ""
    """``serving`` or ``draining``."""

    answer: str = ""
    """Why there is (no) capacity, in a sentence."""

    capacity: Mapping[str, int] = field(factory=dict)
    """Slots by state, and who waits."""

    pools: Mapping[str, str] = field(factory=dict)
    """The instances of each pool, counted in words."""

    cost: str = ""
    """What the fleet has come to since the daemon began, in words."""

    ceilings: Mapping[str, int | None] = field(factory=dict)
    """How many instances each pool may have; None: any number."""

    ceiling: int | None = None
    """How many there may be in all pools; None: any number."""

    instances: Mapping[Place, Instance] = field(factory=dict)
    running: Mapping[str, Job] = field(factory=dict)
    """Those that hold slots, by their keys."""

    waiting: Sequence[Job] = ()
    """First come first."""

    waiting_in_all: int = 0
    """They may be more than are listed."""

    decisions: Sequence[Said] = ()
    """Newest first."""

    refused: str = ""
    """Why the daemon shows only a part; empty: it shows all."""

    ahead: float = 0.0
    """Seconds by which the daemon's clock is ahead of ours."""

    @property
    def jobs(self) -> Iterator[Job]:
        """All of them: those who wait first, as the queue has them."""
        yield from self.waiting
        yield from self.running.values()


_SLOTS = {"pending": "jobs waiting", "promised": "reservations waiting", "unready": "not ready yet"}
"""What the capacity's counts are called, where they have other names."""


def slot_words(fleet: Fleet) -> Iterator[tuple[str, int]]:
    """Count what slots do, and who waits: the words, and how many; what is nowhere is left out."""
    yield from ((_SLOTS.get(name, name), count) for name, count in fleet.capacity.items() if count)


def in_short(fleet: Fleet, status: Mapping[str, Any], waiting: Mapping[str, Any]) -> Fleet:
    """Take in the answers to ``status`` and ``waiting``, which are there for everybody.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: They are no such answers.
    """
    return evolve(
        fleet,
        name=str(status["fleet"]),
        state=str(status["state"]),
        answer=str(status["answer"]),
        capacity={str(name): int(count) for name, count in status["capacity"].items()},
        pools={str(name): str(counts) for name, counts in status["pools"].items()},
        cost=_cost(status.get("cost")),
        waiting=tuple(map(_waiter, waiting["waiting"])),
        waiting_in_all=int(waiting["total"]),
    )


def in_full(fleet: Fleet, instances: Mapping[str, Any], explained: Mapping[str, Any], now: float) -> Fleet:
    """Take in the answers to ``instances`` and ``explain``, which came at *now* on our clock. Raises as `in_short`."""
    listed = instances["instances"]
    known = {each.place: each for each in map(_instance, listed)}
    ceilings = {str(pool["name"]): _count(pool["ceiling"]) for pool in explained["pools"]}
    return evolve(
        fleet,
        instances=known,
        running={job.key: job for each in listed for job in _jobs_on(each)},
        ceilings=ceilings,
        ceiling=next((_count(pool["ceiling_over_all"]) for pool in explained["pools"]), None),
        decisions=tuple(_decision(each) for each in reversed(explained["decisions"]))[:MOST_DECISIONS],
        refused="",
        ahead=_seconds(explained["at"]) - now,
    )


def in_part(fleet: Fleet, leases: Mapping[str, Any], refused: str) -> Fleet:
    """Take in what is left for those whom the daemon does not show the rest. Raises as `in_short`."""
    running = {job.key: job for job in map(_lease, leases["leases"])}
    return evolve(fleet, instances={}, running=running, decisions=(), ceilings={}, ceiling=None, refused=refused)


def after(fleet: Fleet, event: Mapping[str, Any]) -> Fleet:
    """Take in an event of the daemon's stream; what is none that concerns us changes nothing. Raises as `in_short`."""
    match event.get("event"):
        case "instance":
            return _after_instance(fleet, event)
        case "lease":
            return _after_lease(fleet, event)
        case "decision":
            said = Said(at=float(event["at"]), text=str(event["text"]))
            return evolve(fleet, decisions=(said, *fleet.decisions[: MOST_DECISIONS - 1]))
    return fleet


def _after_instance(fleet: Fleet, event: Mapping[str, Any]) -> Fleet:
    place, state = (str(event["pool"]), str(event["instance"])), str(event["state"])
    rest = {key: each for key, each in fleet.instances.items() if key != place} if state == "gone" else fleet.instances
    if state == "gone":
        left = {key: job for key, job in fleet.running.items() if (job.pool, job.instance) != place}
        return evolve(fleet, instances=rest, running=left)
    new = Instance(pool=place[0], id=place[1], state=state, since=float(event["at"]))
    known = evolve(fleet.instances.get(place, new), state=state, why=str(event["why"]))
    return evolve(fleet, instances={**rest, place: known})


_TAKES = frozenset({"acquired", "resumed", "reattached"})
_GIVES = frozenset({"released", "lost", "expired", "replaced"})


def _after_lease(fleet: Fleet, event: Mapping[str, Any]) -> Fleet:
    key, what = str(event["key"]), event["what"]
    job = Job(
        key=key,
        state="running",
        since=float(event["at"]),
        pool=str(event["pool"]),
        instance=str(event["instance"]),
        slot=int(event["slot"]),
    )
    if what in _TAKES:
        waiting = tuple(each for each in fleet.waiting if each.key != key)
        fewer = len(fleet.waiting) - len(waiting)
        taken = evolve(_with_slot(fleet, job, key), waiting=waiting, waiting_in_all=fleet.waiting_in_all - fewer)
        return evolve(taken, running={**fleet.running, key: job})
    if what in _GIVES:
        running = {each: other for each, other in fleet.running.items() if each != key}
        return evolve(_with_slot(fleet, job, None), running=running)
    return fleet


MOST_SLOTS = 4096
"""An event about a slot with a higher number says nothing about the instance's slots."""


def _with_slot(fleet: Fleet, job: Job, holder: str | None) -> Fleet:
    """Write into an instance's slot who holds it."""
    known = fleet.instances.get((job.pool, job.instance))
    if known is None or not 0 <= job.slot < MOST_SLOTS:
        return fleet
    slots = [*known.slots, *[None] * (job.slot + 1 - len(known.slots))]
    slots[job.slot] = holder
    return evolve(fleet, instances={**fleet.instances, known.place: evolve(known, slots=tuple(slots))})


def _cost(cost: Mapping[str, Any] | None) -> str:
    """Write what all pools have come to, or the only one."""
    rows = [] if cost is None else [*cost_rows(cost)]
    return rows[-1][1].partition(": ")[2] if rows else ""


def _instance(data: Mapping[str, Any]) -> Instance:
    return Instance(
        pool=str(data["pool"]),
        id=str(data["id"]),
        state=str(data["state"]),
        since=float(data["since"]),
        slots=tuple(None if key is None else str(key) for key in data["slots"]),
        cleaning=len(data["cleaning"]),
        uses=int(data["uses"]),
        why=str(data["why"]),
        cordoned=_text(data["cordoned"]),
        retained=_text(data["retained"]),
    )


def _jobs_on(instance: Mapping[str, Any]) -> Iterator[Job]:
    for slot, (key, since) in enumerate(zip(instance["slots"], instance["held_since"], strict=True)):
        if key is not None:
            pool, id_ = str(instance["pool"]), str(instance["id"])
            yield Job(key=str(key), state="running", since=float(since), pool=pool, instance=id_, slot=slot)


def _lease(data: Mapping[str, Any]) -> Job:
    return Job(
        key=str(data["key"]),
        state="running",
        since=float(data["since"]),
        pool=str(data["pool"]),
        instance=str(data["instance"]),
        slot=int(data["slot"]),
    )


def _waiter(data: Mapping[str, Any]) -> Job:
    return Job(
        key=str(data["key"]),
        state="reserved" if data["reserves"] else "waiting",
        since=float(data["since"]),
        place=_count(data["place"]),
        why=str(data["why"]),
    )


def _decision(data: Mapping[str, Any]) -> Said:
    return Said(at=_seconds(data["at"]), text=str(data["sentence"]))


def _seconds(written: object) -> float:
    return datetime.fromisoformat(str(written)).timestamp()


def _text(given: object) -> str | None:
    return None if given is None else str(given)


def _count(given: Any) -> int | None:  # noqa: ANN401  (JSON's)
    return None if given is None else int(given)
