"""The *instance* executor, on real agents, and what it does when an instance misbehaves."""

import os
import shutil
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st

from fleeting import Completed, ConfigError, ConnectError, PluginNotFound, Unreachable
from fleeting.connectors import Sink
from fleeting.errors import PluginBroken
from taskscaler.batch import Results
from taskscaler.executors import JobOutcome, JobSpec, Verdict, _posix, available_executors, load_executor, runs
from taskscaler.executors.instance import InstanceConfig, InstanceExecutor
from taskscaler.executors.runs import Runs
from tests.fleeting.local_agents import DETACHED, POLL, Heard, dialled, is_there, opened, started, watched
from tests.taskscaler.leased import Slot
from tests.time_limits import longer_and_longer

pytestmark = [pytest.mark.anyio, pytest.mark.needs("grep", "tar")]

NAP = "exec sleep 1000"


@define
class Bench:
    """One instance, and everything to run jobs on it."""

    slot: Slot
    directory: Path
    output: Heard
    runs: Runs

    async def run(self, script: str, *, config: InstanceConfig | None = None, slot: int = 0, **spec: Any) -> JobOutcome:  # noqa: ANN401
        """Run a job made from these."""
        executor = InstanceExecutor(config or InstanceConfig(), self.runs)
        job = JobSpec(name="job", script=script, **spec)
        return await executor.run(job, evolve(self.slot, slot=slot), output=self.output, artifacts=self.artifacts)

    @property
    def artifacts(self) -> Path:
        """Where artifacts are put."""
        return self.directory / "artifacts"

    def remote(self, *parts: str) -> Path:
        """Find a path of the instance: the executor's base and what is below."""
        (base,) = self.directory.glob("group/*/**/taskscaler")
        return base.joinpath(*parts)


def names_in(directory: Path) -> list[str]:
    """List a directory."""
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """Start an agent of one's own."""
    async with opened(tmp_path / "group") as group:
        (instance,) = await started(group)
        yield Bench(
            Slot(instance, lambda: dialled(group, instance)), tmp_path, Heard(), Runs("instance", tmp_path / "runs")
        )


async def test_a_script_that_ends_well_has_succeeded(bench: Bench) -> None:
    """Exit code 0, nothing to say."""
    outcome = await bench.run("echo hello")
    assert (outcome.verdict, outcome.exit_code, outcome.warnings) == (Verdict.SUCCEEDED, 0, ())
    assert bench.output.data == b"hello\n"


async def test_both_outputs_are_one_in_the_order_of_writing(bench: Bench) -> None:
    """What goes to standard error stands between what goes to standard output."""
    await bench.run("for n in 1 2 3; do echo out $n; echo err $n >&2; done")
    assert bench.output.data == b"out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n"


async def test_the_first_command_that_fails_ends_a_script(bench: Bench) -> None:
    """Without ``#!`` a script is run as a CI user expects, and its status is what failed."""
    outcome = await bench.run("echo before\n(exit 3)\necho after")
    assert (outcome.verdict, outcome.exit_code, outcome.why) == (Verdict.FAILED, 3, "exited with 3")
    assert bench.output.data == b"before\n"


async def test_a_shebang_is_respected(bench: Bench) -> None:
    """The interpreter that the script names runs it, with its own rules."""
    outcome = await bench.run("#!/bin/sh\nfalse\necho after\nexit 4\n")
    assert (outcome.exit_code, bench.output.data) == (4, b"after\n")


async def test_a_script_ended_by_a_signal_has_failed(bench: Bench) -> None:
    """There is no exit code then, and the signal is named."""
    outcome = await bench.run("kill -9 $$")
    assert (outcome.verdict, outcome.exit_code, outcome.why) == (Verdict.FAILED, None, "was ended by SIGKILL")


async def test_the_environment_has_the_job_s_variables_and_the_place(bench: Bench) -> None:
    """Beside the job's own variables it is told instance and slot."""
    await bench.run('echo "$A|$TASKSCALER_INSTANCE|$TASKSCALER_SLOT"', env={"A": "a b $HOME"}, slot=3)
    assert bench.output.data.decode() == f"a b $HOME|{bench.slot.instance}|3\n"


async def test_a_job_s_variables_stay_out_of_its_repr() -> None:
    """People put tokens there."""
    assert "hunter2" not in repr(JobSpec(name="job", script="", env={"TOKEN": "hunter2"}))


NO_NAMES = [
    "",
    ".",
    "..",
    "../precious",
    "a/b",
    "a\\b",
    "/etc",
    "-rf",
    ".hidden",
    "a\0b",
    "a\nb",
    "\x1b[2J",
    "é",
    "a" * 129,
]
"""Names that would leave their directory, be no name there, or look like something else."""


@pytest.mark.parametrize("name", NO_NAMES)
def test_no_job_has_a_name_that_leads_elsewhere(tmp_path: Path, name: str) -> None:
    """Not even one that is made from another; nor do results know where it would be."""
    with pytest.raises(ValueError, match=r"expected 1 to 128 letters, digits.* as the name of a job"):
        JobSpec(name=name, script="true")
    with pytest.raises(ValueError, match="as the name of a job"):
        evolve(JobSpec(name="job", script="true"), name=name)
    for path in (Results(tmp_path).log, Results(tmp_path).artifacts):
        with pytest.raises(ValueError, match="as the name of a job"):
            path(name)


@given(st.from_regex(r"[A-Za-z0-9._-]{1,128}", fullmatch=True) | st.text())
def test_results_of_a_job_are_in_their_directories(name: str) -> None:
    """Whatever name a job is allowed to have."""
    results = Results(Path("/results"))
    try:
        JobSpec(name=name, script="true")
    except ValueError:
        return
    for path in (results.log(name), results.artifacts(name)):
        assert Path(os.path.normpath(path)) == path
        assert path.parent in (Path("/results/logs"), Path("/results/artifacts"))


async def test_each_try_has_a_directory_of_its_own_and_finds_it_empty(bench: Bench) -> None:
    """What a job leaves is gone when the next comes, even what it locked itself out of."""
    await bench.run("mkdir -p deep/er; touch deep/er/file .hidden; chmod 0 deep/er deep")
    await bench.run("pwd; ls -A", slot=0)
    await bench.run("pwd; ls -A", slot=0)
    await bench.run("pwd; ls -A", slot=1)
    directories = [Path(line).name for line in bench.output.data.decode().splitlines()]
    assert len({*directories}) == 3
    assert [name.split("-")[1] for name in directories] == ["0", "0", "1"]
    assert names_in(bench.remote()) == []


async def test_a_directory_that_is_there_already_is_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is somebody else's, by whatever chance: nothing in it is touched, and the try has failed."""
    await bench.run("true")
    monkeypatch.setattr(runs, "_new_id", lambda: "0" * 12)
    there = bench.remote(f"slot-0-{bench.runs.manager[:8]}-{bench.runs.id}-{'0' * 12}")
    there.mkdir()
    (there / "precious").touch()
    with pytest.raises(ConnectError, match=r"cannot prepare taskscaler/slot-0-\S+ on .*: exited with \d+: .*exists"):
        await bench.run("true")
    assert names_in(bench.remote()) == [there.name]
    assert names_in(there) == ["precious"]


async def test_what_is_over_is_removed_and_nothing_else(bench: Bench) -> None:
    """A killed run of our manager needs nothing any more; another one may live, and so may other managers."""
    await bench.run("true")
    alive = Runs("instance", bench.runs.root)
    alive.claim()
    owner, other, unit = bench.runs.manager[:8], "f" * 8, "1" * 12
    over = [f"slot-3-{owner}-{'0' * 12}-{unit}", f"slot-0-{owner}-{bench.runs.id}-{unit}"]
    kept = [f"slot-0-{owner}-{alive.id}-{unit}", f"slot-0-{other}-{'0' * 12}-{unit}", f"slot-0-{owner}-x", "slot-0"]
    for name in (*over, *kept):
        bench.remote(name).mkdir()
        bench.remote(f"{name}.script").touch()
    (bench.remote(over[0]) / "locked").mkdir(mode=0)
    outcome = await bench.run("true")
    assert (outcome.verdict, outcome.exit_code, outcome.warnings) == (Verdict.SUCCEEDED, 0, ())
    assert names_in(bench.remote()) == sorted([*kept, *(f"{name}.script" for name in kept)])


async def test_a_manager_without_a_place_for_its_state_runs_jobs_all_the_same(bench: Bench) -> None:
    """Only what it would leave if it were killed stays there."""
    (bench.directory / "file").touch()
    bench.runs = Runs("instance", bench.directory / "file")
    assert (await bench.run("true")).verdict is Verdict.SUCCEEDED
    assert names_in(bench.remote()) == []


async def test_files_arrive_under_their_names(bench: Bench) -> None:
    """Files and directories are uploaded, executable bits included."""
    source = bench.directory / "source"
    (source / "data").mkdir(parents=True)
    (source / "data" / "a b").write_text("content")
    (source / "tool.sh").write_text("#!/bin/sh\ncat 'sub/data/a b'\n")
    (source / "tool.sh").chmod(0o755)
    outcome = await bench.run("./tool.sh", files={"tool.sh": source / "tool.sh", "sub/data": source / "data"})
    assert outcome.verdict is Verdict.SUCCEEDED
    assert bench.output.data == b"content"


async def test_a_file_that_is_gone_is_an_error_of_this_side(bench: Bench) -> None:
    """It is told as the operating system tells it."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        await bench.run("true", files={"x": bench.directory / "nowhere"})


async def test_a_job_that_takes_too_long_is_ended_with_all_it_started(bench: Bench) -> None:
    """Its whole process tree goes."""
    limits = longer_and_longer(1.0)
    while True:
        limit, before = next(limits), len(bench.output.data)
        outcome = await bench.run(DETACHED + "echo $$; " + NAP, timeout=limit)
        assert (outcome.verdict, outcome.why) == (Verdict.TIMED_OUT, f"took longer than {limit:g}s")
        pids = [int(line) for line in bench.output.data[before:].splitlines()]
        if len(pids) == 2:
            break
    for pid in pids:
        while is_there(pid):  # noqa: ASYNC110  (it tells nobody)
            await anyio.sleep(POLL)


async def test_a_cancelled_job_is_ended_and_cleaned_up_after(bench: Bench) -> None:
    """Cancelling ends the process tree, then runs the clean-up, then is delivered."""
    marker = bench.directory / "marker"
    config = InstanceConfig(cleanup_script=f"echo cleaned > {marker}")
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await bench.run(DETACHED + "echo $$; " + NAP, config=config)

        tasks.start_soon(run)
        with watched(*await bench.output.pids(2)) as processes:
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                for process in processes:
                    await process.ended()
    assert marker.read_text() == "cleaned\n"
    assert names_in(bench.remote()) == []


async def test_artifacts_are_brought_back(bench: Bench) -> None:
    """Files, directories and globs, with names that have spaces, and links that stay inside."""
    script = "mkdir -p out/deep; echo 1 > 'out/deep/a b'; echo 2 > x.log; echo 3 > 'y z.log'; ln -s x.log last"
    outcome = await bench.run(script, artifacts=("out", "*.log", "last", "x*"))
    assert outcome.verdict is Verdict.SUCCEEDED
    found = {str(path.relative_to(bench.artifacts)) for path in bench.artifacts.rglob("*") if not path.is_dir()}
    assert found == {"out/deep/a b", "x.log", "y z.log", "last"}
    assert (bench.artifacts / "last").read_text() == "2\n"


async def test_a_job_that_does_not_leave_its_artifacts_has_failed(bench: Bench) -> None:
    """What it did leave is brought back all the same."""
    outcome = await bench.run("touch here", artifacts=("here", "there", "*.log"))
    assert (outcome.verdict, outcome.exit_code) == (Verdict.FAILED, 0)
    assert outcome.why == "no such artifact: there, *.log"
    assert (bench.artifacts / "here").exists()


async def test_a_failed_job_s_artifacts_are_brought_back_too(bench: Bench) -> None:
    """Why it failed may be in them; that one is missing is only a warning then."""
    outcome = await bench.run("echo broken > log; exit 5", artifacts=("log", "result"))
    assert (outcome.why, outcome.warnings) == ("exited with 5", ("no such artifact: result",))
    assert (bench.artifacts / "log").read_text() == "broken\n"


async def test_a_job_without_any_artifact_leaves_no_directory(bench: Bench) -> None:
    """Nothing is made for nothing."""
    outcome = await bench.run("true", artifacts=("a", "b"))
    assert outcome.why == "no such artifact: a, b"
    assert not bench.artifacts.exists()
    assert names_in(bench.directory) == ["group", "runs"]


async def test_artifacts_that_are_too_large_are_refused(bench: Bench) -> None:
    """The limit holds for what they unpack to, holes included."""
    config = InstanceConfig(artifact_limit=1000)
    outcome = await bench.run(
        "truncate -s 1M big || dd if=/dev/zero of=big bs=1M count=1", artifacts=("big",), config=config
    )
    assert outcome.why == "the artifacts were refused: they have more than 1000 bytes; raise artifact_limit"
    assert not bench.artifacts.exists()


async def test_a_link_to_the_outside_is_refused(bench: Bench) -> None:
    """An artifact cannot make the manager's files look like its own."""
    outcome = await bench.run("ln -s /etc/passwd secret", artifacts=("secret",))
    assert outcome.verdict is Verdict.FAILED
    assert "the artifacts were refused" in outcome.why
    assert not bench.artifacts.exists()


async def test_the_clean_up_script_runs_in_the_slot_after_the_job(bench: Bench) -> None:
    """It sees what the job left and where it ran, and speaks into the job's log."""
    config = InstanceConfig(cleanup_script='echo "left on $TASKSCALER_SLOT:" *')
    outcome = await bench.run("touch a b", config=config)
    assert (outcome.verdict, outcome.exit_code, outcome.warnings) == (Verdict.SUCCEEDED, 0, ())
    assert bench.output.data == b"left on 0: a b\n"


async def test_a_clean_up_that_fails_is_reported_and_changes_nothing_else(bench: Bench) -> None:
    """The job's verdict stands."""
    outcome = await bench.run("true", config=InstanceConfig(cleanup_script="exit 7"))
    assert (outcome.verdict, outcome.warnings) == (Verdict.SUCCEEDED, ("the clean-up script exited with 7",))


async def test_a_clean_up_that_takes_too_long_is_ended(bench: Bench) -> None:
    """It is bounded, and reported."""
    outcome = await bench.run("true", config=InstanceConfig(cleanup_script=NAP, cleanup_timeout=0.2))
    assert (outcome.verdict, outcome.warnings) == (Verdict.SUCCEEDED, ("the clean-up took longer than 200ms",))


async def test_jobs_may_be_elsewhere(bench: Bench) -> None:
    """On another disk, which other instances may use as well."""
    base = bench.directory / "elsewhere"
    await bench.run('echo "$PWD"', config=InstanceConfig(base=str(base)))
    assert Path(bench.output.data.decode().strip()).parent == base
    assert names_in(base) == []


async def test_a_directory_without_a_name_in_utf_8_is_no_obstacle(bench: Bench) -> None:
    """Nobody has to name it: what leads there is the configured path."""
    base = f"{bench.directory}/there"
    odd = bench.directory / os.fsdecode(b"\xff\xfe")
    odd.mkdir()
    (bench.directory / "there").symlink_to(odd)
    outcome = await bench.run("echo here > x", config=InstanceConfig(base=base), artifacts=("x",))
    assert (outcome.verdict, outcome.exit_code, outcome.warnings) == (Verdict.SUCCEEDED, 0, ())
    assert ((bench.artifacts / "x").read_text(), names_in(odd)) == ("here\n", [])


async def test_an_instance_that_cannot_be_prepared_is_an_error(bench: Bench) -> None:
    """Trying again would not help; the message says what the instance said."""
    (bench.directory / "file").touch()
    with pytest.raises(ConnectError, match=r"cannot prepare .*/file/slot-0-\S+ on .*: exited with \d+: ") as error:
        await bench.run("true", config=InstanceConfig(base=str(bench.directory / "file")))
    assert not isinstance(error.value, Unreachable)


async def test_two_slots_run_at_the_same_time(bench: Bench) -> None:
    """Each waits for what the other does, so neither could end alone."""
    meet = "echo >> {mine}; while [ ! -e {theirs} ]; do sleep 0.01; done"
    one, two = bench.directory / "one", bench.directory / "two"
    async with anyio.create_task_group() as tasks:

        async def run(slot: int, mine: Path, theirs: Path) -> None:
            assert (await bench.run(meet.format(mine=mine, theirs=theirs), slot=slot)).exit_code == 0

        tasks.start_soon(run, 0, one, two)
        tasks.start_soon(run, 1, two, one)


# --- connections that break ------------------------------------------------------------------------------


class Breaking:
    """A connection that plays along until so many commands have come so far, and then is dead."""

    def __init__(self, *said: str) -> None:
        """Say this of the job, with the mark that it was given, and then die."""
        self._said = said

    async def run(
        self,
        command: tuple[str, ...],
        *,
        stdin: bytes | AsyncGenerator[bytes] = b"",
        stderr: Sink | None = None,
        **_: object,
    ) -> Completed:
        """Run a command."""
        if stderr is None or "began" not in command[2]:
            raise Unreachable("the line went dead")
        head = stdin if isinstance(stdin, bytes) else await anext(stdin)
        for words in self._said:
            await stderr(head.partition(b"\n")[0] + f" {words}\n".encode())
        if isinstance(stdin, AsyncGenerator):
            await stdin.aclose()
        raise Unreachable("the line went dead")

    @asynccontextmanager
    async def dial(self) -> AsyncIterator[Any]:
        """Connect."""
        yield self


@pytest.mark.parametrize(
    "said",
    [[], ["began"], ["began", "runs"], ["began", "runs", "ended 0"]],
    ids=["prepare", "upload", "script", "artifacts"],
)
async def test_a_connection_that_dies_before_all_is_done_is_told(tmp_path: Path, said: list[str]) -> None:
    """Whether the job ended, or what it left, is not known: it has to be run again."""
    job = JobSpec(name="job", script="true", files={"x": Path(__file__)}, artifacts=("y",))
    slot = Slot("i-1", Breaking(*said).dial)
    executor = InstanceExecutor(InstanceConfig(), Runs("instance", tmp_path / "runs"))
    with pytest.raises(Unreachable, match="the line went dead"):
        await executor.run(job, slot, output=Heard(), artifacts=tmp_path / "artifacts")
    assert names_in(tmp_path) == ["runs"]


async def test_a_connection_that_dies_after_the_job_only_spoils_the_clean_up(tmp_path: Path) -> None:
    """The job has ended and need not be run again."""
    slot = Slot("i-1", Breaking("began", "ended 3").dial)
    job = JobSpec(name="job", script="exit 3")
    executor = InstanceExecutor(InstanceConfig(), Runs("instance", tmp_path / "runs"))
    outcome = await executor.run(job, slot, output=Heard(), artifacts=tmp_path / "artifacts")
    assert (outcome.verdict, outcome.exit_code) == (Verdict.FAILED, 3)
    assert outcome.warnings == ("the clean-up failed: the line went dead",)


# --- one command -----------------------------------------------------------------------------------------


@define
class Counting:
    """A connection that keeps what it is asked to run."""

    connection: Any
    commands: list[tuple[str, ...]] = field(factory=list)

    async def run(self, command: tuple[str, ...], **how: Any) -> Completed:  # noqa: ANN401
        """Run a command."""
        self.commands.append(command)
        completed: Completed = await self.connection.run(command, **how)
        return completed

    @asynccontextmanager
    async def dial(self) -> AsyncIterator[Any]:
        """Connect."""
        yield self


@asynccontextmanager
async def counted(bench: Bench) -> AsyncIterator[list[tuple[str, ...]]]:
    """See what the bench's instance is asked to run."""
    async with bench.slot.dial() as connection:
        counting = Counting(connection)
        bench.slot.connect = counting.dial
        yield counting.commands


async def test_a_job_without_artifacts_is_one_command_that_shows_no_secret(bench: Bench) -> None:
    """Everybody on a host can read the arguments of its processes; whatever files the job has, it costs no more."""
    (bench.directory / "file").touch()
    async with counted(bench) as commands:
        await bench.run("echo hunter2; ls; exit 3", env={"TOKEN": "hunter3"}, files={"x": bench.directory / "file"})
        await bench.run("echo hunter2 $TOKEN", env={"TOKEN": "hunter3"})
    assert len(commands) == 2
    assert "hunter" not in str(commands)
    assert bench.output.data == b"hunter2\nx\nhunter2 hunter3\n"
    assert names_in(bench.remote()) == []


async def test_jobs_side_by_side_are_one_command_each(bench: Bench) -> None:
    """One that ends while another begins is seen there by that, and has left nothing all the same."""
    async with counted(bench) as commands, anyio.create_task_group() as tasks:
        for slot in range(4):

            async def several(slot: int = slot) -> None:
                for _ in range(5):
                    await bench.run("true", slot=slot)

            tasks.start_soon(several)
    assert len(commands) == 20
    assert names_in(bench.remote()) == []


@pytest.mark.parametrize("files", [False, True])
async def test_environment_and_script_arrive_byte_for_byte(bench: Bench, files: bool) -> None:  # noqa: FBT001
    """Line ends, quotes and backslashes in both, and a script without a line end, or with bytes that no text has."""
    value = "a'b\"c\\n\nd $HOME `x` \\"
    script = '#!/bin/sh\nprintf \'%s|\' "$A" "$EMPTY"; tail -c 7 "$0"; exit 0\n\\ é\0\r\n x'
    (bench.directory / "file").touch()
    sent = {"x": bench.directory / "file"} if files else {}
    outcome = await bench.run(script, env={"A": value, "EMPTY": ""}, files=sent)
    assert outcome.exit_code == 0
    assert bench.output.data == f"{value}||".encode() + script.encode()[-7:]


async def test_a_job_has_nothing_of_its_shell_s(bench: Bench) -> None:
    """Neither variables nor the way on which is reported how it went; and it reads nothing."""
    listing = 'for fd in /proc/$$/fd/*; do [ ! -e "$fd" ] || echo "${fd##*/}"; done'
    await bench.run(f"env | grep -ic '_taskscaler' || true; cat; [ /dev/fd/1 -ef /dev/fd/2 ]\n{listing}")
    assert bench.output.data == b"0\n0\n1\n10\n2\n"  # 10 is the script


SHELLS = ["dash", "bash", pytest.param("busybox", marks=pytest.mark.needs("busybox"))]


@asynccontextmanager
async def with_shell(bench: Bench, tmp_path: Path, shell: str) -> AsyncIterator[None]:
    """Let the bench's instance have another shell."""
    found = shutil.which(shell)
    assert found is not None

    class Exchanging(Counting):
        async def run(self, command: tuple[str, ...], **how: Any) -> Completed:  # noqa: ANN401
            name = [found, "sh"] if shell == "busybox" else [str(tmp_path / "sh")]
            parts = [part.replace("/bin/sh -s", f"{name[0]} -s") for part in command[1:]]
            return await super().run((*name, *parts), **how)

    (tmp_path / "sh").symlink_to(found)
    async with bench.slot.dial() as connection:
        bench.slot.connect = Exchanging(connection).dial
        yield


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("kill -9 $$", (None, "was ended by SIGKILL")),
        *((f"exit {status}", (status, f"exited with {status}")) for status in (1, 128, 129, 137, 160, 192, 193, 255)),
    ],
)
async def test_a_signal_is_no_exit_status(
    bench: Bench, tmp_path: Path, shell: str, script: str, expected: tuple[int | None, str]
) -> None:
    """To a shell both are one number; whichever shell the instance has tells them apart, and what is no signal's."""
    async with with_shell(bench, tmp_path, shell):
        outcome = await bench.run(script)
    assert (outcome.verdict, outcome.exit_code, outcome.why) == (Verdict.FAILED, *expected)
    assert names_in(bench.remote()) == []


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("kept", [False, True])
async def test_what_a_job_has_used_is_known(bench: Bench, tmp_path: Path, shell: str, kept: bool) -> None:  # noqa: FBT001
    """However it ends, and whether or not its directory is needed afterwards; nothing of what prepares it counts."""
    (bench.directory / "file").write_bytes(bytes(1 << 20))
    config = InstanceConfig(cleanup_script="true") if kept else None
    async with with_shell(bench, tmp_path, shell):
        work = "dd if=/dev/zero of=/dev/null bs=33554432 count=1 2>/dev/null"
        large = await bench.run(f"{work}; kill -9 $$", files={"x": bench.directory / "file"}, config=config)
        small = await bench.run("true", config=config)
    assert large.why == "was ended by SIGKILL"
    assert 2**25 < (large.peak_memory or 0) < 2**27
    assert 2**16 < (small.peak_memory or 0) < 2**25
    for outcome in (large, small):
        assert outcome.cpu_time is not None
        assert 0 < outcome.cpu_time < 60
        assert outcome.disk_written is not None


async def test_without_proc_the_shells_times_are_a_jobs(bench: Bench) -> None:
    """As on macOS; what it cannot know is null."""

    class Bare(Counting):
        async def run(self, command: tuple[str, ...], **how: Any) -> Completed:  # noqa: ANN401
            return await super().run(tuple(part.replace("/proc/self/", "/nowhere/") for part in command), **how)

    async with bench.slot.dial() as connection:
        bench.slot.connect = Bare(connection).dial
        outcome = await bench.run("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
    assert outcome.cpu_time is not None
    assert 0 < outcome.cpu_time < 60
    assert (outcome.peak_memory, outcome.disk_written) == (None, None)


@pytest.mark.parametrize("shell", SHELLS)
async def test_an_environment_may_be_large_and_the_mark_is_in_nobody_s(
    bench: Bench, tmp_path: Path, shell: str
) -> None:
    """Two variables that would not fit into one; and jobs of one user can read each other's shells' environments."""
    async with with_shell(bench, tmp_path, shell):
        script = "echo ${#A} ${#B}; tr '\\0' '\\n' </proc/$PPID/environ | grep -c '^_taskscaler' || true"
        outcome = await bench.run(script, env={"A": "x" * 100_000, "B": "y" * 100_000})
    assert outcome.verdict is Verdict.SUCCEEDED
    assert bench.output.data == b"100000 100000\n0\n"


async def test_a_shell_that_ends_without_a_word_is_no_success(bench: Bench) -> None:
    """Whatever its exit status is: what became of the job is unknown."""

    class Silent(Counting):
        async def run(self, command: tuple[str, ...], **how: Any) -> Completed:  # noqa: ANN401
            parts = [part.replace('echo "$_taskscaler_mark ended', ': "') for part in command]
            return await super().run(tuple(parts), **how)

    async with bench.slot.dial() as connection:
        bench.slot.connect = Silent(connection).dial
        with pytest.raises(ConnectError, match="ended without saying how the job did: exited with 0"):
            await bench.run("true")


async def test_a_job_that_is_not_begun_holds_its_slot_only_so_long(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance whose disk hangs, or that says nothing, is given up, whatever time the job may take."""
    monkeypatch.setattr("taskscaler.executors.instance.PREPARE_TIMEOUT", 0.05)

    class Hanging(Counting):
        async def run(self, command: tuple[str, ...], **how: Any) -> Completed:  # noqa: ANN401
            await anyio.sleep_forever()
            raise AssertionError(command, how)

    bench.slot.connect = Hanging(None).dial
    with pytest.raises(Unreachable, match="the job was not begun within 50ms"):
        await bench.run("true", timeout=1000)


async def test_a_job_that_ends_the_shell_above_it_has_ended(bench: Bench) -> None:
    """How is what the instance says of the shell; what it left is removed."""
    outcome = await bench.run("kill -9 $PPID; kill -9 $$")
    assert (outcome.verdict, outcome.why, outcome.warnings) == (Verdict.FAILED, "was ended by SIGKILL", ())
    assert names_in(bench.remote()) == []


async def test_a_job_has_its_time_to_end(bench: Bench) -> None:
    """One that takes too long gets SIGTERM, and its last words are not cut off by another signal."""
    marker = bench.directory / "marker"
    script = f"trap 'echo done > {marker}; exit' TERM; echo begun; while :; do sleep 0.01; done"
    limits = longer_and_longer(0.3)
    while True:
        limit = next(limits)
        assert (await bench.run(script, timeout=limit)).verdict is Verdict.TIMED_OUT
        if bench.output.data:
            break
    assert marker.read_text() == "done\n"
    assert names_in(bench.remote()) == []


async def test_files_that_cannot_be_unpacked_are_an_error(bench: Bench) -> None:
    """What tar says is told, and nothing is left."""
    (bench.directory / "file").touch()
    files = {"x": bench.directory / "file", "x/y": bench.directory / "file"}
    with pytest.raises(ConnectError, match=r"cannot upload the job's files: exited with \d+: .*x/y"):
        await bench.run("true", files=files)
    assert names_in(bench.remote()) == []


@pytest.mark.parametrize("env", [{"A-B": "x"}, {"A": "x\0y"}])
async def test_a_variable_that_no_shell_can_have_is_an_error(bench: Bench, env: dict[str, str]) -> None:
    """It is named; its value, which may be a secret, is not."""
    with pytest.raises(ConnectError, match=r"('A-B'|the variable A) .*cannot") as error:
        await bench.run("true", env=env)
    assert "x" not in str(error.value)


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"m began", b"m ended 0", b"m ended 137 KILL", b"m left x"])))
def test_whatever_a_host_reports_is_taken_in(lines: list[bytes]) -> None:
    """Each step of a job is heard of at most once, however the report is cut into pieces, and all of it is bounded."""
    heard: list[str] = []

    class Progress:
        def began(self) -> None:
            heard.append("began")

        def ended(self, _: Completed) -> None:
            heard.append("ended")

    slot = _posix.PosixSlot(cast("Any", None), cast("Any", None))  # nothing is run
    report = _posix._Report(b"m", slot, Progress())

    async def feed() -> None:
        for line in lines:
            await report(line[:3])
            await report(line[3:] + b"\n")

    with suppress(StopIteration):
        feed().send(None)
    assert len(heard) == len(set(heard))
    assert ("ended" in heard) == report.has_ended


# --- loading ---------------------------------------------------------------------------------------------


def test_the_instance_executor_is_installed() -> None:
    """It is found like anybody else's plugin."""
    assert "instance" in available_executors()
    assert isinstance(load_executor("instance", {"base": "/jobs"}), InstanceExecutor)


def test_an_unknown_executor_is_an_error_that_names_the_nearest() -> None:
    """As for instance groups."""
    with pytest.raises(PluginNotFound, match=r"installed: .*instance.*; did you mean `instance`\?"):
        load_executor("instanse", {})


THIRD_PARTY = """
from attrs import frozen
from taskscaler.executors import ExecutorPlugin, hookimpl

@frozen(kw_only=True)
class Config:
    image: str = "alpine"

@frozen
class Executor:
    config: Config

@hookimpl
def taskscaler_executor():
    return ExecutorPlugin(config=Config, executor=Executor)
"""


def install(directory: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Install a plugin named ``boxes`` for as long as the test runs."""
    (directory / "boxes_of_a_test.py").write_text(source)
    info = directory / "boxes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: boxes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[taskscaler.executors]\nboxes = boxes_of_a_test\n")
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.delitem(sys.modules, "boxes_of_a_test", raising=False)


def test_anybody_can_add_an_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point and a hook are all it takes; its settings are read by its own schema."""
    install(tmp_path, monkeypatch, THIRD_PARTY)
    assert {"boxes", "instance"} <= set(available_executors())
    assert repr(load_executor("boxes", {"image": "debian"})) == "Executor(config=Config(image='debian'))"
    with pytest.raises(ConfigError, match=r"unknown key `imag` in .executors.boxes. .*did you mean `image`\?"):
        load_executor("boxes", {"imag": "debian"}, path="executors.boxes")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import nothing_of_that_name", "fails while it is loaded \\(ModuleNotFoundError"),
        ("", "has no taskscaler_executor function marked with taskscaler.hookimpl"),
        (THIRD_PARTY + "    ExecutorPlugin\ntaskscaler_executor = hookimpl(lambda: 3)", "gives 3, not an Executor"),
        (THIRD_PARTY.replace("taskscaler_executor()", "taskscaler_executor(job)"), "hook .*taskscaler_executor"),
    ],
    ids=["import", "hook", "result", "signature"],
)
def test_a_broken_plugin_is_an_error_that_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    """Its author learns what is wrong, and whoever uses it which one it is."""
    install(tmp_path, monkeypatch, source)
    with pytest.raises(PluginBroken, match=rf"(?s)plugin 'boxes' is installed but cannot be used: .*{reason}"):
        load_executor("boxes", {})
