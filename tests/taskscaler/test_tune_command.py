"""``taskscaler tune``: what it prints can be pasted, what it says of certainty, and what it refuses."""

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from taskscaler import Policy, config
from taskscaler._wording import counted
from taskscaler.cli import main
from taskscaler.cli._subject import read_subject
from taskscaler.cli._tune import as_toml
from tests.docs.test_agents import keys_of

POOL = """
[autoscaler]
plugin = "local"
update_interval = "1h"
update_interval_when_expecting = "30s"

"""
"""Its cloud is looked at rarely, which is what takes the time of a simulation of few jobs."""

FLEET = f"""{POOL}
[[autoscaler.policy]]
idle_count = 2
idle_time = "10m"
"""

GITLAB = """
[[runners]]
name = "ours"
url = "https://gitlab.example"
token = "glrt-x"
executor = "instance"

[runners.autoscaler]
plugin = "local"
update_interval = "1h"
update_interval_when_expecting = "30s"
capacity_per_instance = 1
max_instances = 1

[[runners.autoscaler.policy]]
idle_count = 1
idle_time = "10m"
"""

SOME = "--synthetic jobs=100,over=144h,duration=exp(2m),daily=0.8,bursts=0.2,burst_jobs=4"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with files of fleets."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "config.toml").write_text(GITLAB)
    return tmp_path


def run(arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["tune", *arguments.split()], env={"COLUMNS": "200"})


def test_what_it_prints_can_be_pasted(place: Path) -> None:
    """Instead of the file's own policy; for programs it is the same."""
    arguments = f"fleet.toml {SOME} --wait p90=30s"
    printed = run(arguments)
    assert printed.exit_code == 0, printed.stdout + printed.stderr
    data = json.loads(run(f"{arguments} --json").stdout)
    assert data.keys() == keys_of("taskscaler tune --json")
    toml = data["toml"]
    assert printed.stdout.endswith(f"put this into fleet.toml, in place of its policy:\n\n{toml}")
    (place / "fleet.toml").write_text(
        '[autoscaler]\nplugin = "local"\nupdate_interval = "1h"\nupdate_interval_when_expecting = "30s"\n\n' + toml
    )
    compared = CliRunner().invoke(main, ["compare", "fleet.toml", *SOME.split(), "--json", "--since", "2024-01-05"])
    (pasted,) = json.loads(compared.stdout)["fleets"]
    tuned = data["fleets"][1]
    assert {**pasted, "name": "tuned", "frontier": tuned["frontier"]} == tuned
    assert (data["met"], tuned["name"]) == (True, "tuned")
    assert data["judged"]["days"] == 2
    assert "the judged part has 2 days; to say more takes 3 or more" in printed.stdout


def test_it_is_the_table_that_gitlab_has(place: Path) -> None:
    """And if nothing meets the target, it says what comes closest and by how much it misses, and exits with 1."""
    printed = run(f"config.toml {SOME} --wait p100=1s --judge-from 40%")
    assert printed.exit_code == 1, printed.stdout + printed.stderr
    assert "no settings meet the target on the fitted part; these come closest" in printed.stdout
    assert "p100 is " in printed.stdout
    assert " on the fitted part, " in printed.stdout
    toml = printed.stdout[printed.stdout.index("[[runners.autoscaler.policy]]") :]
    assert tomllib.loads(toml)["runners"]["autoscaler"]["policy"]
    before, _, _ = GITLAB.partition("[[runners.autoscaler.policy]]")
    (place / "config.toml").write_text(before + toml)
    (policy,) = config.load(place / "config.toml").autoscaler.policy
    assert policy.idle_time > 0
    assert "of 1,000 draws of the 4 judged days, " in printed.stdout


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(idle_count=3, idle_time=90.0, scale_factor=0.25, scale_factor_limit=7, preemptive_mode=False),
        Policy(idle_time=800.0, mode="adaptive", preemptive_mode=True),
    ],
)
def test_a_policy_is_read_as_it_is_printed(place: Path, policy: Policy) -> None:
    """Whatever of it differs from the defaults."""
    (place / "fleet.toml").write_text(POOL + as_toml(policy, "autoscaler.policy"))
    assert read_subject(place / "fleet.toml", None).fleet.policy == (policy,)


def test_a_file_that_is_good_may_stay(place: Path) -> None:
    """Its own settings meet the target, and nothing else does for less."""
    plain = run(f"fleet.toml {SOME} --wait mean=10m --json")
    (place / "fleet.toml").write_text(POOL + json.loads(plain.stdout)["toml"])
    assert (
        "the file's own meet the target and cost no more; keep them" in run(f"fleet.toml {SOME} --wait mean=10m").stdout
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (f"{SOME} --wait p95", "--wait: expected a target such as p95=10s, p99=1m or mean=2s, found 'p95'"),
        (f"{SOME} --wait p95=1s --wait p95=2s", "--wait: p95 is given twice; give each once"),
        (f"{SOME}", "missing option '--wait'"),
        (f"{SOME} --wait p95=1s --judge-from x", "--judge-from: expected a share such as 60%, or a time such as"),
        (f"{SOME} --wait p95=1s --judge-from 300%", "--judge-from: expected a share such as 60%"),
        (f"{SOME} --wait p95=1s --judge-from 2023-01-01", "no job is submitted before 2023-01-01T00:00:00Z, where the"),
        (f"{SOME} --wait p95=1s --judge-from 2025-01-01", "no job is submitted from 2025-01-01T00:00:00Z on, where"),
        ("--synthetic over=20h --wait p95=1s", "give a trace of two days or more, or say from when on to judge with"),
    ],
)
def test_what_is_wrong_is_said(place: Path, arguments: str, says: str) -> None:
    """In one line, before anything is simulated."""
    refused = run(f"fleet.toml {arguments}")
    assert refused.exit_code == 2
    assert says in refused.stderr
    assert refused.stdout == ""
    assert place.exists()


def test_plurals() -> None:
    """As English has them."""
    found = [counted(2, "policy"), counted(1, "policy"), counted(2, "day"), counted(0, "try"), counted(2, "job")]
    assert found == ["2 policies", "1 policy", "2 days", "0 tries", "2 jobs"]
