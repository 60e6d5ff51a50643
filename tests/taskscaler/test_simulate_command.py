"""``taskscaler simulate``: what it prints, the page that it writes, and what it refuses."""

import json
import os
import re
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner, Result

from taskscaler import InstanceEvent
from taskscaler.batch import JobState, RecordedEvent, read_events
from taskscaler.batch._events import as_line, header
from taskscaler.cli import main
from taskscaler.simulation import Empirical, Environment, TraceUnreadable, fit, read_trace
from tests.docs.test_agents import keys_of
from tests.taskscaler.recorded import START, begun, ends, instance, resumed, starts

FLEET = """
[autoscaler]
plugin = "local"
price_per_hour = 0.6
currency = "EUR"

[[autoscaler.policy]]
idle_time = "5m"
"""

POOLS = """
[autoscaler]
plugin = "local"

[[autoscaler.pools]]
name = "spot"
max_instances = 3

[[autoscaler.pools]]
name = "on-demand"
"""

SOME = "--synthetic jobs=300,over=6h,duration=exp(3m),bursts=0.2,burst_jobs=20"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with files of fleets."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "pools.toml").write_text(POOLS)
    return tmp_path


def simulate(arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["simulate", *arguments.split()], env={"COLUMNS": "200"})


def test_it_prints_what_came_of_it(place: Path) -> None:
    """For people, and for programs the same; twice the same."""
    printed = simulate(f"fleet.toml {SOME}")
    assert printed.exit_code == 0, printed.stderr
    assert re.search(r"^jobs +300 from 2024-01-01T\S+Z on, over ", printed.stdout, re.MULTILINE)
    assert "cloud        boot 1m0s\n" in printed.stdout
    assert re.search(r"^cost +\S+ EUR, \S+ a job$", printed.stdout, re.MULTILINE)
    assert re.search(r"^(decisions)? +\S+ times: request: jobs wait \(\d+ instances\)$", printed.stdout, re.MULTILINE)
    data = json.loads(simulate(f"fleet.toml {SOME} --json").stdout)
    assert data.keys() == keys_of("taskscaler simulate --json")
    assert data["jobs"] == {"total": 300, "done": 300, "refused": 0, "interrupted": 0}
    instances = data["instances"]
    assert f"{instances['bought']} bought" in printed.stdout
    assert f"{instances['idle_removed']} idle, {instances['undone_share']:.1%} of them" in printed.stdout
    assert instances["undone_share"] == instances["undone"] / instances["idle_removed"]
    assert data["cost"] == pytest.approx(data["billed_hours"] * 0.6)
    assert len(data["series"]["instances"]) == len(data["series"]["waiting"])
    assert simulate(f"fleet.toml {SOME}").stdout == printed.stdout
    assert not [*place.glob("*.html")]


def test_a_page(place: Path) -> None:
    """It holds all that it needs, and is the same each time; nothing in a file's name is markup."""
    (place / "<b>.toml").write_text(FLEET)
    for number in range(2):
        written = simulate(f"<b>.toml {SOME} --report report.html")
        assert written.exit_code == 0, written.stderr
        assert written.stdout.endswith("report       report.html\n")
        (place / "report.html").rename(place / f"{number}.html")
    page = (place / "0.html").read_text()
    assert page == (place / "1.html").read_text()
    assert page.count("<svg") == 4
    assert "&lt;b&gt;.toml" in page
    assert "<b>" not in page
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"|url\((?!#)|@import|<script|<link', page)


def test_a_page_of_a_file_whose_name_is_not_text(place: Path) -> None:
    """It shows the name as well as it can."""
    name = os.fsdecode(b"fl\xe9et.toml")
    (place / name).write_text(FLEET)
    written = CliRunner().invoke(main, ["simulate", name, *SOME.split(), "--report", "report.html"])
    assert written.exit_code == 0, written.stderr
    assert "fl?et.toml" in (place / "report.html").read_text()


def test_pools_and_a_bad_cloud(place: Path) -> None:  # noqa: ARG001  (the files are there)
    """What a cloud is like may be said of all pools, or of one."""
    printed = simulate(
        f"pools.toml {SOME} --boot 10s --boot spot:30s..90s --answer exp(1s) --boot-failure 5% --ready 2s"
        " --stock-outs spot:every=exp(1h),lasts=5m --preemptions spot:after=exp(1h),notice=2m --acquire-timeout 10m"
    )
    assert printed.exit_code == 0, printed.stderr
    assert (
        "cloud        spot: boot 30s..1m30s, ready 2s, answer exp(1s), 0.05 of instances fail to boot" in printed.stdout
    )
    assert "on-demand: boot 10s, ready 2s, answer exp(1s), 0.05 of instances fail to boot\n" in printed.stdout
    assert re.search(r"^pools +spot: \S+ bought, at most 3 at once, ", printed.stdout, re.MULTILINE)
    assert "\ncost" not in printed.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("fleet.toml", "give either --trace PATH, with jobs that have run, or --synthetic SPEC"),
        ("fleet.toml --synthetic jobs=1 --trace fleet.toml", "give either --trace PATH"),
        ("fleet.toml --synthetic jobs=1 --columns submit=a", "--columns needs --trace PATH"),
        ("fleet.toml --synthetic job=1", "did you mean `jobs`?"),
        ("fleet.toml --trace fleet.toml", "expected JSON as GitLab's API gives it at /jobs, or else a table"),
        ("fleet.toml --trace pools.toml --columns submit", "--columns: expected submit=NAME,duration=NAME"),
        ("fleet.toml --synthetic jobs=1 --boot fast", "--boot: expected 60s, 40s..90s"),
        ("fleet.toml --synthetic jobs=1 --boot other:5s", "--boot: there is no pool 'other'; the pools are default"),
        ("pools.toml --synthetic jobs=1 --boot spit:5s", "--boot: there is no pool 'spit'; did you mean `spot`?"),
        ("fleet.toml --synthetic jobs=1 --boot-failure 7", "--boot-failure: expected a share such as 0.05 or 5%"),
        ("fleet.toml --synthetic jobs=1 --stock-outs every=5s", "--stock-outs: expected such as every=exp(24h)"),
        ("fleet.toml --synthetic jobs=1 --preemptions afte=5s", "did you mean `after`?"),
        ("fleet.toml --synthetic jobs=1 --preemptions after=0s", "after: expected more than 0 s, since nothing could"),
        ("fleet.toml --synthetic jobs=1 --since soon", "--since: expected a time such as"),
        ("fleet.toml --synthetic jobs=1 --since 2031-01-01", "no job is submitted between --since and --until; the"),
        ("fleet.toml --synthetic jobs=1 --fit .", "holds no results of a batch"),
        ("fleet.toml --synthetic jobs=1 --report no/where.html", "there is no directory no"),
        ("fleet.toml --synthetic jobs=1 --report /dev/null", "/dev/null is not a regular file"),
        ("fleet.toml --synthetic jobs=1 --report fleet.toml", "fleet.toml exists, and is not an HTML page that a"),
        ("fleet.toml --synthetic jobs=1 --since 2025", "--since: expected a time such as 2024-01-"),
        ("fleet.toml --synthetic jobs=1 --until 20250101", "--until: expected a time such as 2024-01-"),
        ("fleet.toml --synthetic begins=9999-12-31", "--synthetic: begins: expected a time between 1843 and 2096"),
    ],
)  # fmt: skip
def test_what_is_wrong(place: Path, arguments: str, says: str) -> None:  # noqa: ARG001  (the files are there)
    """It is one error, with what to do, and no traceback."""
    refused = simulate(arguments)
    assert refused.exit_code == 2
    assert says in refused.stderr
    assert refused.stdout == ""


def test_a_fleet_that_cannot_run_its_jobs(place: Path) -> None:  # noqa: ARG001  (the files are there)
    """It is no mistake of the arguments."""
    refused = simulate("fleet.toml --synthetic jobs=1 --ready-failure 1")
    assert refused.exit_code == 1
    assert "no job has ended for 2d" in refused.stderr


# --- recorded runs -------------------------------------------------------------------------------------------


def record(place: Path, *events: RecordedEvent) -> Path:
    """Leave the event log of a batch."""
    place.mkdir()
    (place / "events.jsonl").write_bytes(header() + b"".join(map(as_line, events)))
    return place


def a_run(place: Path) -> Path:
    """Two instances, of which one is lost with its job; a third that fails."""
    return record(
        place,
        begun("a", "b", "c"),
        instance(1, "i-1", "creating"),
        instance(1, "i-2", "creating"),
        instance(31, "i-1", "pending"),
        instance(33, "i-1", "running"),
        starts(33, "a", "i-1"),
        instance(41, "i-2", "running"),
        starts(41, "b", "i-2"),
        ends(73, "a"),
        starts(73, "c", "i-1"),
        instance(91, "i-2", "gone", "the cloud took it", lost=True),
        ends(91, "b"),
        instance(92, "i-3", "creating"),
        instance(95, "i-3", "deleting", "it failed", lost=True),
        instance(96, "i-3", "gone"),
        ends(103, "c"),
        instance(110, "i-1", "deleting", "shutdown"),
        instance(114, "i-1", "gone"),
    )


def test_the_jobs_of_recorded_runs(tmp_path: Path) -> None:
    """Each try is a job, submitted when the batch began; of one that a later command made, when that began."""
    trace = read_trace(a_run(tmp_path / "one"))
    assert [each - START for each in trace.jobs.submits] == [0, 0, 0]
    assert sorted(trace.jobs.durations) == [30, 40, 50]
    record(
        tmp_path / "two", begun("a"), instance(1, "i-1", "running"), resumed(50), starts(60, "a", "i-1"), ends(80, "a")
    )
    both = read_trace(tmp_path)
    assert [each - START for each in both.jobs.submits] == [0, 0, 0, 50]
    assert both.notes == ("the jobs of 2 runs",)
    assert read_trace(tmp_path / "two" / "events.jsonl").jobs.durations.tolist() == [20]


def test_a_try_that_was_lost_is_no_job(tmp_path: Path) -> None:
    """A simulated cloud takes instances, too, and its jobs run again: they would be simulated twice."""
    trace = read_trace(
        record(
            tmp_path / "run",
            begun("a", "b", "c"),
            instance(1, "i-1", "running"),
            starts(10, "a", "i-1"),
            ends(40, "a", JobState.LOST, "the cloud took it"),
            starts(50, "a", "i-1"),
            ends(70, "a"),
            starts(100, "b", "i-1"),
            ends(110, "b", JobState.LOST, "the cloud took it"),
            starts(120, "c", "i-1"),
        )
    )
    assert [each - START for each in trace.jobs.submits] == [0]
    assert trace.jobs.durations.tolist() == [20]
    assert trace.notes == ("the jobs of one run", "2 tries without an end left out")


def test_a_cloud_like_that_of_recorded_runs(place: Path) -> None:
    """Times, failures and losses are measured; what is given on the command line wins."""
    a_run(place / "results")
    environment, notes = fit([place / "results"])
    found = environment.of("default")
    assert found.boot == Empirical((29.999, 39.999))  # a view showed it a little later
    assert found.boot == environment.of("any other, as there is only one").boot
    assert str(found.ready) == "2s"
    assert found.delete == Empirical((0.999, 3.999))
    assert found.boot_failure == pytest.approx(1 / 3)
    assert found.preemptions is not None
    assert str(found.preemptions.after) == "exp(2m7s)"  # one loss in 77 and 50 s
    assert "one is lost in exp(2m7s)" in notes[0]
    printed = simulate("fleet.toml --trace results --fit results --preemptions after=exp(24h)")
    assert printed.exit_code == 0, printed.stderr
    assert "fitted default: boot as measured 2 times (median 30 s, p95 40 s)" in printed.stdout
    (place / "pools.toml").write_text(POOLS)
    events = read_events(place / "results" / "events.jsonl")
    moved = [evolve(each, pool="east") if isinstance(each, InstanceEvent) else each for each in events]
    record(place / "east", *moved)
    both = simulate("pools.toml --trace results --fit results --fit east")
    assert both.exit_code == 2
    assert "--fit: the results have the pools default and east, and the fleet only spot and on-demand" in both.stderr
    record(place / "nothing", begun("a"))
    with pytest.raises(TraceUnreadable, match="no instance became ready in"):
        fit([place / "nothing"])
    assert Environment().of("default").boot_failure == 0
