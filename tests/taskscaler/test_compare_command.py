"""``taskscaler compare``: fleets side by side, which of them no other beats, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from taskscaler import Policy
from taskscaler.cli import main
from taskscaler.config import PoolTable
from taskscaler.simulation import Fleet, Synthetic
from taskscaler.simulation._compare import compare
from taskscaler.simulation._policies import parse_policy, write_policy
from tests.docs.test_agents import keys_of

FLEET = """
[autoscaler]
plugin = "local"
price_per_hour = 0.5
currency = "EUR"

[[autoscaler.policy]]
idle_count = 2
idle_time = "10m"
"""

SOME = "--synthetic jobs=200,over=4h,duration=exp(2m),bursts=0.2,burst_jobs=10"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with files of fleets."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "free.toml").write_text(FLEET.replace("price_per_hour = 0.5\n", ""))
    (tmp_path / "tight.toml").write_text(FLEET.replace("10m", "1m"))
    return tmp_path


def run(arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["compare", *arguments.split()], env={"COLUMNS": "200"})


def test_fleets_side_by_side(place: Path) -> None:
    """For people, and for programs the same; the frontier in a page."""
    wanted = f"fleet.toml tight.toml --policy idle_time=5m {SOME}"
    printed = run(f"{wanted} --report page.html")
    assert printed.exit_code == 0, printed.stderr
    data = json.loads(run(f"{wanted} --json").stdout)
    assert data.keys() == keys_of("taskscaler compare --json")
    assert [each["name"] for each in data["fleets"]] == ["fleet.toml", "tight.toml", "idle_count=0,idle_time=5m0s"]
    assert (data["currency"], data["boot"]) == ("EUR", 60.0)
    best = [each["name"] for each in sorted(data["fleets"], key=lambda each: each["cost"]) if each["frontier"]]
    lines = printed.stdout.splitlines()
    assert f"frontier     {'; '.join(best)}" in lines
    table = [line.split() for line in lines if line.strip().startswith(("fleet.toml ", "tight.toml ", "clairvoyant "))]
    hours = [each["instance_hours"] for each in data["fleets"][:2]] + [data["clairvoyant"]["instance_hours"]]
    assert [float(row[1]) for row in table[-4:-1]] == [pytest.approx(each, abs=0.006) for each in hours]
    assert [row[4] for row in table[-4:-2]] == [f"{each['undone_share']:.0%}" for each in data["fleets"][:2]]
    page = (place / "page.html").read_text()
    assert page.count("<svg") == 1
    (place / r"$\frac$.toml").write_text(FLEET)
    assert run(rf"$\frac$.toml {SOME} --report odd.html").exit_code == 0
    assert "tight.toml" in page


def test_without_prices_hours_are_compared(place: Path) -> None:
    """And so they are where only some have one."""
    for files in ("free.toml", "fleet.toml free.toml"):
        data = json.loads(run(f"{files} --policy idle_count=0 {SOME} --json").stdout)
        assert data["currency"] is None
    assert (place / "free.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--policy idle_tme=5m", "--policy: expected a policy such as idle_count=5,idle_time=20m, found 'idle_tme=5m'"),
        ("--policy idle_time=5", "--policy: idle_time: expected a duration such as 20m, found '5'"),
        ("--policy idle_count=-1", "idle_count"),
        ("--policy idle_count=1,idle_count=2", "idle_count is given twice"),
        ("--policy idle_count=1 --policy idle_count=1", "is given twice; name each fleet and each policy once"),
        ("fleet.toml", "fleet.toml is given twice"),
    ],
)
def test_what_is_wrong_is_said(place: Path, arguments: str, says: str) -> None:
    """In one line, before anything is simulated."""
    refused = run(f"fleet.toml {arguments} {SOME}")
    assert refused.exit_code == 2
    assert says in refused.stderr
    assert refused.stdout == ""
    assert place.exists()


@given(
    st.builds(
        Policy,
        idle_count=st.integers(0, 100),
        idle_time=st.integers(0, 10**6).map(float),
        scale_factor=st.sampled_from([0.0, 0.5, 2.0]),
        scale_factor_limit=st.integers(0, 10),
    )
)
def test_a_policy_is_read_as_it_is_written(policy: Policy) -> None:
    """So the name of a fleet is what made it."""
    assert parse_policy(write_policy(policy)) == policy


def test_the_frontier_has_those_that_no_other_beats() -> None:
    """In both cost and waiting; all others are beaten by one of them."""
    jobs = Synthetic(jobs=300, over=6 * 3600.0).make(0)
    fleet = Fleet(pools=(PoolTable(plugin="any"),), policies=())
    idle = [Policy(idle_count=count, idle_time=seconds) for count in (0, 1, 3) for seconds in (0.0, 120.0, 900.0)]
    found = compare({write_policy(policy): evolve(fleet, policies=(policy,)) for policy in idle}, jobs)
    best = found.frontier
    for entry in found.entries:
        better = [each for each in best if found.cost(each) <= found.cost(entry) and each.wait <= entry.wait]
        assert better
        assert entry not in best or better == [entry]
    assert all(found.times_the_bound(entry) > 1 for entry in found.entries if entry.outcome.waits.max == 0)


def test_a_fleet_that_refuses_jobs_is_not_on_the_frontier(place: Path) -> None:  # noqa: ARG001  (the files are there)
    """It has no waiting because it sends away those that would wait; the table says how many."""
    printed = run(f"fleet.toml {SOME} --acquire-timeout 1s")
    assert printed.exit_code == 0, printed.stderr
    assert "frontier     none: every fleet refuses jobs" in printed.stdout
    assert re.search(r"p99 +refused", printed.stdout)
