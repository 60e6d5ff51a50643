"""One try at a job of a batch, on a slot that it was given: its log, its artifacts, and how it ended."""

import logging
import shutil
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, closing
from functools import partial
from typing import Protocol

import anyio
from anyio import to_thread
from anyio.lowlevel import checkpoint_if_cancelled
from attrs import define, evolve, field

from fleeting import Clock, ConnectError, ConnectInfo, Unreachable, Unsupported
from fleeting.errors import CommandLost, NameUnknown, SystemRefused
from fleeting.plugins import one_line
from taskscaler._use_meter import UseMeter
from taskscaler._uses import dearest, possible_steps, possible_usage
from taskscaler.batch._addresses import Addresses
from taskscaler.batch._events import Ended, GivenUp, Joined, Started
from taskscaler.batch._followed import traced
from taskscaler.batch._history import History
from taskscaler.batch._job import Job
from taskscaler.batch._job_state import JobState
from taskscaler.batch._log import JobLog
from taskscaler.batch._outliving import Durations, Outliving, try_name
from taskscaler.batch._results import Results
from taskscaler.executors import Executor, JobOutcome, Leased, Reattaches
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

    @property
    def persistent(self) -> bool:
        """Whether it may be left to a later process."""
        ...

    @property
    def cut_off(self) -> bool:
        """Whether a connection to the instance died, or could not be made: then its scaler looks into that."""
        ...

    def mark_suspect(self, why: str) -> None:
        """Say that something is wrong with the instance: it is to get no new work."""
        ...

    def detach(self) -> None:
        """Let go of it without giving it back; only if it is persistent."""
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
    _uses: UseMeter | None = None
    """Counts what they use; None: nobody looks."""

    stopped: str = field(default="", init=False)
    """Why tries that are lost from now on were ended by us; empty: they were not."""

    left: bool = field(default=False, init=False)
    """Whether tries that outlive this process are not ended with it."""

    _durations: Durations = field(factory=Durations, init=False)
    _addresses: dict[str, Addresses] = field(factory=dict, init=False)
    """Of the instances that the jobs were last tried on."""

    def forget(self, job: Job) -> None:
        """Keep nothing of a job that is over."""
        self._addresses.pop(job.name, None)

    async def run(self, lease: Slot, job: Job) -> None:
        """Run the job; whatever goes wrong with that is this try's own."""
        unreachable = None
        with closing(JobLog(job.log_limit, Addresses())) as output:
            try:
                output.addresses = await self._look_up_addresses(lease, job)
            except Unreachable as error:  # is this try's own, too
                unreachable = error
            open_log = partial(
                output.open_at, self._results.log(job.name), fresh=not self._history.state[job.name].attempts
            )
            opened = await self._write_first_words(lease, job, output, open_log)
            event = Started(
                at=self._clock.now(),
                job=job.name,
                pool=lease.pool,
                instance=lease.instance,
                slot=lease.slot,
                detached=self.outlive(job),
                logged=output.total,
            )
            if await self._write_down(event, job, "begun", None if opened else open_log):
                await self._recorded(lease, job, partial(self._run_begun, lease, job, output, unreachable))

    async def join(self, lease: Slot, job: Job) -> None:
        """Go on with the last try at the job, which an earlier command began and which ran on."""
        with closing(JobLog(job.log_limit, Addresses())) as output:
            open_log = partial(output.open_at, self._results.log(job.name))
            if await self._write_down(Joined(at=self._clock.now(), job=job.name), job, "joined", open_log):
                await self._recorded(lease, job, partial(self._go_on, lease, job, output))

    async def end_last(self, lease: Slot, job: Job) -> None:
        """Leave nothing of the last try at a job where it ran, if it was one that outlives its command."""
        last = self._history.state[job.name].last_attempt
        if last and last.detached and (outliving := self._outliving(lease, job)):
            await outliving.end()

    def leaves(self, lease: Slot, job: Job) -> bool:
        """Whether the try at a job that is cancelled now goes on in its slot."""
        if not (self.left and lease.persistent and self._history.state[job.name].state is JobState.RUNNING):
            return False
        last = self._history.state[job.name].last_attempt
        return last is not None and last.detached

    def outlive(self, job: Job) -> bool:
        """Whether tries at the job outlive the command, where the instance can do that."""
        if not self._history.state.id or not isinstance(self._executors[job.executor], Reattaches):
            return False
        return self._durations.outlive(job, self._group_of(job))

    def _group_of(self, job: Job) -> str:
        state = self._history.state
        return state.plan.like(state[job.name].number).group

    async def _write_down(
        self, event: Started | Joined, job: Job, what: str, then: Callable[[], object] | None
    ) -> bool:
        """Write down that a try begins, or goes on; if that cannot be done, it does not."""
        try:
            await self._history.commit(event, then=then)
        except OSError as error:
            why = _unwritten(what, error)
            self._history.put(GivenUp(at=self._clock.now(), jobs=(job.name,), state=JobState.CANCELLED, why=why))
            return False
        return True

    async def _write_first_words(self, lease: Slot, job: Job, output: JobLog, open_log: Callable[[], None]) -> bool:
        """Open the log if a try adds to it, and write what is ours; what comes after that is the job's alone.

        Returns:
            Whether it was opened: a log that does not exist yet is opened when the start is written down.
        """
        earlier, shown = self._history.state[job.name].attempts, output.addresses.shown
        if not (earlier or shown):
            return False
        await to_thread.run_sync(open_log)
        last = earlier[-1] if earlier else None
        if last and last.interrupted and (output.total or not last.detached):  # nobody was there to say it in time
            await output.remark(last.why)
        if shown:
            await output.remark(f"runs on {lease.instance} ({', '.join(shown)})")
        return True

    async def _recorded(self, lease: Slot, job: Job, run: Callable[[], Awaitable[None]]) -> None:
        """Run a job whose start was written down."""
        try:
            await run()
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

    async def _run_begun(self, lease: Slot, job: Job, output: JobLog, unreachable: Unreachable | None) -> None:
        if unreachable:
            raise unreachable
        record, artifacts = self._history.state[job.name], self._results.artifacts(job.name)
        if record.retried_attempts:
            await to_thread.run_sync(partial(shutil.rmtree, artifacts, ignore_errors=True))
        outliving = self._outliving(lease, job) if record.attempts[-1].detached else None
        if outliving:
            await self._see_out(lease, outliving, output, partial(outliving.run, output, record.logged))
        else:
            run = self._executors[job.executor].run
            await self._finish(
                lease, job, output, partial(run, traced(job.spec), lease, output=output.write, artifacts=artifacts)
            )

    async def _go_on(self, lease: Slot, job: Job, output: JobLog) -> None:
        record = self._history.state[job.name]
        if (outliving := self._outliving(lease, job)) is None:
            raise ConnectError(f"the executor {job.executor} does not reattach jobs")

        async def go_on() -> JobOutcome:
            artifacts = self._results.artifacts(job.name)
            await to_thread.run_sync(partial(shutil.rmtree, artifacts, ignore_errors=True))
            output.addresses = await self._look_up_addresses(lease, job)
            await to_thread.run_sync(output.go_on, record.logged)
            elapsed = max(0.0, self._clock.now() - record.attempts[-1].started)
            return await outliving.go_on(output, record.logged, began=anyio.current_time() - elapsed)

        await self._see_out(lease, outliving, output, go_on)

    def _outliving(self, lease: Slot, job: Job) -> Outliving | None:
        """Give the last try at a job, if its executor reattaches."""
        executor, state = self._executors[job.executor], self._history.state
        if not isinstance(executor, Reattaches):
            return None
        name = try_name(state.id, job.name, len(state[job.name].attempts))
        return Outliving(executor, lease, job, name, self._results.artifacts(job.name))

    async def _see_out(
        self, lease: Slot, outliving: Outliving, output: JobLog, run: Callable[[], Awaitable[JobOutcome]]
    ) -> None:
        """See a try to its end; nothing is left of it there once its end is written down, or it is cancelled.

        Only one that goes on without us is left as it is.
        """
        try:
            await self._finish(lease, outliving.job, output, run)
        finally:
            if not self.leaves(lease, outliving.job):
                await outliving.end()

    async def _finish(self, lease: Slot, job: Job, output: JobLog, run: Callable[[], Awaitable[JobOutcome]]) -> None:
        """Run it, and write down what came of it."""
        record = self._history.state[job.name]
        try:
            result = await self._execute(run, output)
        except Unreachable as error:
            if self.leaves(lease, job):  # whether it has begun or not, it is not lost: who comes next looks there
                await checkpoint_if_cancelled()
            if not lease.cut_off:  # what should have answered there does not, and the next try must not meet it again
                lease.mark_suspect(str(error))
            raise
        except (CommandLost, NameUnknown, Unsupported) as error:
            last = record.attempts[-1]
            ran_on = last.run != self._history.state.run
            await self.lost(
                job, f"what became of it on instance {last.instance} is unknown ({_said(error)})", ran_on=ran_on
            )
        else:
            now = self._clock.now()
            if isinstance(result, JobOutcome):
                result = _possible(result, now - record.attempts[-1].started)
            await self._end(_ended(job, result, now=now))
            if self._uses is not None and isinstance(result, JobOutcome):
                self._uses.ended(result.usage, limit=result.memory_limit, steps=result.steps)
            self._durations.learn(self._group_of(job), record.attempts[-1].duration)
            await output.remark(*record.warnings, record.why)

    async def _execute(self, run: Callable[[], Awaitable[JobOutcome]], output: JobLog) -> JobOutcome | str:
        """Run it; returns what came of it, or why it could not be run."""
        try:
            outcome = await run()
        except Exception as raised:
            match documented(raised):
                case None:
                    raise
                case Unreachable() | CommandLost() | NameUnknown() as error:
                    raise error from raised.__cause__
                case OSError() as error:
                    return str(SystemRefused(error))
                case error:
                    return str(error)
        if output.problem:
            return evolve(outcome, warnings=(*outcome.warnings, f"its log is incomplete: {output.problem}"))
        return outcome

    async def lost(self, job: Job, why: str, *, preempted: bool = False, ran_on: bool = False) -> None:
        """Take the loss of the job's slot or try, unless the job was over by then, or had not begun.

        Args:
            job: The job.
            why: In a few words.
            preempted: Whether the cloud had announced it.
            ran_on: Whether it was lost while no command watched it.
        """
        if self._history.state[job.name].state is not JobState.RUNNING:
            return
        event = Ended(
            at=self._clock.now(),
            job=job.name,
            state=JobState.LOST,
            why=one_line(why),
            preempted=preempted,
            interrupted=ran_on,
        )
        if self.stopped:
            event = Ended(at=event.at, job=job.name, state=JobState.CANCELLED, why=self.stopped)
        await self._end(event)
        if not ran_on:  # else the next try says it
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


def _possible(outcome: JobOutcome, seconds: float) -> JobOutcome:
    """Leave out what no job can have used that took so long."""
    steps = possible_steps(outcome.steps, seconds)
    return evolve(outcome.with_usage(possible_usage(outcome.usage, seconds)), steps=steps)


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
        disk_written=result.disk_written,
        memory_limit=result.memory_limit,
        steps=dearest(result.steps),
        warnings=tuple(result.warnings),
    )


def _said(error: CommandLost | NameUnknown | Unsupported) -> str:
    match error:
        case CommandLost():
            return error.why
        case NameUnknown():
            return "nothing is known of it there"
        case _:
            return str(error)


def _unwritten(what: str, error: OSError) -> str:
    return f"that it has {what} could not be written down: {SystemRefused(error)}"
