"""``fleeting new-plugin`` writes a package that passes everything from the start."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fleeting.cli import main

NAMES = [
    ("acme", "fleeting_acme"),
    ("the-cloud-with-the-longest-name-of-all-4", "fleeting_the_cloud_with_the_longest_name_of_all_4"),
]
"""Of plugins, and of their modules."""


def generate(directory: Path, name: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["new-plugin", name, "--directory", str(directory)])


def run(package: Path, *command: str) -> str:
    """Run a tool in the package, as its author does; returns what it says."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=package, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("what_mypy_knows")
@pytest.mark.parametrize(("name", "module"), NAMES)
def test_what_is_written_passes_as_it_is(tmp_path: Path, name: str, module: str) -> None:
    """Lint, format, types and the conformance suite; no check fails, and what is not checked is told."""
    assert generate(tmp_path, name).exit_code == 0
    package = tmp_path / f"fleeting-{name}"
    run(package, "ruff", "check")
    run(package, "ruff", "format", "--check")
    run(package, "mypy")
    said = run(package, "pytest", "-p", "no:cacheprovider")
    assert "not checked: give the harness troubles[Trouble.LOST_ANSWER]" in said
    assert (package / "src" / module / "py.typed").is_file()


def test_the_package_registers_its_plugin(tmp_path: Path) -> None:
    """By the one line that fleeting looks for."""
    generate(tmp_path, "fleeting-acme")
    project = tomllib.loads((tmp_path / "fleeting-acme" / "pyproject.toml").read_text())["project"]
    assert project["name"] == "fleeting-acme"
    assert project["entry-points"] == {"fleeting.groups": {"acme": "fleeting_acme"}}


@pytest.mark.parametrize("name", ["Acme", "my_cloud", "9lives", "a--b", "../up", "fleeting-", "", "a" * 41])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    """With what is expected, and before anything is written."""
    result = generate(tmp_path, name)
    assert result.exit_code != 0
    assert "expected lower-case words" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """What exists stays as it is."""
    (tmp_path / "fleeting-acme").mkdir()
    result = generate(tmp_path, "acme")
    assert result.exit_code != 0
    assert "exists already; choose another name" in result.stderr
    assert list((tmp_path / "fleeting-acme").iterdir()) == []
