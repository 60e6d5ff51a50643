"""Jobs that run while the service is killed again and again, or GitLab is away: each runs once, and its log is whole.

In the suite, and where there is no gitlab-runner, a few jobs of a program that stands in for it. With ``--full`` and
the real one, forty for half a minute, ten kills and a minute without GitLab.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from attrs import define, frozen
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gitlab_jobs import Job
from gitlab_jobs.testing import FakeGitLab, State
from tests.gitlab_jobs.serving import served
from tests.peers import REAL_RUNNER
from tests.peers.pipeline import job
from tests.peers.sidecars import relaying, write_config
from tests.taskscaler_gitlab import stand_in

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(900)]

TICKS = re.compile(r"^tick (\d+)\r?$", re.MULTILINE)


@frozen(kw_only=True)
class Size:
    """How much of it."""

    jobs: int
    kills: int
    pause: float
    """Seconds between two kills, and at least until the next service has got through to GitLab."""

    away: float
    """Seconds without GitLab."""

    tick: float


PART = Size(jobs=4, kills=2, pause=0.0, away=3.0, tick=0.3)
WHOLE = Size(jobs=40, kills=10, pause=5.0, away=60.0, tick=1.0)


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: what differs is programs of their own."""
    return "asyncio"


@pytest.fixture
def size(full: bool) -> Size:  # noqa: FBT001  (a fixture)
    """As the run wants it."""
    return WHOLE if full and REAL_RUNNER.is_there else PART


@define
class Door:
    """Stands before GitLab, and may be closed: then everybody hears from somebody else that it is away."""

    inner: ASGIApp
    is_open: bool = True
    passed: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a call through, or not."""
        if scope["type"] == "http" and not self.is_open:
            await PlainTextResponse("deploy in progress", 502)(scope, receive, send)
            return
        self.passed += scope["type"] == "http"
        await self.inner(scope, receive, send)


@define
class Story:
    """Jobs that run, and a GitLab behind a door."""

    here: Path
    gitlab: FakeGitLab
    door: Door
    config: Path
    numbers: list[int]

    async def all_tick(self) -> None:
        """Wait until GitLab has a tick of each."""
        for number in self.numbers:
            while b"tick" not in self.gitlab.log(number):
                changes = self.gitlab.next_change()
                assert not self.gitlab.server.jobs[number].state.is_final, self.gitlab.log(number).decode()
                await changes.wait()

    async def got_through(self) -> None:
        """Wait until somebody's call has reached GitLab after now."""
        passed = self.door.passed
        while self.door.passed == passed:  # noqa: ASYNC110  (nobody tells)
            await anyio.sleep(0.05)

    async def ended_whole(self) -> None:
        """Let all end, and compare: each ran once, and GitLab has every line of it, once."""
        (self.here / "go").touch()
        for number in self.numbers:
            ended = await self.gitlab.ended(number)
            log = self.gitlab.log(number).decode()
            assert ended.state is State.SUCCESS, log
            ticks = [int(each) for each in TICKS.findall(log)]
            assert ticks == list(range(1, len(ticks) + 1)), log
            assert f"end after {len(ticks)}" in log
            assert (self.here / f"ran-{number}").read_text() == "ran\n"


@asynccontextmanager
async def story(here: Path, size: Size, *, full: bool) -> AsyncIterator[Story]:
    """So many jobs, each in a slot of its own; nothing runs yet."""
    (here / "gitlab").mkdir()
    is_real = full and REAL_RUNNER.is_there
    program = str(REAL_RUNNER.programs[0]) if is_real else str(stand_in.made(here))
    gitlab = FakeGitLab(here / "gitlab", accepts=0)
    numbers = [gitlab.enqueue(ticking(here, number, size)) for number in range(1, size.jobs + 1)]
    door = Door(gitlab.application())
    async with served(gitlab, door) as url:
        config = write_config(here / "r", url, gitlab.runner_token, sidecar=f'binary = "{program}"', at_once=size.jobs)
        yield Story(here, gitlab, door, config, numbers)


def ticking(here: Path, number: int, size: Size) -> Job:
    """A job that counts until it is to end."""
    loop = f"n=0; until [ -e {here}/go ]; do n=$((n+1)); echo tick $n; sleep {size.tick}; done; echo end after $n"
    return job(f"job {number}", f"echo ran >> {here}/ran-{number}", loop)


async def test_the_service_is_killed_again_and_again(tmp_path: Path, size: Size, *, full: bool) -> None:
    """With SIGKILL, each time it has found its jobs again."""
    async with story(tmp_path, size, full=full) as told:
        for _ in range(size.kills):
            async with relaying(told.config) as process:
                await told.all_tick()
                await told.got_through()
                await anyio.sleep(size.pause)
                process.kill()
        async with relaying(told.config):
            await told.ended_whole()


async def test_gitlab_is_away(tmp_path: Path, size: Size, *, full: bool) -> None:
    """Nobody reaches it, and jobs run on; what they said meanwhile comes later."""
    async with story(tmp_path, size, full=full) as told, relaying(told.config):
        await told.all_tick()
        told.door.is_open = False
        await anyio.sleep(size.away)
        told.door.is_open = True
        await told.ended_whole()
