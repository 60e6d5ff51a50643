"""Who waits for a slot, and what for: all of them at once, where an explanation is about one."""

from collections.abc import Callable
from itertools import count

from attrs import frozen

from taskscaler.core._slots import Waiter
from taskscaler.diagnose._explain import explain
from taskscaler.diagnose._snapshot import Snapshot


@frozen(kw_only=True)
class WaiterView:
    """One that waits, for people to look at."""

    key: str
    """What the slot was asked for under."""

    reserves: bool
    """Whether it is a reservation; else it is an acquire."""

    since: float
    """When it was asked for, in seconds since the epoch."""

    place: int | None
    """In the queue, from 1; None: a slot is kept for its reservation."""

    why: str
    """What it waits for."""


def view_queue(snapshot: Snapshot, among: Callable[[str], bool]) -> list[WaiterView]:
    """Give those who wait, first come first; behind them the reservations that a slot is kept for. O(n log n).

    Args:
        snapshot: Of whose queue it is.
        among: Whether a key is one of those that are wanted; the others still have their places.
    """
    ledger = snapshot.core.ledger
    queue, kept = ledger.queue(), ledger.kept_reservations()
    if not (queue or kept):
        return []
    why, places = explain(snapshot).waits_for, count(1)
    waiting = [_view(waiter, place, why) for waiter, place in zip(queue, places, strict=False) if among(waiter.key)]
    return [*waiting, *(_view(waiter, None, "a slot is kept for it") for waiter in kept if among(waiter.key))]


def _view(waiter: Waiter, place: int | None, why: str) -> WaiterView:
    return WaiterView(key=waiter.key, reserves=waiter.reserves, since=waiter.asked_at, place=place, why=why)
