"""The coordinator's side of runners and jobs: who may ask what, and what the answer is: pure.

Each rule names where it is from: [sheet] is what gitlab-runner does with the answer (its ``network`` package), [GitLab]
GitLab's own code (``lib/api/ci/runner.rb``, ``lib/api/ci/helpers/runner.rb``, ``update_build_state_service.rb``,
``append_build_trace_service.rb``), [guessed] neither.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from hmac import compare_digest
from typing import Any

from attrs import Factory, define, evolve, field, frozen

from gitlab_jobs._payload import Dependency, Job
from gitlab_jobs._stored_log import StoredLog
from gitlab_jobs._trace import Spool

INTERVAL = 3
"""Seconds between two patches that a runner is asked for."""

ACKNOWLEDGEMENT = 60.0
"""Seconds after which a job that nobody acknowledges goes to another runner [guessed]."""

TRACE_LIMIT = 100 << 20
"""Bytes of a log that GitLab takes; the job fails beyond that [GitLab: its default]."""

_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


class State(Enum):
    """Where a job is, in GitLab's words."""

    CREATED = "created"
    """It waits for other jobs."""

    PENDING = "pending"
    RUNNING = "running"
    CANCELING = "canceling"
    CANCELED = "canceled"
    SUCCESS = "success"
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def is_final(self) -> bool:
        """Whether nothing comes after it."""
        return self in (State.CANCELED, State.SUCCESS, State.FAILED, State.SKIPPED)


@frozen(kw_only=True)
class Reply:
    """An answer, as HTTP has it."""

    status: int
    """The status."""

    headers: Mapping[str, str] = field(factory=dict)
    """Headers that matter."""

    body: Any = None
    """A job, a JSON value, or nothing."""


FORBIDDEN = Reply(status=403, body={"message": "403 Forbidden"})


@define(kw_only=True)
class Stored:
    """A job at the coordinator, and all that became of it."""

    job: Job
    """What the runner gets; its token is made when it is handed out."""

    state: State = State.PENDING
    """Where it is."""

    trace: StoredLog = Factory(StoredLog)
    """The log, as far as it has come."""

    failure_reason: str | None = None
    """Why it failed."""

    exit_code: int | None = None
    """The script's."""

    history: list[State] = Factory(list)
    """The states that it has been in before."""

    acknowledge_by: float | None = None
    """When it goes to another runner; `None` once it is acknowledged."""

    has_runner: bool = False
    """Whether a runner has it, or had it."""

    is_graceful: bool = False
    """Whether its runner can be asked to end it."""

    accepts: int = 0
    """So many more final calls are accepted without being done."""

    retried_as: int | None = None
    """The job that was made of it because nobody acknowledged it."""

    def become(self, state: State) -> None:
        """Move on, once and for all if the state is final."""
        if self.state.is_final:
            raise RuntimeError(f"job {self.job.id} is {self.state.value} already, and cannot become {state.value}")
        self.history.append(self.state)
        self.state = state


class Server:
    """A coordinator without a network: runners ask, and it answers."""

    def __init__(
        self,
        mint: Callable[[], str],
        *,
        accepts: int = 0,
        acknowledgement: float = ACKNOWLEDGEMENT,
        trace_limit: int = TRACE_LIMIT,
        spool: Callable[[int], Spool | None] = lambda _: None,
    ) -> None:
        """Make tokens with *mint*; accept so many final calls of each job with 202 before one is done.

        A log may have so many bytes, and is kept where *spool* says for a job's number; by default in memory.
        """
        self.jobs: dict[int, Stored] = {}
        self.version = 0
        """Grows with every change that may mean a job for somebody."""

        self._mint = mint
        self._accepts = accepts
        self._acknowledgement = acknowledgement
        self._trace_limit = trace_limit
        self._spool = spool
        self._runners: dict[str, int] = {}

    # what the operator does

    def add_runner(self, token: str) -> int:
        """Let the bearer of a token ask for jobs."""
        number = max(self._runners.values(), default=0) + 1
        self._runners[token] = number
        self.version += 1
        return number

    def enqueue(self, job: Job, *, is_ready: bool = True) -> int:
        """Take a job that runners may have; its id and token are given here."""
        number = max(self.jobs, default=0) + 1
        state = State.PENDING if is_ready else State.CREATED
        trace = StoredLog(self._spool(number))
        self.jobs[number] = Stored(job=evolve(job, id=number), state=state, accepts=self._accepts, trace=trace)
        self.version += 1
        return number

    def release(self, number: int, dependencies: tuple[Dependency, ...] = ()) -> None:
        """Let runners have a job that waited for others."""
        stored = self.jobs[number]
        stored.job = evolve(stored.job, dependencies=dependencies)
        stored.become(State.PENDING)
        self.version += 1

    def cancel(self, number: int) -> None:
        """End a job: at once if nobody runs it, or its runner cannot be asked to."""
        stored = self.jobs[number]
        if stored.state is State.RUNNING and stored.is_graceful:
            stored.become(State.CANCELING)
        elif not stored.state.is_final and stored.state is not State.CANCELING:
            stored.become(State.CANCELED)
            self.version += 1

    def latest(self, number: int) -> Stored:
        """What became of a job: the job itself, or the last that was made of it because nobody acknowledged it."""
        stored = self.jobs[number]
        while stored.retried_as is not None:
            stored = self.jobs[stored.retried_as]
        return stored

    # what runners do

    def verify(self, token: str) -> Reply:
        """``POST runners/verify`` [sheet]."""
        number = self._runner(token)
        return FORBIDDEN if number is None else Reply(status=200, body=_runner_body(number, token))

    def register(self) -> Reply:
        """``POST runners`` [sheet]; whoever asks may [guessed]."""
        token = f"glrt-{self._mint()}"
        return Reply(status=201, body=_runner_body(self.add_runner(token), token))

    def unregister(self, token: str) -> Reply:
        """``DELETE runners`` and ``DELETE runners/managers`` [sheet]."""
        known = next((each for each in self._runners if _equal(each, token)), None)
        if known is None:
            return FORBIDDEN
        del self._runners[known]
        return Reply(status=204)

    def reset(self, token: str) -> Reply:
        """``POST runners/reset_authentication_token`` [sheet]: the old token is good for nothing from now on."""
        number = self._runner(token)
        if number is None:
            return FORBIDDEN
        self.unregister(token)
        fresh = f"glrt-{self._mint()}"
        self._runners[fresh] = number
        return Reply(status=201, body={"token": fresh, "token_expires_at": None})

    def request(self, token: str, features: Mapping[str, Any], now: float) -> Reply:
        """``POST jobs/request``: the oldest job, or 204; the ticket says the state of the queue [GitLab]."""
        self.tick(now)
        if self._runner(token) is None:
            return FORBIDDEN
        ticket = {"X-GitLab-Last-Update": str(self.version)}
        stored = next(self.waiting(), None)
        if stored is None:
            return Reply(status=204, headers=ticket)
        stored.job = evolve(stored.job, token=f"glcbt-{self._mint()}")
        stored.has_runner = True
        stored.is_graceful = features.get("cancel_gracefully") is True
        if features.get("two_phase_job_commit") is True:
            stored.acknowledge_by = now + self._acknowledgement  # it stays pending [GitLab]
        else:
            stored.become(State.RUNNING)
        return Reply(status=201, headers=ticket, body=stored.job)

    def has_changed(self, ticket: str | None) -> bool:
        """Whether a runner with this ticket gets its answer at once, instead of being held [GitLab: Workhorse]."""
        return ticket != str(self.version)

    def update(self, number: int, token: str, body: Mapping[str, Any], now: float) -> Reply:
        """``PUT jobs/:id``."""
        self.tick(now)
        stored = self._authenticate(number, token)
        if isinstance(stored, Reply):
            return stored
        state = body.get("state")
        if stored.acknowledge_by is not None:
            if state == "pending":  # it is being prepared [GitLab]
                stored.acknowledge_by = now + self._acknowledgement
                return self._reply(stored, 200)
            if state != "running":  # [GitLab]
                return self._reply(stored, 400)
            stored.acknowledge_by = None
            stored.become(State.RUNNING)
        if state == "running":
            return self._reply(stored, 200)
        if state not in ("success", "failed"):
            return self._reply(stored, 400)  # [GitLab]
        return self._finish(stored, body, is_success=state == "success")

    def append(self, number: int, token: str, content_range: str | None, body: bytes, now: float) -> Reply:
        """``PATCH jobs/:id/trace``: only the start counts, and what does not follow is refused [GitLab]."""
        self.tick(now)
        stored = self._authenticate(number, token)
        if isinstance(stored, Reply):
            return stored
        found = _RANGE.fullmatch(content_range or "")
        if found is None:
            return self._reply(stored, 400)
        if int(found[1]) != len(stored.trace):
            return self._reply(stored, 416)
        if len(stored.trace) + len(body) > self._trace_limit:
            self._fail(stored, "trace_size_exceeded")
            return self._reply(stored, 403)
        try:
            stored.trace.append(body)
        except OSError:  # a full disk [guessed]
            return self._reply(stored, 500)
        return self._reply(stored, 202)

    def may_upload(self, number: int, token: str) -> Reply | None:
        """``POST jobs/:id/artifacts``: the refusal, if it is one [GitLab]."""
        stored = self._authenticate(number, token)
        return stored if isinstance(stored, Reply) else None

    def may_download(self, number: int, token: str) -> Reply | None:
        """``GET jobs/:id/artifacts``: with its own token, or that of a job that depends on it [GitLab]."""
        users = (each for each in self.jobs.values() if any(one.id == number for one in each.job.dependencies))
        tokens = [each.job.token for each in (self.jobs.get(number), *users) if each is not None and each.has_runner]
        return None if any(_equal(each, token) for each in tokens) else FORBIDDEN

    def tick(self, now: float) -> None:
        """Give jobs that nobody acknowledged to somebody else: as new jobs [GitLab: two_phase_job_commit.md]."""
        for stored, at in [*self._unacknowledged()]:
            if now >= at and not stored.state.is_final:
                self._fail(stored, "runner_provisioning_timeout")
                stored.retried_as = self.enqueue(evolve(stored.job, token=""))

    @property
    def lapses_at(self) -> float | None:
        """When `tick` has something to do next; None: nobody has a job that is to be acknowledged."""
        return min((at for each, at in self._unacknowledged() if not each.state.is_final), default=None)

    def waiting(self) -> Iterator[Stored]:
        """Jobs that no runner has yet."""
        return (each for each in self.jobs.values() if each.state is State.PENDING and not each.has_runner)

    def _unacknowledged(self) -> Iterator[tuple[Stored, float]]:
        return ((each, each.acknowledge_by) for each in self.jobs.values() if each.acknowledge_by is not None)

    def _finish(self, stored: Stored, body: Mapping[str, Any], *, is_success: bool) -> Reply:
        output = body.get("output")
        output = output if isinstance(output, Mapping) else {}
        checksum = output.get("checksum") or body.get("checksum")
        if checksum and stored.accepts:  # parts of the log are still on their way to where they are kept [GitLab]
            stored.accepts -= 1
            return self._reply(stored, 202)
        found = (stored.trace.checksum, len(stored.trace))
        if checksum and (checksum, output.get("bytesize", len(stored.trace))) != found:
            stored.trace.cut(0)  # [sheet: what the runner does on 412; GitLab itself only logs that they differ]
            return self._reply(stored, 412)
        if stored.state is State.CANCELING:
            stored.become(State.CANCELED)
        elif is_success:
            stored.become(State.SUCCESS)
        else:
            stored.failure_reason, stored.exit_code = body.get("failure_reason"), body.get("exit_code")
            stored.become(State.FAILED)
        self.version += 1
        return self._reply(stored, 200)

    def _fail(self, stored: Stored, reason: str) -> None:
        stored.failure_reason, stored.acknowledge_by = reason, None
        stored.become(State.FAILED)
        self.version += 1

    def _authenticate(self, number: int, token: str) -> Stored | Reply:
        """The job, or why its calls are refused: 403 with its state, since 404 may come from anywhere [GitLab]."""
        stored = self.jobs.get(number)
        if stored is None or not stored.has_runner or not _equal(stored.job.token, token):
            return FORBIDDEN
        return self._reply(stored, 403) if stored.state.is_final else stored

    def _reply(self, stored: Stored, status: int) -> Reply:
        headers = {
            "Job-Status": stored.state.value,
            "Range": f"0-{len(stored.trace)}",
            "X-GitLab-Trace-Update-Interval": str(INTERVAL),
        }
        return Reply(status=status, headers=headers)

    def _runner(self, token: str) -> int | None:
        return next((number for each, number in self._runners.items() if _equal(each, token)), None)


def _runner_body(number: int, token: str) -> dict[str, Any]:
    return {"id": number, "token": token, "token_expires_at": None}


def _equal(known: str, given: str) -> bool:
    return bool(known) and compare_digest(known.encode(), given.encode(errors="replace"))
