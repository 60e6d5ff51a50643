"""The page of the package: its program runs as it is printed, and so do its tests of a function."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from job_steps.cli import main

PAGE = (Path(__file__).parents[2] / "packages" / "job-steps" / "README.md").read_text()


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    """In an empty directory, with what it says it prints."""
    (program,) = re.findall(r"(?ms)^```python\n(.*?)^```", PAGE)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-3:] == ["all success None", "measure success 0", "report success 0"]


def test_the_commands_of_the_page_do_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the function that it shows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "greet").mkdir()
    (function,) = re.findall(r"(?ms)^```yaml\n(.*?)^```", PAGE)
    (tmp_path / "greet" / "func.yml").write_text(function)
    (tests,) = re.findall(r"(?ms)^  ```yaml\n(.*?)^  ```", PAGE)
    (tmp_path / "greet" / "func.test.yml").write_text(tests)
    command, *printed = re.findall(r"(?ms)^```\n\$ (.*?)^```", PAGE)[0].splitlines()
    done = CliRunner().invoke(main, command.split()[1:])
    assert (done.exit_code, done.stdout.splitlines()) == (0, printed)
    assert CliRunner().invoke(main, ["test", "greet"]).exit_code == 0
