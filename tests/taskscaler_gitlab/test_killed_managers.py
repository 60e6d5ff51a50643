"""Managers that are killed before and after everything they do for a job: the next one always comes to the same end."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import pytest
from attrs import define, evolve, field

from gitlab_jobs import Artifact, Cache, Dependency, Job, Variable
from gitlab_jobs.client import GitLabClient, Reporting
from taskscaler.executors.instance import InstanceExecutor
from tests.fleeting.local_agents import POLL
from tests.taskscaler_gitlab.desks import Desk, Stopped, after, desk_on, leaving, script
from tests.taskscaler_gitlab.passing_on import PassesOn

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

T = TypeVar("T")
MOST = 40
"""More than a manager does for the job below."""


@define
class Fuse:
    """Burns down with each thing that a manager does; then the manager is killed right there."""

    left: int
    has_burnt: anyio.Event = field(factory=anyio.Event, init=False)

    async def around(self, do: Callable[[], Awaitable[T]]) -> T:
        """Do it, unless it is not to begin any more, or its end is not to be learned."""
        await self._burn()
        result = await do()
        await self._burn()
        return result

    async def _burn(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.has_burnt.set()
        if self.left <= 0:
            await anyio.sleep_forever()

    async def kill(self, *_: object) -> None:
        """Be the end of the manager."""
        await self.has_burnt.wait()
        raise Stopped


@define
class Fused(PassesOn):
    """An executor, and a fuse around what it does."""

    fuse: Fuse

    async def around(self, do: Callable[[], Awaitable[T]]) -> T:
        """See `Fuse.around`."""
        return await self.fuse.around(do)


class FusedClient(GitLabClient):
    """A client, and a fuse around transfers."""

    fuse: Fuse

    async def upload(self, job: Job, artifact: Artifact, file: Path, *, filename: str) -> None:
        """See `GitLabClient.upload`."""
        await self.fuse.around(lambda: super(FusedClient, self).upload(job, artifact, file, filename=filename))

    async def download(self, dependency: Dependency, to: Path, *, limit: int = 1 << 30) -> int:
        """See `GitLabClient.download`."""
        return await self.fuse.around(lambda: super(FusedClient, self).download(dependency, to, limit=limit))


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """A GitLab and an instance."""
    async with desk_on(tmp_path) as made:
        yield made


@pytest.mark.parametrize("is_canceled", [False, True], ids=["whole", "canceled"])
async def test_every_manager_is_killed_once(desk: Desk, *, is_canceled: bool, full: bool) -> None:
    """The script runs once, the log is whole, and artifacts are there, wherever managers are killed."""
    first = await desk.run(script("echo given > given", artifacts=(leaving("given"),)))
    wait = f"touch {desk.home}/begun-$N; sleep 1000" if is_canceled else ":"
    job = script(
        f"echo ran >> {desk.home}/ran-$N",
        "cat given; echo left > left",
        wait,
        after=["echo the after_script"],
        artifacts=(leaving("left", when="always"),),
        cache=(Cache(key="k", paths=("left",), policy="push", when="always"),),
        dependencies=after(first.job),
    )
    logs = set()
    for count, left in enumerate(range(1, MOST, 1 if full else 4), start=1):
        number = Variable(key="N", value=str(first.job.id + count))
        taken = await desk.take(evolve(job, variables=(*job.variables, number)))
        assert taken.id == first.job.id + count
        fuse = Fuse(left)
        dying = evolve(desk, executor=partial(_fused_executor, desk, fuse), client=_fused(desk.client, fuse))

        async def meanwhile(job: Job, report: Reporting, fuse: Fuse = fuse) -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel, desk, job, report, is_canceled)
                await fuse.has_burnt.wait()
                tasks.cancel_scope.cancel()
            raise Stopped

        await dying.carry_out(taken, meanwhile=meanwhile)
        if has_burnt := fuse.has_burnt.is_set():

            async def again(job: Job, report: Reporting) -> None:
                await _cancel(desk, job, report, is_canceled)

            await desk.carry_out(taken, is_again=True, meanwhile=again)
        ended = await desk.gitlab.ended(taken.id)
        log = desk.log(ended)
        assert (desk.home / f"ran-{taken.id}").read_text() == "ran\n", log
        assert [log.count(f"\n{word}\n") for word in ("given", "the after_script")] == [1, 1], log
        assert desk.archive(taken.id) == {"left": b"left\n"}, log
        assert ended.failure_reason == ("job_canceled" if is_canceled else None), log
        logs.add(_plain(log))
        if not has_burnt:
            break
    else:
        pytest.fail("the fuse never outlasted the manager")
    assert len(logs) == 1


def _fused_executor(desk: Desk, fuse: Fuse) -> Fused:
    inner = desk.executor()
    assert isinstance(inner, InstanceExecutor)
    return Fused(inner, fuse)


def _fused(client: GitLabClient, fuse: Fuse) -> GitLabClient:
    fused = FusedClient.__new__(FusedClient)
    fused.__dict__.update(client.__dict__)
    fused.fuse = fuse
    return fused


async def _cancel(desk: Desk, job: Job, report: Reporting, is_canceled: bool) -> None:  # noqa: FBT001  (a task's)
    if not is_canceled:
        return
    while not (desk.home / f"begun-{job.id}").exists():  # noqa: ASYNC110  (only looking tells)
        await anyio.sleep(POLL)
    report.report.is_canceling = True
    report.canceling.set()


def _plain(log: str) -> str:
    """A log without times and numbers of its own."""
    return re.sub(r"section_(start|end):\d+", "section", log)
