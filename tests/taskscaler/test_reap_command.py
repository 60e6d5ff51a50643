"""`taskscaler reap` and `taskscaler-gitlab reap`, with a script as the cloud and processes as instances."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from taskscaler.cli import main
from taskscaler_gitlab.cli import main as gitlab_main
from tests.fleeting_exec.clouds import Cloud

HOUR = 3600


class Fleet:
    """A group, and the files that name it."""

    def __init__(self, directory: Path, *, owner_mark: bool = True) -> None:
        """Make it, empty and unmarked."""
        self.cloud = Cloud.of_processes(directory)
        settings = f"""command = ["{self.cloud.program}"]
state_dir = "{directory}/state"
owner_mark = {str(owner_mark).lower()}
env = {{ CLOUD = "{self.cloud.instances}" }}
"""
        self.file = directory / "fleet.toml"
        self.file.write_text(f'[autoscaler]\nplugin = "exec"\n[autoscaler.plugin_config]\n{settings}')
        self.gitlab = directory / "config.toml"
        runner = '[[runners]]\nname = "fleet"\nurl = "https://gitlab.test"\ntoken = "glrt-x"\nexecutor = "instance"\n'
        tables = f'[runners.autoscaler]\nplugin = "exec"\n[runners.autoscaler.plugin_config]\n{settings}'
        self.gitlab.write_text(runner + tables)

    def script(self, *arguments: str, owner: str = "dead-host-1a2b3c4d") -> None:
        """Do what a manager had the script do."""
        environment = {**os.environ, "CLOUD": str(self.cloud.instances), "FLEETING_OWNER": owner}
        subprocess.run([str(self.cloud.program), *arguments], env=environment, check=True)

    def mark(self, seconds: float, owner: str = "dead-host-1a2b3c4d") -> None:
        """Let a mark expire so many seconds from now."""
        self.script("mark", str(round(datetime.now(UTC).timestamp() + seconds)), owner=owner)

    @property
    def marks(self) -> dict[str, int]:
        """Whose are there, and until when."""
        found = self.cloud.instances.glob("mark-*")
        return {path.name.removeprefix("mark-"): int(path.read_text()) for path in found}


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """Three instances of a manager that is gone, away from the state of whoever runs the tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    fleet = Fleet(tmp_path)
    for number in range(3):
        fleet.script("create", f"default-0123456789ab-{number}")
    yield fleet
    fleet.cloud.clear_away()


def reap(*arguments: str | Path) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, ["reap", *map(str, arguments)], prog_name="taskscaler")


def gitlab_reap(*arguments: str | Path) -> Result:
    """Run the command of the runner's in this process."""
    return CliRunner().invoke(gitlab_main, ["reap", *map(str, arguments)], prog_name="taskscaler-gitlab")


def of_json(result: Result) -> dict[str, Any]:
    """What it printed for programs, of its only group."""
    assert result.stderr == "", result.stderr
    (group,) = json.loads(result.stdout)["groups"]
    found: dict[str, Any] = group
    return found


@pytest.mark.parametrize("run", [reap, gitlab_reap])
def test_it_shows_first_and_removes_when_asked_to(run: Any, fleet: Fleet) -> None:  # noqa: ANN401  (one of two)
    """Nothing is changed without --remove; with it, the dead manager's instances go, as many as may at once."""
    file = fleet.file if run is reap else fleet.gitlab
    fleet.mark(-3 * HOUR)
    shown = run(file)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "marked by dead-host-1a2b3c4d, expired 20" in shown.stdout
    assert shown.stdout.endswith("would remove 3 of 3 instances; nothing was changed; --remove removes them\n")
    assert len(fleet.cloud.pids()) == 3
    assert list(fleet.marks) == ["dead-host-1a2b3c4d"]
    removed = run(file, "--remove", "--at-most", "2")
    assert (removed.exit_code, removed.stderr) == (0, "")
    assert removed.stdout.endswith("removed 2 of 3 instances\n")
    assert "more than 2 are not removed at once; run this again" in removed.stdout
    assert len(fleet.cloud.pids()) == 1
    (mark,) = fleet.marks
    assert re.fullmatch("reap-after-dead-host-1a2b3c4d-by-[0-9a-f]{8}", mark)
    rest = of_json(run(file, "--remove", "--json"))
    assert [each["outcome"] for each in rest["instances"]] == ["removed"]
    assert not fleet.cloud.pids()


def test_a_living_manager_keeps_its_instances(fleet: Fleet) -> None:
    """And one that has just died; the answer says whose they are."""
    for seconds, why in ((120, "manages the group: its mark expires"), (-90, "expired only")):
        fleet.mark(seconds)
        group = of_json(reap(fleet.file, "--remove", "--json"))
        assert [(each["remove"], each["outcome"]) for each in group["instances"]] == [(False, None)] * 3
        assert all(why in each["why"] for each in group["instances"])
        assert [mark["owner"] for mark in group["marks"]] == ["dead-host-1a2b3c4d"]
    assert len(fleet.cloud.pids()) == 3
    assert of_json(reap(fleet.file, "--expired-for", "1m", "--json"))["instances"][0]["remove"] is True


def test_what_cannot_be_removed_is_a_failure(fleet: Fleet) -> None:
    """Named, with the reason; the others go."""
    fleet.mark(-3 * HOUR)
    script = fleet.cloud.program.read_text()
    protect = '[ "${2%-1}" = "$2" ] || { echo "it is protected" >&2; exit 77; }'
    refusing = script.replace("destroy)", f"destroy)\n    {protect}")
    fleet.cloud.program.write_text(refusing)
    result = reap(fleet.file, "--remove")
    assert result.exit_code == 1
    assert "default-0123456789ab-1 was not removed" in result.stderr
    assert "removed 2 of 3 instances" in result.stdout
    fleet.cloud.program.write_text(script)
    assert reap(fleet.file, "--remove").exit_code == 0


def test_a_group_without_marks_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If that is all there is, it is a failure that says why, and so is a cloud that does not answer."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    result = reap(Fleet(tmp_path, owner_mark=False).file, "--remove")
    assert result.exit_code == 1
    assert "it carries no marks, so nobody knows whether its manager lives" in result.stderr
    assert "[FL" in result.stderr
    broken = Fleet(tmp_path / "broken")
    broken.cloud.program.write_text("#!/bin/sh\n[ $1 = list ] || exit 1\necho '{\"instances\": []}'\n")
    result = reap(broken.file)
    assert result.exit_code == 1
    assert "marks exited with 1" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--expired-for", "10s"], "--expired-for 10s is too short"),
        (["--unmarked", "0s"], "--unmarked 0s is too short"),
        (["--expired-for", "soon"], "is not a duration"),
        (["--at-most", "0"], "--at-most"),
        (["--runner", "x"], "config.toml"),
    ],
)
def test_wrong_arguments_are_refused(fleet: Fleet, arguments: list[str], said: str) -> None:
    """Before anything is looked at."""
    result = reap(fleet.file, *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
