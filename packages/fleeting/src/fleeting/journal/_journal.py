"""Where the cores' state outlives the process.

The journal stores records under a kind and a key, all writes of one commit or none. The cores decide
what is in a record; the journal never looks inside.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from attrs import Factory, define, frozen

from fleeting._errors import JournalError
from fleeting.core._step import Put, Write


@frozen(kw_only=True)
class Recovered:
    """What a journal held when it was opened."""

    epoch: int
    """Grows by one with every owner; every write of this owner carries it."""

    records: Mapping[str, Mapping[str, Any]] = Factory(dict)
    """By kind, then by key."""


def group_lock(directory: Path, identity: str) -> Path:
    """Where the lock file of a group is among the others of a directory; its manager holds it and is named in it."""
    return directory / f"{sha256(identity.encode()).hexdigest()[:16]}.lock"


class Journal(Protocol):
    """Durable state of the managers of some groups."""

    async def open(self, identities: Sequence[str], owner: str, kinds: Mapping[str, type]) -> Recovered:
        """Lock the groups and read what is known of them.

        Args:
            identities: The groups' identities, as their `GroupInfo` has them.
            owner: Who asks; shown to the one that comes second.
            kinds: The class of the records, by kind; others are left alone.

        Raises:
            JournalError: It cannot be read, or somebody else holds it; the message names the holder.
        """
        ...

    async def commit(self, writes: Sequence[Write]) -> None:
        """Make all of the writes durable, in order, or none of them.

        Raises:
            JournalError: None is durable; the same writes may be tried again.
        """
        ...

    async def close(self) -> None:
        """Give up the lock. Records stay."""
        ...


@runtime_checkable
class Placed(Protocol):
    """A journal that outlives its process: the one that opens it again is the same manager to the cloud."""

    @property
    def place(self) -> str:
        """Where it is, unlike any other on this host."""
        ...


@define
class MemoryJournal:
    """A journal that lives as long as the object: a restart within the process finds everything."""

    records: dict[str, dict[str, Any]] = Factory(dict)
    """By kind, then by key."""

    _epoch: int = 0
    _holder: str | None = None

    async def open(self, identities: Sequence[str], owner: str, kinds: Mapping[str, type]) -> Recovered:
        """See `Journal.open`."""
        if self._holder is not None:
            raise JournalError(f"{', '.join(identities)} is already managed by {self._holder}; stop that manager first")
        self._holder = owner
        self._epoch += 1
        return Recovered(epoch=self._epoch, records={kind: dict(self.records.get(kind, {})) for kind in kinds})

    async def commit(self, writes: Sequence[Write]) -> None:
        """See `Journal.commit`."""
        for write in writes:
            if isinstance(write, Put):
                self.records.setdefault(write.kind, {})[write.key] = write.record
            else:
                self.records.get(write.kind, {}).pop(write.key, None)

    async def close(self) -> None:
        """See `Journal.close`."""
        self._holder = None
