"""A job of GitLab's as the daemon's clients see it: among batches, as one with a single job."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
from attrs import frozen

from fleeting import Usage
from fleeting.plugins import one_line, span
from gitlab_jobs import End, shorten
from taskscaler.uses import dearest
from taskscaler_gitlab._finished import Finished
from taskscaler_gitlab._record import Stage
from taskscaler_gitlab._wording import as_batch, as_job, over_in_words
from taskscaler_gitlab._work import Work
from taskscaler_gitlab.relay import RelayWork

_ENDS = {
    End.REVOKED: "GitLab wanted no more of it",
    End.GIVEN_UP: "GitLab did not take its end",
    End.ABANDONED: "it was left to another runner",
}


@frozen
class JobView:
    """One of them."""

    work: Work | RelayWork

    @property
    def id(self) -> str:
        """What it is asked for by."""
        cell = self.work.shop.cell
        return f"gitlab-{cell}-{self.work.job.id}" if cell else f"gitlab-{self.work.job.id}"

    @property
    def name(self) -> str:
        """As in the pipeline."""
        return one_line(self.work.job.job_info.name) or str(self.work.job.id)

    @property
    def log(self) -> Path | None:
        """As GitLab gets it."""
        return self.work.log

    @property
    def over(self) -> bool:
        """Whether nothing more comes into its log."""
        return self.work.over.is_set()

    @property
    def left(self) -> bool:
        """Whether the next daemon goes on with it: this one is ending."""
        return self.over and self.work.end is None and not self.work.problem

    @property
    def since(self) -> float:
        """When GitLab handed it out, in seconds since the epoch."""
        return self.work.record.taken_at

    @property
    def state(self) -> str:
        """Where it stands, in one of the words that jobs of batches have."""
        record = self.work.record
        if record.stage is Stage.ENDED:
            ended_early = record.is_canceling or bool(self.work.interrupted)
            return "succeeded" if record.is_success else "cancelled" if ended_early else "failed"
        if self.over:
            return "cancelled" if self.work.end else "queued"
        return "queued" if self.work.lease is None else "running"

    @property
    def why(self) -> str:
        """Why it stands there."""
        if self.work.problem:
            return self.work.problem
        if isinstance(self.work, RelayWork) and self.work.untold:
            return self.work.untold
        if self.work.record.stage is Stage.ENDED:
            return self.work.record.failure_reason or "" if not self.work.record.is_success else ""
        return _ENDS.get(self.work.end, "") if self.work.end else ""

    def as_data(self) -> Mapping[str, object]:
        """See `OwnedJob.as_data`."""
        at, taken, is_stuck = self.work.over_at, self.work.record.taken_at, bool(self.work.problem)
        return as_batch(self.id, self.name, self.state, self.why, taken_at=taken, over_at=at, is_stuck=is_stuck)

    def record(self) -> Mapping[str, object]:
        """See `OwnedJob.record`."""
        work = self.work
        until = work.over_at if work.over_at is not None else work.shop.clock.now()
        return as_job(
            self.name,
            self.state,
            self.why,
            tries=work.record.tries,
            instance=work.instance,
            exit_code=work.record.exit_code,
            duration=None if work.begun_at is None else until - work.begun_at,
            usage=self._usage,
        )

    def finished(self) -> Finished:
        """How it ended, for later."""
        work = self.work
        return Finished(
            id=self.id,
            name=self.name,
            project=one_line(work.job.job_info.project_full_path),
            state=self.state,
            why=self.why,
            taken_at=work.record.taken_at,
            begun_at=work.begun_at,
            over_at=work.over_at if work.over_at is not None else work.shop.clock.now(),
            tries=work.record.tries,
            instance=work.instance,
            exit_code=work.record.exit_code,
            cpu_time=self._usage.cpu_time,
            peak_memory=self._usage.peak_memory,
            disk_written=self._usage.disk_written,
            memory_limit=work.memory_limit if isinstance(work, Work) else None,
            steps=dearest(work.steps) if isinstance(work, Work) else (),
            dispatched=work.record.dispatched or None,
        )

    async def wait(self) -> None:
        """Wait until it is over; of one that is left to the next daemon, that says so."""
        await self.work.over.wait()
        if self.left:
            await anyio.sleep_forever()

    def cancel(self) -> None:
        """End it; nothing happens if it is over."""
        self.work.interrupt("The job was cancelled where its runner runs")

    def explain(self) -> Sequence[str]:
        """Where it stands, a sentence each."""
        info = self.work.job.job_info
        what = f"{self.id} ({self.name}{f' of {one_line(info.project_full_path)}' if info.project_full_path else ''})"
        return [f"{what} {self._standing()}", *self.work.account]

    def _standing(self) -> str:
        work, now = self.work, self.work.shop.clock.now()
        if self.over:
            return over_in_words(self.state, self.why, self._usage)
        if work.record.stage is Stage.ENDED:
            return f"has {self.state}; that is being reported to {work.shop.settings.url}"
        if work.lease is not None and work.begun_at is not None:
            return f"runs in slot {work.lease.slot} of {work.lease.instance} for {span(now - work.begun_at)}"
        if at_gate := work.shop.gate.why(work.record.rule, work.record.key):
            return at_gate
        waits = f"waits for its slot for {span(now - work.record.taken_at)}, for the runner {shorten(self._token)}"
        return f"{waits}; placed {work.record.tries - 1} times before" if work.record.tries > 1 else waits

    @property
    def _usage(self) -> Usage:
        """What it has used here; what a sidecar's jobs have, GitLab Runner knows."""
        return self.work.usage if isinstance(self.work, Work) else Usage()

    @property
    def _token(self) -> str:
        return self.work.shop.settings.token
