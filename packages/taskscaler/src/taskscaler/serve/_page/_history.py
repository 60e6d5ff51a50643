"""What is over: jobs that held a slot, and instances that were there. For the timeline; bounded. Pure."""

from collections import deque
from collections.abc import Sequence
from itertools import islice

from attrs import define, field, frozen

from taskscaler._observe import GONE, InstanceEvent, LeaseEvent, ScalerEvent

MOST_KEPT = 1500
"""Of what is over, so much is kept: the newest."""

MOST_OPEN = 50_000
"""Beginnings that are remembered; of what is beyond, the end is taken for the beginning."""

_BEGINS = frozenset({"acquired", "resumed", "reattached"})
_ENDS = frozenset({"released", "lost", "suspended", "expired", "replaced"})


@frozen(kw_only=True)
class Over:
    """A job's time in a slot, or an instance's time from when it was first seen until it was gone."""

    pool: str
    instance: str
    slot: int | None
    """None: it is the instance."""

    key: str
    """Whose time it was; of an instance, empty."""

    began: float
    """Seconds since the epoch."""

    ready: float | None = None
    """When the instance could be given work; None: never, or it is a job."""

    ended: float
    """Seconds since the epoch."""

    lost: bool
    """Whether it was taken from us."""


@define
class History:
    """The last things that are over."""

    total: int = field(default=0, init=False)
    """How many there were, whether they are kept or not."""

    _over: deque[Over] = field(factory=lambda: deque(maxlen=MOST_KEPT), init=False)
    _held: dict[str, float] = field(factory=dict, init=False)
    _there: dict[tuple[str, str], tuple[float, float | None]] = field(factory=dict, init=False)

    def hear(self, event: ScalerEvent) -> None:
        """Take in an event. O(1)."""
        match event:
            case LeaseEvent():
                self._hear_of_lease(event)
            case InstanceEvent():
                self._hear_of_instance(event)

    def between(self, first: int, last: int) -> Sequence[Over]:
        """What has ended since there were *first*, until there were *last*, as far as it is kept; oldest first."""
        gone = self.total - len(self._over)
        return [*islice(self._over, max(0, first - gone), max(0, last - gone))]

    def _hear_of_lease(self, event: LeaseEvent) -> None:
        if event.what in _BEGINS:
            if len(self._held) < MOST_OPEN:
                self._held[event.key] = event.at
        elif event.what in _ENDS:
            place = {"pool": event.pool, "instance": event.instance, "slot": event.slot, "key": event.key}
            began = self._held.pop(event.key, event.at)
            self._put(Over(**place, began=began, ended=event.at, lost=event.what == "lost"))  # type: ignore[arg-type]

    def _hear_of_instance(self, event: InstanceEvent) -> None:
        place = event.pool, event.instance
        if event.state != GONE:
            if place in self._there or len(self._there) < MOST_OPEN:
                began, ready = self._there.get(place, (event.kept_since or event.at, None))
                self._there[place] = began, event.at if ready is None and event.state == "running" else ready
            return
        began, ready = self._there.pop(place, (event.at, None))
        pool, instance = place
        self._put(
            Over(
                pool=pool,
                instance=instance,
                slot=None,
                key="",
                began=began,
                ready=ready,
                ended=event.at,
                lost=event.lost,
            )
        )

    def _put(self, over: Over) -> None:
        self._over.append(over)
        self.total += 1
