"""``taskscaler run``: reads the file, runs the batch, shows it, and exits with a status that says how it went."""

import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from itertools import chain, count
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread
from anyio.abc import TaskStatus
from attrs import define, evolve, field
from rich.console import Console
from rich.text import Text

from fleeting import ConfigError, LoopClock
from fleeting.cli import FAILED, SIGNALLED, SUCCEEDED, WRONG, WRONG_FILE, in_lines, outcome, report_errors
from fleeting.config import harmless
from fleeting.errors import ConfigProblem, WrongArguments
from fleeting.plugins import make_private, one_line
from taskscaler import _old_record
from taskscaler._errors import NotRecorded, RecordUnreadable, ResultsInTheWay
from taskscaler._jobsfile import Defaults, Format, Runnable, Source, StreamJobs, keep
from taskscaler._tracer import Tracer
from taskscaler.batch import (
    Batch,
    BatchState,
    CannotResume,
    EventLog,
    JobChanged,
    JobState,
    LazyJobs,
    Over,
    Results,
)
from taskscaler.batch._followed import Following
from taskscaler.batch._job import planned
from taskscaler.batch._pace import Pace
from taskscaler.cli._changes import changes, changes_of_fleet
from taskscaler.cli._choice import Choice, Wishes, choose
from taskscaler.cli._console import PatientConsole
from taskscaler.cli._for_ci import ForCI
from taskscaler.cli._log import logging_to
from taskscaler.cli._log_formats import LogFormat
from taskscaler.cli._progress import Picture, Progress, progress_for
from taskscaler.cli._report import make_report
from taskscaler.cli._run_fleet import RunFleet, read_for
from taskscaler.cli._since_begun import depends_on_disk, sayings
from taskscaler.cli._summary import print_summary
from taskscaler.cli._timeline import leave_timeline

if TYPE_CHECKING:  # it imports the client library, which need not be there
    from taskscaler.observers._batches import OfBatches

_WRONG = (*WRONG_FILE, WrongArguments, ResultsInTheWay, CannotResume, RecordUnreadable, NotRecorded)
"""What is wrong with a file or an argument, before anything has begun."""

MOST_DRAWN_IN_HASTE = 10_000
"""Jobs: reading what became of more of them takes seconds, which who has pressed Ctrl-C does not have."""

MOST_DRAWN = 100_000
"""Jobs: of more, a picture needs more memory than the batch did."""

_HINT = "no more jobs start, running jobs finish; press Ctrl-C again to stop at once"


def run_jobs_file(
    path: Path,
    output: Path | None,
    wishes: Wishes,
    for_ci: ForCI,
    *,
    socket: Path | None,
    metrics: str | None = None,
    traces: bool = False,
    style: LogFormat | None = None,
) -> int:
    """Run the batch, on the fleet of the daemon with a *socket* if there is one; returns the exit status.

    What goes wrong is printed on standard error.
    """
    try:
        file, fleet = read_for(path, socket)
        fleet.show(metrics, traces=traces)
        choice = choose(wishes, planned(file.jobs), None)
        results, made = _results_in(output) if output else new_results(_named_after(path))
    except _WRONG as error:
        return report_errors([error], WRONG)
    try:
        events = EventLog(results, pools=fleet.pools, jobs_file=path, text=file.text, socket=socket)
        return _run_all(file, fleet, events, choice, for_ci, style=style)
    finally:
        _remove_empty(made)  # they are, if the batch could not be begun


def run_stream(
    path: Path,
    output: Path | None,
    wishes: Wishes,
    for_ci: ForCI,
    *,
    format_: Format | None,
    socket: Path | None,
    metrics: str | None = None,
    traces: bool = False,
    style: LogFormat | None = None,
) -> int:
    """Run the jobs of standard input on the fleet of a file; returns the exit status, as `run_jobs_file`."""

    def source(defaults: Defaults, directory: Path, is_executor: Callable[[str], ConfigProblem | None]) -> LazyJobs:
        make_private(results.resume, hide=True)
        return keep(
            sys.stdin.buffer,
            format_,
            results.jobs_stream,
            defaults=defaults,
            directory=directory,
            is_executor=is_executor,
        )

    def run() -> int:
        file, fleet = read_for(path, socket, source)
        fleet.show(metrics, traces=traces)
        choice = choose(wishes, file.jobs.plan, None)
        events = EventLog(results, pools=fleet.pools, jobs_file=path, text=file.text, streamed=True, socket=socket)
        return _run_all(file, fleet, events, choice, for_ci, style=style)

    try:
        results, made = _results_in(output) if output else new_results(_named_after(path))
    except _WRONG as error:
        return report_errors([error], WRONG)
    try:
        return run()
    except _WRONG as error:
        return report_errors([error], WRONG)
    finally:
        if not results.events.exists():  # nothing was begun, and nothing is to be resumed
            results.jobs_stream.unlink(missing_ok=True)
            _remove_empty([results.resume, *made])


def _remove_empty(directories: Iterable[Path]) -> None:
    with suppress(OSError):
        for directory in directories:
            directory.rmdir()


def resume_batch(
    directory: Path,
    wishes: Wishes,
    for_ci: ForCI,
    *,
    metrics: str | None = None,
    traces: bool = False,
    style: LogFormat | None = None,
) -> int:
    """Go on with the batch whose results are in *directory*, and return the exit status, as `run_jobs_file`."""
    results = Results(directory)
    try:
        if not results.events.exists():
            _old_record.adopt(results)
        events = EventLog.reopen(results)
    except _WRONG as error:
        return report_errors([error], WRONG)
    with closing(events):
        if events.past and events.past.over and not wishes.rerun:
            return _report_over(events.past, events.past.over, results)
        try:
            file, fleet = _read_again(events)
            fleet.show(metrics, traces=traces)
            plan = planned(file.jobs)
            choice = choose(wishes, plan, events.past)
        except _WRONG as error:
            return report_errors([error], WRONG)
        if events.past and not choice.left and (wishes.rerun or wishes.only):
            return _report_nothing_left(choice, events.past, results)
        if events.past:
            said = sayings(events.text, file.text, plan, events.past, frozenset(choice.rerun))
            choice = evolve(choice, notes=(*choice.notes, *said))
        events.pools, events.text = fleet.pools, file.text
        return _run_all(file, fleet, events, choice, for_ci, style=style)


def _read_again(events: EventLog) -> tuple[Runnable, RunFleet]:
    """Read the file that the batch was begun with, as it is now.

    Raises:
        CannotResume: The fleet is another one by now, or there never was a file.
        ConfigError: It was right then, but something it names is gone.
        OSError: It cannot be read.
    """
    path, copy = events.jobs_file, events.results.jobs_file
    if path is None:
        raise CannotResume("a program started the batch, not a jobs file; run the program again")
    put_it_back = f"restore it from {copy}"
    over = events.past is not None and events.past.over is not None
    stream = events.results.jobs_stream
    if events.streamed and not stream.exists():
        raise CannotResume(
            "its jobs came from standard input, and were kept only until the batch was over; run them again"
        )
    try:
        file, its_fleet = read_for(path, events.socket, _kept(stream) if events.streamed else None)
    except FileNotFoundError as error:
        raise CannotResume(f"{path} is no longer there; {'restore it' if over else put_it_back}") from error
    if over:  # it was not kept any longer
        return file, its_fleet
    try:
        fleet = [] if events.socket else changes_of_fleet(events.text, file.text)
    except ValueError as error:
        raise CannotResume(f"{copy} is damaged; start a new batch") from error
    if not events.text:
        raise CannotResume(f"{copy} is gone; start a new batch")
    if fleet:
        listed = ", ".join(fleet)
        raise CannotResume(
            f"{path} differs from what the batch was started with: {listed}; {put_it_back}, or start a new batch"
        )
    if events.text == file.text and not depends_on_disk(file.text):
        events.check(file.jobs)
    return file, its_fleet


def _kept(stream: Path) -> Source:
    """Give the jobs that came from standard input, from where they are kept."""

    def source(defaults: Defaults, directory: Path, is_executor: Callable[[str], ConfigProblem | None]) -> LazyJobs:
        try:
            jobs = StreamJobs(stream, defaults, directory)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CannotResume(f"{stream} is damaged; start a new batch") from error
        if problems := [problem for name in sorted(jobs.executors) if (problem := is_executor(name))]:
            raise ConfigError(problems, source=str(stream))
        return jobs

    return source


def _report_nothing_left(choice: Choice, past: BatchState, results: Results) -> int:
    """Say that no job is left to run among those that were chosen."""
    went = f"{past.count(JobState.SUCCEEDED)} of {len(past)} jobs succeeded"
    hint = "" if choice.only is None else "; add --rerun all to run them again"
    which = "no job ended so" if choice.only is None else "the selected jobs are over"
    print(f"nothing to run: {which}, {went}; see {results.summary}{hint}")  # noqa: T201  (what was asked for)
    return SUCCEEDED if choice.content(past) else FAILED


def _run_all(
    file: Runnable, fleet: RunFleet, events: EventLog, choice: Choice, for_ci: ForCI, *, style: LogFormat | None
) -> int:
    async def run_batch() -> int:
        return await _Run(file, fleet, events, PatientConsole(), choice, for_ci).run()

    def run() -> int:
        with closing(events), logging_to(events.results.fleet_log, style):
            return anyio.run(run_batch)

    return outcome(run)


def _what_ran(detached: int, ran: int) -> str:
    """Say what becomes of the jobs that ran when the last command was killed, some of which may run on."""
    if detached:
        return f", {ran} {'was' if ran == 1 else 'were'} running: what still runs is joined, the rest is retried"
    return f", {ran} {'was' if ran == 1 else 'were'} running and will be retried" if ran else ""


def _report_over(state: BatchState, over: Over, results: Results) -> int:
    went = f"{state.count(JobState.SUCCEEDED)} of {len(state)} jobs succeeded"
    print(f"nothing to resume: the batch is over, {went}; see {results.summary}")  # noqa: T201  (what was asked for)
    return SUCCEEDED if over.well else FAILED


def new_results(path: Path) -> tuple[Results, Sequence[Path]]:
    """Make a directory for results that no other run uses: if there is one of that name, with a number behind it.

    Returns:
        The results, and the directories that were made, innermost first.

    Raises:
        OSError: It cannot be made.
    """
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    for candidate in chain([path], numbered):
        if not candidate.exists():
            with suppress(ResultsInTheWay):  # another run was quicker
                results = Results(candidate)
                return results, results.prepare()
    raise AssertionError("there is always another number")


def _results_in(directory: Path) -> tuple[Results, Sequence[Path]]:
    results = Results(directory)
    return results, results.prepare()


def _named_after(jobs: Path) -> Path:
    return Path("taskscaler-results", f"{jobs.stem}-{datetime.now().astimezone():%Y%m%d-%H%M%S}")


@define
class _Run:
    """One batch, from the first sign of life to the exit status."""

    file: Runnable
    fleet: RunFleet
    events: EventLog
    console: Console
    choice: Choice = field(factory=Choice)
    for_ci: ForCI = field(factory=ForCI)
    ended_by: int | None = None
    """The first signal that asked for an end."""

    shown: "OfBatches | None" = field(default=None, init=False)
    """Its jobs, for Prometheus, if that is wanted."""

    batch: Batch = field(init=False)
    progress: Progress = field(init=False)
    pace: Pace = field(init=False)
    clock: LoopClock = field(init=False)
    started: float = field(init=False)
    opened: anyio.Event = field(factory=anyio.Event)
    starting: anyio.CancelScope | None = field(factory=anyio.CancelScope)
    reporting: anyio.CancelScope = field(factory=anyio.CancelScope)

    async def run(self) -> int:
        """Run it all."""
        self._prepare()
        for note in self._notes():
            self.progress.say(note)
        async with anyio.create_task_group() as signals:
            await signals.start(self._heed_signals)
            await signals.start(self._heed_hangups)
            async with self.events.writing():
                await self._run_batch()
            now = self.clock.now()
            timeline = await self._draw()
            with self.for_ci.nothing_obeyed(self.console):
                print_summary(self.console, self.batch.state, self.events.results, now=now, timeline=timeline)
                written = self._report_if_unwritten()
                reported = await self._report() and written
            left = await self._leave_for_ci()
            signals.cancel_scope.cancel()
        if self.batch.state.all_stand and reported:
            over = Over(at=self.clock.now(), well=self.batch.state.succeeded)
            await to_thread.run_sync(self.events.end, over)
        well = self.choice.content(self.batch.state) and reported and left
        if self.ended_by:
            return SIGNALLED + self.ended_by
        return SUCCEEDED if well else FAILED

    def _notes(self) -> Iterable[str]:
        """What is to be said before anything happens."""
        yield from (f"note: {note}" for note in self.file.notes)
        if self.events.past:
            state = self.batch.state
            ran = [last.detached for record in state.records if record.interrupted and (last := record.last_attempt)]
            yield f"resuming: {state.done} of {len(state)} jobs are over{_what_ran(sum(ran), len(ran))}"
        yield from self.choice.notes

    def _prepare(self) -> None:
        self.clock = LoopClock()
        self.started = self.clock.now()
        self.progress = progress_for(self.console, self._look, self._time)
        self.batch = Batch(
            self.fleet.prepare(self.events, self.clock),
            self.file.jobs,
            executors=self.file.executors,
            events=self.events,
            clock=self.clock,
            patience=self.fleet.patience,
            observer=self._observe,
            log_internal_ip=self.fleet.log_internal_ip,
            log_external_ip=self.fleet.log_external_ip,
            only=self.choice.only,
            rerun=self.choice.rerun,
            fail_fast=self.choice.fail_fast,
            most_waiting=self.fleet.most_waiting,
            following=None if self.fleet.traces is None else self._following(self.fleet.traces.tracer),
        )
        self.pace = Pace.of(self.batch.state)
        if self.fleet.metrics is not None:
            from taskscaler.observers._batches import OfBatches

            self.shown = OfBatches(self.fleet.metrics.families, lambda: [self.batch.state])
            self.fleet.metrics.registry.register(self.shown)

    def _following(self, tracer: Tracer) -> Following:
        """How the jobs are followed; the batch is called as its jobs file is."""
        jobs_file = self.events.jobs_file
        return Following(tracer=tracer, pipeline="" if jobs_file is None else jobs_file.stem)

    def _observe(self, change: JobChanged) -> None:
        attempts = change.record.attempts
        if attempts and attempts[-1].ended == change.at:
            self.pace.learn(attempts[-1])
        self.fleet.changed(change)
        if self.shown is not None:
            self.shown.changed(change)
        self.progress.changed(change)

    async def _run_batch(self) -> None:
        with self.starting or anyio.CancelScope():
            async with self.fleet.opened():
                self.starting = None
                self.opened.set()
                if self.fleet.metrics is not None and self.fleet.metrics.url:
                    self.progress.say(f"metrics: {self.fleet.metrics.url}")
                if self.fleet.traces is not None and self.fleet.traces.endpoint:
                    self.progress.say(f"traces: {self.fleet.traces.endpoint}")
                async with anyio.create_task_group() as display:
                    display.start_soon(self.progress.show)
                    await self.batch.run()
                    if self.batch.why_given_up:
                        self.progress.say(self.batch.why_given_up)
                    display.cancel_scope.cancel()
        if self.fleet.traces is not None and self.fleet.traces.trouble:
            self.progress.say(f"traces: {self.fleet.traces.trouble}")
        if self.starting:  # given up before there was a fleet: no job begins, and the results say so
            await self.batch.run()

    async def _draw(self) -> str:
        """Leave the picture of the run, unless somebody waits for the end of very many jobs; print where it is."""
        if self.ended_by and len(self.batch.state) > MOST_DRAWN_IN_HASTE:
            directory = quote(str(self.events.results.directory))
            return f"none: the batch was interrupted; taskscaler report {directory} draws it"
        if len(self.batch.state) > MOST_DRAWN:
            directory = quote(str(self.events.results.directory))
            return f"none: it would take minutes; taskscaler report {directory} draws it"
        async with self.progress.busy("drawing the timeline"):
            return await to_thread.run_sync(leave_timeline, self.events.results)

    def _report_if_unwritten(self) -> bool:
        """Say so if the summary could not be written; return whether it was."""
        if self.batch.summary_refused:
            report_errors([self.batch.summary_refused], FAILED)
        return self.batch.summary_refused is None

    async def _report(self) -> bool:
        """Make the report, if there is to be one; return whether nothing went wrong with it."""
        if self.file.report is None or self.ended_by or self.batch.summary_refused or self._waits_for_others:
            return True
        with self.reporting:
            async with self.progress.busy(f"making the report with {one_line(self.file.report.command[0])}"):
                text = await make_report(self.file.report, self.file.path.parent, self.events.results)
            self.console.print()
            self.console.print(Text(harmless(text).rstrip("\n")), soft_wrap=True)
        return not self.reporting.cancelled_caught

    async def _leave_for_ci(self) -> bool:
        """Leave what a CI system reads; return whether nothing went wrong with it."""
        leave = partial(self.for_ci.leave, self.batch.state, self.events.results, self.file.path, self.console)
        try:
            await to_thread.run_sync(leave)
        except OSError as error:
            report_errors([error], FAILED)
            return False
        return True

    @property
    def _waits_for_others(self) -> bool:
        """Whether the report is made by a later command, which runs the jobs that were not chosen."""
        return self.choice.only is not None and not self.batch.state.all_stand

    async def _heed_signals(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
            task_status.started()
            async for number in received:
                await self._end(number)

    async def _end(self, number: int) -> None:
        """Drain at the first Ctrl-C; stop at the second, and at SIGTERM, whose sender will not wait for long."""
        may_drain = number == signal.SIGINT and not self.ended_by
        self.ended_by = self.ended_by or number
        self.reporting.cancel()
        self.batch.drain()
        self.progress.say(_HINT if may_drain else "stopping at once")
        if may_drain:
            return
        if self.starting:
            self.starting.cancel()
        else:
            await self.batch.stop()

    async def _heed_hangups(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGHUP) as received:
            task_status.started()
            await self.opened.wait()
            async for _ in received:
                await self._reload()

    async def _reload(self) -> None:
        """Take over the policies as they are in the file now, and report what else has changed."""
        try:
            file, fleet = await to_thread.run_sync(self._read_again)
        except _WRONG as error:
            for line in in_lines(error):
                self.progress.say(line)
            self.progress.say("nothing was reloaded: the policies have not changed")
            return
        self.progress.say(await self.fleet.reload(fleet))
        for change in changes(self.file.text, file.text):
            self.progress.say(f"{change}: takes effect with the next run")

    def _read_again(self) -> tuple[Runnable, RunFleet]:
        """Read the file again, and leave jobs that came as a stream as they are."""
        jobs = self.file.jobs
        return read_for(self.file.path, self.fleet.socket, (lambda *_: jobs) if isinstance(jobs, StreamJobs) else None)

    def _time(self) -> float:
        return self.clock.now() - self.started

    async def _look(self) -> Picture:
        estimate = self.pace.estimate(self.batch.state, self.clock.now())
        return Picture(
            title=f"taskscaler run {self.file.path}",
            time=self._time(),
            state=self.batch.state,
            instances=() if self.starting else await self.fleet.instances(),
            ceiling=self.fleet.ceiling,
            left=str(estimate or ""),
            why="" if self.starting else await self._why(),
        )

    async def _why(self) -> str:
        """Why jobs wait: for slots, or else for other jobs."""
        return "; ".join(filter(None, [await self.fleet.why() or self.batch.held_back, self.batch.resting]))
