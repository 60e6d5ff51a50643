"""``taskscaler run``: reads the file, runs the batch, shows it, and tells the outcome by the exit status."""

import os
import signal
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import anyio
from anyio.abc import TaskStatus
from attrs import define, field
from rich.console import Console
from rich.text import Text

from fleeting import ConfigError, FleetingError, InterfaceMismatch, LoopClock, PluginBroken
from taskscaler._jobsfile import JobsFile, read_jobs_file
from taskscaler._scaler import Taskscaler
from taskscaler.batch import Batch, JobState, Results
from taskscaler.cli._log import logging_to
from taskscaler.cli._progress import Picture, Progress, progress_for
from taskscaler.cli._report import make_report
from taskscaler.cli._summary import print_summary
from taskscaler.cli._text import harmless

SUCCEEDED, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses."""

_EXPECTED = (FleetingError, OSError)
"""What is told in a sentence; anything else is a mistake of ours and shows where it is."""

_HINT = "no more jobs begin, those that run go on to their ends; Ctrl-C again stops them at once"


class PatientConsole(Console):
    """A console whose reader may go away, as that of a pipe does: the jobs go on, and their results are written."""

    def on_broken_pipe(self) -> None:
        """Print nothing more; rich itself would end the process in the middle of things."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter's last flush fails


def run_jobs_file(path: Path, output: Path | None) -> int:
    """Run the batch and return the exit status. What goes wrong is told on standard error."""
    try:
        file = read_jobs_file(path)
        results = Results(output or _default_output(path))
        results.prepare()
    except (ConfigError, PluginBroken, InterfaceMismatch, OSError) as error:
        return _tell([error], WRONG)
    try:
        with logging_to(results.fleet_log):
            return anyio.run(_run, file, results, PatientConsole())
    except KeyboardInterrupt:  # before the event loop heeds signals
        return INTERRUPTED
    except _EXPECTED as error:
        return _tell([error], FAILED)
    except BaseExceptionGroup as group:
        expected, rest = group.split(_EXPECTED)
        if rest is not None:
            raise
        return _tell(_leaves(expected), FAILED)


async def _run(file: JobsFile, results: Results, console: Console) -> int:
    return await _Run(file, results, console).run()


def _default_output(path: Path) -> Path:
    return Path("taskscaler-results", f"{path.stem}-{datetime.now().astimezone():%Y%m%d-%H%M%S}")


def _tell(errors: Iterable[BaseException | None], status: int) -> int:
    for error in errors:
        for line in harmless(str(error)).splitlines():
            print(f"error: {line}", file=sys.stderr)  # noqa: T201  (a command's errors go there)
    return status


def _leaves(error: BaseException | None) -> Iterable[BaseException | None]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


@define
class _Run:
    """One batch, from the first sign of life to the exit status."""

    file: JobsFile
    results: Results
    console: Console
    interrupts: int = 0
    scaler: Taskscaler = field(init=False)
    batch: Batch = field(init=False)
    progress: Progress = field(init=False)
    clock: LoopClock = field(init=False)
    starting: anyio.CancelScope | None = field(factory=anyio.CancelScope)
    reporting: anyio.CancelScope = field(factory=anyio.CancelScope)

    async def run(self) -> int:
        """Run it all."""
        self._prepare()
        for note in self.file.notes:
            self.progress.say(f"note: {note}")
        async with anyio.create_task_group() as signals:
            await signals.start(self._heed_signals)
            await self._run_batch()
            print_summary(self.console, self.batch.state, self.results, now=self.clock.now())
            reported = await self._report()
            signals.cancel_scope.cancel()
        if self.interrupts:
            return INTERRUPTED
        return SUCCEEDED if self.batch.state.succeeded and reported else FAILED

    def _prepare(self) -> None:
        self.clock = LoopClock()
        self.progress = progress_for(self.console, self._look, self._time)
        self.scaler = Taskscaler(
            self.file.pool,
            policies=self.file.autoscaler.policy,
            clock=self.clock,
            delete_instances_on_shutdown=self.file.autoscaler.delete_instances_on_shutdown,
        )
        self.batch = Batch(
            self.scaler,
            self.file.jobs,
            executors=self.file.executors,
            results=self.results,
            clock=self.clock,
            patience=self.file.autoscaler.instance_acquire_timeout,
            observer=self.progress.changed,
        )

    async def _run_batch(self) -> None:
        with self.starting or anyio.CancelScope():
            async with self.scaler:
                self.starting = None
                async with anyio.create_task_group() as display:
                    display.start_soon(self.progress.show)
                    await self.batch.run()
                    if self.batch.state.count(JobState.NO_CAPACITY):
                        self.progress.say(str(self.scaler.explain()))
                    display.cancel_scope.cancel()
        if self.starting:  # given up before there was a fleet: no job begins, and the results say so
            await self.batch.run()

    async def _report(self) -> bool:
        """Make the report, if there is to be one; tell whether nothing went wrong with it."""
        if self.file.report is None or self.interrupts:
            return True
        with self.reporting:
            text = await make_report(self.file.report, self.file.path.parent, self.results)
            self.console.print()
            self.console.print(Text(harmless(text).rstrip("\n")), soft_wrap=True)
        return not self.reporting.cancelled_caught

    async def _heed_signals(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
            task_status.started()
            async for _ in received:
                self._interrupt()

    def _interrupt(self) -> None:
        """Drain at the first time, stop at the second."""
        self.interrupts += 1
        self.reporting.cancel()
        if self.interrupts == 1:
            self.progress.say(_HINT)
            self.batch.drain()
        elif self.starting:
            self.starting.cancel()
        else:
            self.progress.say("stopping at once")
            self.batch.stop()

    def _time(self) -> float:
        return self.clock.now() - self.batch.state.started

    def _look(self) -> Picture:
        return Picture(
            title=f"taskscaler run {self.file.path}",
            time=self._time(),
            state=self.batch.state,
            instances=() if self.starting else self.scaler.instances(),
            ceiling=self.file.pool.max_instances,
        )
