"""A submitted batch on the disk: what is there before its client has an answer, and what is left once it is over.

In a directory of its own, for the daemon's user alone::

    batch.json   who submitted what, and when: with it, the batch is the daemon's to run
    source/      the jobs file and all files that its jobs need, until the batch is over
    results/     what `taskscaler run` leaves
    cancelled    that it is not to be run any further
    over.json    how it ended
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import asdict, frozen

from fleeting.archives import ArchiveRefused, unpack
from fleeting.plugins import make_private, open_private, structure, write_whole
from taskscaler._batch_id import TICKET
from taskscaler.batch import Results

MOST_MEMBERS = 200_000
"""Files, directories and links that a submission may have."""

LARGEST = 4 << 30
"""Bytes that the files of a submission may have."""


@frozen(kw_only=True)
class Ticket:
    """A batch, as it was submitted."""

    id: str
    uid: int
    """Whose it is."""

    name: str
    """What its jobs file is called."""

    submitted: float
    """When, in seconds since the epoch."""

    request: str = ""
    """Which request of its user it comes from, if that has a name."""

    traceparent: str = ""
    """What its jobs are a part of, as W3C has it; empty: nothing."""

    tracestate: str = ""
    """The same of that."""


@frozen(kw_only=True)
class Fate:
    """How a batch ended."""

    ended: float
    """When, in seconds since the epoch."""

    well: bool
    """Whether every job succeeded."""

    jobs: dict[str, int]
    """How many, by their states."""

    size: int
    """Bytes of all that is left of it."""


@frozen
class BatchFiles:
    """The directory of one batch."""

    directory: Path

    @property
    def results(self) -> Results:
        """What `taskscaler run` leaves."""
        return Results(self.directory / "results")

    def source(self, ticket: Ticket) -> Path:
        """Where its jobs file is."""
        return self._source / ticket.name

    def receive(self, archive: Path, name: str) -> None:
        """Take in the files of a submission, and the archive away.

        Raises:
            ArchiveRefused: It cannot be used, or lacks the jobs file.
            OSError: There is no room.
        """
        make_private(self._source, hide=True)
        unpack(archive, self._source, size=LARGEST, members=MOST_MEMBERS)
        archive.unlink()
        file = self._source / name
        if file.is_symlink() or not file.is_file():
            raise ArchiveRefused(f"the jobs file {name!r} is not in it")

    def accept(self, ticket: Ticket) -> None:
        """Make the batch one that is to be run, also if the power fails.

        Raises:
            OSError: It cannot be written.
        """
        write_whole(self._ticket, json.dumps(asdict(ticket)).encode())
        _sync(self.directory.parent)

    def ticket(self) -> Ticket | None:
        """Read what was submitted; None: nothing whole.

        Raises:
            ConfigError: It is damaged.
            OSError: It cannot be read.
        """
        return structure(_read(self._ticket), Ticket) if self._ticket.exists() else None

    @property
    def cancelled(self) -> bool:
        """Whether it is not to be run any further."""
        return self._cancelled.exists()

    def cancel(self) -> None:
        """Note that it is not to be run any further, also if the power fails."""
        os.close(open_private(self._cancelled, os.O_CREAT | os.O_WRONLY))
        _sync(self.directory)

    def fate(self) -> Fate | None:
        """Read how it ended; None: it has not.

        Raises:
            ConfigError: It is damaged.
            OSError: It cannot be read.
        """
        return structure(_read(self._fate), Fate) if self._fate.exists() else None

    def end(self, ended: float, *, well: bool, jobs: Mapping[str, int]) -> Fate:
        """Note how it ended, and delete what its jobs needed: there may be secrets in it.

        Raises:
            OSError: It cannot be written.
        """
        shutil.rmtree(self._source, ignore_errors=True)
        fate = Fate(ended=ended, well=well, jobs=dict(jobs), size=sum(_sizes(self.directory)))
        write_whole(self._fate, json.dumps(asdict(fate)).encode())
        return fate

    def remove(self) -> None:
        """Delete all of it."""
        self._ticket.unlink(missing_ok=True)  # first: half a batch is none
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def _source(self) -> Path:
        return self.directory / "source"

    @property
    def _ticket(self) -> Path:
        return self.directory / TICKET

    @property
    def _cancelled(self) -> Path:
        return self.directory / "cancelled"

    @property
    def _fate(self) -> Path:
        return self.directory / "over.json"


def _read(path: Path) -> object:
    """Read JSON; what is none is as good as an empty table, of which every key is missing."""
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return {}


def _sizes(directory: Path) -> Iterator[int]:
    for place, _, names in os.walk(directory):
        for name in names:
            yield os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118  (a Path raises for long names)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
