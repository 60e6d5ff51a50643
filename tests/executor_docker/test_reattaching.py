"""Jobs in containers that outlive their manager, on a real daemon."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import define, evolve

from executor_docker import DockerError, DockerExecutor, TailorMemory
from executor_docker._options import Service
from executor_docker._owner import UNIT
from fleeting import Connection, Unreachable
from fleeting.errors import CommandLost, NameUnknown
from fleeting_docker_engine import Entry, tar_of
from taskscaler.executors import JobOutcome, JobSpec, MemoryLimit, Verdict
from tests.executor_docker import benches, test_jobs, test_services
from tests.executor_docker.benches import bench_on
from tests.fleeting.local_agents import Heard
from tests.fleeting_docker_engine.daemons import IMAGE, Daemon
from tests.taskscaler.leased import Slot

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left")]

BATCH, GONE = "0123456789ab", "ba9876543210"
NAME = f"{BATCH}-job"
NAP = "exec sleep 1000"


@define
class Bench(benches.Bench):
    """One instance, and everything to run jobs on it that outlive whoever starts them."""

    async def carry_out(self, executor: DockerExecutor, job: JobSpec, leased: Slot) -> JobOutcome:
        """Start a job, attach to it, and end it; one that is cancelled, too."""
        try:
            await executor.start(job, leased, name=NAME)
            return await executor.attach(job, leased, name=NAME, output=self.output, artifacts=self.artifacts)
        finally:
            with anyio.CancelScope(shield=True):
                await executor.end(leased, name=NAME)

    @contextmanager
    def manager(self, name: str) -> Iterator[DockerExecutor]:
        """Be a manager, which is killed when it has done what it does for a try."""
        executor = self.executor()
        try:
            yield executor
        finally:
            executor._owner._runs.let_go(name[:12], name)

    async def start(self, script: str, *, name: str = NAME, slot: int = 0, **spec: Any) -> JobSpec:  # noqa: ANN401
        """Start a job, and forget who has."""
        job = JobSpec(name="job", script=script, **spec)
        with self.manager(name) as executor:
            await executor.start(job, evolve(self.slot, slot=slot), name=name)
        return job

    async def attach(self, job: JobSpec, **how: Any) -> JobOutcome:  # noqa: ANN401
        """Join a job that somebody has started."""
        self.output = Heard()
        given = {"name": NAME, "output": self.output, "artifacts": self.artifacts, **how}
        with self.manager(given["name"]) as executor:
            return await executor.attach(job, self.slot, **given)

    async def end(self, *, name: str = NAME, slot: int = 0) -> None:
        """Leave nothing of it."""
        with self.manager(name) as executor:
            await executor.end(evolve(self.slot, slot=slot), name=name)

    async def container(self, name: str = NAME) -> str:
        """Find what runs of a try; empty if nothing does."""
        async with self.docker.engine() as engine:
            found = await engine.ask("GET", "/containers/json", query={"filters": {"label": [f"{UNIT}={name}"]}})
        return found[0]["Id"] if found else ""

    async def ask(self, method: str, path: str) -> None:
        """Do something to a container behind everybody's back."""
        async with self.docker.engine() as engine:
            await engine.ask(method, path)


@pytest.fixture
async def bench(docker: Daemon, tmp_path: Path) -> AsyncIterator[Bench]:
    """Start an instance."""
    async with bench_on(docker, tmp_path) as plain:
        yield Bench(plain.docker, plain.slot, plain.directory)


PROMISES: list[Callable[[benches.Bench], Awaitable[None]]] = [
    test_jobs.test_a_script_that_ends_well_has_succeeded_and_what_it_used_is_known,
    test_jobs.test_a_shebang_is_respected_and_standard_input_is_empty,
    test_jobs.test_a_great_deal_of_output_arrives_whole,
    test_jobs.test_output_is_told_while_the_job_runs_and_a_cancelled_job_is_gone,
    test_jobs.test_a_job_that_takes_too_long_is_ended_and_its_artifacts_are_brought_back,
    test_jobs.test_files_belong_to_the_job_s_user,
    test_jobs.test_a_job_that_needs_too_much_memory_is_told_so,
    test_services.test_a_job_reaches_its_services_by_name_once_they_are_well,
]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda each: each.__name__.removeprefix("test_"))
async def test_a_job_that_outlives_its_manager_is_a_job(
    bench: Bench, promise: Callable[[benches.Bench], Awaitable[None]]
) -> None:
    """What `run` promises holds for `start`, `attach` and `end`; nothing is left."""
    await promise(bench)


async def test_a_service_that_ends_is_an_error_with_the_end_of_its_log(bench: Bench) -> None:
    """There is no log of the job yet in which all of it could be shown."""
    script = "echo nothing; echo no disk; exit 4"
    broken = Service(image=IMAGE, aliases=("db",), command=("/bin/sh", "-c", script), health="true")
    with pytest.raises(DockerError, match=r"ended with 4 before the job started; its log ends with: no disk$"):
        await bench.run(
            "true", config={"network": "job", "allowed_services": (IMAGE,)}, options={"services": (broken,)}
        )


# --- another manager ---------------------------------------------------------------------------------------------


async def test_a_later_manager_joins_a_job_from_any_byte(bench: Bench) -> None:
    """While it runs and when it has ended, as often as anybody likes; and with its artifacts."""
    whole = b"one\ntwo\nthr\xff\0ee"
    script = (
        "printf 'one\\ntwo\\n'; until [ -e go ]; do sleep 0.1; done; printf 'thr\\377\\000ee'; echo made > left; exit 3"
    )
    job = await bench.start(script, artifacts=("left",))
    outcomes, heard = [], Heard()
    async with anyio.create_task_group() as tasks:

        async def join() -> None:
            outcomes.append(await bench.attach(job, offset=4, output=heard))

        tasks.start_soon(join)
        await heard.lines(1)
        path = f"/containers/{await bench.container()}/archive"
        async with bench.docker.engine() as engine:
            await engine.ask("PUT", path, query={"path": "/job"}, body=tar_of({"go": Entry()}))
    assert heard.data == whole[4:]
    for offset in range(0, len(whole) + 1, 3):
        assert (bench.artifacts / "left").read_text() == "made\n"
        (bench.artifacts / "left").unlink()
        bench.artifacts.rmdir()
        outcomes.append(await bench.attach(job, offset=offset))
        assert bench.output.data == whole[offset:]
    assert {(each.verdict, each.exit_code, each.why) for each in outcomes} == {(Verdict.FAILED, 3, "exited with 3")}
    await bench.end()


async def test_a_later_manager_knows_what_set_the_memory_limit(bench: Bench) -> None:
    """It may know of more runs by then: what counts is what was known when the job was started."""
    tailored = {"memory": "32m", "tailor_memory": TailorMemory(max="256m", min="16m")}
    limit = await bench.run("head -c 200m /dev/zero | tail", config=tailored, series="a job")
    assert limit.memory_limit == MemoryLimit(size=32 << 20, reached=True)
    job, leased = JobSpec(name="job", script="true", series="a job"), bench.slot
    await bench.executor(**tailored).start(job, leased, name=NAME)
    settings: dict[str, Any]
    for settings in ({}, tailored):
        attach = bench.executor(**settings).attach
        outcome = await attach(job, leased, name=NAME, output=Heard(), artifacts=bench.artifacts)
        why = "twice the 32 MiB at which an earlier run was killed"
        assert outcome.memory_limit == MemoryLimit(size=64 << 20, by="killed", why=why)
    await bench.executor(**tailored).end(leased, name=NAME)


async def test_a_job_is_started_once(bench: Bench) -> None:
    """However often that is asked for by managers that do not know; what was only made before is made anew."""
    body = {"Image": IMAGE, "Cmd": ["true"], "Labels": {UNIT: NAME, "taskscaler.kind": "job"}}
    async with bench.docker.engine() as engine:
        await engine.ask("POST", "/containers/create", json=body)
    with pytest.raises(NameUnknown):
        await bench.attach(JobSpec(name="job", script="true"))
    job = await bench.start("cat /proc/sys/kernel/random/uuid")
    for _ in range(2):
        await bench.start("cat /proc/sys/kernel/random/uuid")
    assert (await bench.attach(job)).verdict is Verdict.SUCCEEDED
    said = bench.output.data
    await bench.start("cat /proc/sys/kernel/random/uuid")
    assert (await bench.attach(job)).verdict is Verdict.SUCCEEDED
    assert bench.output.data == said
    for _ in range(2):
        await bench.end()
    with pytest.raises(NameUnknown):
        await bench.attach(job)


async def test_what_a_daemon_made_late_for_a_killed_manager_is_in_nobodys_way(bench: Bench) -> None:
    """It ends what it was asked for though nobody is there any more: another container of the job, or a network."""
    executor, job = bench.executor(network="job"), JobSpec(name="job", script=f"echo here; {NAP}", timeout=3600.0)
    body = {"Image": IMAGE, "Cmd": ["true"], "Labels": {UNIT: NAME, "taskscaler.kind": "job"}}
    async with bench.docker.engine() as engine:
        await engine.ask("POST", "/networks/create", json={"Name": f"taskscaler-{NAME}"})
        await executor.start(job, bench.slot, name=NAME)
        late = (await engine.ask("POST", "/containers/create", json=body))["Id"]
        runs = await bench.container()
        await executor.start(job, bench.slot, name=NAME)
        assert await bench.container() == runs != late
        await engine.ask("DELETE", f"/networks/taskscaler-{NAME}")
    assert (await bench.attach(job, elapsed=7200.0)).verdict is Verdict.TIMED_OUT
    assert bench.output.data == b"here\n"
    await bench.end()


async def test_a_time_out_counts_while_nobody_is_there(bench: Bench) -> None:
    """What runs is ended when its time is over, which comes out again if it could not be said; so does its own end."""
    over = (Verdict.TIMED_OUT, "took longer than 1h0m0s")
    job = await bench.start(f"echo here; {NAP}", timeout=3600.0)
    for _ in range(2):
        outcome = await bench.attach(job, elapsed=7200.0)
        assert (outcome.verdict, outcome.why, bench.output.data) == (*over, b"here\n")
    await bench.end()
    job = await bench.start("echo done", timeout=3600.0)
    for elapsed in (0.0, 7200.0):
        assert (await bench.attach(job, elapsed=elapsed)).verdict is Verdict.SUCCEEDED
        assert bench.output.data == b"done\n"
    await bench.end()


async def test_what_ended_a_job_from_outside_has_lost_it(bench: Bench) -> None:
    """Nobody knows what came of it: neither has it failed, nor was it never started."""
    job = await bench.start(f"echo here; {NAP}")
    await bench.ask("POST", f"/containers/{await bench.container()}/kill")
    with pytest.raises(CommandLost, match="ended from outside, with 137"):
        await bench.attach(job)
    assert bench.output.data == b"here\n"
    await bench.end()


async def test_who_gets_a_slot_ends_what_was_left_in_it(bench: Bench) -> None:
    """A job of an earlier lease of the slot; not what other slots have, nor what somebody is at work for."""
    await bench.start(NAP, name=f"{GONE}-beside", slot=1)
    await bench.start(NAP, name=f"{GONE}-given-up")
    with bench.manager(f"{GONE}-held") as other:
        await other.start(JobSpec(name="job", script=NAP), bench.slot, name=f"{GONE}-held")
        await bench.run("true")
        assert await bench.container(f"{GONE}-given-up")
    await bench.run("true")
    found = [await bench.container(f"{GONE}-{name}") for name in ("beside", "given-up", "held")]
    assert [bool(each) for each in found] == [True, False, False]
    await bench.end(name=f"{GONE}-beside", slot=1)


async def test_what_a_daemon_makes_of_a_job_that_was_ended_goes_with_the_next(bench: Bench) -> None:
    """Its manager was killed while it asked for that, and a later one has ended the try."""
    executor = bench.executor()
    for name in ("first", "second"):
        await executor.start(JobSpec(name="job", script=NAP), bench.slot, name=f"{BATCH}-{name}")
    async with bench.docker.engine() as engine:
        own = (await engine.ask("GET", f"/containers/{await bench.container(f'{BATCH}-first')}/json"))["Config"]
        labels = {name: value for name, value in own["Labels"].items() if name.startswith("taskscaler.")}
        await executor.end(bench.slot, name=f"{BATCH}-first")
        await engine.ask("POST", "/networks/create", json={"Name": "late", "Labels": labels})
    assert await bench.container(f"{BATCH}-second")
    await executor.end(bench.slot, name=f"{BATCH}-second")


async def test_what_could_not_be_ended_is_by_the_next_job_on_that_daemon(bench: Bench) -> None:
    """Instances may share a daemon; one of them is gone."""

    @asynccontextmanager
    async def gone() -> AsyncIterator[Connection]:
        raise Unreachable("it is gone")
        yield

    executor = bench.executor()
    await executor.start(JobSpec(name="job", script=NAP), bench.slot, name=f"{BATCH}-lost")
    with pytest.raises(Unreachable):
        await executor.end(Slot(bench.slot.instance, gone), name=f"{BATCH}-lost")
    assert await bench.container(f"{BATCH}-lost")
    await bench.run("true", slot=1, executor=executor)
    assert not await bench.container(f"{BATCH}-lost")
