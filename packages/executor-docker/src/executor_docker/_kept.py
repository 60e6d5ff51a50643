"""A job that outlives its manager: its container runs on, the daemon keeps its output, and labels say whose it is.

A container is made, gets all that the job needs, and is started last. One that was not started is nobody's: whoever
starts the job under that name again makes everything again.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import anyio
from attrs import define, field, frozen

from executor_docker._caches import Caches
from executor_docker._errors import reported
from executor_docker._owner import KIND, UNIT
from executor_docker._remains import clear
from executor_docker._script import END, LARGEST, NOT_EXECUTABLE, NOT_FOUND, read_report
from executor_docker._work import Work
from fleeting import Unreachable
from fleeting.connectors import Sink
from fleeting.errors import CommandLost, NameUnknown
from fleeting.plugins import format_duration
from fleeting_docker_engine import STDOUT, ContainerState, EngineRefused, EngineUnreachable, Listed, LogReader, quoted
from taskscaler.executors import JobOutcome, enter_phase

CREATED = "created"
"""The daemon's word for a container that was not started."""

PATIENCE = 600.0
"""Seconds that a job without a time-out gets to receive its files."""

GONE, CONFLICT = 404, 409
"""What a daemon answers that is to remove what is not there, or what runs."""

KILLED = 137
"""What a container exits with whose main process was killed by SIGKILL."""

LOOK_AGAIN = 1.0
"""Seconds after which a log is asked for again that ended before its job."""


@frozen
class Kept:
    """One try at a job, whoever has started it."""

    _work: Work

    async def start(self) -> None:
        """Start the job, unless it was started before."""
        work = self._work
        with reported(work.instance, "the job's container cannot be looked up"):
            made = await self._made()
            if any(map(_was_started, made)) or not await self._remove(made):
                return
            await clear(work.engine, lambda _: True, label=f"{UNIT}={work.unit.id}")
        await work.prepare(None)
        patience = work.job.timeout or PATIENCE
        with anyio.move_on_after(patience) as scope:
            await work.upload()
        if scope.cancelled_caught:
            raise Unreachable(f"the job was not begun within {format_duration(patience)}")
        with reported(work.instance, "the job's container cannot be run"):
            await work.start()

    async def attach(self, offset: int, elapsed: float, output: Sink, artifacts: Path) -> JobOutcome:
        """See the job to its end, or end it when it has had its time; see `Reattaches.attach`."""
        work = self._work
        with reported(work.instance, "the job's container cannot be looked up"):
            started = [*filter(_was_started, await self._made())]
        if not started:
            raise NameUnknown(work.unit.id)
        work.container = started[0].id
        printed = Printed(offset)
        enter_phase("run")
        outcome = await self._follow_in_time(elapsed, printed, output)
        return await work.bring_back(outcome, artifacts, Caches(work.admitted.options.caches, frozenset()))

    async def _made(self) -> Sequence[Listed]:
        """Look for all containers of the job: its daemon may still have been making one when its manager was killed."""
        query = {"all": True, "filters": {"label": [f"{UNIT}={self._work.unit.id}", f"{KIND}=job"]}}
        return await self._work.engine.ask_for(tuple[Listed, ...], "GET", "/containers/json", query=query)

    async def _remove(self, made: Iterable[Listed]) -> bool:
        """Remove containers that were not started; returns whether all were: one may just be starting.

        Its daemon may still be at it for a manager that was killed. It refuses to remove what runs unless it is forced.
        """
        for each in made:
            try:
                await self._work.engine.ask("DELETE", f"/containers/{quoted(each.id)}", query={"v": True})
            except EngineRefused as error:
                if error.status == CONFLICT:
                    return False
                if error.status != GONE:
                    raise
        return True

    async def _follow_in_time(self, elapsed: float, printed: "Printed", output: Sink) -> JobOutcome:
        work = self._work
        left = math.inf if work.job.timeout is None else work.job.timeout - max(0.0, elapsed)
        with anyio.move_on_after(left):
            await self._follow(printed, output, patience=math.inf)
            return await self._ended(printed)
        with reported(work.instance, "the job took too long and cannot be stopped"):
            has_ended = not (await work.state()).is_running
        if not has_ended:
            outcome = await work.time_out()
            with anyio.move_on_after(work.config.cleanup_timeout):  # whatever its daemon says, its time is over
                await self._follow(printed, output, is_killed=True)
            return outcome
        await self._follow(printed, output)
        try:
            return await self._ended(printed)
        except CommandLost:  # a manager before us ended it for its time, and could not say so any more
            return work.timed_out()

    async def _follow(
        self, printed: "Printed", output: Sink, *, patience: float | None = None, is_killed: bool = False
    ) -> None:
        """Pass on what the job prints, and has printed, until it has ended.

        A daemon of version 20.10 may end a log that is followed before its last lines, when the job ends while it
        writes them (``waitRead`` of ``daemon/logger/loggerutils/follow.go``): what lacks the end is read once more,
        unless the job was killed before it could write one. If that breaks off, or is refused, what is known of the job
        still counts.

        Args:
            printed: What is known of it.
            output: Gets the rest.
            patience: Seconds for which it may print nothing; None: it has ended, and the daemon only reads.
            is_killed: Whether we have killed it.
        """
        work = self._work

        async def take(data: bytes) -> None:
            if chunk := printed.feed(data):
                await output(chunk)
                printed.passed(chunk)

        async def read(*, follow: bool) -> None:
            printed.begin()
            query = {"stdout": True, "stderr": True, "follow": follow}
            await work.engine.download(f"{work.path}/logs", take, query=query, patience=patience if follow else None)

        with reported(work.instance, "the job's output cannot be read"):
            while True:
                await read(follow=True)
                state = await work.state()
                if not state.is_running:
                    break
                await anyio.sleep(LOOK_AGAIN)
            if not (printed.is_whole or is_killed or _was_killed_for_memory(state)):
                known = bytes(printed.report)
                try:
                    await read(follow=False)
                except (EngineUnreachable, EngineRefused):
                    if not read_report(known).is_complete:
                        raise
                    printed.report[:] = known
        if rest := printed.finish():
            await output(rest)
            printed.passed(rest)

    async def _ended(self, printed: "Printed") -> JobOutcome:
        """Say how the job ended, unless nobody knows."""
        work = self._work
        with reported(work.instance, "the job's end cannot be read"):
            state, code = await work.state(), await work.wait()
        report = read_report(bytes(printed.report))
        outcome = work.outcome(code, state, report)
        if report.is_complete or state.is_out_of_memory or code in (NOT_FOUND, NOT_EXECUTABLE):
            return outcome
        raise CommandLost(
            work.unit.id,
            f"its container was ended from outside, with {code}: somebody killed it, or its daemon or host restarted",
        )


def _was_started(container: Listed) -> bool:
    return container.state != CREATED


def _was_killed_for_memory(state: ContainerState) -> bool:
    """Whether the job itself was, and not only one of its processes, without which it may have gone on to its end."""
    return state.is_out_of_memory and state.exit_code == KILLED


@define
class Printed:
    """Reads a daemon's log of a job from its beginning, and says what of it is new. Pure."""

    size: int
    """Bytes of the job's output that are known."""

    report: bytearray = field(factory=bytearray, init=False)
    """What came on the standard error, which is none of the job's."""

    _frames: LogReader = field(factory=LogReader, init=False)
    _skip: int = field(default=0, init=False)
    _held: bytes = field(default=b"", init=False)
    """May be the beginning of `END`."""

    def begin(self) -> None:
        """Be ready for the log from its first byte."""
        self.report.clear()
        self._frames, self._skip, self._held = LogReader(), self.size, b""

    def feed(self, data: bytes) -> bytes:
        """Take a piece; returns what of the output is new."""
        printed = bytearray()
        for source, chunk in self._frames.feed(data):
            if source == STDOUT:
                printed += chunk
            else:
                self.report += chunk[: LARGEST - len(self.report)]
        return self._new(bytes(printed), is_last=False)

    def finish(self) -> bytes:
        """Take the end of the log; returns what of the output is new."""
        return self._new(b"", is_last=True)

    def passed(self, chunk: bytes) -> None:
        """What was new is known."""
        self.size += len(chunk)

    @property
    def is_whole(self) -> bool:
        """Whether both outputs have come to their ends."""
        return self._held == END and read_report(bytes(self.report)).is_whole

    def _new(self, printed: bytes, *, is_last: bool) -> bytes:
        printed = self._held + printed
        size = 0 if is_last else max(n for n in range(len(END) + 1) if printed.endswith(END[:n]))
        printed, self._held = printed[: len(printed) - size], printed[len(printed) - size :]
        if is_last:
            printed = printed.removesuffix(END)
        known = min(self._skip, len(printed))
        self._skip -= known
        return printed[known:]
