"""GitLab's jobs on a real instance, with a GitLab that plays by GitLab's rules."""

import json
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from threading import get_ident
from typing import Any, TypeVar

import anyio
import pytest
from attrs import define, evolve

from fleeting import Unreachable
from fleeting.connectors import KEPT_OUTPUT, PosixConnection, Sink
from gitlab_jobs import Features, GitInfo, Hook, Job, Secret, Step, Variable
from gitlab_jobs.client import Reporting
from taskscaler.executors import Executor, JobOutcome, JobSpec, Leased
from taskscaler.executors.instance import InstanceExecutor
from taskscaler_gitlab.runner import _run, stages_of, usage_of
from taskscaler_gitlab.runner._record import DIRECTORY
from tests.fleeting.local_agents import POLL
from tests.taskscaler_gitlab.desks import Desk, Stopped, desk_on, leaving, script
from tests.taskscaler_gitlab.passing_on import PassesOn
from tests.time_limits import longer_and_longer

pytestmark = pytest.mark.anyio

T = TypeVar("T")
WAIT = "until [ -e {home}/go ]; do sleep 0.05; done"


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """A GitLab and an instance."""
    async with desk_on(tmp_path) as made:
        yield made


async def seen(path: Path) -> None:
    """Wait for a job to make a file."""
    while not path.exists():  # noqa: ASYNC110, ASYNC240  (only looking tells)
        await anyio.sleep(POLL)


def cancels_at(path: Path) -> Callable[[Job, Reporting], Awaitable[None]]:
    """Be GitLab that wants the end of a job once it has made a file."""

    async def cancel(_: Job, report: Reporting) -> None:
        await seen(path)
        report.report.is_canceling = True
        report.canceling.set()

    return cancel


def stops_at(path: Path) -> Callable[[Job, Reporting], Awaitable[None]]:
    """Kill the manager once a job has made a file."""

    async def stop(_: Job, __: Reporting) -> None:
        await seen(path)
        raise Stopped

    return stop


def waiting(desk: Desk, mark: str) -> tuple[str, str]:
    """Commands that make a file, and wait for the test."""
    return f"touch {desk.home}/{mark}", WAIT.format(home=desk.home)


def sections_end(log: str) -> bool:
    """Whether each section ends before the next one begins, or the log does."""
    marks = re.findall(r"section_(start|end):\d+:(\w+)", log)
    starts, ends = marks[::2], marks[1::2]
    return bool(marks) and starts == [("start", name) for _, name in ends] and {kind for kind, _ in ends} == {"end"}


def with_sources(job: Job, directory: Path) -> Job:
    """Give a job a repository, with a file in it."""
    work = directory / "repository"
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.com")

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *who, *arguments], cwd=work, check=True, capture_output=True)  # noqa: S607
        return done.stdout.decode().strip()

    work.mkdir()
    (work / "file").write_text("content\n")
    git("init", "-q", "-b", "main")
    git("add", "file")
    git("commit", "-q", "-m", "a change")
    sources = GitInfo(
        repo_url=f"file://{work}",
        ref="main",
        sha=git("rev-parse", "HEAD"),
        refspecs=("+refs/heads/main:refs/remotes/origin/main",),
    )
    variables = tuple(each for each in job.variables if each.key != "GIT_STRATEGY")
    return evolve(job, git_info=sources, variables=variables)


# --- scripts ------------------------------------------------------------------------------------------------


async def test_what_a_job_has_used_is_known(desk: Desk) -> None:
    """All that its stages have on the instance, once they have ended."""
    work = "dd if=/dev/zero of=/dev/null bs=33554432 count=1 2>/dev/null"
    job = await desk.run(script(work))
    usage = usage_of(desk.place(job.job))
    assert 2**25 < (usage.peak_memory or 0) < 2**28
    assert 0 < (usage.cpu_time or 0) < 60
    assert usage.disk_written is not None
    took = stages_of(desk.place(job.job))
    assert set(took) >= {"prepare_script", "get_sources", "step_script", "cleanup_file_variables"}
    assert all(0 <= seconds < 3600 for seconds in took.values())


async def test_a_script_runs_and_its_log_is_gitlabs(desk: Desk) -> None:
    """A job succeeds, and its log has the lines that people know."""
    job = await desk.run(script("echo hello $((40 + 2))"))
    assert (job.state.value, job.exit_code) == ("success", None)
    log = desk.log(job)
    assert log.startswith("Running with taskscaler-gitlab ")
    assert "$ echo hello $((40 + 2))" in log
    assert "\nhello 42\n" in log
    assert log.endswith("Job succeeded\x1b[0;m\n")
    assert sections_end(log)


async def test_the_first_command_that_fails_ends_the_script(desk: Desk) -> None:
    """Its exit code is the job's."""
    job = await desk.run(script("echo one", "(exit 7)", "echo two", after=["echo then $CI_JOB_STATUS"]))
    assert (job.state.value, job.failure_reason, job.exit_code) == ("failed", "script_failure", 7)
    log = desk.log(job)
    assert "\none\n" in log
    assert "\ntwo\n" not in log
    assert "\nthen failed\n" in log
    assert log.endswith("ERROR: Job failed: exit code 7\x1b[0;m\n")


async def test_a_failure_in_a_pipe_is_one(desk: Desk) -> None:
    """Where the shell can: as GitLab Runner has it."""
    job = await desk.run(script("false | cat"))
    assert (job.state.value, job.exit_code) == ("failed", 1)


async def test_steps_run_in_order_as_far_as_they_are_wanted(desk: Desk) -> None:
    """A step that may fail does not end the job; one for failures runs after one that may not."""
    steps = (
        Step(name="script", script=("echo first", "exit 3"), when="on_success", allow_failure=True),
        Step(name="second", script=("echo second",), when="on_failure"),
        Step(name="release", script=("echo third", "exit 4"), when="on_success"),
        Step(name="fourth", script=("echo fourth",), when="on_success"),
        Step(name="fifth", script=("echo fifth", "exit 5"), when="always"),
    )
    job = await desk.run(evolve(script(), steps=steps))
    said = [word for word in ("first", "second", "third", "fourth", "fifth") if f"\n{word}\n" in desk.log(job)]
    assert said == ["first", "third", "fifth"]
    assert (job.state.value, job.exit_code) == ("failed", 4)


async def test_an_after_script_has_no_say(desk: Desk) -> None:
    """It runs in a shell of its own, knows how the script ended, and its failure is none, which the log says."""
    job = await desk.run(script("x=1", after=["echo x=${x-none} is $CI_JOB_STATUS", "exit 9"]))
    assert job.state.value == "success"
    assert "\nx=none is success\n" in desk.log(job)
    assert "WARNING: after_script failed with exit code 9, which does not change how the job ends" in desk.log(job)


async def test_an_after_script_has_a_say_if_it_is_given_one(desk: Desk) -> None:
    """With AFTER_SCRIPT_IGNORE_ERRORS=false, its failure is the job's."""
    wanted = (Variable(key="AFTER_SCRIPT_IGNORE_ERRORS", value="false"),)
    job = await desk.run(script("true", after=["exit 9"], variables=wanted))
    assert (job.state.value, job.failure_reason, job.exit_code) == ("failed", "script_failure", 9)
    assert "does not change how the job ends" not in desk.log(job)


async def test_an_after_script_that_takes_too_long_is_stopped(desk: Desk) -> None:
    """Its time is its own, and its end still none of the job's."""
    wanted = (Variable(key="RUNNER_AFTER_SCRIPT_TIMEOUT", value="1s"),)
    job = await desk.run(script("true", after=["echo long", "sleep 1000"], variables=wanted))
    assert job.state.value == "success"
    assert "after_script took longer than 1 seconds" in desk.log(job)


async def test_a_script_that_takes_too_long_has_its_after_script(desk: Desk) -> None:
    """RUNNER_SCRIPT_TIMEOUT ends the script, and nothing else."""
    wanted = (Variable(key="RUNNER_SCRIPT_TIMEOUT", value="1s"),)
    job = await desk.run(script("sleep 1000", after=["echo then $CI_JOB_STATUS"], variables=wanted))
    assert (job.state.value, job.failure_reason) == ("failed", "job_execution_timeout")
    assert "\nthen failed\n" in desk.log(job)


async def test_a_job_that_takes_too_long_ends(desk: Desk) -> None:
    """The job's own time covers all of it: nothing runs afterwards."""
    limits = longer_and_longer(1)
    while True:
        limit = next(limits)
        job = script("echo begun", "sleep 1000", after=["echo after"])
        ended = await desk.run(evolve(job, runner_info=evolve(job.runner_info, timeout=int(limit))))
        assert (ended.state.value, ended.failure_reason) == ("failed", "job_execution_timeout")
        if "\nbegun\n" in desk.log(ended):
            break
    assert "\nbegun\n" in desk.log(ended)
    assert "\nafter\n" not in desk.log(ended)
    assert sections_end(desk.log(ended))
    assert desk.log(ended).endswith(f"execution took longer than {int(limit)}s seconds\x1b[0;m\n")


async def test_the_runners_own_commands_surround_the_script(desk: Desk, tmp_path: Path) -> None:
    """The script has what was done before it in its shell; hooks are around the sources."""
    hooks = (Hook(name="pre_get_sources_script", script=("echo hooked",)),)
    wanted = with_sources(evolve(script("cat file", "echo y=$y"), hooks=hooks), tmp_path)
    job = await desk.run(wanted, pre_build_script="y=2", post_build_script="echo last y=$y")
    log = desk.log(job)
    assert job.state.value == "success", log
    assert log.index("\nhooked\n") < log.index("\ncontent\n") < log.index("\ny=2\n") < log.index("\nlast y=2\n")


async def test_variables_are_what_gitlab_says(desk: Desk) -> None:
    """Plain ones, files, and what is masked is in no log."""
    wanted = (
        Variable(key="A", value='it\'s "$HOME" `x`\n\\ two', raw=True),
        Variable(key="F", value="in a file", file=True),
        Variable(key="S", value="hunter2-hunter2", masked=True),
        Variable(key="A;B", value="1"),
    )
    lines = ('printf "%s|" "$A"', 'cat "$F"', "echo; echo $S", "umask; ls -l $F | cut -c1-10")
    job = await desk.run(script(*lines, variables=wanted))
    log = desk.log(job)
    assert job.state.value == "success", log
    assert 'it\'s "$HOME" `x`\n\\ two|' in log
    assert "in a file" in log
    assert "[MASKED]" in log
    assert "hunter2" not in log
    assert "-rw-------" in log
    assert "A;B" in log


async def test_what_a_job_leaves_running_ends_with_it(desk: Desk) -> None:
    """A process in the background keeps no job from its end."""
    job = await desk.run(script("sleep 1000 &", "echo done"))
    assert job.state.value == "success"


async def test_a_job_without_marks_has_none(desk: Desk) -> None:
    """Sections are for a GitLab that asks for them."""
    job = await desk.run(script("true", features=Features()))
    assert "section_" not in desk.log(job)
    assert 'Executing "step_script" stage' in desk.log(job)


async def test_a_job_that_kills_its_runner_has_failed(desk: Desk) -> None:
    """What runs the stages is gone: nobody takes that for a success."""
    job = await desk.run(script("kill -9 $PPID", "sleep 1000"))
    assert (job.state.value, job.failure_reason) == ("failed", "runner_system_failure")
    assert sections_end(desk.log(job))


@pytest.mark.needs("sed")
async def test_a_job_that_writes_marks_belies_itself_alone(desk: Desk) -> None:
    """Who finds out what they look like can make a failure of its own a success, and nothing else of the runner's."""
    find = "mark=$(sed -n 's/.*036\\([0-9a-f]*\\) %s.*/\\1/p' kept-*.script | head -n 1)"
    forged = "'begin 999999' 'open 999999' 'end 999999 1 ' 'close 7'"
    write = f"for each in {forged}; do printf '\\036%s %s\\n' $mark \"$each\"; done"
    lines = (f"cd {desk.home}/taskscaler", find, "[ ${#mark} -eq 16 ]", write, "echo still here", "false")
    job = await desk.run(script(*lines))
    assert (job.state.value, job.failure_reason) == ("failed", "script_failure"), desk.log(job)
    assert "\nstill here\n" in desk.log(job)
    assert "999999" not in desk.log(job).replace(forged, "")


@define
class Talkative(PassesOn):
    """An executor that says what a job has in its variables."""

    async def around(self, do: Callable[[], Awaitable[T]]) -> T:
        """Say it of each leg."""
        result = await do()
        if isinstance(result, JobOutcome):
            return evolve(result, why="hunter2-hunter2", warnings=("no file hunter2-hunter2", "more"))
        return result


async def test_what_is_written_down_is_masked(desk: Desk) -> None:
    """What an executor says, and what the runner makes of it: in the log as in the record, on its own disk."""
    make = desk.executor

    def talkative() -> Executor:
        inner = make()
        assert isinstance(inner, InstanceExecutor)
        return Talkative(inner)

    desk.executor = talkative
    secret = Variable(key="S", value="hunter2-hunter2", masked=True)
    for lines in (("true",), ("kill -9 $PPID", "sleep 1000")):
        job = await desk.run(script(*lines, variables=(secret,), artifacts=(leaving("$S"),)))
        record = (desk.place(job.job) / DIRECTORY / "record.json").read_text()
        assert ("hunter2" in record, "hunter2" in desk.log(job)) == (False, False)
        assert "[MASKED]" in record
        assert "WARNING: no file [MASKED]" in desk.log(job)


# --- what goes wrong with a job -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason", "said"),
    [
        ({"secrets": {"TOKEN": Secret()}}, "runner_configuration_error", "does not fetch"),
        ({"steps": (Step(name="script", script=("echo \0",)),)}, "script_failure", "NUL character"),
        ({"variables": (Variable(key="N", value="a\0b"),)}, "script_failure", "NUL character"),
        (
            {"variables": (Variable(key="N", value="'" * 1_000_000),)},
            "runner_configuration_error",
            "4000000 characters",
        ),
    ],
)
async def test_a_job_that_cannot_be_run(desk: Desk, change: dict[str, Any], reason: str, said: str) -> None:
    """It fails with one line, and nothing of it runs."""
    job = await desk.run(evolve(script("echo no"), **change))
    assert (job.state.value, job.failure_reason) == ("failed", reason)
    assert said in desk.log(job).splitlines()[-1]
    assert "\nno\n" not in desk.log(job)


class Watched(tuple[Any, ...]):  # noqa: SLOT001  (it has an attribute)
    """A part of a job that remembers the threads in which it is read."""

    threads: set[int]

    def __iter__(self) -> Iterator[Any]:
        """Be read."""
        self.threads.add(get_ident())
        return super().__iter__()


async def test_a_job_is_planned_beside_others(desk: Desk) -> None:
    """One with many variables takes seconds, in which the manager has other jobs, and GitLab, to talk to."""
    taken = await desk.take(script("true"))
    credentials, cache = Watched(), Watched()  # of the one, the environment is made, and of the other the stages
    for each in (credentials, cache):
        each.threads = set()
    await desk.carry_out(evolve(taken, credentials=credentials, cache=cache))
    assert desk.outcome is not None
    assert desk.outcome.is_success
    assert credentials.threads
    assert cache.threads
    assert get_ident() not in credentials.threads | cache.threads


async def test_a_script_of_20_mib(desk: Desk) -> None:
    """It runs like any other."""
    job = await desk.run(script(f": {'x' * (20 << 20)}", "echo through"))
    assert job.state.value == "success"
    assert "\nthrough\n" in desk.log(job)[-2000:] or "limit" in desk.log(job)[-2000:]


@pytest.mark.slow
@pytest.mark.needs("tar")
async def test_more_output_than_an_instance_keeps(desk: Desk, monkeypatch: pytest.MonkeyPatch, *, full: bool) -> None:
    """Its end is lost, and with it what stages report; how the job ended is not."""
    keeps, to_start = KEPT_OUTPUT if full else 16 << 20, PosixConnection._to_start

    def keeping_less(*given: Any, keep: int, **more: Any) -> tuple[bytes, Sequence[str]]:  # noqa: ANN401  (its own)
        return to_start(*given, keep=min(keep, keeps), **more)

    monkeypatch.setattr(PosixConnection, "_to_start", keeping_less)
    flood = f"head -c {keeps * 5 // 4} /dev/zero | tr '\\0' x | fold -w 99"
    failed = await desk.run(script(flood, "echo 1 > f", "exit 3", artifacts=(leaving("f", when="always"),)))
    assert (failed.state.value, failed.failure_reason, failed.exit_code) == ("failed", "script_failure", 3)
    assert desk.archive(failed.job.id) == {"f": b"1\n"}
    good = await desk.run(script(flood, artifacts=(leaving("f"),)))
    assert good.state.value == "success"


# --- cancellation -------------------------------------------------------------------------------------------


@pytest.mark.needs("tar")
async def test_a_canceled_script_has_its_after_script(desk: Desk) -> None:
    """The script ends at once; what comes after it runs, and what it leaves is that of a failure."""
    job = script(
        "trap 'echo cleaning; exit 1' TERM",
        "echo x > kept",
        *waiting(desk, "begun"),
        after=["echo then $CI_JOB_STATUS"],
        artifacts=(leaving("kept", when="on_failure"), leaving("kept", when="on_success")),
    )
    ended = await desk.run(job, meanwhile=cancels_at(desk.home / "begun"))
    assert (desk.outcome and desk.outcome.failure_reason) == "job_canceled"
    assert ended.failure_reason == "job_canceled"
    assert "\nthen canceled\n" in desk.log(ended)
    assert [desk.archive(ended.job.id)] == [{"kept": b"x\n"}]
    assert len(desk.gitlab.artifacts[ended.job.id]) == 1
    assert sections_end(desk.log(ended))


async def test_a_job_that_is_canceled_before_its_script_has_none(desk: Desk, tmp_path: Path) -> None:
    """Neither the script nor what comes after it runs."""
    hook = Hook(name="pre_get_sources_script", script=waiting(desk, "begun"))
    job = evolve(script("echo script", after=["echo after"]), hooks=(hook,))
    job = with_sources(job, tmp_path)
    ended = await desk.run(job, meanwhile=cancels_at(desk.home / "begun"))
    assert ended.failure_reason == "job_canceled"
    assert "\nscript\n" not in desk.log(ended)
    assert "\nafter\n" not in desk.log(ended)


async def test_an_after_script_is_not_canceled(desk: Desk) -> None:
    """It runs to its end."""
    job = script("true", after=[*waiting(desk, "begun"), "echo whole"])

    async def cancel(taken: Job, report: Reporting) -> None:
        await cancels_at(desk.home / "begun")(taken, report)
        (desk.home / "go").touch()

    ended = await desk.run(job, meanwhile=cancel)
    assert ended.failure_reason == "job_canceled"
    assert "\nwhole\n" in desk.log(ended)


async def test_a_canceled_job_cannot_say_for_ever_that_it_is_nearly_over(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes after its script has a time, here a second: where the job is, only its own output says."""
    monkeypatch.setattr(_run, "LATE", 1 - 300.0)
    job = script("true", after=waiting(desk, "begun"))
    ended = await desk.run(job, meanwhile=cancels_at(desk.home / "begun"))
    assert ended.failure_reason == "job_canceled"


async def test_a_job_that_gitlab_has_given_up_ends_at_once(desk: Desk) -> None:
    """No after_script: nobody is there to take its log."""
    taken = await desk.take(script(*waiting(desk, "begun"), after=[f"touch {desk.home}/after"]))

    async def revoke(_: Job, report: Reporting) -> None:
        await seen(desk.home / "begun")
        report.over.set()

    await desk.carry_out(taken, meanwhile=revoke)
    assert desk.outcome is not None
    assert desk.outcome.failure_reason == "job_canceled"
    assert not (desk.home / "after").exists()


@define
class Shaky(PassesOn):
    """An executor whose connection breaks after each piece of output, so many times; and at the end of all."""

    left: int

    def through(self, output: Sink) -> Sink:
        """Break behind each piece."""

        async def passed_on(data: bytes) -> None:
            await output(data)
            self._break()

        return passed_on

    async def start(self, job: JobSpec, lease: Leased, *, name: str) -> None:
        """Break as soon as it has begun."""
        await self.inner.start(job, lease, name=name)
        self._break()

    async def end(self, lease: Leased, *, name: str) -> None:
        """Break as soon as it has ended."""
        await self.inner.end(lease, name=name)
        raise Unreachable("the connection broke")

    def _break(self) -> None:
        self.left -= 1
        if self.left >= 0:
            raise Unreachable("the connection broke")


async def test_a_connection_that_breaks_costs_a_job_nothing(desk: Desk) -> None:
    """The runner attaches to it again; and once it is over, its outcome does not depend on the clean-up."""

    def shaky() -> Executor:
        inner = made()
        assert isinstance(inner, InstanceExecutor)
        return Shaky(inner, left=3)

    made, desk.executor = desk.executor, shaky
    job = await desk.run(script("echo one; sleep 0.3; echo two; sleep 0.3; echo three", "exit 4"))
    assert job.exit_code == 4, desk.log(job)
    assert [desk.log(job).count(f"\n{word}\n") for word in ("one", "two", "three")] == [1, 1, 1]


# --- restarts -----------------------------------------------------------------------------------------------


async def test_a_job_outlives_its_manager(desk: Desk) -> None:
    """The script runs once, and the log is whole."""
    job = script(
        f"echo ran >> {desk.home}/ran", "echo before", *waiting(desk, "begun"), "echo behind", after=["echo after"]
    )
    taken = await desk.take(job)
    await desk.carry_out(taken, meanwhile=stops_at(desk.home / "begun"))
    (desk.home / "go").touch()
    await desk.carry_out(taken, is_again=True)
    ended = await desk.gitlab.ended(taken.id)
    assert ended.state.value == "success"
    assert (desk.home / "ran").read_text() == "ran\n"
    log = desk.log(ended)
    assert [log.count(f"\n{word}\n") for word in ("before", "behind", "after")] == [1, 1, 1]
    assert log.count("Running with") == log.count("Job succeeded") == 1


@pytest.mark.parametrize("years", [-1, 1])
async def test_clocks_that_differ_by_a_year(desk: Desk, years: int) -> None:
    """Of two managers, one after the other: a job begun in the future has its time, one of long ago has had it."""
    job = script("echo before", *waiting(desk, "begun"), "echo behind")
    taken = await desk.take(job)
    await desk.carry_out(taken, meanwhile=stops_at(desk.home / "begun"))
    path = desk.place(taken) / DIRECTORY / "record.json"
    state = json.loads(path.read_text())
    for each in (state, *state["legs"]):
        each["began"] += years * 31_536_000
    path.write_text(json.dumps(state))
    if years > 0:
        (desk.home / "go").touch()
    await desk.carry_out(taken, is_again=True)
    ended = await desk.gitlab.ended(taken.id)
    assert desk.log(ended).count("\nbefore\n") == 1
    assert ended.failure_reason == (None if years > 0 else "job_execution_timeout")


async def test_a_canceled_job_outlives_its_manager(desk: Desk) -> None:
    """Killed in the after_script of a canceled job, the next manager goes on there."""
    job = script(
        "echo script",
        f"touch {desk.home}/begun; sleep 1000",
        after=["echo after", *waiting(desk, "late"), "echo end"],
    )
    taken = await desk.take(job)

    async def cancel_and_stop(taken: Job, report: Reporting) -> None:
        await cancels_at(desk.home / "begun")(taken, report)
        await stops_at(desk.home / "late")(taken, report)

    await desk.carry_out(taken, meanwhile=cancel_and_stop)
    (desk.home / "go").touch()
    desk.gitlab.cancel(taken.id)
    await desk.carry_out(taken, is_again=True)
    ended = await desk.gitlab.ended(taken.id)
    assert desk.outcome is not None
    assert desk.outcome.failure_reason == "job_canceled"
    log = desk.log(ended)
    assert [log.count(f"\n{word}\n") for word in ("script", "after", "end")] == [1, 1, 1]
