"""Programs that tests need: the Debian package of each, and the packages that a run lacked.

A test declares a program with ``@pytest.mark.needs("busybox")``, a helper or fixture with :func:`need`.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Generator
from shutil import which

import pytest

PACKAGES = {
    "awk": "mawk",
    "busybox": "busybox-static",
    "chromium": "chromium",
    "curl": "curl",
    "docker-registry": "docker-registry",
    "dockerd": "docker.io",
    "find": "findutils",
    "flock": "util-linux",
    "grep": "grep",
    "gzip": "gzip",
    "hostname": "hostname",
    "ip": "iproute2",
    "iptables": "iptables",
    "journalctl": "systemd",
    "ldd": "libc-bin",
    "mount": "mount",
    "openssl": "openssl",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "ps": "procps",
    "sed": "sed",
    "setpriv": "util-linux",
    "setsid": "util-linux",
    "ssh": "openssh-client",
    "ssh-add": "openssh-client",
    "ssh-agent": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "systemd-cat": "systemd",
    "tar": "tar",
    "tmux": "tmux",
    "umount": "mount",
    "unshare": "util-linux",
}
"""Debian's package of each program that a test may need."""

REQUIRED = "TESTS_REQUIRE_PROGRAMS"
"""With ``1`` in this variable, as in continuous integration, a test fails that lacks a program."""

IS_REQUIRED = os.environ.get(REQUIRED) == "1"

declared: set[str] = set()
"""The programs that the running test has declared; ``tests/undeclared.py`` compares."""

_recording: list[set[str]] = []
"""Takes in what fixtures declare that are being set up, each with those that it uses."""

_of_fixtures: dict[object, frozenset[str]] = {}
"""The programs that each fixture has declared: a fixture of a session declares them once, for all of its tests."""

_MISSING = re.compile(r"programs not found: (.+?); ")


def find_program(name: str) -> str | None:
    """Find a program on PATH, and on a login's PATH also among the system's own, as sshd and ip."""
    path = os.environ.get("PATH", "")
    return which(name, path=f"{path}:/usr/sbin:/sbin" if "/usr/bin" in path.split(":") else path)


def need(*programs: str) -> None:
    """Declare that the running test needs these programs; skip it without them, or fail it."""
    if unknown := [name for name in programs if name not in PACKAGES]:
        pytest.fail(f"no Debian package is known of {', '.join(unknown)}; add it to PACKAGES in {__file__}")
    for each in (declared, *_recording):
        each.update(programs)
    if missing := [name for name in programs if find_program(name) is None]:
        remedy = " ".join(sorted({PACKAGES[name] for name in missing}))
        message = f"programs not found: {', '.join(missing)}; apt-get install {remedy}"
        (pytest.fail if IS_REQUIRED else pytest.skip)(message)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Need the programs of the test's markers, and declare those of its fixtures."""
    declared.clear()
    need(*(name for marker in item.iter_markers("needs") for name in marker.args))
    if isinstance(item, pytest.Function):
        fixtures = [each for found in item._fixtureinfo.name2fixturedefs.values() for each in found]
        declared.update(*(_of_fixtures.get(each, ()) for each in fixtures))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    """Remember the programs that a fixture declares."""
    _recording.append(set())
    try:
        return (yield)
    finally:
        _of_fixtures[fixturedef] = frozenset(_recording.pop())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Declare the programs of all fixtures: a shared one may end after a test that does not use it."""
    declared.update(*_of_fixtures.values())


class MissingPackages:
    """A plugin of the process that has all reports: it names the packages for want of which tests were skipped."""

    def __init__(self) -> None:
        """Begin without any."""
        self._tests: Counter[str] = Counter()
        self._programs: defaultdict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a skipped test; its reason is all that a fixture of several tests raises again."""
        if report.skipped and isinstance(report.longrepr, tuple) and (found := _MISSING.search(report.longrepr[2])):
            programs = found[1].split(", ")
            self._tests.update({PACKAGES[name] for name in programs})
            for name in programs:
                self._programs[PACKAGES[name]].add(name)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write a line for each package, and one that installs them all."""
        for package, programs in sorted(self._programs.items()):
            names = ", ".join(sorted(programs))
            terminalreporter.write_line(f"{package}: {self._tests[package]} tests skipped without {names}", yellow=True)
        if self._programs:
            terminalreporter.write_line(f"apt-get install {' '.join(sorted(self._programs))}", yellow=True)
