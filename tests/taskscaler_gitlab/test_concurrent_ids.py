"""Jobs of one project at once on one instance: each has a directory, and a number, of its own."""

from collections import defaultdict
from pathlib import Path

import anyio
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from gitlab_jobs import GitInfo, Image, Job, JobInfo, Outcome
from gitlab_jobs.client import Reporting
from gitlab_jobs.testing import FakeGitLab, State
from taskscaler import Lease
from taskscaler_gitlab import DockerSettings, RunnerSettings
from taskscaler_gitlab.runner._plan import Leg
from taskscaler_gitlab.runner._surroundings import container_of, surroundings_of
from taskscaler_gitlab.runner._variables import environment_of
from tests.taskscaler_gitlab.desks import desk_on, script
from tests.taskscaler_gitlab.services import Scripted, a_job, serving

AT_ONCE = 3
JOB = Job(
    id=5,
    token="glcbt-0123456789",
    job_info=JobInfo(project_id=7),
    git_info=GitInfo(repo_url="https://gitlab.example.com/group/project.git"),
    image=Image(name="busybox"),
)
BUILDS = st.sampled_from(["", "/builds", "/elsewhere", "/data/builds"])
TARGETS = ["/builds", "/elsewhere/", "/other", "/data", "/builds/group", "/builds/group/", "/build"]
VOLUMES = st.lists(
    st.sampled_from(["/builds", "/cache", "/srv:/cache:ro", *(f"/data:{target}" for target in TARGETS)]),
    unique_by=lambda each: each.rpartition(":")[2],
    max_size=3,
)


def places(settings: RunnerSettings, slot: int) -> tuple[str, str, dict[str, str]]:
    """Where a job's project is in a slot, the number that the job sees, and the volumes of its container."""
    around = surroundings_of(JOB, settings, instance="i-1", slot=slot, home="/home/ci", architecture="")
    environment = environment_of(JOB, settings, around.place)
    volumes: dict[str, str] = {}
    if settings.kind == "docker":
        volumes = container_of(JOB, settings, environment, around, Leg.ALL)["caches"]
    exports = dict(environment.exports)
    return environment.project_dir, exports["CI_CONCURRENT_ID"], volumes


@given(
    st.sampled_from(["instance", "docker-autoscaler"]),
    BUILDS,
    VOLUMES,
    st.booleans(),
    st.tuples(st.integers(0, 40), st.integers(0, 40)),
)
def test_two_slots_never_share_a_directory(
    kind: str,
    builds: str,
    volumes: list[str],
    disable_cache: bool,  # noqa: FBT001
    slots: tuple[int, int],
) -> None:
    """Neither by its name nor by what is mounted there or above it; and nothing is mounted twice in one place."""
    one, other = slots
    settings = RunnerSettings(
        url="https://gitlab.example.com",
        token="glrt-t1_abcdefghijkl",
        executor=kind,  # type: ignore[arg-type]
        builds_dir=builds,
        docker=DockerSettings(volumes=tuple(volumes), disable_cache=disable_cache),
    )
    (directory, number, mounted), (second, other_number, others) = places(settings, one), places(settings, other)
    binds = {each.split(":")[1].rstrip("/") for each in volumes if ":" in each}
    assert not binds & set(mounted.values())
    if one != other:
        own = [name for name, path in mounted.items() if directory.startswith(f"{path}/") and name not in others]
        is_alone = own or (kind != "instance" and disable_cache)  # what is nobody's volume is the container's own
        assert directory != second or (is_alone and not any(directory.startswith(f"{each}/") for each in binds))
        assert number != other_number
    else:
        assert (directory, number, mounted) == (second, other_number, others), "a slot finds its clone again"


@pytest.mark.anyio
async def test_the_numbers_are_those_of_an_instance(tmp_path: Path) -> None:
    """As small as its slots are many, and no two jobs have one at a time."""
    gitlab, all_there = FakeGitLab(tmp_path / "gitlab", long_poll=0.05, accepts=0), anyio.Event()
    running: dict[str, set[int]] = defaultdict(set)
    seen: set[int] = set()

    async def noting(_: Job, lease: Lease, __: Reporting) -> Outcome:
        slots = running[lease.instance]
        assert lease.slot not in slots
        slots.add(lease.slot)
        seen.add(lease.slot)
        if len(slots) == AT_ONCE:
            all_there.set()
        await all_there.wait()
        slots.discard(lease.slot)
        return Outcome(is_success=True)

    jobs = [gitlab.enqueue(a_job()) for _ in range(3 * AT_ONCE)]
    async with serving(
        tmp_path, gitlab, runs=Scripted(noting), max_instances=1, capacity_per_instance=AT_ONCE, concurrent=9
    ):
        for number in jobs:
            assert (await gitlab.ended(number)).state is State.SUCCESS
    assert seen == set(range(AT_ONCE))


@pytest.mark.anyio
async def test_two_jobs_of_a_project_do_not_meet(tmp_path: Path) -> None:
    """Both run at the same time on a real instance, and each finds only its own files."""
    async with desk_on(tmp_path) as desk:
        wait = f"n=0; until [ -e {tmp_path}/one -a -e {tmp_path}/two ] || [ $n = 100 ]; do sleep 0.1; n=$((n+1)); done"
        ids = "echo $CI_CONCURRENT_ID $CI_CONCURRENT_PROJECT_ID"
        both = [script(f"touch {name} {tmp_path}/{name}", wait, "ls", ids) for name in ("one", "two")]
        logs: dict[int, str] = {}

        async def run(slot: int, job: Job) -> None:
            taken = await desk.take(job)
            at = evolve(desk, slot=evolve(desk.slot, slot=slot))
            await at.carry_out(taken)
            logs[slot] = desk.log(taken)

        async with anyio.create_task_group() as tasks:
            for slot, job in enumerate(both):
                tasks.start_soon(run, slot, job)
        assert "\none\n" in logs[0] and "\ntwo\n" not in logs[0], logs[0]  # noqa: PT018  (with its log)
        assert "\ntwo\n" in logs[1] and "\none\n" not in logs[1], logs[1]  # noqa: PT018
        assert "\n0 0\n" in logs[0]
        assert "\n1 1\n" in logs[1]
