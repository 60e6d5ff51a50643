"""One job at GitLab: drives a `Report` while somebody else runs the job."""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import TaskStatus
from attrs import evolve

from gitlab_jobs._client import GitLabClient
from gitlab_jobs._job import NO_ANSWER, Answer, End, Outcome, Phase, Report, Request, known_reason
from gitlab_jobs._masking import Masker
from gitlab_jobs._payload import Job
from gitlab_jobs._trace import Trace

FAREWELL = 30.0
"""Seconds that a job has to be reported as failed when what ran it is broken off."""

_log = logging.getLogger("gitlab_jobs")


class Reporting:
    """A job, as GitLab sees it. Made by `reporting`."""

    def __init__(self, client: GitLabClient, job: Job, report: Report, info: Mapping[str, Any]) -> None:
        """Report on a job."""
        self.job = job
        self.report = report
        self.canceling = anyio.Event()
        """Set when GitLab wants the job to end: stop its script, run what comes after it, then `finish`."""

        self.over = anyio.Event()
        """Set when GitLab wants no more of the job, or has its end: stop whatever still runs."""

        self.kept = anyio.Event()
        """Set when GitLab has said that it keeps the job for us until it is claimed: it may go back until then."""

        self.is_handed_over = False
        """Whether nothing more is said of the job from here; see `hand_over`."""

        self._client = client
        self._info = info
        self._hidden = {each.value for each in job.variables if each.masked}
        self._masker = Masker(self._hidden, prefixes=job.features.token_mask_prefixes)
        self._claimed = anyio.Event()
        self._changed = anyio.Event()
        self._has_failed = False

    def hide(self, values: Iterable[str]) -> None:
        """Hide these too in what is logged from here on: secrets that the job has beside its masked variables."""
        self.report.trace.write(self._masker.end())
        self._hidden.update(values)
        self._masker = Masker(self._hidden, prefixes=self.job.features.token_mask_prefixes)

    def log(self, data: bytes) -> None:
        """Add to the job's log; what is secret is hidden first."""
        self.report.trace.write(self._masker.feed(data))
        self._wake()

    def note(self, line: str) -> None:
        """Add a line of the runner's own to the log, whatever its limit; see `Trace.note`."""
        self.report.trace.note(line)
        self._wake()

    def end_log(self) -> None:
        """Add what was held back because a secret might have begun there: nothing more is printed.

        `finish` does it, too; this is for who notes down that the job has ended before it tells GitLab.
        """
        self.report.trace.write(self._masker.end())
        self.report.trace.end()

    async def claim(self) -> bool:
        """Take the job for good, now that it can run; false if it is not ours any more."""
        self.report.start(anyio.current_time())
        self._wake()
        await self._claimed.wait()
        return self.report.is_claimed

    async def finish(self, outcome: Outcome) -> End:
        """Send the rest of the log and how the job ended; returns when GitLab has it, or wants no more of it."""
        self.end_log()
        self.report.finish(_in_its_words(self.job, outcome), anyio.current_time())
        self._wake()
        await self.over.wait()
        return self.report.end or End.GIVEN_UP

    def hand_over(self) -> None:
        """Say no more about the job: whoever goes on with it, after a restart, goes on with its report, too.

        What that needs is the job, its log, and where its report was; see `reporting`.
        """
        self.is_handed_over = True
        self.over.set()
        self._claimed.set()
        self._wake()

    async def leave(self) -> None:
        """End it for whoever does not know how it went: GitLab gives it to somebody else if that is still possible."""
        self.report.abandon()
        self._wake()
        await self.finish(Outcome(is_success=False, failure_reason="runner_system_failure"))

    async def run(self) -> None:
        """Say what there is to say until it is over."""
        report, clock = self.report, anyio.current_time
        while report.phase is not Phase.OVER and not self.is_handed_over:
            self._changed = anyio.Event()
            request = report.request(clock())
            if request is not None:
                report.answered(await self._send(request), clock())
                self._announce()
            elif report.wake is not None:
                with anyio.move_on_after(report.wake - clock()):
                    await self._changed.wait()
        self._announce()

    async def _send(self, request: Request) -> Answer:
        """Send it; what fails in a way that nobody foresaw is as good as lost, and is logged once for each job."""
        try:
            return await self._client.send(self.job, request, info=self._info)
        except Exception:  # noqa: BLE001  (logged, and the call is made again)
            level, self._has_failed = logging.DEBUG if self._has_failed else logging.ERROR, True
            _log.log(level, "call_failed", exc_info=True, extra={"job": self.job.id})
            return NO_ANSWER

    def _announce(self) -> None:
        if self.report.is_kept:
            self.kept.set()
        if self.report.is_canceling:
            self.canceling.set()
        if self.report.phase is Phase.OVER:
            self.over.set()
        if self.report.is_claimed or self.report.phase is Phase.OVER:
            self._claimed.set()

    def _wake(self) -> None:
        self._changed.set()


@asynccontextmanager
async def reporting(
    client: GitLabClient,
    job: Job,
    *,
    info: Mapping[str, Any] | None = None,
    trace: Trace | None = None,
    resume: Callable[[Trace, float], Report] | None = None,
) -> AsyncIterator[Reporting]:
    """Report on a job while the block runs.

    Who leaves it without `finish`, by an exception or a cancellation, has the job reported as failed by its runner,
    unless it was handed over.

    Args:
        client: The GitLab that it is from.
        job: The job.
        info: What the runner says about itself: the same as when it asked for the job.
        trace: Where the log is kept; in memory by default.
        resume: After a restart, what makes the report of what was known before.
    """
    info = info or {}
    two_phase = (info.get("features") or {}).get("two_phase_job_commit") is True
    trace = trace or Trace()
    now = anyio.current_time()
    report = Report(trace, now, two_phase=two_phase) if resume is None else resume(trace, now)
    report.outcome = report.outcome and _in_its_words(job, report.outcome)
    job_reporting = Reporting(client, job, report, info)
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        scope = await tasks.start(_run_on, job_reporting)
        try:
            yield job_reporting
        except Exception as error:  # noqa: BLE001  (raised again below, as it was)
            failure = error
        finally:
            if not job_reporting.over.is_set():
                with anyio.move_on_after(FAREWELL, shield=True):
                    await job_reporting.leave()
            scope.cancel()
    if failure is not None:
        raise failure


async def _run_on(job: Reporting, *, task_status: TaskStatus[anyio.CancelScope]) -> None:
    """Report also while what ran the job is being cancelled."""
    with anyio.CancelScope(shield=True) as scope:
        task_status.started(scope)
        await job.run()


def _in_its_words(job: Job, outcome: Outcome) -> Outcome:
    """With a reason that this GitLab knows."""
    reason = outcome.failure_reason
    return evolve(outcome, failure_reason=reason and known_reason(reason, job.features.failure_reasons))
