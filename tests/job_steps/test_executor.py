"""The *steps* executor, on real agents."""

import json
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import define, evolve, field

from fleeting import ConnectError
from fleeting.connectors import PosixConnection, RunsDetached
from fleeting.errors import CommandLost, NameUnknown
from job_steps import StepResult
from job_steps._policy import Policy, PolicyRefused
from job_steps.executor import PolicySettings, Restrictions, StepsConfig, StepsExecutor, StepsOptions
from job_steps.executor._executor import _Counted
from job_steps.executor._list import StepsOfJob, steps_of
from taskscaler.batch import Job
from taskscaler.batch._addresses import Addresses
from taskscaler.batch._log import JobLog
from taskscaler.batch._outliving import Outliving
from taskscaler.executors import ForeseesRefusal, JobOutcome, JobSpec, StartsAttached, Verdict
from taskscaler.executors.instance import InstanceConfig
from taskscaler.executors.runs import Runs
from tests.fleeting.local_agents import DETACHED, POLL, Heard, dialled, opened, started, watched
from tests.fleeting.sshd import Server, sshd
from tests.fleeting.sshd import dialled as dialled_over_ssh
from tests.job_steps.agents import end_agents
from tests.taskscaler import test_instance_executor as plain
from tests.taskscaler.leased import Slot
from tests.taskscaler.test_instance_executor import NAP, names_in
from tests.time_limits import NEVER_REACHED, longer_and_longer

pytestmark = [pytest.mark.anyio, pytest.mark.needs("tar")]

BATCH, GONE = "0123456789ab", "ba9876543210"
NAME = f"{BATCH}-job"


class Printed(Heard):
    """What a job's commands print; `raw` has what the run says of its steps, too."""

    raw = b""

    async def __call__(self, chunk: bytes) -> None:
        """Hear a chunk."""
        self.raw += chunk
        said, self.data = re.sub(rb"(?m)^Running step .*\n", b"", self.raw), b""
        await super().__call__(said)


@define
class Bench(plain.Bench):
    """One instance, and everything to run steps on it."""

    output: Printed
    settings: StepsConfig = field(factory=StepsConfig)
    tries: int = 0
    in_parts: bool = False
    """Whether jobs are started, attached to and ended by one call each."""

    async def run(self, script: str, *, config: InstanceConfig | None = None, slot: int = 0, **spec: Any) -> JobOutcome:  # noqa: ANN401
        """Run a job made from these."""
        job, leased = JobSpec(name="job", script=script, **spec), evolve(self.slot, slot=slot)
        executor = StepsExecutor(self._settings(config), self.runs)
        self.tries += 1
        name = f"{BATCH}-{self.tries}"
        artifacts = self.artifacts
        if not self.in_parts:
            return await executor.run(job, leased, output=self.output, artifacts=artifacts)
        try:
            await executor.start(job, leased, name=name)
            return await executor.attach(job, leased, name=name, output=self.output, artifacts=artifacts)
        finally:
            with anyio.CancelScope(shield=True):
                await executor.end(leased, name=name)

    def _settings(self, config: InstanceConfig | None) -> StepsConfig:
        return self.settings if config is None else evolve(self.settings, base=config.base)

    async def steps(self, *steps: dict[str, Any], **spec: Any) -> JobOutcome:  # noqa: ANN401
        """Run a list of steps."""
        return await self.run("", options=StepsOptions(steps=steps), **spec)

    @contextmanager
    def manager(self, name: str = NAME) -> Iterator[StepsExecutor]:
        """Be a manager, which is killed when it has done what it does for a try."""
        runs = Runs("steps", self.runs.root)
        try:
            yield StepsExecutor(self.settings, runs)
        finally:
            runs.let_go(name[:12], name)

    async def start(self, script: str, *, name: str = NAME, slot: int = 0, **spec: Any) -> JobSpec:  # noqa: ANN401
        """Start a job, and forget who has."""
        job = JobSpec(name="job", script=script, **spec)
        with self.manager(name) as executor:
            await executor.start(job, evolve(self.slot, slot=slot), name=name)
        return job

    async def attach(self, job: JobSpec, *, slot: int = 0, **how: Any) -> JobOutcome:  # noqa: ANN401
        """Join a job that somebody has started."""
        self.output, self.tries = Printed(), self.tries + 1
        given = {"name": NAME, "output": self.output, "artifacts": self.artifacts, **how}
        with self.manager(given["name"]) as executor:
            return await executor.attach(job, evolve(self.slot, slot=slot), **given)

    async def end(self, name: str = NAME, slot: int = 0) -> None:
        """End a job."""
        with self.manager(name) as executor:
            await executor.end(evolve(self.slot, slot=slot), name=name)

    @contextmanager
    def in_turn(self, number: int) -> Iterator["Bench"]:
        """Be one of several benches of the same instance, each with a directory of its own."""
        directory = self.directory / f"turn-{number}"
        directory.mkdir()
        (directory / "group").symlink_to(self.directory / "group")
        yield evolve(self, directory=directory, output=Printed(), runs=Runs("steps", directory / "runs"))

    async def left(self) -> list[str]:
        """Name what is left on the instance of jobs."""
        return names_in(self.remote())

    @property
    def artifacts(self) -> Path:
        """Where those of the last try are put."""
        return self.directory / f"artifacts-{self.tries}"

    @property
    def tree(self) -> StepResult:
        """What was kept of how its steps went."""
        return StepResult.from_dict(json.loads((self.artifacts / "step-results.json").read_text()))


GREET_SH = """\
#!/bin/sh
printf '{"name": "text", "value": "hello %s"}\\n' "$1" >> "$2"
"""

GREET = """\
spec:
  inputs:
    who: {type: string}
  outputs:
    text: {type: string}
---
exec:
  command: ["${{ func_dir }}/greet.sh", "${{ inputs.who }}", "${{ output_file }}"]
"""


def greeting(directory: Path) -> Path:
    """Make the directory of a function that greets."""
    source = directory / "greet"
    source.mkdir()
    (source / "step.yml").write_text(GREET)
    (source / "greet.sh").write_text(GREET_SH)
    (source / "greet.sh").chmod(0o755)
    return source


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """Start an instance of one's own."""
    async with opened_bench(tmp_path) as opened:
        yield opened


@asynccontextmanager
async def opened_bench(directory: Path, placed: Path | None = None) -> AsyncIterator[Bench]:
    """Start an instance, with what was placed there or nothing; in the end, no agent is left."""
    async with opened(directory / "group") as group:
        (instance,) = await started(group)
        slot = Slot(instance, lambda: dialled(group, instance))
        if placed:
            async with slot.dial() as connection:
                assert isinstance(connection, PosixConnection)
                home = Path(connection.detached_directory).parent
            await anyio.to_thread.run_sync(shutil.copytree, placed, home / ".job-steps")
        try:
            yield Bench(slot, directory, runs=Runs("steps", directory / "runs"), output=Printed())
        finally:
            with anyio.CancelScope(shield=True):
                async with slot.dial() as connection:
                    await end_agents(connection)


PROMISES: list[Callable[[plain.Bench], Awaitable[None]]] = [
    plain.test_a_script_that_ends_well_has_succeeded,
    plain.test_the_first_command_that_fails_ends_a_script,
    plain.test_a_shebang_is_respected,
    plain.test_the_environment_has_the_job_s_variables_and_the_place,
    plain.test_files_arrive_under_their_names,
    plain.test_a_file_that_is_gone_is_an_error_of_this_side,
    plain.test_a_job_that_takes_too_long_is_ended_with_all_it_started,
    plain.test_jobs_may_be_elsewhere,
    plain.test_a_directory_without_a_name_in_utf_8_is_no_obstacle,
    plain.test_two_slots_run_at_the_same_time,
]
"""Of scripts, which are jobs of one step."""


async def test_a_script_is_a_job_as_for_the_instance_executor(bench: Bench) -> None:
    """What that promises of scripts holds here, and nothing is left."""
    for number, promise in enumerate(PROMISES):
        with bench.in_turn(number) as one:
            await promise(one)
    assert await bench.left() == []


async def test_a_list_of_steps_runs_and_leaves_its_results(bench: Bench) -> None:
    """Outputs go from step to step; how each went is among the artifacts, in a file for our user alone."""
    source = greeting(bench.directory)
    outcome = await bench.steps(
        {"name": "greet", "step": "./ci/greet", "inputs": {"who": "world"}},
        {"name": "say", "script": "echo '${{ steps.greet.outputs.text }}' | tee said", "env": {"A": "b"}},
        files={"ci/greet": source},
        artifacts=("said",),
    )
    assert (outcome.verdict, outcome.exit_code, outcome.warnings) == (Verdict.SUCCEEDED, 0, ())
    assert bench.output.data == b"hello world\n"
    assert (bench.artifacts / "said").read_text() == "hello world\n"
    assert [(each.name, each.status.value, each.exit_code) for each in bench.tree.steps] == [
        ("greet", "success", 0),
        ("say", "success", 0),
    ]
    assert bench.tree.steps[0].outputs == {"text": "hello world"}
    assert (bench.artifacts / "step-results.json").stat().st_mode & 0o777 == 0o600
    assert await bench.left() == []


async def test_what_a_job_has_used_is_known(bench: Bench) -> None:
    """As its results say it of all its steps."""
    outcome = await bench.run("i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done")
    used = bench.tree.resources
    assert used is not None
    assert (outcome.cpu_time, outcome.peak_memory, outcome.disk_written) == (
        used.cpu_seconds,
        used.peak_memory,
        used.written_bytes,
    )
    assert used.cpu_seconds > 0
    assert used.peak_memory > 0
    (step,) = outcome.steps
    assert (step.path, step.ended, step.cpu_time) == ("script", "succeeded", used.cpu_seconds)
    assert step.duration is not None


async def test_one_step_may_be_all(bench: Bench) -> None:
    """With its inputs."""
    source = greeting(bench.directory)
    options = StepsOptions(step="./greet", inputs={"who": "you"})
    assert (await bench.run("", options=options, files={"greet": source})).verdict is Verdict.SUCCEEDED
    assert bench.tree.steps[0].outputs == {"text": "hello you"}


async def test_a_step_that_fails_is_named(bench: Bench) -> None:
    """With its exit code, which is the job's; what comes after it does not run."""
    source = bench.directory / "outer"
    source.mkdir()
    (source / "step.yml").write_text("spec: {}\n---\nrun:\n- name: inner\n  script: exit 7\n")
    later = {"name": "later", "script": "echo later"}
    outcome = await bench.steps({"name": "outer", "step": "./outer"}, later, files={"outer": source})
    assert (outcome.verdict, outcome.exit_code, outcome.why) == (
        Verdict.FAILED,
        7,
        "the step `outer/inner` exited with 7",
    )
    assert bench.output.data == b""
    failed = bench.tree.failed()
    assert failed is not None
    assert (failed.name, failed.exit_code) == ("inner", 7)
    outcome = await bench.steps({"name": "gone", "step": "./gone"})
    assert (outcome.verdict, outcome.exit_code) == (Verdict.FAILED, None)
    assert outcome.why.startswith("the step `gone` failed: there is no directory `")


async def test_expressions_in_a_jobs_script_are_none(bench: Bench) -> None:
    """It is a script: what looks like an expression is printed as it stands, however long it is."""
    assert (await bench.run("cat <<'END'\n${{ inputs.x }}\nEND")).verdict is Verdict.SUCCEEDED
    assert bench.output.data == b"${{ inputs.x }}\n"
    bench.output = Printed()
    outcome = await bench.run(f": {'x' * 200_000}\nfalse\necho after")
    assert (outcome.exit_code, bench.output.data) == (1, b"")


# --- the policy ------------------------------------------------------------------------------------------------------


def test_a_job_that_the_policy_refuses_is_refused_before_there_is_an_instance() -> None:
    """The rule, the step and what to do are named."""
    executor = StepsExecutor(
        StepsConfig(policy=PolicySettings(scripts=False, allowed_git=("gitlab.com/steps/*@v1.*",)))
    )
    assert isinstance(executor, ForeseesRefusal)
    wanted = StepsOptions(steps=({"name": "build", "step": "gitlab.com/steps/build@main"},))
    assert executor.refusal(wanted) == (
        "the policy's `allowed_git` refuses the step `build`: expected gitlab.com/steps/*@v1.*,"
        " found https://gitlab.com/steps/build@main; change the step, or `allowed_git` in [executors.steps.policy] if"
        " it may run"
    )
    assert executor.refusal(None).startswith("the policy's `scripts` refuses the step `script`: it is a script")
    assert executor.refusal(StepsOptions(step="gitlab.com/steps/build@v1.2")) == ""


async def test_steps_of_the_policy_run_around_each_job(bench: Bench) -> None:
    """A script's, too."""
    scan: dict[str, object] = {"name": "scan", "script": "echo scanned"}
    sign: dict[str, object] = {"name": "sign", "script": "echo signed"}
    bench.settings = StepsConfig(policy=PolicySettings(before=(scan,), after=(sign,)))
    assert (await bench.run("echo built")).verdict is Verdict.SUCCEEDED
    assert bench.output.data == b"scanned\nbuilt\nsigned\n"


async def test_what_only_the_run_finds_is_refused_by_the_agent(bench: Bench) -> None:
    """A step that the policy allows calls one that it does not."""
    bench.settings = StepsConfig(policy=PolicySettings(allowed_paths=("ci/*",), scripts=False))
    source = bench.directory / "outer"
    source.mkdir()
    (source / "step.yml").write_text("spec: {}\n---\nrun:\n- name: inner\n  step: ../../lib\n")
    outcome = await bench.steps({"name": "outer", "step": "./ci/outer"}, files={"ci/outer": source})
    assert outcome.verdict is Verdict.FAILED
    assert "the policy's `allowed_paths` refuses the step `outer/inner`: expected ci/*, found lib" in outcome.why


async def test_a_jobs_own_policy_binds_what_its_steps_bring_along(bench: Bench) -> None:
    """Each agent applies it to that job alone, and what the operator's policy adds needs no leave of it."""
    scan: dict[str, object] = {"name": "scan", "script": "echo scanned"}
    bench.settings = StepsConfig(policy=PolicySettings(before=(scan,)))
    source = bench.directory / "outer"
    source.mkdir()
    (source / "step.yml").write_text("spec: {}\n---\nrun:\n- name: inner\n  step: ../../lib\n")
    own = Restrictions(allowed_paths=("ci/*",), scripts=False)
    outer: dict[str, object] = {"name": "outer", "step": "./ci/outer"}
    outcome = await bench.run("", options=StepsOptions(steps=(outer,), policy=own), files={"ci/outer": source})
    assert outcome.verdict is Verdict.FAILED
    refused = "`allowed_paths` in the job's own policy refuses the step `outer/inner`: expected ci/*, found lib"
    assert refused in outcome.why
    assert bench.output.data == b"scanned\n"
    assert (await bench.run("echo free")).verdict is Verdict.SUCCEEDED


class Liar(StepsExecutor):
    """One that admits everything, whatever its policy says."""

    def _steps(self, job: JobSpec) -> StepsOfJob:
        return steps_of(job, Policy())


async def test_a_manager_that_does_not_ask_its_policy_is_refused_by_the_agent(bench: Bench) -> None:
    """It sends what it must not; the agent of that policy does not run it."""
    bench.settings = StepsConfig(policy=PolicySettings(scripts=False))
    executor, job = Liar(bench.settings, bench.runs), JobSpec(name="job", script="echo ran")
    with pytest.raises(ConnectError, match="the policy's `scripts` refuses the step `script`"):
        await executor.run(job, bench.slot, output=bench.output, artifacts=bench.artifacts)
    assert bench.output.data == b""
    assert await bench.left() == []


async def test_a_policys_time_is_a_jobs(bench: Bench) -> None:
    """The agent ends a job that takes longer, though it may take as long as it likes."""
    bench.settings = StepsConfig(policy=PolicySettings(timeout=1.5))
    outcome = await bench.run(NAP)
    assert (outcome.verdict, outcome.why) == (Verdict.TIMED_OUT, "took longer than 1.5s")


BREAKPOINT_TIMEOUT = 600.0

BREAKABLE = StepsConfig(policy=PolicySettings(breakpoints=True, breakpoint_timeout=BREAKPOINT_TIMEOUT))


async def test_a_job_says_in_its_log_where_it_is_held_and_how_to_attach(bench: Bench) -> None:
    """What it says to type does it, whichever manager follows: the first is killed while the job is held."""
    bench.settings = BREAKABLE
    options = StepsOptions(breakpoints=("script:before",), breakpoint_timeout=NEVER_REACHED)
    job = await bench.start("echo done", options=options, timeout=NEVER_REACHED)
    outcomes = []
    async with anyio.create_task_group() as tasks:

        async def follow() -> None:
            outcomes.append(await bench.attach(job))

        tasks.start_soon(follow)
        await goes_on(lambda: bench.output.raw, "--continue")
    (outcome,) = outcomes
    log = bench.output.raw.decode().splitlines()
    assert (outcome.verdict, log[1]) == (
        Verdict.SUCCEEDED,
        "Held before script, for 10 min at most. Its time limit stands still meanwhile.",
    )
    assert log[3:] == ["Continued.", "done"]
    await bench.end()


async def goes_on(log: Callable[[], bytes], decision: str) -> None:
    """Do what a job's log says, once it says how to attach."""
    found = None
    while found is None:
        await anyio.sleep(POLL)
        found = re.search(rb"To attach, run on this host: (.+)\n", log())
    await anyio.run_process(f"{found[1].decode()} {decision}")


def test_breakpoints_are_refused_before_there_is_an_instance() -> None:
    """Where the policy does not allow them, which it does not by default; where there is no such step, or agent."""
    wanted = StepsOptions(breakpoints=("script",))
    refused = (
        "the policy's `breakpoints` refuses the step `script`: jobs are not held at breakpoints"
        " here; remove the breakpoint, or set breakpoints = true in [executors.steps.policy]"
    )
    assert StepsExecutor(StepsConfig()).refusal(wanted) == refused
    assert StepsExecutor(BREAKABLE).refusal(wanted) == ""
    misspelt = StepsOptions(breakpoints=("scirpt",))
    said = "the job's breakpoints: there is no step `scirpt`; did you mean `script`?"
    assert StepsExecutor(BREAKABLE).refusal(misspelt) == said
    with pytest.raises(PolicyRefused, match="the policy's `breakpoints` refuses the step `script`"):
        steps_of(JobSpec(name="job", script=":", env={"JOB_STEPS_BREAKPOINTS": "script:after"}), Policy())
    with pytest.raises(ValueError, match="ten; expected a time such as"):
        variables = {"JOB_STEPS_BREAKPOINTS": "script", "JOB_STEPS_BREAKPOINT_TIMEOUT": "ten"}
        steps_of(JobSpec(name="job", script=":", env=variables), BREAKABLE.policy.policy)
    theirs = evolve(BREAKABLE, step_runner="step-runner")
    assert "which GitLab's step-runner does not know" in StepsExecutor(theirs).refusal(wanted)


async def test_time_for_which_a_job_is_held_does_not_count_for_its_manager() -> None:
    """However late it is by the manager's clock, it follows a job that is held, and gives up on one that hangs."""
    succeeded = JobOutcome(verdict=Verdict.SUCCEEDED)

    @define
    class Far:
        held: list[float]
        is_over: anyio.Event = field(factory=anyio.Event)

        async def follow(self, *_: object, **__: object) -> tuple[JobOutcome, None]:
            await self.is_over.wait()
            return succeeded, None

        async def held_time(self) -> float:
            if len(self.held) == 1:
                self.is_over.set()
            return self.held.pop(0)

    executor, output = StepsExecutor(BREAKABLE), _Counted(Heard(), 0)
    assert await executor._followed(Far([5.0, 5.0, 9.0]), output, -100.0, "late") is None  # type: ignore[arg-type]
    assert await executor._followed(Far([5.0, 6.0]), output, -100.0, "late") == (succeeded, None)  # type: ignore[arg-type]
    for lies in ([1e300, 1e301, 1e302], [number * 1e-9 for number in range(1, 100)]):
        assert await executor._followed(Far(lies), output, 0.5 - BREAKPOINT_TIMEOUT, "late") is None  # type: ignore[arg-type]
    unheld = StepsExecutor(StepsConfig())
    assert await unheld._followed(Far([5.0, 6.0, 7.0]), output, -100.0, "late") is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StepsOptions(breakpoints=("a:b",)), "breakpoints that can be met"),
        (lambda: StepsOptions(breakpoint_timeout=86401.0), "breakpoint_timeout"),
        (lambda: PolicySettings(breakpoint_timeout=0), "'breakpoint_timeout' must be > 0"),
        (
            lambda: StepsConfig(step_runner="x", policy=PolicySettings(commits=True)),
            "either step_runner or a policy that refuses steps",
        ),
        (lambda: PolicySettings(before=({"name": "x"},)), "steps in before"),
        (lambda: PolicySettings(after=({"name": "x", "script": "true", "when": 1},)), "steps in after"),
        (
            lambda: StepsOptions(steps=({"name": "x", "script": "true"},), step="./x"),
            "only one of `steps`, `file` and `step`",
        ),
        (lambda: StepsOptions(inputs={"x": 1}), "`step` beside `inputs`"),
        (lambda: StepsOptions(steps=({"name": "x", "srcipt": "true"},)), "srcipt"),
    ],
)
def test_settings_that_cannot_be_meant(make: Callable[[], object], message: str) -> None:
    """Each is refused where it stands, before anything runs."""
    with pytest.raises(ValueError, match=message):
        make()


# --- what outlives its manager ---------------------------------------------------------------------------------------


def test_it_reattaches() -> None:
    """As whoever has an executor finds out."""
    assert isinstance(StepsExecutor(StepsConfig()), StartsAttached)


async def test_a_later_manager_joins_a_job_from_any_byte(bench: Bench) -> None:
    """While it runs and when it has ended, as often as anybody likes; with its artifacts, and with its results."""
    go = bench.directory / "go"
    script = f"printf 'one\ntwo\n'; until [ -e {go} ]; do sleep 0.01; done; echo three; echo made > left; exit 3"
    job = await bench.start(script, artifacts=("left",))
    head = len(b'Running step "script"\n')
    outcomes = []

    async def join() -> None:
        outcomes.append(await bench.attach(job, offset=head + 4))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(join)
        await anyio.wait_all_tasks_blocked()
        go.touch()
    assert bench.output.raw == b"two\nthree\n"
    for offset in (0, head, head + 9, head + 14):
        outcomes.append(await bench.attach(job, offset=offset))
        assert bench.output.raw == b'Running step "script"\none\ntwo\nthree\n'[offset:]
        assert (bench.artifacts / "left").read_text() == "made\n"
        assert bench.tree.steps[0].exit_code == 3
    assert {(each.verdict, each.exit_code, each.why) for each in outcomes} == {(Verdict.FAILED, 3, "exited with 3")}
    await bench.end()
    assert await bench.left() == []


async def test_a_job_is_started_once(bench: Bench) -> None:
    """However often that is asked for by managers that do not know; once it was ended, nobody knows it."""
    marker = bench.directory / "marker"
    job = await bench.start(f"echo ran >> {marker}")
    for _ in range(2):
        await bench.start(f"echo ran >> {marker}")
    assert (await bench.attach(job)).verdict is Verdict.SUCCEEDED
    await bench.start(f"echo ran >> {marker}")
    assert marker.read_text() == "ran\n"
    for _ in range(2):
        await bench.end()
    with pytest.raises(NameUnknown):
        await bench.attach(job)
    assert await bench.left() == []


async def test_a_job_whose_agent_is_killed_is_lost_and_not_run_again(bench: Bench) -> None:
    """Nobody will know what came of it; its tree says so, what it started is ended, a repeated start starts nothing."""
    marker, pid = bench.directory / "marker", bench.directory / "pid"
    job = await bench.start(f"echo ran >> {marker}; echo $$ > {pid}.new; mv {pid}.new {pid}; {NAP}")
    while not pid.exists() or not [*bench.directory.rglob("jobs/*/results.json")]:  # noqa: ASYNC110  (others make them)
        await anyio.sleep(0.01)
    with watched(int(pid.read_text())) as (process,):
        async with bench.slot.dial() as connection:
            assert isinstance(connection, RunsDetached)
            (agent,) = [each.name for each in await connection.list_detached() if each.is_running]
            for number in processes_below(bench.directory, b"serve"):
                os.kill(number, signal.SIGKILL)
            await connection.attach(agent, output=Heard())
        with pytest.raises(CommandLost):
            await bench.attach(job)
        tree = StepResult.from_dict(json.loads((bench.artifacts / "step-results.json").read_text()))
        assert (tree.status.value, tree.cause) == ("failure", "lost")
        await process.ended()
    await bench.start(f"echo ran >> {marker}")
    with pytest.raises(CommandLost):
        await bench.attach(job)
    assert marker.read_text() == "ran\n"
    await bench.end()
    assert await bench.left() == []


def processes_below(directory: Path, word: bytes) -> list[int]:
    """Find the processes that run in a directory, by one of the words of their commands."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_ours = (process / "cwd").resolve(strict=True).is_relative_to(directory)
            if is_ours and word in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


async def test_a_time_out_counts_while_nobody_is_there(bench: Bench) -> None:
    """The agent ends what runs for too long, whether a manager lives or not; with what it printed before."""
    limits = longer_and_longer(1.0)
    while True:
        limit = next(limits)
        job = await bench.start(f"echo begun; {NAP}", timeout=limit)
        outcome = await bench.attach(job, elapsed=limit)
        assert (outcome.verdict, outcome.why) == (Verdict.TIMED_OUT, f"took longer than {limit:g}s")
        assert bench.tree.status.value == "cancelled"
        await bench.end()
        if bench.output.data:
            break
    assert bench.output.data == b"begun\n"
    job = await bench.start("echo done", timeout=3600.0)
    for elapsed in (0.0, 7200.0):  # it has ended before its time is found to be over
        assert (await bench.attach(job, elapsed=elapsed)).verdict is Verdict.SUCCEEDED
    await bench.end()


async def test_a_job_that_the_service_does_not_end_is_ended(bench: Bench) -> None:
    """By whoever follows it, when its time is over by far."""
    job = await bench.start(f"echo begun; {NAP}", timeout=3600.0)
    outcome = await bench.attach(job, elapsed=7200.0)
    assert (outcome.verdict, outcome.why, bench.output.data) == (
        Verdict.TIMED_OUT,
        "took longer than 1h0m0s",
        b"begun\n",
    )
    await bench.end()


async def test_a_cancelled_job_is_ended_and_leaves_nothing(bench: Bench) -> None:
    """With all that it started, before the cancellation is delivered."""
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await bench.run(DETACHED + "echo $$; " + NAP)

        tasks.start_soon(run)
        with watched(*await bench.output.pids(2)) as processes:
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                for process in processes:
                    await process.ended()
    assert await bench.left() == []


async def test_who_gets_a_slot_ends_what_was_left_in_it(bench: Bench) -> None:
    """A job of an earlier lease of the slot, and a directory that no job is in; not what other slots have."""
    await bench.start(NAP, name=f"{GONE}-beside", slot=1)
    await bench.start(f"echo $$; {NAP}", name=f"{GONE}-given-up")
    heard = Printed()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: bench.attach(JobSpec(name="job", script=":"), name=f"{GONE}-given-up", output=heard))
        (pid,) = await heard.pids(1)
        tasks.cancel_scope.cancel()
    (given_up,) = [each for each in await bench.left() if each.endswith("given-up")]
    bench.remote(given_up.replace("given-up", "never-begun")).mkdir()
    with watched(pid) as (process,):
        assert (await bench.run("true")).verdict is Verdict.SUCCEEDED
        await process.ended()
    assert [name.rpartition("-")[2] for name in await bench.left()] == ["beside"]
    await bench.end(f"{GONE}-beside", slot=1)
    assert await bench.left() == []


# --- over SSH --------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A host that is reached over SSH."""
    home = tmp_path / "home"
    home.mkdir()
    with sshd(tmp_path / "sshd", f"SetEnv HOME={home}") as server:
        yield server


async def test_a_connection_that_breaks_costs_a_job_over_ssh_nothing(server: Server, tmp_path: Path) -> None:
    """It runs once, its log has each byte once, and its results are whole."""
    script = f"echo ran >> {tmp_path}/ran; i=0; while [ $i -lt 40 ]; do echo $((i += 1)); sleep 0.02; done"
    slot = Slot("host", lambda: dialled_over_ssh(server.info))
    executor = StepsExecutor(StepsConfig(base=str(tmp_path / "base")), Runs("steps", tmp_path / "runs"))
    job, log = Job(spec=JobSpec(name="job", script=script)), tmp_path / "job.log"
    outliving = Outliving(executor, slot, job, NAME, tmp_path / "artifacts")
    async with JobLog.open(log, job.log_limit, Addresses()) as output, anyio.create_task_group() as tasks:

        async def break_off() -> None:
            while output.total < 30:  # noqa: ASYNC110  (it grows on the other side of the connection)
                await anyio.sleep(POLL)
            server.signal(9)

        tasks.start_soon(break_off)
        assert (await outliving.run(output, output.total)).verdict is Verdict.SUCCEEDED
        await outliving.end()
    assert log.read_bytes() == b'Running step "script"\n' + b"".join(b"%d\n" % (number + 1) for number in range(40))
    assert (tmp_path / "ran").read_text() == "ran\n"
    result = StepResult.from_dict(json.loads((tmp_path / "artifacts" / "step-results.json").read_text()))
    assert [each.status.value for each in result.steps] == ["success"]
    assert names_in(tmp_path / "base") == []
    async with slot.dial() as connection:
        await end_agents(connection)


# --- GitLab's own service --------------------------------------------------------------------------------------------


@pytest.mark.step_runner
async def test_gitlabs_step_runner_runs_the_steps(bench: Bench) -> None:
    """Followed from any byte by a later manager, ended for its time, and lost with its service."""
    bench.settings = StepsConfig(step_runner=os.environ["STEP_RUNNER"])
    source = bench.directory / "say"
    source.mkdir()
    exec_ = "exec: {command: [sh, -c, 'echo one; echo two; exit ${{ inputs.code }}']}"
    (source / "step.yml").write_text(f"spec: {{inputs: {{code: {{type: number}}}}}}\n---\n{exec_}\n")
    options = StepsOptions(step="./say", inputs={"code": 3})
    job = await bench.start("", files={"say": source}, options=options)
    outcome = await bench.attach(job)
    assert (outcome.verdict, outcome.exit_code, bench.output.data) == (Verdict.FAILED, 3, b"one\ntwo\n")
    assert await bench.attach(job, offset=len(bench.output.raw) - len(b"two\n")) == outcome
    assert bench.output.raw == b"two\n"
    await bench.end()
    with pytest.raises(NameUnknown):
        await bench.attach(job)
    (source / "step.yml").write_text(f"spec: {{}}\n---\nexec: {{command: [sh, -c, 'echo begun; {NAP}']}}\n")
    limits = longer_and_longer(1.0)
    while True:
        limit = next(limits)
        job = await bench.start("", files={"say": source}, options=StepsOptions(step="./say"), timeout=limit)
        outcome = await bench.attach(job, elapsed=3600.0)
        assert (outcome.verdict, outcome.why) == (Verdict.TIMED_OUT, f"took longer than {limit:g}s")
        await bench.end()
        if bench.output.data:
            break
    assert bench.output.data == b"begun\n"
    assert await bench.left() == []


@pytest.mark.parametrize("program", ["true", "no-such-program"])
async def test_a_step_runner_that_cannot_be_started_is_an_error(bench: Bench, program: str) -> None:
    """It says what became of it."""
    bench.settings = StepsConfig(step_runner=program)
    with pytest.raises(ConnectError, match=f"{program} serve has ended as soon as it was started: "):
        await bench.run("true")
