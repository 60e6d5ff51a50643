"""The executor: futures for work that runs on a fleet."""

import logging
import math
import os
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from errno import EEXIST
from functools import partial
from itertools import count
from pathlib import Path
from secrets import token_hex
from threading import Lock
from types import TracebackType
from typing import Any, overload

import anyio
from anyio import to_thread
from attrs import asdict, define, field

import taskscaler
from fleeting import Duration, Unreachable
from fleeting.config import as_given, check, path_like
from fleeting.connectors import Sink
from fleeting.plugins import make_private
from taskscaler._errors import LeaseLost, TaskscalerError
from taskscaler._lease import Lease
from taskscaler.executors import Executor as JobExecutor
from taskscaler.executors import JobOutcome, JobSpec, load_executor
from taskscaler.executors._errors import documented, named
from taskscaler.futures._future import FleetFuture, Stage
from taskscaler.futures._ticket import Ticket
from taskscaler.futures._work import Call, Result, Task, Work, task_for
from taskscaler.sync import Taskscaler

log = logging.getLogger("taskscaler.futures")

OUTPUT_LIMIT = 16 << 20
"""Bytes of what some work prints that are kept."""


class FleetExecutor(Executor):
    """Runs scripts, programs, jobs and calls in slots of a scaler; a `concurrent.futures.Executor`.

    What is submitted waits until there is a slot for it. If its instance is lost it is tried again elsewhere, so it
    should be such that it may run twice; what fails by itself is not. May be used from several threads.
    """

    def __init__(
        self,
        scaler: Taskscaler,
        *,
        executor: JobExecutor | None = None,
        retries: int = 2,
        acquire_timeout: float = math.inf,
        artifacts: Path | None = None,
    ) -> None:
        """Prepare; nothing runs before it is submitted.

        Args:
            scaler: Where slots come from; entered by the caller, and left after this executor was shut down.
            executor: Runs a job on an instance. None: the *instance* executor, with its defaults.
            retries: How often work is tried again when its instance was lost.
            acquire_timeout: Seconds that work may wait for its slot, also behind other work; then its future raises
                `NoCapacity`. None of it is waited for then.
            artifacts: Directory for what jobs leave, by the jobs' names. What another program has put there under
                such a name is never replaced; the job's future raises `FileExistsError` then.
        """
        if not isinstance(scaler, Taskscaler):
            hint = "make one with taskscaler.sync.Taskscaler(…) and enter it with `with`"
            found = "one for coroutines" if isinstance(scaler, taskscaler.Taskscaler) else as_given(scaler)
            raise TypeError(f"scaler: expected a taskscaler.sync.Taskscaler, found {found}; {hint}")
        check("retries", retries, int, least=0)
        check("acquire_timeout", acquire_timeout, Duration, least=0, endless=True)
        if artifacts is not None:
            path_like("artifacts", artifacts)
        self._scaler = scaler
        self._portal = scaler.portal
        self._executor = executor if executor is not None else load_executor("instance", {})
        self._retries = retries
        self._acquire_timeout = acquire_timeout
        self._artifacts = None if artifacts is None else Path(artifacts)
        self._prefix = f"futures-{token_hex(4)}"
        self._numbers = count(1)
        self._lock = Lock()
        self._closed = False
        self._under_way: dict[Future[Any], Ticket[Any]] = {}
        self._made: set[Path] = set()
        """Directories of artifacts that are ours to replace."""

    @overload  # type: ignore[override]
    def submit(self, work: Call, /, *args: object, **kwargs: object) -> FleetFuture[Any]: ...
    @overload
    def submit(self, work: Work, /, *args: object) -> FleetFuture[Result]: ...
    def submit(self, work: Work, /, *args: object, **kwargs: object) -> FleetFuture[Any]:
        """Have some work done.

        Args:
            work: A shell script; a program and its arguments; a `JobSpec`; a `Call`.
            args: For a shell script its ``$1``, ``$2`` and so on; for a program more arguments; for a call those of
                the function, which must be JSON.
            kwargs: For a call only.

        Returns:
            A future that gives a `Result`, also if the script fails; for a call, what the function returned. It raises
            `CallFailed` if that raised; `LeaseLost` or `Unreachable` if instances were lost too often; `NoCapacity`
            if there was no slot; another `ConnectError` or `OSError` if it cannot be run there; what an executor
            raises by mistake, as it is.

        Raises:
            TypeError: This cannot be submitted.
            RuntimeError: The executor was shut down.
        """
        number = next(self._numbers)
        task = task_for(work, args, kwargs, name=f"work-{number}")
        if isinstance(work, JobSpec) and work.artifacts and self._artifacts is None:
            raise TypeError(f"{work.name} leaves artifacts, but FleetExecutor was given no directory for them")
        ticket = Ticket[Any](key=f"{self._prefix}-{number}", task=task)
        future = ticket.future = FleetFuture(lambda: self._cancel(ticket))
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._under_way[future] = ticket
            try:
                self._portal.start(self._see_through, ticket)
            except BaseException:  # an interrupt, perhaps when it had been started already
                del self._under_way[future]
                self._cancel(ticket)
                raise
        future.add_done_callback(lambda done: self._under_way.pop(done, None))
        return future

    @overload  # type: ignore[override]
    def map(
        self, work: Call, *iterables: Iterable[object], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]: ...
    @overload
    def map(
        self, work: Work, *iterables: Iterable[object], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Result]: ...
    def map(
        self, work: Work, *iterables: Iterable[object], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """Have the work done once for each set of arguments; see `submit` and `concurrent.futures.Executor.map`.

        Returns:
            What the futures give, in the order of the arguments. A caller that stops early, or gets an error, has the
            rest cancelled.
        """
        mapped: Iterator[Any] = super().map(work, *iterables, timeout=timeout, chunksize=chunksize)  # type: ignore[arg-type]
        return mapped

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002  (as documented)
        """Take no more work.

        Args:
            wait: Return only when all that was submitted is done.
            cancel_futures: Cancel what has not begun.
        """
        under_way = self._close()
        if cancel_futures:
            for ticket in under_way.values():
                self._cancel(ticket, only_queued=True)
        if wait:
            wait_for(under_way)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Wait for all that was submitted; an interrupt cancels it all instead."""
        if error is not None and not isinstance(error, Exception):
            for future in self._close():
                future.cancel()
        self.shutdown()
        return None

    def _close(self) -> dict[Future[Any], Ticket[Any]]:
        with self._lock:
            self._closed = True
            return dict(self._under_way)

    def _cancel(self, ticket: Ticket[Any], *, only_queued: bool = False) -> Stage:
        try:
            stage = self._portal.do(ticket.cancel, only_queued)
        except TaskscalerError:  # the scaler has ended, and all work with it
            return Stage.OVER
        if stage is Stage.QUEUED and only_queued:
            Future.cancel(ticket.future)
        return stage

    # --- in the event loop -------------------------------------------------------------------------------

    async def _see_through(self, ticket: Ticket[Any]) -> None:
        """Do the work, or not, and have the future done, whatever becomes of this task."""
        try:
            with ticket.scope:
                ticket.value = await self._try(ticket)
                ticket.error = None
        except Exception as error:  # noqa: BLE001  (it is for the future)
            ticket.error = error
        finally:
            stage, ticket.stage = ticket.stage, Stage.OVER
            with anyio.CancelScope(shield=True):  # in a thread, for the caller's callbacks may take their time
                await to_thread.run_sync(ticket.settle, stage)

    async def _try(self, ticket: Ticket[Any]) -> Any:  # noqa: ANN401  (what the task gives)
        """Run it on one instance after the other, until one is not lost meanwhile."""
        for attempt in count(1):
            try:
                async with self._scaler.scaler.acquire(ticket.key, timeout=self._acquire_timeout) as lease:
                    ticket.begin()
                    return await self._run_on(lease, ticket.task, attempt)
            except (LeaseLost, Unreachable):
                if attempt > self._retries:
                    raise
        raise AssertionError

    async def _run_on(self, lease: Lease, task: Task, attempt: int) -> Any:  # noqa: ANN401  (what the task gives)
        output = _Tail()
        async with self._place_for(task) as artifacts:
            outcome = await self._execute(lease, task, output, artifacts)
            result = Result(
                **asdict(outcome, recurse=False),
                output=output.end,
                instance=lease.instance,
                attempts=attempt,
                artifacts=artifacts if artifacts.exists() else None,
            )
            return task.answer(result)

    async def _execute(self, lease: Lease, task: Task, output: Sink, artifacts: Path) -> JobOutcome:
        """Run it; an error that nobody expects of an executor speaks against the instance, too."""
        try:
            return await self._executor.run(task.spec, lease, output=output, artifacts=artifacts)
        except Exception as raised:
            error = documented(raised)
            if isinstance(error, Unreachable) and not lease.cut_off:  # what should have answered there does not
                lease.mark_suspect(str(error))
            if error is None:
                log.exception("try_failed", extra={"job": task.spec.name, "instance": lease.instance})
                lease.mark_suspect(f"a job failed there unexpectedly: {named(raised)}")
                raise
            raise error from raised.__cause__

    def _place_for(self, task: Task) -> AbstractAsyncContextManager[Path]:
        """Where the artifacts go: to stay, or only to be looked at."""
        if self._artifacts and task.keeps_artifacts and task.spec.artifacts:
            return self._kept(self._artifacts / task.spec.name)
        return _passing()

    @asynccontextmanager
    async def _kept(self, directory: Path) -> AsyncIterator[Path]:
        """A place that stays, without what an attempt or a job of the same name before has left there."""
        if directory in self._made:
            await to_thread.run_sync(partial(shutil.rmtree, directory, ignore_errors=True))
        await to_thread.run_sync(_make_room_for, directory)
        self._made.add(directory)
        yield directory


@define
class _Tail:
    """A sink that keeps the end of what it hears."""

    _data: bytearray = field(factory=bytearray)

    async def __call__(self, chunk: bytes) -> None:
        """Keep it, and less of what came before."""
        self._data += chunk
        if len(self._data) > 2 * OUTPUT_LIMIT:  # not each time: it moves what is kept
            del self._data[:-OUTPUT_LIMIT]

    @property
    def end(self) -> bytes:
        """What is kept."""
        return bytes(self._data[-OUTPUT_LIMIT:])


def _make_room_for(directory: Path) -> None:
    """Make what a job's directory of artifacts goes into, and see that the directory is not there."""
    if not directory.parent.is_dir():
        make_private(directory.parent)
    if os.path.lexists(directory):
        raise FileExistsError(
            EEXIST, "this executor did not create it; remove it, or name another directory", str(directory)
        )


@asynccontextmanager
async def _passing() -> AsyncIterator[Path]:
    async with anyio.TemporaryDirectory(prefix="taskscaler-") as directory:
        yield Path(directory, "artifacts")
