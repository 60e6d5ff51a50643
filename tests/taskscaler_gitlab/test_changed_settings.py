"""A file that has changed while a job outlived its runner: the job goes on as it was begun, and later ones do not."""

import shutil
import stat
from pathlib import Path

import pytest
from attrs import evolve

from executor_docker import DockerExecutor
from fleeting import MemoryJournal
from fleeting.testing import FakeCloud
from gitlab_jobs import shorten
from gitlab_jobs.testing import FakeGitLab, State
from job_steps.executor import PolicySettings
from taskscaler import Policy
from taskscaler.executors.instance import InstanceExecutor
from taskscaler_gitlab import DockerSettings, OwnSettings, RunnerSettings
from taskscaler_gitlab._noted_settings import NotedSettings
from taskscaler_gitlab._service import executor_of
from taskscaler_gitlab._system_id import may_have_strays, system_id
from tests.taskscaler_gitlab.services import Held, Scripted, a_job, serving

pytestmark = pytest.mark.anyio

KINDS = {"instance": InstanceExecutor, "docker-autoscaler": DockerExecutor}


@pytest.fixture
def gitlab(tmp_path: Path) -> FakeGitLab:
    """One that answers at once."""
    return FakeGitLab(tmp_path / "gitlab", long_poll=0.05, accepts=0)


@pytest.mark.parametrize(("before", "now"), [("instance", "docker-autoscaler"), ("docker-autoscaler", "instance")])
async def test_a_job_goes_on_with_the_executor_that_began_it(
    gitlab: FakeGitLab, tmp_path: Path, before: str, now: str
) -> None:
    """Another one would not find it, and begin it once more; a line says so, and jobs from now on have the new one."""
    cloud, journal, first, again = FakeCloud(), MemoryJournal(), Scripted(Held()), Scripted()
    number = gitlab.enqueue(a_job())
    docker = '[runners.docker]\nimage = "busybox"\nmemory = "1g"' if before == "docker-autoscaler" else ""
    async with serving(tmp_path, gitlab, cloud=cloud, runs=first, journal=journal, kind=before, more=docker) as bench:
        bench.service.executor = executor_of(bench.service.config)
        await first.script.begun.wait()  # type: ignore[attr-defined]
    async with serving(tmp_path, gitlab, cloud=cloud, runs=again, journal=journal, kind=now) as bench:
        assert (await gitlab.ended(number)).state is State.SUCCESS
        later = gitlab.enqueue(a_job())
        assert (await gitlab.ended(later)).state is State.SUCCESS
        (line,) = bench.said
        assert line.startswith(f'note: the job {number} was started with executor = "{before}", and keeps it; ')
    found = {job: (settings, executor) for job, settings, executor in again.given}
    assert found[number][0].executor == before
    assert isinstance(found[number][1], KINDS[before])
    given, token = found[number][0], first.given[0][1].token
    assert given == evolve(first.given[0][1], token=given.token, taskscaler=OwnSettings())
    assert token.startswith(given.token)
    assert shorten(given.token) == shorten(token)
    assert found[later][0].executor == now
    assert [name for _, name in again.runs][:1] == [name for _, name in first.runs]


async def test_a_job_that_has_not_begun_takes_what_is_there_now(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """Nothing of it runs anywhere."""
    cloud, journal, held, again = FakeCloud(), MemoryJournal(), Held(), Scripted()
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, cloud=cloud, runs=Scripted(held, begins=False), journal=journal):
        await held.begun.wait()
    more = "output_limit = 7"
    async with serving(tmp_path, gitlab, cloud=cloud, runs=again, journal=journal, more=more) as bench:
        assert (await gitlab.ended(number)).state is State.SUCCESS
        assert bench.said == []
    assert [settings.output_limit for _, settings, _ in again.given] == [7]


async def test_the_settings_that_a_job_took_later_are_its_own_from_then_on(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """After another restart, too: those of before are forgotten, and a job that runs well is no wreck without them."""
    cloud, journal, held, second, third = FakeCloud(), MemoryJournal(), Held(), Held(), Scripted()
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, cloud=cloud, runs=Scripted(held, begins=False), journal=journal):
        await held.begun.wait()
    more = "output_limit = 7"
    async with serving(tmp_path, gitlab, cloud=cloud, runs=Scripted(second), journal=journal, more=more):
        await second.begun.wait()
    async with serving(tmp_path, gitlab, cloud=cloud, runs=third, journal=journal, more=more) as bench:
        assert (await gitlab.ended(number)).state is State.SUCCESS
        assert bench.said == []
    assert [settings.output_limit for _, settings, _ in third.given] == [7]


async def test_jobs_that_were_noted_down_elsewhere_cost_their_instances(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """With another state_dir, nobody knows whether they run: the instance is replaced, not given to the next job."""
    cloud, journal, held, again = FakeCloud(), MemoryJournal(), Held(), Scripted()
    gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, cloud=cloud, runs=Scripted(held), journal=journal):
        await held.begun.wait()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    had_it = cloud.alive
    async with serving(elsewhere, gitlab, cloud=cloud, runs=again, journal=journal) as bench:
        await bench.scaler.configure(policies=[Policy(idle_count=1, idle_time=3600)])  # none goes because it is idle
        await bench.until(lambda: not had_it & cloud.alive)
        assert again.runs == []


async def test_strays_are_unknown_until_all_are_given_back(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """A first runner with another state_dir may be killed before it has seen to them; the second knows no more."""
    cloud, journal, held, again = FakeCloud(), MemoryJournal(), Held(), Scripted()
    gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, cloud=cloud, runs=Scripted(held), journal=journal):
        await held.begun.wait()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    had_it = cloud.alive
    assert may_have_strays(elsewhere / "jobs")  # the runner that is killed: it has a system id, and no more
    system_id(elsewhere / "jobs")
    async with serving(elsewhere, gitlab, cloud=cloud, runs=again, journal=journal) as bench:
        await bench.scaler.configure(policies=[Policy(idle_count=1, idle_time=3600)])
        await bench.until(lambda: not had_it & cloud.alive)
        await bench.until(lambda: not may_have_strays(elsewhere / "jobs"))


async def test_a_job_of_which_not_even_the_slot_is_known_makes_every_stray_unknown(
    gitlab: FakeGitLab, tmp_path: Path
) -> None:
    """It may be any of those leases that nothing is noted down of: their instances are replaced."""
    cloud, journal, held = FakeCloud(), MemoryJournal(), Held()
    gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, cloud=cloud, runs=Scripted(held), journal=journal):
        await held.begun.wait()
    had_it = cloud.alive
    (job,) = (tmp_path / "jobs" / "jobs").iterdir()
    shutil.rmtree(job)
    damaged = tmp_path / "jobs" / "deliveries" / "what" / "delivery.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    async with serving(tmp_path, gitlab, cloud=cloud, journal=journal) as bench:
        await bench.scaler.configure(policies=[Policy(idle_count=1, idle_time=3600)])
        await bench.until(lambda: not had_it & cloud.alive)


async def test_a_job_in_a_container_goes_on_although_later_ones_have_sidecars(
    gitlab: FakeGitLab, tmp_path: Path
) -> None:
    """The executor that began it is made again: another one would look for it in the wrong place."""
    cloud, journal, first, again = FakeCloud(), MemoryJournal(), Scripted(Held()), Scripted()
    number = gitlab.enqueue(a_job())
    docker, kind = '[runners.docker]\nimage = "busybox"', "docker-autoscaler"
    async with serving(tmp_path, gitlab, cloud=cloud, runs=first, journal=journal, kind=kind, more=docker):
        await first.script.begun.wait()  # type: ignore[attr-defined]
    more = f'{docker}\n[runners.taskscaler]\nrun_with = "sidecar"'
    async with serving(tmp_path, gitlab, cloud=cloud, runs=again, journal=journal, kind=kind, more=more):
        assert (await gitlab.ended(number)).state is State.SUCCESS
    ((_, settings, executor),) = again.given
    assert (settings.has_sidecars, type(executor)) == (False, DockerExecutor)


async def test_a_job_whose_settings_are_lost_is_not_run_again(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """What it was begun with is not known, so nothing there can be ended: its instance goes, and GitLab knows."""
    cloud, journal, held, again = FakeCloud(), MemoryJournal(), Held(), Scripted()
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, cloud=cloud, runs=Scripted(held), journal=journal):
        await held.begun.wait()
    for file in (tmp_path / "jobs" / "settings").iterdir():
        file.write_text("{}")
    async with serving(tmp_path, gitlab, cloud=cloud, runs=again, journal=journal, kind="docker-autoscaler") as bench:
        stored = await gitlab.ended(number)
        assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")
        assert "the settings that it started with cannot be used: it was changed" in bench.said[0]
        await bench.until(lambda: not cloud.alive)
        assert (again.runs, again.abandoned) == ([], [])


def test_settings_are_read_as_they_were_noted(tmp_path: Path) -> None:
    """All that a job notices; for our user alone, and no longer than a job needs them."""
    settings = RunnerSettings(
        name="a",
        url="https://gitlab.example.com",
        token="glrt-123456789secret",
        executor="docker-autoscaler",
        environment=("A=b",),
        docker=DockerSettings(image="busybox", volumes=("/a:/b",), shm_size=5),
        taskscaler=OwnSettings(cache_on_manager="/c", state_dir="/d"),
        ca_chain="-----BEGIN",
    )
    noted = NotedSettings(tmp_path / "settings")
    name = noted.keep(settings)
    assert noted.keep(settings) == name
    now = evolve(settings, token="glrt-other", taskscaler=OwnSettings(state_dir="/e"))
    other = noted.keep(now)
    read = noted.read(name, now)
    assert read == evolve(settings, token=read.token, taskscaler=OwnSettings(cache_on_manager="/c", state_dir="/e"))
    assert shorten(read.token) == shorten(settings.token), "the names of directories have it"
    assert not any("secret" in each.read_text() for each in noted.path.iterdir())
    assert {stat.S_IMODE(each.stat().st_mode) for each in noted.path.iterdir()} == {0o600}
    noted.forget_others({other})
    assert [each.stem for each in noted.path.iterdir()] == [other]


def test_a_policy_of_steps_is_noted_as_it_was(tmp_path: Path) -> None:
    """Durations and steps included: a job that outlives its runner keeps it."""
    scan: dict[str, object] = {"name": "scan", "step": "./scan", "env": {"A": "b"}, "inputs": {"x": [1, True, 2.5]}}
    policy = PolicySettings(allowed_git=("gitlab.com/*",), commits=True, before=(scan,), timeout=3.5)
    settings = RunnerSettings(
        url="https://gitlab.example.com",
        token="glrt-0123456789",
        executor="instance",
        taskscaler=OwnSettings(steps_policy=policy),
    )
    noted = NotedSettings(tmp_path / "settings")
    assert noted.read(noted.keep(settings), settings).taskscaler == settings.taskscaler
