"""Jobs go where the rules of ``[[dispatch]]`` send them, whoever runs them; ceilings hold over restarts."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner

from fleeting import MemoryJournal
from fleeting.testing import FakeCloud
from gitlab_jobs import Features, Job, JobInfo, encode_job
from gitlab_jobs.testing import FakeGitLab, State
from taskscaler_gitlab._view import JobView
from taskscaler_gitlab.cli import main
from tests.taskscaler_gitlab import sidecars, stand_in
from tests.taskscaler_gitlab.services import Bench, Held, Scripted, serving
from tests.taskscaler_gitlab.sidecars import script

pytestmark = [
    pytest.mark.anyio,
    # httpx leaves its own generators open when an answer is not read to its end, and trio tells of them
    pytest.mark.filterwarnings("ignore:.*async_generator object .*Stream:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
]

POOLS = ("spot", "on-demand")
RULES = """
[[dispatch]]
name = "forks"
when.namespace = "forks/**"
refuse = "forks build elsewhere"
[[dispatch]]
name = "live"
when.stage = "live"
pools = "on-demand"
at_most = 1
"""


@pytest.fixture
def gitlab(tmp_path: Path) -> FakeGitLab:
    """One that answers at once."""
    (tmp_path / "gitlab").mkdir()
    return FakeGitLab(tmp_path / "gitlab", long_poll=0.05, accepts=0)


def a_job(stage: str = "build", project: str = "platform/shop") -> Job:
    """A job of a stage and a project."""
    reasons = Features(failure_reasons=("runner_configuration_error", "unknown_failure"))
    info = JobInfo(name=f"a job of {stage}", stage=stage, project_full_path=project)
    return Job(id=7, token="a-token", job_info=info, features=reasons)


def said_of(bench: Bench, number: int) -> str:
    """What the runner explains about a job."""
    return "\n".join(bench.service.explain(f"gitlab-{number}"))


def instances(bench: Bench, numbers: Sequence[int]) -> list[str]:
    """Of which pools the slots are that jobs have."""
    views = [view for view in bench.service.jobs if isinstance(view, JobView)]
    leases = {view.work.job.id: view.work.lease for view in views}
    return [lease.pool if (lease := leases.get(number)) is not None else "" for number in numbers]


def at_the_gate(bench: Bench, numbers: Sequence[int]) -> list[int]:
    """Which of these jobs wait because of a ceiling."""
    return [number for number in numbers if "waits because 1 of at most 1 jobs run by" in said_of(bench, number)]


def stand(bench: Bench, numbers: Sequence[int], pool: str) -> bool:
    """Whether one of two jobs has a slot of the pool, and the other waits because of that: whichever came first."""
    return sorted(instances(bench, numbers)) == ["", pool] and len(at_the_gate(bench, numbers)) == 1


async def test_jobs_get_slots_of_the_pools_of_their_rules(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """And any where no rule is for them; each says why it is where it is."""
    held, rules = Held(), f'{RULES}[[dispatch]]\nname = "cheap"\nwhen.job = "* build"\npools = "spot"\n'
    jobs = [gitlab.enqueue(a_job(stage)) for stage in ("build", "live", "test")]
    start = partial(serving, tmp_path, gitlab, runs=Scripted(held), pools=POOLS, capacity_per_instance=1)
    async with start(rules=rules) as bench:
        await bench.until(lambda: "" not in instances(bench, jobs))
        assert instances(bench, jobs)[:2] == ["spot", "on-demand"]
        assert "the rule 'cheap' sends it to spot (job a job of build)" in said_of(bench, jobs[0])
        assert "the rule 'live' sends it to on-demand (stage live)" in said_of(bench, jobs[1])
        assert "no rule of [[dispatch]] is for it, so it may use any pool" in said_of(bench, jobs[2])
        held.go.set()
        for number in jobs:
            assert (await gitlab.ended(number)).state is State.SUCCESS
        await bench.until(lambda: not bench.service.running)
        assert "is over: succeeded\nthe rule 'live' sends it to on-demand (stage live)" in said_of(bench, jobs[1])
    async with start() as bench:  # of an earlier one's jobs, too
        assert "the rule 'live' sends it to on-demand (stage live)" in said_of(bench, jobs[1])


async def test_no_more_jobs_run_by_a_rule_than_it_allows(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """The next waits, without a slot kept for it, and says for what; others go past."""
    held = Held()
    jobs = [gitlab.enqueue(a_job("live")) for _ in range(2)]
    async with serving(
        tmp_path, gitlab, runs=Scripted(held), pools=POOLS, capacity_per_instance=1, rules=RULES
    ) as bench:
        await bench.until(lambda: stand(bench, jobs, "on-demand"))
        other = gitlab.enqueue(a_job())
        await bench.until(lambda: instances(bench, [other]) == ["spot"])
        held.go.set()
        for number in (*jobs, other):
            assert (await gitlab.ended(number)).state is State.SUCCESS


async def test_a_ceiling_holds_over_a_restart(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """The job that runs counts again, and the one that waits goes on waiting."""
    held, journal, cloud, rules = Held(), MemoryJournal(), FakeCloud(), RULES.replace('"on-demand"', '"default"')
    jobs = [gitlab.enqueue(a_job("live")) for _ in range(2)]
    start = partial(serving, tmp_path, gitlab, runs=Scripted(held), cloud=cloud, journal=journal, rules=rules)
    async with start(leaves=False) as bench:
        await bench.until(lambda: stand(bench, jobs, "default"))
    async with start() as bench:
        await bench.until(lambda: stand(bench, jobs, "default"))
        held.go.set()
        for number in jobs:
            assert (await gitlab.ended(number)).state is State.SUCCESS


@pytest.mark.parametrize("more", ["", '[runners.taskscaler]\nrun_with = "sidecar"'], ids=["own", "sidecar"])
async def test_a_job_that_is_refused_fails_with_the_reason_in_its_log(
    gitlab: FakeGitLab, tmp_path: Path, more: str
) -> None:
    """Whoever would have run it; nothing of it runs, and no slot is kept for it."""
    runs = Scripted()
    number = gitlab.enqueue(a_job(project="forks/somebody/shop"))
    async with serving(
        tmp_path, gitlab, runs=runs, pools=POOLS, capacity_per_instance=1, rules=RULES, more=more
    ) as bench:
        stored = await gitlab.ended(number)
        assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_configuration_error")
        assert b"this runner does not run it: forks build elsewhere" in gitlab.log(number)
        await bench.until(lambda: not bench.service.running)
        await bench.taken(acquired=0)
        assert runs.runs == []
        assert any("the rule 'forks' refuses it" in line for line in bench.said)


async def test_a_job_whose_pool_is_gone_after_a_restart_fails(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """It was sent there by a rule, and is not run elsewhere without one."""
    held, journal = Held(), MemoryJournal()
    jobs = [gitlab.enqueue(a_job("live")) for _ in range(2)]
    async with serving(
        tmp_path,
        gitlab,
        runs=Scripted(held),
        pools=POOLS,
        capacity_per_instance=1,
        rules=RULES,
        journal=journal,
        leaves=False,
    ) as bench:
        await bench.until(lambda: stand(bench, jobs, "on-demand"))
        (waiting,) = at_the_gate(bench, jobs)
    async with serving(tmp_path, gitlab, pools=("spot", "other"), capacity_per_instance=1):
        assert (await gitlab.ended(waiting)).state is State.FAILED
        assert b"sent it to the pool on-demand, which the fleet has no more" in gitlab.log(waiting)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_jobs_of_sidecars_go_where_the_rules_send_them(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """One after the other, where the rule allows one."""
    program = stand_in.made(tmp_path)
    live = JobInfo(name="deploy", stage="live", project_full_path="platform/shop")
    jobs = [gitlab.enqueue(evolve(script("echo here"), job_info=live)) for _ in range(2)]
    async with sidecars.serving(tmp_path, gitlab, program, pools=POOLS, capacity_per_instance=1, rules=RULES) as desk:
        for number in jobs:
            assert (await desk.gitlab.ended(number)).state is State.SUCCESS
        assert desk.scaler.groups.keys() == set(POOLS)
    assert not list((tmp_path / "group-spot").glob("**/sidecars")), "none was sent there"


# --- the command ------------------------------------------------------------------------------------------

FILE = """
[[runners]]
url = "https://gitlab.invalid/"
token = "glrt-1234"
executor = "instance"
[runners.autoscaler]
plugin = "local"
[[runners.autoscaler.pools]]
name = "spot"
[[runners.autoscaler.pools]]
name = "on-demand"
"""
SHADOWED = """
[[dispatch]]
name = "late"
when = { stage = "live", ref_protected = true }
pools = "spot"
"""


def check(here: Path, rules: str, payload: bytes, *more: str) -> tuple[int, str]:
    """Ask what the rules make of a job; returns the exit status and all that was printed."""
    (here / "config.toml").write_text(FILE + rules)
    (here / "job.json").write_bytes(payload)
    command = ["check", str(here / "config.toml"), "--job", str(here / "job.json"), *more]
    result = CliRunner().invoke(main, command)
    return result.exit_code, result.output


def test_check_says_what_a_job_would_get(tmp_path: Path) -> None:
    """Without asking anybody; rules that never apply are reported first."""
    status, said = check(tmp_path, RULES + SHADOWED, encode_job(a_job("live")))
    assert said.splitlines() == [
        "warning: the rule 'late' never applies: 'live', which stands before it, is for all its jobs",
        "job 7 (a job of live of platform/shop): the rule 'live' sends it to on-demand (stage live)",
        "at most 1 jobs run by that rule at once; others wait",
    ]
    assert status == 0
    status, said = check(tmp_path, RULES, encode_job(a_job(project="forks/x/shop")))
    assert (status, said.count("refuses it (namespace forks/x): forks build elsewhere")) == (0, 1)


@pytest.mark.parametrize("payload", [b"", b"[]", b"{", b"\xff", json.dumps({"id": "seven"}).encode()])
def test_check_says_what_is_no_job(tmp_path: Path, payload: bytes) -> None:
    """One line, and nothing else."""
    status, said = check(tmp_path, RULES, payload)
    assert status == 2
    assert said.startswith(f"error: {tmp_path / 'job.json'}: ")
    assert len(said.splitlines()) == 1


def test_check_of_a_job_asks_nobody(tmp_path: Path) -> None:
    """So it runs no canary."""
    status, said = check(tmp_path, RULES, encode_job(a_job()), "--canary")
    assert status == 2
    assert "--job asks nobody" in said
