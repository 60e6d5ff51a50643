"""The *instance* executor: runs a job's script on the leased instance itself, over any connection.

Each try at a job has a working directory of its own, ``<base>/slot-<n>-…``. It is new, its name is that of no other
on whatever instances share a file system, and it is removed when the job has ended. What tries have left whose manager
was killed is removed by that manager's next job there. How scripts are run, and what the instance needs, is its
system's business: see `_posix` and `_windows`.

Beside its own environment and the job's, the script sees ``TASKSCALER_INSTANCE`` and ``TASKSCALER_SLOT``.
"""

import logging
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread
from attrs import Attribute, define, evolve, field, frozen, validators

from fleeting import Completed, ConnectError, Connection, Duration, Unreachable
from fleeting.archives import ArchiveRefused
from fleeting.connectors import ReportsSystem, Sink
from fleeting.plugins import format_duration
from taskscaler.executors import ExecutorPlugin, JobOutcome, JobSpec, Leased, Verdict, hookimpl
from taskscaler.executors._posix import PosixSlot
from taskscaler.executors._slot import Slot, Wanted
from taskscaler.executors._windows import WindowsSlot
from taskscaler.executors.artifacts import take_in, without_artifacts
from taskscaler.executors.runs import Runs

log = logging.getLogger("taskscaler.instance")

COLLECT_TIMEOUT = 600.0
"""Seconds that bringing back the artifacts of one job may take."""

TAR_OVERHEAD = 2**27
"""Bytes that a tar archive may have beyond its contents: headers and padding of very many small files."""

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

    async def run(self, job: JobSpec, lease: Leased, *, output: Sink, artifacts: Path) -> JobOutcome:
        """See `Executor.run`. The time-out covers the upload of the files and the script."""
        if not self._runs.manager:
            await to_thread.run_sync(self._claim)
        with self._runs.at_work() as unit:
            async with lease.dial() as connection:
                return await self._run(self._slot(connection, job, lease, unit), job, output, artifacts)

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
        return evolve(outcome, warnings=(*outcome.warnings, *warnings))

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
        wanted = Wanted(
            instance=lease.instance,
            base=self._config.base,
            number=lease.slot,
            unit=unit,
            runs=self._runs,
            script=job.script,
            env={**job.env, "TASKSCALER_INSTANCE": lease.instance, "TASKSCALER_SLOT": str(lease.slot)},
            is_kept=bool(job.artifacts or self._config.cleanup_script),
        )
        is_windows = isinstance(connection, ReportsSystem) and connection.os == "windows"
        return WindowsSlot(connection, wanted) if is_windows else PosixSlot(connection, wanted)

    async def _run_in_time(self, slot: Slot, job: JobSpec, output: Sink) -> JobOutcome:
        """Run it, for as long as it may take from when its directory is there; so much for removing that, too."""
        with anyio.move_on_after(PREPARE_TIMEOUT) as scope:
            watch = _Watch(scope, math.inf if job.timeout is None else job.timeout, self._config.cleanup_timeout)
            await slot.run(job.files, output, watch)
        if watch.completed is not None:
            return _outcome(watch.completed)
        if not watch.has_begun:
            raise Unreachable(f"the job was not begun within {format_duration(PREPARE_TIMEOUT)}")
        return JobOutcome(verdict=Verdict.TIMED_OUT, why=f"took longer than {format_duration(job.timeout or 0)}")

    async def _collect(self, slot: Slot, job: JobSpec, outcome: JobOutcome, artifacts: Path) -> JobOutcome:
        """Bring back what the job was to leave; a job that succeeded but left it not has failed."""
        if not job.artifacts:
            return outcome
        try:
            missing = await _fetch(slot, job.artifacts, artifacts, limit=self._config.artifact_limit)
        except ArchiveRefused as error:
            return without_artifacts(outcome, error)
        return without_artifacts(outcome, missing)

    async def _clean_up(self, slot: Slot, output: Sink) -> tuple[str, ...]:
        """Leave nothing of the job there. It has ended: what fails here is only reported."""
        warnings: list[str] = []
        script = self._config.cleanup_script
        try:
            with anyio.fail_after(self._config.cleanup_timeout):
                if slot.is_there and script:
                    cleaned = await slot.run_cleanup(script, output)
                    warnings += [] if cleaned.ok else [f"the clean-up script {cleaned.outcome}"]
                if slot.is_there:
                    removed = await slot.remove()
                    warnings += [] if removed.ok else [f"{slot.directory} could not be removed: {removed.account}"]
                await slot.remove_leftovers()
        except TimeoutError:
            warnings.append(f"the clean-up took longer than {format_duration(self._config.cleanup_timeout)}")
        except ConnectError as error:
            warnings.append(f"the clean-up failed: {error}")
        return tuple(warnings)


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
        self.has_begun = True
        self._scope.deadline = anyio.current_time() + self._timeout

    def ended(self, completed: Completed) -> None:
        """See `Progress.ended`."""
        self.completed = completed
        self._scope.deadline = anyio.current_time() + self._cleanup_timeout


def _outcome(completed: Completed) -> JobOutcome:
    if completed.ok:
        return JobOutcome(verdict=Verdict.SUCCEEDED, exit_code=0)
    return JobOutcome(verdict=Verdict.FAILED, exit_code=completed.exit_status, why=completed.outcome)


async def _fetch(slot: Slot, patterns: Sequence[str], target: Path, *, limit: int) -> list[str]:
    """Make *target* from what matches the patterns, whole or not at all, and name those that match nothing."""
    async with anyio.TemporaryDirectory(dir=str(target.parent), prefix=f".{target.name}-") as temporary:
        archive, contents = Path(temporary, "archive.tar"), Path(temporary, "contents")
        await _download(slot, patterns, archive, limit=limit)
        return await to_thread.run_sync(partial(take_in, archive, contents, target, patterns, limit=limit))


async def _download(slot: Slot, patterns: Sequence[str], archive: Path, *, limit: int) -> None:
    size = 0
    async with await anyio.open_file(archive, "wb") as file:
        with anyio.move_on_after(COLLECT_TIMEOUT) as scope:

            async def store(chunk: bytes) -> None:
                nonlocal size
                size += len(chunk)
                if size > limit + TAR_OVERHEAD:
                    scope.cancel()
                await file.write(chunk)

            completed = await slot.download(patterns, store)
    if scope.cancelled_caught:
        took = format_duration(COLLECT_TIMEOUT)
        raise ArchiveRefused(f"they far exceed artifact_limit, or took longer than {took}; leave fewer")
    if not completed.ok:
        raise ArchiveRefused(f"tar {completed.account}")
