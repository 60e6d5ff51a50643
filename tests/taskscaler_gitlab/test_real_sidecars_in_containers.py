"""Jobs that a real gitlab-runner beside a slot runs in containers, whose helper reaches us from there."""

from pathlib import Path

import pytest

from gitlab_jobs.testing import FakeGitLab
from tests.fleeting_docker_engine.daemons import IMAGE, Daemon
from tests.gitlab_jobs.serving import served
from tests.gitlab_jobs.test_real_runner_in_containers import HELPER, LEFT_OUT, end_of, with_helper
from tests.peers.pipeline import PIPELINE, played
from tests.peers.real import RealRunner
from tests.peers.sidecars import relaying, write_config

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(500), pytest.mark.real_runner]

DOCKER = """
[runners.taskscaler.sidecar.docker]
host = "unix://{socket}"
image = "{image}"
helper_image = "{helper}"
pull_policy = ["never"]
network_mode = "host"
"""


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: the other end is a program of its own."""
    return "asyncio"


@pytest.fixture
def real(docker: Daemon, tmp_path: Path) -> RealRunner:
    """It, and its helper."""
    (tmp_path / "real").mkdir()
    real = RealRunner(tmp_path / "real")
    with_helper(docker, real.program)
    return real


@pytest.mark.parametrize("reach", ["tunnel", "url"])
async def test_jobs_of_every_kind(
    docker: Daemon, real: RealRunner, tmp_path: Path, free_tcp_port: int, reach: str
) -> None:
    """They end as they do without us, several at a time on one instance; artifacts go through from containers."""
    (tmp_path / "gitlab").mkdir()
    gitlab = FakeGitLab(tmp_path / "gitlab")
    planned = [end_of(each, real) for each in PIPELINE if each.name not in LEFT_OUT]
    more = DOCKER.format(socket=docker.socket, image=IMAGE, helper=HELPER)
    address = f"127.0.0.1:{free_tcp_port}"
    own = f'reach = "{reach}"\n'
    own += f'advertise_url = "http://{address}"\nlisten = "{address}"\n' if reach == "url" else ""
    sidecar = f'binary = "{real.program}"{more}'
    async with served(gitlab) as url:
        token = gitlab.runner_token
        executor = "docker-autoscaler"
        config = write_config(tmp_path / "r", url, token, sidecar=sidecar, own=own, executor=executor)
        async with relaying(config):
            operator = await played(gitlab, planned)
    assert {each.name: found for each in planned if (found := operator.differences(each))} == {}
