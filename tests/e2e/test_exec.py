"""The guide's script as its reader runs it: a cloud of twenty lines, real jobs, and nothing left behind."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "your-script-as-a-cloud.md"
BIN = Path(sys.executable).parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@frozen
class Reader:
    """Someone who has saved what the guide prints, and changed nothing but where the cloud is."""

    directory: Path

    @property
    def cloud(self) -> Path:
        """Where the script makes its instances."""
        return self.directory / "cloud"

    def save(self, name: str, language: str) -> Path:
        """Save the guide's first block in that language."""
        block = re.search(rf"^```{language}\n(.*?)^```", GUIDE.read_text(), flags=re.MULTILINE | re.DOTALL)
        assert block is not None
        path = self.directory / name
        path.write_text(re.sub(r'CLOUD = ".*"', f'CLOUD = "{self.cloud}"', block[1]))
        return path

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run the command."""
        env = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "XDG_STATE_HOME": f"{self.directory}/state",
        }
        command = [str(BIN / "taskscaler"), *arguments]
        return subprocess.run(command, cwd=self.directory, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """Follow the guide; in the end nothing may be left."""
    reader = Reader(tmp_path)
    reader.save("provision", "sh").chmod(0o755)
    reader.save("jobs.toml", "toml")
    yield reader
    left = [path.parent.name for path in reader.cloud.glob("*/agent.pid")]
    for path in reader.cloud.glob("*/agent.pid"):
        os.kill(int(path.read_text()), 9)
    assert left == []


def test_the_script_has_twenty_lines() -> None:
    """At most, as is promised; blank ones not counted."""
    script = re.search(r"^```sh\n(.*?)^```", GUIDE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert script is not None
    assert len([line for line in script[1].splitlines() if line]) <= 20


def test_a_batch_runs_on_the_script_as_printed(reader: Reader) -> None:
    """Every job on an instance that the script has made, reached over its agent."""
    checked = reader.run("check", "jobs.toml")
    assert checked.returncode == 0, checked.stderr
    done = reader.run("run", "jobs.toml", "--output", "results")
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = json.loads((reader.directory / "results" / "results.json").read_text())["jobs"]
    assert [job["state"] for job in jobs] == ["succeeded"] * 4
    instances = {attempt["instance"] for job in jobs for attempt in job["attempts"]}
    assert all(re.fullmatch("ci-[0-9a-f]{12}-[0-9]+", instance) for instance in instances)


def test_a_mistake_in_the_script_is_told_in_one_line(reader: Reader) -> None:
    """By the command, with what to do."""
    script = reader.directory / "provision"
    script.write_text(script.read_text().replace("echo ']}'", "echo"))
    done = reader.run("run", "jobs.toml", "--output", "results")
    assert done.returncode == 1
    problem = r"it is no JSON \(Expecting value: line 2 column 1 \(char 16\)\)"
    line = rf"error: provision list printed what cannot be used: {problem}; correct the program \[FL300\]\n"
    assert re.fullmatch(line, done.stderr)
