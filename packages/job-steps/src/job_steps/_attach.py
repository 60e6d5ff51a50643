"""``attach``: finds the jobs of this host's agents that are held at breakpoints, shows them, and lets them go on.

It is a command of ``job-steps`` and of the agent itself, so that an instance needs nothing else for it.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import anyio
from attrs import define, field, frozen

from job_steps._agents_here import CannotAttach, KnownJob, agents_here, jobs_of
from job_steps._breakpoints import Decision
from job_steps._call_errors import CallFailed, ConnectionLost
from job_steps._call_status import Code
from job_steps._client import Held, HeldStep
from job_steps._durations import in_words
from job_steps._holds import ENDED_BY, Ended
from job_steps._messages import RunState
from job_steps._nearest import nearest
from job_steps._printable import printable
from job_steps._prompt import Left, Prompt, Surroundings, View

_GONE_ON: Final = "it is not held here any more: somebody else has decided, or its time is over"

_OVER: Final = {RunState.SUCCESS: "has succeeded", RunState.FAILURE: "has failed", RunState.CANCELLED: "was cancelled"}


@frozen(kw_only=True)
class Wish:
    """What somebody wants."""

    job: str = ""
    """The beginning of an id that no other job has; empty: the only one that is held."""
    sockets: tuple[str, ...] = ()
    """Where agents listen; none: they are looked for."""
    breakpoints: tuple[str, ...] = ()
    """To add to the job."""
    decision: Decision | None = None
    """What to decide, without a prompt."""
    lists: bool = False
    """Whether to list what is held, and nothing else."""
    as_json: bool = False
    """Whether that list is JSON."""


async def attach(wish: Wish, home: Path) -> int:
    """Do what somebody wants; returns the exit status.

    Raises:
        CannotAttach, CallFailed: It cannot be done.
    """
    try:
        async with agents_here(wish.sockets, home, may_be_none=wish.lists) as agents:
            return await _attached(wish, await jobs_of(agents, is_named=bool(wish.sockets)))
    except Exception as error:
        found = _first(error)
        if isinstance(found, ConnectionLost):
            found = CannotAttach("the agent has ended, or was killed, and its jobs with it")
        if found is error:
            raise
        raise found from error


def _first(error: Exception) -> Exception:
    """Take groups apart, which task groups make, until there is an error."""
    several: Sequence[Exception] = getattr(error, "exceptions", ())
    return _first(several[0]) if several else error


async def _attached(wish: Wish, known: Sequence[KnownJob]) -> int:
    if wish.lists:
        _list([each for each in known if each.held], as_json=wish.as_json)
        return 0
    job = _chosen(wish, known)
    if wish.breakpoints:
        await job.client.add_breakpoints(job.id, wish.breakpoints)
        if wish.decision is None and not (sys.stdin.isatty() and job.held):
            return 0
    if wish.decision is not None:
        return await _decide(job, wish.decision)
    return await _Session(job).go()


def _chosen(wish: Wish, known: Sequence[KnownJob]) -> KnownJob:
    """Find the job that somebody means."""
    running = [each for each in known if not each.state.is_over]
    if not wish.job:
        held = [each for each in running if each.held]
        if not held:
            raise CannotAttach("no job is held at a breakpoint; to wait for one that is running, name it")
        if len(held) > 1:
            names = ", ".join(each.id for each in held[:10])
            raise CannotAttach(f"{len(held)} jobs are held: {names}; name one of them")
        return held[0]
    found = [each for each in known if each.id == wish.job] or [each for each in known if each.id.startswith(wish.job)]
    if not found:
        near = nearest(wish.job, [each.id for each in running])
        said = f"did you mean {near}?" if near else "`--list` shows the jobs that are held"
        raise CannotAttach(f"there is no job {wish.job}; {said}")
    if len(found) > 1 and found[0].id == wish.job:
        where = ", ".join(each.agent.socket for each in found[:10])
        raise CannotAttach(f"{len(found)} agents have a job {wish.job}; name one of them with --socket: {where}")
    if len(found) > 1:
        raise CannotAttach(f"the names of {len(found)} jobs begin with {wish.job}; type more of the name")
    if found[0].state.is_over:
        raise CannotAttach(f"the job {found[0].id} {_OVER.get(found[0].state, 'is over')}; nothing holds it any more")
    return found[0]


def _list(held: Sequence[KnownJob], *, as_json: bool) -> None:
    steps = [each.held for each in held if each.held]
    if as_json:
        rows = [
            {
                "job": each.job,
                "hold": each.number,
                "step": "/".join(each.path),
                "when": each.when.value,
                "ends_in": round(each.ends_in, 3),
            }
            for each in steps
        ]
        _print(json.dumps(rows, ensure_ascii=False))
        return
    table = [("JOB", "STEP", "WHEN", "GOES ON IN")]
    table += [(each.job, "/".join(each.path), each.when.value, in_words(each.ends_in)) for each in steps]
    lines = [[" ".join(cell.split()) for cell in row] for row in table]  # one each, whatever jobs are called
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    for line in lines if steps else ():
        _print("  ".join((*(text.ljust(width) for text, width in zip(line[:3], widths, strict=True)), line[3])))
    if not steps:
        _print("no job is held")


async def _decide(job: KnownJob, decision: Decision) -> int:
    """Decide without a prompt."""
    if job.held is None:
        raise CannotAttach(f"the job {job.id} is not held")
    ended = await job.client.decide(job.id, job.held.number, decision)
    return 0 if _shown(ended, decision) else 1


def _shown(ended: Ended, decision: Decision) -> bool:
    """Say what came of a decision, and whether it is what was wanted."""
    is_so = ended is ENDED_BY[decision]
    if not is_so:
        how = (
            "nobody had decided in time, and it went on"
            if ended is Ended.TIMED_OUT
            else f"it was {ended.value} already"
        )
        _print(f"too late: {how}")
    return is_so or ended.decision is decision


@define(eq=False)
class _Session:
    """Somebody at the terminal, attached to one job."""

    job: KnownJob
    _held: Held | None = field(default=None, init=False)
    """Where it is held, as far as is known."""
    _seen: int = field(default=0, init=False)
    """The number of the last hold that somebody was asked about."""
    _lost: ConnectionLost | None = field(default=None, init=False)
    _changed: anyio.Event = field(factory=anyio.Event, init=False)

    async def go(self) -> int:
        """Ask at each breakpoint until the job is over, or somebody leaves."""
        prompt = Prompt(hold_at=self._hold_at, user=self.job.agent.user)
        if self.job.held is None:
            prompt.say(f"{self.job.id} is not held; waiting until it is, or is over")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch)
            while True:
                held = await self._until(lambda held: held.is_over or (held.step and held.step.number > self._seen))
                if held.step is None:
                    break
                self._seen = held.step.number
                decision = await self._asked(prompt, held.step)
                if decision is Left.LEFT:
                    prompt.say(f"{self.job.id} stays held")
                    tasks.cancel_scope.cancel()
                    return 0
                if isinstance(decision, Decision):
                    _shown(await self.job.client.decide(self.job.id, held.step.number, decision), decision)
            tasks.cancel_scope.cancel()
        prompt.say(f"{self.job.id} {await self._how_it_ended()}")
        return 0

    async def _how_it_ended(self) -> str:
        try:
            status = await self.job.client.status(self.job.id)
        except (CallFailed, ConnectionLost):  # a run without a service has none, and ends with its job
            return "is over"
        how = _OVER.get(status.state, "is over")
        return f"{how}: {status.message}" if status.message else how

    async def _asked(self, prompt: Prompt, step: HeldStep) -> Decision | Left | None:
        """Ask what to do with a step; None: it is not held any more."""
        decision: Decision | Left | None = None

        async def surroundings() -> Surroundings:
            found = await self.job.client.environment(self.job.id, step.number)
            return found.env, found.work_dir

        async with anyio.create_task_group() as tasks:

            async def give_up() -> None:
                await self._until(lambda held: held.step is None or held.step.number != step.number)
                prompt.warn_in_shell(_GONE_ON)
                tasks.cancel_scope.cancel()

            tasks.start_soon(give_up)
            view = View(path=step.path, when=step.when, result=step.result, surroundings=surroundings)
            try:
                decision = await prompt.ask(view)
            except CallFailed as failed:
                if failed.code is not Code.FAILED_PRECONDITION:
                    raise
            tasks.cancel_scope.cancel()
        if decision is None:
            prompt.say(f"\n{_GONE_ON}")
        return decision

    async def _hold_at(self, text: str) -> None:
        try:
            await self.job.client.add_breakpoints(self.job.id, [text])
        except CallFailed as failed:
            raise ValueError(str(failed)) from failed

    async def _watch(self) -> None:
        """Follow where the job is held."""
        try:
            async for held in self.job.client.follow_held(self.job.id):
                self._held = held
                self._tell()
        except ConnectionLost as error:
            self._lost = error
        except CallFailed as failed:
            if failed.code is not Code.NOT_FOUND:
                raise
            self._lost = ConnectionLost("the job was closed")
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _until(self, is_so: "Callable[[Held], object]") -> Held:
        while True:
            if self._lost:
                raise self._lost
            if self._held and is_so(self._held):
                return self._held
            await self._changed.wait()


def _print(text: str) -> None:
    sys.stdout.write(f"{printable(text)}\n")
