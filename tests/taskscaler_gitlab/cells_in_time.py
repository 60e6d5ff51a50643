"""Several GitLabs and a fleet in virtual time, around the real core: who waits for what, and for how long."""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from attrs import define, field

from gitlab_jobs import Polled, Polling
from taskscaler_gitlab.cells._upstreams import Ask, GiveBack, Pass, Reserve, Upstreams

HELD = 50.0
"""Seconds for which a request is held."""


@define
class SimCell:
    """A GitLab: jobs come at their times, and each request takes `latency` seconds there and back."""

    arrivals: Sequence[float]
    latency: float = 0.0
    weight: float = 1.0
    down: tuple[float, float] = (math.inf, math.inf)
    """From when until when it answers to nobody."""

    waiting: list[str] = field(factory=list, init=False)
    held: list[tuple[float, Callable[[str | None], None]]] = field(factory=list, init=False)
    has_ticket: bool = field(default=False, init=False)

    def is_down(self, now: float) -> bool:
        """Whether it is away."""
        return self.down[0] <= now < self.down[1]


@define
class World:
    """They, and so many slots that run each job for some time."""

    cells: Mapping[str, SimCell]
    slots: int
    duration: float = 4.0
    """Seconds that jobs take, more or less."""

    request_concurrency: int = 4
    now: float = field(default=0.0, init=False)
    _polling: dict[str, Polling] = field(factory=dict, init=False)
    core: Upstreams = field(init=False)
    ran: list[tuple[float, str]] = field(factory=list, init=False)
    """When each job began to run, and its name, which begins with that of its cell."""

    busy: int = field(default=0, init=False)
    reserved: int = field(default=0, init=False)
    """Slots that are the core's, or a job's that comes to run there."""

    most_surplus: int = field(default=0, init=False)
    worst: float = field(default=0.0, init=False)
    """Seconds for which a slot was idle at the longest while jobs waited in a cell that could be reached."""

    asked_while_down: Counter[str] = field(factory=Counter, init=False)
    _queue: list[tuple[float, int, Callable[[], None]]] = field(factory=list, init=False)
    _numbers: "itertools.count[int]" = field(factory=itertools.count, init=False)
    _has_begun: bool = field(default=False, init=False)
    _wants: int = field(default=0, init=False)
    _idle_since: list[float] = field(factory=list, init=False)
    """Since when each idle slot is, or jobs wait for one, whatever is later; the longest first."""

    _lengths: Sequence[float] = (1.0, 0.55, 1.3, 0.8, 1.45, 0.7, 1.2)
    """How much longer or shorter than that they take, one after the other."""

    @core.default
    def _core(self) -> Upstreams:
        self._polling = {
            name: Polling(0.0, request_concurrency=self.request_concurrency, check_interval=1.0, is_eager=True)
            for name in self.cells
        }
        return Upstreams.of({name: (self._polling[name], each.weight) for name, each in self.cells.items()})

    def run(self, until: float) -> None:
        """Let time pass, as long as there is something left to happen."""
        for name, cell in self.cells.items() if not self._has_begun else ():
            for number, at in enumerate(cell.arrivals):
                self._at(at, lambda name=name, number=number: self._arrives(name, f"{name}-{number}"))  # type: ignore[misc]
            self._at(cell.down[0], lambda name=name: self._goes_down(name))  # type: ignore[misc]
        total = sum(len(each.arrivals) for each in self.cells.values())
        self._idle_since = self._idle_since if self._has_begun else [self.now] * self.slots
        self._has_begun = True
        self._pump()
        while self._queue and self._queue[0][0] <= until and not (len(self.ran) == total and not self.busy):
            self.now, _, happen = heapq.heappop(self._queue)
            happen()
            self._pump()

    def _at(self, at: float, happen: Callable[[], None]) -> None:
        if at < math.inf:
            heapq.heappush(self._queue, (at, next(self._numbers), happen))

    def _arrives(self, name: str, job: str) -> None:
        cell = self.cells[name]
        if cell.held and not cell.is_down(self.now):
            cell.held.pop(0)[1](job)
        else:
            cell.waiting.append(job)

    def _goes_down(self, name: str) -> None:
        """End every connection."""
        held, self.cells[name].held = self.cells[name].held, []
        for _, answer in held:
            answer(None)

    def _pump(self) -> None:
        while True:
            self._grant()
            step = self.core.next(self.now, self.slots - self.busy)
            for action in step.actions:
                match action:
                    case Ask():
                        self._ask(action)
                    case Reserve():
                        self._wants += 1
                    case GiveBack():
                        self.reserved -= 1
                    case Pass(key):
                        self._begin(key)
            self.most_surplus = max(self.most_surplus, len(self.core.surplus))
            if not step.actions:
                break
        if step.wake is not None:
            self._at(step.wake, lambda: None)
        self._look()

    def _grant(self) -> None:
        while self._wants and self.busy + self.reserved < self.slots:
            self._wants -= 1
            self.reserved += 1
            self.core.reserved()

    def _begin(self, job: str) -> None:
        self.reserved -= 1
        self.busy += 1
        self._idle_since.pop(0)
        self.ran.append((self.now, job))
        self._at(self.now + self.duration * self._lengths[len(self.ran) % len(self._lengths)], self._end)

    def _end(self) -> None:
        self.busy -= 1
        self._idle_since.append(self.now)

    def _ask(self, ask: Ask) -> None:
        name, cell = ask.cell, self.cells[ask.cell]
        self._polling[name].asked()
        self.asked_while_down[name] += cell.is_down(self.now)

        def over(polled: Polled, job: str | None) -> None:
            self._polling[name].answered(polled, self.now, asked_at=ask.since if ask.may_hold else None)
            has_failed = polled.status is None
            if self.core.answered(ask, self.now, key=job, has_failed=has_failed) and job is not None:
                self._begin(job)

        def answer(job: str | None) -> None:
            status = 201 if job else 204 if not cell.is_down(self.now) else None
            polled = Polled(status=status, ticket="t")
            self._at(self.now + cell.latency / 2, lambda: over(polled, job))

        def arrive() -> None:
            if cell.is_down(self.now):
                answer(None)
            elif cell.waiting:
                answer(cell.waiting.pop(0))
            elif cell.has_ticket and ask.may_hold:
                held = (self.now, answer)
                cell.held.append(held)
                self._at(self.now + HELD, lambda: self._let_go(cell, held))
            else:
                cell.has_ticket = True
                answer(None)

        self._at(self.now + cell.latency / 2, arrive)

    @staticmethod
    def _let_go(cell: SimCell, held: tuple[float, Callable[[str | None], None]]) -> None:
        if held in cell.held:
            cell.held.remove(held)
            held[1](None)

    def _look(self) -> None:
        """See for how long a slot has been idle that a job could have had."""
        is_wanted = any(each.waiting for name, each in self.cells.items() if self._is_reachable(name))
        if not is_wanted:
            self._idle_since = [self.now] * (self.slots - self.busy)
        self.worst = max([self.worst, *(self.now - since for since in self._idle_since)])

    def _is_reachable(self, name: str) -> bool:
        """Whether it answers, and the core knows."""
        return not self.cells[name].is_down(self.now) and self.core.cells[name].probe_at is None

    def shares(self, until: float) -> Counter[str]:
        """How many jobs of each cell began to run by then."""
        return Counter(job.rpartition("-")[0] for at, job in self.ran if at <= until)
