"""An instance as its manager sees it: a directory, and a process that holds a lock on it."""

import fcntl
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from errno import EEXIST
from pathlib import Path
from typing import Self

from attrs import frozen

from fleeting import Observed, State
from fleeting.groups.local import _agent
from fleeting.groups.local._config import LocalConfig

_RECORD = "instance.json"

_PARTIAL = (".new-", ".gone-")
"""How the names of directories begin that are not whole: yet, or any more."""

_PASSED_ON = frozenset({"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"})
"""What commands see of the manager's environment, and ``LC_*``; the rest may hold its secrets."""

_children: set[int] = set()
"""Agents that this process has started, to be reaped when they have ended."""


@frozen(kw_only=True)
class Instance:
    """One directory of the group's, with what was written into it before its agent was started."""

    directory: Path
    created_at: float
    intent: str

    @classmethod
    def load(cls, directory: Path) -> Self | None:
        """Read what is in *directory*; None if that is no instance."""
        try:
            record = json.loads((directory / _RECORD).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        return cls(directory=directory, created_at=record["created_at"], intent=record["intent"])

    @property
    def id(self) -> str:
        """Never used again once the instance is gone."""
        return self.directory.name

    @property
    def socket(self) -> str:
        """Where the agent listens once it runs."""
        return str(self.directory / _agent.SOCKET)

    def observe(self) -> Observed:
        """See what has become of it."""
        return Observed(state=self._state(), created_at=self.created_at, intent=self.intent)

    def end(self) -> None:
        """Ask the agent to end; the second time, kill it."""
        number = signal.SIGKILL if self._has(_agent.DELETING) else signal.SIGTERM
        _agent.mark_deleting(str(self.directory))
        self._signal(number)

    def suspend(self) -> bool:
        """Ask the agent to end and to leave the directory; returns whether the instance sleeps, or will."""
        match self._state():
            case State.RUNNING:
                (self.directory / _agent.SUSPENDED).touch(mode=0o600)
                self._signal(signal.SIGTERM)
                return True
            case State.SUSPENDING | State.SUSPENDED:
                return True
        return False

    def _signal(self, number: int) -> None:
        with (
            suppress(FileNotFoundError, ProcessLookupError, ValueError),  # it has ended, or takes no signals yet
            _process(int((self.directory / _agent.PID).read_text())) as process,
        ):
            if _is_locked(self.directory):  # so it is the agent that we have got hold of
                _send_signal(process, number)

    def discard(self) -> None:
        """Remove what an agent that was killed has left."""
        _agent.discard(str(self.directory))

    def _state(self) -> State:
        if not _is_locked(self.directory):
            return State.SUSPENDED if self.sleeps() else State.DELETED
        if self._has(_agent.DELETING):
            return State.DELETING
        if self._has(_agent.SUSPENDED):
            return State.SUSPENDING
        if self._has(_agent.SOCKET):
            return State.RUNNING
        return State.RESUMING if self._has(_agent.RESUMING) else State.CREATING

    def sleeps(self) -> bool:
        """Whether it does, given that there is no agent."""
        kept = self._has(_agent.SUSPENDED) or self._has(_agent.RESUMING)
        return kept and not self._has(_agent.DELETING)

    def _has(self, name: str) -> bool:
        return (self.directory / name).exists()


def create(config: LocalConfig, *, intent: str, now: float) -> tuple[Instance, socket.socket]:
    """Start an instance of the group under a name that was never used; see `start`."""
    return start(config.root / f"{config.name}-{secrets.token_hex(6)}", config, intent=intent, now=now)


def start(directory: Path, config: LocalConfig, *, intent: str, now: float) -> tuple[Instance, socket.socket]:
    """Start an instance in a directory, which must not exist.

    Whatever interrupts this, the directory and the process are seen together or not at all.

    Returns:
        The instance and the leash: the agent takes us for attached until it is closed.

    Raises:
        OSError: Nothing was started.
    """
    if directory.exists():  # what is there is not ours to undo
        raise FileExistsError(EEXIST, os.strerror(EEXIST), str(directory))
    with ExitStack() as undo, ExitStack() as ours:
        undo.callback(_agent.discard, str(directory))
        lock = ours.enter_context(_prepared(directory, {"intent": intent, "created_at": now}))
        leash, agent_end = socket.socketpair()
        undo.enter_context(leash)
        ours.enter_context(agent_end)
        leash.setblocking(False)
        _children.add(_start_agent(config, directory, lock, agent_end.fileno(), config.boot_time))
        undo.pop_all()
    return Instance(directory=directory, created_at=now, intent=intent), leash


def resume(instance: Instance, config: LocalConfig) -> socket.socket | None:
    """Start an agent for an instance that sleeps; returns its leash, or None if it does not.

    Whatever interrupts this, the instance sleeps on, or an agent is there.

    Raises:
        OSError: Nothing was started.
    """
    directory = instance.directory
    with ExitStack() as undo, ExitStack() as ours:
        lock = ours.enter_context(_locked(directory))
        if lock is None or not instance.sleeps():
            return None
        _agent.forget_agent(str(directory))
        with suppress(FileNotFoundError):  # an earlier agent was killed while it booted
            (directory / _agent.SUSPENDED).rename(directory / _agent.RESUMING)
        leash, agent_end = socket.socketpair()
        undo.enter_context(leash)
        ours.enter_context(agent_end)
        leash.setblocking(False)
        _children.add(_start_agent(config, directory, lock, agent_end.fileno(), config.resume_time))
        undo.pop_all()
    return leash


def find_all(root: Path) -> Iterator[Instance]:
    """Yield the instances in a group's directory; none if there is no such directory."""
    for directory in _directories(root):
        if not directory.name.startswith(_PARTIAL) and (instance := Instance.load(directory)):
            yield instance


def clear_away(root: Path) -> None:
    """Remove what a crash has left half made or half gone in a group's directory."""
    for directory in _directories(root):
        if directory.name.startswith(_PARTIAL) and not _is_locked(directory):
            _agent.remove_tree(str(directory))


def _directories(root: Path) -> tuple[Path, ...]:
    try:
        return tuple(root.iterdir())
    except FileNotFoundError:
        return ()


def reap_agents() -> None:
    """Let the agents that this process has started, and that have ended, leave the system's table."""
    for child in tuple(_children):
        try:
            ended, _ = os.waitpid(child, os.WNOHANG)
        except ChildProcessError:  # somebody else has waited for it
            ended = child
        if ended:
            _children.discard(child)


@contextmanager
def _prepared(directory: Path, record: dict[str, object]) -> Iterator[int]:
    """Make an instance's directory, whole at once and locked; yield the lock's descriptor."""
    fresh = directory.with_name(f".new-{directory.name}")
    fresh.mkdir(mode=0o700)
    lock = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (fresh / _agent.WORK).mkdir(mode=0o700)
        (fresh / _RECORD).write_text(json.dumps(record))
        fresh.rename(directory)
        yield lock
    finally:
        os.close(lock)


@contextmanager
def _locked(directory: Path) -> Iterator[int | None]:
    """Lock an instance's directory as its agent does, and yield the lock's descriptor; None if an agent lives there."""
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lock
    except BlockingIOError:
        yield None
    finally:
        os.close(lock)


def _is_locked(directory: Path) -> bool:
    """Whether an agent lives there. Shared, so that two who ask do not take each other for the agent."""
    try:
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _start_agent(config: LocalConfig, directory: Path, lock: int, leash: int, boot_time: float) -> int:
    """Start an agent that outlives us, in a session of its own, and return its process id."""
    arguments = (directory, lock, leash, boot_time, config.orphan_ttl)
    log = str(directory / _agent.LOG)
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", _agent.__file__, *map(str, arguments)],
        {name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith("LC_")},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            *((os.POSIX_SPAWN_DUP2, kept, kept) for kept in (lock, leash)),  # onto itself: to be inherited
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=_agent.CATCHABLE,
    )


if sys.platform == "linux":

    @contextmanager
    def _process(pid: int) -> Iterator[int]:
        """Get hold of a process, so that no other can take its place."""
        descriptor = os.pidfd_open(pid)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    _send_signal = signal.pidfd_send_signal

else:

    @contextmanager
    def _process(pid: int) -> Iterator[int]:
        """Name the process; nothing better is to be had here."""
        yield pid

    _send_signal = os.kill
