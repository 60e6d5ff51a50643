"""Failed tests of real processes run again; those that pass are flaky, and pure tests are never repeated."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flaky import FLAKY_LIMIT

CONFTEST = """
import pytest

from tests import flaky


def pytest_addoption(parser):
    flaky.add_options(parser)


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: real")
    flaky.register(config)


def pytest_collection_modifyitems(config, items):
    repeated = flaky.repeated(config, items)
    items[:] = items if repeated is None else repeated
"""

TESTS = """
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = Path(__file__).parent / "runs"


def fails_once(name):
    again = RUNS / name
    if not again.exists():
        again.touch()
        raise OSError(f"{name} is not ready")


@pytest.fixture(scope="module")
def service():
    subprocess.run([sys.executable, "-c", ""], check=True)


@pytest.mark.parametrize("odd", ["[a::b", "ü \\n"])
def test_starts_a_process(odd, tmp_path):
    subprocess.run([sys.executable, "-c", ""], check=True)
    fails_once(f"process {ord(odd[0])}")


@pytest.mark.parametrize("user", range(2))
def test_uses_a_service(service, user):
    fails_once(f"service {user}")


@pytest.mark.slow
def test_is_marked():
    fails_once("marked")


def test_passes():
    with (RUNS / "passes").open("a") as log:
        log.write(".")
"""

TWO_WORKERS = ("-p", "xdist.plugin", "-n2")

ALWAYS_FLAKY = 5
"""The tests above that fail once."""

PURE = """

def test_is_pure():
    fails_once("pure")
"""

BROKEN = """

@pytest.mark.slow
def test_is_broken():
    raise ValueError("it never works")
"""

ONE_MORE = """

@pytest.mark.slow
def test_is_flaky_too():
    fails_once("one more")
"""


def run(place: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the tests with no plugins but those that are named: to import all of them takes longer."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(place)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def run_twice(place: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the tests, and then those that failed."""
    for name, content in {"pytest.ini": "[pytest]\n", "conftest.py": CONFTEST, "test_some.py": tests}.items():
        (place / name).write_text(content)
    (place / "runs").mkdir()
    failures = place / "state" / "failures.json"
    first = run(place, *options, f"--write-failures={failures}")
    assert first.returncode == pytest.ExitCode.TESTS_FAILED, first.stdout
    second = run(place, *options, f"--repeat-failures={failures}")
    assert (place / "runs" / "passes").read_text() == ".", "a test that passed ran again"
    return second


@pytest.mark.slow
def test_tests_that_pass_when_repeated_are_listed_with_their_first_failure(tmp_path: Path) -> None:
    """Each of them counts as using processes for another reason; up to five do not fail the run."""
    assert ALWAYS_FLAKY <= FLAKY_LIMIT
    done = run_twice(tmp_path, TESTS, *TWO_WORKERS)
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    lines = done.stdout.splitlines()
    flaky = {line: lines[number + 1] for number, line in enumerate(lines) if line.startswith("flaky: ")}
    assert len(flaky) == ALWAYS_FLAKY, done.stdout
    assert "OSError: marked is not ready" in flaky["flaky: test_some.py::test_is_marked"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tests", "complaint"),
    [
        (PURE, "failed, was not repeated: test_some.py::test_is_pure"),
        (BROKEN, "failed again: test_some.py::test_is_broken"),
        (ONE_MORE, f"{ALWAYS_FLAKY + 1} tests are flaky, more than {FLAKY_LIMIT}"),
    ],
    ids=["pure", "broken", "one more"],
)
def test_broken_tests_and_many_flaky_ones_fail_the_run(tmp_path: Path, tests: str, complaint: str) -> None:
    """A pure test would pass the second time, too, if it ran."""
    done = run_twice(tmp_path, TESTS + tests)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert complaint in done.stdout


def test_an_interrupted_run_leaves_nothing_to_repeat(tmp_path: Path) -> None:
    """A run that ends for another reason than failed tests fails as it is."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text("def test_fails():\n    assert False\n\nraise KeyboardInterrupt\n")
    failures = tmp_path / "failures.json"
    assert run(tmp_path, *TWO_WORKERS, f"--write-failures={failures}").returncode == pytest.ExitCode.INTERRUPTED
    assert not failures.exists()
