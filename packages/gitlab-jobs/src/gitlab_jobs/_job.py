"""One job towards its coordinator: what to send when, and what the answers mean: pure.

The coordinator may be away, answers may be lost, come late or come twice, and this process may be started again. Three
things make that harmless: the log at an offset never changes (`Trace`), so that a patch can be repeated; a final state
can be repeated, since the coordinator refuses it once it has it, and says which it has; and there is one request at a
time, so that no answer is taken for another's.

A job goes *preparing* (GitLab may still give it to somebody else) → *claiming* → *running* → *finishing* → *over*.
"""

import re
from collections.abc import Collection, Mapping
from enum import Enum
from http import HTTPStatus
from typing import TypeAlias

from attrs import evolve, frozen

from gitlab_jobs._trace import MAX_PATCH, Patch, Trace

INTERVAL = 3.0
"""Seconds between two patches, until the coordinator names another interval."""

MAX_INTERVAL = 15 * 60.0
"""No coordinator can ask for more."""

KEEP_ALIVE = 30.0
"""Seconds without a successful call after which a running job says that it lives."""

PENDING = 15.0
"""Seconds between two calls that say that a job is being prepared."""

FIRST_RETRY, MAX_RETRY = 1.0, 60.0
"""Seconds before a claim or a final call is repeated: doubled each time."""

CLAIM_PATIENCE = 5 * 60.0
"""Seconds after which a claim is given up that nobody answers: the job runs nowhere else because of it."""

FINAL_PATIENCE = 2 * 3600.0
"""Seconds after which a final state is given up that nobody takes; GitLab has its own time limit for the job."""

SUMS = 10
"""So often a log is sent again because its checksum differs, which takes some minutes; after that the final state goes
without one, since it matters more."""

LOG_PATIENCE = FINAL_PATIENCE / 4
"""Seconds after which the rest of a log that nobody takes is left, so that the final state gets through."""

_ALWAYS_KNOWN = {"script_failure", "runner_system_failure", "job_execution_timeout"}
_INSTEAD = {
    "image_pull_failure": "runner_system_failure",
    "runner_external_dependency_failure": "runner_system_failure",
    "runner_configuration_error": "script_failure",
}
_UNKNOWN = "unknown_failure"
_SECONDS = re.compile("[0-9]{1,18}")
_PAGES = frozenset({"text/html", "application/xhtml+xml"})
_REFUSED = frozenset({403})
_NOT_OURS = frozenset({403, 404, 409})
"""In the answer to an update. A patch that is not found may be so because of a proxy: the job goes on."""


class Phase(Enum):
    """Where a job is."""

    PREPARING = "preparing"
    CLAIMING = "claiming"
    RUNNING = "running"
    FINISHING = "finishing"
    OVER = "over"


class End(Enum):
    """What became of the report."""

    REPORTED = "reported"
    """The coordinator has the final state."""

    REVOKED = "revoked"
    """The coordinator wants no more of the job: stop it."""

    GIVEN_UP = "given up"
    """The coordinator did not answer for too long."""

    ABANDONED = "abandoned"
    """The job was not claimed, on purpose: the coordinator gives it to somebody else."""


@frozen(kw_only=True)
class Outcome:
    """How a job ended."""

    is_success: bool
    """Whether everything went well."""

    failure_reason: str | None = None
    """One of GitLab's words if not, such as ``script_failure``."""

    exit_code: int | None = None
    """The script's."""

    @property
    def state(self) -> str:
        """The word for it in the protocol."""
        return "success" if self.is_success else "failed"


@frozen(kw_only=True)
class Update:
    """A call of ``PUT jobs/:id``."""

    state: str
    """``pending``, ``running``, ``success`` or ``failed``."""

    checksum: str | None = None
    """Of the log, if the call is about it."""

    size: int | None = None
    """Bytes of the log."""

    failure_reason: str | None = None
    """Why it failed."""

    exit_code: int | None = None
    """The script's; left out if it is 0."""


@frozen(kw_only=True)
class Answer:
    """What of an answer to a job's calls matters."""

    status: int | None
    """The HTTP status; `None`: there was no answer."""

    job_status: str | None = None
    """The header ``Job-Status``."""

    held: str | None = None
    """The header ``Range``."""

    interval: float | None = None
    """The header ``X-GitLab-Trace-Update-Interval``, if it is a number of seconds."""

    @classmethod
    def of(cls, status: int, headers: Mapping[str, str]) -> "Answer":
        """Read it from an answer, whose headers' names are looked up as they are here.

        A page is no answer, whatever its status: GitLab's API never sends one, but what stands before it does, to say
        that GitLab is away or that somebody has to sign in.
        """
        if is_page(headers):
            return NO_ANSWER
        interval = _SECONDS.fullmatch(headers.get("X-GitLab-Trace-Update-Interval", ""))
        return cls(
            status=status,
            job_status=headers.get("Job-Status"),
            held=headers.get("Range"),
            interval=float(interval[0]) if interval else None,
        )


def is_page(headers: Mapping[str, str]) -> bool:
    """Whether an answer is meant for a person with a browser."""
    return headers.get("Content-Type", "").partition(";")[0].strip().lower() in _PAGES


NO_ANSWER = Answer(status=None)
"""The connection ended, or nothing came in time."""

Request: TypeAlias = Update | Patch


def known_reason(reason: str, known: Collection[str]) -> str:
    """The word for a failure that this GitLab takes, given those in ``features.failure_reasons``."""
    if reason in _ALWAYS_KNOWN or reason in known:
        return reason
    return _INSTEAD.get(reason, _UNKNOWN)


class Report:
    """What a runner says about one job, and what it learns by that.

    Ask `request` what to send, hand its answer to `answered`, and ask again; if there is nothing to send, wait until
    `wake`, or until something was written or has happened.
    """

    def __init__(
        self,
        trace: Trace,
        now: float,
        *,
        two_phase: bool = False,
        phase: Phase | None = None,
        outcome: Outcome | None = None,
        is_canceling: bool = False,
    ) -> None:
        """Begin, or go on after a restart.

        What has to outlive the process, beside the log, is `phase`, `outcome` and `is_canceling`, written down before
        what `request` gives is sent: what happened since then may be forgotten, and comes about again.

        Args:
            trace: The job's log.
            now: The time, in seconds from any point.
            two_phase: Whether ``two_phase_job_commit`` was among the features that the job was asked for with. Then
                it is claimed once `start` says that it can run, and said to be pending until then; else at once.
            phase: Where it was before a restart.
            outcome: How it ended, if it did before a restart.
            is_canceling: Whether it was being cancelled before a restart.
        """
        self.trace = trace
        self.phase = phase or (Phase.PREPARING if two_phase else Phase.CLAIMING)
        self.is_canceling = is_canceling
        self.outcome = outcome and self._said(outcome)
        self.end: End | None = None
        self.is_kept = False
        """Whether the coordinator has said that it keeps the job for us until it is claimed."""

        self._sent: Request | None = None
        self._since = now  # when claiming or finishing began
        self._retry_at = now
        self._failures = 0
        self._refusals = 0  # so many patches in a row were refused for where they begin
        self._is_log_left = False  # GitLab does not take all of it
        self._mismatches = 0  # so often the coordinator's copy of the log was another one
        self._interval = INTERVAL
        self._patch_at = now
        self._alive_at = now + KEEP_ALIVE
        self._piece = MAX_PATCH

    @property
    def is_claimed(self) -> bool:
        """Whether the job is ours to run."""
        return self.phase in (Phase.RUNNING, Phase.FINISHING)

    @property
    def wake(self) -> float | None:
        """When to ask for a request again, if nothing happens before; `None` while one is under way, and at the end."""
        if self._sent is not None or self.phase is Phase.OVER:
            return None
        if self.phase is Phase.RUNNING:
            return self._alive_at if self.trace.is_sent else min(self._patch_at, self._alive_at)
        return self._retry_at

    def start(self, now: float) -> None:
        """The job can run: claim it."""
        if self.phase is Phase.PREPARING:
            self._begin(Phase.CLAIMING, now)

    def finish(self, outcome: Outcome, now: float) -> None:
        """The job has ended: send the rest of the log, and how it ended.

        One that nobody has claimed yet is claimed first. After a cancellation the outcome is that.
        """
        if self.outcome is not None or self.phase is Phase.OVER:
            return
        self.outcome = self._said(outcome)
        self.trace.end()
        if self.phase is Phase.RUNNING:
            self._begin(Phase.FINISHING, now)
        elif self.phase is Phase.PREPARING:
            self._begin(Phase.CLAIMING, now)

    def abandon(self) -> None:
        """Do not claim the job: GitLab gives it to another runner once the acknowledgement is overdue."""
        if self.phase is Phase.PREPARING:
            self._over(End.ABANDONED)

    def request(self, now: float) -> Request | None:
        """What to send now, if anything: one thing at a time."""
        if self._sent is None and self.phase is not Phase.OVER:
            self._give_up_in_time(now)
            self._sent = self._next(now)
        return self._sent if self.phase is not Phase.OVER else None

    def answered(self, answer: Answer, now: float) -> None:
        """What came back of the last request."""
        sent, self._sent = self._sent, None
        if sent is None or self.phase is Phase.OVER:
            return
        if answer.interval:
            self._interval = min(answer.interval, MAX_INTERVAL)
        if isinstance(sent, Patch):
            self._patched(sent, answer, now)
        else:
            self._updated(sent, answer, now)

    def _next(self, now: float) -> Request | None:
        match self.phase:
            case Phase.PREPARING if now >= self._retry_at:
                return Update(state="pending")
            case Phase.CLAIMING if now >= self._retry_at:
                return Update(state="running")
            case Phase.RUNNING if now >= self._alive_at:
                return self._about_log("running")
            case Phase.RUNNING if now >= self._patch_at:
                return self.trace.patch(self._piece)
            case Phase.FINISHING if now >= self._retry_at:
                self._is_log_left = self._is_log_left or now - self._since >= LOG_PATIENCE
                return (None if self._is_log_left else self.trace.patch(self._piece)) or self._final()
        return None

    def _said(self, outcome: Outcome) -> Outcome:
        """What is said of it: after a cancellation, that."""
        return Outcome(is_success=False, failure_reason="job_canceled") if self.is_canceling else outcome

    def _final(self) -> Update:
        if self.outcome is None:
            raise RuntimeError("a job that has not ended is being finished")
        code = self.outcome.exit_code
        return evolve(
            self._about_log(self.outcome.state), failure_reason=self.outcome.failure_reason, exit_code=code or None
        )

    def _about_log(self, state: str) -> Update:
        if self._is_log_left or self._mismatches > SUMS:
            return Update(state=state)
        return Update(state=state, checksum=self.trace.checksum, size=self.trace.size)

    def _patched(self, patch: Patch, answer: Answer, now: float) -> None:
        self._patch_at = now + self._interval
        match answer.status:
            case 202:
                self.trace.accepted(patch)
                self._succeeded(now)
                self._refusals = 0
            case 416:
                self.trace.refused(answer.held)
                self._refusals += 1
                if self._refusals == 1 and self.trace.sent != patch.start:
                    self._patch_at = now
                    self._succeeded(now)
                else:
                    self._failed(now)  # it says the same again, or something else each time
            case 413:
                self._piece = max(1 << 10, self._piece // 2)  # a proxy between us and GitLab takes less
                self._failed(now)
            case 404 if self.phase is Phase.FINISHING:
                self.trace.sent = self.trace.size  # the final state gets through, or shows that there is no such job
            case _:
                self._failed(now)
        if self._has_outcome(answer):
            self._over(End.REPORTED)
        else:
            self._learn(answer, _REFUSED)

    def _updated(self, update: Update, answer: Answer, now: float) -> None:
        if update.state in ("success", "failed"):
            self._finalized(answer, now)
            return
        self._alive_at = now + KEEP_ALIVE  # also if it failed: patches come in between
        self._learn(answer, _NOT_OURS)
        if self.phase is Phase.OVER:
            return
        if update.state == "pending":
            self._said_pending(answer, now)
        elif answer.status != HTTPStatus.OK:
            self._failed(now)
        else:
            if self.phase is Phase.CLAIMING:
                self._begin(Phase.RUNNING, now)
            self._succeeded(now)
            if self.outcome is not None:
                self._begin(Phase.FINISHING, now)

    def _said_pending(self, answer: Answer, now: float) -> None:
        """The answer to a call that said that the job is being prepared; by now it may be claimed, which is next."""
        self.is_kept = self.is_kept or answer.status == HTTPStatus.OK
        if self.phase is Phase.PREPARING and answer.status == HTTPStatus.BAD_REQUEST:
            self._begin(Phase.CLAIMING, now)  # this GitLab knows no two phases: the job is ours already
        elif self.phase is Phase.PREPARING:
            self._retry_at = now + PENDING

    def _finalized(self, answer: Answer, now: float) -> None:
        match answer.status:
            case 200:
                self._over(End.REPORTED)
            case 202:
                self._retry_at = now + self._interval
            case 412:
                self.trace.restart()
                self._retry_at = now + _backoff(self._mismatches)
                self._mismatches += 1
            case 403 if self._has_outcome(answer):
                self._over(End.REPORTED)
            case 403 | 404 | 409:
                self._over(End.REVOKED)
            case _ if answer.job_status == "canceled":
                self._over(End.REVOKED)
            case _:
                self._failed(now)

    def _has_outcome(self, answer: Answer) -> bool:
        """Whether a call is refused because our final state is there: the answer to an earlier one was lost."""
        if answer.status != HTTPStatus.FORBIDDEN or self.outcome is None:
            return False
        return answer.job_status == ("canceled" if self.is_canceling else self.outcome.state)

    def _learn(self, answer: Answer, over: Collection[int]) -> None:
        """Whether the coordinator wants no more of the job, or wants it to end soon."""
        if answer.status in over or answer.job_status in ("canceled", "failed"):
            self._over(End.REVOKED)
        elif answer.job_status == "canceling":
            self.is_canceling = True

    def _begin(self, phase: Phase, now: float) -> None:
        self.phase = phase
        self._since = self._retry_at = self._patch_at = now
        self._failures = 0

    def _succeeded(self, now: float) -> None:
        self._alive_at = now + KEEP_ALIVE
        self._retry_at = now
        self._failures = 0

    def _failed(self, now: float) -> None:
        self._retry_at = now + _backoff(self._failures)
        self._failures += 1

    def _give_up_in_time(self, now: float) -> None:
        patience = {Phase.CLAIMING: CLAIM_PATIENCE, Phase.FINISHING: FINAL_PATIENCE}.get(self.phase)
        if patience is not None and now - self._since >= patience:
            self._over(End.GIVEN_UP)

    def _over(self, end: End) -> None:
        self.phase, self.end = Phase.OVER, end


def _backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row; there may be thousands while a GitLab is away."""
    return min(FIRST_RETRY * (1 << min(failures, 10)), MAX_RETRY)
