"""Jobs that a router keeps for a runner that does not come: each is given back to its cell, also after a crash."""

import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest
from attrs import define, evolve, field

from gitlab_jobs.client import GitLabClient
from gitlab_jobs.testing import FakeGitLab, State
from taskscaler_gitlab.cells import _polls
from taskscaler_gitlab.cells._held import Answer
from taskscaler_gitlab.cells._kept import Kept, KeptJob, Owed
from taskscaler_gitlab.cells._polls import Polls
from taskscaler_gitlab.cells._serve import Serving
from tests.taskscaler_gitlab.routers import ABOUT, Cells, a_job, cells
from tests.time_limits import NEVER_REACHED

pytestmark = [pytest.mark.anyio]

RUNNER = b"r" * 32
TWO_PHASE = {**ABOUT, "features": {**ABOUT["features"], "two_phase_job_commit": True}}


@asynccontextmanager
async def keeping(here: Path, *, two_phase: bool) -> AsyncIterator[tuple[Cells, FakeGitLab, KeptJob]]:
    """A cell that has handed out a job, and the job as it is kept."""
    async with cells(here, count=1) as at:
        gitlab = at.gitlabs["1"]
        gitlab.enqueue(a_job())
        async with GitLabClient(at.urls["1"]) as client:
            asked = await client.ask(gitlab.runner_token, info=TWO_PHASE if two_phase else ABOUT)
        assert asked.job
        owed = Owed("1", asked.job.id, asked.job.token)
        yield at, gitlab, KeptJob(owed, Answer(201, {}, b"{}"), anyio.current_time() + 3600, two_phase)


async def test_a_job_that_nobody_comes_for_is_failed(tmp_path: Path) -> None:
    """As the runner's system's fault, so that it can be retried; nothing is left on the disk."""
    async with keeping(tmp_path, two_phase=False) as (at, gitlab, job), at.routed() as serving:
        kept = serving.router.polls.kept
        await kept.keep(RUNNER, job)
        (note,) = (tmp_path / "router" / "kept").iterdir()
        assert note.stat().st_mode & 0o777 == 0o600
        assert kept.overdue(job.until - 1) == []
        await serving.router.polls.give_up_all()
        stored = gitlab.server.jobs[job.owed.number]
        assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")
        assert [*(tmp_path / "router" / "kept").iterdir()] == []
        assert len(kept) == 0


async def test_a_job_that_a_crashed_router_has_kept_is_failed_by_the_next(tmp_path: Path) -> None:
    """Its cell would believe for an hour that it runs."""
    async with keeping(tmp_path, two_phase=False) as (at, gitlab, job):
        await Kept(tmp_path / "router" / "kept").keep(RUNNER, job)
        async with at.routed():
            stored = await gitlab.ended(job.owed.number)
            while [*(tmp_path / "router" / "kept").iterdir()]:  # noqa: ASYNC110  (nobody says)
                await anyio.sleep(0.01)
        assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")


async def test_a_job_that_was_given_is_not_failed_later(tmp_path: Path) -> None:
    """The note is gone before the runner has it."""
    async with keeping(tmp_path, two_phase=False) as (at, gitlab, job):
        kept = Kept(tmp_path / "router" / "kept")
        await kept.keep(RUNNER, job)
        assert await kept.take(b"another") is None
        assert await kept.take(RUNNER) is job
        assert kept.left() == []
        async with at.routed():
            await anyio.wait_all_tasks_blocked()
        assert gitlab.server.jobs[job.owed.number].state is State.RUNNING


async def test_a_cell_that_waits_for_the_acceptance_hears_that_the_job_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And gives it to somebody else when it hears no more; nothing of it is noted down."""
    monkeypatch.setattr(_polls, "SIGN", 0.01)
    async with keeping(tmp_path, two_phase=True) as (at, gitlab, job), at.routed() as serving:
        await serving.router.polls.kept.keep(RUNNER, job)
        while gitlab.calls["update"] < 3:  # noqa: ASYNC110  (nobody says)
            await anyio.sleep(0.01)
        assert gitlab.server.jobs[job.owed.number].state is State.PENDING
        assert not (tmp_path / "router" / "kept").exists()
        await serving.router.polls.give_up_all()
        assert gitlab.server.jobs[job.owed.number].state is State.PENDING


async def test_a_cell_that_does_not_wait_for_the_acceptance_believes_that_a_job_runs(tmp_path: Path) -> None:
    """Whatever the runner would do: an older GitLab with a newer runner. The job fails, and can be retried."""
    async with keeping(tmp_path, two_phase=False) as (at, gitlab, job), at.routed() as serving:
        await serving.router.polls.kept.keep(RUNNER, evolve(job, is_two_phase=True))
        await serving.router.polls.give_up_all()
        stored = gitlab.server.jobs[job.owed.number]
        assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")


async def test_a_cell_that_does_not_answer_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by what an earlier router has left of it, nor by a job that is kept."""
    monkeypatch.setattr(_polls, "SIGN", 0.01)
    async with keeping(tmp_path, two_phase=False) as (at, gitlab, job):
        with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes connections, and says nothing
            at.urls = {**at.urls, "0": f"http://127.0.0.1:{silent.getsockname()[1]}"}
            await Kept(tmp_path / "router" / "kept").keep(RUNNER, evolve(job, owed=Owed("0", 1, "t")))
            async with at.routed() as serving:
                kept = serving.router.polls.kept
                await kept.keep(b"a" * 32, evolve(job, owed=Owed("0", 2, "t"), is_two_phase=True))
                await kept.keep(RUNNER, evolve(job, until=anyio.current_time()))
                with anyio.fail_after(40):  # less than a cell may take to answer
                    stored = await gitlab.ended(job.owed.number)
    assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")


async def test_a_note_that_cannot_be_read_or_is_of_a_cell_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    """The router starts, and answers."""
    kept = tmp_path / "router" / "kept"
    kept.mkdir(parents=True, mode=0o700)
    (tmp_path / "router").chmod(0o700)
    (kept / "1-7.json").write_text("{")
    (kept / "9-7.json").write_text('{"cell": "9", "number": 7, "token": "t"}')
    async with keeping(tmp_path, two_phase=False) as (at, gitlab, _), at.routed() as serving:
        await answers(serving, gitlab)
        while (kept / "9-7.json").exists():  # noqa: ASYNC110  (nobody says)
            await anyio.sleep(0.01)
        assert (kept / "1-7.json").exists()


async def test_a_note_that_cannot_be_removed_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The router starts, and answers: its disk may be one that is read only."""

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    async with keeping(tmp_path, two_phase=False) as (at, gitlab, job):
        await Kept(tmp_path / "router" / "kept").keep(RUNNER, job)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", read_only)
            async with at.routed() as serving:
                await gitlab.ended(job.owed.number)
                await anyio.wait_all_tasks_blocked()
                await answers(serving, gitlab)


async def test_a_job_whose_note_cannot_be_removed_waits_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given to its runner, the next router would report it as failed while it runs; others are given meanwhile."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with keeping(tmp_path, two_phase=False) as (_, __, job):
        kept, unnoted = Kept(tmp_path / "router" / "kept"), evolve(job, owed=Owed("1", 7, "t"), is_two_phase=True)
        await kept.keep(RUNNER, job)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", full)
            assert await kept.take(RUNNER) is None
        await kept.keep(RUNNER, unnoted)
        assert [*kept] == [job, unnoted]
        assert [await kept.take(RUNNER) for _ in range(3)] == [job, unnoted, None]


@define(eq=False)
class OnASlowDisk(Kept):
    """A job is kept once its runner's next request is at the cells, and they answer while its note is removed."""

    polls: Polls = field(kw_only=True)
    late: KeptJob | None = field(kw_only=True)

    async def take(self, runner: bytes) -> KeptJob | None:
        """See `Kept`."""
        if self.late is None or not self.polls._rounds:
            return await super().take(runner)
        late, self.late = self.late, None
        await self.keep(runner, late)
        found = await super().take(runner)
        while all(live.polled is None for live in self.polls._rounds.values()):  # noqa: ASYNC110  (nobody says)
            await anyio.sleep(0.01)
        return found


async def test_a_job_that_a_cell_gives_while_a_kept_one_is_taken_is_not_lost(tmp_path: Path) -> None:
    """The runner gets one of them, and the other with its next request."""
    body = {"token": "glrt-everywhere", "system_id": "s", "info": ABOUT}
    async with cells(tmp_path) as at, at.routed() as serving, httpx.AsyncClient(timeout=NEVER_REACHED) as http:

        async def ask(url: str) -> httpx.Response:
            return await http.post(f"{url}/api/v4/jobs/request", json=body)

        at.add_everywhere("glrt-everywhere")
        at.number_apart()
        numbers = {gitlab.enqueue(a_job()) for gitlab in at.gitlabs.values()}
        got = await ask(at.urls["1"])
        owed = Owed("1", got.json()["id"], got.json()["token"])
        job = KeptJob(owed, Answer(201, {}, got.content), anyio.current_time() + 3600, is_two_phase=False)
        polls = serving.router.polls
        polls.kept = OnASlowDisk(tmp_path / "router" / "kept", polls=polls, late=job)
        assert {(await ask(serving.urls[0])).json()["id"] for _ in numbers} == numbers
        assert len(polls.kept) == 0


async def answers(serving: Serving, gitlab: FakeGitLab) -> None:
    """See that it does."""
    async with GitLabClient(serving.urls[0]) as client:
        assert (await client.verify(gitlab.runner_token)).id == 1
