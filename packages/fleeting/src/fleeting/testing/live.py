"""A plugin for pytest: ``--live`` runs the conformance suite against a real cloud, within bounds.

Load it in ``pyproject.toml``, and mark the tests that cost money::

    [tool.pytest]
    addopts = ["-p", "fleeting.testing.live"]

    class TestMyGroupLive(GroupConformance):
        pytestmark = [pytest.mark.anyio, pytest.mark.live]

        @pytest.fixture
        def make_harness(self, spending_guard: SpendingGuard) -> MakeHarness:
            @asynccontextmanager
            async def make() -> AsyncIterator[Harness]:
                group = Harness(make=lambda: MyGroup(config), deadline=900, settle=60, poll=5)
                async with spending_guard.watch(group) as harness:
                    yield harness

            return make

Nobody else may change the group meanwhile: whatever comes to it is removed, after each check and once more at the end,
be it an interrupt or a SIGTERM. What could not be removed, because that was interrupted too, is named.
"""

import signal
from contextlib import suppress

import anyio
import pytest

from fleeting.testing._spending import SpendingGuard

__all__ = ["SpendingGuard"]

_GUARD = pytest.StashKey[SpendingGuard]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what allows to spend money, and how much of it."""
    group = parser.getgroup("fleeting")
    group.addoption("--live", action="store_true", help="run the tests marked live, which make instances at a cloud")
    group.addoption(
        "--live-instances", type=int, default=3, metavar="N", help="let them have N instances at once (default: 3)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the guard that all tests share."""
    config.addinivalue_line("markers", "live: makes instances at a real cloud; runs with --live only")
    config.stash[_GUARD] = SpendingGuard(config.getoption("--live-instances"))
    if config.getoption("--live"):
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_: int, __: object) -> None:
    """End as on Ctrl-C, which clears up: systems that run tests end them with SIGTERM, and instances would stay."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what costs money unless it is asked for."""
    if not config.getoption("--live"):
        for item in items:
            if item.get_closest_marker("live"):
                item.add_marker(pytest.mark.skip(reason="makes instances at a real cloud; pass --live to allow that"))


@pytest.fixture
def spending_guard(pytestconfig: pytest.Config) -> SpendingGuard:
    """Give what a live test's harness is to be watched by."""
    return pytestconfig.stash[_GUARD]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove what an interrupted test has left; runs whatever ended the session."""
    guard = session.config.stash[_GUARD]
    with suppress(KeyboardInterrupt):  # so that what is left is named
        anyio.run(guard.sweep)
    if guard.left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what could not be removed."""
    for identity, instances in config.stash[_GUARD].left.items():
        line = f"still there in {identity}: {', '.join(instances)}; delete them by hand"
        terminalreporter.write_line(line, red=True)
