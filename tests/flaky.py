"""Failed tests that use real processes run a second time, in a run of their own, and are flaky if they pass then.

``--write-failures FILE`` records the failures of a run. ``--repeat-failures FILE`` runs those again that used real
processes, and lists the flaky ones. Pure tests are never repeated: the same code on the same input fails again. The
noxfile makes both calls. pytest-rerunfailures would repeat a test at once, beside whatever made the machine slow.
"""

import json
import sys
from collections.abc import Generator, Sequence
from functools import cached_property
from pathlib import Path

import pytest
from attrs import Factory, asdict, define, frozen

FLAKY_LIMIT = 5
"""More flaky tests than these fail the run: something is wrong with the suite, or with the product."""

REPEAT_LIMIT = 50
"""More failures than these are not repeated: something is broken, and to see it again would take minutes."""

STARTS = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty")
"""Audit events of a process that starts."""


_BEFORE = pytest.StashKey[int]()
"""The number of processes that were started before the test."""

_REPEATED = pytest.StashKey[set[str]]()
"""The tests to repeat."""


@frozen
class Failure:
    """A failed test."""

    nodeid: str
    uses_processes: bool
    first_error: str
    """The error's last line, with its place."""


@define(eq=False)
class Processes:
    """Finds the tests that use real processes: marked as such, started by them, or by a fixture that they use."""

    _started: int = 0
    _fixtures: set[int] = Factory(set)
    """Identities of fixture definitions that started a process."""

    def pytest_sessionstart(self) -> None:
        """Count processes; an installed audit hook stays for good."""
        sys.addaudithook(self._count)

    def _count(self, event: str, _args: object) -> None:
        self._started += event in STARTS

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: "pytest.FixtureDef[object]") -> Generator[None, object, object]:
        """Remember a fixture that starts a process: tests that come later share it."""
        before = self._started
        try:
            return (yield)
        finally:
            if self._started > before:
                self._fixtures.add(id(fixturedef))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Remember how many processes there were before the test."""
        item.stash[_BEFORE] = self._started
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the finding to a failure; pytest-xdist passes it on to the controller."""
        report = yield
        if report.failed:
            report.uses_processes = self._uses_processes(item)  # type: ignore[attr-defined]  # ours, passed on by xdist
        return report

    def _uses_processes(self, item: pytest.Item) -> bool:
        marked = any(item.get_closest_marker(marker) for marker in ("slow", "needs"))
        info = getattr(item, "_fixtureinfo", None)
        fixtures = {id(each) for definitions in info.name2fixturedefs.values() for each in definitions} if info else {}
        return marked or self._started > item.stash[_BEFORE] or bool(self._fixtures.intersection(fixtures))


@define(eq=False)
class Recorder:
    """Writes the failures of a run into a file, unless the run ended for another reason than failed tests."""

    path: Path
    _failures: dict[str, Failure] = Factory(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the first failure of a test."""
        if report.failed and report.nodeid not in self._failures:
            uses_processes = getattr(report, "uses_processes", False)  # a worker that crashed has not said so
            self._failures[report.nodeid] = Failure(report.nodeid, uses_processes, _error_of(report))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the file."""
        if exitstatus == pytest.ExitCode.TESTS_FAILED and self._failures:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps([asdict(each) for each in self._failures.values()]))


def _error_of(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return (report.longreprtext.strip().splitlines() or ["no error was reported"])[-1]
    return f"{crash.path}:{crash.lineno}: {crash.message.partition(chr(10))[0]}"


@define(eq=False)
class Repeater:
    """Runs recorded failures again, and tells flaky tests from broken ones."""

    path: Path
    _passed: set[str] = Factory(set)
    _failed: set[str] = Factory(set)

    @cached_property
    def failures(self) -> Sequence[Failure]:
        """All recorded failures."""
        return [Failure(**each) for each in json.loads(self.path.read_text())]

    @property
    def repeatable(self) -> Sequence[Failure]:
        """Those that are worth a second run."""
        repeatable = [each for each in self.failures if each.uses_processes]
        return repeatable if len(repeatable) <= REPEAT_LIMIT else []

    @property
    def flaky(self) -> Sequence[Failure]:
        """Those that passed in the second run."""
        return [each for each in self.repeatable if each.nodeid in self._passed - self._failed]

    @property
    def broken(self) -> Sequence[Failure]:
        """All others."""
        return [each for each in self.failures if each not in self.flaky]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a repeated test ended."""
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run if a test is broken, or too many are flaky."""
        if (self.broken or len(self.flaky) > FLAKY_LIMIT) and session.exitstatus in (0, 5):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the tests that failed in the first run."""
        say = terminalreporter.write_line
        for each in self.broken:
            how = "failed again" if each.nodeid in self._failed else "failed, was not repeated"
            say(f"{how}: {each.nodeid}\n  first failure: {each.first_error}", red=True)
        for each in self.flaky:
            say(f"flaky: {each.nodeid}\n  first failure: {each.first_error}", yellow=True)
        if len(self.flaky) > FLAKY_LIMIT:
            say(f"{len(self.flaky)} tests are flaky, more than {FLAKY_LIMIT}; this fails the run", red=True)


def add_options(parser: pytest.Parser) -> None:
    """Add the options of both runs."""
    parser.addoption("--write-failures", metavar="FILE", help="write the failed tests into FILE")
    parser.addoption(
        "--repeat-failures",
        metavar="FILE",
        help="run the tests in FILE again that used real processes, and nothing else; those that pass are flaky",
    )


def register(config: pytest.Config) -> None:
    """Register the parts that the options ask for."""
    config.pluginmanager.register(Processes())
    is_controller = not hasattr(config, "workerinput")
    if (written := config.getoption("--write-failures")) and is_controller:
        config.pluginmanager.register(Recorder(Path(written)))
    if source := config.getoption("--repeat-failures"):
        repeater = Repeater(Path(source))
        config.stash[_REPEATED] = nodeids = {each.nodeid for each in repeater.repeatable}
        config.args = sorted({each.partition("::")[0] for each in nodeids})
        if is_controller:
            config.pluginmanager.register(repeater)


def repeated(config: pytest.Config, items: Sequence[pytest.Item]) -> list[pytest.Item] | None:
    """Return the tests to repeat, or nothing if all may run."""
    if _REPEATED not in config.stash:
        return None
    return [item for item in items if item.nodeid in config.stash[_REPEATED]]
