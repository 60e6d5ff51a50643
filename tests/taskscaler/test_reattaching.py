"""Jobs of the *instance* executor that outlive their manager, on real agents."""

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import define, evolve, field

from fleeting import Completed, ConnectError, Connection, Unsupported, Usage
from fleeting.connectors import RunsDetached, Sink
from fleeting.errors import CommandLost, NameUnknown
from taskscaler.batch import Job
from taskscaler.batch._addresses import Addresses
from taskscaler.batch._log import JobLog
from taskscaler.batch._outliving import Outliving
from taskscaler.executors import JobOutcome, JobSpec, Reattaches, Verdict
from taskscaler.executors.instance import InstanceConfig, InstanceExecutor
from taskscaler.executors.runs import Place, Runs
from tests.fleeting.local_agents import DETACHED, POLL, Heard, dialled, is_there, opened, started, watched
from tests.fleeting.sshd import Server, sshd
from tests.fleeting.sshd import dialled as dialled_over_ssh
from tests.taskscaler import test_instance_executor as plain
from tests.taskscaler.leased import Slot
from tests.taskscaler.test_instance_executor import NAP, names_in
from tests.time_limits import longer_and_longer

pytestmark = [pytest.mark.anyio, pytest.mark.needs("tar")]

BATCH, GONE = "0123456789ab", "ba9876543210"
NAME = f"{BATCH}-job"
WELL = JobOutcome(verdict=Verdict.SUCCEEDED, exit_code=0)


def unmeasured(outcome: JobOutcome) -> JobOutcome:
    """Leave out what a job has used."""
    return outcome.with_usage(Usage())


@define
class Bench(plain.Bench):
    """One instance, and everything to run jobs on it that outlive whoever starts them."""

    tries: int = 0
    attached: bool = False
    """Whether jobs are started and attached to at once."""

    starts: list[bytes] = field(factory=list)
    """What was heard when each job that was started so was reported as started."""

    def begun(self) -> None:
        """A job is reported as started."""
        self.starts.append(bytes(self.output.data))

    async def run(self, script: str, *, config: InstanceConfig | None = None, slot: int = 0, **spec: Any) -> JobOutcome:  # noqa: ANN401
        """Start a job, attach to it, and end it; one that is cancelled, too."""
        executor, leased = self.executor(config), evolve(self.slot, slot=slot)
        self.tries += 1
        job, name = JobSpec(name="job", script=script, **spec), f"{BATCH}-{self.tries}"
        try:
            how: dict[str, Any] = {"name": name, "output": self.output, "artifacts": self.artifacts}
            if self.attached:
                return await executor.start_attached(job, leased, started=self.begun, **how)
            await executor.start(job, leased, name=name)
            return await executor.attach(job, leased, **how)
        finally:
            with anyio.CancelScope(shield=True):
                await executor.end(leased, name=name)

    def executor(self, config: InstanceConfig | None = None) -> InstanceExecutor:
        """Make an executor, as the next manager has one."""
        return InstanceExecutor(config or InstanceConfig(), Runs("instance", self.runs.root))

    async def start(self, script: str, *, name: str = NAME, slot: int = 0, **spec: Any) -> JobSpec:  # noqa: ANN401
        """Start a job, and forget who has."""
        job = JobSpec(name="job", script=script, **spec)
        with self.manager(name) as executor:
            await executor.start(job, evolve(self.slot, slot=slot), name=name)
        return job

    @contextmanager
    def manager(self, name: str) -> Iterator[InstanceExecutor]:
        """Be a manager, which is killed when it has done what it does for a try."""
        runs = Runs("instance", self.runs.root)
        try:
            yield InstanceExecutor(InstanceConfig(), runs)
        finally:
            runs.let_go(name[:12], name)

    async def attach(self, job: JobSpec, **how: Any) -> JobOutcome:  # noqa: ANN401
        """Join a job that somebody has started."""
        self.output = Heard()
        given = {"name": NAME, "output": self.output, "artifacts": self.artifacts, **how}
        with self.manager(given["name"]) as executor:
            return await executor.attach(job, self.slot, **given)

    async def first_pid(self, name: str) -> int:
        """Wait for the process id that a job prints first, and leave it alone again."""
        heard = Heard()
        async with anyio.create_task_group() as tasks:
            job = JobSpec(name="job", script="")
            tasks.start_soon(lambda: self.attach(job, name=name, output=heard))
            (pid,) = await heard.pids(1)
            tasks.cancel_scope.cancel()
        return pid

    async def left(self) -> list[str]:
        """Name what is left on the instance: directories and commands."""
        async with self.slot.dial() as connection:
            assert isinstance(connection, RunsDetached)
            return [*names_in(self.remote()), *(each.name for each in await connection.list_detached())]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """Start an agent of one's own."""
    async with opened(tmp_path / "group") as group:
        (instance,) = await started(group)
        runs = Runs("instance", tmp_path / "runs")
        yield Bench(Slot(instance, lambda: dialled(group, instance)), tmp_path, Heard(), runs)


PROMISES: list[Callable[[plain.Bench], Awaitable[None]]] = [
    plain.test_a_script_that_ends_well_has_succeeded,
    plain.test_a_shebang_is_respected,
    plain.test_a_script_ended_by_a_signal_has_failed,
    plain.test_each_try_has_a_directory_of_its_own_and_finds_it_empty,
    plain.test_a_manager_without_a_place_for_its_state_runs_jobs_all_the_same,
    plain.test_files_arrive_under_their_names,
    plain.test_a_job_that_takes_too_long_is_ended_with_all_it_started,
    plain.test_a_cancelled_job_is_ended_and_cleaned_up_after,
    plain.test_artifacts_are_brought_back,
    plain.test_the_clean_up_script_runs_in_the_slot_after_the_job,
    plain.test_a_job_has_its_time_to_end,
    plain.test_files_that_cannot_be_unpacked_are_an_error,
]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda each: each.__name__.removeprefix("test_"))
async def test_a_job_that_is_started_and_attached_to_at_once_is_a_job(
    bench: Bench, promise: Callable[[plain.Bench], Awaitable[None]]
) -> None:
    """What `run` promises holds for `start_attached` and `end`, too; nothing is left."""
    bench.attached = True
    await promise(bench)
    assert await bench.left() == []


@pytest.mark.parametrize("promise", PROMISES, ids=lambda each: each.__name__.removeprefix("test_"))
async def test_a_job_that_outlives_its_manager_is_a_job(
    bench: Bench, promise: Callable[[plain.Bench], Awaitable[None]]
) -> None:
    """What `run` promises holds for `start`, `attach` and `end`; nothing is left."""
    await promise(bench)
    assert await bench.left() == []


async def test_environment_and_script_arrive_byte_for_byte(bench: Bench) -> None:
    """Whatever is in them, and however large they are; nothing of the shell is in the job's environment."""
    value = " a'b\"c\\d\n$e `f` \t\n\n"
    script = "echo \"$A|${#B}|${#C}\"; env | grep -ic '_taskscaler\\|_fleeting' || true; cat"
    outcome = await bench.run(script, env={"A": value, "B": "x" * 100_000, "C": "y" * 100_000})
    assert unmeasured(outcome) == WELL
    assert bench.output.data == f"{value}|100000|100000\n0\n".encode()


# --- started and attached to at once, by one command ----------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A host that is reached over SSH."""
    home = tmp_path / "home"
    home.mkdir()
    with sshd(tmp_path / "sshd", f"SetEnv HOME={home}") as server:
        yield server


@pytest.fixture
def far(server: Server, tmp_path: Path) -> Bench:
    """That host, to run jobs on, each with one command."""
    slot = Slot("host", lambda: dialled_over_ssh(server.info))
    return Bench(slot, tmp_path, Heard(), Runs("instance", tmp_path / "runs"), attached=True)


def elsewhere(far: Bench) -> InstanceConfig:
    """Settings for a host whose commands begin in a home that is not ours."""
    return InstanceConfig(base=str(far.directory / "base"))


async def test_over_ssh_a_job_is_reported_as_started_before_its_output(far: Bench) -> None:
    """Once; then come output and outcome, and nothing is left."""
    outcome = await far.run('echo "$A"; echo err >&2; exit 3', config=elsewhere(far), env={"A": "a"})
    assert (outcome.exit_code, far.output.data, far.starts) == (3, b"a\nerr\n", [b""])
    assert names_in(far.directory / "base") == []
    async with far.slot.dial() as connection:
        assert isinstance(connection, RunsDetached)
        assert await connection.list_detached() == []


async def test_over_ssh_a_job_that_takes_too_long_is_ended(far: Bench) -> None:
    """With what it printed before."""
    limits = longer_and_longer(0.5)
    while True:
        limit = next(limits)
        outcome = await far.run(f"echo $$; {NAP}", config=elsewhere(far), timeout=limit)
        assert outcome.verdict is Verdict.TIMED_OUT
        if far.output.data:
            break
    (pid,) = await far.output.pids(1)
    assert not is_there(pid)


async def test_over_ssh_a_job_that_cannot_be_prepared_has_not_begun(far: Bench) -> None:
    """The error says what was wrong."""
    (far.directory / "base").write_text("no directory")
    with pytest.raises(ConnectError, match="cannot prepare"):
        await far.run("true", config=elsewhere(far))


async def test_a_connection_that_breaks_after_the_start_loses_nothing(far: Bench, server: Server) -> None:
    """The job runs once, and its log has each byte once: what is missing comes from the byte that was reached."""
    script = f"echo ran >> {far.directory}/ran; i=0; while [ $i -lt 40 ]; do echo $((i += 1)); sleep 0.02; done"
    job, log = Job(spec=JobSpec(name="job", script=script)), far.directory / "job.log"
    executor = far.executor(elsewhere(far))
    outliving = Outliving(executor, far.slot, job, NAME, far.artifacts)
    async with JobLog.open(log, job.log_limit, Addresses()) as output, anyio.create_task_group() as tasks:

        async def break_off() -> None:
            while not output.total:  # noqa: ASYNC110  (it grows on the other side of the connection)
                await anyio.sleep(POLL)
            server.signal(9)

        tasks.start_soon(break_off)
        assert unmeasured(await outliving.run(output, output.total)) == WELL
        await outliving.end()
    assert log.read_bytes() == b"".join(b"%d\n" % (number + 1) for number in range(40))
    assert (far.directory / "ran").read_text() == "ran\n"


# --- another manager ---------------------------------------------------------------------------------------------


def test_the_instance_executor_reattaches() -> None:
    """As whoever has an executor finds out."""
    assert isinstance(InstanceExecutor(InstanceConfig()), Reattaches)


async def test_a_later_manager_joins_a_job_from_any_byte(bench: Bench) -> None:
    """While it runs and when it has ended, as often as anybody likes; and with its artifacts."""
    go = bench.directory / "go"
    script = f"printf 'one\\ntwo\\n'; until [ -e {go} ]; do sleep 0.01; done; echo three; echo made > left; exit 3"
    job = await bench.start(script, artifacts=("left",))
    outcomes = []

    async def join() -> None:
        outcomes.append(await bench.attach(job, offset=4))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(join)
        await anyio.wait_all_tasks_blocked()
        go.touch()
    assert bench.output.data == b"two\nthree\n"
    assert (bench.artifacts / "left").read_text() == "made\n"
    for offset in range(0, 15, 2):
        (bench.artifacts / "left").unlink()
        bench.artifacts.rmdir()
        outcomes.append(await bench.attach(job, offset=offset))
        assert bench.output.data == b"one\ntwo\nthree\n"[offset:]
    failed = JobOutcome(verdict=Verdict.FAILED, exit_code=3, why="exited with 3")
    assert set(map(unmeasured, outcomes)) == {failed}
    await bench.executor().end(bench.slot, name=NAME)
    assert await bench.left() == []


async def test_a_job_is_started_once(bench: Bench) -> None:
    """However often that is asked for by managers that do not know; and not again once it was ended."""
    marker = bench.directory / "marker"
    job = await bench.start(f"echo ran >> {marker}")
    for _ in range(2):
        await bench.start(f"echo ran >> {marker}")
    assert unmeasured(await bench.attach(job)) == WELL
    await bench.start(f"echo ran >> {marker}")
    assert marker.read_text() == "ran\n"
    for _ in range(2):
        await bench.executor().end(bench.slot, name=NAME)
    with pytest.raises(NameUnknown):
        await bench.attach(job)
    assert await bench.left() == []


async def test_a_time_out_counts_while_nobody_is_there(bench: Bench) -> None:
    """What runs is ended when its time is over, at once if it was before; what ended by itself has ended so."""
    job = await bench.start(DETACHED + "echo $$; " + NAP, timeout=3600.0)
    waiting = Heard()

    async def wait() -> None:
        await bench.attach(job, output=waiting)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        with watched(*await waiting.pids(2)) as processes:
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                outcome = await bench.attach(job, elapsed=7200.0)
                for process in processes:
                    await process.ended()
    assert (outcome.verdict, outcome.why) == (Verdict.TIMED_OUT, "took longer than 1h0m0s")
    assert len(bench.output.data.splitlines()) == 2
    await bench.executor().end(bench.slot, name=NAME)
    used = outcome.cpu_time
    for number in range(10):  # who is asked for it has two seconds, which on a busy machine is not always enough
        if used is None:
            name = f"{BATCH}-again{number}"
            job = await bench.start("echo $$; " + NAP, name=name, timeout=3600.0)
            await bench.first_pid(name)
            used = (await bench.attach(job, name=name, elapsed=7200.0)).cpu_time
            await bench.executor().end(bench.slot, name=name)
    assert used is not None
    job = await bench.start("echo done", name=f"{BATCH}-quick", timeout=3600.0)
    assert unmeasured(await bench.attach(job, name=f"{BATCH}-quick")) == WELL
    assert unmeasured(await bench.attach(job, name=f"{BATCH}-quick", elapsed=7200.0)) == WELL
    assert bench.output.data == b"done\n"
    await bench.executor().end(bench.slot, name=f"{BATCH}-quick")


async def test_who_has_had_its_time_before_its_directory_is_there_has_timed_out(bench: Bench) -> None:
    """What is cut short of making it is no error of the instance."""
    first = f"{BATCH}-first"
    await bench.attach(await bench.start("true", name=first), name=first)
    (directory,) = (each for each in names_in(bench.remote()) if each.endswith(first))
    await bench.executor().end(bench.slot, name=first)
    os.mkfifo(bench.remote(f"{directory.removesuffix(first)}{NAME}.script"))  # who writes it waits for a reader
    job = await bench.start("echo ran", timeout=3600.0)
    outcome = await bench.attach(job, elapsed=7200.0)
    assert (outcome.verdict, outcome.why) == (Verdict.TIMED_OUT, "took longer than 1h0m0s")
    assert bench.output.data == b""
    await bench.executor().end(bench.slot, name=NAME)
    assert await bench.left() == []


async def test_a_clock_that_is_set_back_gives_no_time(bench: Bench) -> None:
    """A job does not get more than it may have."""
    job = await bench.start(NAP, timeout=0.2)
    assert (await bench.attach(job, elapsed=-1e9)).verdict is Verdict.TIMED_OUT
    await bench.executor().end(bench.slot, name=NAME)


async def test_who_gets_a_slot_ends_what_was_left_in_it(bench: Bench) -> None:
    """A job of an earlier lease of the slot; not what other slots, managers and instances have."""
    await bench.start(NAP, name=f"{GONE}-beside", slot=1)
    await bench.start(f"echo $$; {NAP}", name=f"{GONE}-given-up")
    with watched(await bench.first_pid(f"{GONE}-given-up")) as (process,):
        assert unmeasured(await bench.run("true")) == WELL
        await process.ended()
    assert [name.rpartition("-")[2] for name in await bench.left()] == ["beside", "beside.script", "beside"]
    await bench.executor().end(evolve(bench.slot, slot=1), name=f"{GONE}-beside")
    assert await bench.left() == []


@pytest.mark.parametrize(
    ("name", "runs", "is_over"),
    [
        (Place("m", "i-1", 0).name_of(NAME), True, True),
        (Place("m", "i-1", 0).name_of(NAME), False, True),
        (Place("m", "i-1", 1).name_of(NAME), True, False),
        (Place("m", "i-2", 1).name_of(NAME), True, True),
        (Place("m", "i-2", 0).name_of(NAME), False, False),
        (Place("other", "i-1", 0).name_of(NAME), True, False),
        (Place("", "i-1", 0).name_of(NAME), True, False),
        (Place("m", "i-1", 0, "steps").name_of(NAME), True, False),
        ("somebody-elses", True, False),
    ],
)
def test_what_is_over_is_that_for_sure(name: str, runs: bool, is_over: bool) -> None:  # noqa: FBT001
    """In our slot, or on a machine that was another instance before; all else may be in use."""
    place = Place("m", "i-1", 0)
    assert place.is_over(name, runs=runs, is_held=lambda _: False) is is_over
    assert not place.is_over(name, runs=runs, is_held=lambda batch: batch == BATCH)
    assert not Place("", "i-1", 0).is_over(name, runs=runs, is_held=lambda _: False)


async def test_a_job_whose_records_are_gone_is_lost(bench: Bench) -> None:
    """Nobody will know what came of it; it is not taken for one that was never started."""
    job = await bench.start(f"cd ../../..; until rm -r detached; do sleep 0.1; done; {NAP}")
    with pytest.raises((CommandLost, NameUnknown)):
        await bench.attach(job)


@pytest.mark.parametrize(
    "name", ["", "job", f"{BATCH}-", f"{BATCH}-a/b", f"{BATCH}-a b", f"{BATCH}-{'x' * 60}", f"{BATCH}-ä"]
)
async def test_a_try_has_a_name_that_may_be_a_file_s(bench: Bench, name: str) -> None:
    """All else is refused, before anything is reached."""
    with pytest.raises(ValueError, match="as the name of a try"):
        await bench.start("true", name=name)


class Windows:
    """A connection that leads to Windows."""

    os = "windows"


class Plain:
    """A connection that cannot detach anything."""

    async def run(self, command: object, *, stdout: Sink) -> Completed:
        """Never called."""
        raise AssertionError(command, stdout)


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        (Windows(), "i-1 runs Windows, where jobs end with their manager"),
        (Plain(), "the connection to i-1 cannot detach jobs, so they end with their manager"),
    ],
)
async def test_where_jobs_cannot_outlive_their_manager_that_is_said(
    tmp_path: Path,
    connection: Any,  # noqa: ANN401
    message: str,
) -> None:
    """By one sentence, and nothing is started."""

    class Dialled:
        async def __aenter__(self) -> Connection:
            return connection  # type: ignore[no-any-return]

        async def __aexit__(self, *_: object) -> None:
            pass

    executor = InstanceExecutor(InstanceConfig(), Runs("instance", tmp_path))
    with pytest.raises(Unsupported, match=re.escape(message)):
        await executor.start(JobSpec(name="job", script="true"), Slot("i-1", Dialled), name=NAME)
