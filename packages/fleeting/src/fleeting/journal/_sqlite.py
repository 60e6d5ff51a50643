"""The journal in one SQLite file.

All writes of a commit are one transaction. The file is in WAL mode with full synchronisation: what was
committed survives the process and the machine, and a torn write is undone when the file is next opened.

Who holds a group is decided by the kernel: one lock file per group and one for the journal itself, locked
for as long as the holder lives. A dead holder's locks are free at that moment, whatever its process id is
used for until then. The lock file only says who it was.
"""

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleeting._directories import make_private, open_private
from fleeting._errors import JournalError
from fleeting._offload import Offload
from fleeting.core._step import Put, Write
from fleeting.journal._journal import Recovered, group_lock

if TYPE_CHECKING:
    from cattrs import Converter

MIGRATIONS: Sequence[Sequence[str]] = (
    (
        """
        CREATE TABLE record (
            kind TEXT, key TEXT, epoch INTEGER NOT NULL, data TEXT NOT NULL, PRIMARY KEY (kind, key)
        ) WITHOUT ROWID
        """,
        "CREATE TABLE managed (identity TEXT PRIMARY KEY) WITHOUT ROWID",
        "CREATE TABLE owner (epoch INTEGER NOT NULL, name TEXT NOT NULL)",
        "INSERT INTO owner VALUES (0, '')",
    ),
    (  # a suspended lease says when it expires: none did
        "UPDATE record SET data = substr(data, 1, length(data) - 1) || ', null]' WHERE kind = 'lease'",
    ),
    (  # a lease says whether it outlives its manager: none did
        "UPDATE record SET data = substr(data, 1, length(data) - 1) || ', false]' WHERE kind = 'lease'",
    ),
)
"""The statements that lead from each version of the schema to the next; the first make it from nothing."""

_PUT = "INSERT INTO record VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET epoch = excluded.epoch, data = excluded.data"
_DROP = "DELETE FROM record WHERE kind = ? AND key = ?"


class SqliteJournal:
    """A `Journal` that outlives the process."""

    def __init__(self, path: str | os.PathLike[str], *, locks: str | os.PathLike[str] | None = None) -> None:
        """Name the file; nothing is opened yet.

        Args:
            path: The file; made, with its directory, if it does not exist. No other user may be able to write into
                that directory.
            locks: Directory of the groups' lock files, common to all journals whose managers must not meet
                at one group. None: the journal's own directory.
        """
        self.path = Path(path)
        self._lock_directory = Path(locks) if locks is not None else self.path.parent
        self._locks: list[int] = []
        self._database: sqlite3.Connection | None = None
        self._epoch = 0
        self._offload = Offload(limit=1)  # so the connection is used by one thread at a time

    @property
    def place(self) -> str:
        """See `Placed`."""
        return str(self.path.absolute())

    async def open(self, identities: Sequence[str], owner: str, kinds: Mapping[str, type]) -> Recovered:
        """See `Journal.open`."""
        return await self._offload(self._open, identities, owner, kinds)

    async def commit(self, writes: Sequence[Write]) -> None:
        """See `Journal.commit`."""
        await self._offload(self._commit, writes)

    async def close(self) -> None:
        """See `Journal.close`."""
        await self._offload(self._close)

    # --- opening, in a worker thread ---------------------------------------------------------------------

    def _open(self, identities: Sequence[str], owner: str, kinds: Mapping[str, type]) -> Recovered:
        try:
            with self._explained():
                self._make_private()
                for identity in identities:
                    self._lock(group_lock(self._lock_directory, identity), identity, owner)
                self._lock(self.path.with_name(f"{self.path.name}.lock"), str(self.path), owner)
                database = self._connect()
                self._migrate(database)
                self._take_over(database, identities, owner)
                return Recovered(
                    epoch=self._epoch, records={kind: self._load(kind, cls) for kind, cls in kinds.items()}
                )
        except BaseException:
            self._close()
            raise

    def _make_private(self) -> None:
        """Make directory and file for our user's eyes only, or see that nobody else can put anything there."""
        for directory in (self.path.parent, self._lock_directory):
            make_private(directory)
        os.close(open_private(self.path, os.O_CREAT | os.O_RDWR))

    def _lock(self, path: Path, what: str, owner: str) -> None:
        """Hold the lock file until we close or die.

        Raises:
            JournalError: Somebody else holds it.
        """
        descriptor = open_private(path, os.O_CREAT | os.O_RDWR)
        self._locks.append(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 1000, 0).decode(errors="replace") or "another manager"
            raise JournalError(f"{what} is already managed by {holder}; stop that manager first") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{owner} (process {os.getpid()})".encode(), 0)

    def _connect(self) -> sqlite3.Connection:
        self._database = database = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(" ".join(verdict.split()))
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        return database

    def _migrate(self, database: sqlite3.Connection) -> None:
        """Bring the schema up to date, one version in one transaction."""
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise JournalError(
                f"{self.path} was written by a newer release (its schema is {version}, this release knows"
                f" {len(MIGRATIONS)}); install that release again, or name another file"
            )
        for number, statements in enumerate(MIGRATIONS[version:], version + 1):
            with _transaction(database):
                for statement in statements:
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {number}")

    def _take_over(self, database: sqlite3.Connection, identities: Sequence[str], owner: str) -> None:
        """Become the owner, if these are the groups whose state this is."""
        known = {identity for (identity,) in database.execute("SELECT identity FROM managed")}
        if known and known.isdisjoint(identities):
            raise JournalError(
                f"{self.path} holds the state of {', '.join(sorted(known))}, not of {', '.join(identities)};"
                " name another file"
            )
        with _transaction(database):
            database.execute("UPDATE owner SET epoch = epoch + 1, name = ?", (owner,))
            database.executemany("INSERT OR IGNORE INTO managed VALUES (?)", [(identity,) for identity in identities])
            (self._epoch,) = database.execute("SELECT epoch FROM owner").fetchone()

    def _load(self, kind: str, cls: type) -> dict[str, Any]:
        if self._database is None:
            raise sqlite3.ProgrammingError("the journal is closed")
        rows = self._database.execute("SELECT key, data FROM record WHERE kind = ?", (kind,))
        return {key: self._structure(kind, key, data, cls) for key, data in rows}

    def _structure(self, kind: str, key: str, data: str, cls: type) -> Any:  # noqa: ANN401  (of the class, as it is)
        try:
            values = json.loads(data)
            if issubclass(cls, tuple):  # an earlier release may have written it with fewer fields, which have defaults
                names, defaults = cls._fields, cls._field_defaults  # type: ignore[attr-defined]  # of a named tuple
                values += [defaults[name] for name in names[len(values) :]]
            return self._converter.structure(values, cls)
        except Exception as error:  # whatever cattrs makes of it
            raise sqlite3.DatabaseError(f"the record {kind} {key} cannot be read") from error

    # --- writing and closing, in a worker thread ---------------------------------------------------------

    def _commit(self, writes: Sequence[Write]) -> None:
        with self._explained():
            if self._database is None:
                raise sqlite3.ProgrammingError("the journal is closed")
            with _transaction(self._database):
                (epoch,) = self._database.execute("SELECT epoch FROM owner").fetchone()
                if epoch != self._epoch:
                    raise JournalError(f"{self.path} was taken over by another manager")
                for write in writes:
                    if isinstance(write, Put):
                        data = json.dumps(self._converter.unstructure(write.record))
                        self._database.execute(_PUT, (write.kind, write.key, self._epoch, data))
                    else:
                        self._database.execute(_DROP, write)

    def _close(self) -> None:
        with suppress(sqlite3.Error):  # nothing can be lost by it: all that was committed is durable
            if self._database is not None:
                self._database.close()
        self._database = None
        while self._locks:
            os.close(self._locks.pop())

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what the system and SQLite raise into what the user can do about it."""
        try:
            yield
        except sqlite3.OperationalError as error:  # full, read-only, locked: may pass
            raise JournalError(f"{self.path} cannot be used: {error}; check disk space and permissions") from error
        except sqlite3.DatabaseError as error:
            raise JournalError(
                f"{self.path} is damaged: {error}; move it away, and set `preexisting` to say what happens"
                " to the existing instances"
            ) from error
        except PermissionError as error:
            raise JournalError(
                f"{error.filename or self.path} cannot be used: {error.strerror};"
                " put the journal in a directory of your own with mode 0700"
            ) from error
        except OSError as error:
            raise JournalError(f"{error.filename or self.path} cannot be used: {error.strerror}") from error

    @cached_property
    def _converter(self) -> "Converter":
        from cattrs.preconf.json import make_converter  # a bare ``import fleeting`` need not pay for it

        return make_converter()


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, whatever comes in between."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise
