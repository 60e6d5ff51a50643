"""The custom executor of real gitlab-runners, with our driver, on a fleet that a daemon holds."""

import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from anyio.abc import Process
from attrs import define

from gitlab_jobs.testing import FakeGitLab, State
from tests.gitlab_jobs.serving import served
from tests.peers.custom import custom, fleet
from tests.peers.pipeline import PIPELINE, Operator, Planned, job, played, said, sections_of, text_of
from tests.peers.real import RealRunner
from tests.taskscaler.services import Service
from tests.taskscaler_gitlab.test_beside_the_real_runner import script_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.real_runner]

OTHERWISE = {
    "absent command",  # bash says in which line, and there are two variables more before it
    "standard error",  # two streams are read apart
    "cancelled script",  # so many ticks as there was time for
    "cancelled after",
    "cancelled unclaimed",  # it may have begun
    "environment",  # has the directories' names
    "bytes",
    "timeout",  # bash says what was terminated
    "killed",
}
"""Jobs whose lines are not the same, most of them not even twice at GitLab Runner itself."""

OF_CUSTOM = re.compile(rb"[^\n]*WARNING: .*Starting with version 1[^\n]*\n")
"""What gitlab-runner itself says of a stage's name, with every custom executor."""

TRIES = 3
"""How often gitlab-runner prepares a job."""

SLEEPS = "echo $$ > {here}/pid; echo begins; while :; do sleep 0.2; done"


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: what differs is programs of their own."""
    return "asyncio"


def outcome(operator: Operator, planned: Planned, *, has_codes: bool) -> tuple[object, ...]:
    """What GitLab has of a job's end; older runners have no way to pass on what a script exits with."""
    stored = operator.stored(planned.name)
    code = stored.exit_code if has_codes and planned.name != "killed" else None  # Go has none for a killed shell
    return stored.state, stored.failure_reason, code, operator.artifacts(planned.name)


@define
class Bench:
    """A GitLab, a daemon, and a gitlab-runner with both."""

    here: Path
    gitlab: FakeGitLab
    service: Service
    real: RealRunner

    @property
    def held(self) -> list[str]:
        """The keys of slots that jobs have."""
        return [each["key"] for each in self.service.ask("GET", "/leases")["leases"]]

    async def until(self, is_so: Callable[[], object]) -> None:
        """Look until something is so; programs of others give no word."""
        while not await to_thread.run_sync(is_so):  # noqa: ASYNC110  (the same)
            await anyio.sleep(0.05)

    def log(self, number: int) -> str:
        """A job's log."""
        return text_of(self.gitlab.log(number))

    async def prints(self, number: int, line: str) -> None:
        """Wait until a job has printed a line."""
        await self.until(lambda: line in self.log(number).splitlines())

    def pid(self) -> int:
        """Of a job's shell."""
        return int((self.here / "pid").read_text())


@asynccontextmanager
async def benched(
    here: Path, *, capacity: int = 2, most: int = 1, url: list[str] | None = None
) -> AsyncIterator[Bench]:
    """All but the runner, which the test starts."""
    for place in ("real", "gitlab"):
        (here / place).mkdir()
    real = RealRunner(here / "real")
    gitlab = FakeGitLab(here / "gitlab")
    with fleet(here, real, capacity=capacity, most=most) as service:
        async with served(gitlab) as address:
            if url is not None:
                url.append(address)
            yield Bench(here, gitlab, service, real)


@asynccontextmanager
async def running(here: Path, **more: int | str) -> AsyncIterator[tuple[Bench, Process]]:
    """All of it."""
    url: list[str] = []
    sizes = {name: int(more.pop(name)) for name in ("capacity", "most") if name in more}
    async with benched(here, url=url, **sizes) as bench:
        table = custom(here, bench.service.socket, **more)  # type: ignore[arg-type]
        async with bench.real.running(url[0], bench.gitlab.runner_token, executor=table) as process:
            yield bench, process


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_jobs_of_every_kind(tmp_path: Path) -> None:
    """Each ends as with the same program's shell executor, and prints and leaves the same; no slot is left."""
    for place in ("shell", "theirs"):
        (tmp_path / place).mkdir()
    alone_at = RealRunner(tmp_path / "shell")
    theirs = FakeGitLab(tmp_path / "theirs")
    async with running(tmp_path, capacity=6) as (bench, _):
        through = await played(bench.gitlab)
        await bench.until(lambda: not bench.held)
    async with served(theirs) as url, alone_at.running(url, theirs.runner_token):
        alone = await played(theirs)
    has_codes = alone_at.version >= (17,)
    assert {each.name: outcome(through, each, has_codes=has_codes) for each in PIPELINE} == {
        each.name: outcome(alone, each, has_codes=has_codes) for each in PIPELINE
    }
    for each in PIPELINE:
        logs = [bytes(operator.stored(each.name).trace) for operator in (through, alone)]
        if each.cancel is None:
            assert through.stored(each.name).state is each.state, each.name  # else both might do nothing
        if each.cancel is None and each.name != "timeout":  # whose few seconds are for its slot, too
            assert sections_of(logs[0]) == sections_of(logs[1]), each.name
        if each.name not in OTHERWISE:
            assert script_of(OF_CUSTOM.sub(b"", logs[0])) == script_of(logs[1]), each.name


async def test_a_job_that_is_cancelled_ends_on_its_instance(tmp_path: Path) -> None:
    """While it waits for a slot it boots nothing, and while its script runs that ends; its slot goes back."""
    async with running(tmp_path, capacity=1) as (bench, _):
        first = bench.gitlab.enqueue(job("first", SLEEPS.format(here=tmp_path)))
        await bench.prints(first, "begins")
        second = bench.gitlab.enqueue(job("second", "echo nev''er"))
        await bench.until(lambda: "1 job is waiting" in bench.log(second))
        for number in (second, first):
            bench.gitlab.cancel(number)
            stored = await bench.gitlab.ended(number)
            assert stored.state is State.CANCELED
        await bench.until(lambda: is_gone(bench.pid()))
        await bench.until(lambda: not bench.held)
    assert "\nnever\n" not in bench.log(second)
    if bench.real.is_graceful:  # older ones send nothing more of a job that was cancelled
        assert "SIGTERM: asking the script to end" in bench.log(first)


async def test_a_script_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """Once gitlab-runner has killed what ran it, and given up on it."""
    deaf = "trap '' TERM; " + SLEEPS.format(here=tmp_path)
    async with running(tmp_path, graceful=2) as (bench, _):
        number = bench.gitlab.enqueue(job("deaf", deaf))
        await bench.prints(number, "begins")
        bench.gitlab.cancel(number)
        stored = await bench.gitlab.ended(number)
        await bench.until(lambda: is_gone(bench.pid()))
        await bench.until(lambda: not bench.held)
    assert stored.state is State.CANCELED


async def test_a_fleet_that_is_full_is_waited_for(tmp_path: Path) -> None:
    """As long as prepare_exec_timeout says; what is waited for is in the job's log."""
    async with running(tmp_path, capacity=1, prepare_timeout=10, graceful=30) as (bench, _):
        first = bench.gitlab.enqueue(job("first", SLEEPS.format(here=tmp_path)))
        await bench.prints(first, "begins")
        second = bench.gitlab.enqueue(job("second", "echo nev''er"))
        stored = await bench.gitlab.ended(second)
        assert "the limit of 1 instance (max_instances) is reached" in bench.log(second)
        assert bench.log(second).count("SIGTERM has ended this") == TRIES
        assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")
        assert len(bench.held) == 1
        bench.gitlab.cancel(first)
        await bench.gitlab.ended(first)
        third = bench.gitlab.enqueue(job("third", "echo at last"))
        assert (await bench.gitlab.ended(third)).state is State.SUCCESS


async def test_what_a_job_cannot_have_is_its_own_failure(tmp_path: Path) -> None:
    """It is not prepared again, as it would be if that were ours, and gets no slot; its log says why."""
    async with running(tmp_path) as (bench, _):
        asked = job("asks", "echo nev''er", variables=(said("TASKSCALER_FLEET", "gpu"),))
        number = bench.gitlab.enqueue(asked)
        stored = await bench.gitlab.ended(number)
    assert (stored.state, stored.failure_reason) == (State.FAILED, "script_failure")
    assert bench.log(number).count("its runner offers no choice; remove the variable") == 1


async def test_a_lost_instance_is_the_runners_failure(tmp_path: Path) -> None:
    """So that GitLab runs the job again if its pipeline says so; the log says what was lost."""
    async with running(tmp_path, capacity=1) as (bench, _):
        number = bench.gitlab.enqueue(job("lost", SLEEPS.format(here=tmp_path)))
        await bench.prints(number, "begins")
        [lease] = bench.service.ask("GET", "/leases")["leases"]
        agent = tmp_path / "fleet" / lease["instance"] / "agent.pid"
        os.kill(int(agent.read_text()), signal.SIGKILL)
        stored = await bench.gitlab.ended(number)
        await bench.until(lambda: not bench.held)
        again = bench.gitlab.enqueue(job("again", "echo at last"))
        assert (await bench.gitlab.ended(again)).state is State.SUCCESS
    assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")
    assert re.search(rf"error: .*{lease['instance']}", bench.log(number))


async def test_a_runner_that_is_killed_leaves_no_slot(tmp_path: Path) -> None:
    """Neither one in which a script runs nor one that is waited for, and nothing of the job runs on."""
    async with running(tmp_path, capacity=1) as (bench, process):
        first = bench.gitlab.enqueue(job("first", SLEEPS.format(here=tmp_path)))
        await bench.prints(first, "begins")
        second = bench.gitlab.enqueue(job("second", "echo nev''er"))
        await bench.until(lambda: "1 job is waiting" in bench.log(second))
        process.kill()
        await process.wait()
        await bench.until(lambda: is_gone(bench.pid()))
        await bench.until(lambda: not bench.held)
        await bench.until(lambda: "nothing is waiting" in str(bench.service.ask("GET", "/explain")))


async def test_a_daemon_that_is_killed_is_not_noticed(tmp_path: Path) -> None:
    """The script runs on, the stages that follow find their slot at the next daemon, and so does a job that waits."""
    url: list[str] = []
    go = tmp_path / "go"
    async with benched(tmp_path, capacity=1, url=url) as bench:
        table = custom(tmp_path, bench.service.socket)
        async with bench.real.running(url[0], bench.gitlab.runner_token, executor=table):
            line = f"echo begins; until [ -e {go} ]; do sleep 0.1; done; echo done"
            first = bench.gitlab.enqueue(job("first", line, after=["echo looks back"]))
            await bench.prints(first, "begins")
            second = bench.gitlab.enqueue(job("second", "echo at last"))
            await bench.until(lambda: "1 job is waiting" in bench.log(second))
            bench.service.process.kill()
            bench.service.process.wait()
            go.touch()
            with fleet(tmp_path, bench.real, capacity=1) as bench.service:
                assert (await bench.gitlab.ended(first)).state is State.SUCCESS
                assert (await bench.gitlab.ended(second)).state is State.SUCCESS
                await bench.until(lambda: not bench.held)
    assert {"done", "looks back"} <= {*bench.log(first).splitlines()}
