"""When one runner asks which of its GitLabs (cells) for a job, and who gets a slot: pure.

A request to a cell that has nothing may stay open for a minute, so that a new job is handed out at once. A slot for
each of them would stand idle; so one reserved slot covers the open requests to all cells. Three rules make that safe:

- *At most cells - 1 jobs have no slot.* A request is made only while a slot is reserved, and only if all open requests,
  should each bring a job, leave at most that many without one. A job that comes without one, because another cell has
  answered for the same slot, is *surplus*: it waits in our queue, and has the next slot before anybody is asked again.
- *Who just had a job is taken at its word.* A cell whose last answer was a job probably has another one. Asked all
  together, such cells would bring a surplus each time, and equal shares whatever their weights. So each such request
  has a reserved slot of its own, for the first moment: one that is not answered by then keeps it from nobody. And
  GitLab is not to hold such a request, so that at most one for each cell is held.
- *Shares follow weights* among the cells that have jobs, by start-time fair queueing: a cell's virtual time grows by
  1/weight with each job, and the one that is behind is asked first. Who had nothing, or was away, has no claim on what
  went to others meanwhile.

A cell that fails several times in a row is *out*: nothing waits for it, and one request now and then probes whether it
answers again. With one GitLab, all this comes to the rule that there has always been: a slot for each request.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from attrs import Factory, define, field, frozen

from gitlab_jobs import Polling

OUT_AFTER = 3
"""Failures in a row after which a cell is left out."""

PROBE = 5.0
"""Seconds between two requests to a cell that is left out."""

PROMPT = 0.25
"""Seconds that a cell which just had a job has to answer, before the slot reserved for it is offered to others."""

SLOW = 0.75
"""Seconds; a cell that took longer for its last answer is waited for only with slots that nobody else could have: no
slot is to be idle for longer than a second for it."""

IDLE = 5.0
"""Seconds for which a request was held that means that the cell had no job for as long."""


@frozen
class Ask:
    """Ask a cell for a job."""

    cell: str
    since: float
    """The time of the step."""

    may_hold: bool
    """Whether it may hold the request while it has no job."""


@frozen
class Reserve:
    """Reserve a slot, and say `Upstreams.reserved` once there is one."""


@frozen
class GiveBack:
    """Give a reserved slot back."""


@frozen
class Withdraw:
    """Wait for no slot any more, if one is still waited for."""


@frozen
class Pass:
    """Give a reserved slot to a job that waits for one."""

    key: str


Action: TypeAlias = Ask | Reserve | GiveBack | Withdraw | Pass


@frozen
class Step:
    """What is to be done, in this order, and when to ask for the next step if nothing happens before."""

    actions: Sequence[Action]
    wake: float | None


@define
class _Cell:
    """What is known of one."""

    polling: Polling
    weight: float
    is_one_of_several: bool
    opened: list[Ask] = Factory(list)
    """The open requests."""

    is_busy: bool = False
    """Whether the last answer was a job."""

    time: float = 0.0
    """Virtual: what it has had, by its weight."""

    took: float = 0.0
    """Seconds that its last answer took which was expected at once."""

    failures: int = 0
    """In a row."""

    has_answered: bool = False
    """Whether it ever has, as it should."""

    probe_at: float | None = None
    """When to look whether it answers again; None: it is not left out."""

    @property
    def ahead(self) -> float:
        """Its virtual time, should each open request bring a job."""
        return self.time + len(self.opened) / self.weight

    def is_due(self, now: float) -> bool:
        """Whether it could be asked, as far as it is concerned."""
        if self.probe_at is not None and (self.opened or now < self.probe_at):
            return False
        return self._may_have_more and self.polling.may_ask(now)

    @property
    def _may_have_more(self) -> bool:
        """Whether one more request may be open: of several cells, none holds more than one."""
        is_held = self.is_one_of_several and not self.is_busy and any(each.may_hold for each in self.opened)
        return not is_held and len(self.opened) < self.polling.limit

    def due_at(self) -> float | None:
        """When it can be asked next; None: that depends on an answer."""
        if not self._may_have_more or (self.opened and self.probe_at is not None):
            return None
        wake = self.polling.wake
        return wake if wake is None or self.probe_at is None else max(wake, self.probe_at)

    def ask(self, name: str, now: float) -> Ask:
        """Make a request; it is to be held unless the cell probably has a job."""
        asked = Ask(name, now, may_hold=not (self.is_one_of_several and self.is_busy))
        self.opened.append(asked)
        return asked

    def is_late(self, now: float) -> bool:
        """Whether an answer is overdue that was expected at once, and is not to come in a moment either."""
        asked = [each.since for each in self.opened if not each.may_hold]
        return bool(asked) and (self.took > SLOW or now > asked[0] + SLOW) and now >= asked[0] + PROMPT

    def prompt(self, now: float) -> Iterator[float]:
        """When the requests were made that are expected to be answered by a job at any moment."""
        return (each.since for each in self.opened if not each.may_hold and now < each.since + PROMPT)


@define
class Upstreams:
    """Which cells are asked when. `next` says what to do; everything else is what has happened."""

    cells: dict[str, _Cell]
    free: int = field(default=0, init=False)
    """Slots that are reserved, and nobody's yet."""

    is_waiting: bool = field(default=False, init=False)
    """Whether another one is waited for."""

    is_paused: bool = field(default=False, init=False)
    """Whether nobody is asked. What has been asked may still bring jobs, and jobs that wait get their slots."""

    surplus: list[str] = field(factory=list, init=False)
    """The keys of jobs without a slot, in the order in which they get one."""

    _is_stale: bool = field(default=False, init=False)
    """Whether a slot was kept although its request brought nothing: others may want it."""

    _time: float = field(default=0.0, init=False)
    """Virtual: that of the cell that had the last job, before it."""

    @classmethod
    def of(cls, cells: Mapping[str, tuple[Polling, float]]) -> "Upstreams":
        """Ask these, by their names: when each wants to be asked, and its weight, greater than 0."""
        several = len(cells) > 1
        return cls({name: _Cell(polling, weight, several) for name, (polling, weight) in cells.items()})

    # --- what has happened -------------------------------------------------------------------------------

    def reserved(self) -> None:
        """A slot was reserved."""
        self.is_waiting = False
        self.free += 1

    def not_reserved(self) -> None:
        """There will be none."""
        self.is_waiting = False

    def answered(self, ask: Ask, now: float, *, key: str | None, has_failed: bool) -> bool:
        """A request is over.

        Args:
            ask: The request.
            now: The time.
            key: Names the job that came; None: none did.
            has_failed: Whether that was because something is wrong.

        Returns:
            Whether a reserved slot is the job's; else the job waits for one, as surplus.
        """
        it = self.cells[ask.cell]
        it.opened.remove(ask)
        it.took = it.took if ask.may_hold else now - ask.since
        it.has_answered = it.has_answered or not has_failed
        self._judge(it, now, has_failed=has_failed)
        if key is None:
            it.is_busy = False
            self._is_stale = self._is_stale or self.free > 0
            return False
        self._charge(it, had_nothing=not it.is_busy or (ask.may_hold and now - ask.since >= IDLE))
        if not self.free:
            self.surplus.append(key)
            return False
        self.free -= 1
        self._is_stale = self._is_stale and self.free > 0
        return True

    def broken_off(self, ask: Ask) -> None:
        """A request was given up from our side."""
        self.cells[ask.cell].opened.remove(ask)

    def left(self, key: str) -> None:
        """A job that an earlier process has left waits for a slot, like any surplus."""
        self.surplus.append(key)

    def gone(self, key: str) -> None:
        """A job waits no more, if it did: it is over."""
        if key in self.surplus:
            self.surplus.remove(key)

    def _judge(self, it: _Cell, now: float, *, has_failed: bool) -> None:
        it.failures = it.failures + 1 if has_failed else 0
        if it.failures >= OUT_AFTER and len(self.cells) > 1:
            it.probe_at = now + PROBE
        elif not has_failed and it.probe_at is not None:
            it.probe_at, it.is_busy = None, False

    def _charge(self, it: _Cell, *, had_nothing: bool) -> None:
        begin = max(it.time, self._time) if had_nothing else it.time
        self._time = max(self._time, begin)
        it.time, it.is_busy = begin + 1 / it.weight, True

    # --- what is to be done ------------------------------------------------------------------------------

    def next(self, now: float, room: int) -> Step:
        """Say what to do now; the answer counts as done, except that a slot is reserved once `reserved` says so.

        Args:
            now: The time.
            room: How many more jobs may have a slot, the reserved ones not yet counted.
        """
        actions: list[Action] = []
        while self.free and self.surplus:
            actions.append(Pass(self.surplus.pop(0)))
            self.free, room = self.free - 1, room - 1
        self._renew(now, actions)
        while (name := self._whom(now)) is not None:
            actions.append(self.cells[name].ask(name, now))
        while self.free > self._needed(now):
            self.free -= 1
            actions.append(GiveBack())
        self._is_stale = self._is_stale and self.free > 0
        is_wanted = bool(self.surplus) or self._is_any_due(now)
        if self.is_waiting and self.is_paused and not is_wanted:
            self.is_waiting = False
            actions.append(Withdraw())
        if is_wanted and not self.is_waiting and self.free < room:
            self.is_waiting = True
            actions.append(Reserve())
        return Step(actions, self._wake(now))

    def _renew(self, now: float, actions: list[Action]) -> None:
        """Get in line again with a slot that brought nothing, before it is used once more."""
        if self._is_stale and self._is_any_due(now) and self.free > max(self._prompt(now), self._uncovered):
            self.free, self._is_stale = self.free - 1, False
            actions.append(GiveBack())

    def _is_any_due(self, now: float) -> bool:
        return not self.is_paused and any(each.is_due(now) for each in self.cells.values())

    def _whom(self, now: float) -> str | None:
        """Whom to ask next, as the reserved slots allow."""
        if self.is_paused or not self.free or self._uncovered >= self.free:
            return None
        is_last = self._uncovered + 1 == self.free  # who takes that long to answer is not to have it as well
        due = [
            (is_last and each.is_late(now), each.ahead, name) for name, each in self.cells.items() if each.is_due(now)
        ]
        is_covered = self._prompt(now) < self.free
        return next((name for *_, name in sorted(due) if is_covered or not self.cells[name].is_busy), None)

    def _needed(self, now: float) -> int:
        """How many reserved slots have a use."""
        is_asked = any(each.opened and each.probe_at is None for each in self.cells.values())
        return max(self._prompt(now), int(is_asked), self._uncovered)

    @property
    def have_all_answered(self) -> bool:
        """Whether each cell has answered as it should, at least once."""
        return all(each.has_answered for each in self.cells.values())

    @property
    def _uncovered(self) -> int:
        """How many slots there have to be so that at most cells - 1 jobs are without one, whatever is answered."""
        return sum(len(each.opened) for each in self.cells.values()) + len(self.surplus) - (len(self.cells) - 1)

    def _prompt(self, now: float) -> int:
        return sum(1 for each in self.cells.values() for _ in each.prompt(now))

    def _wake(self, now: float) -> float | None:
        asked = () if self.is_paused else self.cells.values()
        times = [at for each in asked if (at := each.due_at()) is not None and at > now]
        times += [since + PROMPT for each in self.cells.values() for since in each.prompt(now)]
        return min(times, default=None)
