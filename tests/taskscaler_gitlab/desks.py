"""A GitLab, an instance, and what runs GitLab's jobs there: everything between them is real."""

import io
import zipfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from attrs import define, evolve, field

from fleeting import LoopClock
from gitlab_jobs import Artifact, Dependency, Features, Job, JobInfo, Outcome, Report, Step, Trace, Variable
from gitlab_jobs import ArtifactsFile as File
from gitlab_jobs._job import Phase
from gitlab_jobs.client import GitLabClient, Reporting, info, reporting
from gitlab_jobs.testing import URL, FakeGitLab, Stored
from taskscaler.executors import Executor
from taskscaler.executors.instance import InstanceConfig, InstanceExecutor
from taskscaler.executors.runs import Runs
from taskscaler_gitlab import RunnerSettings
from taskscaler_gitlab.runner import features, kept_log, run_job
from tests.fleeting.local_agents import dialled, opened, started
from tests.taskscaler.leased import Slot

REASONS = ("runner_configuration_error", "job_canceled", "image_pull_failure")
NAME = "0123456789ab-7"


class Stopped(Exception):
    """The manager is killed."""


@define
class Desk:
    """What a job needs."""

    gitlab: FakeGitLab
    client: GitLabClient
    slot: Slot
    directory: Path
    settings: RunnerSettings
    executor: Callable[[], Executor]
    """Makes what runs scripts: a new one for each manager."""

    home: Path
    """Where commands start on the instance."""

    outcome: Outcome | None = field(default=None, init=False)
    """What the last job came to."""

    _number: int = field(default=0, init=False)

    async def take(self, job: Job) -> Job:
        """Have GitLab hand a job out; returns it as the runner gets it."""
        self.gitlab.enqueue(job)
        asked = await self.client.ask(self.gitlab.runner_token, info=self.about)
        assert asked.job is not None
        return asked.job

    @property
    def about(self) -> dict[str, Any]:
        """What the runner says of itself."""
        return info(*(each for each in features(self.settings.kind) if each != "two_phase_job_commit"))

    async def run(
        self,
        job: Job,
        *,
        meanwhile: Callable[[Job, Reporting], Any] | None = None,
        **settings: Any,  # noqa: ANN401  (a runner's)
    ) -> Stored:
        """Run a job to its end; returns what GitLab has of it."""
        taken = await self.take(job)
        await self.carry_out(taken, meanwhile=meanwhile, **settings)
        return await self.gitlab.ended(taken.id)

    async def carry_out(
        self,
        job: Job,
        *,
        meanwhile: Callable[[Job, Reporting], Any] | None = None,
        is_again: bool = False,
        **settings: Any,  # noqa: ANN401  (a runner's)
    ) -> None:
        """Be a manager that runs a job, from the beginning or after a restart."""
        place = self.place(job)
        place.mkdir(exist_ok=True)
        executor = self.executor()
        keep = await to_thread.run_sync(kept_log, place) if is_again else 0
        with _spool(place / "trace", keep) as spool:
            resume = (lambda trace, now: Report(trace, now, phase=Phase.RUNNING)) if is_again else None
            trace = Trace(spool=spool)
            with suppress(Stopped):
                async with reporting(self.client, job, info=self.about, trace=trace, resume=resume) as report:
                    try:
                        assert is_again or await report.claim()
                        self.outcome = await self._race(job, report, executor, meanwhile=meanwhile, settings=settings)
                    except Stopped:
                        report.hand_over()  # a manager that is killed says nothing more
                        raise
                    await report.finish(self.outcome)

    async def _race(
        self,
        job: Job,
        report: Reporting,
        executor: Executor,
        *,
        meanwhile: Callable[[Job, Reporting], Any] | None,
        settings: dict[str, Any],
    ) -> Outcome:
        outcome: Outcome | None = None
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            if meanwhile is not None:

                async def go() -> None:
                    nonlocal failure
                    try:
                        await meanwhile(job, report)
                    except Stopped as error:
                        failure = error
                        tasks.cancel_scope.cancel()

                tasks.start_soon(go)
            try:
                outcome = await run_job(
                    job,
                    self.slot,
                    report,
                    settings=evolve(self.settings, **settings),
                    executor=executor,
                    client=self.client,
                    clock=LoopClock(),
                    directory=self.place(job),
                    name=f"0123456789ab-{job.id}",
                )
            except Exception as error:  # noqa: BLE001  (raised again below)
                failure = error
            tasks.cancel_scope.cancel()
        _let_go(executor, job)
        if failure is not None:
            raise failure
        assert outcome is not None
        return outcome

    def place(self, job: Job) -> Path:
        """The directory of a job."""
        return self.directory / f"job-{job.id}"

    def log(self, job: Job | Stored) -> str:
        """What GitLab has of a job's log."""
        number = job.id if isinstance(job, Job) else job.job.id
        return self.gitlab.log(number).decode()

    def archive(self, number: int, index: int = 0) -> dict[str, bytes]:
        """What is in a zip file that a job left."""
        with zipfile.ZipFile(io.BytesIO(self.gitlab.artifacts[number][index].path.read_bytes())) as archive:
            return {each.filename: archive.read(each) for each in archive.infolist()}


def _let_go(executor: object, job: Job) -> None:
    """Have an executor hold nothing of a job any more, as that of a manager that is killed."""
    inner = getattr(executor, "inner", executor)
    if isinstance(inner, InstanceExecutor):
        for leg in range(3):
            inner._runs.let_go("0123456789ab", f"0123456789ab-{job.id}-{leg}")


def _spool(path: Path, size: int) -> FileIO:
    """Open the file of a log that has so many bytes that count."""
    path.touch()
    spool = FileIO(path, "r+")
    spool.truncate(size)
    return spool


def script(*lines: str, after: Sequence[str] = (), **more: Any) -> Job:  # noqa: ANN401  (a job's)
    """A job with a script that needs no sources."""
    steps = [Step(name="script", script=lines, when="on_success")]
    if after:
        steps.append(Step(name="after_script", script=tuple(after), when="always", allow_failure=True))
    variables = (Variable(key="GIT_STRATEGY", value="none"), *more.pop("variables", ()))
    given: dict[str, Any] = {
        "job_info": JobInfo(name="a job", project_id=7, project_full_path="group/project"),
        "features": Features(trace_sections=True, failure_reasons=REASONS),
        "steps": tuple(steps),
        **more,
    }
    return Job(id=0, token="", variables=variables, **given)


def leaving(*paths: str, **more: Any) -> Artifact:  # noqa: ANN401  (an artifact's)
    """Artifacts that a job leaves."""
    given: dict[str, Any] = {
        "name": "artifacts",
        "artifact_type": "archive",
        "artifact_format": "zip",
        "when": "on_success",
    }
    return Artifact(paths=paths, **{**given, **more})


def after(*jobs: Job) -> tuple[Dependency, ...]:
    """What a job gets of others."""
    file = File(filename="artifacts.zip", size=1)
    return tuple(Dependency(id=each.id, token=each.token, name=f"job {each.id}", artifacts_file=file) for each in jobs)


@asynccontextmanager
async def desk_on(directory: Path, make: Callable[[], Executor] | None = None, **settings: Any) -> AsyncIterator[Desk]:  # noqa: ANN401  (a runner's)
    """Start a GitLab and an instance."""
    given: dict[str, Any] = {
        "name": "a runner",
        "url": "https://gitlab.example.com",
        "token": "glrt-0123456789",
        "executor": "instance",
        **settings,
    }
    async with opened(directory / "group") as group:
        (instance,) = await started(group)
        slot = Slot(instance, lambda: dialled(group, instance))
        make = make or (lambda: InstanceExecutor(InstanceConfig(), Runs("instance", directory / "owner")))
        async with desk_at(directory, slot, make, RunnerSettings(**given)) as desk:
            yield desk


@asynccontextmanager
async def desk_at(
    directory: Path, slot: Slot, make: Callable[[], Executor], settings: RunnerSettings
) -> AsyncIterator[Desk]:
    """Start a GitLab for an instance."""
    for each in ("artifacts", "jobs"):
        (directory / each).mkdir()
    gitlab = FakeGitLab(directory / "artifacts", accepts=0)
    async with GitLabClient(URL, transport=gitlab.transport()) as client:
        async with slot.dial() as connection:
            home = (await connection.run("pwd")).stdout.decode().strip()
        yield Desk(gitlab, client, slot, directory / "jobs", settings, make, Path(home))
