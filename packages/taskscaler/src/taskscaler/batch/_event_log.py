"""The event log of a batch, ``events.jsonl``: the truth about its jobs, on disk before anything relies on it.

What became of a job is durable before it is reported. All else, such as what became of an instance, is written a
little later, many events at a time, and may be missing: the journal is the truth about instances. Nothing is written
on the event loop. A command that is killed while it writes leaves a line without its end; that event never happened.
"""

import fcntl
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import Self

import anyio
from anyio.lowlevel import checkpoint
from attrs import define

from fleeting.plugins import Offload, make_private, open_private, write_whole
from taskscaler._errors import CannotResume, RecordUnreadable
from taskscaler._observe import DecisionEvent, InstanceEvent, ScalerEvent
from taskscaler.batch._events import (
    BatchEvent,
    Begun,
    PoolFacts,
    RecordedEvent,
    Replanned,
    Rerun,
    Resumed,
    as_line,
    header,
    parse,
    whole_lines,
)
from taskscaler.batch._job import Job, planned
from taskscaler.batch._names import Names
from taskscaler.batch._plan import Plan, Planned
from taskscaler.batch._results import Results, draft_of
from taskscaler.batch._state import BatchState, fold

PAUSE = 0.5
"""Seconds for which events are gathered that nothing waits for."""

_ID_BYTES = 6
"""Of a batch's id: it distinguishes what different batches have left on instances."""

log = logging.getLogger("taskscaler.batch")


@define(eq=False)
class _Entry:
    """A line on its way to the disk."""

    line: bytes
    about_jobs: bool
    """Whether it is kept where it cannot be written, until it can; what became of the fleet is not."""

    awaited: bool = False
    directories: frozenset[Path] = frozenset()
    """In which something was made that must be found there if the line is."""

    then: Callable[[], object] | None = None
    durable: bool = False
    refused: OSError | None = None


class EventLog:
    """The file, open and locked: one command runs a batch at a time. An observer of a `Taskscaler`, too."""

    def __init__(
        self,
        results: Results,
        *,
        pools: Sequence[PoolFacts] = (),
        jobs_file: Path | None = None,
        text: str = "",
        streamed: bool = False,
        socket: Path | None = None,
    ) -> None:
        """Prepare the log of a new batch; nothing is written before `open`.

        Args:
            results: Where it is to be.
            pools: How the pools of its fleet are set.
            jobs_file: What the batch is made from; None: a program makes it, so that no command can resume it.
            text: What is in that file; kept beside the log until the batch is over.
            streamed: Whether the jobs are not in that file, but came as a stream; `Results.jobs_stream` has them.
            socket: Of the daemon whose fleet the batch runs on; None: the fleet is its own.
        """
        self.results = results
        self.pools = tuple(pools)
        self.jobs_file = jobs_file
        self.text = text
        self.streamed = streamed
        self.socket = socket
        self.id = token_hex(_ID_BYTES)
        """The batch's; empty if an earlier release has begun it."""

        self.past: BatchState | None = None
        """What earlier commands left; None: this is the first."""

        self._first: list[BatchEvent] = []
        self._kept = ""
        """What is in the copy of the jobs file."""

        self._file: int | None = None
        self._size = 0
        self._unsynced = False
        """Whether there are lines in the file that a power failure may take."""

        self._closed = False
        self._opened = False
        self._failing = False
        self._pending: list[_Entry] = []
        self._gathered = anyio.Event()
        self._turn = anyio.Lock()
        self._offload = Offload()

    @classmethod
    def reopen(cls, results: Results) -> Self:
        """Take up the log of an earlier command.

        Raises:
            CannotResume: There is none, it is damaged, or the earlier command still runs.
            OSError: It cannot be read or written.
        """
        event_log = cls(results)
        try:
            event_log._lock(results.events)
        except (FileNotFoundError, NotADirectoryError):
            raise CannotResume(f"no batch was started in {results.directory}; run its jobs file instead") from None
        try:
            event_log._read()
        except BaseException:
            event_log.close()
            raise
        return event_log

    def check(self, jobs: Iterable[Job]) -> None:
        """See that the log is that of these jobs.

        Raises:
            CannotResume: It is that of others.
        """
        names = planned(jobs).names
        if self.past and (strange := next(self._strange(self.past, names), None)) is not None:
            path = self.results.events
            raise CannotResume(f"{path} is damaged: it has the unknown job {strange!r}; start a new batch")

    def _strange(self, past: BatchState, names: Names) -> Iterator[str]:
        """Give the names of jobs that are only in the log, or only not there."""
        yield from (name for name in names if name not in past.jobs)
        yield from (name for name in past.jobs if name not in names)

    def begin(self, jobs: Iterable[Job], *, at: float, rerun: Sequence[str] = ()) -> BatchState:
        """Begin the batch, or take it up; returns its jobs, where the events so far have left them.

        Args:
            jobs: With names that differ. If the log is taken up, they take the place of those in it that are not over;
                those that are over for good stay in it.
            at: When, in seconds since the epoch.
            rerun: Names of jobs among these that are over for good, and run again.
        """
        if self.past is None:
            origin = str(self.jobs_file.absolute()) if self.jobs_file else ""
            begun = Begun.of(
                jobs,
                at=at,
                pools=self.pools,
                jobs_file=origin,
                streamed=self.streamed,
                socket=str(self.socket.absolute()) if self.socket else "",
                id=self.id,
            )
            self._first = [begun]
            return BatchState(begun)
        self._first = [Resumed(at=at, pools=self.pools)]
        if (plan := with_those_over(planned(jobs), self.past)) != self.past.plan:
            self._first.append(Replanned(at=at, jobs=plan))
        if rerun:
            self._first.append(Rerun(at=at, jobs=tuple(rerun)))
        for event in self._first:
            self.past.apply(event)
        return self.past

    def open(self) -> None:
        """Make the file, or go on with it; what was gathered so far is in it at once.

        Raises:
            OSError: It cannot be written.
        """
        if not self._first:
            raise ValueError("nothing has started")
        gathered, self._pending = self._pending, []
        lines = [*map(as_line, self._first), *(entry.line for entry in gathered)]
        if self._file is None:
            self._make([header(), *lines])
        else:
            if self.text != self._kept:
                self._keep_jobs_file()
            self._append(lines, durable=True)
        self._opened = True

    def __call__(self, event: ScalerEvent) -> None:
        """Gather what the scaler reports; what becomes of leases, the batch itself reports."""
        if isinstance(event, InstanceEvent | DecisionEvent):
            self._gather(_Entry(as_line(event), about_jobs=False))

    def put(self, event: BatchEvent) -> None:
        """Have an event written soon."""
        self._gather(_Entry(as_line(event), about_jobs=True))

    async def commit(
        self, event: RecordedEvent, *, leaves: Sequence[Path] = (), then: Callable[[], object] | None = None
    ) -> None:
        """Make durable an event, all before it, and before that what it *leaves*. Not cut short.

        Args:
            event: What has happened.
            leaves: Files and directories that may be there.
            then: Called when it is durable, in the same thread, and does not raise.

        Raises:
            OSError: It cannot be written, and will not be.
        """
        directories, contents = _left_in(leaves)
        entry = _Entry(as_line(event), about_jobs=True, awaited=True, directories=directories, then=then)
        with anyio.CancelScope(shield=True):
            if contents:
                await self._offload(_sync_all, contents)
            if self._closed or not self._opened:
                raise ValueError("the event log is not open")
            self._gather(entry)
            while not entry.durable and entry.refused is None:
                with suppress(OSError):  # it may be others' line
                    await self._write(durable=True)
        if entry.refused is not None:
            raise entry.refused

    async def flush(self) -> None:
        """Make durable what was gathered, also what is written already, as far as the disk has room."""
        with suppress(OSError):
            await self._write(durable=True)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Write what is gathered, again and again while the body runs."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._write_on)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()
        await self.flush()

    def end(self, event: BatchEvent) -> None:
        """Write what is gathered and the last event, and forget the jobs file: there may be secrets in it.

        Raises:
            OSError: They cannot be written, so that a later command can resume the batch.
        """
        entries = [*self._pending, _Entry(as_line(event), about_jobs=True)]
        self._append_all(entries, durable=True)
        self._pending = []
        self.results.jobs_file.unlink(missing_ok=True)
        self.results.jobs_stream.unlink(missing_ok=True)
        with suppress(OSError):  # there is something that is not ours
            self.results.resume.rmdir()

    def close(self) -> None:
        """Let go of the file; another command may resume the batch."""
        self._closed = True
        if self._file is not None:
            os.close(self._file)
            self._file = None

    # --- on the event loop ---------------------------------------------------------------------------------------

    def _gather(self, entry: _Entry) -> None:
        if not self._closed:
            self._pending.append(entry)
            self._gathered.set()

    async def _write_on(self) -> None:
        while True:
            await self._gathered.wait()
            await anyio.sleep(PAUSE)
            with suppress(OSError):
                await self._write(durable=False)

    async def _write(self, *, durable: bool) -> None:
        """Write all that was gathered when its turn comes, at once: who waits meanwhile, waits for one `fsync`."""
        with anyio.CancelScope(shield=True):
            async with self._turn:
                await self._write_gathered(durable=durable)

    async def _write_gathered(self, *, durable: bool) -> None:
        await checkpoint()  # whoever is about to gather something joins in
        if not self._opened:
            return
        entries, self._pending, self._gathered = self._pending, [], anyio.Event()
        if not entries and not (durable and self._unsynced):
            return
        awaited = durable or any(entry.awaited for entry in entries)
        try:
            await self._offload(self._append_all, entries, durable=awaited)
        except OSError as error:
            self._refuse(entries, error)
            raise
        self._failing = False
        for entry in entries:
            entry.durable = awaited

    def _refuse(self, entries: Sequence[_Entry], error: OSError) -> None:
        """Say it to those who wait; keep what is about jobs, which nobody will write again."""
        if not self._failing:
            log.warning("events_not_written", extra={"path": str(self.results.events), "error": str(error)})
        self._failing = True
        for entry in entries:
            if entry.awaited:
                entry.refused = error
        self._pending[:0] = [entry for entry in entries if entry.about_jobs and not entry.awaited]

    # --- in a worker thread, or where nothing else happens -------------------------------------------------------

    def _make(self, lines: Sequence[bytes]) -> None:
        """Make the file, for our user's eyes only, and with its first lines in it at once."""
        make_private(self.results.directory, hide=True)
        self._keep_jobs_file()
        draft = draft_of(self.results.events)
        self._lock(draft, os.O_CREAT)
        if self.results.events.exists():
            self.close()
            raise FileExistsError(f"{self.results.events} belongs to another batch")
        os.ftruncate(self._descriptor, 0)
        self._append(lines, durable=True)
        draft.rename(self.results.events)
        _sync(self.results.directory)
        _sync(self.results.directory.parent)

    def _keep_jobs_file(self) -> None:
        """Keep a copy of what the batch is made from, until it is over."""
        if self.jobs_file is not None:
            make_private(self.results.resume, hide=True)
            write_whole(self.results.jobs_file, self.text.encode())

    @property
    def _descriptor(self) -> int:
        if self._file is None:
            raise ValueError("the event log is closed")
        return self._file

    def _lock(self, path: Path, flags: int = 0) -> None:
        self._file = open_private(path, flags | os.O_RDWR | os.O_APPEND)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise CannotResume(f"the batch in {self.results.directory} is still being run; end that first") from None

    def _read(self) -> None:
        """See what happened, and cut off what was not written to its end."""
        path = self.results.events
        try:
            with path.open("rb") as file:
                self.past = fold(self._noted(parse(self._counted(whole_lines(file)))))
        except RecordUnreadable as error:
            hint = "" if ";" in str(error) else "; start a new batch"
            raise CannotResume(f"{path} cannot be used: {error}{hint}") from error
        except ValueError as error:
            raise CannotResume(f"{path} is damaged: {error}; start a new batch") from error
        os.truncate(path, self._size)
        copy = self.results.jobs_file
        self.text = self._kept = copy.read_text(encoding="utf-8", errors="replace") if copy.is_file() else ""

    def _counted(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Take the size of the lines as they go by."""
        self._size = 0
        for line in lines:
            self._size += len(line)
            yield line

    def _noted(self, events: Iterable[RecordedEvent]) -> Iterator[RecordedEvent]:
        """Learn from the first event what the batch is made from, and where it runs."""
        for event in events:
            if isinstance(event, Begun):
                self.jobs_file = Path(event.jobs_file) if event.jobs_file else None
                self.streamed = event.streamed
                self.socket = Path(event.socket) if event.socket else None
                self.id = event.id
            yield event

    def _append_all(self, entries: Sequence[_Entry], *, durable: bool) -> None:
        """Append the lines of entries, and do what is to be done before and after that."""
        for directory in frozenset[Path]().union(*(entry.directories for entry in entries)):
            _sync(directory)
        self._append([entry.line for entry in entries], durable=durable)
        for entry in entries:
            if entry.then is not None:
                entry.then()

    def _append(self, lines: Sequence[bytes], *, durable: bool) -> None:
        """Append lines whole, or not at all."""
        file, rest = self._descriptor, b"".join(lines)
        size = self._size + len(rest)
        try:
            while rest:
                rest = rest[os.write(file, rest) :]
            if durable:
                os.fsync(file)
        except OSError:
            os.ftruncate(file, self._size)  # half a line must not be in the way of the next one
            raise
        self._size = size
        self._unsynced = not durable


def with_those_over(plan: Plan, past: BatchState) -> Plan:
    """Add to a plan the jobs of a batch that it lacks and that are over for good: what became of them stays known."""
    if plan.names == past.plan.names:
        return plan
    left = (
        (Planned(name="", retries=past.plan.like(record.number).retries), (record.name,))
        for record in past.records
        if record.state.stands and record.name not in plan.names
    )
    return Plan.of_groups(chain(plan.groups(), left))


def _left_in(paths: Iterable[Path]) -> tuple[frozenset[Path], Sequence[Path]]:
    """Find the directories in which something is there of these, and which of them have contents."""
    there = [path for path in paths if os.path.lexists(path)]
    contents = [path for path in there if not path.is_file() or path.stat().st_size]
    return frozenset(path.parent for path in there), contents


def _sync_all(paths: Sequence[Path]) -> None:
    """Make durable what is there."""
    for path in paths:
        _sync_tree(path)


def _sync_tree(path: Path) -> None:
    """Make durable what is there: a file, or a directory with all that is in it, however deep; links as they are."""
    left = [path]
    while left:
        path = left.pop()
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            continue
        with suppress(PermissionError):  # a job may leave what even its owner cannot read
            left += path.iterdir() if path.is_dir() else ()
            _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
