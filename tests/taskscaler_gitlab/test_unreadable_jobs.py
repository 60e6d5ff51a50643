"""Jobs of an earlier runner that cannot be read any more: they end everywhere, and nothing of them stays."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import define

from fleeting import MemoryJournal, Unreachable
from fleeting.testing import FakeCloud
from gitlab_jobs.testing import FakeGitLab, State
from taskscaler import Lease
from taskscaler.executors import Executor
from taskscaler_gitlab._record import MAX_STATE, MOST_ASIDE, JobDirectory
from tests.taskscaler_gitlab.services import Held, Scripted, a_job, serving

pytestmark = pytest.mark.anyio


@pytest.fixture
def gitlab(tmp_path: Path) -> FakeGitLab:
    """One that answers at once."""
    return FakeGitLab(tmp_path / "gitlab", long_poll=0.05, accepts=0)


@define
class Reading(Scripted):
    """Runs jobs whose files are read as JSON; ends nothing if it is not to."""

    ends: bool = True

    def kept_log(self, directory: Path) -> int:
        """See `Runs.kept_log`."""
        begun = directory / "run" / "begun"
        return int(json.loads(text)["log"]) if begun.exists() and (text := begun.read_text()) else 0

    async def abandon(self, executor: Executor, lease: Lease, *, directory: Path) -> None:
        """See `Runs.abandon`."""
        await super().abandon(executor, lease, directory=directory)
        if not self.ends:
            raise Unreachable("it does not answer")


async def left_running(here: Path, gitlab: FakeGitLab, cloud: FakeCloud, journal: MemoryJournal) -> tuple[int, Path]:
    """Have a runner leave a job that runs; returns its number and its directory."""
    held = Held()
    number = gitlab.enqueue(a_job())
    async with serving(here, gitlab, cloud=cloud, runs=Scripted(held), journal=journal):
        await held.begun.wait()
    (directory,) = (here / "jobs" / "jobs").iterdir()
    return number, directory


def no_state(directory: Path) -> None:
    """Lose where it stands."""
    (directory / "state.json").unlink()


def garbled_state(directory: Path) -> None:
    """Have a disk that returns something else."""
    (directory / "state.json").write_bytes(b"\0" * 100)


def later_state(directory: Path) -> None:
    """Have the state of a later version."""
    state = json.loads((directory / "state.json").read_text())
    (directory / "state.json").write_text(json.dumps({**state, "colour": "red"}))


def large_state(directory: Path) -> None:
    """Have one that does not end."""
    (directory / "state.json").write_bytes(b" " * (MAX_STATE + 1))


def other_run(directory: Path) -> None:
    """Have what running it needs to remember as another version wrote it."""
    (directory / "run" / "begun").write_text("{}")


def no_log(directory: Path) -> None:
    """Have no log that could be written to."""
    (directory / "trace").unlink()
    (directory / "trace").mkdir()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (no_state, "state.json cannot be read (No such file or directory)"),
        (garbled_state, "state.json cannot be read (Expecting value"),
        (later_state, "unknown key `colour`"),
        (large_state, f"it has more than {MAX_STATE} bytes"),
        (other_run, "run cannot be read (it was damaged, or written by another version)"),
    ],
)
async def test_a_job_that_cannot_be_read_ends_everywhere(
    gitlab: FakeGitLab, tmp_path: Path, damage: Callable[[Path], None], why: str
) -> None:
    """What it left running is ended, its slot is free, GitLab learns of it and why, and its token is gone."""
    cloud, journal, again = FakeCloud(), MemoryJournal(), Reading()
    number, directory = await left_running(tmp_path, gitlab, cloud, journal)
    damage(directory)
    async with serving(tmp_path, gitlab, cloud=cloud, runs=again, journal=journal) as bench:
        stored = await gitlab.ended(number)
        assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")
        log = gitlab.log(number).decode()
        assert log.startswith("it runs\n")
        assert "ERROR: Job failed (system failure): what its runner noted down cannot be used (" in log
        assert why.partition("(")[2] in log
        assert str(tmp_path) not in log
        (line,) = bench.said
        assert line.startswith(f"warning: the job {number} cannot be continued: {directory}")
        assert why in line
        assert "it is reported as failed" in line
        await bench.until(lambda: not bench.service.running)
        await bench.taken(acquired=0)
        assert (again.abandoned, again.runs) == ([directory], [])
        assert (await gitlab.ended(gitlab.enqueue(a_job()))).state is State.SUCCESS
    assert not (directory / "job.json").exists()


async def test_a_job_without_a_log_to_write_ends_likewise(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """Its log would not be whole; that is noticed when it is taken up."""
    cloud, journal, again = FakeCloud(), MemoryJournal(), Reading()
    number, directory = await left_running(tmp_path, gitlab, cloud, journal)
    no_log(directory)
    async with serving(tmp_path, gitlab, cloud=cloud, runs=again, journal=journal) as bench:
        stored = await gitlab.ended(number)
        assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")
        await bench.until(lambda: not bench.service.running)
        await bench.taken(acquired=0)
        assert again.abandoned == [directory]


def no_job(directory: Path) -> None:
    """Lose what it was."""
    (directory / "job.json").write_bytes((directory / "job.json").read_bytes()[:-20])


def a_page(directory: Path) -> None:
    """Have something else in its place."""
    (directory / "job.json").write_text("<html>")


def a_directory(directory: Path) -> None:
    """Have what is no file at all."""
    (directory / "job.json").unlink()
    (directory / "job.json").mkdir()


@pytest.mark.parametrize("damage", [no_job, a_page, a_directory])
async def test_a_job_without_its_token_is_ended_here(
    gitlab: FakeGitLab, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """GitLab cannot learn of it; what runs is ended, the slot is free, and its files go, but for what helps."""
    cloud, journal, again = FakeCloud(), MemoryJournal(), Reading()
    number, directory = await left_running(tmp_path, gitlab, cloud, journal)
    token = gitlab.server.jobs[number].job.token
    damage(directory)
    async with serving(tmp_path, gitlab, cloud=cloud, runs=again, journal=journal) as bench:
        await bench.until(lambda: not directory.exists())
        await bench.taken(acquired=0)
        (line,) = bench.said
        assert f"{directory}/job.json cannot be read" in line
        assert "it cannot be reported, so GitLab fails it when its time is over" in line
        assert (again.abandoned, again.runs) == ([directory], [])
        assert (await gitlab.ended(gitlab.enqueue(a_job()))).state is State.SUCCESS
    kept = [path for path in (tmp_path / "jobs").rglob("*") if path.is_file()]
    assert tmp_path / "jobs" / "unreadable" / directory.name / "state.json" in kept
    assert token
    assert not any(token.encode() in path.read_bytes() for path in kept)


async def test_a_job_that_nobody_knows_keeps_no_instance(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """Which lease it had, and whose GitLab it is from, cannot be said: what may run it is replaced, and nobody told."""
    cloud, journal, again = FakeCloud(), MemoryJournal(), Reading()
    number, directory = await left_running(tmp_path, gitlab, cloud, journal)
    no_state(directory)
    directory.rename(directory.with_name("something else"))
    async with serving(tmp_path, gitlab, cloud=cloud, runs=again, journal=journal) as bench:
        await bench.taken(acquired=0)
        await bench.until(lambda: not cloud.alive)
        await bench.until(lambda: not [*(tmp_path / "jobs" / "jobs").iterdir()])
        assert gitlab.server.jobs[number].state is State.RUNNING
        assert (again.runs, again.abandoned) == ([], [])


async def test_an_instance_on_which_it_may_run_on_is_replaced(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """It could not be ended there, so nobody else gets a slot beside it."""
    cloud, journal, again = FakeCloud(), MemoryJournal(), Reading(ends=False)
    number, directory = await left_running(tmp_path, gitlab, cloud, journal)
    garbled_state(directory)
    async with serving(tmp_path, gitlab, cloud=cloud, runs=again, journal=journal) as bench:
        assert (await gitlab.ended(number)).state is State.FAILED
        await bench.taken(acquired=0)
        await bench.until(lambda: not cloud.alive)


@pytest.mark.parametrize("damage", [garbled_state, no_job])
async def test_an_instance_on_which_another_executor_may_have_begun_it_is_replaced(
    gitlab: FakeGitLab, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """The file has changed, and with what the job was begun cannot be read: this one might look in the wrong place."""
    cloud, journal, again = FakeCloud(), MemoryJournal(), Reading()
    _, directory = await left_running(tmp_path, gitlab, cloud, journal)
    damage(directory)
    kind = "docker-autoscaler"
    async with serving(tmp_path, gitlab, cloud=cloud, runs=again, journal=journal, kind=kind) as bench:
        await bench.taken(acquired=0)
        await bench.until(lambda: not cloud.alive)
        assert (again.runs, again.abandoned) == ([], [])


def test_little_is_kept_of_what_cannot_be_read(tmp_path: Path) -> None:
    """Of the last few jobs only, and never the job itself, whose token and variables are in it."""
    directories = [JobDirectory(tmp_path / "jobs" / str(number)) for number in range(MOST_ASIDE + 3)]
    for number, directory in enumerate(directories):
        (directory.path / "run").mkdir(parents=True)
        for name in ("state.json", "job.json", "run/record.json", "run/download"):
            (directory.path / name).write_text("{")
        directory.copy_aside(tmp_path / "aside")
        os.utime(tmp_path / "aside" / str(number), (number, number))
    kept = {path.name: sorted(each.name for each in path.iterdir()) for path in (tmp_path / "aside").iterdir()}
    assert kept == {str(number): ["record.json", "state.json"] for number in range(3, MOST_ASIDE + 3)}
    shutil.rmtree(tmp_path / "jobs")
    directories[0].copy_aside(tmp_path / "aside")  # which is no reason to fail
