"""A GitLab job on a leased slot, from its first line in the log to its outcome.

What survives this process is on the instance (the job itself, and all that it has printed) and in `Record`. So the job
is begun once, and whoever calls `run_job` again after a restart goes on where it was: the log is written again from the
last point that the record has, in the same words.
"""

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

from anyio import to_thread
from attrs import define, field, frozen

from fleeting import Clock, ConnectError
from fleeting.plugins import one_line
from gitlab_jobs import Job, Outcome, shorten
from gitlab_jobs.client import GitLabClient, Reporting
from taskscaler import LeaseLost
from taskscaler.executors import Executor, ForeseesRefusal, JobOutcome, JobSpec, Leased, Reattaches, Verdict
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab.runner import _talk
from taskscaler_gitlab.runner._caches import BROUGHT
from taskscaler_gitlab.runner._containers import docker_options, is_about_image
from taskscaler_gitlab.runner._dependencies import PLACE
from taskscaler_gitlab.runner._errors import JobInvalid
from taskscaler_gitlab.runner._legs import STOPPED, Revoked, Running, unless_over
from taskscaler_gitlab.runner._marks import Marks
from taskscaler_gitlab.runner._plan import Leg, Plan, next_leg, plan_of, stages_of, status_before
from taskscaler_gitlab.runner._record import LegRecord, Record
from taskscaler_gitlab.runner._script import OUT, Before, write_script
from taskscaler_gitlab.runner._stages import Cause, Ended, filled_in, judge
from taskscaler_gitlab.runner._stages import Verdict as JobVerdict
from taskscaler_gitlab.runner._surroundings import Surroundings, container_of, look_around, owner_of, surroundings_of
from taskscaler_gitlab.runner._transfers import NotFetched, NotSent, Transfers, keep_caches
from taskscaler_gitlab.runner._variables import JobEnvironment, environment_of

log = logging.getLogger("taskscaler.gitlab")

_WRONG: Final = "runner_configuration_error"
_SYSTEM: Final = "runner_system_failure"
_SCRIPT: Final = "script_failure"
_IMAGE: Final = "image_pull_failure"
_TIMEOUT: Final = "job_execution_timeout"
_CANCELED: Final = "job_canceled"

_SHEBANG: Final = "#!/bin/sh\n"
"""In a container, what runs is one word then, which any shell takes that an image's entrypoint begins."""

LATE = 600.0
"""Seconds beyond ``after_script`` that a canceled job has to keep what it leaves."""


async def run_job(
    job: Job,
    lease: Leased,
    reporting: Reporting,
    *,
    settings: RunnerSettings,
    executor: Executor,
    client: GitLabClient,
    clock: Clock,
    directory: Path,
    name: str,
) -> Outcome:
    """Run a job that was claimed, or go on with it after a restart.

    The script runs once, whatever happens to this process. Cancelled, this leaves the job running: call it again, or
    `abandon` it. It has ended everything on the instance when it returns.

    Args:
        job: What to run.
        lease: Where; it stays the caller's.
        reporting: Gets the job's log, and says whether GitLab wants its end. After a restart, its log is to have the
            first `kept_log` bytes of what it had.
        settings: The runner's.
        executor: What runs scripts on the instance.
        client: Brings artifacts from and to GitLab.
        clock: Says the time.
        directory: The job's own, which survives a restart.
        name: The try's, for `Reattaches`, of at most 52 characters.

    Returns:
        How it ended, for `Reporting.finish`.

    Raises:
        Unreachable, CommandLost, NameUnknown, ConnectError: Nobody knows what became of it, or it cannot be run there.
        OSError: The directory cannot be used.
    """
    record = await to_thread.run_sync(Record.load, directory)
    run = _Run(
        job=job,
        lease=lease,
        reporting=reporting,
        settings=settings,
        executor=executor,
        client=client,
        clock=clock,
        record=record,
        name=name,
    )
    try:
        return await run.run()
    except Revoked:
        await _end(executor, lease, record)
        return _failure(_CANCELED)


async def abandon(executor: Executor, lease: Leased, *, directory: Path) -> None:
    """End what a job has on its instance, for whoever has cancelled `run_job` and does not call it again.

    Raises:
        Unreachable, ConnectError: Something may be left.
    """
    await _end(executor, lease, await to_thread.run_sync(Record.load, directory))


async def _end(executor: Executor, lease: Leased, record: Record) -> None:
    if isinstance(executor, Reattaches):
        for leg in record.legs:
            await executor.end(lease, name=leg.name)


@frozen(kw_only=True)
class _Planned:
    """What is to be done for a job, and where."""

    plan: Plan
    environment: JobEnvironment
    around: Surroundings
    options: Mapping[Leg, object]
    """What the executor is asked for."""


@define(kw_only=True)
class _Run:
    job: Job
    lease: Leased
    reporting: Reporting
    settings: RunnerSettings
    executor: Executor
    client: GitLabClient
    clock: Clock
    record: Record
    name: str
    _transfers: Transfers = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._transfers = Transfers(job=self.job, client=self.client, clock=self.clock, place=self.record.path)

    # --- from begin to end ------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """See `run_job`."""
        record = self.record
        if not record.began:
            if self.settings.kind == "instance":
                record.home, record.architecture = await look_around(self.lease)
            record.began = self.clock.now()
        planned = self._plan_or_problem()
        if record.log_size == 0:
            self._greet(planned.plan.problems if isinstance(planned, _Planned) else ())
        if record.outcome is not None:
            self._log("".join(record.said))
            outcome = record.outcome
        elif isinstance(planned, JobInvalid):
            outcome = await self._finish(_failure(planned.reason), str(planned))
        else:
            outcome = await self._carry_out(planned)
        try:
            await _end(self.executor, self.lease, record)
        except (ConnectError, LeaseLost) as error:  # it has ended, and what is left the next job there removes
            log.warning("leftovers_stay", extra={"job": self.job.id, "error": str(error)})
        return outcome

    def _plan_or_problem(self) -> "_Planned | JobInvalid":
        try:
            return self._plan()
        except JobInvalid as error:
            return error

    async def _carry_out(self, planned: _Planned) -> Outcome:
        record = self.record
        if not record.legs:
            if self.reporting.canceling.is_set():
                return await self._finish(_failure(_CANCELED), "canceled")
            if refusal := self._refusal(planned):
                return await self._finish(_failure(_WRONG), refusal)
            try:
                attempts = planned.environment.options.artifact_download_attempts
                await unless_over(self.reporting, lambda: self._transfers.fetch(attempts), even_canceling=True)
            except NotFetched as error:
                return await self._finish(_failure(error.reason), str(error))
        try:
            await self._run_legs(planned)
        except ConnectError as error:
            if not is_about_image(error):
                raise
            return await self._finish(_failure(_IMAGE), str(error))
        self._log("".join(record.said))
        return await self._conclude(planned)

    def _plan(self) -> _Planned:
        """Make of the job what is to be done; the same after a restart."""
        job, settings = self.job, self.settings
        around = surroundings_of(
            job,
            settings,
            instance=self.lease.instance,
            slot=self.lease.slot,
            home=self.record.home,
            architecture=self.record.architecture,
        )
        environment = environment_of(job, settings, around.place)
        self.reporting.hide(environment.phrases)
        plan = plan_of(job, settings, environment, cache_dir=around.cache_dir, brings=self._caches_here is not None)
        options: dict[Leg, object] = {}
        if settings.kind == "docker":
            wanted = (leg for leg in Leg if around.helper_image or not leg.is_helper)
            options = {leg: docker_options(container_of(job, settings, environment, around, leg)) for leg in wanted}
        return _Planned(plan=plan, environment=environment, around=around, options=options)

    def _refusal(self, planned: _Planned) -> str:
        """Why the executor will not run it; empty if it will."""
        if not isinstance(self.executor, ForeseesRefusal):
            return ""
        return next(filter(None, map(self.executor.refusal, planned.options.values())), "")

    async def _run_legs(self, planned: _Planned) -> None:
        """Run all that there is to run on the instance."""
        record = self.record
        for leg in record.legs:
            if not leg.is_over:
                await self._run_leg(planned, leg, is_new=False)
        while (kind := self._next_leg(planned)) is not None:
            await _end(self.executor, self.lease, record)
            leg = LegRecord(kind=kind.value, name=f"{self.name}-{len(record.legs)}", began=self.clock.now())
            record.legs.append(leg)
            await self._save()
            await self._run_leg(planned, leg, is_new=True)

    def _next_leg(self, planned: _Planned) -> Leg | None:
        record = self.record
        last = record.legs[-1] if record.legs else None
        if last is not None and (last.is_timed_out or last.is_lost):
            return None
        return next_leg(
            planned.plan,
            None if last is None else Leg(last.kind),
            record.begun,
            record.ended,
            has_helper=bool(planned.around.helper_image),
            is_canceled=record.is_canceled,
        )

    # --- one leg ----------------------------------------------------------------------------------------

    async def _run_leg(self, planned: _Planned, leg: LegRecord, *, is_new: bool) -> None:
        """Run a leg, or go on with it, and write down what became of it."""
        record, marks = self.record, Marks(self.record.nonce, len(planned.plan.stages))
        brought = self._brought(leg)
        await to_thread.run_sync(self._transfers.remove, brought)
        stages = stages_of(planned.plan, Leg(leg.kind), record.begun, record.ended)
        running = Running(
            executor=self.executor,
            lease=self.lease,
            spec=self._spec(planned, leg),
            name=leg.name,
            marks=marks,
            reporting=self.reporting,
            brought=brought,
            may_stop=lambda: Leg(leg.kind).is_stoppable and not planned.plan.is_late(marks.begun),
            may_take=(planned.environment.options.after_script_timeout or self.job.timeout) + LATE,
            stopping=self._stopping,
            clock=self.clock,
        )
        if is_new:
            outcome = await running.start()
        else:
            is_stopping = record.is_canceled and Leg(leg.kind).is_stoppable
            outcome = await running.follow(lambda: STOPPED if is_stopping else self.clock.now() - leg.began)
        self.reporting.log(marks.end())
        await self._close_section(planned.plan, leg, marks)
        ended: Mapping[int, Ended] = marks.ended
        if stages[-1].number not in ended and outcome.verdict is not Verdict.TIMED_OUT:
            ended = filled_in(stages, ended, marks.begun, outcome.exit_code)
        record.begun |= marks.all_begun
        record.ended |= ended
        record.log_size = self.reporting.report.trace.size
        leg.is_over = True
        if stages[-1].number not in ended and not record.is_canceled:
            leg.is_timed_out = outcome.verdict is Verdict.TIMED_OUT
            leg.is_lost = not leg.is_timed_out
        await self._note(leg, running.spec, outcome)
        await self._save()

    async def _close_section(self, plan: Plan, leg: LegRecord, marks: Marks) -> None:
        """End the section that was open when a leg was stopped, or lost; at the same time after a restart."""
        stage = plan.stage(marks.open)
        if stage is None:
            return
        if not leg.ended:
            leg.ended = self.clock.now()
            await self._save()
        self._log(_talk.end_of_section(stage.section, leg.ended, marks=self._has_sections))

    async def _note(self, leg: LegRecord, spec: JobSpec, outcome: JobOutcome) -> None:
        """Remember what an executor says of a leg beside how it ended."""
        is_missing = bool(spec.artifacts) and not await to_thread.run_sync(self._brought(leg).exists)
        if is_missing:
            leg.why = next((each for each in (outcome.why, *outcome.warnings) if "artifact" in each), outcome.why)
        elif leg.is_lost:
            leg.why = outcome.why
        rest = (each for each in outcome.warnings if each != leg.why)
        self.record.said += map(_talk.warning, rest)

    async def _stopping(self) -> None:
        self.record.is_canceled = True
        await self._save()

    def _spec(self, planned: _Planned, leg: LegRecord) -> JobSpec:
        """Describe a leg to its executor; the same after a restart."""
        record, kind, plan = self.record, Leg(leg.kind), planned.plan
        has_failed, is_broken = status_before(plan, record.ended)
        script = write_script(
            stages_of(plan, kind, record.begun, record.ended),
            Before(has_failed=has_failed, is_broken=is_broken, is_canceled=record.is_canceled),
            nonce=record.nonce,
            shell=self.settings.shell,
            sections=self._has_sections,
            script_timeout=planned.environment.options.script_timeout,
            is_shared=kind.is_helper,
        )
        return JobSpec(
            name=f"gitlab-{self.job.id}",
            script=f"{_SHEBANG}{script}" if planned.options else script,
            files=self._files(planned) if kind.takes_files else {},
            artifacts=(OUT,) if plan.leaves_files and kind.has_late else (),
            timeout=max(1.0, self.job.timeout - (leg.began - record.began)),
            options=planned.options.get(kind),
        )

    def _files(self, planned: _Planned) -> dict[str, Path]:
        """What a leg gets from here: what other jobs left, and caches."""
        files = {f"{PLACE}/{each.name}": each for each in self._transfers.fetched()}
        kept = self._caches_here
        if kept is not None:
            names = (name for cache in planned.plan.caches if cache.pulls for name in cache.names)
            files |= {f"{BROUGHT}/{name}.tar": path for name in names if (path := kept / f"{name}.tar").is_file()}
        return files

    # --- the end ----------------------------------------------------------------------------------------

    async def _conclude(self, planned: _Planned) -> Outcome:
        """Bring to GitLab what the job left, and say how it ended."""
        last = self.record.legs[-1]
        if last.is_timed_out:
            took = _talk.in_hours(self.job.timeout)
            return await self._finish(_failure(_TIMEOUT), f"execution took longer than {took} seconds")
        if last.is_lost:
            return await self._finish(_failure(_SYSTEM), f"(system failure): {last.why or 'its shell was killed'}")
        verdict = judge(planned.plan.stages, self.record.ended)
        has_failed = verdict.cause is not None or self.record.is_canceled
        problem = await self._send_artifacts(planned.plan, last, has_failed=has_failed)
        if (kept := self._caches_here) is not None:
            out = self._brought(last) / OUT
            await to_thread.run_sync(partial(keep_caches, planned.plan.caches, out, kept, job=self.job.id))
        if self.record.is_canceled:
            return await self._finish(_failure(_CANCELED), "canceled")
        if verdict.cause is not None:
            return await self._finish(*self._account(verdict, planned))
        if problem is not None:
            return await self._finish(_failure(problem.reason, 1), str(problem))
        return await self._finish(Outcome(is_success=True), "")

    def _account(self, verdict: JobVerdict, planned: _Planned) -> tuple[Outcome, str]:
        """What GitLab is to learn of a failure, and what people are."""
        code = verdict.code
        if verdict.cause is Cause.TIMEOUT:
            took = _talk.in_hours(planned.environment.options.script_timeout or 0)
            return _failure(_TIMEOUT), f"the script took longer than RUNNER_SCRIPT_TIMEOUT, {took}"
        if verdict.cause is Cause.SYSTEM:
            return _failure(_SYSTEM), f"(system failure): the job's directories cannot be made, exit code {code}"
        return _failure(_SCRIPT, code), f"exit code {code}"

    async def _send_artifacts(self, plan: Plan, leg: LegRecord, *, has_failed: bool) -> NotSent | None:
        """Send what is to be sent; returns what went wrong first."""
        record = self.record
        wanted = [each for each in plan.artifacts if each.when.fits(has_failed=has_failed)]
        if not wanted:
            return None
        section = f"upload_artifacts_on_{'failure' if has_failed else 'success'}"
        if not record.is_uploading:
            record.is_uploading = True
            title = f"Uploading artifacts for {'failed' if has_failed else 'successful'} job"
            await self._say(_talk.section(section, title, self.clock.now(), marks=self._has_sections))
        out = self._brought(leg) / OUT
        for each in wanted:
            if each.number not in record.sent:
                sent = await unless_over(self.reporting, partial(self._transfers.send, each, out, leg.why))
                record.sent[each.number] = sent.problem
                await self._say(sent.text)
        if not record.has_uploaded:
            record.has_uploaded = True
            await self._say(_talk.end_of_section(section, self.clock.now(), marks=self._has_sections))
        return next((NotSent(text) for text in record.sent.values() if text), None)

    # --- words ------------------------------------------------------------------------------------------

    @property
    def _has_sections(self) -> bool:
        return self.job.features.trace_sections

    @property
    def _caches_here(self) -> Path | None:
        """Where the manager keeps the project's caches, if it does."""
        top = self.settings.taskscaler.cache_on_manager
        project = f"project-{self.job.job_info.project_id}"
        return None if top is None else Path(top, *owner_of(self.settings), project)

    def _brought(self, leg: LegRecord) -> Path:
        return self.record.path / f"brought-{leg.name.rpartition('-')[2]}"

    def _greet(self, problems: Iterable[str]) -> None:
        """Say who runs the job, where, and what is strange about it."""
        settings, marks, began = self.settings, self._has_sections, self.record.began
        self._log(f"Running with taskscaler-gitlab {version('taskscaler-gitlab')}\n")
        self._log(f"  on {one_line(settings.name) or 'a runner without a name'} {shorten(settings.token)}\n")
        self._log(
            _talk.section("prepare_executor", f'Preparing the "{settings.executor}" executor', began, marks=marks)
        )
        self._log(f"Using slot {self.lease.slot} of the instance {one_line(self.lease.instance)}\n")
        for problem in problems:
            self._log(_talk.warning(problem))
        self._log(_talk.end_of_section("prepare_executor", began, marks=marks))

    async def _finish(self, outcome: Outcome, why: str) -> Outcome:
        """Say how the job ended, once that is written down."""
        self.record.outcome = outcome
        await self._say(_talk.success("Job succeeded") if outcome.is_success else _talk.failure(f"Job failed: {why}"))
        return outcome

    async def _say(self, text: str) -> None:
        self.record.said.append(text)
        await self._save()
        self._log(text)

    def _log(self, text: str) -> None:
        self.reporting.log(text.encode(errors="replace"))

    async def _save(self) -> None:
        await to_thread.run_sync(self.record.save)


def _failure(reason: str, code: int | None = None) -> Outcome:
    return Outcome(is_success=False, failure_reason=reason, exit_code=code)
