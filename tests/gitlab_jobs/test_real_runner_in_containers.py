"""The real gitlab-runner with its docker executor, and a helper image that is made of it."""

import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from attrs import evolve

from fleeting_docker_engine import Engine
from gitlab_jobs import RunnerInfo
from gitlab_jobs.testing import FakeGitLab, State
from tests.fleeting_docker_engine.daemons import IMAGE, Daemon, root_file_system
from tests.gitlab_jobs.serving import served
from tests.peers.pipeline import PIPELINE, Planned, played
from tests.peers.real import DOCKER, RealRunner

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.real_runner]

HELPER = "taskscaler-test/gitlab-runner-helper:1"
ANY_SHELL = b'#!/bin/sh\nexec /bin/sh "$@"\n'
LEFT_OUT = {
    "large",  # there is nothing new in it
    "cache warm",  # each of the jobs that run at once has a cache of its own
}


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: the other end is a program of its own."""
    return "asyncio"


def with_helper(docker: Daemon, program: str) -> None:
    """Make the image whose containers fetch sources and artifacts: the runner knows all that its helper knows."""
    image = BytesIO(root_file_system())
    with tarfile.open(fileobj=image, mode="a") as tar:
        for name, content in (("helper", Path(program).read_bytes()), ("build", ANY_SHELL)):
            member = tarfile.TarInfo(f"usr/bin/gitlab-runner-{name}")
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, BytesIO(content))
    repository, _, tag = HELPER.rpartition(":")

    async def load(engine: Engine) -> None:
        query = {"fromSrc": "-", "repo": repository, "tag": tag}
        await engine.progress("POST", "/images/create", query=query, body=image.getvalue())

    docker.use(load)


def end_of(planned: Planned, real: RealRunner) -> Planned:
    """How a job ends in a container."""
    match planned.name:
        case "killed":  # its shell is the container's first process, which cannot kill itself
            return evolve(planned, state=State.SUCCESS, reason=None, code=None)
        case "timeout":  # a container may take some seconds to start
            return evolve(planned, job=evolve(planned.job, runner_info=RunnerInfo(timeout=25)))
        case "cancelled unclaimed" if not real.claims:
            return evolve(planned, never="")
        case "cancelled script" if not real.is_graceful:
            return evolve(planned, prints=("begins",), leaves={})
    return planned


@pytest.fixture
def real(docker: Daemon, tmp_path: Path) -> RealRunner:
    """It, and its helper."""
    (tmp_path / "real").mkdir()
    real = RealRunner(tmp_path / "real")
    with_helper(docker, real.program)
    return real


async def test_jobs_of_every_kind(docker: Daemon, real: RealRunner, tmp_path: Path) -> None:
    """They end in containers as they do without: our GitLab is none the wiser."""
    (tmp_path / "gitlab").mkdir()
    gitlab = FakeGitLab(tmp_path / "gitlab")
    planned = [end_of(each, real) for each in PIPELINE if each.name not in LEFT_OUT]
    executor = DOCKER.format(socket=docker.socket, image=IMAGE, helper=HELPER)
    async with served(gitlab) as url, real.running(url, gitlab.runner_token, concurrent=4, executor=executor):
        operator = await played(gitlab, planned)
    assert {each.name: found for each in planned if (found := operator.differences(each))} == {}
