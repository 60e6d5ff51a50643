"""What a run leaves to be looked at, and ``taskscaler report``, which looks back on it."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner, Result
from rich.console import Console

from taskscaler._errors import ResultsInTheWay
from taskscaler._recorded_run import read_run
from taskscaler.batch import Begun, Ended, JobState, Plan, Planned, RecordedEvent, Results, Started, read_events
from taskscaler.batch._events import as_line, header
from taskscaler.cli import main
from taskscaler.cli._run import new_results
from taskscaler.cli._timeline import print_figures
from taskscaler.executors import StepUse
from taskscaler.report import Figures, Spread, figure_out, lay_out
from tests.taskscaler.recorded import POOL, START, begun, instance, run

JOBS = """
[autoscaler]
plugin = "local"
max_instances = 1
capacity_per_instance = 2
update_interval_when_expecting = "20ms"

[autoscaler.plugin_config]
directory = "{directory}/fleet"

[[jobs]]
name = "a"
copies = 3
script = "{script}"
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a directory of the test's own, also for the state of fleets."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, arguments, prog_name="taskscaler")


def run_jobs(script: str = "true") -> Result:
    """Run three jobs on one instance, with results in a directory of that name."""
    Path("jobs.toml").write_text(JOBS.format(directory=Path.cwd(), script=script))
    return invoke("run", "jobs.toml", "--output", "results")


# --- what a run leaves -----------------------------------------------------------------------------------


def test_a_run_leaves_its_record_and_its_timeline() -> None:
    """The summary says where the picture is, and the record tells of all there was."""
    result = run_jobs()
    assert (result.exit_code, result.stderr) == (0, "")
    assert "timeline   results/timeline.svg\n" in result.stdout
    assert Path("results/timeline.svg").read_text().count("<text") > 5
    assert Path("results/timeline.png").read_bytes().startswith(b"\x89PNG")
    first = read_events(Path("results/events.jsonl"))[0]
    assert isinstance(first, Begun)
    assert [(pool.plugin, pool.capacity_per_instance, pool.max_instances) for pool in first.pools] == [("local", 2, 1)]
    run = read_run(Path("results"))
    assert [(job.name, job.state, len(job.attempts)) for job in run.jobs.values()] == [
        (f"a-0{number}", JobState.SUCCEEDED, 1) for number in (1, 2, 3)
    ]


def test_a_run_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sentence; all else is as ever, and the picture can be made later."""
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "taskscaler.report._draw", raising=False)
        without.setitem(sys.modules, "matplotlib", None)
        result = run_jobs()
        told = "the timeline needs matplotlib; pip install 'taskscaler[pictures]', then taskscaler report results"
        assert f"timeline   none: {told}\n" in result.stdout
        assert (result.exit_code, result.stderr) == (0, "")
        assert not list(Path("results").glob("timeline.*"))
        result = invoke("report", "results")
        assert (result.exit_code, result.stderr) == (0, f"note: {told} [TS108]\n")
        assert "3: 3 succeeded" in result.stdout
    assert invoke("report", "results").exit_code == 0
    assert Path("results/timeline.svg").exists()


def test_a_picture_that_cannot_be_written_fails_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch went well; that the timeline did not is told, whatever the reason."""
    outcomes = {}
    for name, what in (("unwritable", OSError("disk full")), ("broken", ZeroDivisionError())):

        def fail(*_: object, error: Exception = what) -> None:
            raise error

        monkeypatch.setattr("taskscaler.report._draw.draw", fail)
        Path("jobs.toml").write_text(JOBS.format(directory=Path.cwd(), script="true"))
        outcomes[name] = invoke("run", "jobs.toml", "--output", name)
    assert {(each.exit_code, each.stderr) for each in outcomes.values()} == {(0, "")}
    assert "timeline   none: disk full\n" in outcomes["unwritable"].stdout
    assert (
        "timeline   none: it could not be drawn (ZeroDivisionError); see broken/fleet.log" in outcomes["broken"].stdout
    )
    assert "timeline_failed" in Path("broken/fleet.log").read_text()


# --- taskscaler report -----------------------------------------------------------------------------------


def test_the_figures_are_told_and_the_timeline_drawn_anew() -> None:
    """For people as a table, for programs as JSON."""
    run_jobs(script="exit 3")
    Path("results/timeline.svg").unlink()
    result = invoke("report", "results", "--price-per-hour", "0.5")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "3: 3 failed" in result.stdout
    assert " at 0.5 an hour" in result.stdout
    assert "results/timeline.svg" in result.stdout
    assert Path("results/timeline.svg").exists()
    result = invoke("report", "results", "--price-per-hour", "0.5", "--json")
    told = json.loads(result.stdout, parse_constant=pytest.fail)
    assert (told["version"], told["jobs"]["states"], told["timeline"]) == (1, {"failed": 3}, "results/timeline.svg")
    assert told["cost"] == pytest.approx(told["instance_hours"] * 0.5)
    assert told["cost_per_job"] is None
    assert json.loads(invoke("report", "results", "--json").stdout)["cost"] is None


def figures(**changed: object) -> Figures:
    """Of a run of moderate size."""
    values: dict[str, object] = {
        "duration": 793.0,
        "paused": 0.0,
        "jobs": 36,
        "states": {"succeeded": 35, "failed": 1},
        "retried": 2,
        "waited": Spread(median=205.9, p95=452.0, max=489.1),
        "ran": Spread(median=142.7, p95=287.5, max=294.3),
        "instances": 6,
        "lost": 1,
        "booted": Spread(median=44.0, p95=44.0, max=44.0),
        "instance_time": 3600.0,
        "boot_time": 360.0,
        "busy_time": 2880.0,
        "idle_time": 288.0,
        "leaving_time": 72.0,
        "held_time": 0.0,
        "unwatched_time": 0.0,
        "slot_time": 5400.0,
        "utilisation": 0.857,
        "utilisation_overall": 0.75,
        "cpu_time": None,
        "peak_memory": None,
        "disk_written": None,
        "steps": (),
        "price_per_hour": 0.12,
        "priced": None,
        "currency": "",
        **changed,
    }
    return Figures(**values)  # type: ignore[arg-type]


def test_the_table_reads_well() -> None:
    """Every figure in the unit that people think in, and none that there is not."""
    output = io.StringIO()
    print_figures(Console(file=output, width=100), figures(), Path("results/timeline.svg"))
    assert output.getvalue().splitlines() == [
        "jobs       36: 35 succeeded · 1 failed, 2 retried",
        "time       13m13s in all",
        "fleet      6 instances, 1 lost",
        "in use     85.7% of the ready slots; 75.0% with boot and removal",
        "paid for   1.00 instance-hours: busy 80% · idle 8% · boot 10% · removal 2%",
        "cost       0.12 at 0.12 an hour, 0.0034 a job that succeeded",
        "",
        "             median       95%   longest",
        "waited        3m26s     7m32s      8m9s",
        "ran           2m23s     4m48s     4m54s",
        "booted          44s       44s       44s",
        "",
        "timeline   results/timeline.svg",
    ]
    output = io.StringIO()
    used = {"cpu_time": 5025.0, "peak_memory": 3 << 30, "disk_written": 5 << 20}
    print_figures(Console(file=output, width=100), figures(instance_time=8.0, **used), None)
    assert "paid for   0.0022 instance-hours" in output.getvalue()
    known = figures(price_per_hour=None, priced=0.25, currency="EUR")
    assert known.cost == 0.25
    print_figures(Console(file=output, width=100), known, None)
    assert "cost       0.25 EUR, 0.0071 a job that succeeded\n" in output.getvalue()
    assert "used       1h23m of CPU, 3 GiB of memory at most, 5 MiB written\n" in output.getvalue()
    steps = (StepUse(path="build", count=36, duration=300.0), StepUse(count=70, duration=100.0, cpu_time=5.0))
    output = io.StringIO()
    print_figures(Console(file=output, width=100), figures(steps=steps), None)
    assert output.getvalue().splitlines()[4:7] == [
        "steps      106 in all: 6m40s, 5s of CPU",
        "           build (36 times): 5m (75%)",
        "           70 others: 1m40s (25%), 5s of CPU (100%)",
    ]
    output = io.StringIO()
    nothing = figures(waited=None, ran=None, booted=None, utilisation=None, instance_time=0.0, price_per_hour=None)
    print_figures(Console(file=output, width=100), nothing, None)
    assert "waited" not in output.getvalue()
    assert "cost" not in output.getvalue()


def test_steps_of_one_name_are_one_in_a_report() -> None:
    """Of all jobs and tries; with all that they used, and the most memory of any."""
    step = StepUse(path="build", ended="succeeded", duration=5.0, peak_memory=1)
    happened: list[RecordedEvent] = [
        evolve(begun(), jobs=Plan([Planned(name="a", retries=1), Planned(name="b", retries=0)]))
    ]
    for at, (job, state) in enumerate([("a", JobState.LOST), ("a", JobState.SUCCEEDED), ("b", JobState.SUCCEEDED)]):
        happened.append(Started(at=START + 10 * at, job=job, pool="default", instance="i-1", slot=0))
        used = (evolve(step, peak_memory=at), StepUse(path=f"only in {job}", duration=1.0))
        happened.append(Ended(at=START + 10 * at + 9, job=job, state=state, steps=used))
    recorded_run = run(*happened)
    found = figure_out(recorded_run, lay_out(recorded_run)).steps
    assert [(each.path, each.count, each.duration, each.peak_memory) for each in found] == [
        ("build", 3, 15.0, 2),
        ("only in a", 2, 2.0, None),
        ("only in b", 1, 1.0, None),
    ]


def test_the_prices_of_pools_make_a_report(tmp_path: Path) -> None:
    """Each time that an instance ran is billed as its cloud does; a price for the report wins."""
    priced = evolve(POOL, price_per_hour=6.0, currency="EUR", billing_increment=60.0)
    happened: list[RecordedEvent] = [
        evolve(begun(), pools=(priced,)),
        instance(10, "i-1", "running"),
        instance(25, "i-1", "suspended"),
        instance(40, "i-1", "running"),
        instance(105, "i-1", "gone"),
    ]
    recorded_run = run(*happened)
    timeline = lay_out(recorded_run)
    known = figure_out(recorded_run, timeline)
    assert [each.runs for each in timeline.rows] == [[(START + 10, START + 25), (START + 40, START + 105)]]
    assert known.cost == pytest.approx(0.1 + 0.2)
    assert known.currency == "EUR"
    assert figure_out(recorded_run, timeline, price_per_hour=36.0).cost == pytest.approx(0.8)
    unpriced = run(begun(), *happened[1:])
    assert figure_out(unpriced, lay_out(unpriced)).cost is None
    log = tmp_path / "events.jsonl"
    log.write_bytes(header() + b"".join(map(as_line, happened)))
    assert read_events(log) == happened


def test_an_interrupted_batch_can_be_looked_back_on() -> None:
    """What it left when it was killed is enough: no summary, half a line at the end, jobs that have not ended."""
    run_jobs()
    results = Results(Path("results"))
    results.summary.unlink()
    lines = results.events.read_bytes().splitlines(keepends=True)
    end = next(at for at, line in enumerate(lines) if b"started" in line) + 1
    results.events.write_bytes(b"".join(lines[:end]) + lines[end][:20])
    result = invoke("report", "results")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "3: 3 queued" in result.stdout


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            "rm -r results/*",
            "results holds no results of a batch; name the directory that `taskscaler run` wrote",
        ),
        (
            r"sed -i '/event....\(instance\|decision\)/d' results/events.jsonl",
            "the fleet of results was not recorded; see fleet.log and the logs there",
        ),
        (": > results/events.jsonl", "results/events.jsonl cannot be used: it is not the event log of a batch;"),
        ("echo x >> results/events.jsonl", "results/events.jsonl cannot be used: line "),
        (
            "sed -i '1s/[0-9]*}/99}/' results/events.jsonl",
            "results/events.jsonl cannot be used: a newer release has written it; use that release",
        ),
        (
            "rm results/events.jsonl && mkdir results/events.jsonl",
            "results/events.jsonl cannot be used: Is a directory",
        ),
    ],
)
@pytest.mark.needs("sed")
def test_what_cannot_be_looked_back_on_is_told(spoil: str, message: str) -> None:
    """In one sentence on standard error, with status 2."""
    run_jobs()
    subprocess.run(["/bin/sh", "-c", spoil], check=True)
    result = invoke("report", "results")
    assert result.stderr.startswith(f"error: {message}")
    assert (result.exit_code, result.stderr.count("\n"), result.stdout) == (2, 1, "")


# --- directories for results -----------------------------------------------------------------------------


def test_two_runs_of_one_second_have_results_of_their_own() -> None:
    """A directory is made by one run alone; the next is numbered."""
    path = Path("taskscaler-results", "jobs-20260302-090000")
    first, made = new_results(path)
    assert (first.directory, made) == (path, [path, path.parent])
    assert [new_results(path)[0].directory.name for _ in range(2)] == [f"{path.name}-2", f"{path.name}-3"]


def test_of_two_runs_that_make_a_directory_at_once_one_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though neither saw it before: the other is told, or takes the next name if nobody asked for this one."""
    path = Path("results")
    Results(path).prepare()
    with monkeypatch.context() as blind:
        blind.setattr(Path, "exists", lambda each: each == Path())
        with pytest.raises(ResultsInTheWay, match="results belongs to another run; name another directory"):
            Results(path).prepare()
        assert new_results(path)[0].directory == Path("results-2")
