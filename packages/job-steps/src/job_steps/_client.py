"""What a manager says to a service that runs steps: our agent, or GitLab's own ``step-runner serve``."""

import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, TypeVar

from anyio.abc import ByteStream
from attrs import field, frozen

from job_steps import _messages as says
from job_steps._breakpoints import LONGEST_TIMEOUT, Decision, When
from job_steps._call_errors import CallFailed
from job_steps._call_status import Code, without_control
from job_steps._errors import ResultInvalid
from job_steps._grpc_client import GrpcClient, Responses, connect
from job_steps._holds import Ended
from job_steps._messages import Cause, RunState
from job_steps._policy import RESTRICTIONS, Policy, as_mapping
from job_steps._protobuf import MalformedMessage, decode, encode
from job_steps._results import StepResult
from job_steps._run import Variable

CALL_TIMEOUT: Final = 60.0
"""Seconds for a call that waits for nothing but the service."""

CLOSE_TIMEOUT: Final = 120.0
"""Seconds until a job that is closed has ended: its processes have a while to do so by themselves."""

_LONGEST_HOLD: Final = 2 * LONGEST_TIMEOUT
"""Seconds that a later version may have a job held."""

_MOST_NODES: Final = 500_000
"""Objects and lists in the JSON of a tree, at most: each takes fifty times as much memory as its two brackets."""

_M = TypeVar("_M")


@frozen(kw_only=True)
class RunRequest:
    """A list of steps to run as one job."""

    id: str
    """Names the job, for this service; the same one again runs nothing again."""

    steps: str
    """YAML: the document of a function's interface, often ``{}``, ``---``, and the one with ``run:``."""

    work_dir: str
    """Where the steps begin; an absolute path on the instance, which is made if it is missing."""

    env: Mapping[str, str] = field(factory=dict, repr=False)
    """Added to the environment of the service, which every command has."""

    variables: Sequence[Variable] = field(default=(), repr=False)
    """The job's, which expressions have as ``vars``; none is in the environment of a command by itself."""

    time_limit: float | None = None
    """Seconds, after which our agent ends the job, whether a manager lives or not; GitLab's service takes none. It
    stands still while the job is held at a breakpoint."""

    breakpoints: Sequence[str] = ()
    """Where the job is held for somebody to look at it, such as ``build`` or ``build/lint:after``; a policy has to
    allow that. GitLab's service passes over them."""

    breakpoint_timeout: float | None = None
    """Seconds for which it may be held, at all breakpoints together; then it goes on."""

    policy: Policy | None = None
    """A policy of the job's own: what it refuses, it refuses beside what the agent's policy does. Only the rules that
    refuse steps count. GitLab's service passes over it."""


@frozen(kw_only=True)
class JobStatus:
    """How a job is."""

    id: str
    """As it was given."""

    state: RunState
    """Where it has got to."""

    message: str = ""
    """What went wrong; empty if nothing did."""

    cause: Cause = Cause.NONE
    """Why it ended that way, if not by itself."""

    started_at: datetime | None = None
    """By the clock of the instance; None: not yet."""

    ended_at: datetime | None = None
    """The same."""

    held_time: float = 0.0
    """Seconds for which it was held at breakpoints, so that its time limit stood still."""


@frozen(kw_only=True)
class Results:
    """What has come of a job's steps so far."""

    tree: Mapping[str, Any] | None
    """As `StepResult.as_dict` writes it; None as long as no step has begun."""

    is_final: bool
    """Whether the job is over, so that nothing is added."""


@frozen(kw_only=True)
class HeldStep:
    """A job that is held at a breakpoint."""

    job: str
    """Its id."""

    number: int
    """Of the hold, among those of the job, from 1 on: what a decision is about."""

    path: tuple[str, ...]
    """The names that lead to the step."""

    when: When
    """At which moment."""

    ends_in: float
    """Seconds until it goes on by itself, when this was asked for."""

    result: StepResult | None = None
    """The step's, as far as it has come, with secrets masked; None if all jobs were asked for, or it is too big."""


@frozen(kw_only=True)
class Held:
    """Where a job is held."""

    step: HeldStep | None
    """None: it is not."""

    is_over: bool
    """Whether the job is over, so that it will not be held any more."""


@frozen(kw_only=True)
class Environment:
    """What the command of a step has, with nothing masked."""

    env: Mapping[str, str] = field(repr=False)
    """All of it: nothing is to be added."""

    work_dir: str
    """An absolute path on the instance."""


@asynccontextmanager
async def step_runner(stream: ByteStream) -> AsyncIterator["StepRunnerClient"]:
    """Speak to the service at the other end of a stream, which is closed at the end.

    Args:
        stream: Such as `Connection.open_unix` opens to the service's socket.
    """
    async with connect(stream) as client:
        yield StepRunnerClient(client)


class StepRunnerClient:
    """One service's client; made by `step_runner`. Its calls can be repeated: after `ConnectionLost`, on a new one."""

    def __init__(self, client: GrpcClient) -> None:
        """Take what calls."""
        self._client = client

    async def run(self, request: RunRequest) -> None:
        """Start a job, unless one of its id was started before; returns once it was.

        Raises:
            CallFailed: It cannot be started: its steps cannot be read, or a policy refuses them, as the error says.
            ConnectionLost: It is unknown whether it was started; call again.
        """
        job = says.Job(
            build_dir=request.work_dir,
            variables=[
                says.VariableMessage(key=one.key, value=one.value, file=one.is_file, masked=one.is_masked)
                for one in request.variables
            ],
        )
        asked = says.RunMessage(
            id=request.id,
            work_dir=request.work_dir,
            env=request.env,
            job=job,
            steps=request.steps,
            time_limit=request.time_limit or 0.0,
            breakpoints=request.breakpoints,
            breakpoint_timeout=request.breakpoint_timeout or 0.0,
            policy=_restrictions(request.policy),
        )
        await self._ask(says.RUN, asked, says.Empty)

    def follow_logs(self, job: str, offset: int = 0) -> Responses[bytes]:
        """What a job writes, from a byte on, as it comes; ends when the job has, and all was passed on.

        Raises:
            CallFailed: There is no such job.
            ConnectionLost: Call again, with the offset that has been reached.
        """
        asked = encode(says.FollowLogsMessage(id=job, offset=offset))
        return Responses(self._client, says.FOLLOW_LOGS, asked, lambda answer: _read(says.LogsMessage, answer).data)

    async def status(self, job: str) -> JobStatus:
        """How a job is.

        Raises:
            CallFailed: There is no such job.
            ConnectionLost: Call again.
        """
        if not job:
            raise CallFailed(Code.INVALID_ARGUMENT, "a job has an id that is not empty")
        found = await self._statuses(job)
        if len(found) != 1 or found[0].id != job:
            raise CallFailed(Code.INTERNAL, "the service answers with the status of other jobs than it was asked for")
        return found[0]

    async def statuses(self) -> Sequence[JobStatus]:
        """How all jobs are that were started and not closed, in no order. Raises as `status`."""
        return await self._statuses("")

    async def close(self, job: str) -> None:
        """End a job if it runs, and forget it with its log and its results; nothing if there is none.

        Raises:
            CallFailed: It has not ended.
            ConnectionLost: Call again.
        """
        await self._ask(says.CLOSE, says.ById(id=job), says.Empty, timeout=CLOSE_TIMEOUT)

    async def results(self, job: str) -> Results | None:
        """What has come of a job's steps so far; None if the service has no results, as GitLab's has none.

        Raises:
            CallFailed: There is no such job.
            ConnectionLost: Call again.
        """
        try:
            return _results(await self._ask(says.GET_RESULTS, says.ById(id=job), says.ResultsMessage))
        except CallFailed as failed:
            if failed.code is Code.UNIMPLEMENTED:
                return None
            raise

    def follow_results(self, job: str) -> Responses[Results]:
        """The results of a job, again whenever there is more, the final ones last.

        What comes while nobody takes the last one is left out, except the final one. Raises as `results`, and a service
        without results is a `CallFailed` with `Code.UNIMPLEMENTED`.
        """
        asked = encode(says.ById(id=job))
        return Responses(
            self._client, says.FOLLOW_RESULTS, asked, lambda answer: _results(_read(says.ResultsMessage, answer))
        )

    async def held(self) -> Sequence[HeldStep]:
        """All jobs that are held at breakpoints, in no order; none if the service knows no breakpoints.

        Raises:
            CallFailed: The service does not answer as it should.
            ConnectionLost: Call again.
        """
        try:
            found = await self._ask(says.GET_HELD, says.ById(), says.HeldsMessage)
        except CallFailed as failed:
            if failed.code is Code.UNIMPLEMENTED:
                return ()
            raise
        return [_held_step(each) for each in found.held]

    def follow_held(self, job: str) -> Responses[Held]:
        """Where a job is held, now, and again whenever that changes, until it is over. Raises as `status`."""
        return Responses(self._client, says.FOLLOW_HELD, encode(says.ById(id=job)), _held)

    async def environment(self, job: str, number: int) -> Environment:
        """What the command of the step has at which a job is held: for a shell there, not for eyes.

        Raises:
            CallFailed: There is no such job, or it is not held there any more (`Code.FAILED_PRECONDITION`).
            ConnectionLost: Call again.
        """
        found = await self._ask(says.GET_ENVIRONMENT, says.ByHold(id=job, number=number), says.EnvironmentMessage)
        return Environment(env=found.env, work_dir=found.work_dir)

    async def decide(self, job: str, number: int, decision: Decision) -> Ended:
        """Decide how a job that is held goes on; what comes after the first decision changes nothing.

        Returns:
            How that hold ended: it may have been decided otherwise before, or have timed out.

        Raises:
            CallFailed: There is no such job, or it was not held so often.
            ConnectionLost: Call again.
        """
        asked = says.DecideMessage(id=job, number=number, decision=decision.value)
        found = await self._ask(says.DECIDE, asked, says.DecidedMessage)
        try:
            return Ended(found.ended)
        except ValueError as error:
            raise CallFailed(Code.INTERNAL, "the service answers with a decision that nobody knows") from error

    async def add_breakpoints(self, job: str, breakpoints: Sequence[str]) -> None:
        """Add breakpoints to a job that runs, such as ``build`` or ``build:after``; those it has do not come twice.

        Raises:
            CallFailed: One is none, the policy does not allow them, or there is no such job, or it is over.
            ConnectionLost: Call again.
        """
        asked = says.AddBreakpointsMessage(id=job, breakpoints=[*breakpoints])
        await self._ask(says.ADD_BREAKPOINTS, asked, says.Empty)

    async def _statuses(self, job: str) -> Sequence[JobStatus]:
        answer = await self._ask(says.STATUS, says.ById(id=job), says.StatusesMessage)
        return [_status(one) for one in answer.jobs]

    async def _ask(self, path: str, request: object, kind: type[_M], *, timeout: float = CALL_TIMEOUT) -> _M:
        return _read(kind, await self._client.call(path, encode(request), timeout=timeout))


def _read(kind: type[_M], answer: bytes) -> _M:
    try:
        return decode(kind, answer)
    except MalformedMessage as error:
        raise CallFailed(
            Code.INTERNAL, f"the service answers with something else than was asked for: {error}"
        ) from error


def _status(one: says.StatusMessage) -> JobStatus:
    """Read how a job is; a state that nobody knows yet is one that is not over."""
    state = RunState(one.status) if one.status in list(RunState) else RunState.UNSPECIFIED
    cause = Cause(one.cause) if one.cause in list(Cause) else Cause.NONE
    return JobStatus(
        id=one.id,
        state=state,
        message=without_control(one.message),
        cause=cause,
        started_at=one.start_time.moment if one.start_time else None,
        ended_at=one.end_time.moment if one.end_time else None,
        held_time=one.held_time if 0 <= one.held_time < math.inf else 0.0,
    )


def _held(answer: bytes) -> Held:
    found = _read(says.HeldsMessage, answer)
    return Held(step=_held_step(found.held[0]) if found.held else None, is_over=found.is_final)


def _held_step(one: says.HeldMessage) -> HeldStep:
    if _is_huge(one.result):
        raise CallFailed(Code.INTERNAL, f"the service answers with a step of more than {_MOST_NODES} parts")
    try:
        result = StepResult.from_dict(json.loads(one.result)) if one.result else None
        when = When(one.when)
    except (ValueError, RecursionError, ResultInvalid) as error:
        raise CallFailed(Code.INTERNAL, "the service answers with a step that cannot be read") from error
    if not 0 <= one.ends_in <= _LONGEST_HOLD:
        raise CallFailed(Code.INTERNAL, "the service answers with a step that is held without end")
    return HeldStep(job=one.id, number=one.number, path=tuple(one.path), when=when, ends_in=one.ends_in, result=result)


def _is_huge(tree: bytes) -> bool:
    return tree.count(b"{") + tree.count(b"[") > _MOST_NODES


def _results(one: says.ResultsMessage) -> Results:
    if _is_huge(one.tree):
        raise CallFailed(Code.INTERNAL, f"the service answers with results of more than {_MOST_NODES} parts")
    try:
        tree = json.loads(one.tree) if one.tree else None
    except (ValueError, RecursionError) as error:
        raise CallFailed(Code.INTERNAL, "the service answers with results that are not JSON") from error
    if not (tree is None or isinstance(tree, dict)):
        raise CallFailed(Code.INTERNAL, "the service answers with results that are no tree")
    return Results(tree=tree, is_final=one.is_final)


def _restrictions(own: Policy | None) -> str:
    """Write a job's own policy; empty if it refuses nothing."""
    rules = {} if own is None else {key: value for key, value in as_mapping(own).items() if key in RESTRICTIONS}
    return json.dumps(rules) if rules else ""
