"""A job of GitLab's as the daemon's clients see it: among batches, as one with a single job."""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from attrs import frozen

from fleeting.plugins import one_line, span
from gitlab_jobs import End, shorten
from taskscaler_gitlab._record import Stage
from taskscaler_gitlab._work import Work

_ENDS = {
    End.REVOKED: "GitLab wanted no more of it",
    End.GIVEN_UP: "GitLab did not take its end",
    End.ABANDONED: "it was left to another runner",
}


@frozen
class JobView:
    """One of them."""

    work: Work

    @property
    def id(self) -> str:
        """What it is asked for by."""
        return f"gitlab-{self.work.job.id}"

    @property
    def name(self) -> str:
        """As in the pipeline."""
        return one_line(self.work.job.job_info.name) or str(self.work.job.id)

    @property
    def log(self) -> Path | None:
        """As GitLab gets it."""
        return self.work.directory.trace if self.work.directory.path.exists() else None

    @property
    def over(self) -> bool:
        """Whether nothing more comes into its log."""
        return self.work.over.is_set()

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
        if self.work.record.stage is Stage.ENDED:
            return self.work.record.failure_reason or "" if not self.work.record.is_success else ""
        return _ENDS.get(self.work.end, "") if self.work.end else ""

    def as_data(self) -> Mapping[str, object]:
        """See `OwnedJob.as_data`."""
        at = self.work.over_at
        return {
            "batch": self.id,
            "name": self.name,
            "uid": os.geteuid(),
            "submitted": _iso(self.work.record.taken_at),
            "state": "stuck" if self.work.problem else self.state,
            "why": self.why,
            "jobs": {self.state: 1},
            "ended": None if at is None else _iso(at),
        }

    def record(self) -> Mapping[str, object]:
        """See `OwnedJob.record`."""
        work = self.work
        until = work.over_at if work.over_at is not None else work.shop.clock.now()
        return {
            "name": self.name,
            "state": self.state,
            "why": self.why,
            "tries": work.record.tries,
            "instance": work.instance,
            "exit_code": work.record.exit_code,
            "duration": None if work.begun_at is None else round(until - work.begun_at, 3),
        }

    async def wait(self) -> None:
        """Wait until it is over."""
        await self.work.over.wait()

    def cancel(self) -> None:
        """End it; nothing happens if it is over."""
        self.work.interrupt("The job was cancelled where its runner runs")

    def explain(self) -> Sequence[str]:
        """Where it stands, a sentence each."""
        info = self.work.job.job_info
        what = f"{self.id} ({self.name}{f' of {one_line(info.project_full_path)}' if info.project_full_path else ''})"
        return [f"{what} {self._standing()}", *self._log_sent()]

    def _standing(self) -> str:
        work, now = self.work, self.work.shop.clock.now()
        if self.over:
            return f"is over: {self.state}{f' ({self.why})' if self.why else ''}"
        if work.record.stage is Stage.ENDED:
            return f"has {self.state}; that is being reported to {work.shop.settings.url}"
        if work.lease is not None and work.begun_at is not None:
            return f"runs in slot {work.lease.slot} of {work.lease.instance} for {span(now - work.begun_at)}"
        waits = f"waits for its slot for {span(now - work.record.taken_at)}, for the runner {shorten(self._token)}"
        return f"{waits}; placed {work.record.tries - 1} times before" if work.record.tries > 1 else waits

    @property
    def _token(self) -> str:
        return self.work.shop.settings.token

    def _log_sent(self) -> Sequence[str]:
        if self.work.report is None:
            return ()
        trace = self.work.report.report.trace
        return (f"GitLab has {trace.sent} of the {trace.size} bytes of its log",)


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
