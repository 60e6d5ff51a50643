"""The *instance* executor: runs a job's script on the leased instance itself, over any connection.

Each try at a job has a working directory of its own, ``<base>/slot-<n>-…``. It is new, its name is that of no other
on whatever instances share a file system, and it is removed when the job has ended. What tries have left whose manager
was killed is removed by that manager's next job there. How scripts are run, and what the instance needs, is its
system's business: see `_posix` and `_windows`.

Beside its own environment and the job's, the script sees ``TASKSCALER_INSTANCE`` and ``TASKSCALER_SLOT``.
"""

import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
from anyio import to_thread
from attrs import Attribute, define, evolve, field, frozen, validators

from fleeting import Completed, ConnectError, Connection, Duration, Unreachable, Unsupported
from fleeting.archives import ArchiveRefused
from fleeting.connectors import ReportsSystem, RunsDetached, Sink
from fleeting.plugins import format_duration
from taskscaler.executors import ExecutorPlugin, JobOutcome, JobSpec, Leased, Verdict, enter_phase, hookimpl
from taskscaler.executors._kept import KeptSlot
from taskscaler.executors._posix import PosixSlot
from taskscaler.executors._slot import Slot, Wanted
from taskscaler.executors._windows import WindowsSlot
from taskscaler.executors.artifacts import fetch, without_artifacts
from taskscaler.executors.runs import Place, Runs, batch_of, check_try

log = logging.getLogger("taskscaler.instance")

PREPARE_TIMEOUT = 600.0
"""Seconds after which a job counts as lost whose directory and script are not there: its instance hangs."""

HASTY_CLEANUP = 10.0
"""Seconds for which the clean-up after a cancelled job may hold up the cancellation."""


def _not_empty(_: object, __: "Attribute[str]", value: str) -> None:
    if not value:
        raise ValueError("the path of a directory")


@frozen(kw_only=True)
class InstanceConfig:
    """Settings of the instance executor, the table ``[executors.instance]``."""

    base: str = field(default="taskscaler", validator=_not_empty)
    """Directory for the jobs' directories: relative to where commands start on the instance, or absolute."""

    cleanup_script: str = ""
    """Run like a job's script in the slot's directory after each job; its output goes to the job's log. On POSIX
    instances it is ``/bin/sh``'s in any case."""

    cleanup_timeout: Duration = 60.0
    """Seconds that cleaning up after a job may take."""

    artifact_limit: int = field(default=2**30, validator=validators.gt(0))
    """Bytes that the artifacts of one job may have."""


class InstanceExecutor:
    """Runs scripts on the instance itself."""

    def __init__(self, config: InstanceConfig, runs: Runs | None = None) -> None:
        """Take the settings, and whose directories those on instances are; None: those of this user's managers."""
        self._config = config
        self._runs = runs or Runs("instance")
        self._unclaimed = False
        self._looked_at: set[tuple[str, int]] = set()
        """Slots of instances in which nothing is left of jobs that outlived an earlier manager."""

    async def run(self, job: JobSpec, lease: Leased, *, output: Sink, artifacts: Path) -> JobOutcome:
        """See `Executor.run`. The time-out covers the upload of the files and the script."""
        if not self._runs.manager:
            await to_thread.run_sync(self._claim)
        with self._runs.at_work() as unit:
            async with lease.dial() as connection:
                enter_phase("ready")
                return await self._run(self._slot(connection, job, lease, unit), job, output, artifacts)

    async def start(self, job: JobSpec, lease: Leased, *, name: str) -> None:
        """See `Reattaches.start`."""
        async with self._kept(job, lease, name) as (slot, place):
            enter_phase("ready")
            await self._end_leftovers(slot, place)
            patience = max(PREPARE_TIMEOUT, (job.timeout or math.inf) if job.files else 0)
            with anyio.move_on_after(patience) as scope:
                await slot.start(job.files)
            if scope.cancelled_caught:
                raise Unreachable(f"the job was not begun within {format_duration(patience)}")

    async def start_attached(
        self,
        job: JobSpec,
        lease: Leased,
        *,
        name: str,
        started: Callable[[], object],
        output: Sink,
        artifacts: Path,
    ) -> JobOutcome:
        """See `StartsAttached.start_attached`. A job with files is uploaded first, which its time-out covers."""
        if job.files:
            began = anyio.current_time()
            await self.start(job, lease, name=name)
            started()
            elapsed = anyio.current_time() - began
            return await self.attach(job, lease, name=name, elapsed=elapsed, output=output, artifacts=artifacts)
        async with self._kept(job, lease, name) as (slot, place):
            enter_phase("ready")
            await self._end_leftovers(slot, place)
            outcome = await self._start_in_time(slot, job, started, output)
            return await self._conclude(slot, job, outcome, output, artifacts)

    async def attach(
        self,
        job: JobSpec,
        lease: Leased,
        *,
        name: str,
        offset: int = 0,
        elapsed: float = 0.0,
        output: Sink,
        artifacts: Path,
    ) -> JobOutcome:
        """See `Reattaches.attach`."""
        async with self._kept(job, lease, name) as (slot, _):
            enter_phase("run")
            outcome = await self._follow_in_time(slot, job, offset, elapsed, output)
            return await self._conclude(slot, job, outcome, output, artifacts)

    async def end(self, lease: Leased, *, name: str) -> None:
        """See `Reattaches.end`."""
        async with self._kept(JobSpec(name="none", script=""), lease, name) as (slot, _):
            try:
                with anyio.fail_after(self._config.cleanup_timeout):
                    removed = await slot.end(self._config.cleanup_script)
            except TimeoutError as error:
                took = format_duration(self._config.cleanup_timeout)
                raise ConnectError(f"the clean-up took longer than {took}") from error
        self._runs.let_go(batch_of(name), name)
        if not removed.ok:
            raise ConnectError(f"{slot.rest.directory} could not be removed: {removed.account}")

    @asynccontextmanager
    async def _kept(self, job: JobSpec, lease: Leased, name: str) -> AsyncIterator[tuple[KeptSlot, Place]]:
        """Reach a try that outlives the manager."""
        check_try(name)
        if not self._runs.manager:
            await to_thread.run_sync(self._claim)
        if self._runs.manager:
            await to_thread.run_sync(self._runs.hold, batch_of(name), name)
        async with lease.dial() as connection:
            if _is_windows(connection):
                raise Unsupported(f"{lease.instance} runs Windows, where jobs end with their manager")
            if not isinstance(connection, RunsDetached):
                raise Unsupported(
                    f"the connection to {lease.instance} cannot detach jobs, so they end with their manager"
                )
            wanted = self._wanted(job, lease, name)
            place = Place(owner=wanted.owner, instance=lease.instance, slot=lease.slot)
            yield KeptSlot(connection, connection, evolve(wanted, name=place.name_of(name))), place

    async def _end_leftovers(self, slot: KeptSlot, place: Place) -> None:
        """End what jobs have left in a slot that outlived an earlier manager; once: what we leave there, we end."""
        if (place.instance, place.slot) not in self._looked_at:
            await slot.end_leftovers(place)
            self._looked_at.add((place.instance, place.slot))

    async def _conclude(
        self, slot: KeptSlot, job: JobSpec, outcome: JobOutcome, output: Sink, artifacts: Path
    ) -> JobOutcome:
        """Bring back what a job has left that outlives the manager, and run the clean-up script."""
        enter_phase("collect")
        outcome = await self._collect(slot.rest, job, outcome, artifacts)
        warnings = await self._run_cleanup(slot.rest, output)
        return evolve(outcome, warnings=(*outcome.warnings, *warnings))

    async def _run(self, slot: Slot, job: JobSpec, output: Sink, artifacts: Path) -> JobOutcome:
        try:
            outcome = await self._run_in_time(slot, job, output)
            outcome = await self._collect(slot, job, outcome, artifacts)
        except Unreachable:
            raise
        except BaseException:
            with anyio.move_on_after(HASTY_CLEANUP, shield=True):
                await self._clean_up(slot, output)
            raise
        warnings = await self._clean_up(slot, output)
        return evolve(outcome, warnings=(*outcome.warnings, *warnings)).with_usage(slot.usage)

    def _claim(self) -> None:
        """Learn which manager this is; without that, what killed ones have left stays where it is."""
        try:
            self._runs.claim()
        except OSError as error:
            if not self._unclaimed:
                log.warning("leftovers_stay", extra={"error": str(error)})
            self._unclaimed = True

    def _slot(self, connection: Connection, job: JobSpec, lease: Leased, unit: str) -> Slot:
        """Choose by the instance's system how the job is run there."""
        wanted = self._wanted(job, lease, unit)
        return WindowsSlot(connection, wanted) if _is_windows(connection) else PosixSlot(connection, wanted)

    def _wanted(self, job: JobSpec, lease: Leased, unit: str) -> Wanted:
        return Wanted(
            instance=lease.instance,
            base=self._config.base,
            number=lease.slot,
            unit=unit,
            runs=self._runs,
            script=job.script,
            env={**job.env, "TASKSCALER_INSTANCE": lease.instance, "TASKSCALER_SLOT": str(lease.slot)},
            is_kept=bool(job.artifacts or self._config.cleanup_script),
        )

    async def _follow_in_time(
        self, slot: KeptSlot, job: JobSpec, offset: int, elapsed: float, output: Sink
    ) -> JobOutcome:
        """See a job to its end, or end it when it has had its time, wherever its manager was meanwhile."""
        left = math.inf if job.timeout is None else job.timeout - max(0.0, elapsed)
        known = _Counted(output, offset)
        with anyio.move_on_after(left):
            return _outcome(await slot.follow(offset, known))
        return await self._end_in_time(slot, job, known.size, output)

    async def _start_in_time(
        self, slot: KeptSlot, job: JobSpec, started: Callable[[], object], output: Sink
    ) -> JobOutcome:
        """Start a job and see it to its end, or end it when it has had its time, which begins when it runs."""
        known = _Counted(output, 0)
        with anyio.move_on_after(PREPARE_TIMEOUT) as scope:
            watch = _Watch(scope, math.inf if job.timeout is None else job.timeout, self._config.cleanup_timeout)

            def begin() -> None:
                watch.began()
                started()

            return _outcome(await slot.start_attached(job.files, begin, known))
        if not watch.has_begun:
            raise Unreachable(f"the job was not begun within {format_duration(PREPARE_TIMEOUT)}")
        return await self._end_in_time(slot, job, known.size, output)

    async def _end_in_time(self, slot: KeptSlot, job: JobSpec, offset: int, output: Sink) -> JobOutcome:
        """End a job that has had its time, of whose output so many bytes are known."""
        if not await slot.is_running():  # it ended by itself, and only its output took so long
            return _outcome(await slot.follow(offset, output))
        with anyio.move_on_after(self._config.cleanup_timeout):
            return _timed_out(job).with_usage((await slot.kill(offset, output)).usage)
        return _timed_out(job)

    async def _run_in_time(self, slot: Slot, job: JobSpec, output: Sink) -> JobOutcome:
        """Run it, for as long as it may take from when its directory is there; so much for removing that, too."""
        with anyio.move_on_after(PREPARE_TIMEOUT) as scope:
            watch = _Watch(scope, math.inf if job.timeout is None else job.timeout, self._config.cleanup_timeout)
            await slot.run(job.files, output, watch)
        if watch.completed is not None:
            return _outcome(watch.completed)
        if not watch.has_begun:
            raise Unreachable(f"the job was not begun within {format_duration(PREPARE_TIMEOUT)}")
        return _timed_out(job)

    async def _collect(self, slot: Slot, job: JobSpec, outcome: JobOutcome, artifacts: Path) -> JobOutcome:
        """Bring back what the job was to leave; a job that succeeded but left it not has failed."""
        if not job.artifacts:
            return outcome
        try:
            missing = await fetch(slot.download, job.artifacts, artifacts, limit=self._config.artifact_limit)
        except ArchiveRefused as error:
            return without_artifacts(outcome, error)
        return without_artifacts(outcome, missing)

    async def _clean_up(self, slot: Slot, output: Sink) -> tuple[str, ...]:
        """Leave nothing of the job there. It has ended: what fails here is only reported."""
        warnings: list[str] = []
        with self._cleaning(warnings):
            await self._run_script(slot, output, warnings)
            if slot.is_there:
                removed = await slot.remove()
                warnings += [] if removed.ok else [f"{slot.directory} could not be removed: {removed.account}"]
            await slot.remove_leftovers()
        return tuple(warnings)

    async def _run_cleanup(self, slot: Slot, output: Sink) -> tuple[str, ...]:
        """Run the clean-up script alone."""
        warnings: list[str] = []
        with self._cleaning(warnings):
            await self._run_script(slot, output, warnings)
        return tuple(warnings)

    async def _run_script(self, slot: Slot, output: Sink, warnings: list[str]) -> None:
        if slot.is_there and self._config.cleanup_script:
            cleaned = await slot.run_cleanup(self._config.cleanup_script, output)
            warnings += [] if cleaned.ok else [f"the clean-up script {cleaned.outcome}"]

    @contextmanager
    def _cleaning(self, warnings: list[str]) -> Iterator[None]:
        """Clean up for so long as that may take, and report what fails."""
        try:
            with anyio.fail_after(self._config.cleanup_timeout):
                yield
        except TimeoutError:
            warnings.append(f"the clean-up took longer than {format_duration(self._config.cleanup_timeout)}")
        except ConnectError as error:
            warnings.append(f"the clean-up failed: {error}")


@hookimpl
def taskscaler_executor() -> ExecutorPlugin:
    """Register the executor."""
    return ExecutorPlugin(config=InstanceConfig, executor=InstanceExecutor)


@define
class _Watch:
    """Sees to it that neither a job nor what comes after it takes too long."""

    _scope: anyio.CancelScope
    _timeout: float
    _cleanup_timeout: float
    has_begun: bool = field(default=False, init=False)
    completed: Completed | None = field(default=None, init=False)
    """How the job has ended; None: it has not, or has taken too long."""

    def began(self) -> None:
        """See `Progress.began`."""
        enter_phase("run")
        self.has_begun = True
        self._scope.deadline = anyio.current_time() + self._timeout

    def ended(self, completed: Completed) -> None:
        """See `Progress.ended`."""
        enter_phase("collect")
        self.completed = completed
        self._scope.deadline = anyio.current_time() + self._cleanup_timeout


@define
class _Counted:
    """Passes output on, and knows how much there was."""

    _output: Sink
    size: int

    async def __call__(self, chunk: bytes) -> None:
        """Pass it on."""
        await self._output(chunk)
        self.size += len(chunk)


def _outcome(completed: Completed) -> JobOutcome:
    cut = (f"{completed.cut} bytes of its output were not kept on the instance",) if completed.cut else ()
    if completed.ok:
        outcome = JobOutcome(verdict=Verdict.SUCCEEDED, exit_code=0, warnings=cut)
    else:
        failed = Verdict.FAILED
        outcome = JobOutcome(verdict=failed, exit_code=completed.exit_status, why=completed.outcome, warnings=cut)
    return outcome.with_usage(completed.usage)


def _timed_out(job: JobSpec) -> JobOutcome:
    return JobOutcome(verdict=Verdict.TIMED_OUT, why=f"took longer than {format_duration(job.timeout or 0)}")


def _is_windows(connection: Connection) -> bool:
    return isinstance(connection, ReportsSystem) and connection.os == "windows"
