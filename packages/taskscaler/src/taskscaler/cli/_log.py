"""Where the libraries' own log goes while a command runs: into a file, not between the lines of the display."""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from io import TextIOWrapper
from pathlib import Path
from time import gmtime
from typing import TextIO

from fleeting.plugins import open_private

_EVERY_RECORD_HAS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class EventFormatter(logging.Formatter):
    """One line per event: time, level, logger, the event's name, then what belongs to it as ``key=value``."""

    def __init__(self) -> None:
        """Times are UTC, as in the results."""
        super().__init__("%(asctime)sZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = gmtime

    def format(self, record: logging.LogRecord) -> str:
        """Append the event's own keys."""
        return " ".join([super().format(record), *(f"{key}={value!r}" for key, value in _own(record).items())])


class JsonFormatter(EventFormatter):
    """One JSON object per event and line: the same, for programs."""

    def format(self, record: logging.LogRecord) -> str:
        """Write the event and its own keys."""
        event = {
            "time": f"{self.formatTime(record, self.datefmt)}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_own(record),
        }
        if record.exc_info:
            event["error"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str)


def _own(record: logging.LogRecord) -> dict[str, object]:
    """What belongs to an event."""
    return {key: value for key, value in vars(record).items() if key not in _EVERY_RECORD_HAS}


class _Handler(logging.FileHandler):
    """Writes the log, for our user alone; where it cannot be written, no traceback is printed for each event."""

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


def logging_to(path: Path | None) -> AbstractContextManager[None]:
    """Log into *path*, or nowhere, while the body runs; events of the fleet from INFO up."""
    if path is None:
        return _logging(logging.NullHandler())
    return _logging(_Handler(path, encoding="utf-8", errors="backslashreplace", delay=True))


def logging_on(
    stream: TextIO, *, also: Sequence[str] = (), level: int = logging.INFO, as_json: bool = False
) -> AbstractContextManager[None]:
    """Log to a stream, for a service manager to keep; of other libraries *also*, by their names."""
    formatter = JsonFormatter() if as_json else EventFormatter()
    return _logging(logging.StreamHandler(stream), also, level, formatter)


@contextmanager
def _logging(
    handler: logging.Handler,
    also: Sequence[str] = (),
    level: int = logging.INFO,
    formatter: logging.Formatter | None = None,
) -> Iterator[None]:
    handler.setFormatter(formatter or EventFormatter())
    loggers = [logging.getLogger(name) for name in ("fleeting", "taskscaler", *also)]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
            logger.propagate = True
        handler.close()
