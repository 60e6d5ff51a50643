"""GitLab's jobs with `run` in containers, on a real daemon: an agent in the job's own image carries them out."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gitlab_jobs import Image, Variable
from job_steps.executor import PolicySettings
from taskscaler_gitlab._settings import OwnSettings
from tests.fleeting_docker_engine.daemons import IMAGE, Daemon
from tests.job_steps.images import PYTHON_IMAGE, import_python
from tests.taskscaler_gitlab.desks import Desk, desk_on, leaving
from tests.taskscaler_gitlab.test_jobs_in_containers import executor_of, settings_of
from tests.taskscaler_gitlab.test_running_steps import LEAK, LIMITED, OVER, QUIET, results_of, steps

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("python")]


@pytest.fixture(scope="module")
def python(docker: Daemon) -> None:
    """Give the daemon an image with a Python."""
    import_python(docker)


@pytest.fixture
async def desk(docker: Daemon, tmp_path: Path) -> AsyncIterator[Desk]:
    """A GitLab, and an instance with a daemon, whose runner has a policy."""
    settings = settings_of(image=PYTHON_IMAGE)
    policy = PolicySettings(before=({"name": "scan", "script": "echo scanned ${WHO:-nobody}"},))
    make = lambda: executor_of(docker, settings, tmp_path)  # noqa: E731
    own = OwnSettings(steps_policy=policy)
    async with desk_on(tmp_path, make, executor="docker-autoscaler", docker=settings, taskscaler=own) as made:
        yield made


async def test_steps_run_in_the_job_s_image(desk: Desk) -> None:
    """With its variables, in its project; what they leave is brought, and how each of them went."""
    job = await desk.run(
        steps(
            {"name": "greet", "script": "echo hello ${{ vars.WHO }} $WHO; ls /bin/busybox; pwd"},
            {"name": "leave", "script": "echo x > left"},
            after=["echo after $CI_JOB_STATUS"],
            variables=(Variable(key="WHO", value="world"),),
            artifacts=(leaving("left"),),
        )
    )
    log = desk.log(job)
    assert job.state.value == "success", log
    assert "\nscanned nobody\n" in log
    assert "\nhello world world\n/bin/busybox\n/builds/project-7\n" in log
    assert "\nafter success\n" in log
    assert desk.archive(job.job.id) == {"left": b"x\n"}
    assert [each.name for each in results_of(desk, job.job).steps] == ["scan", "greet", "leave"]


async def test_a_step_that_fails_in_a_container_fails_the_job(desk: Desk) -> None:
    """With its exit code; what came of the steps is kept."""
    job = await desk.run(steps({"name": "one", "script": "exit 7"}))
    assert (job.failure_reason, job.exit_code) == ("script_failure", 7), desk.log(job)
    failed = results_of(desk, job.job).failed()
    assert failed
    assert failed.name == "one"


async def test_an_image_without_python_is_named(desk: Desk) -> None:
    """The job fails, and its log says what to do."""
    job = await desk.run(steps({"name": "one", "script": "true"}, image=Image(name=IMAGE)))
    assert job.failure_reason == "script_failure"
    assert "which needs Python 3.10 or later in its image; use another image" in desk.log(job)


async def test_the_operators_limits_are_in_force_in_a_container(docker: Daemon, tmp_path: Path) -> None:
    """The agent in there keeps them: of memory by what it looks at, of the network because the job has none."""
    settings = settings_of(image=PYTHON_IMAGE)
    make = lambda: executor_of(docker, settings, tmp_path)  # noqa: E731
    leak = {**LEAK, "script": str(LEAK["script"]).replace(sys.executable, "python3")}
    async with desk_on(tmp_path, make, executor="docker-autoscaler", docker=settings, taskscaler=LIMITED) as desk:
        job = await desk.run(steps(QUIET, leak))
        log, result = desk.log(job), results_of(desk, job.job)
    assert (job.failure_reason, job.exit_code) == ("script_failure", 137), log
    assert "\n1\n" in log, "a table of routes with nothing but its heading"
    assert f'Step "leak" was {OVER}' in log
    assert [each.cause for each in result.steps] == [None, "out_of_memory"]
