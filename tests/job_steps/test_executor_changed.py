"""The *steps* executor, when its version or its policy changes while its manager is away: jobs stay where they are."""

import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from fleeting.connectors import PosixConnection, RunsDetached
from fleeting.errors import CommandLost, NameUnknown
from job_steps import _bring
from job_steps._zipapp import Zipapp, zipapp
from job_steps.executor import PolicySettings, StepsConfig
from taskscaler.executors import Verdict
from tests.fleeting.local_agents import POLL, Heard, watched
from tests.job_steps.test_executor import BATCH, GONE, Bench, opened_bench, processes_below
from tests.taskscaler.test_instance_executor import NAP

pytestmark = pytest.mark.anyio

OTHER = f"{BATCH}-other"
SCAN: dict[str, object] = {"name": "scan", "script": "echo scanned"}
STRICTER = StepsConfig(policy=PolicySettings(before=(SCAN,)))
HEAD = b'Running step "script"\n'


@pytest.fixture
async def bench(tmp_path: Path, placed: Path) -> AsyncIterator[Bench]:
    """Start an instance of one's own, where the agent is placed."""
    async with opened_bench(tmp_path, placed) as opened:
        yield opened


@pytest.fixture
async def change(bench: Bench, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> "Change":
    """What happens to the manager's policy, or to what is installed there."""
    return Change(bench, request.param, monkeypatch)


class Change:
    """One that is about to happen."""

    def __init__(self, bench: Bench, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take what changes."""
        self.bench = bench
        self.what = what
        self.monkeypatch = monkeypatch

    async def happen(self) -> None:
        """Have it happen: the next manager has another policy, or another agent to place."""
        if self.what != "version":
            self.bench.settings = STRICTER
        if self.what != "policy":
            newer = Zipapp(zipapp().data, "0" * 16)
            home = await _home(self.bench)
            await anyio.to_thread.run_sync(shutil.copytree, home / zipapp().name, home / newer.name, False, _no_agents)
            self.monkeypatch.setattr(_bring, "zipapp", lambda: newer)


async def _home(bench: Bench) -> Path:
    """Where the agents of the instance are."""
    async with bench.slot.dial() as connection:
        assert isinstance(connection, PosixConnection)
        return Path(connection.detached_directory).parent / ".job-steps"


def _no_agents(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith("run")]


async def _begun(path: Path) -> int:
    """Wait for a job to say which process it is."""
    written = anyio.Path(path)
    while not await written.exists():  # noqa: ASYNC110  (another process makes it)
        await anyio.sleep(POLL)
    return int(await written.read_text())


async def _kill_agents(bench: Bench) -> None:
    async with bench.slot.dial() as connection:
        assert isinstance(connection, RunsDetached)
        running = [each.name for each in await connection.list_detached() if each.is_running]
        for number in processes_below(bench.directory, b"serve"):
            os.kill(number, signal.SIGKILL)
        for name in running:
            await connection.attach(name, output=Heard())


@pytest.mark.parametrize("change", ["policy", "version"], indirect=True)
async def test_a_job_that_runs_is_found_where_it_was_started(bench: Bench, change: Change) -> None:
    """It runs once, with its log and its tree whole; a new one is as the new manager wants it, beside it."""
    ran, go = bench.directory / "ran", bench.directory / "go"
    script = f"echo ran >> {ran}; echo one; until [ -e {go} ]; do sleep 0.01; done; echo two; exit 3"
    job = await bench.start(script)
    await change.happen()
    await bench.start(script)  # by a manager that does not know whether it was started
    other = await bench.start("echo other", name=OTHER, slot=1)
    assert (await bench.attach(other, name=OTHER, slot=1)).verdict is Verdict.SUCCEEDED
    assert bench.output.raw.startswith(b'Running step "scan"\n') is (change.what != "version")
    assert len(await _running(bench)) == 2
    go.touch()
    for offset in (0, len(HEAD), len(HEAD) + 4):
        outcome = await bench.attach(job, offset=offset)
        assert (outcome.verdict, outcome.exit_code) == (Verdict.FAILED, 3)
        assert bench.output.raw == (HEAD + b"one\ntwo\n")[offset:]
        assert [(each.name, each.exit_code) for each in bench.tree.steps] == [("script", 3)]
    assert ran.read_text() == "ran\n"
    await bench.end()
    with pytest.raises(NameUnknown):
        await bench.attach(job)
    await bench.end(OTHER, slot=1)
    assert await bench.left() == []


async def _running(bench: Bench) -> list[str]:
    """Name the agents of the instance."""
    async with bench.slot.dial() as connection:
        assert isinstance(connection, RunsDetached)
        return [each.name for each in await connection.list_detached() if each.is_running]


@pytest.mark.parametrize("change", ["both"], indirect=True)
async def test_a_job_whose_agent_is_killed_meanwhile_is_lost(bench: Bench, change: Change) -> None:
    """Its processes are ended, and it does not run again; what was over by then is known as it ended."""
    over = await bench.start("echo over", name=OTHER, slot=1)
    assert (await bench.attach(over, name=OTHER, slot=1)).verdict is Verdict.SUCCEEDED
    ran, pid = bench.directory / "ran", bench.directory / "pid"
    script = f"echo ran >> {ran}; echo $$ > {pid}.new; mv {pid}.new {pid}; {NAP}"
    job = await bench.start(script)
    with watched(await _begun(pid)) as (process,):
        await _kill_agents(bench)
        await change.happen()
        await bench.start(script)
        with pytest.raises(CommandLost):
            await bench.attach(job)
        await process.ended()
    assert (await bench.attach(over, name=OTHER, slot=1)).verdict is Verdict.SUCCEEDED
    assert (bench.output.raw, len(bench.tree.steps)) == (HEAD + b"over\n", 1)
    assert ran.read_text() == "ran\n"
    await bench.end()
    await bench.end(OTHER, slot=1)
    assert await bench.left() == []


@pytest.mark.parametrize("change", ["both"], indirect=True)
async def test_who_gets_a_slot_ends_what_an_earlier_agent_runs_there(bench: Bench, change: Change) -> None:
    """As it ends its own agent's, not what other slots have; where such an agent is broken, jobs run all the same."""
    await bench.start(NAP, name=f"{GONE}-beside", slot=1)
    pid = bench.directory / "pid"
    await bench.start(f"echo $$ > {pid}.new; mv {pid}.new {pid}; {NAP}", name=f"{GONE}-given-up")
    with watched(await _begun(pid)) as (process,):
        await change.happen()
        await bench.start("true")
        await process.ended()
    assert {name.rpartition("-")[2] for name in await bench.left()} == {"beside", "job"}
    await bench.end()
    await _kill_agents(bench)
    (await _home(bench) / zipapp().name / "agent.pyz").unlink()
    job = await bench.start("true", name=OTHER, slot=1)
    assert (await bench.attach(job, name=OTHER, slot=1)).verdict is Verdict.SUCCEEDED
    await bench.end(OTHER, slot=1)
    assert [name.rpartition("-")[2] for name in await bench.left()] == ["beside"]


async def test_a_job_of_an_agent_stays_there_when_gitlabs_step_runner_is_to_run_them(bench: Bench) -> None:
    """Which need not even be there for that."""
    job = await bench.start("echo done")
    bench.settings = StepsConfig(step_runner="no-such-program")
    assert (await bench.attach(job)).verdict is Verdict.SUCCEEDED
    assert (bench.output.raw, bench.tree.steps[0].exit_code) == (HEAD + b"done\n", 0)
    await bench.end()
    assert await bench.left() == []
