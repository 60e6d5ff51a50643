"""How the service that runs steps is reached on an instance: our agent, or GitLab's step-runner."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from typing import Final

import anyio
from anyio.abc import ByteStream

from fleeting import ConnectError, Connection, Unreachable, Unsupported
from fleeting.connectors import RunsDetached
from fleeting.errors import NameTaken
from job_steps import JobStepsError
from job_steps._bring import kept_jobs
from job_steps._policy import Policy, as_mapping
from job_steps.client import CallFailed, ConnectionLost, StepRunnerClient, bring_agent, step_runner
from job_steps.executor._config import StepsConfig

_STEP_RUNNER: Final = "step-runner"
"""Names the detached command that GitLab's step-runner is."""

_SHORT: Final = 12

_KEPT: Final = 1 << 20
"""Bytes that are kept of what that says; what jobs print is in their logs."""

_START_TIMEOUT: Final = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
"""Seconds."""

# It listens in a directory, in which an earlier one may have left its socket. Where jobs are, the path of that may be
# too long for a socket's; and nobody else's directory will do.
_MAKE: Final = """
directory="${XDG_RUNTIME_DIR:-/tmp}/job-steps-$(id -u)-$1"
mkdir -m 700 "$directory" 2>/dev/null || { [ -d "$directory" ] && [ -O "$directory" ] && [ ! -L "$directory" ]; } || {
    echo "$directory cannot be made, or is somebody else's" >&2
    exit 1
}
printf '%s\\n' "$directory"
"""
_SERVE: Final = """
rm -f -- "$2/step-runner.sock"
export TMPDIR="$2"
exec "$1" serve "$2"
"""


@asynccontextmanager
async def service(
    connection: Connection, config: StepsConfig, instance: str, job: str
) -> AsyncIterator[StepRunnerClient]:
    """Reach what runs steps on an instance; it is placed and started there if it is not.

    Args:
        connection: To the instance.
        config: What is said of it.
        instance: What it is called.
        job: The id of a job. An agent that has it is reached, whatever version, policy or `step_runner` is set by now.

    Raises:
        Unreachable: The connection is dead.
        ConnectError: It cannot run there.
    """
    with reported(instance):
        if config.step_runner is not None and job not in await kept_jobs(connection, job):
            async with _step_runner(connection, config.step_runner, instance) as client:
                yield client
        else:
            async with bring_agent(connection, policy=written(config.policy.policy), job=job) as agent:
                yield agent.client


def written(policy: Policy) -> bytes:
    """Write a policy as the agent takes it; nothing if it says nothing."""
    rules = as_mapping(policy)
    return json.dumps(rules).encode() if rules else b""


@contextmanager
def reported(instance: str) -> Iterator[None]:
    """Raise what executors raise in place of what the service's client does, also if tasks have wrapped it."""
    try:
        yield
    except Exception as error:
        translated = _translated(_first(error), instance)
        if translated is error:
            raise
        raise translated from error


def _first(error: Exception) -> Exception:
    """Take groups apart until there is an error; a dead connection is the last to count."""
    found = [_first(each) for each in getattr(error, "exceptions", ())]
    return next(
        (each for each in found if not isinstance(each, ConnectionLost | Unreachable)), found[0] if found else error
    )


def _translated(error: Exception, instance: str) -> Exception:
    match error:
        case ConnectionLost():
            return Unreachable(f"the connection to what runs steps on {instance} is dead: {error}")
        case CallFailed():
            return ConnectError(f"what runs steps on {instance} refuses: {error}")
        case JobStepsError():
            return ConnectError(f"steps cannot be run on {instance}: {error}")
    return error


@asynccontextmanager
async def _step_runner(connection: Connection, program: str, instance: str) -> AsyncIterator[StepRunnerClient]:
    """Reach GitLab's step-runner, which is started unless it runs."""
    if not isinstance(connection, RunsDetached):
        raise ConnectError("the connection cannot detach commands, so step-runner cannot be started; use SSH")
    name = sha256(f"{instance}\0{program}".encode()).hexdigest()[:_SHORT]
    made = await connection.run(("/bin/sh", "-c", _MAKE, "sh", name))
    if not made.ok:
        raise ConnectError(f"step-runner has no place for its socket: {made.account}")
    directory = made.stdout.decode(errors="replace").removesuffix("\n")
    await _have_started(connection, program, directory)
    async with step_runner(await _opened(connection, program, f"{directory}/step-runner.sock")) as client:
        yield client


async def _opened(connection: Connection, program: str, socket: str) -> ByteStream:
    """Open a stream to a service that may just be starting."""
    pause, ends = _FIRST_PAUSE, anyio.current_time() + _START_TIMEOUT
    while True:
        try:
            return await connection.open_unix(socket)
        except Unsupported as error:
            raise ConnectError(f"step-runner cannot be reached: {error}") from error
        except ConnectError as error:  # a dead connection says so when it is asked for what runs
            await _see_that_it_runs(connection, program, error)
            if anyio.current_time() > ends:
                raise
        await anyio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


async def _have_started(connection: RunsDetached, program: str, directory: str) -> None:
    found = {each.name: each for each in await connection.list_detached()}
    if _STEP_RUNNER in found and not found[_STEP_RUNNER].is_running:
        await connection.forget(_STEP_RUNNER)
    elif _STEP_RUNNER in found:
        return
    try:
        command = ("/bin/sh", "-c", _SERVE, "sh", program, directory)
        await connection.start(_STEP_RUNNER, command, keep=_KEPT)
    except NameTaken:
        return  # somebody else has just started it


async def _see_that_it_runs(connection: Connection, program: str, error: ConnectError) -> None:
    """Raise what became of it, if it has ended."""
    if not isinstance(connection, RunsDetached):
        return
    found = next((each for each in await connection.list_detached() if each.name == _STEP_RUNNER), None)
    if found is None or found.is_running:
        return
    said = b""

    async def take(chunk: bytes) -> None:
        nonlocal said
        said = (said + chunk)[-_KEPT:]

    ended = await connection.attach(_STEP_RUNNER, output=take)
    last = said.decode(errors="replace").strip().splitlines()[-1:] or [ended.outcome]
    raise ConnectError(f"{program} serve has ended as soon as it was started: {last[0][:500]}") from error
