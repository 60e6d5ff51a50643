"""Tries that outlive the command: how they are named, followed, and ended."""

import logging
from collections import Counter
from hashlib import sha256
from pathlib import Path

import anyio
from attrs import define, field, frozen

from fleeting import ConnectError, Unreachable, Unsupported
from fleeting.errors import NameUnknown
from taskscaler.batch._followed import traced
from taskscaler.batch._job import Job
from taskscaler.batch._log import JobLog
from taskscaler.executors import JobOutcome, Leased, Reattaches, StartsAttached

HASTY_END = 20.0
"""Seconds for which ending a job may hold up its cancellation."""

PAUSES = (0.0, 1.0, 3.0)
"""Seconds to wait before a job is attached to again after the connection broke: it runs on meanwhile."""

BRIEF = 1.0
"""Seconds: a job that takes less is sooner run again than it is worth two more commands on its instance."""

ENOUGH = 8
"""Jobs of a group, one after the other, that show how long the others take."""

_DIGITS = 12

log = logging.getLogger("taskscaler.batch")


def try_name(batch: str, job: str, number: int) -> str:
    """Name a try at a job, so that every command that runs the batch does so alike and no other batch does.

    Args:
        batch: Its id.
        job: The job's name.
        number: The number of the try, from 1.
    """
    return f"{batch}-{sha256(job.encode()).hexdigest()[:_DIGITS]}-{number}"


@define
class Durations:
    """How long jobs take that are alike, so that nothing is spent on keeping very small ones."""

    _brief: Counter[str] = field(factory=Counter, init=False)
    """How many of each group were brief, one after the other."""

    def learn(self, group: str, seconds: float) -> None:
        """A job of a group has ended by itself."""
        self._brief[group] = self._brief[group] + 1 if seconds < BRIEF else 0

    def outlive(self, job: Job, group: str) -> bool:
        """Whether a job is to outlive its command; what it says itself counts first."""
        if job.detach is not None:
            return job.detach
        if job.expected_duration is not None:
            return job.expected_duration >= BRIEF
        return not group or self._brief[group] < ENOUGH


@frozen
class Outliving:
    """One try at a job on a slot, where it lives on if this command is killed."""

    executor: Reattaches
    lease: Leased
    job: Job
    name: str
    artifacts: Path

    async def run(self, output: JobLog, logged: int) -> JobOutcome:
        """Start it and see it through; if jobs cannot outlive commands there, run it."""
        spec = traced(self.job.spec)
        began, has_started = anyio.current_time(), False

        def started() -> None:
            nonlocal began, has_started
            has_started = True
            if not spec.files:  # else the upload counts
                began = anyio.current_time()

        try:
            if isinstance(self.executor, StartsAttached):
                return await self.executor.start_attached(
                    spec,
                    self.lease,
                    name=self.name,
                    started=started,
                    output=output.write,
                    artifacts=self.artifacts,
                )
            await self.executor.start(spec, self.lease, name=self.name)
            started()
        except Unsupported as error:
            if has_started:
                raise
            log.info("not_detached", extra={"job": self.job.name, "why": str(error)})
            return await self.executor.run(spec, self.lease, output=output.write, artifacts=self.artifacts)
        except Unreachable:
            if not has_started:
                raise
            log.info("try_left_alone", extra={"job": self.job.name, "try": self.name})
        return await self.follow(output, logged, began=began)

    async def go_on(self, output: JobLog, logged: int, *, began: float) -> JobOutcome:
        """See it through after an earlier command; one that was killed just before it could start this starts it now.

        Of a try that has printed something and is not known there, nobody knows what became.
        """
        try:
            return await self.follow(output, logged, began=began)
        except NameUnknown:
            if output.total > logged:
                raise
        return await self.run(output, logged)

    async def follow(self, output: JobLog, logged: int, *, began: float) -> JobOutcome:
        """See it to its end; where the log breaks off, the rest is taken from the instance.

        Args:
            output: Its log.
            logged: What `JobLog.total` was before the try.
            began: When it did, by the event loop's clock.
        """
        for pause in (*PAUSES, None):
            try:
                return await self.executor.attach(
                    self.job.spec,
                    self.lease,
                    name=self.name,
                    offset=output.total - logged,
                    elapsed=anyio.current_time() - began,
                    output=output.write,
                    artifacts=self.artifacts,
                )
            except Unreachable:
                if pause is None:
                    raise
                await anyio.sleep(pause)
        raise AssertionError("the last try raises")

    async def end(self) -> None:
        """Leave nothing of it on the instance, even if this is cancelled; what fails is only logged."""
        with anyio.move_on_after(HASTY_END, shield=True) as scope:
            try:
                await self.executor.end(self.lease, name=self.name)
            except (ConnectError, Unsupported, OSError) as error:
                log.warning("try_left", extra={"job": self.job.name, "try": self.name, "error": str(error)})
        if scope.cancelled_caught:
            log.warning("try_left", extra={"job": self.job.name, "try": self.name, "error": "it took too long"})
