"""How an event of the libraries' own log is written: for people, for programs, for systemd's journal."""

import json
import logging
from collections.abc import Mapping
from time import gmtime
from typing import Final, Literal

_EVERY_RECORD_HAS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

_SYSLOG: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""Levels from which on a number is meant."""

LogFormat = Literal["text", "json", "journal"]


class EventFormatter(logging.Formatter):
    """One line per event: time, level, logger, the event's name, then what belongs to it as ``key=value``.

    A traceback follows on lines of its own.
    """

    def __init__(self) -> None:
        """Times are UTC, as in the results."""
        super().__init__("%(asctime)sZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's own name)
        """Append the event's own keys."""
        return " ".join([super().formatMessage(record), *(f"{key}={value!r}" for key, value in own(record).items())])


class JsonFormatter(EventFormatter):
    """One JSON object per event and line: the same, for programs."""

    def format(self, record: logging.LogRecord) -> str:
        """Write the event and its own keys."""
        event: dict[str, object] = {
            "time": f"{self.formatTime(record, self.datefmt)}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            event["error"] = self.formatException(record.exc_info)
        keys = {key: value for key, value in own(record).items() if key not in event}
        return json.dumps({**event, **keys}, default=str)


class JournalFormatter(EventFormatter):
    """One line per event as systemd's journal takes it from a service: it has the time itself, and reads the level."""

    def __init__(self) -> None:
        """Leave out what the journal has."""
        super().__init__()
        self._style = logging.PercentStyle("%(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Put the level before each line, as numbers of syslog."""
        return "\n".join(f"<{priority_of(record)}>{line}" for line in super().format(record).splitlines())


class MessageFormatter(EventFormatter):
    """An event and its own keys, for what has time, level and logger beside them."""

    def __init__(self) -> None:
        """Leave out those."""
        super().__init__()
        self._style = logging.PercentStyle("%(message)s")


FORMATTERS: Mapping[LogFormat, type[EventFormatter]] = {
    "text": EventFormatter,
    "json": JsonFormatter,
    "journal": JournalFormatter,
}
"""How events may be written."""


def priority_of(record: logging.LogRecord) -> int:
    """The level of an event as a number of syslog."""
    return next((number for least, number in _SYSLOG if record.levelno >= least), 7)


def own(record: logging.LogRecord) -> dict[str, object]:
    """What belongs to an event."""
    return {key: value for key, value in vars(record).items() if key not in _EVERY_RECORD_HAS}
