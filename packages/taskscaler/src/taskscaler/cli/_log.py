"""Where the libraries' own log goes while a command runs: into a file, not between the lines of the display."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import gmtime

_EVERY_RECORD_HAS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class EventFormatter(logging.Formatter):
    """One line per event: time, level, logger, the event's name, then what belongs to it as ``key=value``."""

    def __init__(self) -> None:
        """Times are UTC, as in the results."""
        super().__init__("%(asctime)sZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = gmtime

    def format(self, record: logging.LogRecord) -> str:
        """Append the event's own keys."""
        own = {key: value for key, value in vars(record).items() if key not in _EVERY_RECORD_HAS}
        return " ".join([super().format(record), *(f"{key}={value!r}" for key, value in own.items())])


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Log into *path* while the body runs; events of the fleet from INFO up."""
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(EventFormatter())
    loggers = [logging.getLogger(name) for name in ("fleeting", "taskscaler")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
            logger.propagate = True
        handler.close()
