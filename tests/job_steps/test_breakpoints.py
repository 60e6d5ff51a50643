"""Breakpoints of jobs on an agent: held where they say, seen, let go once, whoever comes and goes."""

import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream
from attrs import frozen

from job_steps import Decision, Moment, StepResult, Variable, When, read_steps
from job_steps._agent._holding import Holding
from job_steps._agent._running import Rules
from job_steps._agent._service import Service
from job_steps._breakpoints import parse_breakpoints
from job_steps.client import (
    CallFailed,
    Cause,
    Code,
    Ended,
    Held,
    HeldStep,
    RunRequest,
    RunState,
    StepRunnerClient,
    step_runner,
)
from tests.job_steps.agents import log_of, log_until
from tests.time_limits import NEVER_REACHED

pytestmark = pytest.mark.anyio

TWO = json.dumps(
    [
        {"name": "build", "script": "echo building > built; echo $TOKEN", "env": {"TOKEN": "${{ vars.TOKEN }}"}},
        {"name": "check", "script": "echo checking; exit 3"},
    ]
)
"""Steps of which the second fails."""

TOKEN = Variable(key="TOKEN", value="hunter2hunter2", is_masked=True)

ALLOWED = {"breakpoints": True}


@frozen
class Agent:
    """An agent in this process."""

    socket: Path
    directory: Path

    def connected(self) -> AbstractAsyncContextManager[StepRunnerClient]:
        """Somebody who is connected."""
        return self._connected()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[StepRunnerClient]:
        async with step_runner(await anyio.connect_unix(self.socket)) as client:
            yield client

    async def begin(
        self,
        client: StepRunnerClient,
        *breakpoints: str,
        steps: str = TWO,
        variables: Sequence[Variable] = (),
        **more: float,
    ) -> None:
        """Have it run the job."""
        request = RunRequest(
            id="job",
            steps=steps,
            work_dir=str(self.directory),
            variables=(TOKEN, *variables),
            breakpoints=breakpoints,
            breakpoint_timeout=more.get("breakpoint_timeout"),
            time_limit=more.get("time_limit"),
        )
        await client.run(request)


@asynccontextmanager
async def agent(directory: Path, *policies: dict[str, object]) -> AsyncIterator[Agent]:
    """An agent with rules, which ends with all that it runs."""
    jobs = directory / "agent" / "jobs"
    jobs.mkdir(parents=True, exist_ok=True)
    (directory / "w").mkdir(exist_ok=True)
    async with anyio.create_task_group() as connections, anyio.create_task_group() as running:
        listener = await anyio.create_unix_listener(directory / "s")
        service = Service(jobs, running, Rules.of(policies or (ALLOWED,)))
        connected, left = 0, anyio.Event()

        async def answer(stream: ByteStream) -> None:
            nonlocal connected, left
            connected += 1
            await service.serve(stream)
            connected -= 1
            left.set()
            left = anyio.Event()

        connections.start_soon(listener.serve, answer)
        yield Agent(directory / "s", directory / "w")
        while connected:
            await left.wait()
        running.cancel_scope.cancel()
        connections.cancel_scope.cancel()
    await listener.aclose()
    (directory / "s").unlink()


async def held_where(client: StepRunnerClient, is_there: Callable[[HeldStep], bool] = lambda _: True) -> HeldStep:
    """Wait until the job is held, there."""
    async for held in client.follow_held("job"):
        if held.step and is_there(held.step):
            return held.step
    raise AssertionError("the job is over, and was not held")


def place_of(step: HeldStep) -> tuple[int, str, When]:
    """Which hold it is."""
    return step.number, "/".join(step.path), step.when


async def test_a_job_is_held_shown_and_let_go(tmp_path: Path) -> None:
    """Before a step, and where one fails; what is shown has secrets masked, what a shell gets has not."""
    async with agent(tmp_path) as there, there.connected() as client:
        await there.begin(client, "build:before", "build:after", "*:failure")
        step = await held_where(client)
        assert place_of(step) == (1, "build", When.BEFORE)
        assert not (there.directory / "built").exists()
        assert step.result is not None
        assert step.result.env == {"TOKEN": "[MASKED]"}
        assert 0 < step.ends_in <= 3600
        surroundings = await client.environment("job", 1)
        assert (surroundings.env["TOKEN"], surroundings.work_dir) == ("hunter2hunter2", str(there.directory))
        assert [place_of(each) for each in await client.held()] == [place_of(step)]
        assert await client.decide("job", 1, Decision.CONTINUE) is Ended.CONTINUED
        step = await held_where(client, lambda step: step.number > 1)
        assert place_of(step) == (2, "build", When.AFTER)
        await client.decide("job", 2, Decision.CONTINUE)
        step = await held_where(client, lambda step: step.number > 2)
        assert (place_of(step), step.result and step.result.exit_code) == ((3, "check", When.FAILURE), 3)
        await client.decide("job", 3, Decision.CONTINUE)
        log = (await log_of(client, "job")).decode().splitlines()
        assert [held async for held in client.follow_held("job")] == [Held(step=None, is_over=True)]
        status = await client.status("job")
    assert (status.state, status.message) == (RunState.FAILURE, "step `check`: the command ended with exit status 3")
    assert status.held_time > 0
    assert [line for line in log if not line.startswith("To attach, ")] == [
        'Running step "build"',
        "Held before build, for 1 h at most.",
        "Continued.",
        "[MASKED]",
        log[5],
        "Continued.",
        'Running step "check"',
        "checking",
        log[10],
        "Continued.",
    ]
    assert (log[5].split(",")[0], log[10].split(",")[0]) == ("Held after build", "Held after the failure of check")
    assert log[2].startswith("To attach, run on this host: ")
    assert log[2].endswith(" attach job")


async def test_a_decision_is_taken_once(tmp_path: Path) -> None:
    """Of two who are attached, the first counts; the same again changes nothing, and never lets go of another step."""
    async with agent(tmp_path) as there, there.connected() as one, there.connected() as other:
        await there.begin(one, "build", "check")
        await held_where(one)
        await held_where(other)
        with pytest.raises(CallFailed, match="not held 2 times yet") as failed:
            await other.decide("job", 2, Decision.ABORT)
        assert failed.value.code is Code.FAILED_PRECONDITION
        assert await one.decide("job", 1, Decision.CONTINUE) is Ended.CONTINUED
        assert await other.decide("job", 1, Decision.CONTINUE) is Ended.CONTINUED
        assert await other.decide("job", 1, Decision.ABORT) is Ended.CONTINUED
        step = await held_where(other, lambda step: step.number > 1)
        assert place_of(step) == (2, "check", When.BEFORE)
        with pytest.raises(CallFailed, match="not held there any more"):
            await other.environment("job", 1)
        assert await other.decide("job", 2, Decision.ABORT) is Ended.ABORTED
        await log_of(one, "job")
        assert await one.decide("job", 2, Decision.CONTINUE) is Ended.ABORTED
        status = await one.status("job")
        assert (status.state, status.message) == (RunState.CANCELLED, "aborted before check")
        with pytest.raises(CallFailed, match="the job is over"):
            await one.add_breakpoints("job", ["build"])


async def test_a_manager_that_comes_back_finds_the_step_that_is_held(tmp_path: Path) -> None:
    """Whoever is connected: a job is held by its agent; one that is closed ends all the same."""
    async with agent(tmp_path) as there:
        async with there.connected() as client:
            await there.begin(client, "check:before")
            await held_where(client)
        async with there.connected() as later:
            await there.begin(later, "check:before")
            (step,) = await later.held()
            assert place_of(step) == (1, "check", When.BEFORE)
            await later.close("job")
            assert await later.held() == []


async def test_an_agent_that_ends_takes_its_held_job_along(tmp_path: Path) -> None:
    """As any other; the next one holds nothing."""
    async with agent(tmp_path) as there, there.connected() as client:
        await there.begin(client, "build")
        await held_where(client)
    async with agent(tmp_path) as there, there.connected() as client:
        assert await client.held() == []
        assert (await client.status("job")).cause is Cause.LOST
        with pytest.raises(CallFailed, match="not held there any more"):
            await client.environment("job", 1)


async def test_a_job_that_nobody_looks_at_goes_on(tmp_path: Path) -> None:
    """After its breakpoint_timeout, for all breakpoints together; meanwhile its time limit stands still."""
    async with agent(tmp_path) as there, there.connected() as client:
        await there.begin(client, "build", "check", breakpoint_timeout=0.2, time_limit=NEVER_REACHED)
        log = (await log_of(client, "job")).decode()
        status = await client.status("job")
    assert "Held before build, for 1 s at most. Its time limit stands still meanwhile.\n" in log
    assert log.count("Held ") == 1
    assert "Nobody has decided in time: continued, and not held again.\n" in log
    assert status.state is RunState.FAILURE
    assert status.held_time == pytest.approx(0.2)


async def test_a_time_limit_stands_still_while_a_job_is_held() -> None:
    """It has as much time afterwards as it had before."""
    holding, said = Holding("job"), b""

    async def log(data: bytes) -> None:
        nonlocal said
        said += data

    holding.begin(read_steps(TWO), log, parse_breakpoints(["build"]), timeout=0.2)
    moment = Moment(path=("build",), when=When.BEFORE, result=StepResult(), work_dir="/", env={})
    with anyio.CancelScope(deadline=anyio.current_time() + 1000) as holding.limit:
        limit, before = holding.limit, holding.limit.deadline
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(holding.at, moment)
            while holding.moment is None:
                await anyio.wait_all_tasks_blocked()
            assert limit.deadline == math.inf
        assert limit.deadline > before  # by what it stood still, which begins a little after the hold
        assert limit.deadline <= anyio.current_time() + 1000
    assert said.endswith(b"Nobody has decided in time: continued, and not held again.\n")


async def test_breakpoints_come_by_variable_too_and_while_a_job_runs(tmp_path: Path) -> None:
    """Of the job, with a time; those that are added later count for steps that come yet."""
    variables = (
        Variable(key="JOB_STEPS_BREAKPOINTS", value="build:before, build"),
        Variable(key="JOB_STEPS_BREAKPOINT_TIMEOUT", value="30m"),
    )
    async with agent(tmp_path) as there, there.connected() as client:
        await there.begin(client, variables=variables)
        step = await held_where(client)
        assert (place_of(step), step.ends_in <= 1800) == ((1, "build", When.BEFORE), True)
        await client.add_breakpoints("job", ["check:failure"])
        for said in ("chek", "check:never", ""):
            with pytest.raises(CallFailed, match=r"^breakpoints: ") as failed:
                await client.add_breakpoints("job", [said])
            assert failed.value.code is Code.INVALID_ARGUMENT
        with pytest.raises(CallFailed, match="at most 100"):
            await client.add_breakpoints("job", [f"check{'?' * number}*" for number in range(101)])
        await client.decide("job", 1, Decision.CONTINUE)
        assert place_of(await held_where(client, lambda step: step.number > 1)) == (2, "check", When.FAILURE)


@pytest.mark.parametrize("policies", [({"timeout": 60},), (ALLOWED, {}), ({"breakpoints": False}, ALLOWED)])
async def test_a_job_is_not_held_where_a_policy_does_not_allow_it(
    tmp_path: Path, policies: tuple[dict[str, object], ...]
) -> None:
    """All of them have to; the refusal names the rule and the step, for each way there is to ask."""
    refused = "^the policy's `breakpoints` refuses the step `check`: jobs are not held at breakpoints here"
    async with agent(tmp_path, *policies) as there, there.connected() as client:
        with pytest.raises(CallFailed, match=refused) as failed:
            await there.begin(client, "check:after")
        assert failed.value.code is Code.PERMISSION_DENIED
        with pytest.raises(CallFailed, match=refused):
            await there.begin(client, variables=[Variable(key="JOB_STEPS_BREAKPOINTS", value="check")])
        wait = json.dumps([{"name": "check", "script": "until [ -e go ]; do sleep 0.05; done; echo done"}])
        await there.begin(client, steps=wait)
        with pytest.raises(CallFailed, match=refused):
            await client.add_breakpoints("job", ["check"])
        (there.directory / "go").touch()
        await log_until(client, "job", b"done")


@pytest.mark.parametrize(
    ("breakpoints", "variable", "said"),
    [
        (("chek",), "", "breakpoints: there is no step `chek`; did you mean `check`?"),
        (("check:x",), "", "breakpoints: `check:x`; expected STEP, STEP:before"),
        ((), "chek", "breakpoints: there is no step `chek`; did you mean `check`?"),
        (("check",) * 200, "", ""),
    ],
)
async def test_breakpoints_that_mean_nothing(
    tmp_path: Path, breakpoints: tuple[str, ...], variable: str, said: str
) -> None:
    """Are refused before anything runs; the same one may come as often as it likes."""
    async with agent(tmp_path) as there, there.connected() as client:
        variables = [Variable(key="JOB_STEPS_BREAKPOINTS", value=variable)] if variable else []
        if said:
            with pytest.raises(CallFailed, match="^" + said.replace("?", r"\?")) as failed:
                await there.begin(client, *breakpoints, variables=variables)
            assert failed.value.code is Code.INVALID_ARGUMENT
            assert await client.statuses() == []
        else:
            await there.begin(client, *breakpoints, variables=variables)
            await held_where(client)


async def test_the_policy_says_for_how_long(tmp_path: Path) -> None:
    """A job that asks for more gets that."""
    async with agent(tmp_path, {"breakpoints": True, "breakpoint_timeout": 60}) as there, there.connected() as client:
        await there.begin(client, "build", breakpoint_timeout=3600.0)
        assert (await held_where(client)).ends_in <= 60


async def test_a_breakpoint_that_was_never_met_is_said_at_the_end(tmp_path: Path) -> None:
    """It may have been that of a step further down, which nobody knew before."""
    (tmp_path / "w" / "f").mkdir(parents=True)
    (tmp_path / "w" / "f" / "func.yml").write_text("{}\n---\nrun: [{name: lint, script: 'true'}]\n")
    async with agent(tmp_path) as there, there.connected() as client:
        await there.begin(client, "lnit", steps="- {name: build, step: ./f}\n")
        log = await log_of(client, "job")
    assert b"A breakpoint was never met: there is no step `lnit`; did you mean `lint`?\n" in log
