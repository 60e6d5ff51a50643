"""How often and when a job is tried again, as a function of how its tries ended."""

from itertools import accumulate
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import ConfigError
from taskscaler._jobsfile import read_jobs_file
from taskscaler.batch import JobState, Retries
from taskscaler.batch._retries import LONGEST_BACKOFF, as_retries, retries_from

counts = st.integers(0, 5)
schedules = st.builds(
    Retries,
    lost=counts | st.just("any"),
    failed=counts,
    backoff=st.floats(0, 10_000),
    on_exit=st.lists(st.integers(1, 255), max_size=3).map(tuple),
)
codes = st.none() | st.integers(0, 255)


def waits(retries: Retries, state: JobState, code: int | None, tries: int) -> list[float | None]:
    """The wait after each of so many tries that all end so."""
    return [retries.wait(state, code, earlier) for earlier in range(tries)]


@given(schedules, codes)
def test_each_kind_is_counted_apart(retries: Retries, code: int | None) -> None:
    """After so many retries of its kind, and no fewer, a job is over; one that succeeded or was cancelled always is."""
    losses = waits(retries, JobState.LOST, None, 20)
    failures = waits(retries, JobState.FAILED, code, 20)
    is_worth_it = not retries.on_exit or code in retries.on_exit
    assert sum(wait is not None for wait in losses) == (20 if retries.lost == "any" else retries.lost)
    assert sum(wait is not None for wait in failures) == (retries.failed if is_worth_it else 0)
    assert waits(retries, JobState.SUCCEEDED, 0, 2) == waits(retries, JobState.CANCELLED, None, 2) == [None, None]


@given(schedules)
def test_the_wait_doubles_up_to_a_ceiling(retries: Retries) -> None:
    """It begins with the backoff, and is never shorter than the one before, nor longer than the longest."""
    told = [wait for wait in waits(retries, JobState.LOST, None, 60) if wait is not None]
    assert told == sorted(told)
    assert told[:1] in ([], [retries.backoff])
    assert all(wait <= max(retries.backoff, LONGEST_BACKOFF) for wait in told)


def test_the_waits_are_those_that_the_documentation_names() -> None:
    """10 s, 20 s, 40 s and so on, then ten minutes."""
    told = waits(Retries(lost="any", backoff=10), JobState.LOST, None, 9)
    assert told == [*accumulate([10.0] + [2.0] * 5, lambda wait, factor: wait * factor), 600.0, 600.0, 600.0]


@given(schedules)
def test_what_is_written_down_is_read_back(retries: Retries) -> None:
    """As in an event log; a number stands for losses alone, and what a later release adds is passed over."""
    assert retries_from(retries.data()) == retries
    data = retries.data()
    if not isinstance(data, int):
        assert retries_from({**data, "mood": "good"}) == retries
    assert as_retries(3) == retries_from(3) == Retries(lost=3, failed=0)


def read(tmp_path: Path, retries: str) -> Retries:
    """The retries of a job in a file that says so."""
    path = tmp_path / "jobs.toml"
    path.write_text(
        dedent(f"""
            [autoscaler]
            plugin = "local"
            [[jobs]]
            name = "a"
            script = "true"
            retries = {retries}
        """)
    )
    return read_jobs_file(path).jobs[0].retries


def test_a_file_says_all_of_it_or_a_number(tmp_path: Path) -> None:
    """A number is that of retries after losses, as it always was."""
    told = '{failed = 2, lost = "any", backoff = "10s", on_exit = [75]}'
    assert read(tmp_path, told) == Retries(failed=2, lost="any", backoff=10.0, on_exit=(75,))
    assert read(tmp_path, "4") == Retries(lost=4)
    assert read(tmp_path, "{failed = 1}") == Retries(lost=2, failed=1)


@pytest.mark.parametrize(
    ("written", "path", "expected"),
    [
        ("-1", "jobs[0].retries", "at least 0"),
        ('"often"', "jobs[0].retries", "an integer or a table"),
        ("{lost = -1}", "jobs[0].retries.lost", 'at least 0, or "any"'),
        ('{lost = "many"}', "jobs[0].retries.lost", 'an integer or "any"'),
        ("{failed = -2}", "jobs[0].retries.failed", "at least 0"),
        ("{backoff = 10}", "jobs[0].retries.backoff", 'a duration such as "90s" or "1h30m"'),
        ("{on_exit = [0]}", "jobs[0].retries.on_exit", "exit codes of failures, from 1"),
        ("{lots = 2}", "jobs[0].retries.lots", "lost, failed, backoff, on_exit"),
    ],
)
def test_what_is_wrong_is_said_where_it_is(tmp_path: Path, written: str, path: str, expected: str) -> None:
    """Each mistake has the path of its key, and what may stand there."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, written)
    (problem,) = caught.value.problems
    assert problem.path.startswith(path)
    assert problem.expected == expected
