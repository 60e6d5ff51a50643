"""Where commands keep the state of their fleets, so that the next one takes up what the last one left.

One directory for all groups, one journal for each group in it. Its locks lie there too, so that two commands never
manage the same group, whatever their files are called. A journal stays when its fleet is empty: it still knows which
instances are gone for good, should the cloud show them once more.
"""

import os
import re
from collections.abc import Mapping, Sequence
from errno import EPERM
from hashlib import sha256
from pathlib import Path

from fleeting import JournalError, SqliteJournal
from fleeting.core import Write
from fleeting.journal import Recovered
from fleeting.plugins import make_private, state_home

LONGEST_SLUG = 80
"""So many characters of a group's identity are kept in the name of its journal, for people to recognise."""

_ELSEWHERE = "set dir in [autoscaler.state_storage] to another directory"


def default_directory() -> Path:
    """Where the user's state is kept unless the user says otherwise.

    Raises:
        JournalError: The user has no home directory.
    """
    try:
        return state_home() / "taskscaler"
    except RuntimeError as error:
        raise JournalError(f"there is no home directory to keep the fleet's state in; {_ELSEWHERE}") from error


class StateJournal:
    """The `Journal` of whichever groups it is opened for, in a file of its own."""

    def __init__(self, directory: Path) -> None:
        """Name the directory; nothing is opened yet."""
        self.directory = directory
        self._journal: SqliteJournal | None = None

    async def open(self, identities: Sequence[str], owner: str, kinds: Mapping[str, type]) -> Recovered:
        """See `Journal.open`."""
        _make_private(self.directory)
        self._journal = SqliteJournal(self.path(identities), locks=self.directory)
        return await self._journal.open(identities, owner, kinds)

    async def commit(self, writes: Sequence[Write]) -> None:
        """See `Journal.commit`."""
        if self._journal is None:
            raise JournalError("the journal is closed")
        await self._journal.commit(writes)

    async def close(self) -> None:
        """See `Journal.close`."""
        if self._journal is not None:
            await self._journal.close()
            self._journal = None

    @property
    def place(self) -> str:
        """See `fleeting.Placed`."""
        return str(self.directory.absolute())

    def path(self, identities: Sequence[str]) -> Path:
        """Where the state of these groups is kept, in whichever order they are named."""
        names = "\n".join(sorted(identities))
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", names).strip("-.")[:LONGEST_SLUG]
        return self.directory / f"{slug}-{sha256(names.encode()).hexdigest()[:16]}.sqlite"


def _make_private(directory: Path) -> None:
    """Make the directory, or make sure that we can write into the one that exists, and nobody else can.

    Raises:
        JournalError: It is of no use.
    """
    try:
        make_private(directory)
    except OSError as error:
        if error.errno == EPERM:  # `make_private`'s own
            raise JournalError(
                f"{directory} belongs to or can be written by another user;"
                f" {_ELSEWHERE}, one of your own with mode 0700"
            ) from error
        raise JournalError(f"{directory} cannot be made: {error.strerror}; {_ELSEWHERE}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise JournalError(f"{directory} cannot be written; check its permissions, or {_ELSEWHERE}")
