"""Asks a runner's GitLabs for jobs, as `Upstreams` says: the runtime around it, from a reserved slot to a job."""

import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

import anyio
from anyio.abc import TaskGroup
from attrs import define, field, frozen

from fleeting.plugins import one_line, span
from gitlab_jobs import Job
from taskscaler import NoCapacity, Taskscaler
from taskscaler_gitlab._limits import CellFacts
from taskscaler_gitlab._metrics import RunnerMetrics
from taskscaler_gitlab._record import KEYS
from taskscaler_gitlab._unforeseen import Unforeseen
from taskscaler_gitlab.cells._cell import Cell
from taskscaler_gitlab.cells._upstreams import Ask, GiveBack, Pass, Reserve, Upstreams, Withdraw

YOUNG = 2.0
"""Seconds for which a request that was just made is waited for when the daemon drains: GitLab may be answering it."""

Take = Callable[[Cell, Job, str], Awaitable[object]]
"""Takes a job of a cell, under the key by which it has its slot, or waits for one."""


@frozen(eq=False)  # two that were made in the same moment to the same GitLab are two
class _Poll:
    """A request for a job that is under way."""

    cell: Cell
    ask: Ask
    scope: anyio.CancelScope = field(factory=anyio.CancelScope)


@define(eq=False)
class _Gate:
    """Before the slot of a job that came without one."""

    passed: anyio.Event = field(factory=anyio.Event)
    is_closed: bool = False
    """Whether there will be no slot."""

    wait: anyio.CancelScope = field(factory=anyio.CancelScope)
    """Around the wait for a slot that is the job's."""

    def close(self) -> None:
        """There will be no slot, unless there is one."""
        if not self.passed.is_set():
            self.is_closed = True
            self.passed.set()


@define(eq=False)
class Asking:
    """Asks whenever a request is due, there may be one more job, and a slot is reserved for it."""

    cells: Sequence[Cell]
    scaler: Taskscaler
    unforeseen: Unforeseen
    check_interval: float
    info: Callable[[], Mapping[str, Any]]
    """What is said about who runs jobs."""

    room: Callable[[Collection[str], Collection[str]], int]
    """How many more jobs may have a slot, given the keys of those that are being taken, and of those that wait."""

    take: Take
    path: Path
    """The configuration, for people."""

    say: Callable[[str], object]
    """Prints a line."""

    meter: RunnerMetrics | None = None
    upstreams: Upstreams = field(init=False)
    polls: list[_Poll] = field(factory=list, init=False)
    taking: set[str] = field(factory=set, init=False)
    """Keys of jobs that have come, and are not noted down yet."""

    _reserved: list[str] = field(factory=list, init=False)
    """Keys of slots that are nobody's yet: as many as the core has `free`."""

    _gates: dict[str, _Gate] = field(factory=dict, init=False)
    _wait: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    """Around the wait for the next slot."""

    _scope: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    _is_over: bool = field(default=False, init=False)
    _changed: anyio.Event = field(factory=anyio.Event, init=False)

    @upstreams.default
    def _of_cells(self) -> Upstreams:
        return Upstreams.of({each.name: (each.runner.polling, each.weight) for each in self.cells})

    # --- for those who wait ------------------------------------------------------------------------------

    def note_change(self) -> None:
        """Something has changed that decides how many jobs there may be."""
        self._changed.set()
        self._changed = anyio.Event()

    def resume(self, key: str) -> None:
        """Have a job wait for its turn that an earlier process has left without a slot."""
        self._gates[key] = _Gate()
        self.upstreams.left(key)

    async def admitted(self, key: str) -> None:
        """Wait until a job may have its slot: at once, unless it came without one.

        Raises:
            NoCapacity: No slots are handed out any more.
        """
        if (gate := self._gates.get(key)) is not None:
            await gate.passed.wait()
            if gate.is_closed:
                raise NoCapacity("the runner takes no more jobs")

    def is_waiting(self, key: str) -> bool:
        """Whether a job waits for its turn."""
        return (gate := self._gates.get(key)) is not None and not gate.passed.is_set()

    async def forget(self, key: str) -> None:
        """A job is over: if it waited for its turn, it does not any more."""
        self.upstreams.gone(key)
        if (gate := self._gates.pop(key, None)) is not None:
            gate.wait.cancel()
            await self.scaler.unreserve(key)
        self.note_change()

    # --- asking ------------------------------------------------------------------------------------------

    async def run(self, tasks: TaskGroup) -> None:
        """Ask until `stop`; requests run as tasks of the group, and may outlive that."""
        with self._scope:
            while not self._is_over:
                with self.unforeseen.contained("asking_failed"):
                    async with anyio.create_task_group() as waits:
                        await self._ask_on(tasks, waits)
                await anyio.sleep(self.check_interval)
        await self._give_all_back()

    def stop(self) -> None:
        """Ask for no more jobs; a request that was just made is waited for. Who waits for a slot gets none."""
        self._is_over = True
        self._scope.cancel()
        for poll in self.polls:
            poll.scope.deadline = min(poll.scope.deadline, poll.ask.since + YOUNG)
        for gate in self._gates.values():
            gate.close()

    def pause(self, *, is_paused: bool) -> None:
        """Ask for no more jobs, or ask again; a request that is under way is waited for, however long it is held."""
        self.upstreams.is_paused = is_paused
        self.note_change()

    async def _ask_on(self, tasks: TaskGroup, waits: TaskGroup) -> None:
        while True:
            changed, now = self._changed, anyio.current_time()
            step = self.upstreams.next(now, self.room(self.taking, self.upstreams.surplus))
            for action in step.actions:
                match action:
                    case Ask():
                        self._begin(tasks, action)
                    case Reserve():
                        waits.start_soon(self._reserve)
                    case GiveBack():
                        await self.scaler.unreserve(self._reserved.pop())
                    case Withdraw():
                        self._wait.cancel()
                    case Pass(key):
                        await self._pass(waits, key)
            with anyio.move_on_after(None if step.wake is None else step.wake - now):
                await changed.wait()

    def _begin(self, tasks: TaskGroup, ask: Ask) -> None:
        if self.meter is not None:
            self.meter.turns += 1
        poll = _Poll(next(each for each in self.cells if each.name == ask.cell), ask)
        self.polls.append(poll)
        tasks.start_soon(self._ask, poll)

    async def _reserve(self) -> None:
        """Keep a slot for a job that may come; waits until there is one."""
        key = f"{KEYS}{token_hex(6)}"
        self._wait = scope = anyio.CancelScope()
        with scope:
            try:
                await self.scaler.reserve(key, timeout=math.inf)
            except NoCapacity:
                await anyio.sleep_forever()  # the fleet is ending, and so is this
            except BaseException:
                if not scope.cancel_called:
                    self.upstreams.not_reserved()
                raise
        if scope.cancelled_caught:
            return
        self._reserved.append(key)
        self.upstreams.reserved()
        self.note_change()

    async def _pass(self, waits: TaskGroup, key: str) -> None:
        """Have a reserved slot be that of a job that waits, whose key is on disk; nobody comes in between."""
        await self.scaler.unreserve(self._reserved.pop())
        gate = self._gates.get(key)
        if gate is None:
            return
        try:
            await self.scaler.reserve(key)
        except NoCapacity:  # somebody had waited for it longer
            waits.start_soon(self._wait_for, gate, key)
        else:
            gate.passed.set()

    async def _wait_for(self, gate: _Gate, key: str) -> None:
        with gate.wait:
            try:
                await self.scaler.reserve(key, timeout=math.inf)
            except NoCapacity:
                return  # the fleet is ending, and closes the gate
            except BaseException:  # the loop failed, and begins again
                if key in self._gates and not self._is_over:
                    self.upstreams.surplus.insert(0, key)
                    gate.wait = anyio.CancelScope()
                raise
            gate.passed.set()

    async def _ask(self, poll: _Poll) -> None:
        """Ask once, and have the job taken that comes."""
        key: str | None = None
        with self.unforeseen.contained("request_failed"):
            try:
                job, has_failed = None, False
                with poll.scope:
                    job, has_failed = await self._asked_once(poll)
                key = self._over(poll, has_job=job is not None, has_failed=has_failed)
                if job is not None and key is not None:
                    await self.take(poll.cell, job, key)
            finally:
                self._end(poll, key)
        if self._is_over:
            await self._give_all_back()
        self._say_if_silenced(poll.cell)

    def _over(self, poll: _Poll, *, has_job: bool, has_failed: bool) -> str | None:
        """A request is over; returns the key of its job: that of a reserved slot, or one that waits for its turn."""
        self.polls.remove(poll)
        key = None
        if has_job:
            key = self._reserved.pop() if self._reserved else f"{KEYS}{token_hex(6)}"
            self.taking.add(key)
        now = anyio.current_time()
        is_covered = self.upstreams.answered(poll.ask, now, key=key, has_failed=has_failed)
        if key is not None and not is_covered:
            self._gates[key] = gate = _Gate()
            if self._is_over:
                gate.close()
        self.note_change()
        return key

    def _end(self, poll: _Poll, key: str | None) -> None:
        """A request is over for good: its job, if there was one, counts as one that is noted down, or is refused."""
        if poll in self.polls:
            self.polls.remove(poll)
            self.upstreams.broken_off(poll.ask)
        self.taking.discard(key or "")
        self.note_change()

    async def _give_all_back(self) -> None:
        """Give back what has no use any more once nothing more is asked."""
        with anyio.CancelScope(shield=True):
            while len(self._reserved) > len(self.polls):
                self.upstreams.free -= 1
                await self.scaler.unreserve(self._reserved.pop())

    async def _asked_once(self, poll: _Poll) -> tuple[Job | None, bool]:
        """Ask; what nobody foresaw costs this request, and time, but not the runner. Returns whether it has failed."""
        runner = poll.cell.runner
        try:
            runner.info = self.info()
            job = await runner.ask(may_hold=poll.ask.may_hold)
        except Exception as error:  # noqa: BLE001  (logged)
            self.unforeseen.log_unforeseen(error, "request_failed", {})
            if self.meter is not None:
                self.meter.unforeseen += 1
            await anyio.sleep(self.check_interval)
            return None, True
        return job, job is None and bool(runner.trouble)

    # --- what there is to say ----------------------------------------------------------------------------

    def facts(self, jobs: Mapping[str, int]) -> Iterator[CellFacts]:
        """How each cell stands, given how many jobs there are of each."""
        now = anyio.current_time()
        for cell in self.cells:
            state, polling = self.upstreams.cells[cell.name], cell.runner.polling
            yield CellFacts(
                called=cell.called,
                jobs=jobs.get(cell.name, 0),
                requests=len(state.opened),
                weight=cell.weight,
                request_limit=polling.limit,
                trouble=one_line(cell.runner.trouble),
                out_for=None if state.probe_at is None else max(0.0, state.probe_at - now),
                silent_for=max(0.0, (polling.wake or 0.0) - now) if polling.is_silenced and polling.wake else 0.0,
            )

    def _say_if_silenced(self, cell: Cell) -> None:
        (facts,) = (each for each in self.facts({}) if each.called == cell.called)
        if cell.runner.polling.is_silenced and facts.silent_for:
            if self.meter is not None:
                self.meter.silences += 1
            self.say(
                f"warning: {cell.called} refused the runner's token three times; it is asked again in"
                f" {span(facts.silent_for)}. Check the token: taskscaler-gitlab check {self.path}"
            )
