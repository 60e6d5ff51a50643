"""Hears whatever a group says by the way: logs of every level, standard output and error, warnings."""

import base64
import io
import json
import logging
import traceback
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any
from urllib.parse import quote

from attrs import define, field

LINE = 20
"""A line of a secret that is at least so long, such as one of a private key, is a secret by itself."""


@define
class Overheard:
    """What was said, by where."""

    logs: list[str] = field(factory=list)
    stdout: io.StringIO = field(factory=io.StringIO)
    stderr: io.StringIO = field(factory=io.StringIO)
    warned: list[warnings.WarningMessage] = field(factory=list)

    def words(self) -> dict[str, Sequence[str]]:
        """All of it, by the name of the place."""
        return {
            "a log": self.logs,
            "standard output": [self.stdout.getvalue()],
            "standard error": [self.stderr.getvalue()],
            "a warning": [f"{each.message} {each.message!r}" for each in self.warned],
        }


@contextmanager
def overhearing() -> Iterator[Overheard]:
    """Hear all that is said in this process."""
    heard = Overheard()
    root = logging.getLogger()
    factory, level, disabled = logging.getLogRecordFactory(), root.level, root.manager.disable

    def hear(*args: Any, **kwargs: Any) -> logging.LogRecord:  # noqa: ANN401  (a factory's signature)
        record = factory(*args, **kwargs)
        heard.logs += words_of_record(record)
        return record

    root.addHandler(sink := _Sink(heard.logs))  # what is in `extra` comes after the factory
    root.setLevel(1)
    logging.disable(logging.NOTSET)
    logging.setLogRecordFactory(hear)
    try:
        with (
            warnings.catch_warnings(record=True) as warned,
            redirect_stdout(heard.stdout),
            redirect_stderr(heard.stderr),
        ):
            warnings.simplefilter("always")
            heard.warned = warned
            yield heard
    finally:
        logging.setLogRecordFactory(factory)
        logging.disable(disabled)
        root.setLevel(level)
        root.removeHandler(sink)


class _Sink(logging.Handler):
    """Takes down what reaches the root logger, with all that stands beside the message."""

    def __init__(self, heard: list[str]) -> None:
        super().__init__(level=logging.NOTSET)
        self.heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        """Take it down."""
        self.heard += words_of_record(record)


def words_of_record(record: logging.LogRecord) -> list[str]:
    """What a record says: the message, all that stands beside it, and its error."""
    try:
        words = [record.getMessage()]
    except Exception:  # noqa: BLE001  (a format that does not fit its arguments; logging prints these)
        words = [str(record.msg)]
    words.append(repr(vars(record)))
    if record.exc_info and record.exc_info[1] is not None:
        words += words_of(record.exc_info[1])
    return words


def words_of(error: BaseException) -> list[str]:
    """What an error says, and each that led to it or is part of it: texts, arguments, attributes, notes."""
    words: list[str] = []
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        words += [str(each), repr(each), repr(each.args), repr(vars(each)), *getattr(each, "__notes__", ())]
        words += traceback.format_exception_only(each)
        left += [each.__cause__, each.__context__]
        left += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
    return words


def spellings(secrets: Collection[str]) -> Sequence[tuple[str, str]]:
    """Each way in which a secret may be written, and the secret."""
    parts = {line.strip() for secret in secrets for line in secret.splitlines() if len(line.strip()) >= LINE}
    return [(written, secret) for secret in {*secrets, *parts} for written in _written(secret)]


def _written(secret: str) -> Iterator[str]:
    """As it is, quoted for a URL, for JSON or Python, and in base64, alone or behind a name and a colon."""
    raw = secret.encode()
    yield from {secret, quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1], raw.hex()}
    for before in range(3):  # base64 has three characters in four, so it depends on what stands before
        coded = base64.b64encode(b"\0" * before + raw).decode()
        yield coded[(0, 2, 3)[before] : len(coded) - (4 if (before + len(raw)) % 3 else 0)]
