"""An executor that passes everything on to another, for those that get in between."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from attrs import define

from fleeting.connectors import Sink
from taskscaler.executors import JobOutcome, JobSpec, Leased
from taskscaler.executors.instance import InstanceExecutor

T = TypeVar("T")


@define
class PassesOn:
    """See `InstanceExecutor`, which does it."""

    inner: InstanceExecutor

    async def around(self, do: Callable[[], Awaitable[T]]) -> T:
        """Do what is to be done on the instance."""
        return await do()

    def through(self, output: Sink) -> Sink:
        """What gets a job's output."""
        return output

    async def run(self, job: JobSpec, lease: Leased, *, output: Sink, artifacts: Path) -> JobOutcome:
        """See `Executor.run`."""
        return await self.inner.run(job, lease, output=output, artifacts=artifacts)

    async def start(self, job: JobSpec, lease: Leased, *, name: str) -> None:
        """See `Reattaches.start`."""
        await self.around(lambda: self.inner.start(job, lease, name=name))

    async def attach(self, job: JobSpec, lease: Leased, *, output: Sink, **rest: Any) -> JobOutcome:  # noqa: ANN401
        """See `Reattaches.attach`."""
        return await self.around(lambda: self.inner.attach(job, lease, output=self.through(output), **rest))

    async def end(self, lease: Leased, *, name: str) -> None:
        """See `Reattaches.end`."""
        await self.around(lambda: self.inner.end(lease, name=name))
