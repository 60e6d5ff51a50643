"""What managers on this machine know of a group: the instances in their journals, and which of them run.

Only reads, also while they run. A group's lock lies beside the journals, whichever of them its manager uses.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from attrs import frozen

from fleeting import JournalError
from fleeting.journal import group_lock
from fleeting.runtime import owner_of
from taskscaler._recorded_run import is_locked
from taskscaler._state import StateJournal


@frozen
class Known:
    """The directory in which this machine's managers keep their state."""

    directory: Path

    @property
    def owner(self) -> str:
        """As whom a manager marks groups that keeps its state there."""
        return owner_of(StateJournal(self.directory))

    def holder(self, identity: str) -> str:
        """Who has the group now; empty: nobody."""
        lock = group_lock(self.directory, identity)
        if not is_locked(lock):
            return ""
        with suppress(OSError), lock.open("rb") as file:
            return file.read(1000).decode(errors="replace") or "a manager"
        return "a manager"

    def instances(self, identity: str) -> frozenset[str]:
        """Ids of the group's instances that are on record in any journal.

        Raises:
            JournalError: One cannot be read, so it is not known what it has.
        """
        found: set[str] = set()
        for path in sorted(self.directory.glob("*.sqlite")) if self.directory.is_dir() else []:
            try:
                found.update(_instances_in(path, identity))
            except (sqlite3.DatabaseError, OSError, ValueError, KeyError, TypeError) as error:
                why = str(error) or type(error).__name__
                raise JournalError(f"{path} cannot be read, so its instances are not known: {why}") from error
        return frozenset(found)


def _instances_in(path: Path, identity: str) -> Iterator[str]:
    # without its log, which a manager that has ended removes, SQLite would make files
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?{mode}", uri=True)) as database:
        if database.execute("SELECT 1 FROM managed WHERE identity = ?", (identity,)).fetchone() is None:
            return
        for key, data in database.execute("SELECT key, data FROM record WHERE kind = 'instance'"):
            yield str(key).removeprefix(f"{json.loads(data)['pool']}/")
