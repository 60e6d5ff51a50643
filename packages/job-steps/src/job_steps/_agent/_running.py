"""From a request to what became of its steps: what the service and the command ``run`` have in common."""

import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio import to_thread
from attrs import evolve, frozen

from job_steps._agent._holding import Holding
from job_steps._agent._leftovers import MARK
from job_steps._breakpoints import (
    LONGEST_TIMEOUT,
    TIMEOUT,
    Breakpoint,
    check_steps,
    of_variables,
    parse_breakpoints,
)
from job_steps._call_errors import CallFailed
from job_steps._call_status import Code
from job_steps._durations import in_words
from job_steps._errors import JobStepsError
from job_steps._messages import Cause, Job, RunMessage, RunState

if TYPE_CHECKING:
    from job_steps import Function, ImageReference, StepResult, Variable
    from job_steps._delegation import Delegation
    from job_steps._limits import Limits
    from job_steps._policy import Policy

_STATES: Final = {"success": RunState.SUCCESS, "failure": RunState.FAILURE, "cancelled": RunState.CANCELLED}


@frozen
class Rules:
    """What jobs have to obey, whatever their requests say."""

    policies: "Sequence[Policy]" = ()
    """A step has to be allowed by all of them, but what one of them adds needs no leave of those after it."""
    agent: Path | None = None
    """The zipapp that containers get; None: no step runs in one."""
    own: "Policy | None" = None
    """The policy of one job's own, which can only refuse more; what the others add needs no leave of it."""

    @staticmethod
    def of(written: Sequence[Mapping[str, Any]], agent: Path | None = None) -> "Rules":
        """Read policies.

        Raises:
            ValueError: One is none.
        """
        from job_steps._policy import policy_of

        return Rules([policy_of(each) for each in written], agent)

    def narrowed(self, written: str) -> "Rules":
        """The rules of a job that brings a policy of its own, as JSON; empty: it does not.

        Raises:
            CallFailed: It is none.
        """
        if not written:
            return self
        from job_steps._policy import restrictions_of

        try:
            own = json.loads(written)
            if not isinstance(own, dict):
                raise ValueError("expected an object")
            return evolve(self, own=restrictions_of(own))
        except (RecursionError, TypeError, ValueError) as error:
            raise CallFailed(Code.INVALID_ARGUMENT, f"policy: {error}") from error

    def admitted(self, steps: str) -> str:
        """The steps that run in place of these: what the first policy adds is around all else.

        Raises:
            JobStepsError: They cannot be read, or must not run.
        """
        if not self.policies and self.own is None:
            return steps
        from job_steps._gate import admit_steps
        from job_steps._policy import Policy

        own = self.own
        for policy in reversed(self.policies or (Policy(),)):
            steps, own = admit_steps(policy, steps, own=own), None
        return steps

    def time_limit(self, wanted: float | None) -> float | None:
        """How many seconds a job has that wants so many."""
        for policy in self.policies:
            wanted = policy.time_limit(wanted)
        return wanted

    @property
    def own_names(self) -> frozenset[str]:
        """What the steps are called that they add."""
        return frozenset[str]().union(*(policy.own_names for policy in self.policies))

    @property
    def allow_breakpoints(self) -> bool:
        """Whether jobs may be held: nobody forbids it, and somebody allows it."""
        return bool(self.policies) and all(policy.breakpoints for policy in self.policies)

    def check_breakpoints(self, texts: Sequence[str]) -> None:
        """See that jobs may be held where these say.

        Raises:
            JobStepsError: They may not.
        """
        from job_steps._policy import Policy, check_breakpoints

        for policy in self.policies or (Policy(),):
            check_breakpoints(policy, texts)

    def breakpoint_timeout(self, wanted: float | None) -> float:
        """How many seconds a job may be held that wants so many."""
        allowed = TIMEOUT if wanted is None else min(wanted, LONGEST_TIMEOUT)
        for policy in self.policies:
            allowed = policy.held_at_most(allowed)
        return allowed

    @property
    def limits(self) -> "Limits":
        """What each command may have: the least that a policy says."""
        from job_steps._limits import NO_LIMITS

        limits = NO_LIMITS
        for policy in self.policies:
            limits = limits.within(policy.limits)
        return limits

    def gate(self) -> Callable[..., None]:
        """What looks at each step right before it is loaded; raises `StepRefused`."""
        gates: list[Callable[..., None]] = []
        above: frozenset[str] = frozenset()
        for policy in self.policies:
            from job_steps._gate import gate

            gates.append(gate(policy, exempt=above))
            above |= policy.own_names
        if self.own is not None:
            from job_steps._gate import gate

            gates.append(gate(self.own, exempt=above, is_own=True))

        def admit(*step: object) -> None:
            for one in gates:
                one(*step)

        return admit

    def delegation(self, mark: str, work_dir: str, note: Path, env: Mapping[str, str]) -> "Delegation | None":
        """What runs steps of a job in containers.

        Args:
            mark: Of the job.
            work_dir: Its directory.
            note: A file that is made when there are containers.
            env: What of the job's environment goes along.
        """
        if self.agent is None:
            return None
        from job_steps._containers import Docker
        from job_steps._definitions import Step
        from job_steps._delegation import Delegation
        from job_steps._policy import as_mapping
        from job_steps._references import SCRIPT
        from job_steps._run import Origin

        admit = self.gate()

        def allow(image: "ImageReference", path: tuple[str, ...]) -> None:
            """See that steps in a container may have another one; what they are was seen to in there."""
            admit(Step(name=path[-1], reference=SCRIPT, container=str(image)), path, Origin(kind="builtin"))

        docker = Docker(
            agent=self.agent,
            mark=mark,
            work_dir=os.path.normpath(work_dir),
            env={**os.environ, MARK: mark},
            note=note,
        )
        policies = [as_mapping(policy) for policy in (*self.policies, *([self.own] if self.own else []))]
        return Delegation(containers=docker, env=env, policies=policies, allow=allow, limits=self.limits)


async def remove_left_containers(mark: str, note: Path) -> None:
    """Remove containers that a job has left, if it had any."""
    if await to_thread.run_sync(note.exists):
        from job_steps._containers import remove_containers

        await remove_containers(mark)
        await to_thread.run_sync(partial(note.unlink, missing_ok=True))


@frozen(kw_only=True)
class Prepared:
    """A request that can be carried out."""

    function: "Function"
    work_dir: str
    env: Mapping[str, str]
    variables: "Sequence[Variable]"
    own_env: Mapping[str, str]
    """What of the environment is the job's own."""
    time_limit: float | None
    rules: Rules
    breakpoints: Sequence[Breakpoint] = ()
    breakpoint_timeout: float = TIMEOUT


@frozen(kw_only=True)
class Outcome:
    """What became of it."""

    state: RunState
    message: str = ""
    cause: Cause = Cause.NONE
    result: "StepResult | None" = None


async def prepare(asked: RunMessage, rules: Rules) -> Prepared:
    """Look at a request before anything of it is done.

    Raises:
        CallFailed: With `Code.INVALID_ARGUMENT` or `Code.PERMISSION_DENIED`: it must not be carried out, or cannot be.
    """
    return await to_thread.run_sync(_prepare, asked, rules)  # a long list takes a while to be read


def _prepare(asked: RunMessage, rules: Rules) -> Prepared:
    from job_steps import StepFailed, StepRefused, Variable, read_steps
    from job_steps._limits import check_limits

    job = asked.job or Job()
    rules = rules.narrowed(asked.policy)
    work_dir = job.build_dir or asked.work_dir
    if not os.path.isabs(work_dir):  # noqa: PTH117  (no path of this host's yet)
        raise CallFailed(Code.INVALID_ARGUMENT, f"work_dir: expected an absolute path, found {work_dir[:200]!r}")
    _check_environment(asked.env)
    try:
        function = read_steps(rules.admitted(asked.steps))
    except StepRefused as error:
        raise CallFailed(Code.PERMISSION_DENIED, str(error)) from error
    except JobStepsError as error:
        raise CallFailed(Code.INVALID_ARGUMENT, str(error)) from error
    breakpoints, timeout = _breakpoints(asked, job, function, rules)
    try:
        check_limits(rules.limits)
    except StepFailed as error:
        raise CallFailed(Code.PERMISSION_DENIED, str(error)) from error
    try:
        os.makedirs(work_dir, mode=0o700, exist_ok=True)  # noqa: PTH103  (as above)
    except OSError as error:
        raise CallFailed(Code.FAILED_PRECONDITION, f"work_dir: {work_dir}: {error.strerror}") from error
    return Prepared(
        function=function,
        work_dir=work_dir,
        env={**os.environ, **asked.env},
        own_env=asked.env,
        variables=[
            Variable(key=one.key, value=one.value, is_file=one.file, is_masked=one.masked) for one in job.variables
        ],
        time_limit=rules.time_limit(asked.time_limit if asked.time_limit > 0 else None),
        rules=rules,
        breakpoints=breakpoints,
        breakpoint_timeout=timeout,
    )


def _breakpoints(
    asked: RunMessage, job: Job, function: "Function", rules: Rules
) -> "tuple[tuple[Breakpoint, ...], float]":
    """Read where a job is to be held, and for how long: what its request says, and its variables."""
    from job_steps import StepRefused

    variables = {**asked.env, **{one.key: one.value for one in job.variables}}
    wanted = asked.breakpoint_timeout if asked.breakpoint_timeout > 0 else None
    try:
        texts, seconds = of_variables(variables)
        texts = tuple(dict.fromkeys((*asked.breakpoints, *texts)))
        points = parse_breakpoints(texts)
        rules.check_breakpoints(texts)
        check_steps(points, function)
    except StepRefused as error:
        raise CallFailed(Code.PERMISSION_DENIED, str(error)) from error
    except ValueError as error:
        raise CallFailed(Code.INVALID_ARGUMENT, f"breakpoints: {error}") from error
    return points, rules.breakpoint_timeout(wanted or seconds)


def _check_environment(env: Mapping[str, str]) -> None:
    """Raises CallFailed if no process can have it; the values are nobody's to see."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise CallFailed(Code.INVALID_ARGUMENT, f"env: {name[:100]!r} cannot be a variable of the environment")


async def run(
    prepared: Prepared,
    *,
    mark: str,
    files: Path,
    note: Path,
    log: Callable[[bytes], Awaitable[None]],
    on_result: "Callable[[StepResult], None]",
    holding: Holding,
) -> Outcome:
    """Run steps to their end, which is never an error; cancelling it ends their processes.

    Args:
        prepared: What to run.
        mark: In the environment of every process.
        files: A directory of the job's own.
        note: A file that is made when it has containers, for `remove_left_containers`.
        log: Gets what they write.
        on_result: Gets the tree whenever it has grown.
        holding: Takes its breakpoints.
    """
    from job_steps import run_steps

    holding.begin(prepared.function, log, prepared.breakpoints, prepared.breakpoint_timeout)
    holding.is_allowed = prepared.rules.allow_breakpoints
    if prepared.time_limit is not None and not holding.note:
        holding.note = "Its time limit stands still meanwhile."
    with anyio.move_on_after(prepared.time_limit) as holding.limit:
        result = await run_steps(
            prepared.function,
            directory=prepared.work_dir,
            work_dir=prepared.work_dir,
            env={**prepared.env, MARK: mark},
            variables=prepared.variables,
            log=log,
            on_result=on_result,
            admit=prepared.rules.gate(),
            own=prepared.rules.own_names,
            own_env={**os.environ, MARK: mark} if prepared.rules.policies else None,
            last_env={MARK: mark},
            at=holding.at,
            limits=prepared.rules.limits,
            files=files,
            delegation=prepared.rules.delegation(mark, prepared.work_dir, note, prepared.own_env),
        )
        await holding.warn()
        return Outcome(state=_STATES[result.status.value], message=result.error or "", result=result)
    held = f"; it was held for {in_words(holding.held_time)} beside that" if holding.held_time else ""
    return Outcome(
        state=RunState.CANCELLED,
        message=f"its time limit of {prepared.time_limit:g} s was over{held}",
        cause=Cause.TIMED_OUT,
    )
