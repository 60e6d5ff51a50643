"""What stands in which tab: its columns, what is sorted and filtered by them, and which rows there are. Pure.

Sorting and filtering read what the fleet has; cells are written for the rows that are seen only.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from attrs import frozen

from fleeting.plugins import span
from taskscaler.batch._share import SUBMITTED
from taskscaler.cli._text import listed
from taskscaler.cli._top._fleet import Fleet, Instance, Job, Said
from taskscaler.diagnose._explain import STATES

T = TypeVar("T")

Mood = Literal["", "good", "busy", "bad", "dim"]
"""How a row stands out."""


@frozen(kw_only=True)
class Column(Generic[T]):
    """One column of a tab."""

    title: str
    width: int
    """Columns of the terminal at 80; 0: what is left."""

    cell: Callable[[T, float], str]
    """Writes what stands there, at a time in seconds since the epoch."""

    key: Callable[[T], Any]
    """What rows are sorted by."""

    grows: bool = False
    """Whether it is wider on a wide terminal."""

    right: bool = False
    """Whether it is aligned to the right."""


@frozen(kw_only=True)
class Tab(Generic[T]):
    """One list."""

    name: str
    columns: Sequence[Column[T]]
    items: Callable[[Fleet], Iterable[T]]
    """As they come, if they are not sorted."""

    id: Callable[[T], str]
    """What tells a row from all others."""

    text: Callable[[T], str]
    """What is searched for a filter."""

    mood: Callable[[T], Mood]
    empty: str
    """What is said if there are none."""

    def rows(self, fleet: Fleet, order: "Order", filter_: str) -> list[T]:
        """Give the rows that are shown, in their order; of equal ones, the first that came is first. O(n log n)."""
        rows = [*self.items(fleet)]
        if wanted := filter_.casefold():
            rows = [row for row in rows if wanted in self.text(row).casefold()]
        if order.column is None:
            return rows[::-1] if order.reverse else rows
        return sorted(rows, key=self.columns[order.column].key, reverse=order.reverse)


@frozen
class Order:
    """What a tab is sorted by."""

    column: int | None = None
    """None: as the items come."""

    reverse: bool = False

    def next(self, columns: int) -> "Order":
        """Sort by the next column, and after the last one as the items come."""
        following = 0 if self.column is None else self.column + 1
        return Order(following if following < columns else None)


def age(since: float | None, now: float) -> str:
    """Write how long ago something was, in so few characters as a narrow column has."""
    return "" if since is None else span(int(max(0.0, now - since)))


def ago(since: float | None) -> float:
    """Sort by age: the youngest first, and last what has none."""
    return 1.0 if since is None else -since


def named(key: str) -> str:
    """Write a key as people know it: jobs of batches by batch and name."""
    return key.removeprefix(SUBMITTED)


_STATES = (*STATES,)


def mood_of(instance: Instance) -> Mood:
    """How an instance stands out."""
    if instance.cordoned is not None or instance.state == "unusable":
        return "bad"
    match instance.state:
        case "running":
            return "good" if instance.held else ""
        case "creating" | "pending" | "resuming":
            return "busy"
    return "dim"


def _slots(instance: Instance, _: float) -> str:
    return f"{instance.held}/{len(instance.slots)}" if instance.slots else ""


def _runs(instance: Instance, _: float) -> str:
    return listed([*([instance.notes] if instance.notes else []), *map(named, filter(None, instance.slots))])


def _place_in_states(state: str) -> int:
    return _STATES.index(state) if state in _STATES else len(_STATES)


INSTANCES: Tab[Instance] = Tab(
    name="instances",
    columns=(
        Column(title="INSTANCE", width=20, grows=True, cell=lambda row, _: row.id, key=lambda row: row.id),
        Column(title="POOL", width=9, grows=True, cell=lambda row, _: row.pool, key=lambda row: row.pool),
        Column(
            title="STATE",
            width=13,
            cell=lambda row, _: STATES.get(row.state, row.state),
            key=lambda row: _place_in_states(row.state),
        ),
        Column(title="SLOTS", width=6, right=True, cell=_slots, key=lambda row: -row.held),
        Column(
            title="AGE", width=6, right=True, cell=lambda row, now: age(row.since, now), key=lambda row: ago(row.since)
        ),
        Column(title="RUNS", width=0, cell=_runs, key=lambda row: _runs(row, 0.0)),
    ),
    items=lambda fleet: fleet.instances.values(),
    id=lambda row: f"{row.pool}/{row.id}",
    text=lambda row: " ".join([row.pool, row.id, STATES.get(row.state, row.state), _runs(row, 0.0)]),
    mood=mood_of,
    empty="there are no instances",
)


def _where(job: Job, _: float) -> str:
    if job.state == "running":
        return f"{job.instance} (slot {job.slot})"
    return (f"#{job.place} in the queue: " if job.place else "") + job.why


JOBS: Tab[Job] = Tab(
    name="jobs",
    columns=(
        Column(title="JOB", width=24, grows=True, cell=lambda row, _: named(row.key), key=lambda row: row.key),
        Column(title="STATE", width=8, cell=lambda row, _: row.state, key=lambda row: row.state),
        Column(
            title="FOR", width=6, right=True, cell=lambda row, now: age(row.since, now), key=lambda row: ago(row.since)
        ),
        Column(title="WHERE, OR WHAT IT WAITS FOR", width=0, cell=_where, key=lambda row: _where(row, 0.0)),
    ),
    items=lambda fleet: fleet.jobs,
    id=lambda row: row.key,
    text=lambda row: f"{row.key} {row.state} {row.instance} {row.why}",
    mood=lambda row: "good" if row.state == "running" else "busy",
    empty="no job runs, and none waits for a slot",
)


def _clock(said: Said, _: float) -> str:
    return datetime.fromtimestamp(said.at).astimezone().strftime("%H:%M:%S")


DECISIONS: Tab[Said] = Tab(
    name="decisions",
    columns=(
        Column(title="AT", width=8, cell=_clock, key=lambda row: -row.at),
        Column(title="AGO", width=6, right=True, cell=lambda row, now: age(row.at, now), key=lambda row: -row.at),
        Column(title="DECISION", width=0, cell=lambda row, _: row.text, key=lambda row: row.text),
    ),
    items=lambda fleet: fleet.decisions,
    id=lambda row: f"{row.at!r} {row.text}",
    text=lambda row: row.text,
    mood=lambda _: "",
    empty="nothing has been decided yet",
)

TABS: Sequence[Tab[Any]] = (INSTANCES, JOBS, DECISIONS)
