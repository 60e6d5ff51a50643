"""GitLab's jobs in containers, on a real daemon: all that an image needs is a shell."""

import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import evolve

from executor_docker import DockerConfig, DockerExecutor
from executor_docker._owner import Owner
from fleeting.plugins import structure
from fleeting_docker_engine import Engine
from gitlab_jobs import Cache, Credential, Image, Job, Variable
from gitlab_jobs.client import Reporting
from taskscaler.executors import Executor
from taskscaler_gitlab import DockerSettings
from tests.fleeting.local_agents import POLL
from tests.fleeting_docker_engine.daemons import IMAGE, Daemon, root_file_system
from tests.taskscaler_gitlab.desks import Desk, Stopped, after, desk_on, leaving, script
from tests.taskscaler_gitlab.test_running_jobs import with_sources

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_but_volumes")]

HELPER = "taskscaler-test/git:1"


@pytest.fixture
async def nothing_but_volumes(docker: Daemon) -> AsyncIterator[None]:
    """Look whether all that jobs leave is what is kept for later ones, and remove that."""
    before = await docker.holdings()
    yield
    left = await docker.holdings() - before
    assert all(each.startswith("volume taskscaler-cache-gl-") for each in left), left
    async with docker.engine() as engine:
        for each in left:
            await engine.ask("DELETE", f"/volumes/{each.removeprefix('volume ')}")


@pytest.fixture(scope="module")
def helper(docker: Daemon) -> str:
    """An image with the git of this machine."""
    buffer = BytesIO(root_file_system())
    git = shutil.which("git") or pytest.skip("there is no git")
    core = Path(subprocess.run([git, "--exec-path"], check=True, capture_output=True, text=True).stdout.strip())
    programs = [Path(git), core / "git-upload-pack", core / "git"]
    listed = subprocess.run(["/usr/bin/ldd", git], check=True, capture_output=True, text=True).stdout.split()
    libraries = [Path(word) for word in listed if word.startswith("/")]
    with tarfile.open(fileobj=buffer, mode="a") as tar:
        for path in (*programs, *libraries):
            if path.exists():
                tar.add(path.resolve(), str(path).lstrip("/"))

    async def load(engine: Engine) -> None:
        repository, _, tag = HELPER.rpartition(":")
        query = {"fromSrc": "-", "repo": repository, "tag": tag}
        await engine.progress("POST", "/images/create", query=query, body=buffer.getvalue())

    docker.use(load)
    return HELPER


def executor_of(docker: Daemon, settings: DockerSettings, directory: Path) -> Executor:
    """What the runner's settings make of the executor, with no network, which the tests' daemon may not have."""
    given = {"pull_policy": ["never"], **settings.executor(), "socket": docker.socket}
    return DockerExecutor(structure(given, DockerConfig), Owner(directory / "owner"))


def settings_of(**more: Any) -> DockerSettings:  # noqa: ANN401  (the table's)
    """The table of a runner."""
    return DockerSettings(**{"image": IMAGE, "pull_policy": ("never",), "network_mode": "none", **more})


@pytest.fixture
async def desk(docker: Daemon, tmp_path: Path) -> AsyncIterator[Desk]:
    """A GitLab, and an instance with a daemon."""
    docker_settings = settings_of()
    make = lambda: executor_of(docker, docker_settings, tmp_path)  # noqa: E731
    async with desk_on(tmp_path, make, executor="docker-autoscaler", docker=docker_settings) as made:
        yield made


async def test_a_script_runs_in_the_job_s_image(desk: Desk) -> None:
    """With its variables and its project's directory; its exit code is the job's."""
    job = await desk.run(script("echo $CI_PROJECT_DIR; pwd; ls /bin/busybox", 'cat "$F"; exit 3', variables=(
        Variable(key="F", value="filed", file=True),
    )))  # fmt: skip
    log = desk.log(job)
    assert (job.state.value, job.failure_reason, job.exit_code) == ("failed", "script_failure", 3), log
    assert "/builds/project-7\n/builds/project-7\n/bin/busybox\n" in log
    assert "filed" in log


@pytest.mark.parametrize(
    "entrypoint", [("",), ("/bin/sh", "-c"), ("/bin/sh", "-c", "echo entered; exec $0"), ("/bin/busybox", "env", "E=1")]
)
async def test_entrypoints_that_people_write(desk: Desk, entrypoint: tuple[str, ...]) -> None:
    """None, a shell that gets a command, one that calls it, and a program with arguments."""
    job = await desk.run(script("echo ran; exit 6", image=Image(name=IMAGE, entrypoint=entrypoint)))
    assert job.exit_code == 6, desk.log(job)
    assert "\nran\n" in desk.log(job)


async def test_files_come_and_go(desk: Desk) -> None:
    """Artifacts are brought back, and given to the next job."""
    first = await desk.run(script("mkdir out; echo x > out/f; ln -s f out/link", artifacts=(leaving("out/"),)))
    assert first.state.value == "success", desk.log(first)
    assert desk.archive(first.job.id) == {"out/f": b"x\n", "out/link": b"f"}
    second = await desk.run(script("rm -rf out2; cat out/link", dependencies=after(first.job)))
    assert "\nx\n" in desk.log(second), desk.log(second)


async def test_a_cache_is_kept_in_a_volume(desk: Desk) -> None:
    """The next job of the project has it."""
    cache = (Cache(key="k", paths=("kept",), policy="pull-push", when="on_success"),)
    first = await desk.run(script("mkdir kept; echo warm > kept/f", cache=cache))
    await desk.run(script("rm -rf kept"))
    second = await desk.run(script("cat kept/f", cache=cache))
    assert "\nwarm\n" in desk.log(second), (desk.log(first), desk.log(second))


async def test_directories_of_the_instance_where_builds_and_caches_are(docker: Daemon, tmp_path: Path) -> None:
    """They take the place of the volumes; since all slots see them, each slot has a part of its own for builds."""
    for name in ("builds", "caches"):
        (tmp_path / name).mkdir(mode=0o777)
    settings = settings_of(volumes=(f"{tmp_path}/builds:/builds", f"{tmp_path}/caches:/cache/"))
    cache = (Cache(key="k", paths=("kept",), policy="pull-push", when="on_success"),)
    async with desk_on(
        tmp_path, lambda: executor_of(docker, settings, tmp_path), executor="docker-autoscaler", docker=settings
    ) as desk:
        job = await desk.run(script("pwd; mkdir kept; echo warm > kept/f", cache=cache))
        assert job.state.value == "success", desk.log(job)
        assert "\n/builds/012345678/0/project-7\n" in desk.log(job), desk.log(job)
    assert list((tmp_path / "caches").rglob("cache.tar"))
    assert (tmp_path / "builds/012345678/0/project-7/kept/f").read_text() == "warm\n"


async def test_sources_that_no_git_can_fetch(desk: Desk, tmp_path: Path) -> None:
    """An image without git fails the job, and the log says what is missing."""
    job = await desk.run(with_sources(script("echo no"), tmp_path))
    assert (job.state.value, job.failure_reason) == ("failed", "script_failure")
    assert "git" in desk.log(job)


async def test_a_helper_brings_sources_to_an_image_without_git(docker: Daemon, helper: str, tmp_path: Path) -> None:
    """What the job's image lacks, another has; it keeps caches and artifacts, too, whoever the job's user is."""
    settings = settings_of(helper_image=helper, volumes=(f"{tmp_path / 'repository'}:/repository:ro",), user="worker")
    make = lambda: executor_of(docker, settings, tmp_path)  # noqa: E731
    cache = (Cache(key="k", paths=("kept",), policy="pull-push", when="on_success"),)
    job = with_sources(
        script(
            "cat file; id -un; echo new > made; mkdir -p kept; echo 1 >> kept/f", "cat kept/f", after=["echo after"]
        ),
        tmp_path,
    )
    job = evolve(job, git_info=evolve(job.git_info, repo_url="file:///repository"), cache=cache)
    job = evolve(job, artifacts=(leaving("made", "file", untracked=True),), allow_git_fetch=True)
    async with desk_on(tmp_path, make, executor="docker-autoscaler", docker=settings) as desk:
        first = await desk.run(job)
        assert first.state.value == "success", desk.log(first)
        assert "\ncontent\nworker\n" in desk.log(first)
        assert set(desk.archive(first.job.id)) == {"made", "file", "kept/f"}
        second = await desk.run(job)
        assert second.state.value == "success", desk.log(second)
        assert "\n1\n1\n" in desk.log(second)
        assert desk.log(second).count("Running on ") == 1
        failing = await desk.run(evolve(job, steps=script("exit 4").steps, artifacts=(leaving("file", when="always"),)))
        assert failing.exit_code == 4
        assert set(desk.archive(failing.job.id)) == {"file"}


async def test_what_is_not_allowed_is_not_run(docker: Daemon, tmp_path: Path) -> None:
    """One line names the setting, and nothing is started."""
    settings = settings_of(allowed_images=("allowed/*",))
    make = lambda: executor_of(docker, settings, tmp_path)  # noqa: E731
    async with desk_on(tmp_path, make, executor="docker-autoscaler", docker=settings) as desk:
        job = await desk.run(script("echo no", image=Image(name="evil:1")))
    assert (job.state.value, job.failure_reason) == ("failed", "runner_configuration_error")
    assert "allowed_images" in desk.log(job).splitlines()[-1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image": Image(name=IMAGE, pull_policy=("always",))}, "pull policy always"),
        ({"image": Image(name=IMAGE, pull_policy=("sometimes",))}, "found sometimes"),
        ({"image": Image(name=IMAGE, executor_opts={"docker": {"platform": "arm64"}})}, "platform"),
        ({"services": (Image(name="redis:7", alias="a b/c"),)}, "host names"),
    ],
)
async def test_wishes_that_cannot_be_granted(desk: Desk, change: dict[str, Any], said: str) -> None:
    """Each fails the job with a line about it."""
    job = await desk.run(evolve(script("echo no"), **change))
    assert (job.state.value, job.failure_reason) == ("failed", "runner_configuration_error"), desk.log(job)
    assert said in desk.log(job).splitlines()[-1]


async def test_an_image_that_is_not_to_be_had(desk: Desk) -> None:
    """It has a reason of its own; the job's login is in no log."""
    login = (Credential(type="registry", url="127.0.0.1:1", username="u", password="hunter2-hunter2"),)
    job = await desk.run(script("echo no", image=Image(name="127.0.0.1:1/none:1"), credentials=login))
    assert (job.state.value, job.failure_reason) == ("failed", "image_pull_failure")
    assert "hunter2" not in desk.log(job)


async def until_logged(desk: Desk, job: Job, text: str) -> None:
    """Wait for a job to print something."""
    while text.encode() not in (desk.place(job) / "trace").read_bytes():  # noqa: ASYNC110  (only looking tells)
        await anyio.sleep(POLL)


async def test_a_canceled_job_has_its_after_script(desk: Desk) -> None:
    """In a container of its own."""

    async def cancel(job: Job, report: Reporting) -> None:
        await until_logged(desk, job, "\nbegun")
        report.report.is_canceling = True
        report.canceling.set()

    job = script("echo x > f; echo begun; exec sleep 1000", after=["echo then $CI_JOB_STATUS; cat f"])
    ended = await desk.run(job, meanwhile=cancel)
    assert ended.failure_reason == "job_canceled"
    assert "\nthen canceled\nx\n" in desk.log(ended)


async def test_a_job_outlives_its_manager(desk: Desk) -> None:
    """Its output is not lost, and comes once."""

    async def stop(job: Job, _: Reporting) -> None:
        await until_logged(desk, job, "\nbegun")
        raise Stopped

    taken = await desk.take(script("echo begun; sleep 2; echo end", after=["echo after"]))
    await desk.carry_out(taken, meanwhile=stop)
    await desk.carry_out(taken, is_again=True)
    job = await desk.gitlab.ended(taken.id)
    assert job.state.value == "success", desk.log(job)
    assert [desk.log(job).count(f"\n{word}\n") for word in ("begun", "end", "after")] == [1, 1, 1]


async def test_services_run_beside_the_job(docker: Daemon, tmp_path: Path) -> None:
    """By their aliases, with variables of their own, and the job's public ones."""
    settings = settings_of(network_mode="")
    make = lambda: executor_of(docker, settings, tmp_path)  # noqa: E731
    serve = 'mkdir /www; echo "$GREETING $PUBLIC" > /www/page; exec httpd -f -p 80 -h /www'
    web = Image(
        name=IMAGE,
        alias="web, other",
        entrypoint=("/bin/sh", "-c"),
        command=(serve,),
        variables=(Variable(key="GREETING", value="hello"),),
    )
    variables = (Variable(key="PUBLIC", value="world", public=True),)
    ask = "until wget -qO- http://web/page; do sleep 0.1; done; wget -qO- http://other/page"
    async with desk_on(tmp_path, make, executor="docker-autoscaler", docker=settings) as desk:
        job = await desk.run(script(ask, services=(web,), variables=variables))
    assert job.state.value == "success", desk.log(job)
    assert "\nhello world\nhello world\n" in desk.log(job)
