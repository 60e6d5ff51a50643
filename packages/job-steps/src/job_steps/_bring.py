"""An agent on an instance: placed there once for each version, started once, and reached through a connection.

On the instance is nothing but ``.job-steps`` in the user's home, or in the directory of an instance that has one of its
own: for each version the zipapp, its modules, compiled, and a directory for each of its agents, which differ by the
policy that they apply.

A job stays where it was started. A manager that comes back with another version or another policy has another agent for
new jobs, which does not know it: so whoever is after a job names it, and speaks to the agent that has it.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

import anyio
from attrs import frozen

from fleeting import ConnectError, Connection, Unsupported
from fleeting.connectors import PosixConnection, ReportsSystem, RunsDetached
from fleeting.errors import CommandLost, NameTaken, NameUnknown
from fleeting.plugins import one_line
from job_steps._agent._job import directory_of
from job_steps._agent_errors import AgentError
from job_steps._call_errors import CallError, CallFailed
from job_steps._call_status import Code
from job_steps._client import StepRunnerClient, step_runner
from job_steps._zipapp import zipapp

START_TIMEOUT: Final = 60.0
"""Seconds until an agent answers that has been started: a busy host may take a while."""

PLACE_TIMEOUT: Final = 300.0
"""Seconds until it is there: half a megabyte, which Python compiles."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two tries to reach an agent that is about to listen."""

_OTHER_LISTENS: Final = 75
"""How an agent ends that is not alone; see `_agent._main`."""

_KEPT_OUTPUT: Final = 1 << 20
"""Bytes of what an agent says, the first ones; what jobs say is in their logs."""

_HEARD: Final = 64 << 10
"""Bytes that are looked at of what an agent says; a login shell may have said something before it."""

_LISTENING: Final = b"listening "
"""What the line begins with that says where."""

_SAID: Final = 500  # characters

_AT: Final = """
at=${1:-${HOME:?is not set, so the agent has no place}}/.job-steps/$2
shift 2
"""
"""Where a version is, by the directory that has it, or none for the home, and by its name."""

_LOOK: Final = f"""{_AT}
first() {{ [ ! -f "$1" ] || head -c 4096 -- "$1" | head -n 1; }}
name=$1
if [ -n "$2" ] && [ ! -f "$at/$name/jobs/$2/job.json" ]; then
    for each in "${{at%/*}}"/*/run*/jobs/"$2"/job.json; do
        [ -f "$each" ] || continue
        each=${{each%/jobs/*}}
        name=${{each##*/}}
        at=${{each%/*}}
        break
    done
fi
python=$(first "$at/python")
[ -n "$python" ] && [ -f "$at/agent.pyz" ] || {{ echo "lacks $at"; exit; }}
process=$(first "$at/$name/process")
case $process in '' | *[!0-9]*) ;; *) kill -CONT "$process" 2>/dev/null ;; esac
printf '%s\\n' "has $at" "$python" "$(first "$at/$name/socket")" "$name"
"""
"""Say what is there of a version, and of its agent of a name, or of the one that has a job, if another one has. That
agent goes on if a job has stopped it."""

_KEPT_JOBS: Final = f"""{_AT}
for each in "${{at%/*}}"/*/run*/jobs/"$1"*/job.json; do
    each=${{each%/job.json}}
    printf '%s\\n' "${{each##*/}}"
done
"""
"""Name the jobs that agents keep, of all versions, by how they begin; or something with an asterisk."""

_MOST_KEPT: Final = 10_000
"""Names of jobs that are looked at."""

_SHOW: Final = """
[ ! -f "$1" ] || head -c 67108864 -- "$1"
"""
"""What an agent has as its policy, of which none has more."""

_PLACE: Final = f"""{_AT}
umask 077
mkdir -p "$at" || exit
new=$at/.new.$$
trap 'rm -f "$new"' EXIT
trap 'exit 1' HUP INT TERM
cat > "$new" || exit
[ "$(wc -c < "$new")" -eq "$1" ] || {{ echo "not all of it has arrived" >&2; exit 1; }}
shift
found=
for each; do
    python=$(command -v "$each") || continue
    version=$("$python" -c 'import sys; print(".".join(map(str, sys.version_info[:3])))' 2>&1 | tail -n 1)
    found="$found${{found:+, }}$python is $version"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue
    mv -f "$new" "$at/agent.pyz" && "$python" -I "$at/agent.pyz" check > /dev/null || exit
    printf '%s\\n' "$python" > "$at/python.$$" && mv -f "$at/python.$$" "$at/python"
    exit
done
echo "the instance has no Python 3.10 or later${{found:+ ($found)}}; install one" >&2
exit 3
"""
"""Keep what comes on standard input as a version, if a Python of those that are named is new enough for it."""

_SERVE: Final = """
cd "$1" || exit
read -r python < python
name=$2
shift 2
exec "$python" -I agent.pyz serve "$name" "$@"
"""
"""Run an agent, which needs no more of its environment than this host's; what jobs leave for Python is not for it."""

PYTHONS: Final = ("python3", *(f"python3.{minor}" for minor in range(19, 9, -1)), "python")
"""What is looked for on an instance, in this order."""


@frozen
class PlacedAgent:
    """An agent that can be run on an instance."""

    path: str
    """Of the zipapp there, absolute."""

    python: str
    """What runs it there."""


@frozen
class Agent:
    """An agent that runs on an instance, and answers."""

    client: StepRunnerClient
    """Speaks to it, for as long as the context is open."""

    socket: str
    """Where it listens there: keep it for `reach`, by which whoever comes later finds its jobs."""


async def place_agent(connection: Connection, *, pythons: Sequence[str] = PYTHONS) -> PlacedAgent:
    """Have the agent ready on an instance, without starting it; it is uploaded if it is not there yet.

    Args:
        connection: To the instance.
        pythons: Commands or paths of Python to try there, the preferred one first.

    Raises:
        AgentError: The instance cannot have it.
        ConnectError: As the connection says.
    """
    _check(connection)
    return (await _place(connection, "", pythons)).agent


@asynccontextmanager
async def bring_agent(
    connection: Connection,
    *,
    policy: bytes = b"",
    pythons: Sequence[str] = PYTHONS,
    idle_time: float = 3600.0,
    job: str = "",
) -> AsyncIterator[Agent]:
    """Reach the agent of an instance, which is placed and started there if it is not; leaving lets it run on.

    Args:
        connection: To the instance; its commands can outlive it, and it reaches unix sockets.
        policy: Rules that every job of this agent has to obey, as JSON; for each other policy there is another agent.
        pythons: As for `place_agent`.
        idle_time: Seconds without a running job and without anybody connected, after which an agent that is started now
            ends.
        job: The id of a job. If another agent has it, of whatever version and policy, that one is reached, and started
            again with its own policy if it has ended; empty: the agent for new jobs is.

    Raises:
        AgentError: The instance cannot have it, or it has ended as soon as it was started.
        ConnectError: As the connection says.
    """
    _check(connection)
    name = _name_of(policy)
    placed = await _place(connection, name, pythons, job)
    socket = ""
    if (placed.version, placed.name) != (zipapp().name, name):
        socket = await _running(connection, placed, None, idle_time)
        if not await _has(connection, socket, job):
            placed, socket = await _place(connection, name, pythons), ""
    if not socket:
        socket = await _running(connection, placed, policy, idle_time)
    async with reach(connection, socket) as client:
        yield Agent(client, socket)


async def kept_jobs(connection: Connection, beginning: str) -> Sequence[str]:
    """Name the jobs that agents of an instance keep, of whatever version and policy, whether these run or not.

    Args:
        connection: To the instance.
        beginning: How the names begin, in letters, digits and hyphens.

    Raises:
        ConnectError: As the connection says.
    """
    command = ("/bin/sh", "-c", _KEPT_JOBS, "sh", _base_of(connection), zipapp().name, beginning)
    listed = await connection.run(command)
    lines = listed.stdout.decode(errors="replace").splitlines()
    return [line for line in lines if line.startswith(beginning)][:_MOST_KEPT]


@asynccontextmanager
async def reach(connection: Connection, socket: str) -> AsyncIterator[StepRunnerClient]:
    """Speak to a service that listens at a socket of an instance: an agent, or GitLab's ``step-runner serve``.

    Raises:
        ConnectError: Nobody listens there, or the connection is dead.
        AgentError: The connection has no tunnels.
    """
    try:
        stream = await connection.open_unix(socket)
    except Unsupported as error:
        raise AgentError(f"the agent cannot be reached: {error}") from error
    async with step_runner(stream) as client:
        yield client


@frozen
class _Placed:
    """What is on an instance."""

    agent: PlacedAgent
    socket: str
    """Where its agent has listened last; empty if it never has."""

    name: str
    """Of that agent, among those of its version."""

    @property
    def directory(self) -> str:
        """Of the version."""
        return self.agent.path.rpartition("/")[0]

    @property
    def version(self) -> str:
        """By its name."""
        return self.directory.rpartition("/")[2]


def _base_of(connection: Connection) -> str:
    """The directory that agents are in; empty for the user's home."""
    return connection.detached_directory.rpartition("/")[0] if isinstance(connection, PosixConnection) else ""


def _check(connection: Connection) -> None:
    """Raises AgentError if no agent can run there."""
    if isinstance(connection, ReportsSystem) and connection.os == "windows":
        raise AgentError("the agent needs a POSIX system, and the instance runs Windows; use another executor there")


async def _place(connection: Connection, name: str, pythons: Sequence[str], job: str = "") -> _Placed:
    """Look what is on the instance, and place what is missing.

    Args:
        connection: To the instance.
        name: Of an agent.
        pythons: As for `place_agent`.
        job: Whose agent is wanted if another one has it.
    """
    with anyio.move_on_after(PLACE_TIMEOUT):
        return await _place_patiently(connection, name, pythons, job)
    raise AgentError(
        f"the agent was not placed on the instance within {PLACE_TIMEOUT:g} s; its shell hangs, or its link"
    )


async def _place_patiently(connection: Connection, name: str, pythons: Sequence[str], job: str) -> _Placed:
    """See `_place`."""
    agent = zipapp()
    for _ in range(2):
        directory, placed = await _look(connection, agent.name, name, job)
        if placed is not None:
            return placed
        if directory.rpartition("/")[2] != agent.name:
            raise AgentError(f"the agent that has the job cannot be reached: {directory} on the instance is not whole")
        base, size = _base_of(connection), str(len(agent.data))
        command = ("/bin/sh", "-c", _PLACE, "sh", base, agent.name, size, *pythons)
        done = await connection.run(command, stdin=agent.data)
        if not done.ok:
            _refused("placed on the instance", done.stderr)
    raise AgentError("the agent is not where it was placed; something removes .job-steps on the instance")


async def _look(connection: Connection, version: str, name: str, job: str = "") -> tuple[str, _Placed | None]:
    """Look for an agent; returns the directory of its version, and what is there, if that is whole."""
    kept = directory_of(Path(), job).name if job else ""
    looked = await connection.run(("/bin/sh", "-c", _LOOK, "sh", _base_of(connection), version, name, kept))
    lines = looked.stdout.decode(errors="surrogateescape").splitlines()
    at = next((index for index, line in enumerate(lines) if line.startswith(("has /", "lacks /"))), None)
    if not looked.ok or at is None:
        _refused("looked for", looked.stderr or b"the instance's shell says nothing")
    word, _, directory = lines[at].partition(" ")
    if word == "lacks":
        return directory, None
    python, socket, found, *_ = *lines[at + 1 : at + 4], "", "", ""
    if not python:
        _refused("looked for", b"the instance's shell does not say which Python it has")
    return directory, _Placed(PlacedAgent(f"{directory}/agent.pyz", python), socket, found)


def _name_of(policy: bytes) -> str:
    """What an agent is called that applies a policy."""
    return f"run-{hashlib.sha256(policy).hexdigest()[:16]}" if policy else "run"


async def _policy_of(connection: Connection, placed: _Placed) -> bytes:
    """Read what an agent applies that somebody else has started: its name says whether that is unchanged."""
    if placed.name == _name_of(b""):
        return b""
    path = f"{placed.directory}/{placed.name}/policy"
    shown = await connection.run(("/bin/sh", "-c", _SHOW, "sh", path))
    if _name_of(shown.stdout) != placed.name:
        raise AgentError(f"the agent that has the job cannot be started again: {path} is not its policy any more")
    return shown.stdout


def _refused(what: str, said: bytes) -> NoReturn:
    lines = said.decode(errors="replace").strip().splitlines() or ["its shell says nothing"]
    raise AgentError(f"the agent cannot be {what}: {one_line(lines[-1])[:_SAID]}")


async def _has(connection: Connection, socket: str, job: str) -> bool:
    """Whether an agent knows a job."""
    async with reach(connection, socket) as client:
        try:
            await client.status(job)
        except CallFailed as failed:
            if failed.code is not Code.NOT_FOUND:
                raise
            return False
    return True


async def _running(connection: Connection, placed: _Placed, policy: bytes | None, idle_time: float) -> str:
    """Where an agent listens, which is started unless it runs; without a policy that is given, with its own."""
    if placed.socket and await _answers(connection, placed.socket):
        return placed.socket
    if not isinstance(connection, RunsDetached):
        raise AgentError("the agent has to outlive the connection, which this protocol has no way to do; use SSH")
    with anyio.move_on_after(START_TIMEOUT):
        own = await _policy_of(connection, placed) if policy is None else policy
        return await _Starter(connection, connection, placed, own, idle_time).started()
    raise AgentError(f"the agent has not answered within {START_TIMEOUT:g} s of its start on the instance")


async def _answers(connection: Connection, socket: str) -> bool:
    """Whether an agent does, at a socket of the instance."""
    try:
        async with reach(connection, socket) as client:
            await client.statuses()
    except (ConnectError, CallError):  # it may have been stopped, or something else listens there
        return False
    return True


@frozen
class _Starter:
    """Starts one agent."""

    connection: Connection
    detaching: RunsDetached
    placed: _Placed
    policy: bytes
    idle_time: float

    async def started(self) -> str:
        """Start it, unless it runs; returns the socket at which it answers."""
        placed = self.placed
        detached = f"job-steps-{placed.version}-{placed.name}"
        while True:
            is_ours = await self._start(detached)
            attached = _Attached(self.connection, self.detaching, detached)
            if socket := await attached.socket():
                return socket
            if attached.exit_status == _OTHER_LISTENS:
                _, looked = await _look(self.connection, placed.version, placed.name)
                if looked and looked.socket and await _answers(self.connection, looked.socket):
                    return looked.socket
            elif is_ours and attached.exit_status:
                raise AgentError(f"the agent has ended on the instance: {attached.last_words}")
            with suppress(ConnectError):  # someone else has started it again meanwhile
                await self.detaching.forget(detached)

    async def _start(self, detached: str) -> bool:
        """Whether it was not started before, as far as anybody remembers."""
        options = ("--idle-time", f"{self.idle_time:g}", *(("--policy", "-") if self.policy else ()))
        command = ("/bin/sh", "-c", _SERVE, "sh", self.placed.directory, self.placed.name, *options)
        try:
            await self.detaching.start(detached, command, stdin=self.policy or None, keep=_KEPT_OUTPUT)
        except NameTaken:
            return False
        return True


class _Attached:
    """Listens to what an agent says that was started, until it listens itself."""

    def __init__(self, connection: Connection, detaching: RunsDetached, name: str) -> None:
        self._connection = connection
        self._detaching = detaching
        self._name = name
        self._said = bytearray()
        self._listens = anyio.Event()
        self._error: ConnectError | None = None
        self.exit_status: int | None = None
        """How it has ended; None if it runs, or nobody knows."""

    @property
    def last_words(self) -> str:
        """The last line that it has said."""
        lines = self._said.decode(errors="replace").strip().splitlines() or ["it says nothing"]
        return one_line(lines[-1])[:_SAID]

    async def socket(self) -> str:
        """Where it answers; empty if it has ended."""
        found = ""
        async with anyio.create_task_group() as tasks:

            async def attach() -> None:
                await self._attach()
                tasks.cancel_scope.cancel()

            tasks.start_soon(attach)
            await self._listens.wait()
            socket, pause = self._place_in_output(), _FIRST_PAUSE
            while not await _answers(self._connection, socket):
                await anyio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            found = socket
            tasks.cancel_scope.cancel()
        if self._error is not None:
            raise self._error
        return found

    async def _attach(self) -> None:
        try:
            completed = await self._detaching.attach(self._name, output=self._take)
            self.exit_status = completed.exit_status
        except (CommandLost, NameUnknown):
            pass  # it is over, or was forgotten by another manager
        except ConnectError as error:
            self._error = error

    async def _take(self, chunk: bytes) -> None:
        if len(self._said) < _HEARD and not self._listens.is_set():
            self._said += chunk
            if self._place_in_output():
                self._listens.set()

    def _place_in_output(self) -> str:
        for line in bytes(self._said).split(b"\n")[:-1]:
            if line.startswith(_LISTENING):
                return line.removeprefix(_LISTENING).decode(errors="surrogateescape")
        return ""
