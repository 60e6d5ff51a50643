"""What there is of one try at a job on its instance: a directory, and the job of the service that runs steps."""

import json
import logging
import tempfile
from collections.abc import Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from anyio import to_thread
from attrs import frozen

from fleeting import Completed, ConnectError, Connection, Unreachable
from fleeting.archives import ArchiveRefused
from fleeting.connectors import Sink
from fleeting.errors import CommandLost, NameUnknown
from fleeting.plugins import make_private
from job_steps import ResultInvalid, StepResult
from job_steps._bring import kept_jobs
from job_steps._removing import remove_tree
from job_steps.client import CallFailed, Cause, Code, JobStatus, RunRequest, StepRunnerClient
from job_steps.executor._config import StepsConfig
from job_steps.executor._list import FILE, StepsOfJob
from job_steps.executor._outcome import outcome_of
from job_steps.executor._service import service
from taskscaler.executors import JobOutcome, JobSpec, Leased, directories, enter_phase
from taskscaler.executors.artifacts import fetch, without_artifacts
from taskscaler.executors.runs import Place, Runs

log = logging.getLogger("job_steps.executor")

RESULTS: Final = "step-results.json"
"""The file with the tree of results among the job's artifacts, as GitLab's step-runner calls it."""

MOST_LEFTOVERS: Final = 20
"""Tries that one job ends and removes after others, so that it does not wait long."""

_MOST_NAMES: Final = 10_000
"""Names that are looked at: an instance may give any number of them."""

_UNKNOWN: Final = "no job with id"
"""What GitLab's step-runner says of an id that it does not know, with no code of its own."""

_LIST: Final = """
cd -- "$1" 2>/dev/null || exit 0
for each in "$2"-*; do [ ! -d "$each" ] || printf '%s\\n' "$each"; done
"""


@frozen(kw_only=True)
class There:
    """One try at a job, whoever has started it."""

    connection: Connection
    client: StepRunnerClient
    lease: Leased
    place: Place
    unit: str
    """The try's name."""

    base: str
    runs: Runs
    artifact_limit: int

    @property
    def name(self) -> str:
        """Of its directory, and the id of the service's job."""
        return self.place.name_of(self.unit)

    @property
    def directory(self) -> str:
        """As commands on the instance find it."""
        return f"{self.base}/{self.name}"

    async def start(self, job: JobSpec, steps: StepsOfJob, time_limit: float | None) -> None:
        """Start it, unless it was started before."""
        if await self._status() is not None:
            return
        path = await self._make(job.files, steps.script)
        enter_phase("run")
        await self.client.run(
            RunRequest(
                id=self.name,
                steps=steps.text,
                work_dir=path,
                env={**job.env, "TASKSCALER_INSTANCE": self.lease.instance, "TASKSCALER_SLOT": str(self.lease.slot)},
                time_limit=time_limit,
                breakpoints=steps.breakpoints,
                breakpoint_timeout=steps.breakpoint_timeout,
                policy=steps.policy,
            )
        )

    async def follow(self, offset: int, output: Sink, *, timed_out: str) -> tuple[JobOutcome, StepResult | None]:
        """Pass on what it prints from a byte on, until it has ended; say how, and how each step has.

        Raises:
            NameUnknown: It was never started there, or is forgotten.
            CommandLost: Nobody will know what came of it.
        """
        if await self._status() is None:
            raise NameUnknown(self.unit)
        async for chunk in self.client.follow_logs(self.name, offset):
            await output(chunk)
        status = await self._status()
        if status is None:
            raise CommandLost(self.unit, "it was closed while it was followed")
        if status.cause is Cause.LOST:
            raise CommandLost(self.unit, status.message or "what ran its steps was killed")
        if not status.state.is_over:
            raise CommandLost(self.unit, "its log has ended, and it has not")
        result = await self.result()
        return outcome_of(status, result, timed_out=timed_out), result

    async def is_over(self) -> bool:
        """Whether it has ended."""
        status = await self._status()
        return status is None or status.state.is_over

    async def held_time(self) -> float:
        """Seconds for which it was held at breakpoints so far."""
        status = await self._status()
        return 0.0 if status is None else status.held_time

    async def result(self) -> StepResult | None:
        """How its steps went so far; None if the service does not say, or nothing that could be read."""
        try:
            found = await self.client.results(self.name)
            return None if found is None or found.tree is None else StepResult.from_dict(found.tree)
        except (CallFailed, ResultInvalid):
            return None

    async def bring_back(
        self, job: JobSpec, outcome: JobOutcome, result: StepResult | None, artifacts: Path
    ) -> JobOutcome:
        """Bring what it has left, and write down how its steps went; that is one directory, whole or not at all."""
        temporary = await to_thread.run_sync(partial(_neighbour, artifacts))
        try:
            brought = temporary / "artifacts"
            if job.artifacts:
                outcome = without_artifacts(outcome, await self._fetch(job, brought))
            await to_thread.run_sync(_finish, brought, result, artifacts)
        finally:
            await to_thread.run_sync(remove_tree, temporary)
        return outcome

    async def keep_results(self, artifacts: Path) -> None:
        """Write down how the steps of a job went that is lost, as far as the service knows; else nothing."""
        if (result := await self.result()) is not None:
            temporary = await to_thread.run_sync(partial(_neighbour, artifacts))
            try:
                await to_thread.run_sync(_finish, temporary / "artifacts", result, artifacts)
            finally:
                await to_thread.run_sync(remove_tree, temporary)

    async def end(self) -> Completed:
        """End it if it runs, and leave nothing of it."""
        await self.client.close(self.name)
        return await directories.remove(self.connection, [self.directory])

    async def end_leftovers(self, config: StepsConfig) -> None:
        """End and remove what is not needed any more in the slot, and on the machine."""
        running = {each.id: not each.state.is_over for each in islice(await self.client.statuses(), _MOST_NAMES)}
        listed = await self.connection.run(("/bin/sh", "-c", _LIST, "sh", self.base, self.place.kind))
        names = listed.stdout.decode(errors="replace").splitlines()[:_MOST_NAMES]
        kept = await kept_jobs(self.connection, f"{self.place.kind}-")
        found = dict.fromkeys((*running, *names, *kept))
        over = (
            name
            for name in found
            if name != self.name and self.place.is_over(name, runs=running.get(name, False), is_held=self.runs.is_held)
        )
        for name in islice(over, MOST_LEFTOVERS):
            if name in running or name not in kept:
                await self.client.close(name)
            elif not await self._close_elsewhere(name, config):
                continue
            await directories.remove(self.connection, [f"{self.base}/{name}"])

    async def _close_elsewhere(self, name: str, config: StepsConfig) -> bool:
        """Close a job of an agent that an earlier version or policy has led to; returns whether that could be done."""
        try:
            async with service(self.connection, config, self.place.instance, name) as client:
                await client.close(name)
        except Unreachable:
            raise
        except ConnectError as error:  # one that cannot be started any more is no reason to run nothing here
            log.warning("try_left", extra={"try": name, "error": str(error)})
            return False
        return True

    async def _status(self) -> JobStatus | None:
        """How the service's job is; None if it knows none."""
        try:
            return await self.client.status(self.name)
        except CallFailed as error:
            if error.code is Code.NOT_FOUND or (error.code is Code.UNKNOWN and _UNKNOWN in str(error)):
                return None
            raise

    async def _make(self, files: Mapping[str, Path], script: str) -> str:
        if not script:
            return await directories.make(self.connection, self.base, self.name, files)
        temporary = await to_thread.run_sync(_script_file, script)
        try:
            return await directories.make(self.connection, self.base, self.name, {**files, FILE: temporary / FILE})
        finally:
            await to_thread.run_sync(remove_tree, temporary)

    async def _fetch(self, job: JobSpec, target: Path) -> list[str] | ArchiveRefused:
        """Make *target* from the artifacts; returns what is missing, or why they are refused."""
        download = partial(directories.download, self.connection, self.directory)
        try:
            return await fetch(download, job.artifacts, target, limit=self.artifact_limit)
        except ArchiveRefused as error:
            return error


def _neighbour(target: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))


def _finish(brought: Path, result: StepResult | None, target: Path) -> None:
    """Put the results among the artifacts, and all of that where it belongs, if there is anything."""
    if result is not None:
        make_private(brought)
        path = brought / RESULTS
        if path.is_symlink() or path.is_file():
            path.unlink()
        if not path.exists():  # a job may leave a directory of that name
            path.touch(mode=0o600)
            path.write_text(json.dumps(result.as_dict(), indent=1) + "\n")
    if brought.exists():
        brought.rename(target)


def _script_file(script: str) -> Path:
    directory = Path(tempfile.mkdtemp(prefix="job-steps-"))
    path = directory / FILE
    path.touch(mode=0o700)
    path.write_text(script)
    return directory
