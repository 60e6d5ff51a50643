"""Results of releases before the event log, in ``old_results``: they are reported and explained, and resumed.

They were written by the command as it was at 305ac4c, for the jobs file that is kept in those that were not over.
"""

import fcntl
import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from taskscaler import _old_record
from taskscaler._errors import NotRecorded, RecordUnreadable
from taskscaler._recorded_run import Progress, RecordedRun, read_run
from taskscaler.batch import BatchState, JobState, Results, fold, read_events
from taskscaler.cli import main

OLD = Path(__file__).with_name("old_results")
FROM = "/tmp/batch"  # noqa: S108  (where they were written)

OUTCOMES = {
    "over": ["failed 1", "succeeded 1", "succeeded 1", "succeeded 2", "succeeded 2"],
    "killed": ["failed 1", "succeeded 1", "succeeded 1", "queued 1", "queued 0"],
    "early": ["failed 1", "succeeded 1", "succeeded 1", "succeeded 1", "cancelled 0"],
    "resumed": ["failed 1", "succeeded 1", "succeeded 1", "succeeded 2", "succeeded 1"],
}
"""How each job stands, and how often it was tried."""

NAMES = ["bad", "good-01", "good-02", "good-03", "good-04"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have the old results in the directory that the commands work in."""
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_text(path.read_text().replace(FROM, str(tmp_path)))
    shutil.copy(tmp_path / "killed" / "resume" / "jobs.toml", tmp_path / "jobs.toml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, arguments, prog_name="taskscaler")


def outcomes(state: BatchState) -> list[str]:
    """How the jobs stand."""
    return [f"{record.state.value} {len(record.attempts)}" for record in state.records]


def run_in(name: str) -> RecordedRun:
    """Read one of them, in which all jobs are known, in order."""
    run = read_run(Path(name))
    assert list(run.jobs) == NAMES
    return run


@pytest.mark.parametrize("name", OUTCOMES)
def test_old_results_say_what_became_of_each_job(name: str) -> None:
    """All that is known of the batch, and what `results.json` says of it where there is one."""
    run = run_in(name)
    assert outcomes(run.state) == OUTCOMES[name]
    over = name in {"over", "resumed"}
    assert run.progress is (Progress.OVER if over else Progress.INTERRUPTED)
    if (summary := Path(name, "results.json")).exists():
        before = json.loads(summary.read_text())
        Results(Path("again")).prepare()
        Results(Path("again")).write_summary(run.state, now=run.last)
        after = json.loads(Path("again", "results.json").read_text())
        assert after["started"] == before["started"]
        for old, new in zip(before["jobs"], after["jobs"], strict=True):
            assert {**new, "attempts": []} == {**old, "attempts": []}
            for one, other in zip(old["attempts"], new["attempts"], strict=True):
                same = one.keys() - ({"ended", "duration"} if one["interrupted"] else set())
                assert {key: one[key] for key in same} == {key: other[key] for key in same}
        assert {each["id"] for each in before["fleet"]["instances"]} == {
            each["id"] for each in after["fleet"]["instances"]
        }


@pytest.mark.parametrize("name", OUTCOMES)
def test_old_results_are_reported_and_explained(name: str) -> None:
    """By the commands, and nothing of them is changed but for the picture."""
    before = {path: path.read_bytes() for path in Path(name).rglob("*") if path.is_file()}
    report = json.loads(invoke("report", name, "--json").stdout)
    counts = {state.value: OUTCOMES[name].count(f"{state.value} 1") for state in JobState}
    assert report["jobs"]["total"] == 5
    assert all(report["jobs"]["states"].get(state, 0) >= count for state, count in counts.items())
    assert report["instances"]["lost"] == (1 if name == "over" else 0)
    explained = json.loads(invoke("explain", name, "--json").stdout)
    assert [f"{job['state']} {len(job['attempts'])}" for job in explained["jobs"]] == OUTCOMES[name]
    assert any(each["for"] == "max_instances" for each in explained["waits"])
    assert {path: path.read_bytes() for path in before} == before


def test_an_old_loss_is_told() -> None:
    """The instance that vanished, and why its jobs were tried again."""
    text = invoke("explain", "over").stdout
    assert "1 lost: the cloud reports it as deleted" in text
    assert "good-03 and good-04: instance default-181645a98ad9 was lost (the cloud reports it as deleted)" in text


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ran"), [("killed", [1, 1, 1, 2, 1]), ("early", [1, 1, 1, 1, 1])])
def test_an_interrupted_old_batch_is_resumed(name: str, ran: list[int]) -> None:
    """What was over stays so; the rest runs, and all of it is in one event log and in `results.json`."""
    result = invoke("run", "--resume", name)
    assert (result.exit_code, result.stderr) == (1, ""), result.output
    jobs = json.loads(Path(name, "results.json").read_text())["jobs"]
    assert [job["name"] for job in jobs] == NAMES
    assert [job["state"] for job in jobs] == ["failed", *["succeeded"] * 4]
    assert [len(job["attempts"]) for job in jobs] == ran
    assert outcomes(fold(read_events(Path(name, "events.jsonl")))) == outcomes(read_run(Path(name)).state)
    again = invoke("run", "--resume", name)
    assert again.stdout == f"nothing to resume: the batch is over, 4 of 5 jobs succeeded; see {name}/results.json\n"


def test_an_old_batch_that_is_over_is_as_it_ended() -> None:
    """Nothing is run, and it fails if it has failed."""
    result = invoke("run", "--resume", "over")
    assert result.stdout == "nothing to resume: the batch is over, 4 of 5 jobs succeeded; see over/results.json\n"
    assert result.exit_code == 1


def test_an_old_batch_that_is_still_run_is_left_alone() -> None:
    """By a command of that release, which holds the lock; it can be looked at."""
    with Path("killed", "resume", "history.jsonl").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        result = invoke("run", "--resume", "killed")
        assert result.stderr == "error: the batch in killed is still being run; end that first [TS104]\n"
        run = run_in("killed")
        assert run.progress is Progress.RUNNING
        assert run.jobs["good-03"].state is JobState.RUNNING
    assert not Path("killed", "events.jsonl").exists()


@pytest.mark.parametrize("lost", [("fleet.jsonl",), ("results.json",), ("resume",), ("fleet.jsonl", "resume")])
@pytest.mark.parametrize("name", ["over", "early", "resumed"])
def test_old_results_may_be_incomplete(name: str, lost: tuple[str, ...]) -> None:
    """What the other files say is told."""
    for each in lost:
        shutil.rmtree(Path(name, each)) if each == "resume" else Path(name, each).unlink()
    run = run_in(name)
    expected = OUTCOMES[name]
    if name == "early" and "results.json" in lost:
        expected = [*expected[:4], "queued 0"]
    assert outcomes(run.state) == expected
    assert bool(run.instances) == ("fleet.jsonl" not in lost)
    assert invoke("explain", name).exit_code == 0


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("file", ["resume/history.jsonl", "fleet.jsonl"])
def test_old_files_may_end_anywhere(name: str, file: str) -> None:
    """Their command was killed: whatever of a file is whole makes sense with the other."""
    path = Path(name, file)
    whole = path.read_bytes()
    begun = whole.index(b"\n") + 1
    for size in range(begun, len(whole), 97):
        path.write_bytes(whole[:size])
        assert list(fold(_old_record.events(Results(Path(name)))).jobs) == NAMES


@pytest.mark.parametrize(
    ("file", "text", "error", "message"),
    [
        ("resume/history.jsonl", "", RecordUnreadable, "its first line is missing"),
        ("resume/history.jsonl", '{"event": "resumed"}\n', RecordUnreadable, "its first line is missing"),
        ("resume/history.jsonl", "{}\n", RecordUnreadable, "line 1 is not a valid event"),
        ("resume/history.jsonl", '{"event": "dance"}\n', RecordUnreadable, "line 1 is not a valid event"),
        ("resume/history.jsonl", "[]\n", RecordUnreadable, "line 1 is not a valid event"),
        (
            "resume/history.jsonl",
            '{"event": "begun", "version": 99, "started": 1, "jobs_file": "x"}\n',
            RecordUnreadable,
            "a newer release has written it",
        ),
        (
            "resume/history.jsonl",
            '{"event": "begun", "version": 1, "started": 1, "jobs_file": "x"}\n???\n',
            RecordUnreadable,
            "line 2 is not a valid event",
        ),
        ("results.json", "[", NotRecorded, "no batch wrote it"),
        ("results.json", "[]", NotRecorded, "no batch wrote it"),
        (
            "fleet.jsonl",
            '{"at": 1, "event": "opened", "version": 99}\n',
            RecordUnreadable,
            "a newer release has written it",
        ),
    ],
)
def test_old_results_that_make_no_sense_are_refused(file: str, text: str, error: type[Exception], message: str) -> None:
    """In a sentence that names the file; by what looks at them, and by what would resume the batch."""
    Path("early", file).write_text(text)
    with pytest.raises(error, match=f"early/{file} cannot be used: {message}"):
        read_run(Path("early"))
    result = invoke("run", "--resume", "early")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert message in result.stderr


@pytest.mark.parametrize(
    "line", ["", "3", "null", "{}", '{"at": null, "event": "instance"}', '{"at": 1, "event": "x"}']
)
def test_lines_of_an_old_record_of_a_fleet_that_make_no_sense_are_passed_over(line: str) -> None:
    """Nothing relied on it."""
    whole = run_in("over").instances.keys()
    path = Path("over", "fleet.jsonl")
    path.write_text(f"{line}\n".join(["", *path.read_text().splitlines(keepends=True)]))
    assert run_in("over").instances.keys() == whole


@pytest.mark.parametrize("file", ["resume/history.jsonl", "fleet.jsonl", "resume/jobs.toml"])
def test_old_files_are_bounded(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """They are read whole, whoever has written them."""
    path = Path("killed") / file
    most = max(each.stat().st_size for each in Path("killed").rglob("*"))
    monkeypatch.setattr(_old_record, "MOST_BYTES", most)
    path.write_text(path.read_text().ljust(most + 1))
    with pytest.raises(RecordUnreadable, match=f"{re.escape(str(path))} cannot be used: it has more than"):
        read_run(Path("killed"))


@pytest.mark.parametrize("file", ["over/results.json", "killed/resume/history.jsonl", "killed/resume/jobs.toml"])
def test_old_files_that_are_nested_deeply_end_in_no_traceback(file: str) -> None:
    """As whoever wants a traceback makes them."""
    Path(file).write_text("[" * 100_000 + "\n")
    run = Path(file.partition("/")[0])
    if file.endswith(".toml"):
        assert read_run(run).jobs
    else:
        with pytest.raises((RecordUnreadable, NotRecorded), match="cannot be used"):
            read_run(run)
