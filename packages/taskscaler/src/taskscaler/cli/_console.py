"""The console that commands write to."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EIO
from io import TextIOWrapper
from typing import IO, cast

from attrs import frozen
from rich.console import Console


class PatientConsole(Console):
    """A console whose reader may go away, be it a pipe or a terminal: the jobs go on, and their results are written."""

    def __init__(self) -> None:
        """Write to standard output, whichever characters it knows: a ``·`` must not end a batch."""
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        super().__init__(file=cast("IO[str]", _HangupIsBrokenPipe(sys.stdout)))

    def on_broken_pipe(self) -> None:
        """Print nothing more; rich itself would end the process in the middle of things."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter's last flush fails


@frozen
class _HangupIsBrokenPipe:
    """A file that reports a terminal that is gone as a pipe that nobody reads."""

    file: IO[str]

    def write(self, text: str) -> int:
        """Write, or say that nobody is there."""
        with self._broken_pipe():
            return self.file.write(text)

    def flush(self) -> None:
        """Flush, or say that nobody is there."""
        with self._broken_pipe():
            self.file.flush()

    def __getattr__(self, name: str) -> object:
        """Be the file in all else."""
        return getattr(self.file, name)

    @contextmanager
    def _broken_pipe(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno == EIO:
                raise BrokenPipeError from error
            raise
