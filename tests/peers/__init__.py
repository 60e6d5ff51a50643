"""Programs that speak to ours and are none of ours: where they are, and what a run says of those it lacks."""

import os
from collections import Counter
from pathlib import Path

import pytest
from attrs import frozen

from tests.needs import IS_REQUIRED

HERE = Path(__file__).parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", HERE / "target"))
"""Where cargo puts what it builds."""


@frozen
class Peer:
    """Programs that a marker stands for."""

    marker: str
    """What tests that need them are marked with."""

    name: str
    """What a person calls them."""

    remedy: str
    """How to have them."""

    programs: tuple[Path | None, ...]
    """Where they are."""

    is_insisted_on: bool

    @property
    def is_there(self) -> bool:
        """Whether all of them can be run."""
        return all(each is not None and os.access(each, os.X_OK) and each.is_file() for each in self.programs)


def _named(variable: str) -> Path | None:
    given = os.environ.get(variable)
    return Path(given) if given else None


INDEPENDENT = Peer(
    marker="peers",
    name="independent peers (a GitLab and a runner, in Rust)",
    remedy="cargo build --manifest-path tests/peers/Cargo.toml",
    programs=(TARGET / "debug" / "mock", TARGET / "debug" / "client"),
    is_insisted_on=IS_REQUIRED,
)
REAL_RUNNER = Peer(
    marker="real_runner",
    name="the real gitlab-runner",
    remedy="set GITLAB_RUNNER to its path",
    programs=(_named("GITLAB_RUNNER"),),
    is_insisted_on=False,
)
STEP_RUNNER = Peer(
    marker="step_runner",
    name="GitLab's step runner",
    remedy="set STEP_RUNNER to its path",
    programs=(_named("STEP_RUNNER"),),
    is_insisted_on=False,
)
PEERS = (INDEPENDENT, REAL_RUNNER, STEP_RUNNER)


class Absent:
    """A plugin that skips tests whose peer is not there, and says in the end how many ran, or why none did."""

    def __init__(self) -> None:
        """Count nothing yet."""
        self._ran: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test."""
        for peer in PEERS:
            if peer.marker in report.keywords:
                self._ran[peer.marker] += report.when == "call"
                self._skipped[peer.marker] += report.when == "setup" and report.skipped

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say it; of a run without such tests, nothing."""
        for peer in PEERS:
            ran, skipped = self._ran[peer.marker], self._skipped[peer.marker]
            if ran:
                terminalreporter.write_line(f"{peer.name}: {ran} tests ran")
            if skipped:
                terminalreporter.write_line(f"{peer.name}: {skipped} tests did not run; {peer.remedy}", yellow=True)


def look_for_peers(item: pytest.Item) -> None:
    """Skip a test whose peer is not there, or fail it."""
    for peer in PEERS:
        if item.get_closest_marker(peer.marker) and not peer.is_there:
            (pytest.fail if peer.is_insisted_on else pytest.skip)(f"{peer.name} not found; {peer.remedy}")
