"""Failures that nobody foresaw: each ends one job at most, which GitLab and the log learn, and never the runner."""

import logging
from pathlib import Path
from typing import Any

import pytest
from attrs import define

from fleeting import LoopClock, MemoryJournal
from fleeting.testing import FakeCloud
from gitlab_jobs import Job, Outcome
from gitlab_jobs.client import GitLabClient, Registered, Reporting
from gitlab_jobs.testing import URL, FakeGitLab, State
from taskscaler import Lease
from taskscaler.executors import Executor
from tests.taskscaler_gitlab.services import Bench, Held, Scripted, a_job, serving

pytestmark = [
    pytest.mark.anyio,
    # httpx leaves its own generators open when an answer is not read to its end, and trio tells of them
    pytest.mark.filterwarnings("ignore:.*async_generator object .*Stream:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
]


@pytest.fixture
def gitlab(tmp_path: Path) -> FakeGitLab:
    """One that answers at once."""
    return FakeGitLab(tmp_path / "gitlab", long_poll=0.05, accepts=0)


class OddError(Exception):
    """One that is none of ours."""


class OddClient(GitLabClient):
    """A client that fails in a way of its own: a call of a name, so often."""

    def __init__(self, gitlab: FakeGitLab, call: str, times: int) -> None:
        """Begin."""
        super().__init__(URL, transport=gitlab.transport())
        self._call, self._times = call, times

    def _fail(self, call: str) -> None:
        if call == self._call and self._times > 0:
            self._times -= 1
            raise OddError(call)

    async def send(self, *arguments: Any, **more: Any) -> Any:  # noqa: ANN401  (as it was asked)
        """See `GitLabClient.send`."""
        self._fail("send")
        return await super().send(*arguments, **more)

    async def ask(self, *arguments: Any, **more: Any) -> Any:  # noqa: ANN401  (as it was asked)
        """See `GitLabClient.ask`."""
        self._fail("ask")
        return await super().ask(*arguments, **more)

    async def verify(self, *arguments: Any, **more: Any) -> Registered:  # noqa: ANN401  (as it was asked)
        """See `GitLabClient.verify`."""
        self._fail("verify")
        return await super().verify(*arguments, **more)


class OddClock(LoopClock):
    """A clock that stops now and then."""

    fails = 0

    def now(self) -> float:
        """See `Clock.now`."""
        if self.fails:
            self.fails -= 1
            raise OddError("the clock stands")
        return super().now()


class Stopping(GitLabClient):
    """A client with whose first job a clock stops."""

    clock: OddClock | None = None

    async def ask(self, *arguments: Any, **more: Any) -> Any:  # noqa: ANN401  (as it was asked)
        """See `GitLabClient.ask`."""
        asked = await super().ask(*arguments, **more)
        if asked.job is not None and self.clock is not None:
            self.clock.fails, self.clock = 1, None
        return asked


def tracebacks(caplog: pytest.LogCaptureFixture, event: str) -> int:
    """How often something was logged with where it happened."""
    found = [each for each in caplog.records if each.getMessage() == event and each.levelno >= logging.ERROR]
    assert all(each.exc_info for each in found)
    return len(found)


async def still_works(bench: Bench) -> None:
    """See that the runner runs the next job, and holds no slot for the last one."""
    assert (await bench.gitlab.ended(bench.gitlab.enqueue(a_job("next")))).state is State.SUCCESS
    await bench.until(lambda: not bench.service.running)
    await bench.taken(acquired=0)


@pytest.mark.parametrize(("call", "event"), [("send", "call_failed"), ("ask", "request_failed"), ("verify", "")])
async def test_a_client_that_fails_costs_no_job(
    gitlab: FakeGitLab, tmp_path: Path, caplog: pytest.LogCaptureFixture, call: str, event: str
) -> None:
    """What it could not say is said again; a traceback is logged once for each job, or an hour."""
    client = OddClient(gitlab, call, 2)
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, client=client) as bench:
        assert (await gitlab.ended(number)).state is State.SUCCESS
        await still_works(bench)
    assert not event or tracebacks(caplog, event) == 1


async def test_a_job_that_cannot_be_taken_fails_at_once(
    gitlab: FakeGitLab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """GitLab does not wait for it, and its slot is free."""
    clock, client = OddClock(), Stopping(URL, transport=gitlab.transport())
    client.clock = clock
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, clock=clock, client=client) as bench:
        stored = await gitlab.ended(number)
        assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")
        assert b"it cannot be noted down (OddError)" in gitlab.log(number)
        await bench.until(lambda: bool(bench.said))
        assert bench.said == [f"warning: the job {number} was refused: it cannot be noted down (OddError)"]
        await still_works(bench)
    assert tracebacks(caplog, "job_refused") == 1


async def test_a_full_disk_costs_the_job_that_cannot_be_noted_down(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """It fails at once with the reason, and nothing of it is left, its token least of all."""
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab) as bench:
        jobs = tmp_path / "jobs" / "jobs"
        jobs.rmdir()
        jobs.touch()
        assert (await gitlab.ended(number)).state is State.FAILED
        assert b"cannot be noted down (" in gitlab.log(number)
        jobs.unlink()
        await still_works(bench)
    token = gitlab.server.jobs[number].job.token.encode()
    assert not [path for path in (tmp_path / "jobs").rglob("*") if path.is_file() and token in path.read_bytes()]


async def test_a_full_disk_costs_no_job_its_end(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """How it ended cannot be noted down; GitLab learns it all the same, and the token goes."""
    jobs = tmp_path / "jobs" / "jobs"

    async def filling(_: Job, __: Lease, ___: Reporting) -> Outcome:
        (directory,) = jobs.iterdir()
        (directory / "state.json").unlink()
        (directory / "state.json").mkdir()
        return Outcome(is_success=True)

    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, runs=Scripted(filling)) as bench:
        assert (await gitlab.ended(number)).state is State.SUCCESS
        await bench.until(lambda: not bench.service.running)
        assert not [*jobs.glob("*/job.json")]
        assert not bench.said


@define
class Odd(Scripted):
    """Fails where nobody expects it: *where* is a method's name."""

    where: str = "run"
    times: int = 1

    def _fail(self, where: str) -> None:
        if where == self.where and self.times > 0:
            self.times -= 1
            raise ValueError(f"{where} fails")

    async def run(self, job: Job, lease: Lease, reporting: Reporting, **more: Any) -> Outcome:  # noqa: ANN401
        """See `Runs.run`."""
        outcome = await super().run(job, lease, reporting, **more)
        self._fail("run")
        return outcome

    async def abandon(self, executor: Executor, lease: Lease, *, directory: Path) -> None:
        """See `Runs.abandon`."""
        await super().abandon(executor, lease, directory=directory)
        self._fail("abandon")

    def kept_log(self, directory: Path) -> int:
        """See `Runs.kept_log`."""
        self._fail("kept_log")
        return 0

    def has_begun(self, directory: Path) -> bool:
        """See `Runs.has_begun`."""
        self._fail("has_begun")
        return super().has_begun(directory)


@pytest.mark.parametrize(
    ("where", "event"),
    [
        ("run", "job_failed_unexpectedly"),
        ("kept_log", "job_unreadable"),
        ("has_begun", "job_failed_unexpectedly"),
    ],
)
async def test_what_fails_while_a_job_runs_ends_that_job(
    gitlab: FakeGitLab, tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str, event: str
) -> None:
    """It is reported as failed by its runner, and logged once with where it happened."""
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, runs=Odd(where=where)) as bench:
        stored = await gitlab.ended(number)
        assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")
        assert b"ERROR: Job failed (system failure): " in gitlab.log(number)
        await still_works(bench)
        assert bench.service.jobs[0].state == "failed"
    assert tracebacks(caplog, event) == 1
    assert not [*tmp_path.glob("jobs/jobs/*/job.json")]  # noqa: ASYNC240  (of no moment here)


async def test_a_job_that_could_not_be_ended_costs_its_instance(
    gitlab: FakeGitLab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever went wrong there: nobody else gets a slot beside it."""
    cloud, held = FakeCloud(), Held()
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, cloud=cloud, runs=Odd(held, where="abandon")) as bench:
        await held.begun.wait()
        first = bench.service.jobs[0].record()["instance"]
        bench.service.jobs[0].cancel()
        assert (await gitlab.ended(number)).failure_reason == "runner_interrupted"
        await bench.until(lambda: first not in cloud.alive)
        held.go.set()
        await still_works(bench)
    assert tracebacks(caplog, "job_not_ended") == 1


async def test_what_was_left_running_is_ended_if_it_cannot_be_resumed(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """The next runner fails as it looks at a job: its commands end, its slot is free, and GitLab knows."""
    cloud, journal, held = FakeCloud(), MemoryJournal(), Held()
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, cloud=cloud, runs=Scripted(held), journal=journal):
        await held.begun.wait()
    again = Odd(where="kept_log")
    async with serving(tmp_path, gitlab, cloud=cloud, runs=again, journal=journal) as bench:
        assert (await gitlab.ended(number)).failure_reason == "runner_system_failure"
        await bench.taken(acquired=0)
        assert len(again.abandoned) == 1
        await still_works(bench)
