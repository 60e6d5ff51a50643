"""Which policy holds when."""

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from taskscaler.core._schedule import LOOK_AHEAD, Schedule, validate_period, validate_timezone

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE = 60.0


@frozen
class Rule:
    """As much of a policy as a schedule looks at."""

    name: str
    periods: tuple[str, ...]
    timezone: str = "UTC"


def at(text: str, zone: ZoneInfo | None = None) -> float:
    """Seconds since the epoch of an ISO time, in UTC or on a zone's wall clock."""
    return datetime.fromisoformat(text).replace(tzinfo=zone or UTC).timestamp()


def holding(rules: Sequence[Rule], now: float) -> str | None:
    """Name of the rule that holds."""
    policy = Schedule(rules).at(now).policy
    return policy.name if policy else None


# --- a second opinion: every field written out, nothing parsed ------------------------------------------

_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]

Field = tuple[str, frozenset[int]]
"""The text of a cron field, and all that it matches."""


def fields(low: int, high: int) -> st.SearchStrategy[Field]:
    """Cron fields over a range: stars, steps, ranges, lists, single numbers."""
    number = st.integers(low, high)
    everything = frozenset(range(low, high + 1))
    single = number.map(lambda n: (str(n), frozenset({n})))
    ranges = st.tuples(number, number).map(sorted).map(lambda r: (f"{r[0]}-{r[1]}", frozenset(range(r[0], r[1] + 1))))
    steps = st.integers(2, 7).map(lambda step: (f"*/{step}", frozenset(range(low, high + 1, step))))
    lists = st.lists(st.one_of(single, ranges), min_size=2, max_size=3).map(
        lambda parts: (",".join(text for text, _ in parts), frozenset().union(*(values for _, values in parts)))
    )
    return st.one_of(st.just(("*", everything)), single, ranges, steps, lists)


weekdays = st.one_of(
    fields(0, 6),
    st.tuples(st.integers(0, 6), st.integers(0, 6))
    .map(sorted)
    .map(lambda r: (f"{_DAYS[r[0]]}-{_DAYS[r[1]]}", frozenset(range(r[0], r[1] + 1)))),
    st.just(("7", frozenset({0}))),
)
days = fields(1, 31).filter(lambda field: min(field[1]) < 29)
crons = st.tuples(fields(0, 59), fields(0, 23), days, fields(1, 12), weekdays)


def matches(cron: tuple[Field, ...], wall: datetime) -> bool:
    """Whether the minute matches, field by field, as crontab(5) has it."""
    (_, minutes), (_, hours), (day_text, month_days), (_, months), (weekday_text, week_days) = cron
    day, weekday = wall.day in month_days, wall.isoweekday() % 7 in week_days
    both = day_text.startswith("*") or weekday_text.startswith("*")
    right_day = (day and weekday) if both else (day or weekday)
    return wall.minute in minutes and wall.hour in hours and wall.month in months and right_day


@frozen
class Case:
    """Rules, each with its crons taken apart."""

    rules: tuple[Rule, ...]
    crons: tuple[tuple[tuple[Field, ...], ...], ...]

    def holding(self, now: float) -> str | None:
        """The last rule that matches, found the slow way."""
        names = [
            rule.name
            for rule, crons in zip(self.rules, self.crons, strict=True)
            if any(matches(cron, datetime.fromtimestamp(now, ZoneInfo(rule.timezone))) for cron in crons)
        ]
        return names[-1] if names else None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to three rules in any of a few zones."""
    drawn = draw(st.lists(st.lists(crons, min_size=1, max_size=2).map(tuple), max_size=3))
    zones = st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe"])
    rules = [
        Rule(str(index), tuple(" ".join(text for text, _ in cron) for cron in parts), draw(zones))
        for index, parts in enumerate(drawn)
    ]
    return Case(tuple(rules), tuple(drawn))


moments = st.floats(at("2020-01-01T00:00"), at("2030-01-01T00:00")) | st.sampled_from(
    [at("2025-03-30T00:30"), at("2025-10-26T00:30"), at("2025-10-26T01:59")]  # about Berlin's changes
)


@given(cases(), moments)
def test_agrees_with_a_matcher_that_looks_at_one_minute(case: Case, now: float) -> None:
    """The last rule with a period that matches the minute holds."""
    assert holding(case.rules, now) == case.holding(now)


@given(cases(), moments)
def test_nothing_changes_before_it_says_so(case: Case, now: float) -> None:
    """Until the moment at which to look again, each minute has the same answer; that moment lies ahead."""
    current = Schedule(case.rules).at(now)
    assert current.until > now
    end = min(current.until, now + 3 * 3600)
    minute = now // MINUTE * MINUTE
    while minute < end:
        assert case.holding(max(now, minute)) == case.holding(now)
        minute += MINUTE


@given(moments)
def test_a_last_policy_that_always_holds_never_needs_another_look(now: float) -> None:
    """Where nothing can change, nobody is woken; no policies at all is such a case."""
    always = Rule("always", ("* * * * *",))
    assert Schedule([Rule("night", ("* 0-5 * * *",)), always]).at(now).until == math.inf
    assert Schedule[Rule]([]).at(now).until == math.inf
    assert Schedule([always, Rule("night", ("* 0-5 * * *",))]).at(now).until < math.inf


def test_office_hours_are_a_span() -> None:
    """GitLab's own example holds from 08:00 to 15:59 on weekdays, in the policy's zone."""
    rules = [Rule("idle", ("* * * * *",)), Rule("office", ("* 8-15 * * mon-fri",), "Europe/Berlin")]
    answers = {
        "2025-06-13T07:59": "idle",
        "2025-06-13T08:00": "office",
        "2025-06-13T15:59": "office",
        "2025-06-13T16:00": "idle",
        "2025-06-14T12:00": "idle",
    }
    assert {time: holding(rules, at(time, BERLIN)) for time in answers} == answers


def test_tells_the_minute_of_the_next_change() -> None:
    """The end of a span is told to the minute if it is near, and one looks again if it is not."""
    schedule = Schedule([Rule("office", ("* 8-15 * * *",))])
    assert schedule.at(at("2025-06-13T15:40:20")).until == at("2025-06-13T16:00")
    assert schedule.at(at("2025-06-13T10:00:00")).until == at("2025-06-13T10:00:00") + LOOK_AHEAD * MINUTE


def test_the_skipped_hour_matches_never() -> None:
    """When Berlin's clocks are put forward, 02:30 does not come, and 03:00 follows on 01:59."""
    schedule = Schedule([Rule("night", ("* 2 * * *",), "Europe/Berlin")])
    start = at("2025-03-30T00:00")  # 01:00 in Berlin, an hour before the change
    assert [schedule.at(start + minute * MINUTE).policy for minute in range(0, 180, 10)] == [None] * 18


def test_the_repeated_hour_matches_twice() -> None:
    """When Berlin's clocks are put back, 02:00 to 02:59 comes twice, and both count."""
    rule = Rule("night", ("* 2 * * *",), "Europe/Berlin")
    start = at("2025-10-25T23:00")  # 01:00 in Berlin, two hours before the change
    answers = [holding([rule], start + minute * MINUTE) for minute in range(0, 240, 30)]
    assert answers == [None, None, "night", "night", "night", "night", None, None]
    assert Schedule([rule]).at(at("2025-10-26T00:59")).until > at("2025-10-26T01:00")


def test_one_matching_day_field_is_enough_if_both_are_given() -> None:
    """As in crontab(5): with both day fields restricted, the 13th holds, and so does any Friday."""
    rule = Rule("either", ("* * 13 * fri",))
    start = date(2025, 6, 1)
    days = [start + timedelta(days=n) for n in range(30)]
    held = [day.day for day in days if holding([rule], at(day.isoformat()))]
    assert held == [6, 13, 20, 27]
    assert holding([rule], at("2025-07-13T12:00")) == "either"


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("", "has 0"),
        ("* * * *", "has 4"),
        ("0 * * * * *", "has 6"),
        ("60 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("* * 0 * *", "bad day-of-month"),
        ("* * 30 2 *", "bad day-of-month"),
        ("* * * 13 *", "bad month"),
        ("* * * * 8", "bad day-of-week"),
        ("* * * * fri-mon", "bad day-of-week"),
        ("* * * * mon#1/2", "bad day-of-week"),
        ("@daily", "has 1"),
        ("x * * * *", "bad minute"),
    ],
)
def test_an_invalid_period_is_refused(expression: str, complaint: str) -> None:
    """The message shows a valid one and says what is wrong."""
    with pytest.raises(ValueError, match=r"cron expressions .*\* 8-15 \* \* mon-fri") as error:
        validate_period(expression)
    assert complaint in str(error.value)


@pytest.mark.parametrize("expression", ["* * * * *", "*/5 8-15 1,15 JAN-mar Mon-Fri", "0 0 L * *", "* * * * sun"])
def test_a_valid_period_is_accepted(expression: str) -> None:
    """Names may be in any case."""
    validate_period(expression)


@pytest.mark.parametrize("name", ["Mars/Olympus", "Europe", "../etc/passwd", "/etc/localtime", "UTC\0"])
def test_an_invalid_time_zone_is_refused(name: str) -> None:
    """Unknown names, folders and paths are all no zones."""
    with pytest.raises(ValueError, match="the name of a time zone such as UTC or Europe/Berlin"):
        validate_timezone(name)


@pytest.mark.parametrize("name", ["UTC", "", "Local", "Europe/Berlin"])
def test_a_valid_time_zone_is_accepted(name: str) -> None:
    """Besides IANA names, what Go takes: nothing for UTC, and the system's own."""
    validate_timezone(name)
    assert Schedule([Rule("always", ("*/2,1-59/2 * * * *",), name)]).at(0.0).policy
