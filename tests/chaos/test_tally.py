"""The tally of a test run fails it where its stories, all together, leave something out."""

import json
from collections.abc import Iterable

import pytest

from tests.chaos.runner import ENOUGH
from tests.chaos.tally import STORY, Tally
from tests.chaos.troubles import KINDS
from tests.chaos.witness import REQUIRED


def report(faults: Iterable[str], met: Iterable[str], when: str = "call") -> pytest.TestReport:
    """Make that of one story, as its test leaves it."""
    story = json.dumps({"faults": dict.fromkeys(faults, 1), "met": dict.fromkeys(met, 1)})
    return pytest.TestReport(
        nodeid="story",
        location=("story", None, "story"),
        keywords={},
        outcome="passed",
        longrepr=None,
        when=when,  # type: ignore[arg-type]  # one of three words
        user_properties=[("another", 1), (STORY, story)],
    )


def tally_of(reports: Iterable[pytest.TestReport]) -> Tally:
    """Add them up."""
    tally = Tally()
    for each in reports:
        tally.pytest_runtest_logreport(each)
    return tally


def test_what_no_story_meets_is_named() -> None:
    """What one of many met is met; the report of a test's set-up counts for nothing."""
    kind, *kinds = KINDS
    transition, *transitions = REQUIRED
    last = report(kinds, transitions)
    other = report([kind], [transition], when="setup")
    tally = tally_of([*(report([], []) for _ in range(ENOUGH - 1)), other, last])
    assert tally.never_met() == [kind, transition]
    tally.pytest_runtest_logreport(report([kind], [transition]))
    assert tally.never_met() == []


def test_a_few_chosen_stories_need_not_meet_everything() -> None:
    """Somebody runs some of the tests."""
    assert tally_of(report([], []) for _ in range(ENOUGH - 1)).never_met() == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED),
        (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERRUPTED),
    ],
)
def test_a_run_that_left_something_out_fails(
    before: pytest.ExitCode, after: pytest.ExitCode, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where every test of it has passed; one that was interrupted stays so."""
    monkeypatch.setattr(request.session, "exitstatus", before)
    tally_of(report([], []) for _ in range(ENOUGH)).pytest_sessionfinish(request.session)
    assert request.session.exitstatus == after
