"""One job, from its admission to the last trace of it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
from anyio import to_thread
from attrs import define, evolve, field

from executor_docker._config import DockerConfig
from executor_docker._endpoint import daemon
from executor_docker._errors import DockerError, reported
from executor_docker._kept import Kept
from executor_docker._memory import Memory
from executor_docker._options import DockerOptions
from executor_docker._owner import UNIT, Labels, Owner, Unit
from executor_docker._remains import Wanted, clear
from executor_docker._rules import Admitted, admit
from executor_docker._streamed import run_in_time
from executor_docker._work import Work
from fleeting import Unreachable
from fleeting.connectors import Sink
from fleeting.plugins import format_duration
from fleeting_docker_engine import Engine, EngineRefused, EngineUnreachable
from taskscaler.executors import JobOutcome, JobSpec, Leased, enter_phase

HASTY_CLEANUP = 20.0
"""Seconds for which the clean-up after a cancelled job may hold up the cancellation."""


@define(eq=False)
class DockerExecutor:
    """Runs jobs in containers. One serves all slots at once."""

    _config: DockerConfig
    _owner: Owner = field(factory=Owner)
    """Whose containers they are; those of this user's managers."""

    def refusal(self, options: object) -> str:
        """See `taskscaler.executors.ForeseesRefusal`."""
        try:
            admit(self._config, _wishes(options))
        except DockerError as error:
            return str(error)
        return ""

    async def run(self, job: JobSpec, lease: Leased, *, output: Sink, artifacts: Path) -> JobOutcome:
        """See `Executor.run`. The time-out covers the upload of the files and the script, not what precedes it."""
        admitted = admit(self._config, _wishes(job.options))
        await to_thread.run_sync(self._owner.claim)
        with self._owner.at_work(job.name, lease.instance, lease.slot) as unit:
            async with self._engine_on(lease) as engine:
                enter_phase("ready")
                with reported(lease.instance, "an earlier job's leftovers cannot be removed"):
                    await clear(engine, self._owner.is_leftover)
                return await self._run(self._work(engine, admitted, job, unit, lease), output, artifacts)

    async def start(self, job: JobSpec, lease: Leased, *, name: str) -> None:
        """See `Reattaches.start`. The time-out covers the upload of the files, not what precedes it."""
        admitted = admit(self._config, _wishes(job.options))
        unit = await self._held(job, lease, name)
        async with self._engine_on(lease) as engine:
            enter_phase("ready")
            with reported(lease.instance, "an earlier job's leftovers cannot be removed"):
                await clear(engine, lambda found: self._owner.is_leftover(found) or self._owner.is_over(found, unit))
            await Kept(self._work(engine, admitted, job, unit, lease)).start()

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
        """See `Reattaches.attach`. A daemon that does not answer may be on its way up again: nothing is lost yet."""
        admitted = admit(self._config, _wishes(job.options))
        unit = await self._held(job, lease, name)
        async with AsyncExitStack() as stack:
            try:
                engine = await stack.enter_async_context(self._engine_on(lease))
            except DockerError as error:
                raise Unreachable(str(error)) from error
            kept = Kept(self._work(engine, admitted, job, unit, lease))
            return await kept.attach(offset, elapsed, output, artifacts)

    async def end(self, lease: Leased, *, name: str) -> None:
        """See `Reattaches.end`."""
        unit = await self._held(JobSpec(name="none", script=""), lease, name)
        self._owner.let_go(name)

        def is_over(found: Labels) -> bool:
            return found.get(UNIT) == name or self._owner.is_over(found, unit)

        async with self._engine_on(lease) as engine:
            if problems := await self._clean_up(engine, is_over, label=UNIT):
                raise DockerError(f"the job {name} may have left something on {lease.instance}: {problems[0]}")

    def _work(self, engine: Engine, admitted: Admitted, job: JobSpec, unit: Unit, lease: Leased) -> Work:
        memory = Memory(self._owner.directory() / "memory") if self._config.tailor_memory else None
        return Work(self._config, engine, admitted, job, unit, lease, memory)

    async def _held(self, job: JobSpec, lease: Leased, name: str) -> Unit:
        """Be at work for a try that outlives us."""
        return await to_thread.run_sync(self._owner.hold, name, job.name, lease.instance, lease.slot)

    @asynccontextmanager
    async def _engine_on(self, lease: Leased) -> AsyncIterator[Engine]:
        async with lease.dial() as connection, daemon(connection, self._config, lease.instance) as engine:
            yield engine

    async def _run(self, work: Work, output: Sink, artifacts: Path) -> JobOutcome:
        try:
            caches = await work.prepare(output)
            outcome = await run_in_time(work, output)
            outcome = await work.bring_back(outcome, artifacts, caches)
        except Unreachable:
            raise
        except BaseException:
            with anyio.move_on_after(HASTY_CLEANUP, shield=True):
                await self._clean_up(work.engine, lambda _: True, label=f"{UNIT}={work.unit.id}")
            raise
        warnings = await self._clean_up(work.engine, lambda _: True, label=f"{UNIT}={work.unit.id}")
        return evolve(outcome, warnings=(*outcome.warnings, *warnings))

    async def _clean_up(self, engine: Engine, unwanted: Wanted, *, label: str) -> tuple[str, ...]:
        """Leave nothing of a job. It has ended: what fails here is only reported, and found by the next job there."""
        limit = self._config.cleanup_timeout
        try:
            with anyio.fail_after(limit):
                await clear(engine, unwanted, label=label)
        except TimeoutError:
            return (f"the clean-up took longer than {format_duration(limit)}",)
        except (EngineRefused, EngineUnreachable) as error:
            return (f"the clean-up failed: {error}",)
        return ()


def _wishes(options: object) -> DockerOptions:
    return options if isinstance(options, DockerOptions) else DockerOptions()
