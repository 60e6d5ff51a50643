"""One try at a job of a batch, on a slot that it was given: its log, its artifacts, and how it ended."""

import logging
import shutil
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, closing
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
from anyio import to_thread
from anyio.lowlevel import checkpoint_if_cancelled
from attrs import define, evolve, field

from fleeting import Clock, ConnectInfo, Unreachable
from fleeting.errors import SystemRefused
from fleeting.plugins import one_line
from taskscaler.batch._addresses import Addresses
from taskscaler.batch._events import Ended, GivenUp, Started
from taskscaler.batch._history import History
from taskscaler.batch._job import Job
from taskscaler.batch._job_state import JobState
from taskscaler.batch._log import JobLog
from taskscaler.batch._results import Results
from taskscaler.executors import Executor, JobOutcome, Leased
from taskscaler.executors._errors import documented, named

log = logging.getLogger("taskscaler.batch")


class Slot(Leased, Protocol):
    """The part of a lease that a batch needs: what its executors do, and the instance's pool and addresses."""

    @property
    def pool(self) -> str:
        """Name of the instance's pool."""
        ...

    @property
    def place(self) -> int:
        """Where in the scaler's queue it was served from."""
        ...

    async def connect_info(self) -> ConnectInfo:
        """How to connect to the instance; raises `Unreachable` if that is unknown."""
        ...

    def mark_suspect(self, why: str) -> None:
        """Say that something is wrong with the instance: it is to get no new work."""
        ...


@define
class Tries:
    """Tries at the jobs of a batch. Whatever goes wrong with one is that one's own."""

    _history: History
    _results: Results
    _executors: Mapping[str, Executor]
    _clock: Clock
    _log_internal_ip: bool
    _log_external_ip: bool
    stopped: bool = field(default=False, init=False)
    """Whether tries that are lost from now on were ended by us."""

    _addresses: dict[str, Addresses] = field(factory=dict, init=False)
    """Of the instances that the jobs were last tried on."""

    def forget(self, job: Job) -> None:
        """Keep nothing of a job that is over."""
        self._addresses.pop(job.name, None)

    async def run(self, lease: Slot, job: Job) -> None:
        """Run the job; whatever goes wrong with that is this try's own."""
        event = Started(at=self._clock.now(), job=job.name, pool=lease.pool, instance=lease.instance, slot=lease.slot)
        with closing(JobLog(job.log_limit, Addresses())) as output:
            try:
                await self._history.commit(event, then=partial(output.open_at, self._results.log(job.name)))
            except OSError as error:
                why = _unwritten("begun", error)
                self._history.put(GivenUp(at=self._clock.now(), jobs=(job.name,), state=JobState.CANCELLED, why=why))
            else:
                await self._run_recorded(lease, job, output)

    async def _run_recorded(self, lease: Slot, job: Job, output: JobLog) -> None:
        """Run a job whose start was written down."""
        try:
            await self._run_begun(lease, job, output)
        except Unreachable:
            raise
        except Exception as error:
            why = f"the try on instance {lease.instance} failed unexpectedly ({named(error)})"
            log.exception("try_failed", extra={"job": job.name, "instance": lease.instance})
            await checkpoint_if_cancelled()  # what fails because the slot was taken away is no fault of the instance
            lease.mark_suspect(f"a job failed there unexpectedly: {named(error)}")
            await self.lost(job, why)
        except BaseExceptionGroup as group:  # trio's tasks raise what fails together with the cancellation
            if not isinstance(group.split(anyio.get_cancelled_exc_class())[1], ExceptionGroup):
                raise
            log.exception("try_failed", extra={"job": job.name, "instance": lease.instance})
            await checkpoint_if_cancelled()
            raise

    async def _run_begun(self, lease: Slot, job: Job, output: JobLog) -> None:
        record = self._history.state[job.name]
        artifacts, earlier = self._results.artifacts(job.name), record.retried_attempts
        if earlier:
            await to_thread.run_sync(partial(shutil.rmtree, artifacts, ignore_errors=True))
        addresses = output.addresses = await self._look_up_addresses(lease, job)
        if earlier and earlier[-1].interrupted:  # nobody was there to say it in time
            await output.remark(earlier[-1].why)
        if addresses.shown:
            await output.remark(f"runs on {lease.instance} ({', '.join(addresses.shown)})")
        result = await self._execute(lease, job, output, artifacts)
        await self._end(_ended(job, result, now=self._clock.now()))
        await output.remark(*record.warnings, record.why)

    async def _execute(self, lease: Slot, job: Job, output: JobLog, artifacts: Path) -> JobOutcome | str:
        """Run it; returns what came of it, or why it could not be run."""
        try:
            outcome = await self._executors[job.executor].run(job.spec, lease, output=output.write, artifacts=artifacts)
        except Exception as raised:
            match documented(raised):
                case None:
                    raise
                case Unreachable() as error:
                    raise error from raised.__cause__
                case OSError() as error:
                    return str(SystemRefused(error))
                case error:
                    return str(error)
        if output.problem:
            return evolve(outcome, warnings=(*outcome.warnings, f"its log is incomplete: {output.problem}"))
        return outcome

    async def lost(self, job: Job, why: str, *, preempted: bool = False) -> None:
        """Take the loss of the job's slot or try, unless the job was over by then, or had not begun."""
        if self._history.state[job.name].state is not JobState.RUNNING:
            return
        event = Ended(at=self._clock.now(), job=job.name, state=JobState.LOST, why=one_line(why), preempted=preempted)
        if self.stopped:
            event = evolve(event, state=JobState.CANCELLED, why="the batch was stopped", preempted=False)
        await self._end(event)
        async with self._open_log(job) as output:
            await output.remark(self._history.state[job.name].attempts[-1].why)

    async def _look_up_addresses(self, lease: Slot, job: Job) -> Addresses:
        info = await lease.connect_info()
        addresses = Addresses.of(info, internal=self._log_internal_ip, external=self._log_external_ip)
        self._addresses[job.name] = addresses
        return addresses

    def _open_log(self, job: Job) -> AbstractAsyncContextManager[JobLog]:
        return JobLog.open(self._results.log(job.name), job.log_limit, self._addresses.get(job.name, Addresses()))

    async def _end(self, event: Ended) -> None:
        """End a try. If that cannot be written, the job is cancelled: it has its chance when the batch is resumed."""
        leaves = (self._results.log(event.job), self._results.artifacts(event.job))
        try:
            await self._history.commit(event, leaves=leaves)
        except OSError as error:
            why = _unwritten("ended", error)
            self._history.put(Ended(at=event.at, job=event.job, state=JobState.CANCELLED, why=why))


def _ended(job: Job, result: JobOutcome | str, *, now: float) -> Ended:
    """How a try ended: with what came of it, or why it could not be run."""
    if isinstance(result, str):
        return Ended(at=now, job=job.name, state=JobState.FAILED, why=one_line(result))
    return Ended(
        at=now,
        job=job.name,
        state=JobState(result.verdict.value),
        exit_code=result.exit_code,
        why=result.why,
        cpu_time=result.cpu_time,
        peak_memory=result.peak_memory,
        warnings=tuple(result.warnings),
    )


def _unwritten(what: str, error: OSError) -> str:
    return f"that it has {what} could not be written down: {SystemRefused(error)}"
