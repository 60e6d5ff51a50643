"""What a command leaves for a CI system: JUnit XML, and annotations."""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen
from rich.console import Console

from fleeting.plugins import open_private
from taskscaler.batch import BatchState, Results
from taskscaler.batch._results import draft_of
from taskscaler.cli._last_lines import last_lines
from taskscaler.report._annotations import github, gitlab

LINES_OF_OUTPUT = 20
"""So many of the last lines of a job that ended badly are in the JUnit XML."""


@frozen(kw_only=True)
class ForCI:
    """What is wanted."""

    junit: Path | None = None
    """Where the JUnit XML is to be; None: nowhere."""

    annotations: str | None = None
    """``github``: printed; ``gitlab``: written into the results; None: none."""

    def leave(self, state: BatchState, results: Results, jobs_file: Path, console: Console) -> None:
        """Write and print it.

        Args:
            state: Of the batch.
            results: Where its logs are.
            jobs_file: What the batch was made from.
            console: Where GitHub's annotations go.

        Raises:
            OSError: A file cannot be written.
        """

        def tail(job: str) -> Sequence[str]:
            return last_lines(results.log(job), LINES_OF_OUTPUT)

        if self.junit is not None:
            from taskscaler.report._junit import junit  # brings an HTTP client along, of all things

            _write(self.junit, (f"{line}\n" for line in junit(state, name=jobs_file.stem or "batch", tail=tail)))
        if self.annotations == "gitlab":
            _write(results.annotations, gitlab(state, tail, path=_in_repository(jobs_file)))
        if self.annotations == "github":
            for line in github(state, tail):
                console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def nothing_obeyed(self, console: Console) -> Iterator[None]:
        """Have GitHub obey nothing that is printed while the body runs: what jobs have printed may look like orders."""
        if self.annotations != "github":
            yield
            return
        token = secrets.token_hex(16)
        console.print(f"::stop-commands::{token}", soft_wrap=True)
        try:
            yield
        finally:
            console.print(f"::{token}::", soft_wrap=True)


def _write(path: Path, parts: Iterable[str]) -> None:
    """Write a file for our user alone, whole or not at all."""
    draft = draft_of(path)
    with open(draft, "w", encoding="utf-8", opener=open_private) as file:
        file.writelines(parts)
    draft.replace(path)


def _in_repository(path: Path) -> str:
    """Name a file as CI systems do, which run commands in the repository."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else path.name
