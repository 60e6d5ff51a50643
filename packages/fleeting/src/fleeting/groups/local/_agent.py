"""The agent: one instance of the `local` group, as a process of the operating system.

Run by path, ``python -I -S``, so that it starts fast, stays small and needs nothing but the standard library;
the group imports it only for the names it shares with it.

Who answers for whom::

    agent           accepts, forks a runner for each client's commands, reaps; removes its directory when it ends
    └── runner      starts a command, outlives it, then kills all that is left of its process tree; and the next one
        └── command, in a session of its own, on the very pipes that the client sent

A runner ends its tree when the command has ended, when its client hangs up, or when the agent is gone, which it
sees at once even after ``kill -9``: the agent alone holds the other end of a pipe. Runner and agent are
subreapers, so a process that lost its parent falls to the runner, and to the agent if the runner was killed.

Suspended, an instance is a directory without an agent, as a stopped machine is a disk: what ran there has ended, files
stay. Resumed, it gets a new agent, under the same name and with the same files.

The agent's directory is locked for as long as it lives. That is the one proof of life, and it keeps out programs
that clear away old temporary files.

The protocol is one JSON object on a line, each way: ``ping``, ``attach`` (a manager is there, for as long as this
connection lasts) and ``run`` (with stdin, stdout and stderr as descriptors), answered when all has ended. Then there
may be another ``run``, as often as wanted. Whoever hangs up cancels, and whoever says anything before the answer. What
cannot be understood gets one line that says why, and the connection is closed.
"""

# Importing pathlib would cost a third of the boot.
# ruff: noqa: PTH101, PTH104, PTH106, PTH107, PTH110, PTH114, PTH118, PTH119, PTH120, PTH123, PTH208
from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import socket
import struct
import sys
from contextlib import suppress
from math import inf
from time import monotonic

TYPE_CHECKING = False  # importing typing would cost a quarter of the boot
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from typing import Any, NoReturn

PID = "agent.pid"
SOCKET = "agent.sock"
LOG = "agent.log"
"""What the agent has to say on stderr: nothing, unless it crashes."""

DELETING = "deleting"
"""Exists once the instance was asked to end; an agent that finds it ends."""

SUSPENDED = "suspended"
"""Exists from when the instance is asked to sleep until it is asked to wake; an agent that finds it ends and leaves the
directory behind."""

RESUMING = "resuming"
"""Takes its place until the next agent listens; one that is killed before that has left the instance asleep."""

DETACHED = "detached"
"""Where commands that outlive their connections are kept."""

WORK = "work"
"""Where commands run unless they are given another directory."""

GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL for a command whose client has hung up."""

LOOK_IN = 1.0
"""Seconds below which a manager only looked in, as one that is refused does: that keeps no orphan alive."""

CATCHABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}

_REQUEST_LIMIT = 4 << 20
_CHUNK = 65536
_STDIO = 3
_BEGAN = 19  # of the fields behind the name: see proc(5)
_ADOPTS = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_NAMES_OF_SIGNALS = {number.value: number.name for number in signal.Signals}


def is_same_user(connection: socket.socket) -> bool:
    """Whether who is at the other end runs as our user; where that is unknown, the directory's mode must do."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return bool(uid == os.getuid())


def has_hung_up(connection: socket.socket) -> bool:
    """Whether nobody is at the other end any more; what came from there is thrown away, and nothing waits."""
    try:
        while connection.recv(_CHUNK):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def remove_tree(path: str) -> None:
    """Remove a directory and all that is in it, read-only directories included, as far as possible."""
    from shutil import rmtree  # needed once, at the end

    for directory, names, _ in os.walk(path):
        for name in names:
            inner = os.path.join(directory, name)
            if not os.path.islink(inner):
                with suppress(OSError):
                    os.chmod(inner, 0o700)
    rmtree(path, ignore_errors=True)


def discard(directory: str) -> None:
    """Remove an instance's directory; others see all of it or nothing."""
    gone = os.path.join(os.path.dirname(directory), f".gone-{os.path.basename(directory)}")
    with suppress(FileNotFoundError):
        os.rename(directory, gone)
    remove_tree(gone)


def mark_deleting(directory: str) -> None:
    """Note that the instance is to end; it may be gone already."""
    with suppress(FileNotFoundError), open(os.path.join(directory, DELETING), "w"):
        pass


def forget_agent(directory: str) -> None:
    """Remove what says where an agent is; there is none."""
    for name in (SOCKET, PID):
        with suppress(FileNotFoundError):
            os.remove(os.path.join(directory, name))


class Signals:
    """Signals as something that a selector can wait for."""

    def __init__(self, *numbers: int) -> None:
        """Catch these from now on, in place of whoever caught them before."""
        self.receiver, self._sender = socket.socketpair()
        self.receiver.setblocking(False)
        self._sender.setblocking(False)
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda *_: None)

    def take(self) -> bytes:
        """Return the numbers of those that came; call it when `receiver` is readable."""
        return self.receiver.recv(_CHUNK)


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs, where the system can do that and can list them."""
    if _ADOPTS:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """Process ids of our children; none where the system cannot list them."""
    if not _ADOPTS:
        return []
    with open(f"/proc/self/task/{os.getpid()}/children") as listing:
        return [int(child) for child in listing.read().split()]


def age(pid: int) -> tuple[int, int]:
    """By what our children are sorted, the eldest first: clocks tick more slowly than processes are started."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[_BEGAN]), pid


def kill_children(spare: Collection[int] = ()) -> None:
    """Kill our children; those that they leave behind become ours, so do it again after each that is reaped."""
    for child in children():
        if child not in spare:
            with suppress(PermissionError):  # it became somebody else's; then it ends when it likes
                os.kill(child, signal.SIGKILL)


def end_children(spare: set[int]) -> Iterator[tuple[int, int]]:
    """Kill and reap, generation after generation, until there are no children; those in *spare* end by themselves.

    Yields:
        Process id and wait status of each.
    """
    while True:
        kill_children(spare)
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return
        spare.discard(pid)
        yield pid, status


def reap() -> Iterator[tuple[int, int]]:
    """Yield process id and wait status of each child that has ended, without waiting for any."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            yield ended


def close_all_but(keep: Collection[int]) -> None:
    """Close every descriptor above stderr except these."""
    for name in os.listdir("/dev/fd"):
        descriptor = int(name)
        if descriptor >= _STDIO and descriptor not in keep:
            with suppress(OSError):  # the one that read the listing is closed already
                os.close(descriptor)


def send(connection: socket.socket, answer: dict[str, object]) -> None:
    """Send one line; whoever has gone, or does not read, misses it."""
    with suppress(OSError):
        connection.send(json.dumps(answer).encode() + b"\n")


class Command:
    """What to run, as a request says it."""

    def __init__(self, request: dict[str, Any]) -> None:
        """Raise ValueError for what cannot be a command."""
        self.launches = request.get("op") == "launch"
        self.argv: Any = request.get("argv")
        self.env: Any = request.get("env", {})
        self.cwd: Any = request.get("cwd") or WORK
        if not (isinstance(self.argv, list) and self.argv and _are_strings(self.argv)):
            raise ValueError("argv must be a list of strings that is not empty")
        if not (isinstance(self.env, dict) and _are_strings(self.env.values())):
            raise ValueError("env must be an object of strings")
        if not isinstance(self.cwd, str):
            raise ValueError("cwd must be a string")

    def start(self, stdio: Sequence[int]) -> int:
        """Start it in a session of its own, on these descriptors, and return its process id."""
        around = dict(os.environ) if self.env else {}
        try:  # the system may refuse a variable after it has taken others
            os.environ.update(self.env)  # not only for the command: its program is looked for in this PATH
            os.chdir(self.cwd)
            return os.posix_spawnp(
                self.argv[0],
                self.argv,
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, descriptor, target) for target, descriptor in enumerate(stdio)],
                setsid=True,
                setsigmask=(),
                setsigdef=CATCHABLE,
            )
        finally:
            if self.env:
                os.environ.clear()
                os.environ.update(around)


def _are_strings(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


class Runner:
    """Runs a client's commands, one after the other, in a process of its own, and leaves none behind."""

    def __init__(self, client: Client, agent: int) -> None:
        """Serve *client* for as long as the pipe *agent* is open at its other end."""
        os.setsid()  # whoever kills the agent's whole process group must not get us as well
        adopt_orphans()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._signals = Signals(signal.SIGCHLD)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._signals.receiver, selectors.EVENT_READ, "child")
        self._selector.register(client.socket, selectors.EVENT_READ, "client")
        self._selector.register(agent, selectors.EVENT_READ, "agent")
        self._client = client
        self._home = os.open(".", os.O_RDONLY)
        self._pid = 0
        self._status: int | None = None

    def serve(self, command: Command | None) -> None:
        """Run this command and all that follow, until the client has no more or there is no agent."""
        try:
            while command is not None and self._run(command):
                command = self._next()
        except (OSError, ValueError, RecursionError) as error:
            send(self._client.socket, {"error": str(error)})

    def _next(self) -> Command | None:
        """Wait for the next request; None: there will be none."""
        while True:
            events = {key.data for key, _ in self._selector.select()}
            if "child" in events:  # of the last command
                self._signals.take()
            if "agent" in events or ("client" in events and not self._client.receive()):
                return None
            for request in self._client.requests():
                if request.get("op") != "run":
                    raise ValueError(f"op must be run after a run, not {request.get('op')!r}")
                self._status = None
                return self._client.command(request)

    def _run(self, command: Command) -> bool:
        """Start it, wait for its end or for a reason to end it, and report when nothing is left of it.

        Returns:
            Whether the client is there for more.
        """
        stdio = self._client.descriptors
        os.fchdir(self._home)
        try:
            self._pid = command.start(stdio)
        except (OSError, ValueError) as error:
            is_lost = self._happened("agent")  # then it failed because the instance's directory goes with the agent
            if not is_lost:
                self._report_failure(command, error, stdio[2])
            self._client.close_descriptors()
            return not is_lost and not self._client.has_more
        self._client.close_descriptors()
        if not self._client.has_more:
            self._wait({"client", "agent"}, inf)
        has_ended = self._status is not None
        if command.launches and has_ended:
            self._attend_launched()
            return False
        self._end()
        if self._happened("agent"):  # its death is what the client must learn of, and does when we hang up
            return False
        self._report(os.waitstatus_to_exitcode(self._status or 0))
        return has_ended

    def _wait(self, reasons: set[str], patience: float) -> None:
        """Wait for the command's own end, one of these *reasons*, or the end of our *patience*, in seconds."""
        deadline = monotonic() + patience
        while self._status is None and monotonic() < deadline:
            timeout = None if deadline == inf else deadline - monotonic()
            events = {key.data for key, _ in self._selector.select(timeout)}
            if "child" in events:
                self._signals.take()
                for ended in reap():
                    self._note(*ended)
            if events & reasons:
                return

    def _attend_launched(self) -> None:
        """Report, wait for the eldest that it has left, or for the agent's end, then kill what is left of that.

        That one watches over the others, some of which may be ours already, for they left their parents too.
        """
        left = set(sorted(children(), key=age)[:1])
        self._report(os.waitstatus_to_exitcode(self._status or 0))
        self._selector.unregister(self._client.socket)
        self._client.close()
        while left and not self._happened("agent"):
            if "child" in {key.data for key, _ in self._selector.select()}:
                self._signals.take()
                left -= {pid for pid, _ in reap()}
        for _ in end_children(spare=set()):
            pass

    def _happened(self, reason: str) -> bool:
        return any(key.data == reason for key, _ in self._selector.select(0))

    def _end(self) -> None:
        """Ask the command to end, if it still runs, and kill what is left of its tree."""
        if self._status is None:
            with suppress(PermissionError):
                os.killpg(self._pid, signal.SIGTERM)
            self._selector.unregister(self._client.socket)
            self._wait({"agent"}, GRACE)
        if not _ADOPTS:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        for ended in end_children(spare=set()):
            self._note(*ended)

    def _note(self, pid: int, status: int) -> None:
        if pid == self._pid:
            self._status = status

    def _report(self, code: int) -> None:
        """Send the client the exit status, or the signal, which *code* has as a negative number."""
        name = _NAMES_OF_SIGNALS.get(-code, f"SIG{-code}") if code < 0 else None
        send(self._client.socket, {"exit_status": None if name else code, "signal": name})

    def _report_failure(self, command: Command, error: Exception, stderr: int) -> None:
        """Say it as a shell does: a line on stderr, 127 for what was not found and 126 for the rest."""
        with suppress(OSError):
            os.write(stderr, f"cannot start {command.argv[0]}: {error}\n".encode(errors="replace"))
        self._report(127 if isinstance(error, FileNotFoundError) else 126)


class Client:
    """One connection to the agent, and what has come over it so far."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over the connection."""
        connection.setblocking(False)
        self.socket = connection
        self.descriptors: list[int] = []
        self.is_manager = False
        self._buffer = bytearray()

    def receive(self) -> bool:
        """Take in what there is; False at the end of it."""
        data, descriptors, _, _ = socket.recv_fds(self.socket, _CHUNK, _STDIO)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)  # a command has them as its first three, and not a second time
        self._buffer += data
        self.descriptors += descriptors
        if len(self._buffer) > _REQUEST_LIMIT or len(self.descriptors) > _STDIO:
            raise ValueError("the request is too large")
        return bool(data)

    def requests(self) -> Iterator[dict[str, Any]]:
        """Yield the requests that are complete; stop asking once the connection was closed."""
        while b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ValueError("a request must be an object")
            yield request

    def command(self, request: dict[str, Any]) -> Command:
        """Take a request to run something."""
        command = Command(request)
        if len(self.descriptors) != _STDIO:
            raise ValueError("a command needs stdin, stdout and stderr as descriptors")
        return command

    @property
    def has_more(self) -> bool:
        """Whether something has come after the last request."""
        return bool(self._buffer)

    def close(self) -> None:
        """Close the connection and the descriptors that came over it."""
        self.socket.close()
        self._buffer.clear()
        self.close_descriptors()

    def close_descriptors(self) -> None:
        """Close those that came over it."""
        while self.descriptors:
            os.close(self.descriptors.pop())


class Agent:
    """Accepts, forks, reaps; ends when it is asked to, or has been without a manager for too long."""

    def __init__(self, leash: socket.socket, *, boot_time: float, orphan_ttl: float) -> None:
        """Start in the current directory, with the manager at the other end of *leash*.

        Args:
            leash: A connection that counts as attached.
            boot_time: Seconds until it listens.
            orphan_ttl: Seconds that it lives on without a manager.
        """
        adopt_orphans()
        self._ending = False
        self._orphan_ttl = orphan_ttl
        self._orphaned_at = inf
        self._was_orphaned_at = inf
        self._attended_since = monotonic()
        self._boots_at = monotonic() + boot_time
        self._runners: set[int] = set()
        self._clients: set[Client] = set()
        self._runners_end, self._lifeline = os.pipe()
        self._signals = Signals(signal.SIGTERM, signal.SIGCHLD)
        self._listener = socket.socket(socket.AF_UNIX)
        self._selector = selectors.DefaultSelector()
        self._watch(self._signals.receiver, self._on_signal)
        self._attach(self._add(leash))

    def serve(self) -> None:
        """Work until it is time to end."""
        while not self._ending:
            deadline = min(self._boots_at, self._orphaned_at)
            timeout = None if deadline == inf else max(0.0, deadline - monotonic())
            for key, _ in self._selector.select(timeout):
                key.data()
            self._keep_time()

    def end(self) -> None:
        """Take no more, and wait until every command has been killed."""
        self._listener.close()
        os.close(self._lifeline)
        for _ in end_children(spare=self._runners):
            pass

    def is_attended(self) -> bool:
        """Whether a manager is there."""
        return not all(has_hung_up(client.socket) for client in self._clients if client.is_manager)

    def _watch(self, source: socket.socket, act: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, act)

    def _keep_time(self) -> None:
        if monotonic() >= self._boots_at:
            self._boots_at = inf
            self._listen()
        if monotonic() >= self._orphaned_at:
            self._ending = True

    def _listen(self) -> None:
        """Appear under the socket's name only when connecting to it works, and to our own user only."""
        booting = f"{SOCKET}.booting"
        umask = os.umask(0o177)
        self._listener.bind(booting)
        os.umask(umask)
        self._listener.listen(socket.SOMAXCONN)
        self._listener.setblocking(False)
        self._watch(self._listener, self._accept)
        os.rename(booting, SOCKET)
        with suppress(FileNotFoundError):
            os.remove(RESUMING)

    def _accept(self) -> None:
        with suppress(OSError):  # the client went away before we came to it
            connection, _ = self._listener.accept()
            if is_same_user(connection):
                self._add(connection)
            else:
                connection.close()

    def _add(self, connection: socket.socket) -> Client:
        client = Client(connection)
        self._clients.add(client)
        self._watch(connection, lambda: self._on_readable(client))
        return client

    def _drop(self, client: Client) -> None:
        self._clients.discard(client)
        self._selector.unregister(client.socket)
        client.close()
        if client.is_manager and not any(other.is_manager for other in self._clients):
            now = monotonic()
            looked_in = now - self._attended_since < LOOK_IN and self._was_orphaned_at < inf
            self._orphaned_at = self._was_orphaned_at if looked_in else now + self._orphan_ttl

    def _attach(self, client: Client) -> None:
        client.is_manager = True
        if self._orphaned_at < inf:
            self._was_orphaned_at, self._attended_since = self._orphaned_at, monotonic()
        self._orphaned_at = inf

    def _on_readable(self, client: Client) -> None:
        try:
            connected = client.receive()
            for request in client.requests():
                self._answer(client, request)
        except (OSError, ValueError, RecursionError) as error:
            send(client.socket, {"error": str(error)})
            connected = False
        if not connected and client in self._clients:
            self._drop(client)

    def _answer(self, client: Client, request: dict[str, Any]) -> None:
        operation = request.get("op")
        if operation in ("run", "launch"):
            self._run(client, client.command(request))
        elif operation in ("ping", "attach"):
            if operation == "attach":
                self._attach(client)
            send(client.socket, {"ok": True})
        else:
            raise ValueError(f"op must be ping, attach, run or launch, not {operation!r}")

    def _run(self, client: Client, command: Command) -> None:
        """Hand the client over to a runner."""
        pid = os.fork()
        if pid == 0:
            self._become_runner(client, command)
        self._runners.add(pid)
        self._drop(client)

    def _become_runner(self, client: Client, command: Command) -> NoReturn:
        try:
            close_all_but({client.socket.fileno(), *client.descriptors, self._runners_end})
            Runner(client, self._runners_end).serve(command)
        except BaseException:  # noqa: BLE001  (nothing may return into the agent's own loop)
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)

    def _on_signal(self) -> None:
        self._ending = signal.SIGTERM in self._signals.take()
        for pid, _ in reap():
            self._runners.discard(pid)
        kill_children(spare=self._runners)  # what a killed runner left behind


def main(directory: str, lock: str, leash: str, boot_time: str, orphan_ttl: str) -> NoReturn:
    """Be the instance in *directory*, which is absolute, until it ends; the lock and the leash are open descriptors."""
    os.chdir(directory)
    close_all_but({int(lock), int(leash)})
    os.set_inheritable(int(lock), False)
    os.set_inheritable(int(leash), False)
    agent = Agent(socket.socket(fileno=int(leash)), boot_time=float(boot_time), orphan_ttl=float(orphan_ttl))
    with open(PID, "w") as file:
        file.write(str(os.getpid()))
    if not (os.path.exists(DELETING) or os.path.exists(SUSPENDED)):  # made before anybody could know our process id
        agent.serve()
    if os.path.exists(SUSPENDED) and not os.path.exists(DELETING):
        agent.end()
        forget_agent(directory)
        os._exit(0)
    mark_deleting(directory)
    agent.end()
    discard(directory)
    if not agent.is_attended():  # in this order: a manager that leaves removes it after it has hung up
        with suppress(OSError):  # somebody else is in there
            os.rmdir(os.path.dirname(directory))
    os._exit(0)  # so that we are gone when we hang up: the interpreter's own end would do that first


if __name__ == "__main__":
    main(*sys.argv[1:])
