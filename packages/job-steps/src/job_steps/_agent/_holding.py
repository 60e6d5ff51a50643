"""A job of the agent at its breakpoints: waits there, says so in the job's log, and takes decisions."""

import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio
from attrs import define, field

from job_steps._agent._directory import read_whole
from job_steps._breakpoints import Breakpoint, Decision, Moment, When, check_number, check_steps, unmet
from job_steps._definitions import Function
from job_steps._durations import in_words
from job_steps._holds import Answer, Ended, Hold, Holds
from job_steps._time_limit import standing_still

_MOMENTS: Final = {When.BEFORE: "before", When.AFTER: "after", When.FAILURE: "after the failure of"}
_SAID: Final = {
    Ended.CONTINUED: "Continued",
    Ended.ABORTED: "Aborted",
    Ended.TIMED_OUT: "Nobody has decided in time: continued, and not held again",
}

_LONGEST_PATH: Final = 4096
"""Bytes of what is written down of where an agent listens."""

Log = Callable[[bytes], Awaitable[None]]


def attach_command(directory: Path, job: str) -> str:
    """How somebody on this host attaches to a job of the agent that keeps this directory, as a shell reads it."""
    program = Path(sys.argv[0]).absolute()
    command = [sys.executable, str(program)] if program.suffix == ".pyz" else ["job-steps"]
    where: list[str] = []
    if directory.absolute().parent != program.parent:  # nobody would look for it there
        with suppress(OSError, ValueError):  # a job may have put something else there
            where = ["--socket", os.fsdecode(read_whole(directory / "socket", _LONGEST_PATH))]
    return shlex.join([*command, "attach", *where, job])


@define(eq=False)
class Holding:
    """One job's breakpoints."""

    id: str
    how_to_attach: str = ""
    """Stands in the log."""
    note: str = ""
    """What is to be known of time limits, as a sentence."""
    is_allowed: bool = False
    """Whether the policy allows breakpoints."""
    holds: Holds = field(factory=Holds)
    moment: Moment | None = None
    """What there is to see, while the job is held."""
    is_over: bool = False
    limit: anyio.CancelScope | None = None
    """Its time limit, which stands still while the job is held."""
    changed: anyio.Event = field(factory=anyio.Event)
    """Set, and replaced, when something here has."""
    _met: "dict[tuple[str, ...], None]" = field(factory=dict, init=False)
    _log: Log | None = field(default=None, init=False)
    _function: Function | None = field(default=None, init=False)

    def begin(self, function: Function, log: Log, points: Iterable[Breakpoint], timeout: float) -> None:
        """Take what a job is to be held at.

        Args:
            function: What it runs.
            log: The job's.
            points: Its breakpoints.
            timeout: Seconds for which it may be held.
        """
        self._function, self._log = function, log
        self.holds = Holds(points=tuple(points), left=timeout)
        self._met = dict.fromkeys((step.name,) for step in function.steps)

    def add(self, points: Iterable[Breakpoint]) -> None:
        """Add breakpoints for steps that come yet.

        Raises:
            ValueError: There is no such step, or there are too many breakpoints.
        """
        if self._function:
            check_steps(points, self._function)
        added = self.holds.with_points(points)
        check_number(added.points)
        self.holds = added

    def decide(self, number: int, decision: Decision) -> "tuple[Answer, Ended | None]":
        """Take a decision; returns what came of it, and how the hold ended."""
        self.holds, answer = self.holds.decided(number, decision, anyio.current_time())
        self._change()
        return answer, self.holds.how(number)

    @property
    def held(self) -> Hold | None:
        """Where it is held."""
        return self.holds.held

    @property
    def held_time(self) -> float:
        """Seconds for which it has been held."""
        return self.holds.held_time(anyio.current_time())

    async def at(self, moment: Moment) -> Decision:
        """Wait at a breakpoint, if there is one; see `run_steps`."""
        self._met.update(dict.fromkeys(moment.path[: end + 1] for end in range(len(moment.path) or 1)))
        self.holds = self.holds.reached(moment.path, moment.when, anyio.current_time())
        hold = self.held
        if hold is None:
            return Decision.CONTINUE
        self.moment = moment
        try:
            with standing_still(self.limit):
                await self._say(*self._announced(hold))
                self._change()
                await self._decided(hold)
        finally:
            self.moment = None
            self._change()
        ended = self.holds.how(hold.number) or Ended.CONTINUED
        await self._say(f"{_SAID[ended]}.")
        return ended.decision

    async def warn(self) -> None:
        """Say which breakpoints named no step, once all steps are known."""
        for each in unmet(self.holds.points, list(self._met)):
            await self._say(f"A breakpoint was never met: {each}")

    def end(self) -> None:
        """Take that the job is over."""
        if self.held:
            self.holds, _ = self.holds.decided(self.held.number, Decision.ABORT, anyio.current_time())
        self.is_over = True
        self._change()

    async def _decided(self, hold: Hold) -> None:
        """Wait until a hold has ended."""
        while self.held is hold:
            changed = self.changed
            with anyio.move_on_after(hold.until - anyio.current_time()):
                await changed.wait()
            self.holds = self.holds.passed(anyio.current_time())

    def _announced(self, hold: Hold) -> Sequence[str]:
        name = "/".join(hold.path) or "the command"
        longest = in_words(hold.until - hold.since)
        return (
            f"Held {_MOMENTS[hold.when]} {name}, for {longest} at most.{self.note and f' {self.note}'}",
            f"To attach, run on this host: {self.how_to_attach}",
        )

    async def _say(self, *lines: str) -> None:
        if self._log:
            await self._log("".join(f"{line}\n" for line in lines).encode(errors="replace"))

    def _change(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()
