"""Events of the log have stable names and fields, all of which are on their page, each with the question it answers."""

import logging
import re
from pathlib import Path
from typing import Final

import pytest

from taskscaler.cli._journald import LONGEST_NAME, PREFIX, field_name
from tests.log_calls import LOGGERS, PACKAGES, LogCall, log_calls

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "log-events.md"
ROW: Final = re.compile(r"^\| `(\w+)` \| ([a-z, ]+) \| (.*?) \| (.+\?.*) \|$", re.MULTILINE)

ASSIGNED: Final = re.compile(r"^(\w+) = logging\.getLogger\(", re.MULTILINE)

PASSED_ON: Final = "taskscaler-gitlab/src/taskscaler_gitlab/_unforeseen.py"
"""Where one call logs what others name."""

NOT_A_CALL: Final = frozenset({"events_lost"})
"""Events that no logger makes: the one that says how many are missing."""


@pytest.fixture(scope="module")
def calls() -> list[LogCall]:
    """All calls but that one; to find them takes a second, which only the worker that needs them should spend."""
    return [call for call in log_calls() if call.event or not call.where.startswith(PASSED_ON)]


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    """Levels and fields of each event that the page has."""
    return {
        name: (levels, frozenset(re.findall(r"`(\w+)`", fields)))
        for name, levels, fields, _ in ROW.findall(PAGE.read_text())
    }


def test_an_event_has_a_name_and_fields_that_are_written_out(calls: list[LogCall]) -> None:
    """No name is put together, nothing is formatted into it, and what belongs to it can be read in the source."""
    wrong = [call for call in calls if call.event is None or call.fields is None]
    assert not wrong, "log an event by a name that is written out, and write out the keys of `extra`"
    assert [call for call in calls if not re.fullmatch(r"[a-z][a-z0-9_]*", str(call.event))] == []


def test_only_one_call_logs_what_others_name(calls: list[LogCall]) -> None:
    """It is the one for what nobody foresaw, whose callers are looked at instead."""
    assert len(log_calls()) == len(calls) + 1


def test_every_event_is_on_the_page_with_its_fields(calls: list[LogCall]) -> None:
    """And nothing else is; the page says at which levels."""
    fields: dict[str, frozenset[str]] = {}
    for call in calls:
        fields[str(call.event)] = fields.get(str(call.event), frozenset()) | (call.fields or frozenset())
    pages = documented()
    assert {name: of for name, (_, of) in pages.items() if name not in NOT_A_CALL} == fields
    for call in calls:
        assert call.level in (*pages[str(call.event)][0].split(", "), "varies"), call


def test_no_field_is_taken_for_another(calls: list[LogCall]) -> None:
    """Logging refuses those of its own, JSON has four before them, and the journal calls each differently."""
    fields = {field for call in calls for field in call.fields or ()}
    assert not fields & {*vars(logging.makeLogRecord({})), "message", "asctime", "time", "level", "logger", "event"}
    names = {field_name(field) for field in fields}
    assert len(names) == len(fields)
    assert all(re.fullmatch(f"{PREFIX}[A-Z0-9_]+", name) and len(name) <= LONGEST_NAME for name in names)


def test_every_logger_has_a_name_that_is_looked_for() -> None:
    """Else its calls would not be found."""
    names = {name for path in PACKAGES.glob("*/src/**/*.py") for name in ASSIGNED.findall(path.read_text())}
    assert names == LOGGERS
