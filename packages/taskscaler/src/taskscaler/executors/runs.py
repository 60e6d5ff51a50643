"""Which of what is found on an instance nobody needs any more; for authors of executors.

What an executor makes for a try at a job bears three ids: of the manager, of the manager's run, and of the try. What a
run of the same manager has left that is over, killed or not, can be removed by the next one; so can what an ended try
of this run has left. What another manager has made is left alone: it may be in use, for instances may share a file
system or a daemon.

Whether a run is over is the kernel's to say: each holds a lock on a file in the user's directory for state, for as
long as it lives. A manager is that directory.
"""

import fcntl
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Final

from attrs import define, field, frozen

from fleeting.plugins import make_private, open_private, state_home

_DIGITS: Final = 12
"""Of an id, hexadecimal; of the batch, in the name of a try that outlives runs."""

_ID: Final = re.compile(f"[0-9a-f]{{{_DIGITS}}}")

LONGEST_TRY: Final = 60
"""Characters of such a name."""

_TRY: Final = re.compile(rf"[0-9a-f]{{{_DIGITS}}}-[A-Za-z0-9-]{{1,{LONGEST_TRY - _DIGITS - 1}}}")

MOST_GONE: Final = 10_000
"""Tries that are known to have left nothing: many more than end while an instance lists what is there."""


def check_try(name: str) -> None:
    """See that a name may be that of a try which outlives runs; see `Reattaches`.

    Raises:
        ValueError: It may not.
    """
    if not is_try(name):
        raise ValueError(
            f"expected {_DIGITS} hexadecimal digits, a hyphen, and letters, digits and hyphens, {LONGEST_TRY} in all,"
            " as the name of a try"
        )


def is_try(name: str) -> bool:
    """Whether it may."""
    return _TRY.fullmatch(name) is not None


def batch_of(name: str) -> str:
    """Give the part of such a name that all tries of a batch share."""
    return name[:_DIGITS]


def _new_id() -> str:
    return uuid.uuid4().hex[:_DIGITS]


SHORT: Final = 8
"""Digits of a manager's id in names, so that paths stay short."""

NOBODY: Final = "nobody"
"""Stands where the manager's id would, if no manager could be claimed."""

_KEPT: Final = re.compile(
    r"(?P<kind>[a-z]+)-(?P<slot>[0-9]+)-(?P<owner>[0-9a-z]+)-(?P<instance>[0-9a-f]+)-(?P<unit>.+)"
)


@frozen
class Place:
    """Where a manager's jobs are kept that outlive it: what they are called there, and which nobody needs any more."""

    owner: str
    """The first `SHORT` digits of `Runs.manager`; empty if it could not be claimed."""

    instance: str
    """The instance's id."""

    slot: int
    """The number of the lease's slot there."""

    kind: str = "kept"
    """How the names begin: small letters, the executor's own."""

    def name_of(self, unit: str) -> str:
        """Name what there is of a try."""
        return f"{self.kind}-{self.slot}-{self.owner or NOBODY}-{self._short}-{unit}"

    def is_over(self, name: str, *, runs: bool, is_held: Callable[[str], bool]) -> bool:
        """Whether what was kept under a name, and maybe runs here, is ours and needed no more for sure.

        The slot is ours: whoever had it before has lost it. And a machine is one instance at a time; what does not run
        may be another machine's that shares the directory. But two batches of a user may have a host in common, which
        each calls as it likes: while a process works for one, nothing of that is over.
        """
        match = _KEPT.fullmatch(name)
        if match is None or match["kind"] != self.kind or not self.owner or match["owner"] != self.owner:
            return False
        if not is_try(match["unit"]) or is_held(batch_of(match["unit"])):
            return False
        return runs if match["instance"] != self._short else int(match["slot"]) == self.slot

    @property
    def _short(self) -> str:
        return sha256(self.instance.encode(errors="surrogateescape")).hexdigest()[:SHORT]


@define
class Latest:
    """The last `MOST_GONE` names of any number, so that what is remembered has a bound."""

    _names: dict[str, None] = field(factory=dict, init=False)

    def add(self, name: str) -> None:
        """Remember one, and forget the oldest if there are too many."""
        self._names[name] = None
        if len(self._names) > MOST_GONE:
            del self._names[next(iter(self._names))]

    def __contains__(self, name: str) -> bool:
        """Whether it is remembered."""
        return name in self._names


@define
class Runs:
    """This run of a manager, and what is known of its others. Nothing is opened before the first `claim`."""

    kind: str
    """Names the executor, and so the directory."""

    root: Path | None = None
    """The directory that makes runs one manager; None: below the user's directory for state."""

    id: str = field(factory=_new_id, init=False)
    """Of this run; unique, short, and fit for names, as all ids are."""

    manager: str = field(default="", init=False)
    """Of all runs with this directory; empty before `claim`."""

    _active: set[str] = field(factory=set, init=False)
    """Ids of the tries that are at work."""

    _gone: Latest = field(factory=Latest, init=False)
    """Ids of tries that have left nothing."""

    _held: dict[str, tuple[int, set[str]]] = field(factory=dict, init=False)
    """Of what outlives runs: who works on it now, by ids, with the lock and the tries at work."""

    _claiming: Lock = field(factory=Lock, init=False)

    def claim(self) -> None:
        """Take up the manager's identity and lock our run's file; blocks shortly, so call it in a thread.

        Raises:
            OSError: The directory cannot be used.
        """
        with self._claiming:
            if not self.manager:
                self.manager = self._claim(self.directory())

    @contextmanager
    def at_work(self) -> Iterator[str]:
        """Be at work for one try at a job; yields its id."""
        unit = _new_id()
        self._active.add(unit)
        try:
            yield unit
        finally:
            self._active.discard(unit)

    def hold(self, id_: str, unit: str) -> None:
        """Say that a try is at work for something that outlives runs; blocks shortly, so call it in a thread.

        Args:
            id_: Of that, such as a batch: made as those of runs are.
            unit: Of the try; until `let_go`, or the end of this process, `is_held` is true for everybody.

        Raises:
            OSError: The directory cannot be used.
        """
        with self._claiming:
            if id_ not in self._held:
                self._held[id_] = _hold(self._lock_file(id_)), set()
            self._held[id_][1].add(unit)

    def let_go(self, id_: str, unit: str) -> None:
        """Say that a try is at work no more."""
        with self._claiming:
            lock, units = self._held.get(id_, (-1, set[str]()))
            units.discard(unit)
            if lock >= 0 and not units:
                del self._held[id_]
                os.close(lock)

    def is_held(self, id_: str) -> bool:
        """Whether any process works on what outlives runs."""
        return _is_held(self._lock_file(id_))

    def left_nothing(self, unit: str) -> None:
        """Note that nothing is left of a try, though somebody may have seen something of it just before."""
        self._gone.add(unit)

    def is_at_work(self, unit: str) -> bool:
        """Whether a try of this run still is."""
        return unit in self._active

    def is_over(self, manager: str, run: str, unit: str) -> bool:
        """Whether a try is over for sure, and may have left something.

        It is one of our manager's, and has ended, or its run has.
        """
        if manager != self.manager or not manager or not _ID.fullmatch(run) or unit in self._gone:
            return False
        return not (self.is_at_work(unit) if run == self.id else _is_held(self._lock_file(run)))

    def directory(self) -> Path:
        """Say which directory makes runs one manager.

        Raises:
            FileNotFoundError: The user has no home directory.
        """
        try:
            return self.root or state_home() / "taskscaler" / self.kind
        except RuntimeError as error:
            raise FileNotFoundError("the user has no home directory; set XDG_STATE_HOME") from error

    def _claim(self, root: Path) -> str:
        make_private(root)
        identity = root / "manager"
        fresh = root / f".{self.id}"
        fresh.write_text(self.id)
        with suppress(FileExistsError):
            os.link(fresh, identity)  # whole, or not at all
        fresh.unlink()
        _hold(self._lock_file(self.id))
        for path in root.glob("*.run"):
            _is_held(path, tidy=True)
        return identity.read_text()

    def _lock_file(self, run: str) -> Path:
        return self.directory() / f"{run}.run"


def _hold(path: Path) -> int:
    """Make and lock a file until the descriptor is closed; others may lock and remove it until then."""
    while True:
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)


def _is_held(path: Path, *, tidy: bool = False) -> bool:
    """Whether a run lives whose file this is.

    Args:
        path: Of the file.
        tidy: Whether to remove the file if none does. That is done under the lock: a run that takes it afterwards sees
            that its file is gone, and makes another.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(path, descriptor):
            return path.exists()  # its run has made another meanwhile
        if tidy:
            path.unlink()
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file still is the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
