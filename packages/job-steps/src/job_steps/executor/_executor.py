"""One try at a job, from its admission to the last trace of it.

The service that runs the steps keeps the job and its log until `end`, whoever is connected: so a try is started and
followed, and followed again after whatever has happened to its manager, by its name alone.
"""

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

import anyio
from anyio import to_thread
from attrs import define, evolve, field

from fleeting import ConnectError, Unreachable, Unsupported
from fleeting.connectors import ReportsSystem, RunsDetached, Sink
from fleeting.errors import CommandLost
from fleeting.plugins import format_duration
from job_steps import StepResult, StepsInvalid
from job_steps._breakpoints import LONGEST_TIMEOUT
from job_steps._policy import PolicyRefused
from job_steps.executor._config import StepsConfig
from job_steps.executor._list import StepsOfJob, first_in_container, steps_of
from job_steps.executor._outcome import usage_of
from job_steps.executor._service import reported, service
from job_steps.executor._there import There
from job_steps.tracing import parts_of
from job_steps.usage import uses_of
from taskscaler.executors import JobOutcome, JobSpec, Leased, Verdict, enter_phase
from taskscaler.executors.runs import SHORT, Place, Runs, batch_of, check_try
from taskscaler.tracing import add_parts, is_followed

log = logging.getLogger("job_steps.executor")

_REMEDY: Final = "change the step, or `{rule}` in [executors.steps.policy] if it may run"
_OWN_REMEDY: Final = "change the step, or `{rule}` in the job's policy"
_REMEDIES: Final = {
    "breakpoints": "remove the breakpoint, or set breakpoints = true in [executors.steps.policy]",
    "before": "rename the step",
    "after": "rename the step",
}

PREPARE_TIMEOUT: Final = 600.0
"""Seconds after which a job counts as lost that has not begun: its instance hangs."""

GRACE: Final = 15.0
"""Seconds beyond its time that a job may take to be ended by the service itself."""

LAST_WORDS: Final = 2.0
"""Seconds in which what it has printed by then is passed on, if the service has not ended it."""

LOOK_AGAIN: Final = 1.0
"""Seconds between two looks whether a job whose time is over is held yet."""

HASTY_END: Final = 20.0
"""Seconds for which the end of a cancelled job may hold up the cancellation."""


@define(eq=False)
class StepsExecutor:
    """Runs jobs' steps. One serves all slots at once."""

    _config: StepsConfig
    _runs: Runs = field(factory=lambda: Runs("steps"))
    """Whose directories those on instances are; those of this user's managers."""

    _unclaimed: bool = field(default=False, init=False)
    _looked_at: set[tuple[str, int]] = field(factory=set, init=False)
    """Slots of instances in which nothing is left of jobs that outlived an earlier manager."""

    def refusal(self, options: object) -> str:
        """See `taskscaler.executors.ForeseesRefusal`."""
        try:
            self._steps(JobSpec(name="job", script=":", options=options))
        except ConnectError as error:
            return str(error)
        return ""

    async def run(self, job: JobSpec, lease: Leased, *, output: Sink, artifacts: Path) -> JobOutcome:
        """See `Executor.run`. The time-out covers the steps, not the upload of the files."""
        name = f"{self._runs.id}-{uuid4().hex[:12]}"
        outcome: JobOutcome | None = None
        try:
            outcome = await self.start_attached(
                job, lease, name=name, started=_ignore, output=output, artifacts=artifacts
            )
        except Unsupported as error:
            raise ConnectError(f"steps cannot be run there: {error}") from error
        finally:
            if outcome is None:
                with anyio.move_on_after(HASTY_END, shield=True):
                    await self._end_quietly(lease, name)
        try:
            await self.end(lease, name=name)
        except ConnectError as error:
            return evolve(outcome, warnings=(*outcome.warnings, f"the clean-up failed: {error}"))
        return outcome

    async def start(self, job: JobSpec, lease: Leased, *, name: str) -> None:
        """See `Reattaches.start`."""
        steps = self._steps(job)
        async with self._at(lease, name) as there:
            await self._start(there, job, steps)

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
        """See `StartsAttached.start_attached`."""
        steps = self._steps(job)
        async with self._at(lease, name) as there:
            await self._start(there, job, steps)
            started()
            return await self._see_through(there, job, _Counted(output, 0), 0.0, artifacts)

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
        async with self._at(lease, name) as there:
            return await self._see_through(there, job, _Counted(output, offset), elapsed, artifacts)

    async def end(self, lease: Leased, *, name: str) -> None:
        """See `Reattaches.end`."""
        async with self._at(lease, name) as there:
            try:
                with anyio.fail_after(self._config.cleanup_timeout):
                    removed = await there.end()
            except TimeoutError as error:
                took = format_duration(self._config.cleanup_timeout)
                raise ConnectError(f"the clean-up took longer than {took}") from error
        self._runs.let_go(batch_of(name), name)
        if not removed.ok:
            raise ConnectError(f"{there.directory} could not be removed: {removed.account}")

    def _steps(self, job: JobSpec) -> StepsOfJob:
        """Admit a job.

        Raises:
            ConnectError: It cannot be run; says why.
        """
        try:
            found = steps_of(job, self._config.policy.policy)
            if self._config.step_runner is not None and (name := first_in_container(found)):
                raise ConnectError(
                    f"the step `{name}` has a container, which GitLab's step-runner would overlook;"
                    " leave step_runner out of [executors.steps]"
                )
        except PolicyRefused as error:
            remedy = _OWN_REMEDY if error.is_own else _REMEDIES.get(error.rule, _REMEDY)
            raise ConnectError(f"{error}; {remedy.format(rule=error.rule)}") from error
        except StepsInvalid as error:
            raise ConnectError(f"the job's steps cannot be read: {error}") from error
        except ValueError as error:
            raise ConnectError(f"the job's breakpoints: {error}") from error
        if found.policy is not None and self._config.step_runner is not None:
            raise ConnectError(
                "the job has a policy, which GitLab's step-runner does not know;"
                " leave step_runner out of [executors.steps]"
            )
        if found.breakpoints and self._config.step_runner is not None:
            raise ConnectError(
                "the job has breakpoints, which GitLab's step-runner does not know;"
                " leave step_runner out of [executors.steps]"
            )
        return found

    @asynccontextmanager
    async def _at(self, lease: Leased, name: str) -> AsyncIterator[There]:
        """Reach what there is of a try on its instance."""
        check_try(name)
        if not self._runs.manager:
            await to_thread.run_sync(self._claim)
        if self._runs.manager:
            await to_thread.run_sync(self._runs.hold, batch_of(name), name)
        async with lease.dial() as connection:
            if isinstance(connection, ReportsSystem) and connection.os == "windows":
                raise Unsupported(f"{lease.instance} runs Windows; use the executor instance there")
            if not isinstance(connection, RunsDetached):
                raise Unsupported(f"the connection to {lease.instance} cannot detach commands; use SSH")
            place = Place(self._runs.manager[:SHORT], lease.instance, lease.slot, "steps")
            with reported(lease.instance):
                async with service(connection, self._config, lease.instance, place.name_of(name)) as client:
                    yield There(
                        connection=connection,
                        client=client,
                        lease=lease,
                        place=place,
                        unit=name,
                        base=self._config.base,
                        runs=self._runs,
                        artifact_limit=self._config.artifact_limit,
                    )

    async def _start(self, there: There, job: JobSpec, steps: StepsOfJob) -> None:
        enter_phase("ready")
        if (slot := (there.place.instance, there.place.slot)) not in self._looked_at:
            await there.end_leftovers(self._config)
            self._looked_at.add(slot)
        patience = max(PREPARE_TIMEOUT, (job.timeout or math.inf) if job.files else 0)
        with anyio.move_on_after(patience) as scope:
            await there.start(job, steps, self._config.policy.policy.time_limit(job.timeout))
        if scope.cancelled_caught:
            raise Unreachable(f"the job was not begun within {format_duration(patience)}")

    async def _see_through(
        self, there: There, job: JobSpec, output: "_Counted", elapsed: float, artifacts: Path
    ) -> JobOutcome:
        """Follow a job to its end, and bring back what it has left."""
        enter_phase("run")
        limit = self._config.policy.policy.time_limit(job.timeout)
        timed_out = f"took longer than {format_duration(limit or 0)}"
        left = math.inf if limit is None else limit - max(0.0, elapsed) + GRACE
        try:
            followed = await self._followed(there, output, left, timed_out)
            if followed is None and await there.is_over():  # it ended by itself, and only its output took so long
                followed = await there.follow(output.size, output, timed_out=timed_out)
        except CommandLost:
            await there.keep_results(artifacts)
            raise
        if followed is None:
            with anyio.move_on_after(LAST_WORDS):
                await there.follow(output.size, output, timed_out=timed_out)
            followed = JobOutcome(verdict=Verdict.TIMED_OUT, why=timed_out), await there.result()
            await there.client.close(there.name)
        outcome, result = followed
        enter_phase("collect")
        if result is not None and is_followed():
            add_parts(parts_of(result))
        outcome = evolve(outcome.with_usage(usage_of(result)), steps=() if result is None else uses_of(result))
        return await there.bring_back(job, outcome, result, artifacts)

    async def _followed(
        self, there: There, output: "_Counted", left: float, timed_out: str
    ) -> tuple[JobOutcome, StepResult | None] | None:
        """Follow a job for so many seconds, in which those do not count for which it is held at breakpoints.

        What says for how long it was is on its instance, where a job may have put something else: so there is a limit.
        """
        policy = self._config.policy.policy
        longest = policy.held_at_most(LONGEST_TIMEOUT) if policy.breakpoints else 0.0
        began, held, shortest = anyio.current_time(), 0.0, 0.0
        while True:
            with anyio.move_on_after(max(shortest, left + held - (anyio.current_time() - began))):
                return await there.follow(output.size, output, timed_out=timed_out)
            shortest = LOOK_AGAIN
            before, held = held, min(await there.held_time(), longest)
            if held <= before or anyio.current_time() - began >= left + longest:
                return None

    async def _end_quietly(self, lease: Leased, name: str) -> None:
        """End a try of which nobody wants to know any more."""
        try:
            await self.end(lease, name=name)
        except (ConnectError, Unsupported) as error:
            log.warning("try_left", extra={"try": name, "error": str(error)})

    def _claim(self) -> None:
        """Learn which manager this is; without that, what killed ones have left stays where it is."""
        try:
            self._runs.claim()
        except OSError as error:
            if not self._unclaimed:
                log.warning("leftovers_stay", extra={"error": str(error)})
            self._unclaimed = True


@define
class _Counted:
    """Passes output on, and knows how much there was."""

    _output: Sink
    size: int

    async def __call__(self, chunk: bytes) -> None:
        """Pass it on."""
        await self._output(chunk)
        self.size += len(chunk)


def _ignore() -> None:
    """Hear that a job runs."""
