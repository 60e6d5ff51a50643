"""Who made what is found on a daemon, and whether anybody still needs it.

Everything that is made for a job bears labels: which manager, which run of it, which job on which lease. What was made
by a run of the same manager that is over, killed or not, is cleared away by the next job there; so is what was made
for a lease that is ours now, whoever had it. What another manager made is left alone: it may be in use.

Whether a run is over is the kernel's to say: each holds a lock on a file in the user's directory for state, for as
long as it lives. A manager is that directory.
"""

import fcntl
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from attrs import define, field, frozen

from fleeting.directories import state_home

MANAGER = "taskscaler.manager"
RUN = "taskscaler.run"
UNIT = "taskscaler.unit"
INSTANCE = "taskscaler.instance"
SLOT = "taskscaler.slot"
JOB = "taskscaler.job"
KIND = "taskscaler.kind"
CACHE = "cache"

Labels = Mapping[str, str]


@frozen(kw_only=True)
class Unit:
    """One try at one job, and all that is made for it."""

    id: str
    """Unique, short, and fit for names."""

    labels: Labels

    def of_kind(self, kind: str) -> dict[str, str]:
        """Labels of one thing: a job's container, a service's, a network."""
        return {**self.labels, KIND: kind}


@define
class Owner:
    """This run of a manager. Nothing is opened before the first job."""

    _root: Path | None = None
    _run: str = field(factory=lambda: uuid.uuid4().hex, init=False)
    _manager: str = field(default="", init=False)
    _active: set[str] = field(factory=set, init=False)
    """Ids of the units that are at work."""

    def claim(self) -> None:
        """Take up the manager's identity and lock our run's file; blocks shortly, so call it in a thread.

        Raises:
            OSError: The directory cannot be used.
        """
        with self._claiming:
            if not self._manager:
                self._claim(self.root)

    def _claim(self, root: Path) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        identity = root / "manager"
        fresh = root / f".{self._run}"
        fresh.write_text(self._run)
        with suppress(FileExistsError):
            os.link(fresh, identity)  # whole, or not at all
        fresh.unlink()
        _hold(self._lock_file(self._run))
        for path in root.glob("*.run"):
            if not _is_held(path):
                path.unlink(missing_ok=True)
        self._manager = identity.read_text()

    _claiming: Lock = field(factory=Lock, init=False)

    @property
    def root(self) -> Path:
        """The directory that makes runs one manager.

        Raises:
            OSError: There can be none: the user has no home directory.
        """
        try:
            return self._root or state_home() / "taskscaler" / "docker"
        except RuntimeError as error:
            raise FileNotFoundError("the user has no home directory; set XDG_STATE_HOME") from error

    @contextmanager
    def at_work(self, job: str, instance: str, slot: int) -> Iterator[Unit]:
        """Be at work for one try at a job."""
        unit = uuid.uuid4().hex[:12]
        labels = {
            MANAGER: self._manager,
            RUN: self._run,
            UNIT: unit,
            INSTANCE: instance,
            SLOT: str(slot),
            JOB: job,
        }
        self._active.add(unit)
        try:
            yield Unit(id=unit, labels=labels)
        finally:
            self._active.discard(unit)

    def is_leftover(self, found: Labels, ours: Labels) -> bool:
        """Tell whether something of ours, by its labels, is needed no more; *ours* are the present unit's."""
        if UNIT not in found or found[UNIT] in self._active:
            return False
        same_lease = all(found.get(key) == ours[key] for key in (INSTANCE, SLOT))
        return same_lease or (found.get(MANAGER) == self._manager and not self._is_alive(found.get(RUN, "")))

    def _is_alive(self, run: str) -> bool:
        """Tell whether a run of this manager lives; what is ours and not at work does not count as alive."""
        return run != self._run and run.isalnum() and _is_held(self._lock_file(run))

    def _lock_file(self, run: str) -> Path:
        return self.root / f"{run}.run"


def _hold(path: Path) -> None:
    """Make and lock a file for as long as this process lives; others may remove it until it is locked."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return
        os.close(descriptor)


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
