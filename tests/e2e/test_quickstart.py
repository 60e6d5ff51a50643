"""The quickstart as its reader runs it: the real command, real agents, real jobs, and nothing left behind."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.leftovers import agents, environment, instances
from tests.e2e.quickstart import hold, shorten

COMMAND = (str(Path(sys.executable).with_name("taskscaler")), "run")
MAX_INSTANCES = 4
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def start(home: Path, jobs: Path, output: Path) -> "subprocess.Popen[str]":
    """Start the command, with plain lines on a pipe."""
    return subprocess.Popen(
        [*COMMAND, str(jobs), "--output", str(output)],
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def lines_until(process: "subprocess.Popen[str]", words: str, times: int = 1) -> list[str]:
    """Read what the command prints up to the line that has the words for so many times."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        times -= words in line
        if not times:
            return seen
    pytest.fail(f"the command ended before it said {words!r}:\n{''.join(seen)}")


def results(output: Path) -> dict[str, Any]:
    """What the batch wrote."""
    loaded: dict[str, Any] = json.loads((output / "results.json").read_text())
    return loaded


def most_at_once(jobs: list[dict[str, Any]]) -> int:
    """How many instances had jobs at the same time, at the most."""
    spans: dict[str, tuple[str, str]] = {}
    for attempt in (attempt for job in jobs for attempt in job["attempts"]):
        first, last = spans.get(attempt["instance"], (attempt["started"], attempt["ended"]))
        spans[attempt["instance"]] = min(first, attempt["started"]), max(last, attempt["ended"])
    starts = [first for first, _ in spans.values()]
    return max(sum(first <= start < last for first, last in spans.values()) for start in starts)


def one_of_the_tutorial(home: Path) -> int:
    """The process that the tutorial kills: one of this batch's instances, and never another batch's."""
    page = (Path(__file__).parents[2] / "docs/tutorials/first-batch.md").read_text()
    (found,) = re.findall(r"^kill -9 \$\((.*)\)$", page, flags=re.MULTILINE)
    return int(subprocess.run(["/bin/sh", "-c", found], env=environment(home), check=True, capture_output=True).stdout)


@pytest.mark.usefixtures("pictures")
def test_all_forty_jobs_succeed_within_the_ceiling(home: Path, tmp_path: Path, quickstart: Path) -> None:
    """40 of 40, on at most max_instances at once, each used at most max_use_count times, and a report at the end."""
    output = tmp_path / "out"
    process = start(home, quickstart, output)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    assert "40 succeeded" in said
    assert "modules, and" in said
    assert (output / "timeline.svg").exists()
    jobs = results(output)["jobs"]
    assert [job["state"] for job in jobs] == ["succeeded"] * 40
    assert most_at_once(jobs) <= MAX_INSTANCES
    uses = [attempt["instance"] for job in jobs for attempt in job["attempts"]]
    assert max(map(uses.count, uses)) <= 8


def test_killing_an_instance_costs_no_job(home: Path, tmp_path: Path, quickstart: Path, *, full: bool) -> None:
    """An agent is killed in the middle: its jobs run again elsewhere, and the summary and the results say so."""
    output, go, copies = tmp_path / "out", tmp_path / "go", 40 if full else 24
    if not full:
        shorten(quickstart, copies)
    hold(quickstart, "$TASKSCALER_JOB_INDEX = 20", go)
    process = start(home, quickstart, output)
    *_, runs = lines_until(process, "stdlib-21 runs on ")
    victim = runs.split(" runs on ")[1].split()[0].rstrip(",")
    pid = int((next(each for each in instances(home) if each.name == victim) / "agent.pid").read_text())
    assert one_of_the_tutorial(home) in {int((each / "agent.pid").read_text()) for each in instances(home)}
    os.kill(pid, signal.SIGKILL)
    go.touch()
    said, _ = process.communicate()
    assert process.returncode == 0, said
    jobs = results(output)["jobs"]
    assert [job["state"] for job in jobs] == ["succeeded"] * copies
    retried = [job for job in jobs if len(job["attempts"]) > 1]
    assert retried
    for job in retried:
        first, *_, last = job["attempts"]
        assert (first["instance"], first["state"]) == (victim, "lost")
        assert last["instance"] != victim
        told = next(line for line in said.splitlines() if line.startswith("retried") and job["name"] in line)
        assert victim in told


SLEEPERS = """
[autoscaler]
plugin = "local"
max_instances = 2
capacity_per_instance = 2
update_interval_when_expecting = "100ms"

[[jobs]]
name = "job"
copies = 8
script = "trap '' TERM; setsid {program} & wait"
"""
"""Jobs that are hard to end: the shell ignores SIGTERM, its child has a session of its own."""

LONG = SLEEPERS.format(program="sleep 300")


@pytest.mark.parametrize(("interrupts", "ended"), [(1, "succeeded"), (2, "cancelled")])
def test_ctrl_c_drains_and_a_second_one_stops(home: Path, tmp_path: Path, interrupts: int, ended: str) -> None:
    """The jobs that run end, or are ended; the rest is cancelled; the results say so; nothing is left."""
    jobs, output, go = tmp_path / "jobs.toml", tmp_path / "out", tmp_path / "go"
    jobs.write_text(SLEEPERS.format(program=f"sh -c 'until [ -e {go} ]; do sleep 0.05; done'"))
    process = start(home, jobs, output)
    lines_until(process, " runs on ", times=4)
    process.send_signal(signal.SIGINT)
    lines_until(process, "press Ctrl-C again to stop at once")
    if interrupts == 2:
        process.send_signal(signal.SIGINT)
    else:
        go.touch()
    said, _ = process.communicate()
    assert process.returncode == 130, said
    states = [job["state"] for job in results(output)["jobs"]]
    assert sorted(states) == sorted([ended] * 4 + ["cancelled"] * 4)


@pytest.mark.usefixtures("pictures")
def test_an_interrupt_of_very_many_jobs_ends_with_their_results_and_no_picture(home: Path, tmp_path: Path) -> None:
    """Drawing them would take longer than all else; another command does, if it is wanted."""
    jobs, output = tmp_path / "jobs.toml", tmp_path / "out"
    jobs.write_text(LONG.replace("copies = 8", "copies = 20_000"))
    process = start(home, jobs, output)
    lines_until(process, " runs on ", times=4)
    process.terminate()
    said, _ = process.communicate()
    assert process.returncode == 143, said
    assert f"none: the batch was interrupted; taskscaler report {output} draws it" in said
    assert not (output / "timeline.svg").exists()
    assert [job["state"] for job in results(output)["jobs"]] == ["cancelled"] * 20_000


@pytest.mark.parametrize("draining", [False, True], ids=["at work", "draining"])
def test_sigterm_stops_at_once(home: Path, tmp_path: Path, *, draining: bool) -> None:
    """Whoever sends it, such as a CI system, kills what has not ended soon: jobs are ended, and nothing is left."""
    jobs, output = tmp_path / "jobs.toml", tmp_path / "out"
    jobs.write_text(LONG)
    process = start(home, jobs, output)
    lines_until(process, " runs on ", times=4)
    if draining:
        process.send_signal(signal.SIGINT)
        lines_until(process, "press Ctrl-C again to stop at once")
    process.terminate()
    said, _ = process.communicate()
    assert process.returncode == (130 if draining else 143), said
    assert "stopping at once" in said
    assert [job["state"] for job in results(output)["jobs"]] == ["cancelled"] * 8


def test_a_reader_that_goes_away_does_not_end_the_batch(home: Path, tmp_path: Path) -> None:
    """Piped into ``head``, the command goes on in silence, and its results are whole."""
    jobs, output = tmp_path / "jobs.toml", tmp_path / "out"
    jobs.write_text(SLEEPERS.format(program="sleep 0.1"))
    process = start(home, jobs, output)
    lines_until(process, " runs on ")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait() == 0
    assert {job["state"] for job in results(output)["jobs"]} == {"succeeded"}


def test_a_manager_that_is_killed_leaves_a_fleet_that_ends_by_itself(home: Path, tmp_path: Path) -> None:
    """After kill -9 of the command its instances end once orphan_ttl has passed, with all that runs in them."""
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(LONG + '\n[autoscaler.plugin_config]\norphan_ttl = "500ms"\n')
    process = start(home, jobs, tmp_path / "out")
    lines_until(process, " runs on ", times=4)
    watched = [os.pidfd_open(pid) for pid in agents(home)]
    assert len(watched) == 2
    process.kill()
    process.communicate()
    for agent in watched:
        select.select([agent], [], [])  # it ends
        os.close(agent)
