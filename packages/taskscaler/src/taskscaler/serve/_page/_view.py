"""What the page shows, as plain data: the whole of it, and what has changed of it. Pure.

The `whole` of a scene is what `taken_in` makes of the whole before and the `change` between the two: a browser that has
seen one scene gets the next one as what differs, however many there were in between. All text is one line, of bounded
length, and has nothing in it that is not to be seen; the browser takes it for text only.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Any

from attrs import field, frozen

from fleeting.plugins import one_line, span
from taskscaler.cli._operate import cost_rows
from taskscaler.cli._top._fleet import Fleet, Instance, Job, Said, slot_words
from taskscaler.cli._top._rows import mood_of, named
from taskscaler.diagnose._explain import STATES, Explanation, PoolView
from taskscaler.serve._page._history import Over

MOST_INSTANCES, MOST_QUEUED, MOST_DECISIONS, MOST_POOLS, MOST_SLOTS = 3000, 50, 20, 50, 256
"""So many are shown; of instances, the oldest, and of decisions the newest."""

SENTENCE, NAME = 600, 200
"""Bytes of a text."""


@frozen(kw_only=True)
class PoolRow:
    """One pool, in words."""

    name: str
    counts: str
    ceiling: int | None
    """How many instances it may have; None: any number."""

    notes: tuple[str, ...] = ()
    """What stands between it and more capacity."""

    cost: str = ""


@frozen(kw_only=True)
class Scene:
    """All that is shown, at one moment."""

    fleet: Fleet = field(factory=Fleet)
    pools: tuple[PoolRow, ...] = ()
    next: tuple[str, ...] = ()
    """What will happen if nothing else does, a sentence each."""

    cost: str = ""
    """Of all pools, in words; empty: there is one only, which says it."""

    revision: int = 0
    """Another one for each scene that differs."""

    over: int = 0
    """How much is over; see `History.total`."""


def pools_of(explanation: Explanation, cost: Mapping[str, Any]) -> tuple[PoolRow, ...]:
    """Describe the pools, in order of preference."""
    costs = {words.partition(": ")[0]: words.partition(": ")[2] for _, words in cost_rows(cost)}
    return tuple(
        PoolRow(
            name=pool.name,
            counts=pool.counts(),
            ceiling=pool.ceiling,
            notes=tuple(islice(_notes(pool), 9)),
            cost=costs.get(pool.name, ""),
        )
        for pool in explanation.pools[:MOST_POOLS]
    )


def _notes(pool: PoolView) -> Iterator[str]:
    """Say what stands between a pool and more capacity; first, when the cloud is asked again that had nothing."""
    sentences = (_without_name(each, pool.name) for each in islice(pool.sentences(), 1, None))
    if pool.backoff and pool.backoff_left < inf:
        yield f"instances are requested again in {span(max(1, round(pool.backoff_left)))}; so far: {pool.backoff}"
        sentences = (each for each in sentences if not each.startswith("makes no requests"))
    yield from sentences


def cost_in_all(cost: Mapping[str, Any]) -> str:
    """What several pools have come to, in words; empty if there is one."""
    rows = [*cost_rows(cost)]
    return rows[-1][1].partition(": ")[2] if len(rows) > 1 else ""


def whole(scene: Scene) -> dict[str, Any]:
    """Give all of a scene."""
    return {
        "head": _head(scene),
        "instances": {_place(each): _instance(each, scene.fleet) for each in _shown(scene.fleet)},
        "queue": _queue(scene.fleet),
        "decisions": [_said(each) for each in scene.fleet.decisions[:MOST_DECISIONS]],
    }


def change(before: Scene, after: Scene) -> dict[str, Any]:
    """Give what differs, and nothing else: of instances, those that do; None for those that are gone."""
    old, new = ({each.place: each for each in _shown(fleet)} for fleet in (before.fleet, after.fleet))
    changed: dict[str, Any] = {
        _place(each): _instance(each, after.fleet)
        for place, each in new.items()
        if (known := old.get(place)) is None or (known is not each and _differs(known, each, before, after))
    }
    changed |= {_place(each): None for place, each in old.items() if place not in new}
    parts: dict[str, tuple[Any, Any]] = {
        "head": (_head(before), _head(after)),
        "queue": (_queue(before.fleet), _queue(after.fleet)),
    }
    found = {name: later for name, (earlier, later) in parts.items() if earlier != later}
    if before.fleet.decisions[:MOST_DECISIONS] != after.fleet.decisions[:MOST_DECISIONS]:
        found["decisions"] = [_said(each) for each in after.fleet.decisions[:MOST_DECISIONS]]
    return {**found, **({"instances": changed} if changed else {})}


def taken_in(known: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Do what the page does with a change: what ``fleet.js`` does, for tests to compare."""
    instances = {**known["instances"], **changed.get("instances", {})}
    there = {place: each for place, each in instances.items() if each is not None}
    return {**known, **changed, "instances": there}


def over_as_data(over: Iterable[Over]) -> list[list[object]]:
    """Give what is over, for the timeline: place, slot, name, began, ready, ended, lost."""
    return [
        [f"{each.pool}/{each.instance}", each.slot, _name(each.key), each.began, each.ready, each.ended, each.lost]
        for each in over
    ]


def _shown(fleet: Fleet) -> Iterable[Instance]:
    return islice(fleet.instances.values(), MOST_INSTANCES)


def _place(each: Instance) -> str:
    return f"{each.pool}/{each.id}"


def _differs(known: Instance, each: Instance, before: Scene, after: Scene) -> bool:
    return known != each or _slots(known, before.fleet) != _slots(each, after.fleet)


def _head(scene: Scene) -> dict[str, Any]:
    fleet = scene.fleet
    return {
        "name": _name(fleet.name.rpartition("/")[2]),
        "state": _name(fleet.state),
        "answer": _text(fleet.answer),
        "next": [_text(each) for each in scene.next],
        "slots": [[words, count] for words, count in slot_words(fleet)],
        "ceiling": fleet.ceiling,
        "instances": len(fleet.instances),
        "cost": _text(scene.cost),
        "pools": [_pool(each) for each in scene.pools],
    }


def _pool(pool: PoolRow) -> dict[str, Any]:
    return {
        "name": _name(pool.name),
        "counts": _text(pool.counts),
        "ceiling": pool.ceiling,
        "notes": [_text(each) for each in pool.notes],
        "cost": _text(pool.cost),
    }


def _instance(each: Instance, fleet: Fleet) -> dict[str, Any]:
    return {
        "pool": _name(each.pool),
        "id": _name(each.id),
        "words": _text(STATES.get(each.state, each.state)),
        "mood": mood_of(each),
        "since": each.since,
        "slots": _slots(each, fleet),
        "notes": _text(each.notes),
        "cordoned": each.cordoned is not None,
        "retained": each.retained is not None,
    }


def _slots(each: Instance, fleet: Fleet) -> list[list[object] | None]:
    """Who holds each slot: a name, and since when; nobody."""
    return [None if key is None else [_job(key), _since(fleet, key)] for key in each.slots[:MOST_SLOTS]]


def _since(fleet: Fleet, key: str) -> float | None:
    job = fleet.running.get(key)
    return None if job is None else job.since


def _queue(fleet: Fleet) -> dict[str, Any]:
    """Who waits: each with what it waits for, which many share and is said once."""
    listed = fleet.waiting[:MOST_QUEUED]
    reasons = [*dict.fromkeys(each.why for each in listed)]
    jobs = [_waiter(each, reasons) for each in listed]
    return {"total": fleet.waiting_in_all, "reasons": [_text(each) for each in reasons], "jobs": jobs}


def _waiter(job: Job, reasons: Sequence[str]) -> list[object]:
    """Describe one: name, since when, place, whether it is a reservation, which reason, and the key that it has."""
    name = _job(job.key)
    other = [] if name == job.key else [job.key]
    return [name, job.since, job.place, job.state == "reserved", reasons.index(job.why), *other]


def _said(said: Said) -> list[object]:
    return [said.at, _text(said.text)]


def _without_name(sentence: str, pool: str) -> str:
    """Leave out whom a sentence about a pool is about, where that is said already."""
    return sentence.removeprefix(f"pool {pool}").removeprefix(":").strip()


def _job(key: str) -> str:
    return _name(named(key))


def _name(text: str) -> str:
    return one_line(text, NAME)


def _text(text: str) -> str:
    return one_line(text, SENTENCE)
