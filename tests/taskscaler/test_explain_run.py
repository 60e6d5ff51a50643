"""What is told of batches from their results: over, interrupted, running, damaged, and not there at all."""

import fcntl
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from taskscaler import Decision, DecisionEvent, InstanceEvent
from taskscaler.batch import Begun, Ended, GivenUp, JobState, Over, Planned, PoolFacts, RecordedEvent, Resumed, Started
from taskscaler.batch._events import as_line, header
from taskscaler.cli import main
from taskscaler.core._decide import Demand, PoolDecision
from tests.strategies import EPOCH
from tests.taskscaler.test_explain import documented

POOLS = (PoolFacts(name="default", plugin="local", capacity_per_instance=1, max_instances=2),)

BEGUN = Begun(
    at=EPOCH,
    jobs=(Planned(name="a", retries=1), Planned(name="b-01", retries=0), Planned(name="b-02", retries=0)),
    pools=POOLS,
    jobs_file="/jobs.toml",
)

LOST = "instance i-1 was lost (the cloud no longer shows it)"
STOCK_OUT = "backoff (none left in zone-a)"


def explain(*arguments: object) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, ["explain", *map(str, arguments)], prog_name="taskscaler")


def said(*arguments: object) -> list[str]:
    """What it says, without the columns."""
    result = explain(*arguments)
    assert result.exit_code == 0, result.output
    return [re.sub(" +", " ", line).strip() for line in result.output.splitlines()]


def told(*arguments: object) -> dict[str, object]:
    """The same as JSON."""
    result = explain(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


# --- results as commands leave them ------------------------------------------------------------------------------


def tell(directory: Path, *events: RecordedEvent | Sequence[RecordedEvent]) -> Path:
    """Write an event log, in the order in which things happened."""
    directory.mkdir()
    flat = [event for each in events for event in (each if isinstance(each, Sequence) else [each])]
    lines = map(as_line, [BEGUN, *sorted(flat, key=lambda event: event.at)])
    (directory / "events.jsonl").write_bytes(header() + b"".join(lines))
    return directory


def tried(
    job: str, instance: str, start: float, end: float | None = None, *, state: str = "succeeded", why: str = ""
) -> Sequence[RecordedEvent]:
    """A try; it runs unless it has ended."""
    started = Started(at=EPOCH + start, job=job, pool="default", instance=instance, slot=0)
    return [started] if end is None else [started, Ended(at=EPOCH + end, job=job, state=JobState(state), why=why)]


@contextmanager
def being_run(directory: Path) -> Iterator[None]:
    """As if a command ran the batch."""
    with (directory / "events.jsonl").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def decided(after: float, *, waiting: int, limited_by: str = "") -> DecisionEvent:
    """So many jobs wait; without a limit, for what is on its way."""
    wanted = waiting if limited_by else 0
    pool = PoolDecision("default", have=1, wanted=wanted, increase=0, limited_by=limited_by, withdraw=0, excess=0)
    decision = Decision(EPOCH + after, Demand(1, 0, waiting), 0, 1 + waiting, 1 + waiting, 0, (pool,), inf)
    return DecisionEvent(at=EPOCH + after, decision=decision)


def came(after: float, instance: str, state: str, why: str = "", *, lost: bool = False) -> InstanceEvent:
    """An instance came to be in another state."""
    return InstanceEvent(at=EPOCH + after, pool="default", instance=instance, state=state, why=why, lost=lost)


FLEET: Sequence[RecordedEvent] = [
    decided(0, waiting=3),
    came(1, "i-1", "creating", "it was asked for"),
    came(9, "i-1", "pending"),
    came(10, "i-1", "running"),
    decided(10, waiting=2, limited_by="max_instances"),
    came(40, "i-1", "gone", "the cloud no longer shows it", lost=True),
    decided(40, waiting=3, limited_by=STOCK_OUT),
    came(60, "i-2", "creating", "it was asked for"),
    came(70, "i-2", "running"),
]
"""An instance vanishes under a job; the next is long in coming."""


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """One job was tried twice, one failed, one succeeded."""
    return tell(
        tmp_path / "finished",
        FLEET,
        tried("a", "i-1", 10, 40, state="lost", why=LOST),
        tried("a", "i-2", 70, 80),
        tried("b-01", "i-2", 81, 90, state="failed", why="exited with 3"),
        tried("b-02", "i-2", 91, 95),
        decided(91, waiting=0),
        came(96, "i-2", "deleting", "not needed"),
        came(99, "i-2", "gone"),
        Over(at=EPOCH + 120, well=False),
    )


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    """One job runs at its second try, the others wait."""
    return tell(
        tmp_path / "unfinished", FLEET, tried("a", "i-1", 10, 40, state="lost", why=LOST), tried("a", "i-2", 70)
    )


# --- answers -----------------------------------------------------------------------------------------------------


def test_of_a_batch_that_is_over(finished: Path) -> None:
    """What jobs waited for, why one was tried again, what failed, and what became of the instances."""
    assert said(finished) == [
        "batch the batch is over, after 1m39s; 3 jobs: 2 succeeded, 1 failed",
        f"capacity jobs waited 51s because of {STOCK_OUT}",
        "jobs waited 30s because of max_instances",
        "jobs waited 10s for instances on their way",
        f"retried a: {LOST}",
        "trouble b-01 failed: exited with 3",
        "instances 1 lost: the cloud no longer shows it",
        "1 removed: not needed",
        "decided last 1m31s after the start: 1 in use, 0 reserved, 0 waiting, 0 to keep idle: 1 slot, 1 instance",
        "next nothing: there is nothing left to do",
    ]


def test_why_a_job_was_retried(finished: Path) -> None:
    """The reason is in the first sentence; each try has a line."""
    assert said(finished, "--job", "a") == [
        f"job a succeeded at try 2; it was tried again because {LOST}",
        "waited 10s for its first slot",
        f"try 1 10s after the start, in slot 0 of i-1: lost after 30s: {LOST}",
        "try 2 1m10s after the start, in slot 0 of i-2: succeeded after 10s",
        "next nothing: it is over",
    ]
    assert told(finished, "--job", "a")["retried"] == 1


def test_why_an_instance_went(finished: Path) -> None:
    """Lost or removed, and why; then its whole life."""
    assert said(finished, "--instance", "i-1") == [
        "instance i-1 is gone, lost: the cloud no longer shows it",
        "jobs 1: a",
        "1s booting: it was asked for",
        "9s getting ready",
        "10s ready",
        "slot 0 acquired by a",
        "40s lost: the cloud no longer shows it",
        f"slot 0 lost by a: {LOST}",
    ]
    assert said(finished, "--instance", "default/i-2")[0] == "instance i-2 is gone, removed: not needed"


def test_of_a_batch_that_runs(unfinished: Path) -> None:
    """The last decision, and the state of each instance; jobs that were not tried yet are known too."""
    with being_run(unfinished):
        lines = said(unfinished)
        assert re.fullmatch(r"batch the batch runs, for .* so far; 3 jobs: 1 running, 2 queued", lines[0])
        assert f"retried a: {LOST}" in lines
        assert any("1 lost: the cloud no longer shows it" in line for line in lines)
        assert "i-2 is ready, in use by a" in lines
        assert any(line.startswith("decided last") and STOCK_OUT in line for line in lines)
        assert lines[-1].startswith("next the command that runs it goes on")
        assert said(unfinished, "--job", "a")[0] == f"job a runs on i-2 at try 2; it was tried again because {LOST}"
        waiting = said(unfinished, "--job", "b-02")
        assert waiting[0] == "job b-02 waits for its first slot"
        assert any(line.startswith("decided last") and STOCK_OUT in line for line in waiting)
        assert said(unfinished, "--instance", "i-2")[0] == "instance i-2 is ready, in use by a"


def test_a_lost_job_waits_again_only_if_it_may_be_retried(tmp_path: Path) -> None:
    """While the batch runs."""
    directory = tell(
        tmp_path / "results",
        tried("a", "i-1", 10, 40, state="lost", why=LOST),
        tried("b-01", "i-1", 10, 40, state="lost", why=LOST),
    )
    with being_run(directory):
        assert said(directory, "--job", "a")[0] == f"job a waits to be tried again: {LOST}"
        assert said(directory, "--job", "b-01")[0] == f"job b-01 was lost: {LOST}"
        assert told(directory, "--job", "b-01")["state"] == "lost"


def test_of_a_batch_that_was_killed(unfinished: Path) -> None:
    """What was under way was interrupted; the next command goes on, and what stands is not hidden."""
    lines = said(unfinished)
    assert lines[0] == (
        "batch the batch was interrupted, after a last sign of life 1m10s after the start;"
        " 3 jobs: 1 interrupted, 2 queued"
    )
    assert "trouble a was interrupted: the manager was stopped" in lines
    assert "i-2 was ready when the record ends" in lines
    assert lines[-1] == f"next nothing by itself; taskscaler run --resume {unfinished} goes on"
    assert said(unfinished, "--job", "a")[0] == (
        f"job a was interrupted at try 2: the manager was stopped; it was tried again because {LOST}"
    )
    assert said(unfinished, "--job", "b-01")[-1] == (
        f"next nothing by itself; taskscaler run --resume {unfinished} tries it"
    )
    assert "the group's next command takes it over" in said(unfinished, "--instance", "i-2")[0]


def test_of_a_batch_that_ended_early(tmp_path: Path) -> None:
    """Its command knew what became of every job, so nothing broke off; what was cancelled can still be gone on with."""
    directory = tell(
        tmp_path / "results",
        tried("a", "i-1", 10, 40),
        GivenUp(at=EPOCH + 41, jobs=("b-01", "b-02"), state=JobState.CANCELLED, why="the batch was interrupted"),
    )
    lines = said(directory)
    assert re.fullmatch(r"batch the batch ended early, after .*; 3 jobs: 1 succeeded, 2 cancelled", lines[0])
    assert lines[-1] == f"next nothing by itself; taskscaler run --resume {directory} goes on"


def test_nobody_waited_while_no_manager_was_there(unfinished: Path) -> None:
    """Between the last event of one manager and the first of the next, nothing is counted."""
    resumed = Resumed(at=EPOCH + 1000, pools=POOLS)
    with (unfinished / "events.jsonl").open("ab") as file:
        for event in (resumed, decided(1000, waiting=3, limited_by="max_instances"), decided(1005, waiting=0)):
            file.write(as_line(event))
    text = "i-2 was ready when its manager was stopped, and has not been seen since"
    assert any(text in line for line in said(unfinished))
    waits = {str(each["for"]): each["seconds"] for each in told(unfinished)["waits"]}  # type: ignore[attr-defined]
    assert waits == {STOCK_OUT: 30.0, "max_instances": 35.0, "instances on their way": 10.0}


def test_of_a_batch_whose_fleet_was_not_recorded(tmp_path: Path) -> None:
    """What a program leaves that does not have its scaler observed."""
    results = tell(
        tmp_path / "of the library",
        tried("a", "i-1", 10, 20, state="failed", why="exited with 3"),
        GivenUp(
            at=EPOCH + 40,
            jobs=("b-01", "b-02"),
            state=JobState.NO_CAPACITY,
            why="there was no slot for it within 15m0s",
        ),
    )
    lines = said(results)
    assert "capacity nothing was recorded of the fleet" in lines
    assert "b-01 got no slot: there was no slot for it within 15m0s" in lines
    assert said(results, "--job", "a")[0] == "job a failed: exited with 3"
    assert explain(results, "--instance", "i-1").exit_code == 2


@pytest.mark.parametrize("question", [[], ["--job", "a"], ["--instance", "i-1"]], ids=["batch", "job", "instance"])
def test_json_says_the_same(finished: Path, question: Sequence[str]) -> None:
    """The answer is there in words, with what it is about and the version of the schema."""
    data = told(finished, *question)
    assert data["version"] == 1
    assert data["about"] == {"": "run", "--job": "run_job", "--instance": "run_instance"}["".join(question[:1])]
    assert said(finished, *question)[0].endswith(str(data["answer"]))
    assert data["progress"] == "over"


# --- wrong questions ---------------------------------------------------------------------------------------------


def test_wrong_questions_get_one_sentence(finished: Path, tmp_path: Path) -> None:
    """What was not found, and the nearest that is there."""
    (tmp_path / "empty").mkdir()
    expected = {
        (finished, "--job", "b-1"): f"the batch in {finished} has no job 'b-1'; did you mean `b-01`?",
        (finished, "--job", "b"): f"the batch in {finished} has no job 'b'; did you mean one of `b-01` to `b-02`?",
        (finished, "--job", "zzz"): f"the batch in {finished} has no job 'zzz'; it has a, b-01 and b-02",
        (finished, "--instance", "i-9"): f"the fleet of {finished} had no instance 'i-9'; did you mean `i-2`?",
        (tmp_path,): f"{tmp_path} holds no results of a batch; did you mean `{finished}`?",
        (tmp_path / "empty",): "holds no results of a batch; name the directory that `taskscaler run` wrote them to",
        (tmp_path / "finishd",): f"there is no directory {tmp_path / 'finishd'}; did you mean `finished`?",
        (tmp_path / "no" / "such",): f"there is no directory {tmp_path / 'no' / 'such'}; name the results",
    }
    for arguments, message in expected.items():
        result = explain(*arguments)
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1
        assert message in result.stderr
        assert not result.stdout


def test_two_questions_at_once_are_refused(finished: Path) -> None:
    """A job and an instance."""
    result = explain(finished, "--job", "a", "--instance", "i-1")
    assert result.exit_code == 2
    assert "ask for one at a time" in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not the event log of a batch"),
        ("{}\n", "it is not the event log of a batch"),
        ('{"format": "taskscaler events", "version": 99}\n', "a newer release has written it"),
        ('{"format": "taskscaler events", "version": 1}\n[]\n', "line 2 makes no sense"),
        ('{"format": "taskscaler events", "version": 1}\n', "it does not begin with the beginning of a batch"),
    ],
)
def test_results_that_make_no_sense_are_refused(finished: Path, text: str, message: str) -> None:
    """The error names the file."""
    (finished / "events.jsonl").write_text(text)
    result = explain(finished)
    assert result.exit_code == 2
    assert f"{finished / 'events.jsonl'} cannot be used: " in result.stderr
    assert message in result.stderr


def test_what_results_say_cannot_command_a_terminal(tmp_path: Path) -> None:
    """Neither escapes nor markup: a job may have put them there."""
    directory = tell(tmp_path / "results", tried("a", "i", 1, 2, state="failed", why="\x1b[2Jboo [bold]x[/bold]"))
    output = explain(directory).output
    assert "boo [bold]x[/bold]" in output
    assert "\x1b" not in output


def test_looking_changes_nothing(unfinished: Path) -> None:
    """Also a line that is being written just now stays as it is."""
    with (unfinished / "events.jsonl").open("a") as file:
        file.write('{"at": 1, "event": "started", "job": ')
    before = {path: path.read_bytes() for path in unfinished.rglob("*") if path.is_file()}
    said(unfinished)
    assert {path: path.read_bytes() for path in unfinished.rglob("*") if path.is_file()} == before


def test_a_real_run_can_be_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On real processes: what the command writes is what this one reads."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "jobs.toml"
    fleet = '[autoscaler]\nplugin = "local"\nmax_instances = 1\nupdate_interval_when_expecting = "100ms"\n'
    file.write_text(f'{fleet}[[jobs]]\nname = "job"\ncopies = 2\nscript = "true"\n')
    results = tmp_path / "results"
    ran = CliRunner().invoke(main, ["run", str(file), "--output", str(results)])
    assert ran.exit_code == 0, ran.output
    lines = said(results)
    assert lines[0].endswith("2 jobs: 2 succeeded")
    assert any("because of max_instances" in line for line in lines)
    assert "next nothing: there is nothing left to do" in lines
    (instance,) = {each["instance"] for each in told(results)["instances"]}  # type: ignore[attr-defined]
    assert said(results, "--instance", instance)[1].startswith("jobs 2: job-")


def test_the_page_has_every_key(finished: Path) -> None:
    """What is in the JSON is documented, and what is documented is in the JSON."""
    command = "taskscaler explain DIR"
    assert documented(f"`run`: `{command} --json`") == told(finished).keys()
    assert documented(f"`run_job`: `{command} --job NAME --json`") == told(finished, "--job", "a").keys()
    instance = told(finished, "--instance", "i-1")
    assert documented(f"`run_instance`: `{command} --instance ID --json`") == instance.keys()
