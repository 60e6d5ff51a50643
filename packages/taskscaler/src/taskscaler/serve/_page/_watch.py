"""Keeps what the page shows up to date, while somebody looks at it; does next to nothing while nobody does.

Whoever looks is told what has changed since what they were told last: who reads slowly gets fewer and larger changes,
nothing is kept for them, and they hold nobody up.
"""

import json
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from time import process_time
from typing import Any, Protocol

import anyio
from attrs import asdict, define, evolve, field

from fleeting import Clock
from taskscaler._observe import ScalerEvent, event_as_data
from taskscaler._scaler import Taskscaler, find_waiting
from taskscaler._wire import to_plain
from taskscaler.batch._spoken import spoken, spoken_in
from taskscaler.cli._top._fleet import Fleet, Instance, after, in_full, in_short
from taskscaler.serve._page._history import History
from taskscaler.serve._page._view import MOST_QUEUED, Scene, change, cost_in_all, over_as_data, pools_of, whole

MOST_LOOKING = 32
"""Browsers that are told what changes, at a time."""

TICK = 0.5
"""Seconds from one change that is told until the next."""

INTERVAL = 2.0
"""Seconds between two looks at what events do not tell: who waits, and why."""

SHARE = 0.02
"""Of the time, at most, goes into such looks: with a large fleet, there are fewer."""

MOST_EVENTS = 100
"""That are taken in one by one; if there are more in a tick, all is looked at instead."""

BEAT = 10.0
"""Seconds of silence after which a browser is told that the daemon is still there."""

EXPECTED = 5.0
"""Seconds that a browser has to ask what changes, once it has asked for the page."""

MOST_NEXT = 3
"""So much is said of what will happen next."""

log = logging.getLogger("taskscaler.page")


class Source(Protocol):
    """What is shown: the daemon's fleet."""

    scaler: Taskscaler

    async def status(self) -> dict[str, object]:
        """Describe the daemon at a glance."""
        ...


@define(eq=False)
class Watch:
    """The page's view of one daemon's fleet."""

    source: Source
    clock: Clock
    looking: int = field(default=0, init=False)
    """How many browsers are told what changes."""

    _scene: Scene | None = field(default=None, init=False)
    """None: nobody has looked for a while."""

    _history: History = field(factory=History, init=False)
    _events: list[Mapping[str, Any]] = field(factory=list, init=False)
    _missed: bool = field(default=True, init=False)
    """Whether all is to be looked at."""

    _look_at: float = field(default=0.0, init=False)
    _revision: int = field(default=0, init=False)
    _changed: anyio.Event = field(factory=anyio.Event, init=False)
    _wanted: anyio.Event = field(factory=anyio.Event, init=False)
    """Set when somebody begins to look."""

    _expected_until: float = field(default=0.0, init=False)
    """Until when somebody is about to look."""

    _closed: bool = field(default=False, init=False)
    _written: dict[tuple[int, int], bytes] = field(factory=dict, init=False)
    """The last changes, without the time, for all who are told the same, however much later."""

    def hear(self, event: ScalerEvent) -> None:
        """Take in what the scaler reports; an observer. O(1) while nobody looks."""
        self._history.hear(event)
        if self._scene is not None and len(self._events) < MOST_EVENTS:
            self._events.append(event_as_data(event))
        else:
            self._missed = True

    def look_again(self) -> None:
        """Have all looked at with the next tick: somebody has changed something."""
        self._missed = True

    def expect(self) -> None:
        """Begin to look: somebody who may is about to."""
        self._expected_until = self.clock.now() + EXPECTED
        self._wanted.set()

    def close(self) -> None:
        """Let all streams end."""
        self._closed = True
        self._tell()

    async def run(self) -> None:
        """Look, for as long as somebody is told of it, until cancelled."""
        while True:
            self._wanted = anyio.Event()
            if not self.looking and self.clock.now() >= self._expected_until:
                self._scene = None
                self._written.clear()
                await self._wanted.wait()
            await self._tick()
            await anyio.sleep(TICK)

    async def _tick(self) -> None:
        try:
            if self._scene is None or self._missed or self.clock.now() >= self._look_at:
                await self._look()
            elif self._events:
                self._take()
        except Exception:  # what goes wrong here ends nothing else
            log.exception("page_failed")
            self._missed = True

    async def _look(self) -> None:
        """Look at all there is."""
        self._missed = False
        self._events.clear()
        began, now = process_time(), self.clock.now()
        scaler, known = self.source.scaler, Fleet() if self._scene is None else self._scene.fleet
        status = spoken_in(await self.source.status())
        waiting = find_waiting(scaler, lambda _: True)
        explanation = await scaler.explain()
        listed = [{**asdict(each), "why": spoken(each.why)} for each in waiting[:MOST_QUEUED]]
        fleet = in_short(known, status, {"waiting": listed, "total": len(waiting)})
        instances = to_plain(list(await scaler.instances()))
        fleet = in_full(fleet, {"instances": instances}, spoken_in(explanation.as_dict()), now)
        cost: Any = status.get("cost") or {"pools": {}}
        self._show(
            Scene(
                fleet=_with_known(known, fleet),
                pools=pools_of(explanation, cost),
                next=tuple(spoken(str(each)) for each in explanation.next[:MOST_NEXT]),
                cost=cost_in_all(cost),
            )
        )
        self._look_at = now + max(INTERVAL, (process_time() - began) / SHARE)

    def _take(self) -> None:
        """Take in what was reported."""
        assert self._scene is not None  # noqa: S101  (its only caller has looked)
        fleet = self._scene.fleet
        for event in self._events:
            fleet = after(fleet, event)
        self._events.clear()
        self._show(evolve(self._scene, fleet=fleet))

    def _show(self, scene: Scene) -> None:
        known, over = self._scene, self._history.total
        if known is not None and evolve(scene, revision=known.revision, over=over) == known:
            return
        self._revision += 1
        self._scene = evolve(scene, revision=self._revision, over=over)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count one who looks."""
        self.looking += 1
        self._wanted.set()
        try:
            yield
        finally:
            self.looking -= 1

    async def told(self, until: float) -> AsyncGenerator[bytes]:
        """Tell one who looks: first the whole, then what changes, as server-sent events.

        Args:
            until: When that ends, in seconds since the epoch.
        """
        known: Scene | None = None
        yield b"retry: 1000\n\n"
        while not self._closed and self.clock.now() < until:
            changed, scene = self._changed, self._scene
            if scene is not None and scene is not known:
                yield dated(self._difference(known, scene), self.clock.now())
                known = scene
                await anyio.sleep(TICK)
                continue
            with anyio.move_on_after(BEAT) as silence:
                await changed.wait()
            if silence.cancelled_caught:
                yield written("beat", {"at": self.clock.now()})

    def _difference(self, known: Scene | None, scene: Scene) -> bytes:
        """Write what brings somebody from one scene to the other; many may ask for the same."""
        key = (known.revision if known is not None else 0, scene.revision)
        if (found := self._written.get(key)) is None:
            over = over_as_data(self._history.between(0 if known is None else known.over, scene.over))
            data = whole(scene) if known is None else change(known, scene)
            found = written("whole" if known is None else "change", {**data, "over": over})
            self._written[key] = found
            while len(self._written) > MOST_LOOKING:
                del self._written[next(iter(self._written))]
        return found


def _with_known(known: Fleet, fleet: Fleet) -> Fleet:
    """Take the instances that are as they were from before, so that nobody needs to compare them again."""
    kept, found = known.instances, fleet.instances
    return evolve(fleet, instances={place: _same(kept.get(place), each) for place, each in found.items()})


def _same(old: Instance | None, new: Instance) -> Instance:
    return old if old is not None and old == new else new


def dated(event: bytes, now: float) -> bytes:
    """Give an event of the stream that has data the time at which it is told."""
    head, begins, data = event.partition(b"\ndata: {")
    return b"".join((head, begins, b'"at":', repr(now).encode(), b",", data))


def written(event: str, data: Mapping[str, object]) -> bytes:
    """Write an event of the stream."""
    return f"event: {event}\ndata: {json.dumps(data, allow_nan=False, separators=(',', ':'))}\n\n".encode()
