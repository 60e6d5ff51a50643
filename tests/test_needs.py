"""Programs that tests need: a missing one skips or fails the test, and an undeclared one fails it by name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import REQUIRED

ROOT = Path(__file__).parents[1]

CONFTEST = """
from tests import needs, undeclared

def pytest_configure(config):
    for plugin in (needs, undeclared, needs.MissingPackages()):
        config.pluginmanager.register(plugin)
    config.addinivalue_line("markers", "needs(*programs): as in the workspace")
"""

DECLARED = """
import pytest
from tests.needs import need

@pytest.fixture(scope="module")
def server():
    need("sshd")

@pytest.mark.needs("busybox", "sed")
def test_marked():
    assert False

def test_first(server):
    assert False

def test_second(server):
    assert False
"""

STARTING = """
import contextlib, os, subprocess
import pytest

@pytest.fixture
def late():
    yield
    subprocess.run(["ps"])

def test_popen():
    with contextlib.suppress(Exception):  # as a product that survives all errors
        subprocess.run(["ps"])

def test_spawn():
    os.waitpid(os.posix_spawn("/bin/ps", ["ps"], os.environ), 0)

def test_teardown(late):
    pass

@pytest.mark.needs("ps")
def test_declared():
    subprocess.run(["ps"], check=True)

def test_free(tmp_path):
    (tmp_path / "ps").symlink_to("/bin/true")
    (tmp_path / "own").write_text("#!/bin/sh\\n")
    (tmp_path / "own").chmod(0o755)
    for command in (["sh", "-c", "true"], ["cat", "/dev/null"], ["git", "--version"], [tmp_path / "own"]):
        subprocess.run(command, check=True)
    subprocess.run(["ps"], env={"PATH": str(tmp_path)}, check=True)
    with pytest.raises(FileNotFoundError):
        subprocess.run(["no-such-program"])
"""

SHARED = """
import subprocess
import pytest
from tests.needs import need

@pytest.fixture(scope="session")
def processes():
    need("ps")
    yield lambda: subprocess.run(["ps"], check=True)
    subprocess.run(["ps"], check=True)

def test_first(processes):
    processes()

def test_second(processes):
    processes()

@pytest.fixture
def sedding():
    subprocess.run(["sed", "q"], stdin=subprocess.DEVNULL, check=True)

@pytest.mark.needs("sed")
def test_marked(sedding):
    pass

def test_last():
    pass
"""


def played(tmp_path: Path, tests: str, *options: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run these tests in a directory of their own."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", *options]
    around = {**os.environ, "PYTHONPATH": str(ROOT), REQUIRED: "", **env}
    return subprocess.run(
        [*command, "test_some.py"], cwd=tmp_path, env=around, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("options", [(), ("--numprocesses=1",)], ids=["alone", "xdist"])
def test_missing_programs_skip_tests_and_the_summary_names_packages(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Each package with the number of its tests, and one command that installs all."""
    done = played(tmp_path, DECLARED, *options, PATH=str(tmp_path))
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert done.stdout.splitlines()[-5:-1] == [
        "busybox-static: 1 tests skipped without busybox",
        "openssh-server: 2 tests skipped without sshd",
        "sed: 1 tests skipped without sed",
        "apt-get install busybox-static openssh-server sed",
    ]


def test_required_programs_fail_tests(tmp_path: Path) -> None:
    """In continuous integration."""
    done = played(tmp_path, DECLARED, PATH=str(tmp_path), **{REQUIRED: "1"})
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "programs not found: busybox, sed; apt-get install busybox-static sed" in done.stdout
    assert "3 errors" in done.stdout.splitlines()[-1]


@pytest.mark.needs("ps")
def test_an_undeclared_program_fails_its_test(tmp_path: Path) -> None:
    """Also if the test has caught all errors, or a fixture has started it; declared and free programs do not."""
    done = played(tmp_path, STARTING, "-rA")
    lines = {line.partition(" - ")[0] for line in done.stdout.splitlines()}
    assert {
        "FAILED test_some.py::test_popen",
        "FAILED test_some.py::test_spawn",
        "ERROR test_some.py::test_teardown",
        "PASSED test_some.py::test_declared",
        "PASSED test_some.py::test_free",
    } <= lines, done.stdout
    assert (
        'undeclared programs started by test_some.py::test_popen: "ps"; mark the test with needs("ps")' in done.stdout
    )


@pytest.mark.needs("ps", "sed")
def test_a_shared_fixture_declares_its_programs_for_each_test(tmp_path: Path) -> None:
    """It uses and ends them in tests that declare nothing of their own; others may use what their test declares."""
    done = played(tmp_path, SHARED)
    assert done.stdout.splitlines()[-1].startswith("4 passed"), done.stdout
