"""What others implement: instance groups, connectors, connections.

A group is seven methods and plain data. What only some clouds can do is a capability with a small
protocol of its own; a group that lists the capability in its `GroupInfo` has those methods too.
"""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from attrs import frozen

from fleeting._types import (
    INTERFACE_VERSION,
    Completed,
    ConnectInfo,
    ConnectorConfig,
    GroupInfo,
    Mark,
    Notice,
    Observation,
    Settings,
)

if TYPE_CHECKING:  # importing anyio.abc costs 20 ms more than all that a bare ``import fleeting`` needs of anyio
    from anyio.abc import ByteStream

    from fleeting.connectors._listening import PortListener

Sink = Callable[[bytes], Awaitable[None]]
"""Takes output as it arrives, in order. Awaiting it is the back-pressure."""

Source = bytes | AsyncIterable[bytes]
"""What a command reads. What arrives in chunks is asked for the next one when the last one was taken."""


@runtime_checkable
class InstanceGroup(Protocol):
    """A group of like instances at some cloud.

    Every method may raise `ProviderError`; its subclasses say what the caller should do. No method
    blocks the event loop, every call to a cloud has a time-out, and cancelling one leaves nothing that
    `update` would not show.
    """

    async def init(self, settings: Settings) -> GroupInfo:
        """Open the group: check that it exists and may be managed. Called once, first.

        With ``settings.observe_only`` it is opened to be looked at, maybe while somebody else manages it. From here to
        `shutdown` it then locks, marks, makes and clears away nothing, and lets no instance know that it is there; what
        asks for a change raises `Unsupported`.

        If it raises or is cancelled, it has released what it took: `shutdown` is not called then.

        Raises:
            GroupRefused: The group is set up so that managing it would do harm.
            AuthFailed: Fix credentials or permissions.
        """
        ...

    async def update(self) -> Observation:
        """Fetch the cloud's whole view.

        Returns:
            Every instance of the group, whatever its state and whoever made it, and why asked-for
            capacity is not coming. A view that could not be fetched whole is an error, not a part.
        """
        ...

    async def increase(self, count: int, *, intent: str) -> int:
        """Ask the cloud for more instances.

        Args:
            count: Instances to add, at least 1. Slots are the scaler's business.
            intent: Names this request; a repeat with the same intent asks for
                nothing new where the group has `NAMED_CREATE`.

        Returns:
            How many the cloud accepted, 0 to *count*. They appear in a later
            `update`, and need not be running yet.

        Raises:
            CapacityUnavailable: Try another zone or type.
            RateLimited: Wait `retry_after` seconds.
            OutcomeUnknown: It may or may not have been carried out.

        Source: fleeting's InstanceGroup.Increase; the intent is ours.
        """
        ...

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        """Ask the cloud to delete these instances, and no others.

        Args:
            instances: Ids, at least one, without repeats.

        Returns:
            Those it accepted; one that is already gone is accepted. The rest is asked for again later.

        Source: fleeting's InstanceGroup.Decrease.
        """
        ...

    async def connect_info(self, instance: str) -> ConnectInfo:
        """How to connect to a running instance.

        Raises:
            InstanceNotFound: It is gone.
        """
        ...

    async def heartbeat(self, instance: str) -> None:
        """Return if the instance is healthy as far as the cloud knows, raise if not."""
        ...

    async def shutdown(self) -> None:
        """Release what `init` created on this side. Instances stay. Called once, last."""
        ...


@runtime_checkable
class Withdraws(Protocol):
    """`Capability.WITHDRAW`."""

    async def withdraw(self, count: int) -> int:
        """Take back up to *count* unfilled requests; never touches an instance that exists.

        Returns:
            How many were taken back.
        """
        ...


@runtime_checkable
class GivesNotice(Protocol):
    """`Capability.NOTICES`."""

    def notices(self) -> AsyncIterator[Notice]:
        """Yield notices as they come, until cancelled."""
        ...


@runtime_checkable
class Suspends(Protocol):
    """`Capability.SUSPEND_RESUME`."""

    async def suspend(self, instances: Sequence[str]) -> Sequence[str]:
        """Ask the cloud to stop running instances in such a way that `resume` brings them back, disks and id kept.

        Args:
            instances: Ids, at least one, without repeats.

        Returns:
            Those it accepted, with the ones that are suspended or suspending already. They show as
            ``SUSPENDING`` and then ``SUSPENDED``, are still in `update`, and may be deleted by `decrease`.
            One that is gone is not among them, and is no error.
        """
        ...

    async def resume(self, instances: Sequence[str]) -> Sequence[str]:
        """Ask the cloud to let suspended instances run again; they show as ``RESUMING`` and then ``RUNNING``.

        Their addresses may be others than before: `connect_info` is asked again.

        Args:
            instances: Ids, at least one, without repeats.

        Returns:
            Those it accepted, with the ones that run or are on the way to. The rest is asked for again later.
            One that is gone is not among them, and is no error.

        Raises:
            CapacityUnavailable: The cloud has no room for them now. They stay as they are.
        """
        ...


@runtime_checkable
class MarksOwner(Protocol):
    """`Capability.OWNER_MARK`."""

    async def mark_owner(self, until: float | None) -> None:
        """Put this manager's mark on the group, or renew it.

        Of two who ask at once, at most one gets it, as far as the cloud can guarantee that.

        Args:
            until: When the mark expires unless renewed, seconds since the epoch; None: take ours away, if it is there.
                A time that is past leaves a mark that has expired, as a manager does that has died.

        Raises:
            GroupRefused: Another owner's mark is there and has not expired. Names that owner, and until when.
        """
        ...


@runtime_checkable
class ReadsMarks(Protocol):
    """A group with `Capability.OWNER_MARK` that also shows the marks which others have put on it.

    Optional for those that are `MarksOwner`: a manager does without. What cleans up behind managers that have died,
    such as ``taskscaler reap``, needs it, and leaves groups alone that have no such method.
    """

    async def read_marks(self) -> Sequence[Mark]:
        """Fetch every mark that is on the group, by one request if the cloud allows that.

        May be called while the group is only observed; changes nothing.

        Returns:
            At most one mark of each owner, in no order, expired ones too until somebody removes or replaces them. Empty
            only if there is none: not if something is there that cannot be read.
        """
        ...


@runtime_checkable
class HasHosts(Protocol):
    """A group whose machines are there before they are instances of it, so that they can be tried beforehand."""

    async def hosts(self) -> Sequence[ConnectInfo]:
        """How to connect to each machine that the group may make an instance of, in the order of its configuration.

        May be called while the group is only observed; connects to none of them.

        Returns:
            As `InstanceGroup.connect_info` does, with the machine's own name as the id.
        """
        ...


class Connection(Protocol):
    """An open way to one instance."""

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: Source | None = None,
        stdout: Sink | None = None,
        stderr: Sink | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        check: bool = False,
    ) -> Completed:
        """Run a command and wait for it.

        Args:
            command: A shell command line, or a program and its arguments, which no shell touches.
            stdin: What the command reads, for as long as it reads; None: nothing. What the source raises
                ends the command and is raised.
            stdout: Gets the output as it arrives. None: it is collected into the result, up to
                16 MiB, then `ConnectError`.
            stderr: The same for the error output.
            env: Added to the instance's own environment.
            cwd: Working directory, absolute; None: the instance's own default.
            check: Raise `CommandFailed` unless it exits with 0.

        Cancelling ends the command's whole process tree on the instance before the cancellation is
        delivered, within a bound.

        Raises:
            Unreachable: The connection died; whether the command ended is unknown.
        """
        ...

    async def put(self, source: str | PathLike[str], target: str) -> None:
        """Copy a file or a directory to the instance, which needs a shell and tar.

        Nothing is at its place before all of it has come; only a directory that is copied over one that exists gets
        there file by file. Names, contents, modes and links are kept.

        Args:
            source: On this machine.
            target: Where it is to be, or a directory to put it into; relative to where commands start.

        Raises:
            CopyFailed: On which side, and why.
            Unreachable: The connection died.
        """
        ...

    async def get(self, source: str, target: str | PathLike[str]) -> None:
        """Copy a file or a directory from the instance; as `put`, the other way round.

        What comes stays within its place: an archive with links or names that lead out of it is refused.
        """
        ...

    async def open_unix(self, path: str) -> "ByteStream":
        """Open a stream to a unix socket on the instance.

        Raises:
            Unsupported: The protocol has no tunnels.
        """
        ...

    async def open_tcp(self, host: str, port: int) -> "ByteStream":
        """Open a stream to a TCP port as seen from the instance. Raises as `open_unix`."""
        ...

    async def wait_closed(self) -> str:
        """Wait until the connection is dead.

        Returns:
            Why, in a few words.
        """
        ...


class Terminal(Protocol):
    """A command that runs in a terminal of its own on an instance."""

    async def receive(self) -> bytes:
        """Wait for what it writes; empty once nothing more will come."""
        ...

    async def send(self, data: bytes) -> None:
        """Type something; what nobody reads any more is lost."""
        ...

    async def resize(self, columns: int, rows: int) -> None:
        """Report the new size of the window."""
        ...

    async def wait(self) -> Completed:
        """How the command ended. Wait for it only once all was received.

        Raises:
            Unreachable: The connection died; whether the command ended is unknown.
            ConnectError: The command was not started: the instance opens no terminals for this user.
        """
        ...


@runtime_checkable
class OpensTerminals(Protocol):
    """A connection that can give a command a terminal; not all can."""

    def open_terminal(
        self, command: str | Sequence[str] | None, *, term: str, columns: int, rows: int
    ) -> AbstractAsyncContextManager[Terminal]:
        """Run a command in a terminal, where all that it writes is one stream; leaving the context hangs up.

        Args:
            command: As `Connection.run` takes it; None: the user's login shell.
            term: What kind of terminal it is, for the variable ``TERM``.
            columns: Width of the window, in characters; 0: unknown.
            rows: Its height.

        Raises:
            Unreachable: The connection died.
        """
        ...


@runtime_checkable
class ForwardsPorts(Protocol):
    """A connection whose instance can listen for us, so that what runs there reaches us; not all can."""

    def listen_tcp(self, host: str, port: int) -> "AbstractAsyncContextManager[PortListener]":
        """Listen at a TCP port of the instance, whose connections come to us, for as long as the context is open.

        Leaving ends every stream that is still open, and frees the port before it returns, as far as the instance
        answers. Of the connections that nobody accepts, some wait, and more are turned away; what a peer sends before
        it is read waits with the peer, but for a bounded part.

        Args:
            host: An address of the instance, such as ``127.0.0.1``; ``localhost``: its loopback addresses; empty: all
                of its addresses, so that other machines get in.
            port: 0: one that is free, which `PortListener.port` says.

        Raises:
            PortTaken: Something else listens there.
            Unsupported: The instance allows this nobody, or not this user, or not at this address.
            ConnectError: It does not listen, for another reason.
            Unreachable: The connection died.
        """
        ...


KEPT_OUTPUT: Final = 256 << 20
"""Bytes of a detached command's output that are kept on its instance, unless somebody says otherwise."""


@frozen(kw_only=True)
class Detached:
    """A command that was started and not forgotten."""

    name: str
    """As it was started."""

    completed: Completed | None = None
    """How it ended; None if it runs, or is lost."""

    lost: str = ""
    """Why nobody knows how it ended; empty if it runs, or that is known."""

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.completed is None and not self.lost


@runtime_checkable
class RunsDetached(Protocol):
    """A connection whose instance can run commands that outlive it; not all can.

    A name is the caller's, of at most 100 letters, digits, ``_``, ``-`` and ``.``. It is used once: so a caller who
    does not know whether a command was started, after a crash or a broken connection, starts it again, and attaches
    to it if the name is taken. Any number of callers may be attached to one command.
    """

    async def start(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        stdin: Source | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        keep: int = KEPT_OUTPUT,
    ) -> None:
        """Start a command; it runs once this returns.

        Args:
            name: Names the command, on this instance.
            command: As `Connection.run` takes it; what cannot be started ends with status 127 or 126.
            stdin: What it reads. All of it is taken to the instance before the command begins.
            env: Added to the instance's own environment.
            cwd: Working directory, absolute; None: the instance's own default.
            keep: Bytes of its output, standard and error output together, that are kept at least, in steps of
                512; the command goes on when it writes more, and `Completed.cut` says how much that was.

        Raises:
            NameTaken: A command of this name was started before; this one was not.
            ConnectError: It was not started.
            Unreachable: The connection died; whether it was started is unknown, as when this is cancelled.
        """
        ...

    async def attach(self, name: str, *, offset: int = 0, output: Sink) -> Completed:
        """Wait for a command that runs or has ended; cancelling leaves it running.

        Args:
            name: As it was started.
            offset: How many bytes of its output not to pass on, because they are known.
            output: Gets the rest of it as it arrives. What is not taken yet does not hold the command up.

        Returns:
            How it ended, once all of its output that was kept has been passed on.

        Raises:
            NameUnknown: No such command was started, or it was forgotten.
            CommandLost: Nobody will know how it ended: the host rebooted, or what watched over it was killed.
            Unreachable: The connection died; attach again, from where the output broke off.
        """
        ...

    async def list_detached(self) -> Sequence[Detached]:
        """Every command that was started here and not forgotten, in no order."""
        ...

    async def kill(self, name: str) -> None:
        """End a command with its whole process tree, as cancelling `Connection.run` does; one that has ended stays so.

        Raises:
            NameUnknown: There is no such command.
        """
        ...

    async def forget(self, name: str) -> None:
        """Remove what is kept of a command that has ended, its output and its name; nothing if there is none.

        Raises:
            ConnectError: It still runs.
        """
        ...


@runtime_checkable
class StartsAttached(RunsDetached, Protocol):
    """A connection that starts a detached command and attaches to it at once, by one command rather than two.

    Optional for those that are `RunsDetached`; whoever has none of it calls `RunsDetached.start`, then
    `RunsDetached.attach`.
    """

    async def start_attached(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        stdin: Source | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        keep: int = KEPT_OUTPUT,
        started: Callable[[], object],
        output: Sink,
    ) -> Completed:
        """Start a command, and wait for its end; cancelling after *started* leaves it running.

        Args:
            name: As for `RunsDetached.start`; so are the next five.
            command: As there.
            stdin: As there.
            env: As there.
            cwd: As there.
            keep: As there.
            started: Called once, without arguments, when the command runs and before any of its output is passed on.
            output: As for `RunsDetached.attach`, from the first byte on.

        Returns:
            As `RunsDetached.attach`.

        Raises:
            NameTaken, ConnectError, Unreachable: Before *started* was called, as `RunsDetached.start`.
            CommandLost, NameUnknown, Unreachable: After it, as `RunsDetached.attach`: attach to the command, from where
                the output broke off.
        """
        ...


@runtime_checkable
class ReportsSystem(Protocol):
    """A connection that knows what kind of system it leads to; one that does not leads to a POSIX host."""

    @property
    def os(self) -> str:
        """Such as ``windows``, where a string that is run is a line for cmd.exe."""
        ...


class Connector(Protocol):
    """Speaks one protocol. Registered under ``fleeting.connectors`` by the protocol's name."""

    def dial(self, info: ConnectInfo, config: ConnectorConfig) -> AbstractAsyncContextManager[Connection]:
        """Connect, within ``config.timeout`` seconds; leaving the context closes the connection.

        Raises:
            Unreachable, HostKeyMismatch, LoginRejected: On entering.
        """
        ...


@frozen(kw_only=True)
class GroupPlugin:
    """What a plugin's `fleeting_group` hook returns."""

    config: type[Any]
    """The attrs class that is the schema of ``plugin_config``."""

    group: Callable[[Any], InstanceGroup]
    """Makes the group from an instance of `config`. Imports nothing heavy, connects to nothing."""

    interface_version: int = INTERFACE_VERSION
    """The version of the interface that the plugin was written for."""

    secrets: frozenset[str] = frozenset()
    """Keys of `config` whose values no error may show."""
