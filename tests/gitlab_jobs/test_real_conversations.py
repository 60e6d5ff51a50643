"""What the real gitlab-runner and a GitLab say to each other: written down, and held again.

With ``write`` in ``GITLAB_RECORDINGS``, the recordings that every run of the tests holds again are made here.
"""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from attrs import frozen

from gitlab_jobs import ArtifactsFile, Dependency
from gitlab_jobs.testing import FakeGitLab, Fault, State
from tests.gitlab_jobs.serving import served
from tests.peers.pipeline import TICKS, job, left
from tests.peers.real import RealRunner
from tests.recordings import HERE, read, write
from tests.recordings.recorder import Recorder, faulty
from tests.recordings.replay import Replay

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.real_runner]


@frozen
class Talk:
    """A conversation that is under way."""

    real: RealRunner
    recorder: Recorder
    url: str

    @property
    def gitlab(self) -> FakeGitLab:
        """The one of them."""
        return self.recorder.gitlab

    async def ended(self, number: int) -> State:
        """Wait for a job's end."""
        return (await self.gitlab.ended(number)).state

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so."""
        while not is_so():  # noqa: ASYNC110  (of polls that are held, nobody tells)
            await anyio.sleep(0.02)


async def jobs(talk: Talk) -> None:
    """A service: a poll that is held, files up and down, a failure with a report, and the runner's end."""
    async with talk.real.running(talk.url, talk.gitlab.runner_token, concurrent=1):
        await talk.until(lambda: talk.gitlab.held > 0)
        built = talk.recorder.enqueue(
            job(
                "build",
                "echo built > out",
                "echo raw > raw",
                artifacts=(left("out"), left("raw", kind="lsif", form="raw")),
            )
        )
        assert await talk.ended(built) is State.SUCCESS
        (archive, _) = talk.gitlab.artifacts[built]
        file = ArtifactsFile(filename="artifacts.zip", size=archive.path.stat().st_size)
        token = talk.gitlab.server.jobs[built].job.token
        needed = (Dependency(id=built, token=token, name="build", artifacts_file=file),)
        assert await talk.ended(talk.recorder.enqueue(job("fetch", "cat out", dependencies=needed))) is State.SUCCESS
        report = (left("out", kind="junit", form="gzip", when="always"),)
        failing = talk.recorder.enqueue(job("fail", "echo no > out", "exit 7", after=("echo after",), artifacts=report))
        assert await talk.ended(failing) is State.FAILED
        await talk.until(lambda: talk.gitlab.held > 0)


async def cancelled(talk: Talk) -> None:
    """Jobs that are cancelled: as they are handed out, in their script, and while the last call is done."""
    async with talk.real.running(talk.url, talk.gitlab.runner_token, concurrent=1):
        script = talk.recorder.enqueue(job("script", "echo begins", TICKS, after=("echo after",)))
        await talk.until(lambda: b"begins\n" in talk.gitlab.log(script))
        talk.recorder.cancel(script)
        assert await talk.ended(script) is State.CANCELED
        ending = talk.recorder.enqueue(job("ending", "echo done"))
        await talk.until(lambda: talk.gitlab.server.jobs[ending].accepts == 0)
        talk.recorder.cancel(ending)
        assert await talk.ended(ending) is State.CANCELED
        handed = talk.recorder.enqueue(job("handed out", "echo begins", TICKS))
        await talk.until(lambda: talk.gitlab.server.jobs[handed].has_runner)
        talk.recorder.cancel(handed)
        assert await talk.ended(handed) is State.CANCELED
        assert await talk.ended(talk.recorder.enqueue(job("next", "true"))) is State.SUCCESS
        await talk.until(lambda: talk.gitlab.held > 0)


async def troubled(talk: Talk) -> None:
    """A GitLab that is overloaded, loses part of a log, and loses it again before the end."""
    log = "seq 1 200000; for each in 1 2 3 4 5 6 7 8 9 10; do echo tick; sleep 1; done"
    number = talk.recorder.enqueue(job("large", log))

    async def lose() -> None:
        await talk.until(lambda: b"tick\n" in talk.gitlab.log(number))
        talk.recorder.lose(number, 1000)
        await talk.until(lambda: talk.gitlab.server.jobs[number].accepts == 0)
        talk.recorder.lose(number, 7)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lose)
        await talk.real.once(talk.url, talk.gitlab.runner_token)
    assert await talk.ended(number) is State.SUCCESS
    assert b"".join(b"%d\n" % each for each in range(1, 200_001)) in talk.gitlab.log(number)


async def registered(talk: Talk) -> None:
    """A runner that is registered, verified, gets another token, and goes."""
    config = ("--config", str(talk.real.here / "config.toml"))
    shell = ("--executor", "shell", "--url", talk.url, "--non-interactive", "--description", "a runner")
    await talk.real.do("register", *config, *shell, "--registration-token", "GR1348941registration")
    await talk.real.do("verify", *config)
    if talk.real.version >= (16,):
        await talk.real.do("register", *config, *shell, "--token", talk.gitlab.runner_token)
        await talk.real.do("reset-token", *config, "--all-runners")
    await talk.real.do("unregister", *config, "--all-runners")


TALKS = {
    "jobs": (jobs, ()),
    "cancelled": (cancelled, ()),
    "troubled": (troubled, (faulty("append", 503, after=1), faulty("update", 500, after=1))),
    "registered": (registered, ()),
}


@pytest.mark.parametrize("name", TALKS)
async def test_a_conversation_can_be_held_again(name: str, tmp_path: Path) -> None:
    """With the same answers, once the runner has gone."""
    talking: Callable[[Talk], Awaitable[None]]
    faults: tuple[Fault, ...]
    talking, faults = TALKS[name]
    for each in ("real", "gitlab", "again"):
        (tmp_path / each).mkdir()
    real = RealRunner(tmp_path / "real")
    gitlab = FakeGitLab(tmp_path / "gitlab", faults=faults)
    recorder = Recorder(gitlab)
    async with served(gitlab, recorder.application()) as url:
        await talking(Talk(real, recorder, url))
    version = ".".join(map(str, real.version))
    is_kept = os.environ.get("GITLAB_RECORDINGS") == "write"
    path = (HERE if is_kept else tmp_path) / f"gitlab-runner-{version}-{name}.jsonl"
    write(path, recorder.about("gitlab-runner", version), recorder.events)
    assert await Replay(*read(path), tmp_path / "again").run() == []
