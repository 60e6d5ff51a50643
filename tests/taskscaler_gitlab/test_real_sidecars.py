"""Jobs that the real gitlab-runner runs beside slots, and the same jobs that it runs for itself."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleeting.connectors.ssh import generate_key
from gitlab_jobs import Job
from gitlab_jobs.testing import FakeGitLab, State
from tests.fleeting.sshd import Server, private, sshd
from tests.gitlab_jobs.serving import served
from tests.peers.pipeline import PIPELINE, Operator, Planned, job, played
from tests.peers.real import RealRunner
from tests.peers.sidecars import relaying, static, write_config
from tests.taskscaler_gitlab.test_beside_the_real_runner import fake, log_of, script_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.real_runner, pytest.mark.timeout(600)]

TWO_STREAMS = {"absent command"}
"""What a shell says on its standard error too: gitlab-runner reads that separately, and either may come first."""

UNSTEADY = {
    "print",
    "standard error",
    "cancelled script",
    "cancelled after",
    "cancelled unclaimed",  # a runner that claims nothing may have begun with it
    "environment",
    "killed",
    "timeout",
}
"""Jobs whose output is not the same twice: its two streams are read apart, or it is stopped somewhere."""


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: what differs is programs of their own."""
    return "asyncio"


@pytest.fixture
def real(tmp_path: Path) -> RealRunner:
    """The program."""
    (tmp_path / "real").mkdir()
    return RealRunner(tmp_path / "real")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Server]:
    """A host with an SSH server, a home of its own, and nothing of ours."""
    user_key = generate_key()
    (home := tmp_path / "home").mkdir()
    private(tmp_path / "key", user_key.private)
    settings = f'SetEnv HOME={home} SHLVL=5\nForceCommand cd {home} && eval "$SSH_ORIGINAL_COMMAND"'
    with sshd(tmp_path / "sshd", settings, user_key=user_key) as server:
        yield server


async def relayed(here: Path, fleet: str, sidecar: str) -> Operator:
    """Run all jobs through the relay."""
    gitlab = fake(here / "relayed")
    async with served(gitlab) as url:
        config = write_config(here / "runner", url, gitlab.runner_token, sidecar=sidecar, fleet=fleet)
        async with relaying(config):
            return await played(gitlab)


async def directly(here: Path, real: RealRunner) -> Operator:
    """Run all jobs on the same program, without anything in between."""
    gitlab = fake(here / "direct")
    async with served(gitlab) as url, real.running(url, gitlab.runner_token):
        return await played(gitlab)


def ends(operator: Operator) -> dict[str, tuple[State, str | None, int | None]]:
    """How each job ended."""
    stored = {each.name: operator.stored(each.name) for each in PIPELINE}
    return {name: (each.state, each.failure_reason, each.exit_code) for name, each in stored.items()}


def compare(ours: Operator, theirs: Operator) -> None:
    """States, reasons, exit codes, artifacts, and what scripts print: all the same."""
    assert ends(ours) == ends(theirs)
    for each in PIPELINE:
        assert ours.artifacts(each.name) == theirs.artifacts(each.name), each.name
        if each.name in TWO_STREAMS:
            assert sorted(printed(ours, each)) == sorted(printed(theirs, each)), each.name
        elif each.name not in UNSTEADY:
            assert printed(ours, each) == printed(theirs, each), each.name
        assert ours.stored(each.name).trace.checksum


def printed(operator: Operator, planned: Planned) -> list[str]:
    """What a job's scripts print; they are some lines longer where there are more variables."""
    return [re.sub(r"line \d+:", "line:", line) for line in script_of(log_of(operator, planned))]


async def test_over_ssh(tmp_path: Path, real: RealRunner, host: Server) -> None:
    """Every kind of job, on a host that has nothing but a server: the program is brought to it."""
    theirs = await directly(tmp_path, real)
    ours = await relayed(tmp_path, static(tmp_path / "key", [host]), f'upload = "{real.program}"')
    compare(ours, theirs)


def ticking(here: Path) -> Job:
    """A job that waits for a file, and says so."""
    return job("ticks", f"echo ran >> {here}/ran", f"until [ -e {here}/go ]; do echo tick; sleep 1; done", "echo end")


async def at_work(gitlab: FakeGitLab, number: int) -> None:
    """Wait until GitLab has something of its log that the script says."""
    while b"tick" not in gitlab.log(number):
        await gitlab.next_change().wait()


async def test_a_connection_that_is_lost_costs_nothing(tmp_path: Path, real: RealRunner, host: Server) -> None:
    """The server's process for it is killed under the job; it is dialled again, and the port is the same."""
    gitlab = fake(tmp_path / "gitlab")
    number = gitlab.enqueue(ticking(tmp_path))
    async with served(gitlab) as url:
        fleet = static(tmp_path / "key", [host])
        sidecar = f'binary = "{real.program}"'
        async with relaying(write_config(tmp_path / "r", url, gitlab.runner_token, sidecar=sidecar, fleet=fleet)):
            await at_work(gitlab, number)
            host.signal(signal.SIGKILL)
            size = len(gitlab.log(number))
            while len(gitlab.log(number)) <= size:
                await gitlab.next_change().wait()
            (tmp_path / "go").touch()
            assert (await gitlab.ended(number)).state is State.SUCCESS
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert gitlab.log(number).count(b"ticks") == 0
    assert b"end\n" in gitlab.log(number)


async def test_a_host_that_is_lost_fails_its_job_with_the_reason(
    tmp_path: Path, real: RealRunner, host: Server
) -> None:
    """Its server is gone under the job: within a minute GitLab knows why, and the job does not run again."""
    gitlab = fake(tmp_path / "gitlab")
    number = gitlab.enqueue(ticking(tmp_path))
    async with served(gitlab) as url:
        fleet = static(tmp_path / "key", [host])
        sidecar = f'binary = "{real.program}"'
        async with relaying(write_config(tmp_path / "r", url, gitlab.runner_token, sidecar=sidecar, fleet=fleet)):
            await at_work(gitlab, number)
            host.lose()
            ended = await gitlab.ended(number)
            assert (ended.state, ended.failure_reason) == (State.FAILED, "runner_system_failure")
            assert b"Job failed (system failure): its instance" in gitlab.log(number).splitlines()[-1]
            (tmp_path / "go").touch()
    assert (tmp_path / "ran").read_text() == "ran\n"
