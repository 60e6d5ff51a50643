"""A job's directory on an instance, and what the instance executor has done in it, however its system does that.

It is made for one try at a job, and its name is unique to that: instances may share a file system, as hosts do whose
homes are on one server, and so may managers. That it was not there before is proved when it is made.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from attrs import field, frozen

from fleeting import Completed, ConnectError, Usage
from fleeting.connectors import Sink
from taskscaler.executors.runs import NOBODY, SHORT, Runs

MOST_LEFTOVERS = 20
"""Directories that one job removes after others, so that it does not wait long."""

MOST_NAMES: Final = 10_000
"""Names of directories that are looked at: an instance may give any number of them."""

_NAME: Final = re.compile(r"slot-[0-9]+-(?P<owner>[0-9a-f]{8})-(?P<run>[0-9a-f]{12})-(?P<unit>[0-9a-f]{12})")


@frozen(kw_only=True)
class Wanted:
    """A slot that is to be made ready for a job."""

    instance: str
    base: str
    """As the user has configured it."""

    number: int
    unit: str
    """The try's id."""

    runs: Runs
    """What other tries have left that are over."""

    script: str = field(repr=False)
    env: Mapping[str, str] = field(repr=False)
    """Of the job and of its clean-up."""

    is_kept: bool
    """Whether the directory is needed when the job has ended."""

    name: str = field()
    """Of the try's directory, in the base: the slot, the manager, its run, the try."""

    @name.default
    def _name_in_this_run(self) -> str:
        return f"slot-{self.number}-{self.owner or NOBODY}-{self.runs.id}-{self.unit}"

    @property
    def owner(self) -> str:
        """The part of names that all of our manager's directories have; empty if no manager could be claimed."""
        return self.runs.manager[:SHORT]

    def leftovers(self, names: Iterable[str]) -> list[str]:
        """Choose from the names of directories in the base those of our manager's tries that are over for sure."""
        matches = map(_NAME.fullmatch, islice(names, MOST_NAMES))
        found = (match for match in matches if match and match["owner"] == self.owner)
        over = (match for match in found if self.runs.is_over(self.runs.manager, match["run"], match["unit"]))
        return [match[0] for match in islice(over, MOST_LEFTOVERS)]


def text_of(instance: str, data: bytes) -> str:
    """Read what an instance says of its directories.

    Raises:
        ConnectError: It is not UTF-8, so that a directory could not be named to it again.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConnectError(
            f"the directory of jobs on {instance} has a name that is not UTF-8; set base to an absolute path"
        ) from error


class Progress(Protocol):
    """Hears how far a job has come; each is called at most once, and in this order."""

    def began(self) -> None:
        """The directory is there: from now on the job's time is counted."""
        ...

    def ended(self, completed: Completed) -> None:
        """The job has ended, and nothing can change that any more."""
        ...


class Slot(Protocol):
    """What there is of a try at a job on an instance."""

    @property
    def directory(self) -> str:
        """As commands on the instance find it."""
        ...

    @property
    def is_there(self) -> bool:
        """Whether the directory was made and has not been removed, as far as is known."""
        ...

    @property
    def usage(self) -> Usage:
        """What the job has used, as far as that is known by now."""
        ...

    async def run(self, files: Mapping[str, Path], output: Sink, progress: Progress) -> None:
        """Make the directory, which is new, put the files into it, and run the job's script there.

        The two outputs of the script are one, in the order of writing. The directory may be removed afterwards, unless
        it is to be kept.

        Raises:
            ConnectError: The instance could not do what comes before the script.
            Unreachable: The connection died before the script had ended.
            OSError: The files could not be read.
        """
        ...

    async def run_cleanup(self, script: str, output: Sink) -> Completed:
        """Run another script in the directory in the same way."""
        ...

    async def download(self, patterns: Sequence[str], store: Sink) -> Completed:
        """Give *store* a tar archive of what matches the patterns; nothing if nothing does.

        Raises:
            ArchiveRefused: It came damaged.
        """
        ...

    async def remove(self) -> Completed:
        """Remove the directory, and what belongs to it beside it; nothing else."""
        ...

    async def remove_leftovers(self) -> None:
        """Remove what tries of ours have left that are over; what cannot be removed is left to later ones."""
        ...


def raise_unless_ok(completed: Completed, what: str) -> None:
    """Raise what keeps a job from being run; *what* says what could not be done."""
    if not completed.ok:
        raise ConnectError(f"{what}: {completed.account}")
