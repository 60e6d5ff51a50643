"""The batches that a daemon owns: whoever has submitted one may go, and the daemon may be killed.

A batch is durable before its client has an answer. One that is not over is taken up when the daemon starts, before
anybody is answered: what still runs is joined, what was over stays so. Nothing that happens to one batch ends another.
"""

import logging
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from math import inf
from pathlib import Path
from secrets import token_hex

import anyio
from anyio import to_thread
from attrs import define, field

from fleeting import Clock, ConfigError
from fleeting.archives import ArchiveRefused
from fleeting.plugins import in_units, make_private, one_line
from taskscaler._batch_id import BATCH_ID
from taskscaler._errors import DaemonRefused
from taskscaler._jobsfile import Retention, SubmittedFile, read_submitted_file
from taskscaler._observe import ScalerEvent
from taskscaler._recorded_run import RecordedRun, read_run
from taskscaler._scaler import Taskscaler
from taskscaler._span import SpanContext, read_context
from taskscaler._tracer import current
from taskscaler._wording import iso
from taskscaler.batch import Batch, BatchState, EventLog, JobChanged, JobRecord, JobState, Over, PoolFacts
from taskscaler.batch._described import counts_of
from taskscaler.batch._followed import Following
from taskscaler.batch._select import select_one
from taskscaler.batch._share import SubmittedShare
from taskscaler.batch._used import UsedInstances
from taskscaler.config import Autoscaler
from taskscaler.executors import Executor
from taskscaler.serve._batch_files import BatchFiles, Fate, Ticket
from taskscaler.serve._peers import Peer
from taskscaler.serve._retention import Finished, Room, outdated, room
from taskscaler.serve._shares import has_room

LARGEST_UPLOAD = 4 << 30
"""Bytes of a submission."""

UPLOAD_TIMEOUT = 600.0
"""Seconds within which a submission has to be there."""

MOST_UPLOADS = 4
"""Submissions that are received at a time."""

MOST_UNFINISHED = 1_000
"""Batches that are not over at a time."""

MOST_JOBS = 1_000_000
"""Jobs of all batches that are not over."""

LARGEST_JOBS_FILE = 4 << 20
"""Bytes."""

LOOK_AT_DISK = 16 << 20
"""Bytes of a submission after which the disk is looked at again."""

TIDY_INTERVAL = 60.0
"""Seconds between two looks at the disk."""

log = logging.getLogger("taskscaler.serve")


def _disk(path: Path) -> tuple[int, int]:
    usage = shutil.disk_usage(path)
    return usage.free, usage.total


@define(eq=False)
class OwnedBatch:
    """One of them."""

    ticket: Ticket
    files: BatchFiles
    cancelled: bool = False
    fate: Fate | None = None
    """How it ended; None: it has not."""

    problem: str = ""
    """Why it cannot continue; it is tried again when the daemon is restarted."""

    running: Batch | None = None
    used: UsedInstances | None = None
    """On which its jobs ran; None: they do not run."""

    jobs: int = 0
    begun: anyio.Event = field(factory=anyio.Event)
    """Set once it is known where its jobs stand, or that this cannot be known."""

    changed: anyio.Event = field(factory=anyio.Event)
    """Set, and replaced, when it has ended, cannot go on, or was left to the next daemon."""

    @property
    def state(self) -> str:
        """Where it stands, in a word."""
        if self.fate is not None:
            return "cancelled" if self.cancelled else "succeeded" if self.fate.well else "failed"
        return "stuck" if self.problem else "ending" if self.cancelled else "running"

    @property
    def counts(self) -> Mapping[str, int]:
        """How many jobs there are, by their states; only of those that there are."""
        if self.fate is not None:
            return self.fate.jobs
        return {} if self.running is None else counts_of(self.running.state)

    def as_data(self) -> dict[str, object]:
        """Describe it for clients."""
        return {
            "batch": self.ticket.id,
            "name": self.ticket.name,
            "uid": self.ticket.uid,
            "submitted": iso(self.ticket.submitted),
            "state": self.state,
            "why": self.problem,
            "jobs": dict(self.counts),
            "ended": None if self.fate is None else iso(self.fate.ended),
        }


@define(eq=False)
class Batches:
    """All of them."""

    directory: Path
    """Where they lie."""

    scaler: Taskscaler
    clock: Clock
    start_soon: Callable[..., object]
    """Runs a task for as long as the daemon."""

    fleet: Autoscaler
    executors: Mapping[str, Executor]
    """By name: those that the fleet's file has settings for, and those that were loaded since."""

    retention: Retention
    say: Callable[[str], object]
    """Prints a line."""

    hear_of_jobs: Callable[[JobChanged], None] | None = None
    """Hears of each change of a job."""

    disk: Callable[[Path], tuple[int, int]] = _disk
    """Free and all bytes of the disk that has a path."""

    known: dict[str, OwnedBatch] = field(factory=dict, init=False)
    """By id, oldest first."""

    _closing: bool = field(default=False, init=False)
    _running: dict[str, OwnedBatch] = field(factory=dict, init=False)
    """By id: of those that are not over, those whose jobs this daemon sees to by now."""

    _receiving: dict[str, Ticket] = field(factory=dict, init=False)
    """By id: those that are being submitted."""

    _received: anyio.Event = field(factory=anyio.Event, init=False)
    """Set, and made anew, when one of them is there, or is not to come."""

    _reading: anyio.CapacityLimiter = field(factory=lambda: anyio.CapacityLimiter(1), init=False)
    """For what takes memory and time by the number of jobs, so that the rest of the daemon has its share."""

    _looking: anyio.CapacityLimiter = field(factory=lambda: anyio.CapacityLimiter(1), init=False)
    """For the same if clients ask for it: no batch waits for these."""

    _room: Room = field(default=Room.ENOUGH, init=False)

    # --- the daemon's life -------------------------------------------------------------------------------

    async def take_up(self) -> None:
        """Go on with the batches that an earlier daemon has left, and delete those that were never accepted.

        Raises:
            OSError: The directory cannot be used.
        """
        for batch in await to_thread.run_sync(self._found):
            self.known[batch.ticket.id] = batch
            if batch.fate is None:
                self.start_soon(self._see_through, batch, None)
        await self.tidy()

    async def watch(self) -> None:
        """Keep the disk tidy, for as long as the daemon runs."""
        while True:
            await anyio.sleep(TIDY_INTERVAL)
            try:
                await self.tidy()
            except OSError as error:
                log.warning("batches_not_tidied", extra={"error": str(error)})

    async def tidy(self) -> None:
        """Delete batches that are over and outdated, and warn if the disk gets full."""
        over = [Finished(id_, each.fate.ended, each.fate.size) for id_, each in self.known.items() if each.fate]
        for id_ in outdated(over, self.retention, self.clock.now()):
            log.info("batch_removed", extra={"batch": id_})
            await to_thread.run_sync(self.known.pop(id_).files.remove)
        now = self._look_at_disk()
        if now is not self._room and now is not Room.ENOUGH:
            free, total = self.disk(self.directory)
            share = 100 * free / total
            refusal = "; no batch is accepted any more" if now is Room.FULL else ""
            self.say(
                f"warning: only {share:.0f} % ({in_units(free)}) of the disk of {self.directory} are free{refusal}"
            )
        self._room = now

    def hear(self, event: ScalerEvent) -> None:
        """Have the batches record what becomes of instances that they use; an observer."""
        for batch in self._running.values():
            if batch.used is not None:
                batch.used.hear(event)

    def drain(self) -> None:
        """Begin no more jobs; those that wait are left to the next daemon."""
        self._closing = True
        for batch in self._running.values():
            if batch.running is not None:
                batch.running.drain()

    async def leave(self) -> None:
        """Leave the jobs that run to the next daemon, and wait until everything is written.

        Those of cancelled batches are not left: their ends are only waited for.
        """
        self.drain()
        async with anyio.create_task_group() as leaving:
            for batch in self._running.values():
                if batch.running is not None:
                    leaving.start_soon(batch.running.stop if batch.cancelled else batch.running.leave)
        while self._running:
            await next(iter(self._running.values())).changed.wait()

    @property
    def unfinished(self) -> Sequence[OwnedBatch]:
        """Those that are not over."""
        return [batch for batch in self.known.values() if batch.fate is None]

    @property
    def jobs_running(self) -> int:
        """How many of their jobs run."""
        running = (batch.running for batch in self._running.values() if batch.running is not None)
        return sum(batch.state.count(JobState.RUNNING) for batch in running)

    # --- what clients ask --------------------------------------------------------------------------------

    async def submit(self, peer: Peer, name: str, chunks: AsyncIterator[bytes], request: str = "") -> OwnedBatch:
        """Take in a batch: a tar archive with its jobs file and all files that its jobs need.

        Args:
            peer: Who submits it.
            name: Of the jobs file.
            chunks: The archive.
            request: Names it among those of its user, who may submit it again. Empty: it has no name.

        Raises:
            DaemonRefused: It is too large or too slow, or there is no room for it.
            ConfigError: Its jobs file is wrong; every mistake is named.
        """
        if request and (batch := await self._from(peer.uid, request)) is not None:
            with anyio.move_on_after(UPLOAD_TIMEOUT):  # who is still sending would not read the answer
                async for _ in chunks:
                    pass
            return batch
        self._refuse_if_full(peer)
        if not has_room(MOST_UPLOADS, Counter(each.uid for each in self._receiving.values()), peer):
            raise DaemonRefused("too many batches are being submitted; try again in a moment", status=503)
        asks = current()
        parent, state = (asks.traceparent, asks.state) if isinstance(asks, SpanContext) else ("", "")
        ticket = Ticket(
            id=self._fresh_id(),
            uid=peer.uid,
            name=name,
            submitted=self.clock.now(),
            request=request,
            traceparent=parent,
            tracestate=state,
        )
        files = BatchFiles(self.directory / ticket.id)
        self._receiving[ticket.id] = ticket
        try:
            file = await self._receive(ticket, files, chunks)
            await to_thread.run_sync(files.accept, ticket)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(files.remove)
            if isinstance(error, OSError):
                why = f"the batch could not be stored ({error.strerror}); try later"
                raise DaemonRefused(why, status=507) from error
            raise
        finally:
            del self._receiving[ticket.id]
            self._received.set()
            self._received = anyio.Event()
        batch = self.known[ticket.id] = OwnedBatch(ticket, files, jobs=len(file.jobs))
        self.start_soon(self._see_through, batch, file)
        return batch

    def _following(self, ticket: Ticket) -> Following | None:
        """How the jobs of a batch are followed: as a part of what its client was at when it was submitted."""
        if self.scaler.tracer is None:
            return None
        parent = read_context(ticket.traceparent, ticket.tracestate)
        return Following(tracer=self.scaler.tracer, parent=parent, pipeline=Path(ticket.name).stem)

    async def _from(self, uid: int, request: str) -> OwnedBatch | None:
        """Find the batch that comes from a request; None: there is none."""

        def matches(ticket: Ticket) -> bool:
            return (ticket.uid, ticket.request) == (uid, request)

        while any(map(matches, self._receiving.values())):  # its client hung up, which is about to be noticed
            await self._received.wait()
        batch = next((each for each in self.known.values() if matches(each.ticket)), None)
        if batch is not None and batch.fate is None and not batch.jobs:
            await batch.begun.wait()
        return batch

    def of(self, peer: Peer) -> Sequence[OwnedBatch]:
        """Give those that somebody may see, oldest first."""
        return [batch for batch in self.known.values() if _may_see(peer, batch)]

    def find(self, peer: Peer, id_: str) -> OwnedBatch:
        """Give one that somebody may see.

        Raises:
            DaemonRefused: There is none.
        """
        batch = self.known.get(id_)
        if batch is None or not _may_see(peer, batch):
            raise DaemonRefused(f"there is no batch {id_!r}; `taskscaler jobs` lists all batches", status=404)
        return batch

    async def cancel(self, batch: OwnedBatch) -> None:
        """End a batch: its jobs end, and it is not taken up again; nothing happens if it is over.

        Raises:
            DaemonRefused: There is no room to note that; the batch goes on.
        """
        if batch.fate is not None or batch.cancelled:
            return
        try:
            await to_thread.run_sync(batch.files.cancel)
        except OSError as error:
            why = f"that the batch is cancelled could not be stored ({error.strerror}); make room on the disk"
            raise DaemonRefused(why, status=507) from error
        batch.cancelled = True
        if batch.running is not None:
            self.start_soon(batch.running.stop)  # which may take as long as an instance is silent
        elif batch.problem:
            await self._end(batch, None)

    async def wait(self, batch: OwnedBatch) -> OwnedBatch:
        """Wait until a batch is over, or cannot continue."""
        while batch.fate is None and not batch.problem:
            await batch.changed.wait()
        return batch

    async def jobs(self, batch: OwnedBatch, first: int, most: int) -> tuple[Sequence[JobRecord], int]:
        """Give some jobs of a batch, from a place in it on, and how many it has in all.

        Raises:
            DaemonRefused: They cannot be read.
        """
        state = await self._state_of(batch)
        return [state.records[number] for number in range(first, min(first + most, len(state)))], len(state)

    async def job_of(self, batch: OwnedBatch, wanted: str) -> str:
        """Find the job that is meant; raises as `jobs`, and as `select_one`."""
        names = (await self._state_of(batch)).plan.names
        if not wanted:
            if len(names) > 1:
                raise DaemonRefused(f"the batch {batch.ticket.id} has {len(names)} jobs; name one of them")
            return names[0]
        return await to_thread.run_sync(select_one, names, wanted, limiter=self._looking)

    def is_over(self, batch: OwnedBatch, job: str) -> bool:
        """Whether nothing more comes into a job's log for now."""
        return batch.running is None or batch.running.is_done_with(job)

    def is_left(self, batch: OwnedBatch, job: str) -> bool:
        """Whether the next daemon goes on with a job: this one is ending, and the job is not over."""
        if not self._closing or batch.fate is not None or batch.problem:
            return False
        if batch.running is None:
            return True
        state = batch.running.state[job].state
        return not (state.final if batch.cancelled else state.stands)  # what we end as we leave runs again there

    # --- inside ------------------------------------------------------------------------------------------

    def _found(self) -> list[OwnedBatch]:
        """See what lies there."""
        make_private(self.directory, hide=True)
        found = []
        for path in self.directory.iterdir():
            files = BatchFiles(path)
            if not (BATCH_ID.fullmatch(path.name) and path.is_dir()):
                continue
            try:
                ticket = files.ticket()
                if ticket is None:  # its client never learned that it was accepted
                    files.remove()
                else:
                    found.append(OwnedBatch(ticket, files, cancelled=files.cancelled, fate=files.fate()))
            except (ConfigError, OSError) as error:
                log.warning("batch_unreadable", extra={"path": str(path), "error": one_line(str(error))})
        return sorted(found, key=lambda batch: (batch.ticket.submitted, batch.ticket.id))

    def _look_at_disk(self) -> Room:
        return room(*self.disk(self.directory))

    def _refuse_if_full(self, peer: Peer) -> None:
        if self._closing:
            raise DaemonRefused("the daemon is ending; submit the batch when it is back", status=503)
        self._refuse_without_room(0)
        if not has_room(MOST_UNFINISHED, Counter(each.ticket.uid for each in self.unfinished), peer):
            why = f"{MOST_UNFINISHED} batches are not over, or too many of this user's"
            raise DaemonRefused(f"{why}; wait for some, or cancel some", status=503)

    def _refuse_without_room(self, size: int) -> None:
        """Leave on the disk what the journal and the batches that there are need, beside so many bytes to come."""
        free, total = self.disk(self.directory)
        if room(free - size, total) is Room.FULL:
            why = f"the disk of {self.directory} is full, so that no batch can be recorded; make room there first"
            raise DaemonRefused(why, status=507)

    def _fresh_id(self) -> str:
        while (id_ := token_hex(4)) in self.known or id_ in self._receiving:
            pass
        return id_

    async def _receive(self, ticket: Ticket, files: BatchFiles, chunks: AsyncIterator[bytes]) -> SubmittedFile:
        """Store what comes, and read it."""
        archive = files.directory / "upload.tar"
        await to_thread.run_sync(make_private, files.directory)
        size = looked = 0
        with anyio.move_on_after(UPLOAD_TIMEOUT) as timeout:
            async with await anyio.open_file(archive, "wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > LARGEST_UPLOAD:
                        why = f"the files are larger than {in_units(LARGEST_UPLOAD)}; have the jobs fetch them"
                        raise DaemonRefused(why, status=413)
                    await file.write(chunk)
                    if size - looked > LOOK_AT_DISK:
                        looked = size
                        self._refuse_without_room(size)
        if timeout.cancelled_caught:
            raise DaemonRefused(f"the files did not come within {UPLOAD_TIMEOUT:g} s; send fewer", status=408)
        self._refuse_without_room(size)  # for a moment, all is there twice
        try:
            await to_thread.run_sync(files.receive, archive, ticket.name)
        except ArchiveRefused as error:
            why = f"the files cannot be used ({one_line(str(error))}); send a tar archive of them"
            raise DaemonRefused(why) from error
        if files.source(ticket).stat().st_size > LARGEST_JOBS_FILE:
            raise DaemonRefused(f"the jobs file is larger than {in_units(LARGEST_JOBS_FILE)}; use a matrix", status=413)
        found = await self._read(files, ticket)
        jobs: Counter[int] = Counter()
        for batch in self.unfinished:
            jobs[batch.ticket.uid] += batch.jobs
        if not has_room(MOST_JOBS, jobs, Peer(ticket.uid), len(found.jobs)):
            why = f"there would be more than {MOST_JOBS} jobs in batches that are not over, or too many of this user's"
            raise DaemonRefused(f"{why}; wait for some to end", status=503)
        return found

    async def _read(self, files: BatchFiles, ticket: Ticket) -> SubmittedFile:
        """Read a jobs file; an executor is loaded once, for it serves all batches.

        What is remembered of its jobs is their user's: files of one name are taken for the same.
        """
        read = partial(read_submitted_file, origin=f"user {ticket.uid} {ticket.name}")
        file = await to_thread.run_sync(read, files.source(ticket), self.executors, limiter=self._reading)
        self.executors = {**file.executors, **self.executors}
        return file

    async def _see_through(self, batch: OwnedBatch, file: SubmittedFile | None) -> None:
        """Run a batch to its end, or as far as this daemon goes; nothing that goes wrong ends anything else."""
        try:
            if file is None:
                file = await self._read(batch.files, batch.ticket)
                batch.jobs = len(file.jobs)
            await self._run(batch, file)
        except Exception as error:
            batch.problem = one_line(str(error))
            log.warning("batch_stuck", exc_info=error, extra={"batch": batch.ticket.id})
            self.say(f"warning: the batch {batch.ticket.id} ({batch.ticket.name}) cannot continue: {batch.problem}")
        finally:
            batch.running = batch.used = None
            self._running.pop(batch.ticket.id, None)
            batch.begun.set()
            changed, batch.changed = batch.changed, anyio.Event()
            changed.set()

    async def _run(self, batch: OwnedBatch, file: SubmittedFile) -> None:
        results = batch.files.results
        if results.events.exists():
            events = await to_thread.run_sync(EventLog.reopen, results, limiter=self._reading)
        else:
            await to_thread.run_sync(results.prepare)
            events = EventLog(results, pools=PoolFacts.of(self.fleet))
        with closing(events):
            if events.past is not None and events.past.over:  # killed before it could note that
                await self._end(batch, events.past)
                return
            events.check(file.jobs)
            used = UsedInstances(events)
            running = Batch(
                SubmittedShare.of(self.scaler, batch.ticket.id, discreet=not Peer(batch.ticket.uid).is_owner),
                file.jobs,
                executors=file.executors,
                events=events,
                clock=self.clock,
                patience=inf,  # others may have the slots for as long as they like
                observer=partial(self._changed, used),
                log_internal_ip=self.fleet.log_internal_ip,
                log_external_ip=self.fleet.log_external_ip,
                only=frozenset() if batch.cancelled else None,
                use_meter=self.scaler.use_meter,
                following=self._following(batch.ticket),
            )
            batch.running, batch.used = running, used
            self._running[batch.ticket.id] = batch
            batch.begun.set()
            if self._closing:
                running.drain()
            async with events.writing():
                state = await running.run()
            if running.summary_refused is not None:
                raise running.summary_refused
            has_left_none = batch.cancelled and not state.running  # it may have been cancelled while it was left
            if has_left_none or state.all_stand or not self._closing:
                over = Over(at=self.clock.now(), well=state.succeeded)
                await to_thread.run_sync(events.end, over)
                await self._end(batch, state)

    def _changed(self, used: UsedInstances, change: JobChanged) -> None:
        used.changed(change)
        if self.hear_of_jobs is not None:
            self.hear_of_jobs(change)

    @property
    def states(self) -> Sequence[BatchState]:
        """Those of the batches that are not over and whose jobs are seen to."""
        running = (batch.running for batch in self._running.values() if batch.fate is None)
        return [each.state for each in running if each is not None]

    async def _end(self, batch: OwnedBatch, state: BatchState | None) -> None:
        counts = {} if state is None else counts_of(state)
        well = state is not None and state.succeeded
        end = partial(batch.files.end, self.clock.now(), well=well, jobs=counts)
        batch.fate = await to_thread.run_sync(end, limiter=self._reading)
        log.info("batch_ended", extra={"batch": batch.ticket.id, "well": well, "cancelled": batch.cancelled})

    async def _state_of(self, batch: OwnedBatch) -> BatchState:
        if batch.fate is None:
            await batch.begun.wait()
        if batch.running is not None:
            return batch.running.state
        try:
            run: RecordedRun = await to_thread.run_sync(read_run, batch.files.results.directory, limiter=self._looking)
        except Exception as error:
            why = f"the jobs of batch {batch.ticket.id} cannot be read ({one_line(str(error))})"
            raise DaemonRefused(f"{why}; try again in a moment", status=409) from error
        return run.state


def _may_see(peer: Peer, batch: OwnedBatch) -> bool:
    return peer.is_owner or batch.ticket.uid == peer.uid
