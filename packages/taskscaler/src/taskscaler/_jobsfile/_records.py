"""Jobs on standard input, as JSON Lines or CSV: a record for each job, read one after the other.

What a stream says is bounded: a line by its length, a stream by the number of its records, and what is reported of it
by the number of mistakes.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import BinaryIO, Literal

from fleeting.config import quoted
from fleeting.errors import ConfigProblem
from fleeting.plugins import describe

Format = Literal["jsonl", "csv"]

LONGEST_LINE = 1 << 20
"""Bytes."""

_LISTS = frozenset({"files", "artifacts", "needs"})
_NUMBERS = frozenset({"retries", "log_limit"})
_TRUTHS = {"true": True, "false": False}
_SWITCHES = frozenset({"detach"})
_TEXTS = frozenset({"name", "script", "command", "executor", "timeout", "expected_duration", "when"})
_VARIABLE = "env."
_AN_OBJECT = 'an object such as {"name": "a", "script": "true"}'

Record = tuple[int, Mapping[str, object] | ConfigProblem]
"""The number of its line, from 1, and the record, or what is wrong with it."""


def records_of(stream: BinaryIO, format_: Format | None) -> Iterator[Record]:
    """Read records; None: CSV, unless the first of them begins as a JSON object does."""
    lines = _lines(stream)
    first = next((line for line in lines if not isinstance(line[1], bytes) or line[1].strip()), None)
    if first is None:
        return iter(())
    number, line = first
    is_json = format_ == "jsonl" or (format_ is None and isinstance(line, bytes) and line.lstrip().startswith(b"{"))
    return (_json if is_json else _csv)(chain([(number, line)], lines))


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | ConfigProblem]]:
    """Give the lines of a stream; one that is too long is the last."""
    number = 0
    while line := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            yield (
                number,
                ConfigProblem(path="", found="a longer line", expected=f"at most {LONGEST_LINE} bytes in a line"),
            )
            return
        yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def _json(lines: Iterator[tuple[int, bytes | ConfigProblem]]) -> Iterator[Record]:
    for number, line in lines:
        if isinstance(line, ConfigProblem):
            yield number, line
        elif line.strip():
            yield number, _object(line)


def _object(line: bytes) -> Mapping[str, object] | ConfigProblem:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        return ConfigProblem(path="", found=_no_json(error), expected=_AN_OBJECT)
    return data if isinstance(data, dict) else ConfigProblem(path="", found=describe(data), expected=_AN_OBJECT)


def _no_json(error: Exception) -> str:
    """Say what stands there in our own words: a parser's are for whoever wrote a parser."""
    match error:
        case json.JSONDecodeError(pos=place):
            return f"JSON with a mistake at character {place + 1}" if place else "text that is not JSON"
        case UnicodeDecodeError():
            return "bytes that are not UTF-8"
        case RecursionError():
            return "brackets that are nested too deeply"
    return "a number with too many digits"


def _csv(lines: Iterator[tuple[int, bytes | ConfigProblem]]) -> Iterator[Record]:
    """Read rows below a header; a row may have several lines."""
    source = _Text(lines)
    rows = csv.reader(source, strict=True)
    header: Sequence[str] | None = None
    while True:
        try:
            row = next(rows, None)
        except (csv.Error, UnicodeDecodeError) as error:
            yield (
                source.number,
                ConfigProblem(path="", found=f"no CSV ({error})", expected="UTF-8, with cells in double quotes"),
            )
            return
        if source.problem:
            yield source.number, source.problem
        if row is None or source.problem:
            return
        if header is None:
            header = [cell.strip() for cell in row]
            if twice := sorted({name for name in header if header.count(name) > 1}):
                yield (
                    source.number,
                    ConfigProblem(path="", found=f"the column {quoted(twice[0])} twice", expected="each once"),
                )
                return
        elif row:
            yield source.number, _row(header, row)


class _Text(Iterator[str]):
    """The lines of a table, as text; which one was read last is known."""

    def __init__(self, lines: Iterator[tuple[int, bytes | ConfigProblem]]) -> None:
        self._lines = lines
        self.number = 0
        self.problem: ConfigProblem | None = None

    def __next__(self) -> str:
        self.number, line = next(self._lines)
        if isinstance(line, ConfigProblem):
            self.problem = line
            raise StopIteration
        return line.decode()


def _row(header: Sequence[str], row: Sequence[str]) -> Mapping[str, object] | ConfigProblem:
    """Make a record of a row: a cell that is empty says nothing."""
    if len(row) != len(header):
        return ConfigProblem(path="", found=f"{len(row)} cells", expected=f"{len(header)}, as the header has")
    env: dict[str, str] = {}
    record: dict[str, object] = {}
    for column, cell in zip(header, row, strict=True):
        if not cell:
            continue
        if column in _LISTS:
            record[column] = [part.strip() for part in cell.split(";") if part.strip()]
        elif column in _NUMBERS:
            record[column] = int(cell) if cell.isascii() and cell.isdigit() else cell
        elif column in _SWITCHES:
            record[column] = _TRUTHS.get(cell, cell)
        elif column in _TEXTS:
            record[column] = cell
        else:
            env[column.removeprefix(_VARIABLE)] = cell
    return {**record, "env": env} if env else record
