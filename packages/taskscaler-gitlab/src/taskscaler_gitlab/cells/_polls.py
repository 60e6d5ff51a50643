"""Requests for jobs: held at one cell, or at several at once."""

import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import anyio
from anyio.abc import TaskGroup
from attrs import define, field, frozen

from fleeting.plugins import one_line
from gitlab_jobs import GitLabJobsError, PayloadInvalid, decode_job
from taskscaler_gitlab.cells._cells import CALL, Cell
from taskscaler_gitlab.cells._headers import TICKET
from taskscaler_gitlab.cells._held import Answer, AnswerTooLong, CellAway, Held
from taskscaler_gitlab.cells._kept import KEPT, SIGN, Kept, KeptJob, Owed
from taskscaler_gitlab.cells._route import (
    AT_ONCE,
    Action,
    Ask,
    Give,
    HangUp,
    Keep,
    Memory,
    Nothing,
    Refuse,
    Round,
    Unavailable,
    hashed,
    in_order,
    is_away,
)

PATH = "/api/v4/jobs/request"
NOTHING = Answer(HTTPStatus.NO_CONTENT, {}, b"")
REFUSED = Answer(HTTPStatus.FORBIDDEN, {"content-type": "application/json"}, b'{"message":"403 Forbidden"}')
AWAY = Answer(
    HTTPStatus.BAD_GATEWAY, {"content-type": "application/json"}, b'{"message":"502 no cell answers at the moment"}'
)
_FAILED = {"state": "failed", "failure_reason": "runner_system_failure"}
_LONGEST_PAUSE = 60.0
_TOKENS = ("runner-token", "private-token", "job-token", "authorization")

log = logging.getLogger("taskscaler.gitlab")


@define(eq=False)
class Line:
    """The connection on which a runner waits."""

    gone: Callable[[], Awaitable[object]]
    """Waits for the runner to hang up."""

    answered: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    polled: "Polled | None" = field(default=None, init=False)
    is_gone: bool = field(default=False, init=False)
    _hang_up: Callable[[], object] | None = field(default=None, init=False)

    def on_gone(self, do: Callable[[], object]) -> None:
        """Do this, and nothing that was to be done before, when the runner hangs up."""
        self._hang_up = do
        if self.is_gone:
            do()

    def hang_up(self) -> None:
        """The runner has hung up."""
        self.is_gone = True
        if self._hang_up is not None:
            self._hang_up()


@frozen(kw_only=True)
class Poll:
    """What a runner asks with."""

    runner: bytes
    """Stands for its token and its system."""

    line: Line
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    tokens: Mapping[str, str] | None = field(default=None, repr=False)
    """The tokens to ask the cells with, by their names; None: the runner's own."""

    @property
    def is_two_phase(self) -> bool:
        """Whether it says when it accepts a job."""
        info = self.body.get("info")
        features = info.get("features") if isinstance(info, Mapping) else None
        return isinstance(features, Mapping) and features.get("two_phase_job_commit") is True

    def headers_for(self, cell: str) -> Mapping[str, str]:
        """Its headers, with the token for a cell."""
        if self.tokens is None:
            return self.headers
        kept = {name: value for name, value in self.headers.items() if name not in _TOKENS}
        return {**kept, "runner-token": self.tokens[cell]}

    def content(self, cell: str, ticket: str | None) -> bytes:
        """Its body, with a cell's own ticket or none, and with the token for it."""
        body = {key: value for key, value in self.body.items() if key != "last_update"}
        if self.tokens is not None:
            body["token"] = self.tokens[cell]
        if ticket:
            body["last_update"] = ticket
        return json.dumps(body, separators=(",", ":")).encode()


@frozen(kw_only=True)
class Polled:
    """What a runner is to be answered."""

    answer: Answer
    cell: str | None = None
    """Whose answer it is; None: of no single one."""

    known: Mapping[str, str] | None = None
    """The cells that know the runner, with what it has seen of them; None: nothing new is known of that."""


@define(eq=False)
class Polls:
    """All requests that are held."""

    cells: Mapping[str, Cell]
    kept: Kept
    jobs: Memory[bytes, str]
    """Which cell a job is from, by its number and token."""

    hold: float
    _tasks: TaskGroup
    """Outlives requests: what a cell has begun to answer is heard to its end."""

    _open: set[Held] = field(factory=set, init=False)
    _rounds: dict[int, "_Live"] = field(factory=dict, init=False)
    _waiting: dict[bytes, "list[_Alone | _Live]"] = field(factory=dict, init=False)
    """Requests that are held, by their runners: a job that is kept is for one of these."""

    _signing: set[Owed] = field(factory=set, init=False)
    """Kept jobs of which a cell is being told that they are prepared."""

    _turns: int = field(default=0, init=False)
    _closing: anyio.Event = field(factory=anyio.Event, init=False)

    async def at_one(self, poll: Poll, cell: Cell, ticket: str) -> Polled:
        """Ask one cell, and answer what it does."""
        if self._closing.is_set():
            return Polled(answer=NOTHING)
        alone = _Alone(cell.held())
        poll.line.on_gone(alone.give_up)
        with self._waiting_for_kept(poll, alone):
            answer = await self._ask(alone.held, cell, poll, ticket or None)
        if not alone.is_wanted:
            await self._keep_if_job(poll, cell.name, answer)
            kept = None if poll.line.is_gone else await self.taken(poll)
            return Polled(answer=NOTHING) if kept is None else kept
        if answer is None:
            return Polled(answer=NOTHING if self._closing.is_set() else AWAY)
        self._remember(cell.name, answer)
        return Polled(answer=answer, cell=cell.name, known={cell.name: answer.headers.get(TICKET, ticket)})

    async def at_several(
        self, poll: Poll, names: Sequence[str], tickets: Mapping[str, str], *, may_hold: bool
    ) -> Polled:
        """Ask several cells, and answer with the first job, or that there is none; at once, unless it may be held."""
        if self._closing.is_set():
            return Polled(answer=NOTHING)
        self._turns += 1
        away = [each for each in names if self.cells[each].is_away]
        deadline = anyio.current_time() + (self.hold if may_hold else AT_ONCE)
        order = in_order(names, self._turns, away)
        live = _Live(Round(order, deadline, tickets, may_hold=may_hold, away=away))
        self._rounds[id(live)] = live
        poll.line.on_gone(live.wake)
        try:
            with self._waiting_for_kept(poll, live):
                return await self._run(poll, live)
        finally:
            del self._rounds[id(live)]

    async def for_line(self, poll: Poll, ask: Callable[[], Awaitable[Polled]]) -> Polled | None:
        """Have a request answered while its line is open; None: the runner has hung up.

        In a task of its own, which is not cancelled: what a cell has begun to answer is heard to its end.
        """
        line = poll.line

        async def answer() -> None:
            try:
                line.polled = await ask()
            except Exception:
                log.exception("asking_failed")
                line.polled = Polled(answer=AWAY)
            finally:
                line.answered.cancel()
            if line.is_gone and line.polled.cell is not None:
                await self._keep_if_job(poll, line.polled.cell, line.polled.answer)

        self._tasks.start_soon(answer)
        try:
            with line.answered:
                await line.gone()
        finally:
            if not line.answered.cancelled_caught:  # the runner has hung up, or we end
                line.hang_up()
                if line.polled is not None and line.polled.cell is not None:
                    self._tasks.start_soon(self._keep_if_job, poll, line.polled.cell, line.polled.answer)
        return None if line.is_gone else line.polled

    def close(self) -> None:
        """Have everybody answered that there is nothing, and no cell hand out a job any more."""
        self._closing.set()
        for live in self._rounds.values():
            live.round.deadline = anyio.current_time()
            live.wake()
        for each in [*self._open]:
            each.hang_up()

    @property
    def open(self) -> int:
        """How many requests are open at cells."""
        return len(self._open)

    # --- several cells --------------------------------------------------------------------------------------------

    async def _run(self, poll: Poll, live: "_Live") -> Polled:
        self._act(poll, live, live.round.look(anyio.current_time()))
        while live.polled is None:
            woken = live.woken  # now: something may come while we look for what is kept
            kept = None if poll.line.is_gone else await self.taken(poll)
            if live.polled is not None and live.polled.cell is not None:  # a cell has given a job meanwhile
                if kept is not None and kept.cell is not None:
                    await self._keep_if_job(poll, kept.cell, kept.answer)
                break
            if kept is not None:
                self._act(poll, live, live.round.has_another(anyio.current_time()))
                self._tasks.start_soon(self._part, poll, live)
                return kept
            if poll.line.is_gone:
                self._act(poll, live, live.round.abandon())
                return Polled(answer=NOTHING)
            wake = live.round.wake
            with anyio.move_on_at(wake if wake is not None else anyio.current_time() + CALL):
                await woken.wait()
            self._act(poll, live, live.round.look(anyio.current_time()))
        return live.polled

    def _act(self, poll: Poll, live: "_Live", actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Ask(cell, ticket):
                    live.held[cell] = self.cells[cell].held()
                    self._tasks.start_soon(self._asked, poll, live, cell, ticket)
                case HangUp(cell):
                    live.held[cell].hang_up()
                case Give(cell):
                    answer = live.answers[cell]
                    self._remember(cell, answer)
                    live.polled = self._polled(live, answer, cell)
                    self._tasks.start_soon(self._part, poll, live)
                case Keep(cell):
                    self._tasks.start_soon(self._keep_if_job, poll, cell, live.answers[cell])
                case Nothing():
                    self._note_late(live)
                    live.polled = self._polled(live, NOTHING)
                case Refuse():
                    live.polled = Polled(answer=REFUSED, known={})
                case Unavailable():
                    self._note_late(live)
                    live.polled = Polled(answer=AWAY)

    def _note_late(self, live: "_Live") -> None:
        for each in live.round.late:
            self.cells[each].note(answers=False)

    async def _part(self, poll: Poll, live: "_Live") -> None:
        """Hang up on the others, after a moment."""
        while (wake := live.round.wake) is not None:
            await anyio.sleep_until(wake)
            self._act(poll, live, live.round.look(anyio.current_time()))

    def _polled(self, live: "_Live", answer: Answer, cell: str | None = None) -> Polled:
        return Polled(answer=answer, cell=cell, known=live.round.known)

    async def _asked(self, poll: Poll, live: "_Live", name: str, ticket: str | None) -> None:
        cell = self.cells[name]
        answer = await self._ask(live.held[name], cell, poll, ticket)
        now = anyio.current_time()
        if answer is None:
            self._act(poll, live, live.round.answered(name, None, None, now))
        else:
            live.answers[name] = answer
            given = answer.headers.get(TICKET)
            pause = _pause(answer.headers.get("retry-after", ""))
            self._act(poll, live, live.round.answered(name, answer.status, given, now, pause=pause))
        live.wake()

    # --- one cell -------------------------------------------------------------------------------------------------

    async def _ask(self, held: Held, cell: Cell, poll: Poll, ticket: str | None) -> Answer | None:
        self._open.add(held)
        try:
            answer = await held.ask(PATH, poll.headers_for(cell.name), poll.content(cell.name, ticket))
        except AnswerTooLong as error:
            log.warning("cell_says_too_much", extra={"cell": cell.name, "why": str(error)})
            return None
        except CellAway as error:
            if not held.is_hung_up:
                cell.note(answers=False)
                log.debug("cell_away", extra={"cell": cell.name, "why": str(error)})
            return None
        finally:
            self._open.discard(held)
        cell.note(answers=not is_away(answer.status))
        return answer

    def _remember(self, cell: str, answer: Answer) -> None:
        if answer.status == HTTPStatus.CREATED and (owed := _owed(cell, answer)) is not None:
            self.jobs.remember(hashed(str(owed.number), owed.token), cell)

    # --- jobs that nobody has asked for ---------------------------------------------------------------------------

    async def _keep_if_job(self, poll: Poll, cell: str, answer: Answer | None) -> None:
        if answer is None or answer.status != HTTPStatus.CREATED or (owed := _owed(cell, answer)) is None:
            return
        self._remember(cell, answer)
        until = anyio.current_time() + KEPT
        await self.kept.keep(poll.runner, KeptJob(owed, answer, until, poll.is_two_phase))
        for each in self._waiting.get(poll.runner, ()):
            each.wake()
        log.info("job_kept", extra={"cell": cell, "job": owed.number})
        if self._closing.is_set():
            await self.give_up_all()

    @contextmanager
    def _waiting_for_kept(self, poll: Poll, waiting: "_Alone | _Live") -> Iterator[None]:
        self._waiting.setdefault(poll.runner, []).append(waiting)
        try:
            yield
        finally:
            self._waiting[poll.runner].remove(waiting)
            if not self._waiting[poll.runner]:
                del self._waiting[poll.runner]

    async def taken(self, poll: Poll) -> Polled | None:
        """The job that has waited for a runner."""
        found = await self.kept.take(poll.runner)
        return None if found is None else Polled(answer=found.answer, cell=found.owed.cell)

    async def look_after_kept(self) -> None:
        """Say that those that wait are being prepared, and give up those that wait too long; until it is cancelled."""
        for owed in await anyio.to_thread.run_sync(self.kept.left):
            self._tasks.start_soon(self._fail, owed)  # each by itself: a cell that does not answer holds up no other's
        while True:
            await anyio.sleep(SIGN)
            for over in self.kept.overdue(anyio.current_time()):
                self._tasks.start_soon(self._give_up, over)
            for each in self.kept:
                if each.is_two_phase and each.owed not in self._signing:  # a slow cell has one call about it at a time
                    self._tasks.start_soon(self._sign, each.owed)

    async def _sign(self, owed: Owed) -> None:
        self._signing.add(owed)
        try:
            await self._say(owed, {"state": "pending"})
        finally:
            self._signing.discard(owed)

    async def give_up_all(self) -> None:
        """Wait no longer for runners."""
        async with anyio.create_task_group() as tasks:
            for each in self.kept.overdue(float("inf")):
                tasks.start_soon(self._give_up, each)

    async def _give_up(self, job: KeptJob) -> None:
        if job.is_two_phase:
            # A cell that waits for the acceptance refuses this, and gives the job to somebody else when it hears no
            # more; one that knows no such thing, whatever the runner does, believes that the job runs.
            await self._say(job.owed, _FAILED)
        else:
            await self._fail(job.owed)

    async def _fail(self, owed: Owed) -> None:
        if owed.cell not in self.cells:
            log.warning("cell_gone", extra={"cell": owed.cell, "job": owed.number})
        elif not await self._say(owed, _FAILED):
            return  # the next process tries it again
        try:
            await self.kept.settle(owed)
        except OSError as error:
            log.warning("not_forgotten", extra={"job": owed.number, "error": one_line(str(error))})

    async def _say(self, owed: Owed, said: Mapping[str, str]) -> bool:
        headers = {"Content-Type": "application/json", "JOB-TOKEN": owed.token}
        content = json.dumps({**said, "token": owed.token}).encode()
        client = self.cells[owed.cell].client
        try:
            async with client.pass_on(
                "PUT", f"jobs/{owed.number}", headers=headers, content=content, seconds=CALL
            ) as got:
                return not is_away(got.status)
        except GitLabJobsError as error:
            log.warning("not_said", extra={"cell": owed.cell, "job": owed.number, "error": one_line(str(error))})
            return False


@define(eq=False)
class _Live:
    """A round under way."""

    round: Round
    held: dict[str, Held] = field(factory=dict, init=False)
    answers: dict[str, Answer] = field(factory=dict, init=False)
    polled: Polled | None = field(default=None, init=False)
    woken: anyio.Event = field(factory=anyio.Event, init=False)

    def wake(self) -> None:
        """Have it looked at."""
        self.woken.set()
        self.woken = anyio.Event()


@define(eq=False)
class _Alone:
    """A request to the only cell that is asked."""

    held: Held
    is_wanted: bool = field(default=True, init=False)

    def wake(self) -> None:
        """A job is kept for its runner."""
        self.give_up()

    def give_up(self) -> None:
        """Want no answer any more."""
        self.is_wanted = False
        self.held.hang_up()


def _owed(cell: str, answer: Answer) -> Owed | None:
    """The number and token of a job; None: it has none that could be used, so that nobody can report it."""
    try:
        job = decode_job(answer.body)
    except PayloadInvalid as error:
        if error.job_id is None or error.token is None:
            return None
        return Owed(cell, error.job_id, error.token)
    return Owed(cell, job.id, job.token)


def _pause(text: str) -> float:
    return min(float(text), _LONGEST_PAUSE) if text.isascii() and text.isdigit() else 0.0
