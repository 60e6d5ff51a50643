"""A GitLab job on a leased slot, from its first line in the log to its outcome.

What survives this process is on the instance (the job itself, and all that it has printed) and in `Record`. So the job
is begun once, and whoever calls `run_job` again after a restart goes on where it was: the log is written again from the
last point that the record has, in the same words.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread
from attrs import define, field, frozen

from fleeting import Clock, ConnectError
from fleeting.plugins import write_whole
from gitlab_jobs import Job, Outcome
from gitlab_jobs.client import GitLabClient, Reporting
from job_steps import StepResult
from job_steps.client import zipapp
from job_steps.tracing import parts_of
from taskscaler import LeaseLost
from taskscaler.executors import Executor, ForeseesRefusal, JobOutcome, JobSpec, Leased, Reattaches, Verdict
from taskscaler.tracing import Span, Trace, current, moved_by
from taskscaler_gitlab._manager_caches import Loans
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab.runner import _talk
from taskscaler_gitlab.runner._caches import BROUGHT
from taskscaler_gitlab.runner._containers import docker_options, is_about_image
from taskscaler_gitlab.runner._dependencies import PLACE
from taskscaler_gitlab.runner._errors import JobInvalid
from taskscaler_gitlab.runner._job_log import JobLog
from taskscaler_gitlab.runner._legs import STOPPED, Revoked, Running, unless_over
from taskscaler_gitlab.runner._marks import Marks
from taskscaler_gitlab.runner._plan import Leg, Plan, next_leg, plan_of, stages_of, status_before
from taskscaler_gitlab.runner._record import RESULTS, LegRecord, Record, StepsSpan
from taskscaler_gitlab.runner._script import OUT, Before, write_script
from taskscaler_gitlab.runner._stage_spans import parts_of_stages
from taskscaler_gitlab.runner._stages import Cause, Ended, Phase, Stage, filled_in, judge
from taskscaler_gitlab.runner._stages import Verdict as JobVerdict
from taskscaler_gitlab.runner._steps import AGENT, AgentThere, have_agent
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

_REASONS: Final[Mapping[Cause, str]] = {
    Cause.SCRIPT: _SCRIPT,
    Cause.TIMEOUT: _TIMEOUT,
    Cause.SYSTEM: _SYSTEM,
    Cause.LOST: _SYSTEM,
}
"""GitLab's words."""

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
        RecordUnreadable: What was written down about it cannot be used, and nothing was done.
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
        Unreachable, ConnectError, RecordUnreadable: Something may be left.
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
    _log: JobLog = field(init=False)
    _loans: Loans = field(factory=Loans, init=False)
    """The manager's caches that a leg takes along."""

    _trace: Trace | None = field(default=None, init=False)
    """What the job is in, if it is followed."""

    def __attrs_post_init__(self) -> None:
        trace = current()
        self._trace = trace if isinstance(trace, Trace) else None
        self._transfers = Transfers(job=self.job, client=self.client, clock=self.clock, place=self.record.path)
        self._log = JobLog(reporting=self.reporting, record=self.record, sections=self.job.features.trace_sections)

    # --- from begin to end ------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """See `run_job`."""
        record = self.record
        if not record.began:
            if self.settings.kind == "instance":
                record.home, record.architecture = await look_around(self.lease)
            record.began = self.clock.now()
        if self.job.run and not record.agent and self.settings.kind == "instance":
            try:
                there = await have_agent(self.lease)
                record.python, record.agent = there.python, there.path
            except JobInvalid as error:
                record.agent_problem = self._log.masked(str(error))
        planned = await self._plan_or_problem()
        if record.log_size == 0:
            problems = planned.plan.problems if isinstance(planned, _Planned) else ()
            self._log.greet(self.settings, self.lease, problems)
        if record.outcome is not None:
            self._log.repeat()
            outcome = record.outcome
        elif isinstance(planned, JobInvalid):
            outcome = await self._log.finish(_failure(planned.reason), str(planned))
        else:
            outcome = await self._carry_out(planned)
        try:
            await _end(self.executor, self.lease, record)
        except (ConnectError, LeaseLost) as error:  # it has ended, and what is left the next job there removes
            log.warning("leftovers_stay", extra={"job": self.job.id, "error": self._log.masked(str(error))})
        return outcome

    async def _plan_or_problem(self) -> "_Planned | JobInvalid":
        try:
            planned = await self._plan()
            return JobInvalid(self.record.agent_problem) if self.record.agent_problem else planned
        except JobInvalid as error:
            return error

    async def _carry_out(self, planned: _Planned) -> Outcome:
        record = self.record
        if not record.legs:
            if self.reporting.canceling.is_set():
                return await self._log.finish(_failure(_CANCELED), "canceled")
            if refusal := self._refusal(planned):
                return await self._log.finish(_failure(_WRONG), refusal)
            try:
                attempts, began = planned.environment.options.artifact_download_attempts, self.clock.now()
                with (
                    anyio.move_on_after(self._left_at(self.clock.now())) as scope,
                    self._part("fetch_artifacts" if self.job.dependencies else ""),
                ):
                    await unless_over(self.reporting, lambda: self._transfers.fetch(attempts), even_canceling=True)
            except NotFetched as error:
                code = 1 if error.reason == _SCRIPT else None  # that of the script which GitLab Runner has for this
                return await self._log.finish(_failure(error.reason, code), str(error))
            if scope.cancelled_caught:
                return await self._log.finish(*self._overdue())
            if self.job.dependencies:
                record.add_time("download_artifacts", self.clock.now() - began)
        try:
            await self._run_legs(planned)
        except ConnectError as error:
            if not is_about_image(error):
                raise
            return await self._log.finish(_failure(_IMAGE), str(error))
        self._log.repeat()
        return await self._conclude(planned)

    async def _plan(self) -> _Planned:
        """Make of the job what is to be done; the same after a restart.

        In threads: a job with many references, or much to quote, would hold up all others for seconds.
        """
        job, settings = self.job, self.settings
        around = surroundings_of(
            job,
            settings,
            instance=self.lease.instance,
            slot=self.lease.slot,
            home=self.record.home,
            architecture=self.record.architecture,
        )
        trace_env = {} if self._trace is None else self._trace.env
        environment = await to_thread.run_sync(environment_of, job, settings, around.place, trace_env)
        self._log.hide(environment.phrases)
        return await to_thread.run_sync(self._planned, around, environment)

    def _planned(self, around: Surroundings, environment: JobEnvironment) -> _Planned:
        """Write what is to be done. Blocks."""
        job, settings = self.job, self.settings
        plan = plan_of(
            job,
            settings,
            environment,
            cache_dir=around.cache_dir,
            brings=self._caches_here is not None,
            agent=AgentThere(self.record.python, self.record.agent),
        )
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
        if self._trace is not None:
            self._trace.expect_run(record.legs.index(leg), None if is_new else leg.began)
        running = Running(
            executor=self.executor,
            lease=self.lease,
            spec=await to_thread.run_sync(self._spec, planned, leg),
            name=leg.name,
            marks=marks,
            reporting=self.reporting,
            brought=brought,
            may_stop=lambda: Leg(leg.kind).is_stoppable and not planned.plan.is_late(marks.begun),
            may_take=(planned.environment.options.after_script_timeout or self.job.timeout) + LATE,
            stopping=self._stopping,
            clock=self.clock,
        )
        try:
            if is_new:
                outcome = await running.start()
            else:
                is_stopping = record.is_canceled and Leg(leg.kind).is_stoppable
                outcome = await running.follow(lambda: STOPPED if is_stopping else self.clock.now() - leg.began)
        except BaseException:  # if nobody goes on with it, it is known how far it has come
            if self._trace is not None:
                self._trace.tell_parts(parts_of_stages(stages, marks)[1], since=leg.began)
            raise
        finally:
            self._loans.give_back()
        self.reporting.log(marks.end())
        await self._close_section(planned.plan, leg, marks)
        ended: Mapping[int, Ended] = marks.ended
        if stages[-1].number not in ended and outcome.verdict is not Verdict.TIMED_OUT:
            ended = filled_in(stages, ended, marks.begun, outcome.exit_code)
        self._note_times(planned.plan, leg, marks)
        record.begun |= marks.all_begun
        record.ended |= ended
        record.log_size = self.reporting.report.trace.size
        leg.is_over = True
        record.add_usage(outcome.usage)
        record.add_limit(outcome.memory_limit, has_script=Leg(leg.kind).has_script)
        if stages[-1].number not in ended and not record.is_canceled:
            leg.is_timed_out = outcome.verdict is Verdict.TIMED_OUT
            leg.is_lost = not leg.is_timed_out
        await self._note(leg, running.spec, outcome)
        self._follow_stages(planned.plan, leg, stages, marks)
        await self._save()

    def _follow_stages(self, plan: Plan, leg: LegRecord, stages: Sequence[Stage], marks: Marks) -> None:
        """Have a leg that is over be in the job's trace, with its stages, as the instance's clock knows them."""
        trace = self._trace
        if trace is None or not trace.is_followed:
            return
        numbers, parts = parts_of_stages(stages, marks)
        spans = trace.add_parts(parts, self.clock.now(), since=leg.began)
        for number, span in zip(numbers, spans, strict=False):
            if plan.has_results and plan.stages[number].phase is Phase.SCRIPT:
                self.record.steps_in = StepsSpan(span.context.span_id, span.began, span.ended, moved_by(spans))
        verdict = judge(stages, self.record.ended)
        reason = "" if verdict.cause is None else _REASONS[verdict.cause]
        trace.end_run(self.clock.now(), _TIMEOUT if leg.is_timed_out else _SYSTEM if leg.is_lost else reason)

    def _follow_steps(self, result: StepResult | None) -> None:
        """Have the job's steps be in its trace, below the stage that has run them."""
        trace, place = self._trace, self.record.steps_in
        if result is None or place is None or trace is None or not trace.is_followed:
            return
        context = trace.context._replace(span_id=place.id)
        stage = Span("", context, None, place.began, place.ended, {}, (), "")
        trace.add_below(stage, parts_of(result), place.offset)

    def _note_times(self, plan: Plan, leg: LegRecord, marks: Marks) -> None:
        """Note how long stages took; whatever a job says of that, no stage took longer than its leg has."""
        most = self.clock.now() - leg.began + 1  # whole seconds are rounded
        for number, seconds in marks.took.items():
            if (stage := plan.stage(number)) is not None and stage.section:
                self.record.add_time(stage.section, min(seconds, most))

    async def _close_section(self, plan: Plan, leg: LegRecord, marks: Marks) -> None:
        """End the section that was open when a leg was stopped, or lost; at the same time after a restart."""
        stage = plan.stage(marks.open)
        if stage is None:
            return
        if not leg.ended:
            leg.ended = self.clock.now()
            await self._save()
        self._log.end_section(stage.section, leg.ended)

    async def _note(self, leg: LegRecord, spec: JobSpec, outcome: JobOutcome) -> None:
        """Remember what an executor says of a leg beside how it ended."""
        is_missing = bool(spec.artifacts) and not await to_thread.run_sync(self._brought(leg).exists)
        if is_missing:
            why = next((each for each in (outcome.why, *outcome.warnings) if "artifact" in each), outcome.why)
        else:
            why = outcome.why if leg.is_lost else ""
        leg.why = self._log.masked(why)
        limit, has_failed = outcome.memory_limit, outcome.verdict is Verdict.FAILED
        if limit is not None and limit.reached and has_failed and not leg.is_lost:  # else the log's last line says it
            self.record.said.append(self._log.masked(_talk.warning(f"the job {outcome.why}")))
        rest = (each for each in outcome.warnings if each != why)
        self.record.said += (self._log.masked(_talk.warning(each)) for each in rest)

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
            sections=self._log.sections,
            script_timeout=planned.environment.options.script_timeout,
            is_shared=kind.is_helper,
        )
        return JobSpec(
            name=f"gitlab-{self.job.id}",
            script=f"{_SHEBANG}{script}" if planned.options else script,
            files={
                **(self._files(planned, leg) if kind.takes_files else {}),
                **(self._agent() if plan.has_results and planned.options and kind.has_script else {}),
            },
            artifacts=(OUT,) if self._leaves(plan, kind) else (),
            timeout=self._left_at(leg.began),
            series=self._series(kind),
            options=planned.options.get(kind),
        )

    @staticmethod
    def _leaves(plan: Plan, kind: Leg) -> bool:
        """Whether a leg leaves files that are brought: its own, or how its steps went."""
        return plan.leaves_files and (kind.has_late or (plan.has_results and kind.has_script))

    def _agent(self) -> dict[str, Path]:
        """What runs steps in a container, which gets it from here. Blocks."""
        path = self.record.path / AGENT
        if not path.exists():
            write_whole(path, zipapp().data)
        return {AGENT: path}

    def _series(self, kind: Leg) -> str:
        """Say what a leg is known as from pipeline to pipeline."""
        about = self.job.job_info
        project = about.project_full_path or str(about.project_id)
        return f"{self.settings.url} {project} {kind.value} {about.name}".encode(errors="replace").decode()

    def _files(self, planned: _Planned, leg: LegRecord) -> dict[str, Path]:
        """What a leg gets from here: what other jobs left, and caches, which are on loan. Blocks."""
        files = {f"{PLACE}/{each.name}": each for each in self._transfers.fetched()}
        kept = self._caches_here
        if kept is not None:
            names = {name for cache in planned.plan.caches if cache.pulls for name in cache.names}
            lent = {name: self._loans.take(kept / f"{name}.tar", leg.name) for name in sorted(names)}
            files |= {f"{BROUGHT}/{name}.tar": path for name, path in lent.items() if path is not None}
        return files

    # --- the end ----------------------------------------------------------------------------------------

    async def _conclude(self, planned: _Planned) -> Outcome:
        """Bring to GitLab what the job left, and say how it ended."""
        last = self.record.legs[-1]
        if last.is_timed_out:
            return await self._log.finish(*self._overdue())
        if last.is_lost:
            return await self._log.finish(_failure(_SYSTEM), f"(system failure): {last.why or 'its shell was killed'}")
        verdict = judge(planned.plan.stages, self.record.ended)
        has_failed = verdict.cause is not None or self.record.is_canceled
        problem = await self._send_artifacts(planned, last, has_failed=has_failed)
        if planned.plan.has_results:
            built = next((leg for leg in self.record.legs if Leg(leg.kind) is Leg.BUILD), last)
            self._follow_steps(await to_thread.run_sync(self.record.keep_results, self._brought(built) / OUT / RESULTS))
        if (kept := self._caches_here) is not None:
            out = self._brought(last) / OUT
            most = self.settings.taskscaler.cache_retention.size
            await to_thread.run_sync(partial(keep_caches, planned.plan.caches, out, kept, job=self.name, most=most))
        if self.record.is_canceled:
            return await self._log.finish(_failure(_CANCELED), "canceled")
        if verdict.cause is not None:
            return await self._log.finish(*self._account(verdict, planned))
        if problem is not None:
            return await self._log.finish(_failure(problem.reason, 1), str(problem))
        return await self._log.finish(Outcome(is_success=True), "")

    def _left_at(self, now: float) -> float:
        """Seconds that the job may take from then on; at least one, in which it learns that it was not enough.

        Never more than all of its time: the clock of a manager before us may have been ahead.
        """
        return max(1.0, self.job.timeout - max(0.0, now - self.record.began))

    def _overdue(self) -> tuple[Outcome, str]:
        """How a job ends that took too long."""
        return _failure(_TIMEOUT), f"execution took longer than {_talk.in_hours(self.job.timeout)} seconds"

    def _account(self, verdict: JobVerdict, planned: _Planned) -> tuple[Outcome, str]:
        """What GitLab is to learn of a failure, and what people are."""
        code = verdict.code
        if verdict.cause is Cause.TIMEOUT:
            took = _talk.in_hours(planned.environment.options.script_timeout or 0)
            return _failure(_TIMEOUT), f"the script took longer than RUNNER_SCRIPT_TIMEOUT, {took}"
        if verdict.cause is Cause.SYSTEM:
            return _failure(_SYSTEM), f"(system failure): the job's directories cannot be made, exit code {code}"
        return _failure(_SCRIPT, code), f"exit code {code}"

    async def _send_artifacts(self, planned: _Planned, leg: LegRecord, *, has_failed: bool) -> NotSent | None:
        """Send what is to be sent; returns what went wrong first."""
        record, compression = self.record, planned.environment.options.artifact_compression
        wanted = [each for each in planned.plan.artifacts if each.when.fits(has_failed=has_failed)]
        if not wanted:
            return None
        section = f"upload_artifacts_on_{'failure' if has_failed else 'success'}"
        began = None if record.is_uploading else self.clock.now()
        if not record.is_uploading:
            record.is_uploading = True
            title = f"Uploading artifacts for {'failed' if has_failed else 'successful'} job"
            await self._log.say(_talk.section(section, title, self.clock.now(), marks=self._log.sections))
        out = self._brought(leg) / OUT
        with self._part(section):
            for each in wanted:
                if each.number in record.sent:
                    continue
                sent = await unless_over(self.reporting, partial(self._transfers.send, each, out, leg.why, compression))
                record.sent[each.number] = self._log.masked(sent.problem)
                await self._log.say(sent.text)
        if not record.has_uploaded:
            record.has_uploaded = True
            if began is not None:  # else, a manager before us began
                record.add_time(section, self.clock.now() - began)
            await self._log.say(_talk.end_of_section(section, self.clock.now(), marks=self._log.sections))
        return next((NotSent(text) for text in record.sent.values() if text), None)

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        """Follow what the body does here for the job; without a name, it is nothing."""
        trace, since, error = self._trace, self.clock.now(), "failed"
        try:
            yield
            error = ""
        finally:
            if trace is not None and name:
                trace.add(name, since, self.clock.now(), error=error)

    @property
    def _caches_here(self) -> Path | None:
        """Where the manager keeps the project's caches, if it does."""
        top = self.settings.taskscaler.cache_on_manager
        project = f"project-{self.job.job_info.project_id}"
        return None if top is None else Path(top, *owner_of(self.settings), project)

    def _brought(self, leg: LegRecord) -> Path:
        return self.record.path / f"brought-{leg.name.rpartition('-')[2]}"

    async def _save(self) -> None:
        await to_thread.run_sync(self.record.save)


def _failure(reason: str, code: int | None = None) -> Outcome:
    return Outcome(is_success=False, failure_reason=reason, exit_code=code)
