"""The calls of `Results` that are about breakpoints: who is held, what there is to see, and what is decided."""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import anyio

from job_steps import _messages as says
from job_steps._agent._answering import answer, read
from job_steps._agent._holding import Holding
from job_steps._breakpoints import Decision, Moment, parse_breakpoints
from job_steps._call_errors import CallFailed
from job_steps._call_status import Code
from job_steps._grpc import LONGEST_MESSAGE
from job_steps._grpc_server import Handler, Respond
from job_steps._holds import Answer, Hold
from job_steps._protobuf import encode

_LONGEST_RESULT: Final = LONGEST_MESSAGE - (64 << 10)
"""Bytes of a step's result that are sent; of a bigger one, nothing is."""


class HeldService:
    """What is asked of jobs at breakpoints."""

    def __init__(self, find: Callable[[str], Holding], everyone: Callable[[], Iterable[Holding]]) -> None:
        """Take how jobs are found.

        Args:
            find: One by its id; raises `CallFailed` if there is none.
            everyone: All.
        """
        self._find = find
        self._everyone = everyone

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """What can be called."""
        return {
            says.GET_HELD: partial(answer, says.ById, self._held),
            says.FOLLOW_HELD: self._follow,
            says.GET_ENVIRONMENT: partial(answer, says.ByHold, self._environment),
            says.DECIDE: partial(answer, says.DecideMessage, self._decide),
            says.ADD_BREAKPOINTS: partial(answer, says.AddBreakpointsMessage, self._add),
        }

    async def _held(self, asked: says.ById) -> says.HeldsMessage:
        if asked.id:
            return _of_one(self._find(asked.id))
        now = anyio.current_time()
        held = [(each.id, each.held) for each in self._everyone() if each.moment]
        return says.HeldsMessage(held=[_message(job, hold, now) for job, hold in held if hold])

    async def _follow(self, request: bytes, respond: Respond) -> None:
        job = self._find(read(says.ById, request).id)
        while True:
            changed, is_over = job.changed, job.is_over
            await respond(encode(_of_one(job)))
            if is_over:
                return
            await changed.wait()

    async def _environment(self, asked: says.ByHold) -> says.EnvironmentMessage:
        job = self._find(asked.id)
        _, moment = _present(job, asked.number)
        env = {_sendable(name): _sendable(value) for name, value in moment.env.items()}
        return says.EnvironmentMessage(env=env, work_dir=_sendable(moment.work_dir))

    async def _decide(self, asked: says.DecideMessage) -> says.DecidedMessage:
        job = self._find(asked.id)
        try:
            decision = Decision(asked.decision)
        except ValueError:
            expected = " or ".join(repr(each.value) for each in Decision)
            said = f"decision: expected {expected}, found {asked.decision[:40]!r}"
            raise CallFailed(Code.INVALID_ARGUMENT, said) from None
        came, ended = job.decide(asked.number, decision)
        if came is Answer.UNKNOWN or ended is None:
            raise CallFailed(Code.FAILED_PRECONDITION, f"the job was not held {asked.number} times yet")
        return says.DecidedMessage(ended=ended.value)

    async def _add(self, asked: says.AddBreakpointsMessage) -> says.Empty:
        from job_steps._policy import Policy, PolicyRefused, check_breakpoints  # an agent starts sooner without

        job = self._find(asked.id)
        if job.is_over:
            raise CallFailed(Code.FAILED_PRECONDITION, "the job is over; nothing can hold it any more")
        try:
            if not job.is_allowed:
                check_breakpoints(Policy(), asked.breakpoints)
            points = parse_breakpoints([*asked.breakpoints])
            job.add(points)
        except PolicyRefused as error:
            raise CallFailed(Code.PERMISSION_DENIED, str(error)) from error
        except ValueError as error:
            raise CallFailed(Code.INVALID_ARGUMENT, f"breakpoints: {error}") from error
        return says.Empty()


def _present(job: Holding, number: int) -> tuple[Hold, Moment]:
    """Where a job is held. Raises CallFailed if it is not held there any more."""
    if job.held is None or job.moment is None or job.held.number != number:
        raise CallFailed(Code.FAILED_PRECONDITION, "the job is not held there any more; it went on, or was aborted")
    return job.held, job.moment


def _of_one(job: Holding) -> says.HeldsMessage:
    if job.held is None or job.moment is None:
        return says.HeldsMessage(is_final=job.is_over)
    result = json.dumps(job.moment.result.as_dict(), ensure_ascii=False).encode(errors="replace")
    shown = result if len(result) <= _LONGEST_RESULT else b""
    return says.HeldsMessage(held=[_message(job.id, job.held, anyio.current_time(), shown)])


def _message(job: str, hold: Hold, now: float, result: bytes = b"") -> says.HeldMessage:
    return says.HeldMessage(
        id=job,
        number=hold.number,
        path=hold.path,
        when=hold.when.value,
        ends_in=max(0.0, hold.until - now),
        result=result,
    )


def _sendable(text: str) -> str:
    """Take a text of the system for one that a message can have."""
    return text.encode(errors="replace").decode()
