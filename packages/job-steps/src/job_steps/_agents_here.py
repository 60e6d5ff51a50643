"""The agents of this host and the jobs that they have, for whoever attaches to one.

Jobs have the agents' user, and may put anything in the place of an address, a service of their own among it: all are
asked at once, and what says nothing of use in time is passed over.
"""

import os
import socket as sockets_api
import struct
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import SocketAttribute, SocketStream, UNIXSocketStream
from attrs import frozen

from job_steps._agent._directory import read_whole
from job_steps._call_errors import CallFailed, ConnectionLost
from job_steps._call_status import Code
from job_steps._client import HeldStep, StepRunnerClient, step_runner
from job_steps._errors import JobStepsError
from job_steps._messages import RunState
from job_steps._printable import printable

MOST_SOCKETS: Final = 100
"""Places that are looked at."""

ANSWER_TIMEOUT: Final = 30.0
"""Seconds for an agent to say which jobs it has; all are asked at once."""

_LONGEST_PATH: Final = 4096
"""Bytes of what is written down of where an agent listens."""


class CannotAttach(JobStepsError):
    """There is nothing to attach to; says why, and what to do."""


@frozen
class Agent:
    """One that listens."""

    socket: str
    client: StepRunnerClient
    user: int | None
    """Whose it is."""


@frozen
class KnownJob:
    """A job of an agent."""

    agent: Agent
    id: str
    state: RunState
    held: HeldStep | None

    @property
    def client(self) -> StepRunnerClient:
        """Speaks to its agent."""
        return self.agent.client


def sockets_below(home: Path) -> list[str]:
    """Find where agents listen whose directories are in one directory, each in one of its version."""
    found = []
    for written in sorted(islice(home.glob("*/run*/socket"), MOST_SOCKETS)):
        try:
            found.append(os.fsdecode(read_whole(written, _LONGEST_PATH)).strip())
        except (OSError, ValueError):  # noqa: PERF203  (it has just ended, or a job has put something else there)
            continue
    return found


@asynccontextmanager
async def agents_here(sockets: Sequence[str], home: Path, *, may_be_none: bool = False) -> AsyncIterator[list[Agent]]:
    """Reach agents; one that has ended without a trace is passed over.

    Args:
        sockets: Where they listen; none: they are looked for.
        home: Where, then.
        may_be_none: Whether it is all right if none is found.

    Raises:
        CannotAttach: There is none, or not where it was said to be.
    """
    streams = await _connected(sockets or sockets_below(home), is_named=bool(sockets))
    async with AsyncExitStack() as stack:
        agents = [
            Agent(socket, await stack.enter_async_context(step_runner(stream)), _user_of(stream, socket))
            for socket, stream in streams.items()
        ]
        if not agents and not may_be_none:
            raise CannotAttach(f"no agent of yours runs on this host (looked in {home}); start a job with breakpoints")
        yield agents


async def _connected(sockets: Sequence[str], *, is_named: bool) -> dict[str, SocketStream]:
    """Connect with all of those that take somebody in."""
    streams: dict[str, SocketStream] = {}
    for socket in dict.fromkeys(sockets):
        try:
            streams[socket] = await _stream(socket)
        except OSError as error:  # noqa: PERF203  (the others are reached all the same)
            if is_named:
                raise CannotAttach(f"{socket}: no agent listens there ({error.strerror or error})") from error
    return streams


async def _stream(address: str) -> SocketStream:
    """Connect, or hear at once that nobody is taken in, as when a job that listens there lets all wait.

    Raises:
        OSError: Nobody listens there.
    """
    raw = sockets_api.socket(sockets_api.AF_UNIX)
    try:
        raw.setblocking(False)
        raw.connect(address)
        return await UNIXSocketStream.from_socket(raw)
    except ValueError as error:  # an address with a character 0
        raw.close()
        raise OSError(str(error)) from error
    except BaseException:
        raw.close()
        raise


def _user_of(stream: SocketStream, socket: str) -> int | None:
    """Whose agent it is; None if nobody says."""
    try:
        if hasattr(sockets_api, "SO_PEERCRED"):
            raw = stream.extra(SocketAttribute.raw_socket)
            credentials = raw.getsockopt(sockets_api.SOL_SOCKET, sockets_api.SO_PEERCRED, struct.calcsize("3i"))
            return int(struct.unpack("3i", credentials)[1])
        return os.stat(socket).st_uid  # noqa: PTH116  (no path of ours)
    except OSError:
        return None


async def jobs_of(agents: Sequence[Agent], *, is_named: bool) -> list[KnownJob]:
    """Ask all agents for their jobs, at once; one that was not named, and says nothing of use, is passed over.

    Raises:
        CannotAttach, CallFailed, ConnectionLost: One that was named.
    """
    found: dict[str, list[KnownJob]] = {}
    wrong: dict[str, Exception] = {}

    async def one(agent: Agent) -> None:
        try:
            with anyio.fail_after(ANSWER_TIMEOUT):
                found[agent.socket] = await _jobs(agent)
        except TimeoutError:
            wrong[agent.socket] = CannotAttach(f"it has not answered within {ANSWER_TIMEOUT:g} s")
        except (CallFailed, ConnectionLost) as error:
            wrong[agent.socket] = error

    async with anyio.create_task_group() as tasks:
        for agent in agents:
            tasks.start_soon(one, agent)
    for socket, error in wrong.items():
        if is_named:
            raise error
        sys.stderr.write(printable(f"{socket} is passed over: {error}").replace("\n", " ") + "\n")
    return [each for agent in agents for each in found.get(agent.socket, ())]


async def _jobs(agent: Agent) -> list[KnownJob]:
    held = {each.job: each for each in await agent.client.held()}
    try:
        states = {each.id: each.state for each in await agent.client.statuses()}
    except CallFailed as failed:
        if failed.code is not Code.UNIMPLEMENTED:
            raise
        states = {}
    return [
        KnownJob(agent, job, states.get(job, RunState.RUNNING), held.get(job))
        for job in dict.fromkeys((*held, *states))
    ]
