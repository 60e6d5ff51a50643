"""What stands in a trace's columns: which of them has what, and the times and durations in them. Pure.

A trace says when each job was submitted, and how long it ran or from when until when. Names are recognised that other
systems have for that; anything else has to be named.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from math import isfinite

from attrs import frozen

from fleeting import ConfigError
from fleeting.config import did_you_mean, parse_duration
from taskscaler._errors import TraceUnreadable
from taskscaler._wording import counted, enumerated

LONGEST_JOB = 366 * 86400.0
"""Seconds; a job that runs longer is a mistake in the trace."""

MILLISECONDS = 1e11
"""A time of more than that is in milliseconds since the epoch: in seconds it would be in the year 5138."""

LATEST = 4e9
"""Seconds since the epoch, and the earliest is none before it."""

SHOWN = 40
"""Characters of a cell that an error shows."""

FEW = 8
"""So many columns are named."""


class Part(Enum):
    """What a column may have."""

    SUBMIT = "submit"
    DURATION = "duration"
    START = "start"
    END = "end"

    __hash__ = object.__hash__


_NAMES: Mapping[Part, Sequence[str]] = {
    Part.SUBMIT: (
        *("submit", "submits", "submit_time", "submitted", "submitted_at", "submission_time", "submit_at"),
        *("created", "created_at", "creation_time", "create_time", "queued_at", "queue_time", "enqueued_at"),
        *("arrival", "arrival_time", "arrived_at", "timestamp", "time", "ts"),
    ),
    Part.DURATION: (
        *("duration", "durations", "run_time", "runtime", "exec_time", "execution_time", "execute_time"),
        *("elapsed", "elapsed_time", "service_time", "processing_time", "job_duration", "run_duration"),
    ),
    Part.START: ("start", "started", "started_at", "start_time", "begin", "begin_time", "started_time"),
    Part.END: ("end", "ended", "ended_at", "end_time", "finished", "finished_at", "finish_time", "completed_at"),
}
"""The better known first: of several columns, that is taken whose name stands earlier."""

_UNITS: Mapping[str, float] = {
    **dict.fromkeys(("ns", "nanos", "nanoseconds"), 1e-9),
    **dict.fromkeys(("us", "usec", "micros", "microseconds"), 1e-6),
    **dict.fromkeys(("ms", "msec", "millis", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "seconds"), 1.0),
    **dict.fromkeys(("min", "mins", "minutes"), 60.0),
    **dict.fromkeys(("h", "hours"), 3600.0),
    **dict.fromkeys(("d", "days"), 86400.0),
}
"""Seconds; a column's name may end in one."""

_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d{2}):(\d{2}(?:\.\d+)?)")
"""As Slurm writes how long something ran: days, hours, minutes, seconds."""

_DATES: Mapping[int, str] = {8: "%Y%m%d", 12: "%Y%m%d%H%M"}
"""By their digits: dates that are written as numbers, and are numbers of seconds or milliseconds, too. With 14
they are too late to be that."""

SERIAL = (36_526, 55_153)
"""Days since the end of 1899, as which spreadsheets count dates: those of 2000 to 2050."""

_SERIAL_BEGINS = datetime(1899, 12, 30, tzinfo=UTC)

EXAMPLE = "--columns submit=NAME,duration=NAME"


@frozen
class Column:
    """Where something stands."""

    index: int
    name: str
    unit: float | None = None
    """Seconds that 1 is, if the name says so."""


@frozen
class Columns:
    """Where everything stands; a duration, or both ends."""

    submit: Column
    duration: Column | None
    start: Column | None
    end: Column | None
    unused: tuple[str, ...]
    """Names of all other columns."""

    def check_first(self, cells: Sequence[object]) -> None:
        """See that times of the first row are no dates without their dashes. Raises ValueError with what to do.

        One of many numbers of seconds may look like a date; if the first does, all do.
        """
        for column in filter(None, (self.submit, self.start, self.end)):
            cell = cells[column.index] if column.index < len(cells) else None
            if column.unit is None and (date := _as_date(cell)) is not None:
                raise ValueError(
                    f"{column.name} is {_shown(cell)}, which may be {date:%Y-%m-%d} or a number of seconds; write dates"
                    f" as {date:%Y-%m-%dT%H:%M:%SZ}, or name a column of seconds {column.name}_s"
                )

    def check_dates(self, submits: Sequence[float]) -> None:
        """See that times are no dates of a spreadsheet, in days. Raises TraceUnreadable with what to do.

        They look like seconds; but all jobs of ten years would come within an hour then, at fractions of a second.
        """
        if not submits or self.submit.unit is not None:
            return
        first, last = min(submits), max(submits)
        if SERIAL[0] <= first and last < SERIAL[1] and not all(each.is_integer() for each in submits):
            date = _SERIAL_BEGINS + timedelta(days=first)
            raise TraceUnreadable(
                f"column {self.submit.name} has numbers from {first:g} to {last:g}, which seem to be dates of a"
                f" spreadsheet, the first of them {date:%Y-%m-%dT%H:%M:%SZ}; format its cells so before the export,"
                f" or name a column of seconds {self.submit.name}_s"
            )

    def job(self, cells: Sequence[object]) -> tuple[float, float] | None:
        """Read one job; None: it never ran, or runs still. Raises ValueError with what is wrong."""
        submit = self._time(cells, self.submit)
        if submit is None:
            raise ValueError(f"{self.submit.name} is empty")
        if self.duration is not None:
            column, unit = self.duration, self.duration.unit or 1.0
            duration = self._read(cells, column, lambda cell: read_duration(cell, unit))
        else:
            start, end = self._time(cells, self.start), self._time(cells, self.end)
            duration = None if start is None or end is None else end - start
        if duration is None:
            return None
        if not 0 <= duration <= LONGEST_JOB:
            what = self.duration.name if self.duration is not None else "the time from its start to its end"
            raise ValueError(f"{what} is {duration:g} s, expected 0 s to a year")
        return submit, duration

    def _time(self, cells: Sequence[object], column: Column | None) -> float | None:
        return None if column is None else self._read(cells, column, lambda cell: read_time(cell, column.unit))

    def _read(self, cells: Sequence[object], column: Column | None, read: Callable[[object], float]) -> float | None:
        if column is None:
            return None
        if column.index >= len(cells):
            raise ValueError(f"{column.name} is missing: it has {counted(len(cells), 'cell')}")
        cell = cells[column.index]
        if cell is None or (isinstance(cell, str) and cell.strip().lower() in _EMPTY):
            return None
        try:
            return read(cell)
        except ValueError as error:
            raise ValueError(f"{column.name} is {_shown(cell)}, expected {error}") from None


_EMPTY = frozenset({"", "null", "none", "nan", "na", "n/a", "unknown", "\\n"})
"""What stands where nothing is known."""


def find_columns(names: Sequence[str], given: Mapping[str, str]) -> Columns:
    """Find out which column has what.

    Args:
        names: Of all columns, in their order.
        given: Names of columns by `Part`, as somebody has named them; what is not named is recognised.

    Raises:
        TraceUnreadable: A column that was named is missing; or one is that nobody has named, with how to do that.
    """
    found = {Part(part): _named(name, part, names) for part, name in given.items()}
    for part in Part:
        if part not in found and (recognised := _recognised(part, names)) is not None:
            found[part] = recognised
    submit, duration = found.get(Part.SUBMIT), found.get(Part.DURATION)
    if submit is None and any(map(_is_value, names)):
        found_names = enumerated([_shown(name) for name in names], most=FEW)
        raise TraceUnreadable(
            f"its first line has {found_names}, expected the names of columns; put such a line first, such as"
            " submit,duration"
        )
    has_ends = Part.START in found and Part.END in found
    if submit is None or not (duration or has_ends):
        missing = "when a job was submitted" if submit is None else "how long a job ran"
        has = enumerated([_shown(name) for name in names], most=FEW) or "none"
        raise TraceUnreadable(
            f"no column says {missing}: the columns are {has}; name them, such as {EXAMPLE}"
            " (or start=NAME,end=NAME for when it began and ended)"
        )
    start, end = (None, None) if duration else (found[Part.START], found[Part.END])
    for column in filter(None, (submit, duration, start, end)):
        if names.count(column.name) > 1:
            raise TraceUnreadable(f"column {_shown(column.name)} is there {names.count(column.name)} times; rename one")
    used = {column.index for column in (submit, duration, start, end) if column is not None}
    return Columns(submit, duration, start, end, tuple(n for index, n in enumerate(names) if index not in used))


def _is_value(name: str) -> bool:
    """Whether what should be a name is a time, or any number."""
    try:
        read_time(name)
    except ValueError:
        return _number(name) is not None
    return True


def parse_columns(text: str) -> Mapping[str, str]:
    """Read ``submit=created,duration=took``. Raises ValueError with what may stand there."""
    given: dict[str, str] = {}
    for part in text.split(","):
        key, is_there, name = (each.strip() for each in part.partition("="))
        if not is_there or not name or key not in {each.value for each in Part}:
            raise ValueError(f"expected submit=NAME,duration=NAME, or start=NAME,end=NAME, found {part.strip()!r}")
        given[key] = name
    return given


def _named(name: str, part: str, names: Sequence[str]) -> Column:
    if name not in names:
        hint = did_you_mean(name, names) or f"the columns are {enumerated([_shown(n) for n in names], most=FEW)}"
        raise TraceUnreadable(f"there is no column {_shown(name)} for {part}; {hint}")
    return Column(names.index(name), name, _split(name)[1])


def _recognised(part: Part, names: Sequence[str]) -> Column | None:
    """The column with the best known of the names, if any has one."""
    ranks = {name: rank for rank, name in enumerate(_NAMES[part])}
    candidates = []
    for index, name in enumerate(names):
        whole, (stem, unit) = _plain(name), _split(name)
        if whole in ranks:
            candidates.append((ranks[whole], index, Column(index, name)))
        elif stem in ranks:
            candidates.append((ranks[stem], index, Column(index, name, unit)))
    return min(candidates, key=lambda each: each[:2])[2] if candidates else None


def _split(name: str) -> tuple[str, float | None]:
    """Take a unit from the end of a name, if there is one."""
    stem, _, unit = _plain(name).rpartition("_")
    return (stem, _UNITS[unit]) if stem and unit in _UNITS else (_plain(name), None)


def _plain(name: str) -> str:
    """In lower case, words joined by underscores."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")


def _shown(cell: object) -> str:
    text = str(cell)
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")


def read_time(cell: object, unit: float | None = None) -> float:
    """Read a time as seconds since the epoch; one without a zone is UTC. Raises ValueError with what is expected.

    Args:
        cell: What stands there.
        unit: Seconds that 1 is; None: seconds or milliseconds, as large as it is.
    """
    if isinstance(cell, datetime):
        return (cell if cell.tzinfo else cell.replace(tzinfo=UTC)).timestamp()
    number = _number(cell)
    if number is None:
        try:
            at = datetime.fromisoformat(str(cell).strip())
            number = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise ValueError(TIME) from None
    elif unit is not None:
        number *= unit
    elif abs(number) >= MILLISECONDS:
        number /= 1000.0
    if not -LATEST <= number <= LATEST:
        raise ValueError("a time between 1843 and 2096")
    return round(number, 6)


def _as_date(cell: object) -> datetime | None:
    """The date that a number looks like, if it is of these years."""
    digits = str(cell).strip()
    form = _DATES.get(len(digits))
    if form is None or isinstance(cell, float) or not digits.isdecimal() or not digits.startswith(("19", "20")):
        return None
    try:
        return datetime.strptime(digits, form)  # noqa: DTZ007  (of no zone)
    except ValueError:
        return None


TIME = "a time such as 2026-11-27T09:00:00Z, or seconds or milliseconds since the epoch"


def read_duration(cell: object, unit: float) -> float:
    """Read a duration as seconds. Raises ValueError with what is expected."""
    if isinstance(cell, timedelta):
        return cell.total_seconds()
    number = _number(cell)
    if number is not None:
        return round(number * unit, 6)
    text = str(cell).strip()
    clock = _CLOCK.fullmatch(text)
    if clock is not None:
        days, hours, minutes, seconds = (float(each or 0) for each in clock.groups())
        return days * 86400 + hours * 3600 + minutes * 60 + seconds
    try:
        return parse_duration(text)
    except ConfigError:
        raise ValueError('a number, or a duration such as "90s" or 1:30:00') from None


def _number(cell: object) -> float | None:
    """Read a number that is one; None: it is something else."""
    if isinstance(cell, bool):
        return None
    try:
        number = float(cell)  # type: ignore[arg-type]  # (anything; what is none raises)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if isfinite(number) else None
