"""The guide's script as its reader runs it: a cloud of twenty lines, real jobs, and nothing left behind."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "your-script-as-a-cloud.md"
BIN = Path(sys.executable).parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


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

    def wrap(self, text: str, settings: str = "") -> None:
        """Put shell text before the script, and settings at the top of the fleet's."""
        script, jobs = self.directory / "provision", self.directory / "jobs.toml"
        script.rename(self.directory / "real")
        script.write_text(f'#!/bin/sh\n{text}\nexec ./real "$@"\n')
        script.chmod(0o755)
        jobs.write_text(jobs.read_text().replace("max_instances = 2\n", f"max_instances = 2\n{settings}\n"))

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run the command to its end."""
        with self.start(*arguments) as process:
            try:
                out, err = process.communicate()
            finally:
                process.kill()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start the command."""
        env = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "XDG_STATE_HOME": f"{self.directory}/state",
        }
        command = [str(BIN / "taskscaler"), *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.directory, env=env, stdout=pipe, stderr=pipe, text=True)

    def jobs(self, output: str) -> list[dict[str, Any]]:
        """The results of a batch."""
        jobs: list[dict[str, Any]] = json.loads((self.directory / output / "results.json").read_text())["jobs"]
        return jobs

    def states(self, output: str) -> list[str]:
        """What became of its jobs."""
        return [job["state"] for job in self.jobs(output)]

    def used(self, output: str) -> set[str]:
        """The instances that its jobs ran on."""
        return {attempt["instance"] for job in self.jobs(output) for attempt in job["attempts"]}


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
    assert reader.states("results") == ["succeeded"] * 4
    assert all(re.fullmatch("ci-[0-9a-f]{12}-[0-9]+", instance) for instance in reader.used("results"))


def test_a_mistake_in_the_script_is_told_in_one_line(reader: Reader) -> None:
    """By the command, with what to do."""
    script = reader.directory / "provision"
    script.write_text(script.read_text().replace("echo ']}'", "echo"))
    done = reader.run("run", "jobs.toml", "--output", "results")
    assert done.returncode == 1
    problem = r"it is not JSON \(Expecting value: line 2 column 1 \(char 16\)\)"
    line = rf"error: provision list printed invalid output: {problem}; correct the program \[FL300\]\n"
    assert re.fullmatch(line, done.stderr)


QUICK = """
update_interval = "200ms"
update_interval_when_expecting = "50ms"
backoff_initial = "50ms"
backoff_cap = "200ms"
deletion_retry_interval = "200ms"
shutdown_deletion_interval = "200ms"
shutdown_deletion_retries = 20
max_use_count = 1
"""

FLAKY = """
mkdir -p calls; : >"calls/$$-$1"; number=$(ls calls | wc -l)
case $1$((number % 5)) in
create1) exit 69 ;;
create3) ./real "$@"; echo it broke half-way >&2; exit 1 ;;
list2) echo '{"instances": ['; exit 0 ;;
destroy4) exit 75 ;;
destroy0) ./real "$@"; exit 1 ;;
esac
"""
"""Two of five creates and destroys fail, half of them after they have done it; a list in five is cut off."""


SLOW = """
if [ "$1" = create ] && [ ! -e go ]; then
    ./real "$@"
    touch made
    while [ ! -e go ]; do sleep 0.05; done
    exit 0
fi
"""
"""The first instances are made at once, but that takes until somebody says so."""


def test_a_cloud_of_many_failures_costs_no_job_and_leaves_nothing(reader: Reader) -> None:
    """What fails half-way is cleared away, what cannot be seen is not taken for gone."""
    reader.wrap(FLAKY, QUICK)
    done = reader.run("run", "jobs.toml", "--output", "results")
    assert done.returncode == 0, done.stdout + done.stderr
    assert reader.states("results") == ["succeeded"] * 4


def test_what_a_killed_manager_had_begun_is_cleared_away_by_the_next(reader: Reader) -> None:
    """It was killed while an instance was being made, which nobody has seen to its end since."""
    reader.wrap(SLOW, QUICK)
    with reader.start("run", "jobs.toml", "--output", "first") as process:
        while not (reader.directory / "made").exists():
            assert process.poll() is None, process.communicate()
        process.kill()
    begun = {path.name for path in reader.cloud.iterdir()}
    assert begun
    (reader.directory / "go").touch()
    done = reader.run("run", "jobs.toml", "--output", "second")
    assert done.returncode == 0, done.stdout + done.stderr
    assert reader.states("second") == ["succeeded"] * 4
    assert not begun & reader.used("second")
