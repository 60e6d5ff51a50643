"""One leg of a job: started once whatever happens, followed, stopped if GitLab wants it."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
from attrs import define, field

from fleeting import Clock, Unreachable, Unsupported
from fleeting.errors import NameUnknown
from gitlab_jobs.client import Reporting
from taskscaler.executors import Executor, JobOutcome, JobSpec, Leased, Reattaches, StartsAttached, Verdict
from taskscaler_gitlab.runner._marks import Marks

_T = TypeVar("_T")

PATIENCE = 300.0
"""Seconds for which an instance may be out of reach while nobody says that it is lost."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before it is tried again: doubled each time."""

STOPPED = 1e9
"""Seconds that a leg has run, as far as its executor is to know, when it is to end now."""


class Revoked(Exception):
    """GitLab wants no more of the job."""


async def _revoked(reporting: Reporting) -> None:
    """Wait until GitLab wants no more of a job; where it is handed over to a later process, that learns it."""
    await reporting.over.wait()
    if reporting.is_handed_over:
        await anyio.sleep_forever()


async def unless_over(reporting: Reporting, do: Callable[[], Awaitable[_T]], *, even_canceling: bool = False) -> _T:
    """Do something for as long as GitLab wants the job.

    Raises:
        Revoked: It does not; or, with *even_canceling*, it wants its end.
    """
    results: list[_T] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:

        async def watch(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch, lambda: _revoked(reporting))
        if even_canceling:
            tasks.start_soon(watch, reporting.canceling.wait)
        try:
            results.append(await do())
        except Exception as error:  # noqa: BLE001  (raised again below, as it was)
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not results:
        raise Revoked
    return results[0]


@define(kw_only=True)
class Running:
    """A leg on its instance."""

    executor: Executor
    lease: Leased
    spec: JobSpec
    name: str
    """The try's."""

    marks: Marks
    reporting: Reporting
    brought: Path
    """Where what it leaves is put; does not exist."""

    may_stop: Callable[[], bool]
    """Whether it is to be stopped where it is now if the job is canceled."""

    may_take: float
    """Seconds that a cancellation waits until it may be stopped: the job itself says where it is, and may lie."""

    stopping: Callable[[], Awaitable[None]]
    """Called before it is."""

    clock: Clock

    _lost_at: float | None = field(default=None, init=False)
    """When the connection broke after which nothing was heard; None: it did not."""

    _changed: anyio.Event = field(factory=anyio.Event, init=False)
    """Something of it was heard."""

    _has_begun: anyio.Event = field(factory=anyio.Event, init=False)

    async def start(self) -> JobOutcome:
        """Start it and see it to its end."""
        executor, began = self.executor, self.clock.now()
        if not isinstance(executor, Reattaches):
            return await self._watched(self._run)
        try:
            if isinstance(executor, StartsAttached):
                return await self._watched(partial(self._start_attached, executor))
            await executor.start(self.spec, self.lease, name=self.name)
        except Unsupported:
            return await self._watched(self._run)
        except Unreachable:  # whether it was started is unknown; if not, it is now
            self._lost_at = self.clock.now()
        return await self.follow(lambda: self.clock.now() - began)

    async def follow(self, elapsed: Callable[[], float]) -> JobOutcome:
        """See it to its end: it was started so many seconds ago, or not at all if its manager was killed then.

        Raises:
            Unreachable: The instance was out of reach for `PATIENCE` seconds, and nothing was heard meanwhile.
        """
        executor = self.executor
        if not isinstance(executor, Reattaches):
            raise NameUnknown(f"the executor cannot resume {self.name}: its jobs end with their manager")
        return await self._watched(lambda: self._persistently(executor, elapsed))

    async def _persistently(self, executor: Reattaches, elapsed: Callable[[], float]) -> JobOutcome:
        """Attach to it, again and again if the connection breaks."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await self._attach(executor, elapsed())
            except Unreachable:
                now = self.clock.now()
                self._lost_at = now if self._lost_at is None else self._lost_at
                if now - self._lost_at >= PATIENCE:
                    raise
            except NameUnknown:
                if self.marks.size:
                    raise
                with suppress(Unreachable):
                    await executor.start(self.spec, self.lease, name=self.name)
                    continue
            await self.clock.sleep_until(self.clock.now() + pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _watched(self, run: Callable[[], Awaitable[JobOutcome]]) -> JobOutcome:
        """Run it until it has ended, or is to be stopped."""
        outcome: JobOutcome | None = None
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch, tasks.cancel_scope)
            try:
                outcome = await run()
            except Exception as error:  # noqa: BLE001  (raised again below, as it was)
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if outcome is not None:
            return outcome
        if self.reporting.over.is_set():
            raise Revoked
        if not isinstance(self.executor, Reattaches):
            return JobOutcome(verdict=Verdict.FAILED, why="it was stopped")
        return await self._persistently(self.executor, lambda: STOPPED)

    async def _watch(self, scope: anyio.CancelScope) -> None:
        """Break it off once it has begun and GitLab wants its end, or no more of it."""
        await self._has_begun.wait()
        async with anyio.create_task_group() as tasks:

            async def on_cancel() -> None:
                await self.reporting.canceling.wait()
                with anyio.move_on_after(self.may_take):
                    while not self.may_stop():
                        await self._changed.wait()
                await self.stopping()
                tasks.cancel_scope.cancel()

            tasks.start_soon(on_cancel)
            await _revoked(self.reporting)
            tasks.cancel_scope.cancel()
        scope.cancel()

    async def _start_attached(self, executor: StartsAttached) -> JobOutcome:
        has_started = False

        def started() -> None:
            nonlocal has_started
            has_started = True
            self._has_begun.set()

        try:
            return await executor.start_attached(
                self.spec, self.lease, name=self.name, started=started, output=self._take, artifacts=self.brought
            )
        except Unsupported:
            if has_started:
                raise
            return await self._run()

    async def _attach(self, executor: Reattaches, elapsed: float) -> JobOutcome:
        self._has_begun.set()
        return await executor.attach(
            self.spec,
            self.lease,
            name=self.name,
            offset=self.marks.size,
            elapsed=elapsed,
            output=self._take,
            artifacts=self.brought,
        )

    async def _run(self) -> JobOutcome:
        self._has_begun.set()
        return await self.executor.run(self.spec, self.lease, output=self._take, artifacts=self.brought)

    async def _take(self, data: bytes) -> None:
        self._lost_at = None
        self.reporting.log(self.marks.feed(data))
        self._changed.set()
        self._changed = anyio.Event()
