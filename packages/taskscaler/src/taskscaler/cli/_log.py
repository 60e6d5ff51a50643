"""Where the libraries' own log goes while a command runs: into a file, to standard error, or to systemd's journal."""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO

from fleeting.plugins import open_private
from taskscaler._fleet_log import log as units
from taskscaler.cli._journald import JournalHandler, is_journal
from taskscaler.cli._log_formats import FORMATTERS, EventFormatter, LogFormat

log = logging.getLogger("taskscaler.cli")


class _Quiet(logging.StreamHandler[IO[str]]):
    """Where nothing can be written, no traceback is printed for each event, among those that can."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's own name)
        """Go on."""


class _Shared(_Quiet):
    """Writes to a terminal whose picture another part of the program paints: what that puts there takes the lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write to what standard error is now."""
        self.stream = sys.stderr
        super().emit(record)


class _ToFile(logging.FileHandler):
    """Writes the log, for our user alone; where it cannot be written, no traceback is printed for each event."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Leave out single units of work, which the results have themselves."""
        return record.name != units.name and bool(super().handle(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record; the file is opened for the first one, and that may fail, too."""
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's own name)
        """Go on."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=open_private)


def logging_to(path: Path | None, style: LogFormat | None = None) -> AbstractContextManager[None]:
    """Log into *path*, or nowhere, while the body runs; events of the fleet from INFO up.

    Args:
        path: The file, which is for people.
        style: How events are also written on standard error; None: they are not.
    """
    handlers: list[logging.Handler] = [logging.NullHandler()]
    if path is not None:
        handlers = [_ToFile(path, encoding="utf-8", errors="backslashreplace", delay=True)]
        handlers[0].setFormatter(EventFormatter())
    if style is not None:
        handlers.append(_on(sys.stderr, style))
    return _logging(handlers, units_too=style is not None)


def logging_on(
    stream: IO[str], *, also: Sequence[str] = (), level: int = logging.INFO, style: LogFormat = "text"
) -> AbstractContextManager[None]:
    """Log to a stream, for a service manager to keep; of other libraries *also*, by their names."""
    return _logging([_on(stream, style)], also, level)


def note(sentence: str) -> None:
    """Have a sentence for people be an event, where standard error has events alone."""
    level = logging.WARNING if sentence.startswith("warning: ") else logging.INFO
    log.log(level, "notice", extra={"text": sentence})


def _on(stream: IO[str], style: LogFormat) -> logging.Handler:
    """Write events to a stream, or to the journal if that is where it leads."""
    handler = _Shared(stream) if stream is sys.stderr and stream.isatty() else _Quiet(stream)
    handler.setFormatter(FORMATTERS[style]())
    if style != "journal" or not is_journal(stream):
        return handler
    return JournalHandler(handler)


@contextmanager
def _logging(
    handlers: Sequence[logging.Handler],
    also: Sequence[str] = (),
    level: int = logging.INFO,
    *,
    units_too: bool = True,
) -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("fleeting", "taskscaler", *also)]
    units.setLevel(logging.NOTSET if units_too else logging.WARNING)
    for logger in loggers:
        logger.setLevel(level)
        logger.propagate = False
        for handler in handlers:
            logger.addHandler(handler)
    try:
        yield
    finally:
        units.setLevel(logging.NOTSET)
        for logger in loggers:
            logger.setLevel(logging.NOTSET)
            logger.propagate = True
            for handler in handlers:
                logger.removeHandler(handler)
        for handler in handlers:
            handler.close()
