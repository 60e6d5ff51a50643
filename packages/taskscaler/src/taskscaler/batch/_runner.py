"""Runs a batch: every job waits for a slot of its own, runs there, and is tried again if the instance is lost."""

import logging
import math
from collections.abc import AsyncIterator, Container, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Protocol

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from fleeting import Clock, Unreachable
from fleeting.config import path_like
from fleeting.events import LossKind
from fleeting.plugins import format_duration, span
from taskscaler._errors import LeaseLost, NoCapacity, NotDetached
from taskscaler._use_meter import UseMeter
from taskscaler._wording import MOST_NAMED, counted, enumerated
from taskscaler.batch._arguments import check_batch
from taskscaler.batch._event_log import EventLog
from taskscaler.batch._events import Ended, GivenUp, Over
from taskscaler.batch._followed import Following, followed_try, following_of
from taskscaler.batch._graph import Front
from taskscaler.batch._history import History, Observer
from taskscaler.batch._job import Job
from taskscaler.batch._job_state import JobState
from taskscaler.batch._results import Results
from taskscaler.batch._state import BatchState, JobChanged
from taskscaler.batch._tries import Slot, Tries
from taskscaler.executors import Executor

PATIENCE = 900.0
"""Seconds for which nothing at all may run while jobs wait, as GitLab's `instance_acquire_timeout`."""


MOST_WAITING = 10_000
"""Jobs that wait at the scaler at once, unless less is said. So many are more than a fleet is
asked to grow for in one step, and few enough to be cancelled at once."""

NOT_SELECTED = "not selected in this run"
"""Why jobs wait for a later run if this one is to run only some."""

_BAD = frozenset({JobState.FAILED, JobState.TIMED_OUT, JobState.LOST})

_ENDED_AT_ONCE = 200
"""Waits that are ended between two turns of the event loop."""

_AT_ONCE = 1000
"""Jobs that are given up between two turns of the event loop."""

log = logging.getLogger("taskscaler.batch")


class Kept(Protocol):
    """A lease that nobody holds."""

    @property
    def key(self) -> str:
        """What it was acquired under."""
        ...


class Held(Slot, Protocol):
    """A lease that was taken up again."""

    def hold(self) -> AbstractAsyncContextManager[Slot]:
        """Hold it for the time of the context, as what `Scaler.acquire` gives."""
        ...


class Scaler(Protocol):
    """The part of a `Taskscaler` that a batch needs."""

    def acquire(
        self,
        key: str,
        *,
        timeout: float | None = None,
        expected_duration: float = math.inf,
        place: int | None = None,
        persistent: bool = False,
    ) -> AbstractAsyncContextManager[Slot]:
        """Hold a slot for the time of the context; its body is cancelled and `LeaseLost` raised if it is lost.

        A *place* is that of an earlier lease, to which the key goes back in the queue. A persistent lease is kept for
        the next command if this one is killed.
        """
        ...

    @property
    def detached(self) -> Sequence[Kept]:
        """Persistent leases of an earlier command that nobody has reattached."""
        ...

    async def reattach(self, key: str) -> Held:
        """Take up one of them.

        Raises:
            NotDetached, LeaseLost, NoCapacity: It is not there any more, or not to be had.
        """
        ...

    async def explain(self) -> object:
        """Why there is no capacity, as text."""
        ...

    async def stop(self) -> None:
        """Break every lease and refuse every waiter."""
        ...


async def run_batch(
    scaler: Scaler,
    jobs: Sequence[Job],
    *,
    executors: Mapping[str, Executor],
    output: Path,
    clock: Clock,
    patience: float = PATIENCE,
    observer: Observer | None = None,
    log_internal_ip: bool = False,
    log_external_ip: bool = False,
) -> BatchState:
    """Run all jobs, each as soon as there is a slot for it, and write their results into the directory *output*.

    See `Batch` for the other arguments, and for a batch that can be drained and stopped.

    Raises:
        TypeError, ValueError: The jobs or the arguments cannot be used.
        ResultsInTheWay: The directory is not empty.
        OSError: The results could not be written.
    """
    path_like("output", output)
    check_batch(jobs, executors, patience)
    results = Results(Path(output))
    await to_thread.run_sync(results.prepare)
    with closing(EventLog(results)) as events:
        batch = Batch(
            scaler,
            jobs,
            executors=executors,
            events=events,
            clock=clock,
            patience=patience,
            observer=observer,
            log_internal_ip=log_internal_ip,
            log_external_ip=log_external_ip,
        )
        async with events.writing():
            state = await batch.run()
        if batch.summary_refused:
            raise batch.summary_refused
        if state.all_stand:
            await to_thread.run_sync(events.end, Over(at=clock.now(), well=state.succeeded))
    return state


class Batch:
    """Jobs on their way through a scaler.

    A job is tried again if its instance was lost, the connection died, or its executor failed in a way that nobody
    expects, which also speaks against the instance. What it did by itself, such as failing or taking too long, stands,
    unless its `Retries` say otherwise. Nothing that happens to one job ends another.
    """

    def __init__(
        self,
        scaler: Scaler,
        jobs: Sequence[Job],
        *,
        executors: Mapping[str, Executor],
        events: EventLog,
        clock: Clock,
        patience: float = PATIENCE,
        observer: Observer | None = None,
        log_internal_ip: bool = False,
        log_external_ip: bool = False,
        only: Container[str] | None = None,
        rerun: Sequence[str] = (),
        fail_fast: int | None = None,
        most_waiting: int | None = None,
        following: Following | None = None,
        use_meter: UseMeter | None = None,
    ) -> None:
        """Prepare a batch; nothing starts before `run`.

        Args:
            scaler: Where slots come from; the caller opens and closes it.
            jobs: With names that differ.
            executors: By the names that the jobs use.
            events: Where all that happens is written as it does; that of an earlier run of these jobs is resumed. Its
                results are prepared by the caller, who closes it.
            clock: Where the results' times come from.
            patience: Seconds for which nothing may run while jobs wait; then these are given up.
            observer: Hears of every change.
            log_internal_ip: Whether a job's log may name the internal address of its instance; if so it does.
            log_external_ip: The same with the external address.
            only: Names of the jobs that are run; the others wait for a later run. None: all are.
            rerun: Names of jobs that are over for good in *events*, and run again.
            fail_fast: After so many jobs, at least 1, that failed, timed out or were lost for good in this run, no more
                are begun; those that run go on to their ends. None: however many.
            most_waiting: Jobs that wait at the scaler at once; the next ones follow as these are given slots. None: as
                many as one scaler has to do with at once, `MOST_WAITING`.
            following: How its jobs are followed as traces. None: by the scaler's tracer, if it has one.
            use_meter: Counts what they use. None: the scaler's does, if it has one.

        Raises:
            TypeError, ValueError: As `check_batch`.
        """
        check_batch(jobs, executors, patience)
        self.state = events.begin(jobs, at=clock.now(), rerun=rerun)
        self.results = events.results
        self._events = events
        self._history = History(self.state, events, observer, self._changes)
        meter = use_meter or getattr(scaler, "use_meter", None)
        self._tries = Tries(
            self._history,
            self.results,
            executors,
            clock,
            log_internal_ip,
            log_external_ip,
            meter if isinstance(meter, UseMeter) else None,
        )
        self._jobs = jobs
        self._front = self._front_of(self.state)
        self._under_way: set[int] = set()
        """Numbers of the jobs that have begun, or wait for a slot to do so, and are not over."""

        self._scaler = scaler
        self._following = following or following_of(scaler)
        self._clock = clock
        self._patience = patience
        self._only = only
        self._fail_fast = fail_fast
        self._failed = 0
        """Jobs that ended badly in this run."""

        self._room = anyio.Semaphore(MOST_WAITING if most_waiting is None else most_waiting)
        self._kept: set[str] = set()
        """Jobs under whose names leases are detached; each is taken up before its job is run, or is over."""

        self._at_work: set[anyio.CancelScope] = set()
        """Of the tries that hold a slot; ended by `stop`."""

        self._idle = anyio.Event()
        """Set when a try ends."""

        self._resting: dict[str, anyio.CancelScope] = {}
        """Jobs that wait until it is time for their next try; they wait for no slot."""

        self._seen_to: set[str] = set()
        """Jobs with a task that waits, runs or writes for them, to the last line of their logs."""

        self._places: dict[str, int] = {}
        """Where in the scaler's queue jobs were that have been tried, and to which they go back; none that is over."""

        self._waiting: dict[str, anyio.CancelScope] = {}
        self._first_waits: set[str] = set()
        """Names of the jobs that have a place among the `MOST_WAITING`: of those that were never given a slot."""

        self._closed: tuple[JobState, str] | None = None
        """What becomes of jobs that wait, and why; None: they are given slots."""

        self.why_given_up = ""
        """What the scaler said when jobs were given up because there was no slot for too long; empty if none was."""

        self.summary_refused: OSError | None = None
        """Why ``results.json`` could not be written; None if it was, or is still to be."""

        self._changed = anyio.Event()
        self._doomed = anyio.Event()
        """Set while there are jobs to skip."""

    async def run(self) -> BatchState:
        """Run all jobs to their ends and write ``results.json``, also if this is cancelled.

        If only that cannot be written, `summary_refused` says so.

        Raises:
            OSError: The results could not be written, so that nothing was begun.
        """
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(self._begin)
        try:
            async with anyio.create_task_group() as watch:
                watch.start_soon(self._watch_patience)
                watch.start_soon(self._skip_doomed)
                watch.start_soon(self._call_off)
                async with anyio.create_task_group() as jobs:
                    await self._begin_all(jobs)
                watch.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._finish()
        return self.state

    def is_done_with(self, name: str) -> bool:
        """Whether a job is over, and nothing more comes into its log; a line of ours may follow the job's end."""
        return self.state[name].state.final and name not in self._seen_to

    def drain(self) -> None:
        """Begin no more jobs; those that run go on to their ends."""
        self._close(JobState.CANCELLED, "the batch was interrupted")

    @property
    def held_back(self) -> str:
        """What jobs wait for that cannot begin because of others; empty if none does."""
        names = self._front.waits_for(MOST_NAMED + 1)
        others = " and others" if len(names) > MOST_NAMED else ""
        return f"jobs wait for {enumerated(names[:MOST_NAMED])}{others}" if names else ""

    @property
    def resting(self) -> str:
        """Which jobs pause before they are retried; empty if none does."""
        if not self._resting:
            return ""
        left = span(min(self.state[name].retry_at for name in self._resting) - self._clock.now())
        if len(self._resting) == 1:
            return f"1 job pauses for {left} before it is retried"
        return f"{len(self._resting)} jobs pause before they are retried, the first for {left}"

    async def stop(self) -> None:
        """End all jobs at once, and give their slots back: those that could outlive this, too."""
        await self._end_work("the batch was stopped")
        await self._scaler.stop()

    async def leave(self) -> None:
        """Begin no more jobs, and leave those that run to a later batch of the same event log, which joins them.

        As if this process was killed, but in good order: each log has what its job has printed by now, and the slots
        are detached when this returns. Jobs that cannot outlive the process, or whose leases are not persistent, are
        ended; they run again when the batch is resumed, and so do those for which nobody comes in time. The scaler
        needs a journal, and to keep its instances when it is left.
        """
        self._tries.left = True
        await self._end_work("the batch was left")

    async def _end_work(self, why: str) -> None:
        """Let nobody here see to any job any more."""
        self._tries.stopped = why
        self._close(JobState.CANCELLED, why)
        for scope in self._at_work:
            scope.cancel()
        while self._at_work:
            self._idle = anyio.Event()
            await self._idle.wait()

    def _begin(self) -> None:
        self._events.open()
        self.results.begin(len(self._jobs))

    def _front_of(self, state: BatchState) -> Front:
        """See what may be begun of what is left of the batch."""
        front = Front(state.plan, state.is_over)
        for number, name in front.graph.unknown:
            if not state.is_over(number):
                raise ValueError(
                    f"the job {state.plan.names[number]!r} needs {name!r}, which is not a job of the batch"
                )
        if cycle := front.graph.cycle():
            raise ValueError(f"jobs need each other in a cycle: {' needs '.join([*cycle, cycle[0]])}")
        for number in state.numbers(*(each for each in JobState if each.final)):
            front.over(number, state.records[number].state)
        return front

    async def _begin_all(self, tasks: TaskGroup) -> None:
        """Have the jobs queue for slots, in the order of the batch, as soon as they may, until no more are to begin."""
        await self._take_up_kept(tasks)
        if self._only is not None:
            queued = self.state.numbers(JobState.QUEUED)
            left_out = [number for number in queued if not self._is_selected(number) and number not in self._under_way]
            await self._give_up_numbers(left_out, JobState.CANCELLED, NOT_SELECTED)
        while (number := await self._next()) is not None:
            job = self._jobs[number]
            self._under_way.add(number)
            self._first_waits.add(job.name)
            await tasks.start(self._see_through, job)
        if self._closed:
            await self._give_up_all()

    async def _take_up_kept(self, tasks: TaskGroup) -> None:
        """Take up the leases that an earlier command has left for jobs of ours: first of all, for their time runs."""
        for lease in () if self._closed else self._scaler.detached:  # closed: there may be no fleet
            if (number := self.state.plan.names.number(lease.key)) is not None:
                self._kept.add(lease.key)
                if self.state.is_over(number):
                    tasks.start_soon(self._try, self._jobs[number])
                else:
                    self._front.begin(number)
                    self._under_way.add(number)
                    await tasks.start(self._see_through, self._jobs[number])

    def _is_selected(self, number: int) -> bool:
        return self._only is None or self.state.plan.names[number] in self._only

    async def _next(self) -> int | None:
        """Wait until one more job may be begun, and there is a place for it; None: no more are to begin."""
        await self._room.acquire()
        while not self._closed and self._are_left:
            changed = self._changed
            if (number := self._front.next()) is not None:
                return number
            await changed.wait()
        self._room.release()
        return None

    @property
    def _are_left(self) -> bool:
        """Whether there are jobs that neither are over nor have begun."""
        return self.state.count(JobState.QUEUED, JobState.RUNNING) > len(self._under_way)

    async def _skip_doomed(self) -> None:
        """Give up, as long as the batch goes on, the jobs that need one that did not succeed."""
        while True:
            while self._front.doomed and not self._closed:
                doomed = self._front.doomed.popleft()
                needed = self.state.records[doomed.needed]
                state = JobState.SKIPPED if needed.state.stands else JobState.CANCELLED
                waiting = [number for number in doomed.jobs if not self.state.is_over(number)]
                await self._give_up_numbers(waiting, state, f"needs {needed.name}, which {needed.state.said}")
            self._doomed = anyio.Event()
            await self._doomed.wait()

    async def _give_up_all(self) -> None:
        """Give up what no task sees through; nobody has to be woken for these jobs."""
        state, why = self._closed or (JobState.CANCELLED, "the batch was stopped")
        waiting = [number for number in self.state.numbers(JobState.QUEUED) if number not in self._under_way]
        await self._give_up_numbers(waiting, state, why)

    async def _give_up_numbers(self, numbers: Sequence[int], state: JobState, why: str) -> None:
        """Give up jobs that wait, many at a time."""
        for start in range(0, len(numbers), _AT_ONCE):
            names = [self.state.plan.names[number] for number in numbers[start : start + _AT_ONCE]]
            self._give_up(names, state, why)
            await checkpoint()

    async def _finish(self) -> None:
        """Give up what is not over, and write the summary of what the event log has by then."""
        state, why = self._closed or (JobState.CANCELLED, "the batch was stopped")
        for name in () if self._tries.left else [*self.state.running]:
            self._history.put(Ended(at=self._clock.now(), job=name, state=state, why=why))
        self._under_way.clear()  # no task is left
        await self._give_up_all()
        await self._events.flush()
        try:
            await to_thread.run_sync(partial(self.results.write_summary, self.state, now=self._clock.now()))
        except OSError as error:
            self.summary_refused = error
            log.warning("summary_not_written", extra={"error": str(error)})

    def _close(self, state: JobState, why: str) -> None:
        self._closed = self._closed or (state, why)
        self._wake()

    async def _call_off(self) -> None:
        """Once no more jobs are to begin, end their waits: a few at a time, for ten thousand tasks end with them."""
        while not self._closed:
            await self._changed.wait()
        while scopes := [*islice(self._waits(), _ENDED_AT_ONCE)]:
            for scope in scopes:
                scope.cancel()
            await checkpoint()

    def _waits(self) -> Iterator[anyio.CancelScope]:
        """Give the waits that nobody has ended."""
        waits = chain(self._waiting.values(), self._resting.values())
        return (scope for scope in waits if not scope.cancel_called)

    async def _see_through(self, job: Job, *, task_status: TaskStatus[None]) -> None:
        task_status.started()  # whoever started this goes on once it waits for its slot
        self._seen_to.add(job.name)
        try:
            if self._following is None:
                await self._try_until_over(job)
            else:
                with self._following.job(job, self.state, self._clock, is_kept=job.name in self._kept):
                    await self._try_until_over(job)
        finally:
            self._waits_no_more(job)
            self._places.pop(job.name, None)
            self._tries.forget(job)
            self._seen_to.discard(job.name)

    async def _try_until_over(self, job: Job) -> None:
        while self.state[job.name].state is JobState.QUEUED:  # not over, and not left as it runs
            if job.name in self._kept:
                await self._try(job)
            elif self._closed:
                self._give_up([job.name], *self._closed)
            elif not self._is_selected(self.state[job.name].number):
                self._give_up([job.name], JobState.CANCELLED, NOT_SELECTED)
            elif self.state[job.name].retry_at > self._clock.now():
                await self._rest(job)
            else:
                await self._try(job)

    async def _rest(self, job: Job) -> None:
        """Wait until it is time for the next try: in nobody's way, and not for long if no more jobs are to begin."""
        self._waits_no_more(job)
        with anyio.CancelScope() as scope:
            self._resting[job.name] = scope
            self._wake()
            try:
                await self._clock.sleep_until(self.state[job.name].retry_at)
            finally:
                del self._resting[job.name]
                self._wake()

    async def _try(self, job: Job) -> None:
        """Wait for a slot and run the job there; afterwards it is over, or waits again."""
        with followed_try(job, self.state, self._clock, is_kept=job.name in self._kept):
            await self._try_once(job)

    async def _try_once(self, job: Job) -> None:
        name = job.name
        with anyio.CancelScope() as scope:
            self._waiting[name] = scope
            try:
                async with self._slot(job) as (lease, kept):
                    self._places[name] = lease.place
                    self._waits_no_more(job)
                    with anyio.CancelScope() as work:
                        self._at_work.add(work)
                        try:
                            await checkpoint_if_cancelled()
                            await self._use(lease, job, kept=kept)
                        finally:
                            self._at_work.discard(work)
                            self._idle.set()
                    if work.cancelled_caught and self._tries.leaves(lease, job):
                        lease.detach()
                    elif work.cancelled_caught:
                        await self._tries.lost(job, self._tries.stopped)
            except LeaseLost as error:
                preempted = error.loss.kind is LossKind.PREEMPTED
                await self._tries.lost(job, f"instance {error.instance} was lost ({error.loss})", preempted=preempted)
            except Unreachable as error:
                instance = self.state[name].attempts[-1].instance  # only what runs there can meet this
                await self._tries.lost(job, f"the connection to instance {instance} broke ({error})")
            except NoCapacity as error:
                if not self._closed and not self.state[name].state.final:
                    self._give_up([job.name], JobState.NO_CAPACITY, str(error))
            except NotDetached:
                pass  # it was given up meanwhile: the job waits for another slot
            finally:
                self._waiting.pop(name, None)

    @asynccontextmanager
    async def _slot(self, job: Job) -> AsyncIterator[tuple[Slot, bool]]:
        """Hold the slot that was kept for a job, or another; says which it is."""
        if job.name in self._kept:
            self._kept.discard(job.name)
            held = await self._scaler.reattach(job.name)
            async with held.hold() as lease:
                yield lease, True
            return
        # It is the batch's patience that ends a wait, not that of a single acquire: in a long queue,
        # every job but the first waits for others, not for capacity.
        async with self._scaler.acquire(
            job.name,
            timeout=math.inf,
            expected_duration=math.inf if job.expected_duration is None else job.expected_duration,
            place=self._places.get(job.name),
            persistent=self._tries.outlive(job),
        ) as lease:
            yield lease, False

    async def _use(self, lease: Slot, job: Job, *, kept: bool) -> None:
        """Run the job, or go on with it. What ran in a slot that was kept and is not gone on with is ended."""
        record = self.state[job.name]
        last, wanted = record.last_attempt, self._is_selected(record.number) and not self._tries.stopped
        if kept and self._tries.left:
            lease.detach()
        elif not kept:
            if not self._closed:  # else its wait was to end, and a slot was quicker
                await self._tries.run(lease, job)
        elif last and last.detached and record.interrupted and wanted and job.detach is not False:
            await self._tries.join(lease, job)
        elif last and last.detached:
            await self._tries.end_last(lease, job)
        elif not self.state.run > 1:  # some other batch's, for it is none of this one's
            lease.mark_suspect("what ran there was left behind")

    def _waits_no_more(self, job: Job) -> None:
        """Let the next job wait in this one's place, if that has not happened yet."""
        self._waiting.pop(job.name, None)
        if job.name in self._first_waits:
            self._first_waits.remove(job.name)
            self._room.release()

    def _give_up(self, names: Sequence[str], state: JobState, why: str) -> None:
        """Begin no more tries at these jobs, which wait."""
        self._history.put(GivenUp(at=self._clock.now(), jobs=tuple(names), state=state, why=why))

    def _changes(self, changes: Sequence[JobChanged]) -> None:
        """See what may begin, or need not, after jobs have changed."""
        for change in changes:
            number, state = change.record.number, change.record.state
            if state in _BAD:
                self._failed += 1
                if self._failed == self._fail_fast:
                    self._close(JobState.CANCELLED, f"not started, because {counted(self._failed, 'job')} failed")
            if state.final:
                self._under_way.discard(number)
                self._front.over(number, state)
        if self._front.doomed:
            self._doomed.set()
        self._wake()

    def _wake(self) -> None:
        """Have those look again that wait for a change; patience begins again."""
        self._changed.set()
        self._changed = anyio.Event()

    async def _watch_patience(self) -> None:
        """Give up what waits once nothing has run, begun or ended for too long."""
        while True:
            running, changed = self.state.count(JobState.RUNNING), self._changed
            nothing_wanted = self._resting and not self._waiting
            with anyio.move_on_after(math.inf if running or nothing_wanted else self._patience) as wait:
                await changed.wait()
            if wait.cancelled_caught:
                self.why_given_up = str(await self._scaler.explain())  # while they still wait: afterwards nobody does
                within = f"within {format_duration(self._patience)} (instance_acquire_timeout)"
                self._close(JobState.NO_CAPACITY, f"no slot became free {within}")
