"""Who is held, and what a decision does: pure."""

import re

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from job_steps import StepsInvalid, read_steps
from job_steps._breakpoint_files import read_breakpoints
from job_steps._breakpoints import (
    MOST,
    Decision,
    When,
    check_steps,
    of_variables,
    parse_breakpoint,
    parse_breakpoints,
    seconds_of,
    unmet,
)
from job_steps._holds import Answer, Ended, Holds

PATHS = st.sampled_from([("a",), ("b",), ("b", "a"), ("c",)])
POINTS = st.lists(st.sampled_from(["a", "b:after", "b/a:before", "*:failure", "x"]), max_size=4)


@frozen
class Step:
    """A step comes to a moment, unless the run is held."""

    path: tuple[str, ...]
    when: When


@frozen
class Decide:
    """Somebody decides."""

    number: int
    decision: Decision


@frozen
class Wait:
    """Time passes."""

    seconds: float


@frozen
class Add:
    """Somebody adds breakpoints."""

    points: list[str]


EVENTS = st.lists(
    st.one_of(
        st.builds(Step, PATHS, st.sampled_from(When)),
        st.builds(Decide, st.integers(-1, 4), st.sampled_from(Decision)),
        st.builds(Wait, st.floats(0, 40)),
        st.builds(Add, POINTS),
    ),
    max_size=40,
)


@given(points=POINTS, limit=st.floats(0.5, 100), events=EVENTS)
def test_the_first_decision_about_a_hold_counts_and_no_other(
    points: list[str], limit: float, events: list[Step | Decide | Wait | Add]
) -> None:
    """Whatever else is decided, however often and about what, and whatever time passes; time for it is bounded.

    A run is held exactly where a breakpoint is, as long as there is time; how a hold ended never changes.
    """
    holds, now, texts = Holds(points=parse_breakpoints(points), left=limit), 0.0, list(points)
    expected: dict[int, Ended] = {}
    until = 0.0
    for event in events:
        before = holds
        if isinstance(event, Wait):
            now += event.seconds
            holds = holds.passed(now)
        elif isinstance(event, Add):
            texts += event.points
            holds = holds.with_points(parse_breakpoints(event.points))
        elif isinstance(event, Step) and holds.held is None:
            is_wanted = any(parse_breakpoint(text).matches(event.path, event.when) for text in texts)
            holds = holds.reached(event.path, event.when, now)
            assert (holds.held is not None) == (is_wanted and before.left > 0)
            if holds.held:
                assert (holds.held.path, holds.held.when, holds.held.number) == (
                    event.path,
                    event.when,
                    len(expected) + 1,
                )
                until = holds.held.until
        elif isinstance(event, Decide):
            number, decision = event.number, event.decision
            is_held = holds.held is not None and holds.held.number == number
            holds, answer = holds.decided(number, decision, now)
            again, repeated = holds.decided(number, decision, now)
            assert again == holds  # a call that is repeated changes nothing
            if is_held:
                assert answer is Answer.TAKEN
                expected[number] = Ended.ABORTED if decision is Decision.ABORT else Ended.CONTINUED
                assert repeated is Answer.REPEATED
            else:
                assert holds == before
                known = expected.get(number)
                wanted = Answer.REPEATED if known and known.decision is decision else Answer.TOO_LATE
                assert answer is (Answer.UNKNOWN if known is None else wanted)
        if before.held and now >= until and not holds.held and before.held.number not in expected:
            expected[before.held.number] = Ended.TIMED_OUT
        assert not (holds.held and now >= holds.held.until)
        assert {number: holds.how(number) for number in expected} == expected
        assert len(holds.ended) == len(expected)
        assert holds.held_time(now) <= limit + 1e-6
    assert holds.how(0) is holds.how(len(expected) + 1) is None


def test_when_time_is_up_the_run_goes_on_and_is_not_held_again() -> None:
    """However many breakpoints there are: what they may take is one time for all."""
    holds = Holds(points=parse_breakpoints(["*"]), left=10.0).reached(("a",), When.BEFORE, 100.0)
    holds, _ = holds.decided(1, Decision.CONTINUE, 104.0)
    holds = holds.reached(("b",), When.BEFORE, 200.0)
    assert holds.held is not None
    assert holds.held.until == 206.0
    assert holds.passed(205.9).held is not None
    holds = holds.passed(206.0)
    assert (holds.ended, holds.held_time(300.0)) == ((Ended.CONTINUED, Ended.TIMED_OUT), 10.0)
    assert holds.reached(("c",), When.BEFORE, 300.0).held is None


STEPS = read_steps("[{name: build, script: x}, {name: check, script: x}]")
CALLS = read_steps("[{name: build, step: ./build}, {name: check, script: x}]")


@pytest.mark.parametrize("text", ["build", "check:after", "*", "b*:failure", "build/x"])
def test_breakpoints_that_can_be_met(text: str) -> None:
    """By name, by pattern, and at any step below one."""
    check_steps(parse_breakpoints([text]), STEPS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chek", "there is no step `chek`; did you mean `check`?"),
        ("biuld:after", "there is no step `biuld`; did you mean `build`?"),
        ("zzz", "there is no step `zzz`; the steps are `build`, `check`"),
        ("x*", "there is no step `x*`; the steps are `build`, `check`"),
    ],
)
def test_a_step_that_is_not_there_gets_the_nearest_name(text: str, message: str) -> None:
    """Where no function can have it."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_steps(parse_breakpoints([text]), STEPS)


def test_a_name_may_be_that_of_a_step_further_down() -> None:
    """A path has to begin at a step; what was never met is said at the end, with the nearest name."""
    points = parse_breakpoints(["lnit", "build/lint"])
    check_steps(points, CALLS)
    with pytest.raises(ValueError, match="there is no step `bild`; did you mean `build`"):
        check_steps(parse_breakpoints(["bild/lint"]), CALLS)
    assert unmet(points, [("build",), ("check",), ("build", "lint")]) == [
        "there is no step `lnit`; did you mean `lint`?"
    ]


def test_breakpoints_in_variables() -> None:
    """With commas between them; the time is for them alone."""
    assert of_variables({"JOB_STEPS_BREAKPOINTS": " build, check:after ,", "JOB_STEPS_BREAKPOINT_TIMEOUT": "10m"}) == (
        ("build", "check:after"),
        600.0,
    )
    assert of_variables({"JOB_STEPS_BREAKPOINT_TIMEOUT": "nonsense"}) == ((), None)


@pytest.mark.parametrize(("text", "seconds"), [("30", 30.0), ("1.5s", 1.5), ("10m", 600.0), (" 24h ", 86400.0)])
def test_times(text: str, seconds: float) -> None:
    """In seconds, minutes and hours."""
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "25h", "1d", "1e9", "ten", "99999999999999999999"])
def test_times_that_are_none(text: str) -> None:
    """Nor are those that are too long."""
    with pytest.raises(ValueError, match=r"expected a time such as 30s, 10m or 2h, at most 24 hours$"):
        seconds_of(text)


def test_there_are_not_too_many() -> None:
    """A variable may have any length."""
    with pytest.raises(ValueError, match=f"{MOST + 1} breakpoints; at most {MOST} can be in one run"):
        parse_breakpoints(map(str, range(MOST + 1)))
    with pytest.raises(ValueError, match="expected STEP"):
        parse_breakpoint("a" * 1001)


def test_files_of_breakpoints() -> None:
    """A list, or one with a time."""
    assert read_breakpoints("- build\n- check:after\n", source="f").breakpoints == ("build", "check:after")
    found = read_breakpoints("breakpoints: [build]\nbreakpoint_timeout: 10m\n", source="f")
    assert (found.breakpoints, found.timeout) == (("build",), 600.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f:1: found 0 documents; expected one, a list of breakpoints such as `- build:after`"),
        ("build", "f:1: expected a list of breakpoints, such as `- build:after`"),
        ("a:\n", "f:1: unknown key `a`; did you mean `breakpoints`?"),
        ("breakpoint: []", "f:1: unknown key `breakpoint`; did you mean `breakpoints`?"),
        ("\n- build: after\n", "f:2: expected a breakpoint, such as `build:after`, with no space after the colon"),
        ("- build:afetr", "f:1: breakpoint `build:afetr`; expected STEP, STEP:before, STEP:after or STEP:failure"),
        ("- 3", "f:1: expected a breakpoint"),
        ("breakpoint_timeout: 2d", "f:1: breakpoint_timeout 2d; expected a time such as 30s, 10m or 2h"),
        ("breakpoints: build", "f:1: expected a list of breakpoints"),
        ("[" * 100, "f:1: "),
    ],
)
def test_files_that_are_none(text: str, message: str) -> None:
    """One sentence, with the line."""
    with pytest.raises(StepsInvalid, match=f"^{re.escape(message)}") as error:
        read_breakpoints(text, source="f")
    assert "\n" not in str(error.value)
