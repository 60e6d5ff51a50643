"""``taskscaler logs``: the last lines of one job's log, and what follows as the job prints it."""

import sys
from codecs import IncrementalDecoder, getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event

from attrs import define, field
from rich.console import Console
from rich.text import Text

from fleeting.cli import EXPECTED, SUCCEEDED, WRONG, outcome, report_errors
from fleeting.config import harmless
from fleeting.errors import WrongArguments
from taskscaler._recorded_run import Progress, RecordedRun, is_locked, read_run
from taskscaler.batch import BatchState, Results, fold
from taskscaler.batch._events import header, parse
from taskscaler.batch._log_reader import LogReader
from taskscaler.batch._select import select_one
from taskscaler.cli._console import PatientConsole

Pause = Callable[[float], object]
"""Lets so many seconds pass."""

INTERVAL = 0.25
"""Seconds between two looks at a log that is followed."""

LONGEST_LINE = 1 << 16
"""Characters of a line that are kept until its end comes; a longer one is shown in parts."""


def show_log(directory: Path, job: str, *, lines: int, follow: bool) -> int:
    """Show the last lines of a job's log, and return the exit status.

    Args:
        directory: The results, of a batch that may still run, in another process.
        job: The job, as `select_one` takes it.
        lines: How many, 0 or more.
        follow: Whether to go on until the job is over, all its tries, or no command runs the batch any more.
    """
    try:
        run = read_run(directory)
        name = select_one(list(run.jobs), job)
    except WrongArguments as error:
        return report_errors([WrongArguments(f"the batch in {directory}: {error}")], WRONG)
    except EXPECTED as error:
        return report_errors([error], WRONG)
    follow = follow and run.progress is Progress.RUNNING
    return outcome(lambda: show(run, name, lines, follow=follow))


def show(run: RecordedRun, name: str, lines: int, *, follow: bool, pause: Pause | None = None) -> int:
    """Show the last lines of a job's log; what `show_log` does, once it is clear which job is meant."""
    with ExitStack() as stack:
        ended = stack.enter_context(closing(_Watch(run.directory, name))).ended if follow else _at_once
        return _show(Results(run.directory).log(name), name, lines, ended, pause or Event().wait)


def _show(path: Path, name: str, lines: int, ended: Callable[[], bool], pause: Pause) -> int:
    console, printed = PatientConsole(), Lines()
    if not path.exists():
        waits = "has printed nothing" if ended() else "has not started yet; waiting for it"
        print(f"{name} {waits}", file=sys.stderr)  # noqa: T201  (no part of the log)
    while not path.exists():
        if ended():
            return SUCCEEDED
        pause(INTERVAL)
    with closing(LogReader.at_last_lines(path, lines)) as reader:
        while True:
            over = ended()  # asked first: what was printed before the end is there by then
            for piece in reader.read():
                print_lines(console, printed.take(piece))
            if over:
                print_lines(console, printed.rest())
                return SUCCEEDED
            pause(INTERVAL)


def _at_once() -> bool:
    """Follow nothing."""
    return True


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines as they are."""
    for line in lines:
        console.print(Text(line), soft_wrap=True, highlight=False)


@define
class Lines:
    """Makes lines of bytes as they come, with nothing in them that a terminal would obey."""

    _decoder: IncrementalDecoder = field(factory=lambda: getincrementaldecoder("utf-8")(errors="replace"))
    _begun: str = ""

    def take(self, piece: bytes) -> Iterator[str]:
        """Give the lines that end in this piece."""
        *whole, self._begun = (self._begun + self._decoder.decode(piece)).split("\n")
        yield from map(harmless, whole)
        if len(self._begun) > LONGEST_LINE:
            yield from self.rest()

    def rest(self) -> Iterator[str]:
        """Give what has been begun."""
        begun, self._begun = self._begun, ""
        if begun:
            yield harmless(begun)


class _Watch:
    """Reads the events of a batch that another process runs, as they are written."""

    def __init__(self, directory: Path, job: str) -> None:
        self._path = Results(directory).events
        self._job = job
        self._file = self._path.open("rb")
        self._begun = b""
        self._state: BatchState | None = None

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def ended(self) -> bool:
        """Whether the job is over, with all its tries, or nobody runs the batch any more."""
        running = is_locked(self._path)
        if self._state is None:
            self._state = fold(parse(self._lines()))
        else:
            for event in parse([header(), *self._lines()]):
                self._state.apply(event)
        return not running or self._state[self._job].state.final

    def _lines(self) -> Iterator[bytes]:
        """Give the lines that have been written to their ends since the last time."""
        while line := self._file.readline():
            self._begun += line
            if self._begun.endswith(b"\n"):
                yield self._begun
                self._begun = b""
