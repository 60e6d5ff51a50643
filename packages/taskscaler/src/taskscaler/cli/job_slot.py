"""The slot of a job on which several processes work, one after the other, as GitLab Runner's custom executor has it.

Each of them finds the slot under the job's key, as a lease that the daemon keeps while none of them has it. So it
outlives them all, and the daemon, and goes back even if nobody is left to give it back.
"""

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from enum import Enum
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread
from attrs import field, frozen

from fleeting import ConnectError, Connection, FleetingError, Unsupported
from fleeting.cli.streaming import passed_on, status_of
from taskscaler._errors import DaemonRefused, KeyInUse, NoDaemon
from taskscaler._kept_bounds import check_bound
from taskscaler._left_there import ask_to_end, end_registered, is_posix, note_none, registering, remove_all
from taskscaler._socket import Place, check_ours, find_socket
from taskscaler._url import DaemonUrl
from taskscaler.cli._ask import ask, check_installed
from taskscaler.cli._kept import NOTICED, PAUSE, STOP_TIMEOUT, TTL, is_left, lease_under, take_up

if TYPE_CHECKING:
    from taskscaler import Lease, remote
    from taskscaler._wire import KeptFacts

__all__ = ["GivenBack", "JobSlot", "Standing", "Where", "check_bound", "place_for"]

FIRST_WORD = 2.0
"""Seconds of waiting after which it is said what for."""

LONGEST_SILENCE = 60.0
"""Seconds of waiting between two words at most: the second comes after twice as long as the first, and so on."""

ASKED_AGAIN = 0.5
"""Seconds until a command that has not begun yet is asked again to end."""

NEVER_BEGUN = 143
"""The exit status of a command that was asked to end before it began: as if SIGTERM had ended it."""


class Standing(Enum):
    """How the daemon has a job's slot."""

    NONE = "none"
    """It has none: it never had, or the slot has gone back, or was lost."""

    HELD = "held"
    """A process that gets it ready has it. It is not kept yet, and ends with that."""

    GOING = "going"
    """The same, but the process was killed: the slot goes back as soon as the daemon has noticed."""

    KEPT = "kept"
    """It is kept, and no process has it."""

    USED = "used"
    """It is kept, and a process works with it."""


class GivenBack(Enum):
    """What has become of a slot that was given back."""

    NOTHING = "nothing"
    """There was none."""

    DONE = "done"

    REMOVED = "removed"
    """Its instance is removed, because what ran there could not be ended."""


@frozen(kw_only=True)
class Where:
    """Where a job's slot is."""

    instance: str
    slot: int

    @property
    def variables(self) -> Mapping[str, str]:
        """What a command on the instance learns of it."""
        return {"TASKSCALER_INSTANCE": self.instance, "TASKSCALER_SLOT": str(self.slot)}


@frozen(kw_only=True)
class _Command:
    """A command for the instance."""

    argv: Sequence[str]
    stdin: bytes = field(repr=False)
    env: Mapping[str, str]


def place_for(socket: str | None) -> Path:
    """Find the daemon of a job; it need not be there at the moment.

    Args:
        socket: The path of its socket. None: as TASKSCALER_SOCKET has it, or the only one of the user's daemons.

    Raises:
        NoDaemon: None was named, and there is none, or there are several.
        DaemonRefused: It lets us not connect to its instances.
        WrongArguments: What speaks to it is not installed.
    """
    check_installed()
    place = find_socket(socket)
    instead = "run gitlab-runner as the user of the daemon"
    check_ours(place, instead)
    if isinstance(place, DaemonUrl):
        raise AssertionError("nothing over TCP is ours")
    with suppress(FileNotFoundError, NotADirectoryError):
        _check_permitted(place, instead)
    return place.absolute()


def _check_permitted(place: Path, instead: str) -> None:
    try:
        place.stat()
    except PermissionError as error:
        raise DaemonRefused(f"there is no permission to reach the daemon at {place}; {instead}") from error


@frozen(kw_only=True)
class JobSlot:
    """The slot of one job, at one daemon."""

    place: Place
    """Where the daemon is."""

    key: str
    """Names the job for good."""

    patience: float
    """Seconds for which a daemon that does not answer is waited for: it may be starting again."""

    say: Callable[[str], None]
    """Says something to whoever reads the job's log."""

    async def look(self) -> Standing:
        """See how the daemon has it.

        Raises:
            NoDaemon: None answers.
        """
        held = await self._until_answered(partial(lease_under, self.place, self.key))
        if held is None:
            return Standing.NONE
        left = is_left(self.place, held)
        if held["kept"]:
            return Standing.KEPT if left else Standing.USED
        return Standing.GOING if left else Standing.HELD

    async def acquire(self, *, timeout: float, ttl: float, programs: Sequence[str]) -> Where:
        """Wait for a slot, see that its instance is of use, and leave it to the daemon to keep.

        Args:
            timeout: Seconds to wait; infinite: for as long as one may still come.
            ttl: Seconds for which it is kept while no process works with it.
            programs: What has to be on its instance.

        Raises:
            NoCapacity: None came, or none ever will.
            KeyInUse: Another process waits for it.
            ConnectError: The instance cannot be reached, or lacks something.
            LeaseLost: The instance was lost.
            NoDaemon: None answers.
        """
        async with self._connected() as scaler:
            with _its_error():
                async with anyio.create_task_group() as waiting:
                    waiting.start_soon(self._say_what_for, scaler)
                    lease = await self._acquired(scaler, timeout)
                    waiting.cancel_scope.cancel()
            return await self._get_ready(scaler, lease, ttl, programs, again=False)

    async def take_up(self, *, ttl: float, programs: Sequence[str]) -> Where:
        """Get a slot ready that is kept already, with nothing left in it of before. As `acquire`.

        Raises:
            NotDetached: There is none any more.
        """
        async with self._connected() as scaler:
            lease = await take_up(scaler, self.place, self.key, inf)
            return await self._get_ready(scaler, lease, ttl, programs, again=True)

    async def run(self, command: Sequence[str], stdin: bytes, asked: anyio.Event) -> int:
        """Run a command on the instance, whose outputs are ours, and leave the slot to the daemon; returns its status.

        What a process before us has left running there, because it was killed, is ended first. Cancelling ends the
        command, with all that it has started.

        Args:
            command: A program and its arguments.
            stdin: What it reads.
            asked: Once this is set, the command gets a SIGTERM, with its process group, and is waited for.

        Raises:
            NotDetached: There is no slot, or there is none any more, and why.
            LeaseLost: The instance was lost.
            Unreachable: The connection was.
            NoDaemon: None answers.
            BrokenPipeError: Nobody reads the outputs.
        """
        async with self._connected() as scaler:
            lease = await take_up(scaler, self.place, self.key, inf)
            try:
                async with lease.unless_lost():
                    kept = await self._keep(scaler, lease)
                    async with lease.dial() as connection:
                        await end_registered(connection, kept.name, noted=kept.noted)
                        if asked.is_set():
                            return NEVER_BEGUN
                        there = _Command(argv=command, stdin=stdin, env=_where(lease).variables)
                        return await _run(connection, kept.name, there, asked)
            finally:
                lease.detach()

    async def give_back(self) -> GivenBack:
        """End what still runs in it, whoever has it, and give it back. What is not kept goes back by itself.

        Raises:
            DaemonRefused: The daemon leaves that to the next one.
            NoDaemon: None answers.
        """
        stop = partial(ask, self.place, "POST", "/stop", json={"key": self.key}, timeout=STOP_TIMEOUT)
        try:
            stopped = await self._until_answered(stop)
        except DaemonRefused:
            if await self.look() in {Standing.NONE, Standing.HELD, Standing.GOING}:
                return GivenBack.NOTHING
            raise
        return GivenBack.DONE if stopped["removed"] else GivenBack.REMOVED

    # --- inside ------------------------------------------------------------------------------------------

    async def _acquired(self, scaler: "remote.Taskscaler", timeout: float) -> "Lease":
        """Wait for a slot; a process that was killed while it waited has the key until the daemon has noticed."""
        deadline = anyio.current_time() + NOTICED
        while True:
            try:
                return await scaler.acquire_lease(self.key, timeout=timeout)
            except KeyInUse:
                if anyio.current_time() > deadline:
                    raise
            await anyio.sleep(PAUSE)

    async def _get_ready(
        self, scaler: "remote.Taskscaler", lease: "Lease", ttl: float, programs: Sequence[str], *, again: bool
    ) -> Where:
        try:
            async with lease.unless_lost():
                kept = await self._keep(scaler, lease, ttl=ttl, stays=True, there=True)
                async with lease.dial() as connection:
                    if not is_posix(connection):
                        raise Unsupported(f"{lease.instance} runs Windows; jobs come here as scripts for a POSIX shell")
                    if again:
                        await remove_all(connection, kept.name, noted=kept.noted)
                    await _check_programs(connection, lease.instance, programs)
                    await note_none(connection, kept.name)
                await self._keep(scaler, lease, noted=True)
        except BaseException:
            lease.release()
            raise
        lease.detach()
        return _where(lease)

    async def _keep(self, scaler: "remote.Taskscaler", lease: "Lease", **asked: object) -> "KeptFacts":
        """Have the daemon keep it, should this process end."""
        from taskscaler.remote._scaler import keep_for_command

        return await keep_for_command(scaler, lease, **asked)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator["remote.Taskscaler"]:
        """Be a client of the daemon, once it answers."""
        deadline = anyio.current_time() + self.patience
        async with AsyncExitStack() as stack:
            yield await self._entered(stack, deadline)

    async def _entered(self, stack: AsyncExitStack, deadline: float) -> "remote.Taskscaler":
        from taskscaler import remote

        while True:
            try:
                return await stack.enter_async_context(remote.connect(self.place, ttl=TTL, patience=self.patience))
            except NoDaemon:
                if anyio.current_time() >= deadline:
                    raise
            await anyio.sleep(PAUSE)

    async def _until_answered(self, asked: partial[Any]) -> Any:  # noqa: ANN401  (JSON's)
        """Ask the daemon, once it answers."""
        deadline = anyio.current_time() + self.patience
        while True:
            try:
                return await to_thread.run_sync(asked, abandon_on_cancel=True)
            except NoDaemon:
                if anyio.current_time() >= deadline:
                    raise
            await anyio.sleep(PAUSE)

    async def _say_what_for(self, scaler: "remote.Taskscaler") -> None:
        """Say why there is no slot yet, more and more seldom."""
        pause = FIRST_WORD
        while True:
            await anyio.sleep(pause)
            with suppress(FleetingError):  # it is said if it ends the wait
                self.say((await scaler.explain(key=self.key)).answer)
            pause = min(2 * pause, LONGEST_SILENCE)


@contextmanager
def _its_error() -> Iterator[None]:
    """Raise what goes wrong beside a task of its own as if that were not there."""
    try:
        yield
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


async def _run(connection: Connection, name: str, command: "_Command", asked: anyio.Event) -> int:
    """Run a command that may be asked to end, and pass on what it prints."""
    run = registering(name, command.argv, None)
    with _its_error(), passed_on(sys.stdout.buffer) as out, passed_on(sys.stderr.buffer) as err:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_pass_on, connection, name, asked)
            completed = await connection.run(run, stdin=command.stdin, stdout=out, stderr=err, env=command.env)
            tasks.cancel_scope.cancel()
    return status_of(completed)


async def _pass_on(connection: Connection, name: str, asked: anyio.Event) -> None:
    await asked.wait()
    while not await ask_to_end(connection, name):  # noqa: ASYNC110  (it has not begun yet, over there)
        await anyio.sleep(ASKED_AGAIN)


async def _check_programs(connection: Connection, instance: str, programs: Sequence[str]) -> None:
    """See that programs are there.

    Raises:
        ConnectError: One is not.
    """
    for program in programs:
        found = await connection.run(("/bin/sh", "-c", 'command -v "$1" > /dev/null', "sh", program))
        if not found.ok:
            raise ConnectError(f"there is no {program} on {instance}; install it there, or use another shell")


def _where(lease: "Lease") -> Where:
    return Where(instance=lease.instance, slot=lease.slot)
