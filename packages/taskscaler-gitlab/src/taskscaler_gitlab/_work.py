"""One job of GitLab's, from when it was handed out until GitLab has its end, over any number of restarts."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing, suppress
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any, Protocol

import anyio
from anyio import to_thread
from attrs import define, evolve, field, frozen

from fleeting import Clock, ConnectError, FleetingError, Unreachable, Usage
from fleeting.errors import CommandLost, NameUnknown, SystemRefused
from fleeting.plugins import one_line
from gitlab_jobs import End, Job, Outcome, Phase, Report, Trace
from gitlab_jobs.client import GitLabClient, Reporting, reporting
from job_steps.usage import uses_of
from taskscaler import Lease, LeaseLost, NoCapacity, Taskscaler
from taskscaler.executors import Executor, MemoryLimit, StepUse
from taskscaler.tracing import SpanContext
from taskscaler.tracing import Trace as JobTrace
from taskscaler.uses import possible_steps, possible_usage
from taskscaler_gitlab._gate import Gate
from taskscaler_gitlab._record import JobDirectory, Record, Stage
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab._traces import Follows, followed_try
from taskscaler_gitlab.runner import (
    RecordUnreadable,
    abandon,
    has_begun,
    kept_log,
    memory_limit_of,
    run_job,
    stages_of,
    usage_of,
)
from taskscaler_gitlab.runner._record import read_results

FAREWELL = 10.0
"""Seconds that a job which is ended by us has to be ended on its instance."""

RETURN = 60.0
"""Seconds that an instance has to be there again on which something of a job is to be ended."""

_SYSTEM = Outcome(is_success=False, failure_reason="runner_system_failure")
_CANCELED = Outcome(is_success=False, failure_reason="job_canceled")
_REFUSED = Outcome(is_success=False, failure_reason="runner_configuration_error")
_INTERRUPTED = Outcome(is_success=False, failure_reason="runner_interrupted")

log = logging.getLogger("taskscaler.gitlab")


class Runs(Protocol):
    """How a job runs in its slot: see `taskscaler_gitlab.runner`."""

    async def run(
        self,
        job: Job,
        lease: Lease,
        reporting: Reporting,
        *,
        settings: RunnerSettings,
        executor: Executor,
        client: GitLabClient,
        clock: Clock,
        directory: Path,
        name: str,
    ) -> Outcome:
        """Run it, or go on with it."""
        ...

    async def abandon(self, executor: Executor, lease: Lease, *, directory: Path) -> None:
        """End what it has on its instance."""
        ...

    def kept_log(self, directory: Path) -> int:
        """How much of its log is there for good."""
        ...

    def has_begun(self, directory: Path) -> bool:
        """Whether anything of it may have run."""
        ...

    def usage_of(self, directory: Path) -> Usage:
        """What it has used."""
        ...

    def memory_limit_of(self, directory: Path) -> MemoryLimit | None:
        """How much memory it might have."""
        ...

    def stages_of(self, directory: Path) -> Mapping[str, float]:
        """How many seconds each of its stages took, by GitLab's names."""
        ...


class OwnRuns:
    """As this package runs jobs."""

    run = staticmethod(run_job)
    abandon = staticmethod(abandon)
    kept_log = staticmethod(kept_log)
    has_begun = staticmethod(has_begun)
    usage_of = staticmethod(usage_of)
    memory_limit_of = staticmethod(memory_limit_of)
    stages_of = staticmethod(stages_of)


async def _at_once(_: str) -> None:
    """Whoever has a slot reserved need not wait."""


@frozen(kw_only=True)
class Shop:
    """What all jobs of a runner share."""

    settings: RunnerSettings
    client: GitLabClient
    scaler: Taskscaler
    executor: Executor
    runs: Runs
    clock: Clock
    info: Mapping[str, Any]
    """What the runner says about itself."""

    outlives: bool
    """Whether jobs go on without us: the fleet's state is kept, and the executor joins what runs."""

    is_draining: Callable[[], bool]
    """Whether no slots are handed out any more, because the daemon is ending."""

    follows: Follows = field(factory=Follows)
    """How jobs are followed as traces."""

    gate: Gate = field(factory=Gate)
    """Where jobs wait whose rule has a ceiling."""

    cell: str = ""
    """Which of the runner's GitLabs they are from; empty: there is one."""

    admitted: Callable[[str], Awaitable[None]] = _at_once
    """Waits until the job with a key may have a slot; raises `NoCapacity` if no slots are handed out any more."""

    ended: Callable[[str], object] = field(default=lambda _: None)
    """Hears of the key of each job that needs no slot any more; to report its end may still take long."""

    @property
    def two_phase(self) -> bool:
        """Whether GitLab may keep a job for us until it can run."""
        return (self.info.get("features") or {}).get("two_phase_job_commit") is True


async def let_go(scaler: Taskscaler, key: str, end: Callable[[Lease], Awaitable[object]]) -> None:
    """Take up the lease of a job that is not resumed, end what the job left running there, and give the slot back.

    Args:
        scaler: Has the lease.
        key: The lease's; nothing happens if it is not detached.
        end: Ends what runs there.
    """
    if not any(each.key == key for each in scaler.detached):
        return
    try:
        lease = await scaler.reattach(key, timeout=RETURN)
    except FleetingError as error:  # it was lost, or its instance does not come back
        log.info("stray_gone", extra={"key": key, "why": one_line(str(error))})
        return
    try:
        await end(lease)
    finally:
        lease.release()


async def replaced(lease: Lease) -> None:
    """Have the instance replaced, because nobody can say what runs there."""
    lease.mark_suspect("a job that is not continued may run there")


async def end_there(runs: Runs, executor: Executor, lease: Lease, *, directory: Path) -> None:
    """Leave nothing of a job on its instance; where that is not certain, the instance is replaced."""
    with anyio.move_on_after(FAREWELL, shield=True):
        try:
            await runs.abandon(executor, lease, directory=directory)
        except Exception as error:
            if not isinstance(error, FleetingError | OSError):
                log.exception("job_not_ended", extra={"instance": lease.instance})
            lease.mark_suspect(f"a job may still run there: {one_line(str(error)) or type(error).__name__}")
        return
    lease.mark_suspect("a job may still run there: it did not end in time")


class _HandedBack(Exception):
    """Nothing of the job has run, and nothing will: the daemon ends for good."""

    kind = "handed_back"


class _NotOurs(Exception):
    """GitLab wants no more of the job, or gave it to somebody else."""

    kind = "revoked"


class _Failed(Exception):
    """The job cannot be run; says why, for its log."""


@define(eq=False)
class Work:
    """A job, and what becomes of it."""

    shop: Shop
    job: Job
    directory: JobDirectory
    record: Record
    is_ended_by: bool = True
    """Whether our executor can end it, as it is the one that began it."""

    wreck: str = ""
    """Why its files cannot be used, so that it cannot continue: it is ended, and reported; empty: they can."""

    end: End | None = field(default=None, init=False)
    """What became of its report; None: it is not over."""

    problem: str = field(default="", init=False)
    """Why it could not be seen to its end here; GitLab learns of it after a restart."""

    lease: Lease | None = field(default=None, init=False)
    """While it has a slot."""

    instance: str | None = field(default=None, init=False)
    """The last one that it had a slot on."""

    begun_at: float | None = field(default=None, init=False)
    """When it got that slot, in seconds since the epoch."""

    over_at: float | None = field(default=None, init=False)
    """When it was over here."""

    report: Reporting | None = field(default=None, init=False)
    """While GitLab is told about it."""

    usage: Usage = field(default=Usage(), init=False)
    """What it has used on its instances, as far as that is known, once it has ended."""

    memory_limit: MemoryLimit | None = field(default=None, init=False)
    """How much memory it might have, as far as that is known, once it has ended."""

    steps: Sequence[StepUse] = field(factory=tuple, init=False)
    """What each of its steps has used, as far as that is known, once it has ended."""

    stages: Mapping[str, float] = field(factory=dict, init=False)
    """Seconds that each of its stages took, by GitLab's names, as far as that is known, once it has ended."""

    interrupted: str = field(default="", init=False)
    """Why it is ended by us; empty: it is not."""

    trace: JobTrace | None = field(default=None, init=False)
    """See `Followed`."""

    over: anyio.Event = field(factory=anyio.Event, init=False)
    """Set once it is over, left to the next daemon, or stuck."""

    _unwanted: anyio.Event = field(factory=anyio.Event, init=False)
    """Set once it is not to wait for its slot any more, because there will be none."""

    _scope: anyio.CancelScope | None = field(default=None, init=False)
    """Around what ends when it is interrupted."""

    _place: int | None = field(default=None, init=False)

    @property
    def try_name(self) -> str:
        """Names the try that is under way among all that run on instances."""
        return f"{self.record.prefix}-{self.record.tries}"

    @property
    def name(self) -> str:
        """See `Followed.name`."""
        return self.directory.path.name

    @property
    def context(self) -> SpanContext | None:
        """See `Followed.context`: the job is there as GitLab described it."""
        return None

    @property
    def clock(self) -> Clock:
        """See `Followed.clock`."""
        return self.shop.clock

    @property
    def scaler(self) -> Taskscaler:
        """See `Followed.scaler`."""
        return self.shop.scaler

    @property
    def outlives(self) -> bool:
        """See `Followed.outlives`."""
        return self.shop.outlives

    @property
    def log(self) -> Path | None:
        """Its log here; None: it is not kept any more."""
        return self.directory.trace if self.directory.path.exists() else None

    @property
    def account(self) -> Sequence[str]:
        """What an explanation says of it beyond what it says of every job: its rule, how much of its log is sent."""
        dispatched = (self.record.dispatched,) if self.record.dispatched else ()
        if self.report is None:
            return dispatched
        trace = self.report.report.trace
        return (*dispatched, f"GitLab has {trace.sent} of the {trace.size} bytes of its log")

    async def see_through(self) -> None:
        """See it to its end, or as far as this process goes; whatever goes wrong is its own."""
        with self.shop.follows.job(self):
            await self._seen_through()

    async def _seen_through(self) -> None:
        try:
            await self._see_through()
        except Exception as error:
            log.exception("job_stuck", extra={"job": self.job.id})
            self.problem = str(SystemRefused(error)) if isinstance(error, OSError) else self._reason(error)
            await self._leave_nothing()
        finally:
            self.report = None
            self.over_at = self.shop.clock.now()
            self.over.set()

    @staticmethod
    def _reason(error: Exception) -> str:
        """Why it failed, for whoever has no business with this machine's files."""
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        return one_line(str(error)) or type(error).__name__

    async def _leave_nothing(self) -> None:
        """Leave neither its commands nor, once GitLab knows its end, its token, after a failure that nobody foresaw."""
        try:
            await self._let_go()
            if self.report is not None and self.report.report.end is not None:
                self.end = self.report.report.end
                self.record = self.record.ended(_SYSTEM, is_canceling=False)
                await to_thread.run_sync(self.directory.end)
        except Exception:
            log.exception("job_stuck", extra={"job": self.job.id})

    def interrupt(self, why: str) -> None:
        """End it: its commands end, and GitLab learns that its runner did that; nothing happens if it is over."""
        if not self.interrupted and self.record.stage is not Stage.ENDED:
            self.interrupted = why
            if self._scope is not None:
                self._scope.cancel()

    def hand_back(self) -> None:
        """Wait no longer for a slot, if the fleet hands out none any more and nothing of it has run."""
        self._unwanted.set()
        self.shop.gate.wake(self.record.key)

    # --- towards GitLab ----------------------------------------------------------------------------------

    async def _see_through(self) -> None:
        with closing(await self._opened()) as spool:
            trace = Trace(limit=self.shop.settings.output_bytes, spool=spool)
            resume = self._resumed if self.wreck or self.record.stage is not Stage.TAKEN else None
            async with reporting(self.shop.client, self.job, info=self.shop.info, trace=trace, resume=resume) as report:
                self.report = report
                try:
                    await self._ended(report, await self._outcome(report))
                except _HandedBack:
                    await self._give_to_others(report)
                except _NotOurs:
                    await self._let_go()
                except anyio.get_cancelled_exc_class():
                    report.hand_over()
                    raise
            self.end = report.report.end
        await to_thread.run_sync(self.directory.end)

    async def _give_to_others(self, report: Reporting) -> None:
        """Let GitLab give it to another runner; one that is ours already fails, with a reason that can be retried."""
        if report.report.phase is Phase.PREPARING:
            await report.leave()
            return
        report.note("\n\x1b[31;1mERROR: Job failed (system failure): its runner was drained before there was a slot")
        report.note(" for it\x1b[0;m\n")
        await self._ended(report, _SYSTEM)

    async def _opened(self) -> FileIO | BytesIO:
        """Open its log; one that cannot be used is begun in memory, and ends the job, whose log would not be whole."""
        try:
            is_whole = self.wreck or self.record.stage is Stage.ENDED
            kept = None if is_whole else await to_thread.run_sync(self.shop.runs.kept_log, self.directory.path)
            return await to_thread.run_sync(self.directory.open_trace, kept)
        except Exception as error:
            if not isinstance(error, OSError):
                log.exception("job_unreadable", extra={"job": self.job.id})
            self.wreck = self.wreck or self._reason(error)
            return BytesIO()

    def _resumed(self, trace: Trace, now: float) -> Report:
        """The report as it was before a restart; of what is wrecked, nobody knows whether it was claimed."""
        is_ended = self.record.stage is Stage.ENDED
        return Report(
            trace,
            now,
            two_phase=self.shop.two_phase,
            phase=Phase.FINISHING if is_ended else Phase.CLAIMING if self.wreck else Phase.RUNNING,
            outcome=self.record.outcome,
            is_canceling=self.record.is_canceling,
        )

    async def _ended(self, report: Reporting, outcome: Outcome) -> None:
        """Note down how it ended, and tell GitLab, which is to know it also if it cannot be noted down."""
        await self._look_up()
        if self.record.stage is not Stage.ENDED:
            report.end_log()
            record = self.record.ended(outcome, is_canceling=report.canceling.is_set())
            try:
                await self._note(record)
            except OSError as error:
                log.warning("end_not_noted_down", extra={"job": self.job.id, "error": str(SystemRefused(error))})
                self.record = record
            self.shop.ended(record.key)
        await report.finish(outcome)

    async def _look_up(self) -> None:
        """Learn what it has used, and when; of a job whose files cannot be read, nothing is known."""
        runs, place = self.shop.runs, self.directory.path
        seconds = self.shop.clock.now() - self.record.taken_at
        if (result := await to_thread.run_sync(read_results, self.directory.results)) is not None:
            self.steps = possible_steps(uses_of(result), seconds)
        with suppress(RecordUnreadable, OSError):
            self.usage = possible_usage(await to_thread.run_sync(runs.usage_of, place), seconds)
            self.memory_limit = await to_thread.run_sync(runs.memory_limit_of, place)
            self.stages = await to_thread.run_sync(runs.stages_of, place)

    async def _outcome(self, report: Reporting) -> Outcome:
        """Run it; what keeps it from being run is told in its log.

        Raises:
            _NotOurs: GitLab wants no more of it.
            _HandedBack: Somebody else is to run it.
        """
        if self.record.outcome is not None:
            await self._let_go()  # its slot, if we were killed before that was given back
            return self.record.outcome
        if self.record.refusal:
            report.note(f"\x1b[31;1mERROR: Job failed: this runner does not run it: {self.record.refusal}\x1b[0;m\n")
            return _REFUSED
        try:
            outcome = await self._wrecked() if self.wreck else await self._interruptible(report)
        except (_NotOurs, _HandedBack):
            raise
        except Exception as error:  # noqa: BLE001  (logged there, unless it was foreseen)
            report.note(f"\n\x1b[31;1mERROR: Job failed (system failure): {await self._failed(error)}\x1b[0;m\n")
            return _SYSTEM
        if outcome is not None:
            return outcome
        report.note(f"\n\x1b[31;1mERROR: {self.interrupted}\x1b[0;m\n")
        return _INTERRUPTED

    async def _wrecked(self) -> Outcome:
        """End what it has left running.

        Raises:
            _Failed: Always, with the reason.
        """
        await self._let_go()
        raise _Failed(f"what its runner noted down cannot be used ({self.wreck})")

    async def _failed(self, error: Exception) -> str:
        """Why it cannot be run; of a failure that nobody foresaw, the job alone ends."""
        if isinstance(error, _Failed):
            return str(error)
        if isinstance(error, RecordUnreadable):
            log.error("job_unreadable", extra={"job": self.job.id, "error": one_line(str(error))})
        else:
            log.error("job_failed_unexpectedly", exc_info=error, extra={"job": self.job.id})
        await self._let_go()
        return f"the runner failed unexpectedly ({type(error).__name__})"

    async def _interruptible(self, report: Reporting) -> Outcome | None:
        """Run it; None if it was interrupted."""
        with anyio.CancelScope() as self._scope:
            if self.interrupted:
                return None
            return await self._run(report)
        return None

    async def _note(self, record: Record) -> None:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(self.directory.note, record)
        self.record = record

    # --- on the fleet ------------------------------------------------------------------------------------

    async def _run(self, report: Reporting) -> Outcome:
        """Place it until it has run, at most so often as the settings say.

        Raises:
            _Failed: Why it cannot be run, or what became of it is unknown.
        """
        while True:
            with followed_try(self) as tried:
                lease = await self._unless_unwanted(report, self._slot)
                if lease is None:
                    return tried.ended(_CANCELED)
                try:
                    return tried.ended(await self._on(lease, report))
                except (LeaseLost, Unreachable, CommandLost, NameUnknown) as error:
                    tried.error = "lost"
                    await self._place_again(lease, error)
                except ConnectError as error:
                    raise _Failed(f"it cannot be run on {lease.instance}: {one_line(str(error))}") from error

    async def _unless_unwanted(self, report: Reporting, get: Callable[[], Awaitable[Lease]]) -> Lease | None:
        """Wait for a slot; None if GitLab wants the job to end before there is one.

        Raises:
            _NotOurs: GitLab wants no more of it.
        """
        lease: Lease | None = None
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:

            async def heed(event: anyio.Event) -> None:
                await event.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(heed, report.over)
            tasks.start_soon(heed, report.canceling)
            try:
                lease = await get()
            except Exception as error:  # noqa: BLE001  (raised again below, by itself)
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if report.over.is_set():
            if lease is not None:
                lease.release()
            raise _NotOurs
        return lease

    async def _slot(self) -> Lease:
        """The slot that it had before a restart, or a new one."""
        scaler, key = self.shop.scaler, self.record.key
        try:
            if any(each.key == key for each in scaler.detached):
                return await scaler.reattach(key)
            if await self._has_begun():
                raise _Failed("its instance was lost while the runner was away")
            return await self._acquired()
        except LeaseLost as error:
            if await self._has_begun():
                raise _Failed(f"its instance was lost while the runner was away ({error.loss})") from error
            return await self._acquired()
        except NoCapacity as error:
            if self.shop.is_draining():
                if await self._has_begun():
                    await anyio.sleep_forever()  # until it is left to the next daemon
                await self._unwanted.wait()
                raise _HandedBack from error
            raise _Failed(f"there was no instance for it in time ({one_line(str(error))})") from error

    async def _acquired(self) -> Lease:
        """A new slot, of the pools that its rule allows, once no more jobs run by it than may. Raises as `_slot`."""
        scaler, record = self.shop.scaler, self.record
        if gone := [pool for pool in record.pools if pool not in scaler.groups]:
            raise _Failed(f"the rule {record.rule!r} sent it to the pool {gone[0]}, which the fleet has no more")
        await self.shop.admitted(record.key)
        await self.shop.gate.turn(record.rule, record.key, scaler)
        if self._unwanted.is_set():
            raise _HandedBack
        return await scaler.acquire_lease(
            record.key, persistent=self.shop.outlives, place=self._place, pools=record.pools or None
        )

    async def _has_begun(self) -> bool:
        """Whether anything of it may have run."""
        return await to_thread.run_sync(self.shop.runs.has_begun, self.directory.path)

    async def _on(self, lease: Lease, report: Reporting) -> Outcome:
        """Run it in its slot, and give that back; one that is left goes on there."""
        self.lease, self.instance, self._place = lease, lease.instance, lease.place
        self.begun_at = self.shop.clock.now()
        try:
            async with lease.unless_lost():
                if self.record.stage is Stage.TAKEN:
                    if not await report.claim():
                        raise _NotOurs
                    await self._note(evolve(self.record, stage=Stage.CLAIMED))
                return await self.shop.runs.run(
                    self.job,
                    lease,
                    report,
                    settings=self.shop.settings,
                    executor=self.shop.executor,
                    client=self.shop.client,
                    clock=self.shop.clock,
                    directory=self.directory.path,
                    name=self.try_name,
                )
        except Unreachable as error:
            if not lease.cut_off:  # what should have answered there does not, and the next try must not meet it again
                lease.mark_suspect(str(error))
            raise
        except (LeaseLost, ConnectError, CommandLost, NameUnknown, _NotOurs):
            raise
        except Exception as error:
            log.exception("job_failed_unexpectedly", extra={"job": self.job.id})
            await self._end_there(lease)
            raise _Failed(f"the runner failed unexpectedly ({type(error).__name__})") from error
        except anyio.get_cancelled_exc_class():
            if self.interrupted or not self.shop.outlives:
                await self._end_there(lease)
            else:
                lease.detach()
            raise
        finally:
            self.lease = None
            lease.release()

    async def _end_there(self, lease: Lease) -> None:
        """Leave nothing of it on its instance."""
        if not self.is_ended_by:
            await replaced(lease)
            return
        await end_there(self.shop.runs, self.shop.executor, lease, directory=self.directory.path)

    async def _let_go(self) -> None:
        """End what an earlier manager, or a failure, has left of it on an instance, and give that slot back."""
        await let_go(self.shop.scaler, self.record.key, self._end_there)

    async def _place_again(self, lease: Lease, error: Exception) -> None:
        """Begin again elsewhere, if nothing of it ran.

        Raises:
            _Failed: Something did, or it was placed often enough.
        """
        why = str(error.loss) if isinstance(error, LeaseLost) else one_line(str(error))
        if await self._has_begun():
            raise _Failed(f"its instance {lease.instance} was lost while it ran ({why})") from error
        if self.record.tries >= self.shop.settings.taskscaler.placements:
            raise _Failed(f"{self.record.tries} instances were lost before it could run ({why})") from error
        log.warning("job_placed_again", extra={"job": self.job.id, "instance": lease.instance, "why": why})
        await to_thread.run_sync(self.directory.forget_try)
        await self._note(evolve(self.record, tries=self.record.tries + 1))
