"""What the agent answers: GitLab's `StepRunner`, and our `Results`."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread
from anyio.abc import ByteStream, TaskGroup

from job_steps import _messages as says
from job_steps._agent._answering import answer, read
from job_steps._agent._closed import Closed
from job_steps._agent._directory import remove_set_aside
from job_steps._agent._held_service import HeldService
from job_steps._agent._holding import attach_command
from job_steps._agent._job import LONGEST_ID, KeptJob, directory_of, now
from job_steps._agent._leftovers import end_leftovers
from job_steps._agent._running import Outcome, Prepared, Rules, prepare, remove_left_containers, run
from job_steps._call_errors import CallFailed
from job_steps._call_status import Code
from job_steps._grpc import LONGEST_MESSAGE
from job_steps._grpc_server import Handler, Presence, Respond, serve
from job_steps._messages import Cause, RunState
from job_steps._protobuf import encode
from job_steps._removing import remove_tree

_log = logging.getLogger("job_steps.agent")

MOST_JOBS: Final = 500
"""That are kept; a job that is over is kept until it is closed. Each has a file open, and systems allow 1,024."""

CLAIMED_WITHIN: Final = 86400.0
"""Seconds in which somebody closes a job that is over, unless its manager is gone for good: then it makes room."""

_MOST_NAMES: Final = 10_000
"""In the directory of all jobs, that are looked at."""

REMOVE_TIMEOUT: Final = 20.0
"""Seconds that an agent gives an engine to remove what earlier jobs have left, before it listens: its manager waits."""

_REMOVALS: Final = 8
"""Jobs whose containers are removed at one time."""

END_TIMEOUT: Final = 100.0
"""Seconds that a job that is closed may take to end, after which its caller hears that it has not."""


class Service:
    """The jobs of one agent."""

    def __init__(self, directory: Path, tasks: TaskGroup, rules: Rules) -> None:
        """Begin with what an earlier agent has left.

        Args:
            directory: Where jobs are kept.
            tasks: Jobs run in it.
            rules: What jobs have to obey.
        """
        self._directory = directory
        self._tasks = tasks
        self._rules = rules
        self._jobs: dict[str, KeptJob] = {}
        self._closed = Closed()
        self._starting = anyio.Lock()
        self._held = HeldService(
            lambda job: self._job(job).holding, lambda: [job.holding for job in self._jobs.values()]
        )
        for kept in sorted(islice(directory.iterdir(), _MOST_NAMES)):
            if len(self._jobs) < MOST_JOBS and (job := KeptJob.load(kept)):
                self._jobs[job.id] = job
                job.done.set()

    async def take_over(self) -> None:
        """End what an agent that was killed has left running."""
        await to_thread.run_sync(remove_set_aside, self._directory)
        lost = [job for job in self._jobs.values() if not job.state.is_over]
        for job in lost:
            await to_thread.run_sync(end_leftovers, job.mark)
        removals = anyio.CapacityLimiter(_REMOVALS)

        async def remove(job: KeptJob) -> None:
            async with removals:
                await remove_left_containers(job.mark, job.note)

        with anyio.move_on_after(REMOVE_TIMEOUT):  # what is left then goes when its job is closed
            async with anyio.create_task_group() as removing:
                for job in lost:
                    removing.start_soon(remove, job)
        for job in lost:
            job.lose()

    @property
    def running(self) -> int:
        """How many jobs have not ended."""
        return sum(not job.state.is_over for job in self._jobs.values())

    @contextmanager
    def connected(self) -> Iterator[Mapping[str, Handler]]:
        """What can be called through one connection, for as long as calls come through it, or are under way."""
        connection = self._closed.connect()
        try:
            yield {
                says.RUN: partial(answer, says.RunMessage, partial(self._run, connection)),
                says.STATUS: partial(answer, says.ById, self._status),
                says.CLOSE: partial(answer, says.ById, partial(self._close, connection)),
                says.GET_RESULTS: partial(answer, says.ById, self._results),
                says.FOLLOW_LOGS: self._follow_logs,
                says.FOLLOW_RESULTS: self._follow_results,
                **self._held.handlers,
            }
        finally:
            self._closed.disconnect(connection)

    async def serve(self, stream: ByteStream, presence: Presence | None = None) -> None:
        """Answer what comes through a stream, until it ends."""
        with self.connected() as handlers:
            await serve(stream, handlers, presence)

    async def _run(self, connection: int, asked: says.RunMessage) -> says.Empty:
        if not 0 < len(asked.id) <= LONGEST_ID:
            raise CallFailed(Code.INVALID_ARGUMENT, f"a job has an id of 1 to {LONGEST_ID} characters")
        closed = self._closed.last(asked.id)
        async with self._starting:
            if asked.id in self._jobs:
                return says.Empty()
            if self._closed.is_late(asked.id, connection):
                raise _late(asked.id)
            await self._make_room()
            prepared = await prepare(asked, self._rules)
            await to_thread.run_sync(remove_tree, directory_of(self._directory, asked.id))  # a job may have been there
            if self._closed.last(asked.id) > closed:  # while it waited, or was prepared
                raise _late(asked.id)
            try:
                job = KeptJob.begin(self._directory, asked.id)
            except OSError as error:
                raise CallFailed(
                    Code.RESOURCE_EXHAUSTED, f"the job cannot be kept in {self._directory}: {error.strerror}"
                ) from error
            job.holding.how_to_attach = attach_command(self._directory.parent, job.id)
            self._jobs[asked.id] = job
            self._tasks.start_soon(self._see_through, job, prepared)
        return says.Empty()

    async def _make_room(self) -> None:
        """Have room for one job more: the one goes that nobody has come for longest, if that is long."""
        if len(self._jobs) < MOST_JOBS:
            return
        over = [(job.ended, job) for job in self._jobs.values() if job.done.is_set() and job.ended is not None]
        ended, oldest = min(over, default=(None, None), key=lambda one: one[0])
        if ended is None or oldest is None or (now() - ended).total_seconds() < CLAIMED_WITHIN:
            raise CallFailed(
                Code.RESOURCE_EXHAUSTED, f"the agent keeps {MOST_JOBS} jobs already; close those that are over"
            )
        _log.warning("step_job_forgotten", extra={"job": oldest.id})
        await self._forget(oldest)

    async def _see_through(self, job: KeptJob, prepared: Prepared) -> None:
        """Run a job to its end, whatever that is."""
        try:
            with job.scope:
                async with anyio.create_task_group() as beside:
                    beside.start_soon(job.save_while_it_grows)
                    outcome = await self._outcome(job, prepared)
                    beside.cancel_scope.cancel()
                job.end(outcome.state, outcome.message, outcome.cause)
        finally:
            if job.is_closed and not job.state.is_over:
                job.end(RunState.CANCELLED, "it was closed", Cause.CLOSED)
            elif not job.state.is_over:  # the agent was terminated: by another job, perhaps, or as its instance ends
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(end_leftovers, job.mark)
                job.lose()

    async def _outcome(self, job: KeptJob, prepared: Prepared) -> Outcome:
        """Run a job; what it could not be run for is how it ended."""
        try:
            return await run(
                prepared,
                mark=job.mark,
                files=job.files,
                note=job.note,
                log=job.log.write,
                on_result=job.grow,
                holding=job.holding,
            )
        except OSError as error:  # a disk is full, for example
            why = f"the job cannot be run there: {error.strerror or error}"
        except Exception:  # noqa: BLE001  (one job's is no reason to end the others)
            _log.exception("step_job_failed", extra={"job": job.id})
            why = "the agent has an error of its own; see what it logs"
        return Outcome(state=RunState.FAILURE, message=why)

    async def _status(self, asked: says.ById) -> says.StatusesMessage:
        jobs = [self._job(asked.id)] if asked.id else self._jobs.values()
        return says.StatusesMessage(jobs=[job.status() for job in jobs])

    async def _close(self, connection: int, asked: says.ById) -> says.Empty:
        if 0 < len(asked.id) <= LONGEST_ID:
            self._closed.close(asked.id, connection)
        if (job := self._jobs.get(asked.id)) is None:
            return says.Empty()
        job.is_closed = True
        job.scope.cancel()
        with anyio.move_on_after(END_TIMEOUT):
            await job.done.wait()
        if not job.done.is_set():
            raise CallFailed(Code.INTERNAL, f"the job {job.id} has not ended within {END_TIMEOUT:g} s; try again")
        await self._forget(job)
        return says.Empty()

    async def _forget(self, job: KeptJob) -> None:
        """End what is left of a job that is over, and keep nothing of it."""
        await to_thread.run_sync(end_leftovers, job.mark)
        await remove_left_containers(job.mark, job.note)
        if self._jobs.get(job.id) is job:
            del self._jobs[job.id]
            left = job.forget()
            await to_thread.run_sync(remove_tree, left)

    async def _results(self, asked: says.ById) -> says.ResultsMessage:
        return _results(self._job(asked.id))

    async def _follow_results(self, request: bytes, respond: Respond) -> None:
        job = self._job(read(says.ById, request).id)
        while True:
            changed, is_over = job.changed, job.done.is_set()
            await respond(encode(_results(job)))
            if is_over:
                return
            await changed.wait()

    async def _follow_logs(self, request: bytes, respond: Respond) -> None:
        asked = read(says.FollowLogsMessage, request)
        if asked.offset < 0:
            raise CallFailed(Code.OUT_OF_RANGE, f"a log cannot be read from byte {asked.offset}; the first one is 0")
        async with aclosing(self._job(asked.id).log.follow(asked.offset)) as pieces:
            async for piece in pieces:
                await respond(encode(says.LogsMessage(data=piece)))

    def _job(self, name: str) -> KeptJob:
        if job := self._jobs.get(name):
            return job
        raise CallFailed(Code.NOT_FOUND, f"no job with id {name[:LONGEST_ID]!r}")


def _late(job: str) -> CallFailed:
    return CallFailed(
        Code.FAILED_PRECONDITION,
        f"the job {job!r} was closed after this was sent, or may have been; connect again to run another of that id",
    )


def _results(job: KeptJob) -> says.ResultsMessage:
    tree = job.results()
    if len(tree) > LONGEST_MESSAGE - 64:
        raise CallFailed(
            Code.RESOURCE_EXHAUSTED,
            f"the results of the job have {len(tree)} bytes, more than the limit of {LONGEST_MESSAGE >> 20} MiB",
        )
    return says.ResultsMessage(tree=tree, is_final=job.done.is_set())
