"""A slot's directory on an instance, and what the instance executor has done in it, however its system does that."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from attrs import field, frozen

from fleeting import Completed, ConnectError, Sink


@frozen(kw_only=True)
class Wanted:
    """A slot that is to be made ready for a job."""

    instance: str
    base: str
    """As the user has configured it."""

    number: int
    script: str = field(repr=False)
    env: Mapping[str, str] = field(repr=False)
    """Of the job and of its clean-up."""

    @property
    def name(self) -> str:
        """Of the slot's directory, in the base."""
        return f"slot-{self.number}"


class Slot(Protocol):
    """A slot that is ready: its directory is empty, and the job's script lies beside it."""

    @property
    def directory(self) -> str:
        """Absolute, as the instance writes it."""
        ...

    async def upload(self, files: Mapping[str, Path]) -> None:
        """Put files and directories into the directory.

        Raises:
            ConnectError: The instance could not take them.
            OSError: They could not be read.
        """
        ...

    async def run_script(self, output: Sink) -> Completed:
        """Run the job's script; its two outputs are one, in the order of writing."""
        ...

    async def run_cleanup(self, script: str, output: Sink) -> Completed:
        """Run another script in the same way."""
        ...

    async def download(self, patterns: Sequence[str], store: Sink) -> Completed:
        """Give *store* a tar archive of what matches the patterns; nothing if nothing does.

        Raises:
            ArchiveRefused: It came damaged.
        """
        ...

    async def remove(self) -> Completed:
        """Remove the directory, and what lies beside it."""
        ...


def raise_unless_ok(completed: Completed, what: str) -> None:
    """Raise what keeps a job from being run; *what* says what could not be done."""
    if not completed.ok:
        raise ConnectError(f"{what}: {completed.account}")
