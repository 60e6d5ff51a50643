"""What all stories of a test run met together: a trouble or a transition that none of them meets is not tested."""

import json
from collections import Counter

import pytest

STORY = "story"
"""The property of a test's report that says what a story met, as JSON; pytest-xdist carries it to where all come."""


class Tally:
    """A plugin that adds up the reports and fails the run in which something was never met.

    It asks nothing of a run of fewer than ``ENOUGH`` stories: somebody has chosen some of the tests.
    """

    def __init__(self) -> None:
        """Of nothing yet."""
        self._stories = 0
        self._faults: Counter[str] = Counter()
        self._met: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what a story met."""
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == STORY and isinstance(value, str):
                story = json.loads(value)
                self._stories += 1
                self._faults += Counter(story["faults"])
                self._met += Counter(story["met"])

    def never_met(self) -> list[str]:
        """What the stories should have met and did not."""
        from tests.chaos.runner import ENOUGH, missing  # the cores, which a run of other tests does not need
        from tests.chaos.troubles import KINDS
        from tests.chaos.witness import REQUIRED

        if self._stories < ENOUGH:
            return []
        return [*missing(KINDS, self._faults), *missing(REQUIRED, self._met)]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run."""
        if self.never_met() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print why."""
        for name in self.never_met():
            terminalreporter.write_line(f"none of {self._stories} stories met: {name}", red=True)
