"""What is told of batches from their results: over, interrupted, running, damaged, and not there at all."""

import fcntl
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner, Result

from taskscaler import Decision, DecisionEvent, InstanceEvent
from taskscaler.batch import (
    Begun,
    Ended,
    GivenUp,
    JobState,
    Over,
    Planned,
    PoolFacts,
    RecordedEvent,
    Resumed,
    Retries,
    Started,
)
from taskscaler.batch._events import as_line, header
from taskscaler.cli import main
from taskscaler.core._decide import Demand, PoolDecision
from taskscaler.executors import MemoryLimit, StepUse
from tests.golden import Golden
from tests.strategies import EPOCH
from tests.taskscaler.test_explain import documented

POOLS = (PoolFacts(name="default", plugin="local", capacity_per_instance=1, max_instances=2),)

BEGUN = Begun(
    at=EPOCH,
    jobs=(Planned(name="a", retries=1), Planned(name="b-01", retries=0), Planned(name="b-02", retries=0)),
    pools=POOLS,
    jobs_file="/jobs.toml",
)

TRIED_TWICE = evolve(BEGUN, jobs=(Planned(name="a", retries=Retries(failed=1)), *BEGUN.jobs[1:]))

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


def tell(directory: Path, *events: RecordedEvent | Sequence[RecordedEvent], begun: Begun = BEGUN) -> Path:
    """Write an event log, in the order in which things happened."""
    directory.mkdir()
    flat = [event for each in events for event in (each if isinstance(each, Sequence) else [each])]
    lines = map(as_line, [begun, *sorted(flat, key=lambda event: event.at)])
    (directory / "events.jsonl").write_bytes(header() + b"".join(lines))
    return directory


def begun_with(names: Sequence[str], *, retries: int) -> Begun:
    """A batch of other jobs."""
    return evolve(BEGUN, jobs=tuple(Planned(name=name, retries=retries) for name in names))


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
    came(1, "i-1", "creating", "it was requested"),
    came(9, "i-1", "pending"),
    came(10, "i-1", "running"),
    decided(10, waiting=2, limited_by="max_instances"),
    came(40, "i-1", "gone", "the cloud no longer shows it", lost=True),
    decided(40, waiting=3, limited_by=STOCK_OUT),
    came(60, "i-2", "creating", "it was requested"),
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


@pytest.fixture
def pin(golden: Golden) -> Callable[..., dict[str, object]]:
    """Compare what a command says with tests/golden, under a name, and give the same as JSON."""

    def pin(name: str, directory: Path, *arguments: object) -> dict[str, object]:
        result = explain(directory, *arguments)
        assert result.exit_code == 0, result.output
        text = result.output.replace(str(directory), "results")
        golden(f"explain_run/{name}", re.sub(r"\b\d+d(\d+h)?\b", "<days>", text))  # since `EPOCH`
        return told(directory, *arguments)

    return pin


Pin = Callable[..., dict[str, object]]


def test_the_golden_file_has_no_other_batches(golden: Golden) -> None:
    """What is no longer asked is taken out."""
    golden.has_only("explain_run/", re.findall(r'[^"]\bpin\("([^"]+)"', Path(__file__).read_text()))


def states_of(answer: Mapping[str, object]) -> dict[str, str]:
    """The state of each job."""
    return {each["name"]: each["state"] for each in answer["jobs"]}  # type: ignore[attr-defined]


def test_of_a_batch_that_is_over(pin: Pin, finished: Path) -> None:
    """What jobs waited for, why one was tried again, what failed, and what became of the instances."""
    answer = pin("over", finished)
    assert answer["progress"] == "over"
    assert states_of(answer) == {"a": "succeeded", "b-01": "failed", "b-02": "succeeded"}
    waits = {each["for"]: each["seconds"] for each in answer["waits"]}  # type: ignore[attr-defined]
    assert waits == {STOCK_OUT: 51.0, "max_instances": 30.0, "instances on their way": 10.0}


def test_why_a_job_was_retried(pin: Pin, finished: Path) -> None:
    """The reason is in the first sentence; each try has a line."""
    answer = pin("over: a job", finished, "--job", "a")
    assert answer["retried"] == 1
    assert LOST in str(answer["answer"])
    tries = [(each["instance"], each["state"]) for each in answer["attempts"]]  # type: ignore[attr-defined]
    assert tries == [("i-1", "lost"), ("i-2", "succeeded")]


def test_why_an_instance_went(pin: Pin, finished: Path) -> None:
    """Lost or removed, and why; then its whole life."""
    answer = pin("over: a lost instance", finished, "--instance", "i-1")
    history = [each["what"] for each in answer["history"]]  # type: ignore[attr-defined]
    assert history == ["creating", "pending", "running", "acquired", "gone", "lost"]
    assert answer["why"] == "lost: the cloud no longer shows it"
    assert pin("over: a removed instance", finished, "--instance", "default/i-2")["why"] == "removed: not needed"


def test_what_a_try_has_used_is_told(tmp_path: Path) -> None:
    """As far as it is known; of a try of which nothing is, nothing is said."""
    known = Ended(at=EPOCH + 9, job="a", state=JobState.SUCCEEDED, cpu_time=75.0, peak_memory=3 << 20, disk_written=0)
    bare = Ended(at=EPOCH + 9, job="b-01", state=JobState.SUCCEEDED)
    begun = [Started(at=EPOCH + 1, job=job, pool="default", instance="i-1", slot=0) for job in ("a", "b-01")]
    directory = tell(tmp_path / "results", begun[0], known, begun[1], bare)
    assert any(
        line.endswith(": succeeded after 8s; it used 1m15s of CPU, 3 MiB of memory at most, 0 bytes written")
        for line in said(directory, "--job", "a")
    )
    assert not any("used" in line for line in said(directory, "--job", "b-01"))
    attempts = told(directory, "--job", "a")["attempts"]
    assert isinstance(attempts, list)
    assert [attempts[0][key] for key in ("cpu_time", "peak_memory", "disk_written")] == [75.0, 3 << 20, 0]


def test_where_the_time_of_a_job_went(pin: Pin, tmp_path: Path) -> None:
    """Of each try its steps, those that used most by their names."""
    steps = (
        StepUse(path="get", ended="succeeded", duration=12.0, cpu_time=0.4, peak_memory=40 << 20, disk_read=9 << 20),
        StepUse(path="build/cc", ended="failed", duration=45.0, cpu_time=80.0, peak_memory=256 << 20, disk_written=7),
        StepUse(count=30, duration=3.0, cpu_time=0.1, peak_memory=30 << 20, disk_read=0, disk_written=0),
    )
    directory = tell(
        tmp_path / "results",
        Started(at=EPOCH + 1, job="a", pool="default", instance="i-1", slot=0),
        Ended(at=EPOCH + 61, job="a", state=JobState.FAILED, why="the step `build/cc` exited with 2", steps=steps),
        Started(at=EPOCH + 70, job="a", pool="default", instance="i-1", slot=0),
        Ended(at=EPOCH + 90, job="a", state=JobState.SUCCEEDED, steps=steps[:1]),
        Started(at=EPOCH + 95, job="b-01", pool="default", instance="i-1", slot=0),
        Ended(at=EPOCH + 96, job="b-01", state=JobState.SUCCEEDED, steps=steps),
        begun=TRIED_TWICE,
    )
    attempts = pin("interrupted: a job with steps", directory, "--job", "a")["attempts"]
    assert isinstance(attempts, list)
    assert [[step["path"] for step in each["steps"]] for each in attempts] == [["get", "build/cc", ""], ["get"]]
    jobs = told(directory)["jobs"]
    assert isinstance(jobs, list)
    assert all("steps" not in attempt for each in jobs for attempt in each["attempts"])


def test_what_set_the_memory_limit_of_a_job(pin: Pin, tmp_path: Path) -> None:
    """Of each try, and that it was too low."""
    killed = MemoryLimit(size=256 << 20, reached=True)
    twice = MemoryLimit(size=512 << 20, by="killed", why="twice the 256 MiB at which an earlier run was killed")
    why = "exited with 137: it needed more memory than its 256 MiB and was killed; its next run gets up to 512 MiB"
    directory = tell(
        tmp_path / "results",
        Started(at=EPOCH + 1, job="a", pool="default", instance="i-1", slot=0),
        Ended(at=EPOCH + 61, job="a", state=JobState.FAILED, why=why, peak_memory=256 << 20, memory_limit=killed),
        Started(at=EPOCH + 70, job="a", pool="default", instance="i-1", slot=0),
        Ended(at=EPOCH + 135, job="a", state=JobState.SUCCEEDED, peak_memory=310 << 20, memory_limit=twice),
        begun=TRIED_TWICE,
    )
    attempts = pin("interrupted: a job that ran out of memory", directory, "--job", "a")["attempts"]
    assert isinstance(attempts, list)
    assert [each["memory_limit"]["by"] for each in attempts] == ["usual", "killed"]


def test_a_job_may_be_named_by_its_place_or_a_pattern(finished: Path) -> None:
    """As for `taskscaler logs` and `taskscaler run --only`."""
    assert said(finished, "--job", "#2") == said(finished, "--job", "*-01") == said(finished, "--job", "b-01")
    for several_or_none in ("b-*", "#4"):
        assert explain(finished, "--job", several_or_none).exit_code == 2


def test_jobs_that_one_instance_took_with_it_share_a_line(tmp_path: Path) -> None:
    """The reason is as long for one of them as for all."""
    results = tell(
        tmp_path / "results",
        *(tried(job, "i-1", 10, 40, state="lost", why=LOST) for job in "xyz"),
        *(tried(job, "i-2", 50, 60) for job in "xyz"),
        begun=begun_with("xyz", retries=1),
    )
    assert f"retried x, y and z: {LOST}" in said(results)


def test_jobs_that_came_to_the_same_end_share_a_line(tmp_path: Path) -> None:
    """Ctrl-C cancels all that wait, and ten lines of that would hide the one job that failed."""
    results = tell(
        tmp_path / "results",
        tried("x", "i-1", 10, 40, state="failed", why="exited with 3"),
        GivenUp(at=EPOCH + 50, jobs=("y", "z"), state=JobState.CANCELLED, why="the batch was interrupted"),
        begun=begun_with("xyz", retries=1),
    )
    lines = said(results)
    assert "trouble x failed: exited with 3" in lines
    assert "y and z were cancelled: the batch was interrupted" in lines


def test_of_a_long_life_the_middle_is_left_out_but_not_what_is_unusual(tmp_path: Path) -> None:
    """An instance that ran hundreds of jobs would fill the screen with slots; JSON has them all."""
    names = [str(after) for after in range(2, 400, 2)]
    results = tell(
        tmp_path / "results",
        *(tried(name, "i-1", int(name), int(name) + 1) for name in names),
        came(1, "i-1", "running"),
        came(200.5, "i-1", "unusable", "it is sick"),
        begun=begun_with(names, retries=0),
    )
    _, jobs, *lines = said(results, "--instance", "i-1")
    assert jobs.startswith("jobs 199: ")
    assert len(lines) == 22
    assert lines[10] == "… and 379 times that a slot was acquired or released; --json has them all"
    assert "it is sick" in lines[11]
    assert len(told(results, "--instance", "i-1")["history"]) == 400  # type: ignore[arg-type]


def test_of_a_batch_that_runs(pin: Pin, unfinished: Path) -> None:
    """The last decision, and the state of each instance; jobs that were not tried yet are known too."""
    with being_run(unfinished):
        answer = pin("running", unfinished)
        assert answer["progress"] == "running"
        assert states_of(answer) == {"a": "running", "b-01": "queued", "b-02": "queued"}
        states = {each["instance"]: each["state"] for each in answer["instances"]}  # type: ignore[attr-defined]
        assert states == {"i-1": "gone", "i-2": "running"}
        assert pin("running: a job", unfinished, "--job", "a")["state"] == "running"
        assert pin("running: a waiting job", unfinished, "--job", "b-02")["attempts"] == []
        holding = pin("running: an instance", unfinished, "--instance", "i-2")["holding"]
        assert holding == [{"slot": 0, "key": "a"}]


def test_a_lost_job_waits_again_only_if_it_may_be_retried(pin: Pin, tmp_path: Path) -> None:
    """While the batch runs."""
    directory = tell(
        tmp_path / "results",
        tried("a", "i-1", 10, 40, state="lost", why=LOST),
        tried("b-01", "i-1", 10, 40, state="lost", why=LOST),
    )
    with being_run(directory):
        assert pin("running: a job with retries", directory, "--job", "a")["state"] == "queued"
        assert pin("running: a job without", directory, "--job", "b-01")["state"] == "lost"


def test_a_job_that_is_over_waits_for_nothing(tmp_path: Path) -> None:
    """Whether or not its batch still runs, one that was cancelled gets no slot by itself."""
    directory = tell(tmp_path / "results", GivenUp(at=EPOCH + 9, jobs=("a",), state=JobState.CANCELLED, why="stopped"))
    with being_run(directory):
        assert said(directory, "--job", "a") == [
            "job a was cancelled: stopped",
            f"next nothing by itself; run it with taskscaler run --resume {directory}",
        ]


def test_of_a_batch_that_was_killed(pin: Pin, unfinished: Path) -> None:
    """What was under way was interrupted; the next command resumes it, and what ended is not hidden."""
    answer = pin("killed", unfinished)
    assert answer["progress"] == "interrupted"
    assert answer["last"] == "2023-11-14T22:14:30.000+00:00"
    assert f"--resume {unfinished}" in str(answer["next"])
    job = pin("killed: a job", unfinished, "--job", "a")
    assert job["state"] == "queued"
    attempts: list[dict[str, object]] = job["attempts"]  # type: ignore[assignment]
    assert attempts[-1]["interrupted"]
    assert f"--resume {unfinished}" in str(pin("killed: a waiting job", unfinished, "--job", "b-01")["next"])
    assert pin("killed: an instance", unfinished, "--instance", "i-2")["state"] == "running"


def test_of_a_batch_that_ended_early(pin: Pin, tmp_path: Path) -> None:
    """Its command knew what became of every job, so nothing broke off; what was cancelled can still be resumed."""
    directory = tell(
        tmp_path / "results",
        tried("a", "i-1", 10, 40),
        GivenUp(at=EPOCH + 41, jobs=("b-01", "b-02"), state=JobState.CANCELLED, why="the batch was interrupted"),
    )
    answer = pin("ended early", directory)
    assert states_of(answer) == {"a": "succeeded", "b-01": "cancelled", "b-02": "cancelled"}
    assert f"--resume {directory}" in str(answer["next"])


def test_nobody_waited_while_no_manager_was_there(pin: Pin, unfinished: Path) -> None:
    """Between the last event of one manager and the first of the next, nothing is counted."""
    resumed = Resumed(at=EPOCH + 1000, pools=POOLS)
    with (unfinished / "events.jsonl").open("ab") as file:
        for event in (resumed, decided(1000, waiting=3, limited_by="max_instances"), decided(1005, waiting=0)):
            file.write(as_line(event))
    answer = pin("resumed", unfinished)
    waits = {str(each["for"]): each["seconds"] for each in answer["waits"]}  # type: ignore[attr-defined]
    assert waits == {STOCK_OUT: 30.0, "max_instances": 35.0, "instances on their way": 10.0}


def test_of_a_batch_whose_fleet_was_not_recorded(pin: Pin, tmp_path: Path) -> None:
    """What a program leaves that does not have its scaler observed."""
    results = tell(
        tmp_path / "of the library",
        tried("a", "i-1", 10, 20, state="failed", why="exited with 3"),
        GivenUp(
            at=EPOCH + 40,
            jobs=("b-01", "b-02"),
            state=JobState.NO_CAPACITY,
            why="no slot became free within 15m0s",
        ),
    )
    answer = pin("no fleet", results)
    assert (answer["instances"], answer["waits"], answer["decision"]) == ([], [], None)
    assert states_of(answer) == {"a": "failed", "b-01": "no_capacity", "b-02": "no_capacity"}
    assert pin("no fleet: a job", results, "--job", "a")["why"] == "exited with 3"
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


def test_wrong_questions_get_one_sentence(golden: Golden, finished: Path, tmp_path: Path) -> None:
    """What was not found, and the nearest that is there."""
    (tmp_path / "empty").mkdir()
    questions: Mapping[str, tuple[object, ...]] = {
        "a near job": (finished, "--job", "b-1"),
        "several copies": (finished, "--job", "b"),
        "no such job": (finished, "--job", "zzz"),
        "no such instance": (finished, "--instance", "i-9"),
        "the directory above": (tmp_path,),
        "an empty directory": (tmp_path / "empty",),
        "a near directory": (tmp_path / "finishd",),
        "no directory": (tmp_path / "no" / "such",),
        "two at once": (finished, "--job", "a", "--instance", "i-1"),
    }
    for name, arguments in questions.items():
        result = explain(*arguments)
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1
        assert not result.stdout
        golden(f"explain_wrong/{name}", result.stderr.replace(str(tmp_path), "<here>"))
    golden.has_only("explain_wrong/", questions)


DAMAGED = {
    "empty": "",
    "an empty table": "{}\n",
    "a later version": '{"format": "taskscaler events", "version": 99}\n',
    "no event": '{"format": "taskscaler events", "version": 1}\n[]\n',
    "no beginning": '{"format": "taskscaler events", "version": 1}\n',
}


@pytest.mark.parametrize("name", DAMAGED)
def test_results_that_make_no_sense_are_refused(golden: Golden, finished: Path, name: str) -> None:
    """The error names the file."""
    (finished / "events.jsonl").write_text(DAMAGED[name])
    result = explain(finished)
    assert result.exit_code == 2
    assert str(finished / "events.jsonl") in result.stderr
    golden(f"explain_damaged/{name}", result.stderr.replace(str(finished), "<results>"))
    golden.has_only("explain_damaged/", DAMAGED)


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
    answer = told(results)
    assert answer["progress"] == "over"
    assert "max_instances" in {each["for"] for each in answer["waits"]}  # type: ignore[attr-defined]
    (instance,) = {each["instance"] for each in told(results)["instances"]}  # type: ignore[attr-defined]
    assert said(results, "--instance", instance)[1].startswith("jobs 2: job-")


def test_the_page_has_every_key(finished: Path) -> None:
    """What is in the JSON is documented, and what is documented is in the JSON."""
    command = "taskscaler explain DIR"
    assert documented(f"`run`: `{command} --json`") == told(finished).keys()
    assert documented(f"`run_job`: `{command} --job JOB --json`") == told(finished, "--job", "a").keys()
    instance = told(finished, "--instance", "i-1")
    assert documented(f"`run_instance`: `{command} --instance ID --json`") == instance.keys()
