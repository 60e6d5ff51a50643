"""Jobs with `run`, whose steps an agent on a real instance carries out."""

import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import evolve

from gitlab_jobs import Hook, Job, Step, Variable
from job_steps import StepResult
from job_steps.executor import PolicySettings
from job_steps.usage import uses_of
from taskscaler.uses import together
from taskscaler_gitlab._finished import steps_in_words
from taskscaler_gitlab._settings import OwnSettings, RunnerSettings
from taskscaler_gitlab.runner import features
from taskscaler_gitlab.runner._errors import JobInvalid
from taskscaler_gitlab.runner._record import AGENT_KILLED, RESULTS
from taskscaler_gitlab.runner._steps import check_run
from tests.taskscaler_gitlab.desks import Desk, desk_on, leaving, script
from tests.taskscaler_gitlab.test_running_jobs import cancels_at, sections_end, stops_at, waiting, with_sources

pytestmark = [pytest.mark.anyio, pytest.mark.needs("tar")]


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """A GitLab and an instance."""
    async with desk_on(tmp_path) as made:
        yield made


def steps(*run: dict[str, Any], **more: Any) -> Job:  # noqa: ANN401  (a job's)
    """A job with steps."""
    after = script("true", **more)
    return evolve(after, run=json.dumps(run), steps=tuple(each for each in after.steps if each.name != "script"))


def results_of(desk: Desk, job: Job) -> StepResult:
    """What is kept of how a job's steps went."""
    return StepResult.from_dict(json.loads((desk.place(job) / RESULTS).read_text()))


async def test_steps_run_as_a_stage_of_their_job(desk: Desk) -> None:
    """With the job's variables, masked where they are; what comes after them sees what they left."""
    variables = (
        Variable(key="WHO", value="world"),
        Variable(key="SECRET", value="hunter2-hunter2", masked=True),
        Variable(key="FILE", value="in a file", file=True),
        Variable(key="STEPS", value="none of theirs"),
    )
    job = await desk.run(
        steps(
            {"name": "greet", "script": "echo hello ${{ vars.WHO }}; echo $SECRET; cat ${{ vars.FILE }}"},
            {"name": "leave", "script": "echo x > left"},
            {"name": "look", "script": "pwd; ls; echo ${CI_PROJECT_DIR:+has a place}"},
            after=["echo after $CI_JOB_STATUS; ls $CI_PROJECT_DIR.tmp"],
            variables=variables,
            artifacts=(leaving("left"),),
        )
    )
    log = desk.log(job)
    assert job.state.value == "success", log
    assert "\nhello world\n[MASKED]\nin a file" in log
    assert "\nleft\nhas a place\n" in log
    assert "\nafter success\n" in log
    assert "hunter2" not in log
    assert [desk.archive(job.job.id)] == [{"left": b"x\n"}]
    assert sections_end(log)
    assert "section_start" in log
    assert "step_run" in log
    result = results_of(desk, job.job)
    assert [(each.name, each.status.value) for each in result.steps] == [
        ("greet", "success"),
        ("leave", "success"),
        ("look", "success"),
    ]
    assert "hunter2" not in (desk.place(job.job) / RESULTS).read_text()
    told = [*steps_in_words(result, together(uses_of(result)))]
    assert [line.partition(" in ")[0] for line in told] == [
        "step greet succeeded",
        "step leave succeeded",
        "step look succeeded",
    ]


async def test_a_step_that_fails_fails_the_job(desk: Desk) -> None:
    """With its exit code; `after_script` runs, and the results say which it was."""
    job = await desk.run(
        steps({"name": "one", "script": "exit 7"}, {"name": "two", "script": "echo two"}, after=["echo $CI_JOB_STATUS"])
    )
    log = desk.log(job)
    assert (job.state.value, job.failure_reason, job.exit_code) == ("failed", "script_failure", 7)
    assert "\nfailed\n" in log
    assert "\ntwo\n" not in log
    (told,) = steps_in_words(results_of(desk, job.job), together(uses_of(results_of(desk, job.job))))
    assert told.startswith("step one exited with 7 in ")


@pytest.mark.parametrize(
    ("change", "reason", "said"),
    [
        ({"run": "{"}, "script_failure", "a `run` that is not JSON"),
        ({"run": '{"name": 1}'}, "script_failure", "a `run` that is not a list of steps"),
        ({"run": '[{"name": "x", "srcipt": "true"}]'}, "script_failure", "srcipt"),
        (
            {"run": '[{"name": "x", "step": "gitlab.com/steps/build@main"}]'},
            "script_failure",
            "the policy's `commits` refuses the step `x`: expected a whole commit",
        ),
        (
            {"steps": (Step(name="script", script=("true",)),)},
            "runner_system_failure",
            "the job has `run` and `script`; keep one of them",
        ),
    ],
)
async def test_steps_that_cannot_be_run(tmp_path: Path, change: dict[str, Any], reason: str, said: str) -> None:
    """The job fails with one line, as GitLab Runner has it, and nothing of it runs."""
    async with desk_on(tmp_path, taskscaler=OwnSettings(steps_policy=PolicySettings(commits=True))) as desk:
        job = await desk.run(evolve(steps({"name": "x", "script": "echo no"}), **change))
    assert (job.state.value, job.failure_reason) == ("failed", reason)
    assert said in desk.log(job).splitlines()[-1]
    assert "\nno\n" not in desk.log(job)


async def test_what_only_the_run_finds_is_refused_by_the_agent(tmp_path: Path) -> None:
    """A step that may run names one that may not; steps of the policy's own run."""
    scan: dict[str, object] = {"name": "scan", "script": "echo scanned"}
    settings = OwnSettings(steps_policy=PolicySettings(before=(scan,), commits=True))
    async with desk_on(tmp_path, taskscaler=settings) as desk:
        inner = "- name: inner\n  step: gitlab.com/steps/build@main\n"
        make = f"mkdir -p ci; printf 'spec: {{}}\\n---\\nrun:\\n{inner}' > ci/step.yml".replace("\n", "\\n")
        job = await desk.run(steps({"name": "make", "script": make}, {"name": "outer", "step": "./ci"}))
    log = desk.log(job)
    assert (job.state.value, job.failure_reason) == ("failed", "script_failure")
    assert "\nscanned\n" in log
    assert "the policy's `commits` refuses the step `outer/inner`" in log


@pytest.mark.parametrize(
    ("policy", "run", "refusal"),
    [
        (PolicySettings(scripts=False), {"script": "echo no"}, "`scripts` refuses the step `x`: it is a script"),
        (PolicySettings(scripts=False), {"step": "./ci"}, "`scripts` refuses the step `x`: ci is the job's own"),
        (
            PolicySettings(allowed_git=("gitlab.com/steps/*",)),
            {"step": "https://user:hunter2-hunter2@gitlab.com/other/x@v1"},
            "`allowed_git` refuses the step `x`: expected gitlab.com/steps/*, found https://gitlab.com/other/x@v1",
        ),
        (
            PolicySettings(before=({"name": "x", "script": "true"},)),
            {"script": "echo no"},
            "`before` refuses the step `x`: the policy adds a step of this name",
        ),
        (
            PolicySettings(allowed_git=()),
            {"step": "${{ vars.WHERE }}@v1"},
            "`allowed_git` refuses the step `x`: expected nothing, found https://gitlab.com/other/x@v1",
        ),
    ],
)
async def test_a_refusal_names_its_rule_and_its_step(
    tmp_path: Path, policy: PolicySettings, run: dict[str, Any], refusal: str
) -> None:
    """In the job's log, whether the runner finds it before the job has an instance's time, or the agent."""
    where = Variable(key="WHERE", value="gitlab.com/other/x")
    async with desk_on(tmp_path, taskscaler=OwnSettings(steps_policy=policy)) as desk:
        job = await desk.run(steps({"name": "x", **run}, variables=(where,)))
    log = desk.log(job)
    assert (job.state.value, job.failure_reason) == ("failed", "script_failure")
    assert f"the policy's {refusal}" in log
    assert "hunter2" not in log
    assert "\nno\n" not in log


@pytest.mark.parametrize(
    ("job", "named"),
    [
        (script("echo no"), "script"),
        (steps({"name": "x", "step": "gitlab.com/steps/x@v1"}, after=["echo no"]), "after_script"),
        (
            evolve(
                steps({"name": "x", "step": "gitlab.com/steps/x@v1"}),
                hooks=(Hook(name="pre_get_sources_script", script=("echo no",)),),
            ),
            "pre_get_sources_script",
        ),
    ],
)
async def test_where_no_scripts_are_allowed_there_is_no_other_place_for_them(
    tmp_path: Path, job: Job, named: str
) -> None:
    """Else, the policy would be for those alone who know no way around it."""
    settings = OwnSettings(steps_policy=PolicySettings(scripts=False, allowed_git=("gitlab.com/steps/*",)))
    async with desk_on(tmp_path, taskscaler=settings) as desk:
        ended = await desk.run(job)
    assert (ended.state.value, ended.failure_reason) == ("failed", "script_failure")
    assert f"the policy's `scripts` refuses the job's `{named}`" in desk.log(ended).splitlines()[-1]


async def test_a_jobs_variables_do_not_change_what_a_policy_adds(tmp_path: Path) -> None:
    """The job's own steps have them; the others ask for them."""
    (tmp_path / "evil").write_text("echo evil\n")
    scan: dict[str, object] = {
        "name": "scan",
        "script": "echo scan $BASH_ENV $WHO $ASKED",
        "env": {"ASKED": "${{ vars.WHO }}"},
    }
    variables = (Variable(key="BASH_ENV", value=f"{tmp_path}/evil"), Variable(key="WHO", value="it is the job"))
    async with desk_on(tmp_path, taskscaler=OwnSettings(steps_policy=PolicySettings(before=(scan,)))) as desk:
        job = await desk.run(steps({"name": "own", "script": "echo own $WHO"}, variables=variables))
        log = desk.log(job)
        assert job.state.value == "success", log
        assert "\nscan it is the job\n" in log
        assert "\nevil\nown it is the job\n" in log
        assert log.count("\nevil\n") == 1
        assert not [*desk.home.rglob("steps-environment.json")]


LIMITED = OwnSettings(steps_policy=PolicySettings(memory="64m", network="none"))
_LEAKS = "import time; x = bytearray(100 << 20); time.sleep(1000)"
LEAK = {"name": "leak", "script": f"exec {sys.executable} -I -S -c '{_LEAKS}'"}
QUIET = {"name": "quiet", "script": "cat /proc/net/route | wc -l"}
OVER = "killed: it needed more memory than its limit `memory` allows, which is 64 MiB; it had "


async def test_the_operators_limits_are_in_force(tmp_path: Path) -> None:
    """For each step of a job; one that exceeds them fails it, and log, record and results say how."""
    async with desk_on(tmp_path, taskscaler=LIMITED) as desk:
        job = await desk.run(steps(QUIET, LEAK, {"name": "never", "script": "echo never"}))
        log, result = desk.log(job), results_of(desk, job.job)
    assert (job.state.value, job.failure_reason, job.exit_code) == ("failed", "script_failure", 137), log
    assert "\n1\n" in log, "a table of routes with nothing but its heading"
    assert f'Step "leak" was {OVER}' in log
    assert "\nnever\n" not in log
    assert [each.cause for each in result.steps] == [None, "out_of_memory"]
    _, told = steps_in_words(result, together(uses_of(result)))
    assert told.startswith(f"step leak failed: the command was {OVER}")


async def test_a_job_whose_agent_is_killed_has_its_tree(desk: Desk) -> None:
    """It grows while the steps run; what ran when it was killed is lost, and said to be."""
    results = "$(tr '\\0' '\\n' < /proc/$PPID/cmdline | tail -1)"
    kill = f'until grep -q killer "{results}"; do sleep 0.05; done; kill -KILL $PPID'
    job = await desk.run(steps({"name": "first", "script": "true"}, {"name": "killer", "script": kill}))
    result = results_of(desk, job.job)
    assert (job.failure_reason, job.exit_code) == ("script_failure", 137), desk.log(job)
    assert [(each.name, each.status.value, each.cause) for _, each in result.walk()] == [
        ("", "failure", "lost"),
        ("first", "success", None),
        ("killer", "failure", "lost"),
    ]
    assert [*steps_in_words(result, together(uses_of(result)))][1] == f"step killer failed: {AGENT_KILLED}"


BREAKABLE = OwnSettings(steps_policy=PolicySettings(breakpoints=True))


async def test_a_job_is_held_where_its_variable_says(tmp_path: Path) -> None:
    """Its log says so, and how to attach; that shows nothing that is masked, and lets it go on."""
    async with desk_on(tmp_path, taskscaler=BREAKABLE) as desk:
        looked: list[str] = []

        async def look(job: Job, _: object) -> None:
            found = None
            while found is None:
                await anyio.sleep(0.05)
                found = re.search(r"To attach, run on this host: (.+)\n", desk.log(job))
            with anyio.CancelScope(shield=True):  # the job may be over before who let it go on has ended
                done = await anyio.run_process(found[1], input=b"env\ncontinue\n", check=False)
            looked.append((done.stdout + done.stderr).decode())

        variables = (
            Variable(key="JOB_STEPS_BREAKPOINTS", value="two:before"),
            Variable(key="SECRET", value="hunter2-hunter2", masked=True),
        )
        two = {"name": "two", "script": "echo two", "env": {"TOKEN": "${{ vars.SECRET }}"}}
        wanted = steps({"name": "one", "script": "echo one"}, two, variables=variables)
        job = await desk.run(wanted, meanwhile=look)
    log = desk.log(job)
    assert job.state.value == "success", log
    assert "\nHeld before two, for 1 h at most. The time limit of its job goes on meanwhile.\nTo attach, run on" in log
    assert "\nContinued.\n" in log
    (said,) = looked
    assert said.splitlines() == [
        "before two; `help` for commands",
        '(job-steps) TOKEN = "[MASKED]"',
        f"(job-steps) {job.job.id} is over",
    ]


@pytest.mark.parametrize(
    ("value", "settings", "said"),
    [
        (
            "one",
            OwnSettings(),
            "the policy's `breakpoints` refuses the step `one`: jobs are not held at breakpoints here",
        ),
        (
            "$NAME",
            OwnSettings(),
            "the policy's `breakpoints` refuses the step `one`: jobs are not held at breakpoints here",
        ),
        ("noe:after", BREAKABLE, "the job's breakpoints: there is no step `noe`; did you mean `one`?"),
        ("one:never", BREAKABLE, "the job's breakpoints: `one:never`; expected STEP, STEP:before"),
    ],
)
async def test_a_job_that_cannot_be_held_there(tmp_path: Path, value: str, settings: OwnSettings, said: str) -> None:
    """It fails with one line, before its steps; what is made of another variable, at the agent."""
    variables = (Variable(key="NAME", value="one"), Variable(key="JOB_STEPS_BREAKPOINTS", value=value))
    async with desk_on(tmp_path, taskscaler=settings) as desk:
        job = await desk.run(steps({"name": "one", "script": "echo no"}, variables=variables))
    assert (job.state.value, job.failure_reason) == ("failed", "script_failure")
    assert said in desk.log(job)
    assert "\nno\n" not in desk.log(job)


async def test_a_job_with_steps_outlives_its_manager(desk: Desk) -> None:
    """They run once, the log is whole, and so are the results."""
    job = steps(
        {"name": "one", "script": f"echo ran >> {desk.home}/ran; echo before"},
        {"name": "two", "script": "; ".join(waiting(desk, "begun"))},
        {"name": "three", "script": "echo behind"},
        after=["echo after"],
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
    assert [each.status.value for each in results_of(desk, taken).steps] == ["success"] * 3


async def test_a_canceled_step_ends_and_has_its_after_script(desk: Desk) -> None:
    """With all that it has started; how far it came is kept."""
    job = steps(
        {"name": "one", "script": "; ".join(waiting(desk, "begun"))},
        {"name": "two", "script": "echo two"},
        after=["echo then $CI_JOB_STATUS"],
    )
    ended = await desk.run(job, meanwhile=cancels_at(desk.home / "begun"))
    assert ended.failure_reason == "job_canceled"
    assert "\nthen canceled\n" in desk.log(ended)
    assert "\ntwo\n" not in desk.log(ended)


def test_jobs_in_containers_are_held_nowhere() -> None:
    """Nobody would reach the agent in there to let them go on: they are refused, and others are not."""
    given = {"url": "https://gitlab.example.com", "token": "glrt-0123456789", "executor": "docker-autoscaler"}
    settings = RunnerSettings(**given, taskscaler=BREAKABLE)  # type: ignore[arg-type]
    check_run(steps({"name": "one", "script": "true"}), settings)
    held = steps({"name": "one", "script": "true"}, variables=(Variable(key="JOB_STEPS_BREAKPOINTS", value="one"),))
    with pytest.raises(JobInvalid, match="with the executor `instance` alone") as refused:
        check_run(held, settings)
    assert refused.value.reason == "runner_configuration_error"


def test_who_can_run_steps_says_so() -> None:
    """To GitLab, which gives such jobs to nobody else."""
    assert "native_steps_integration" in features("instance")
    assert "native_steps_integration" in features("docker")


@pytest.mark.parametrize("policy", [PolicySettings(), PolicySettings(commits=True)])
async def test_what_an_earlier_job_has_left_gets_nothing_of_the_variables(
    tmp_path: Path, policy: PolicySettings
) -> None:
    """A link, or a file that others can read, where the request for the agent is written: it has secrets in it."""
    seen = tmp_path / "seen"
    seen.mkdir()
    plant = (
        f"touch {seen}/request {seen}/environment",
        f'ln -s {seen}/request "$CI_PROJECT_DIR.tmp/steps-request.json"',
        f'ln -s {seen}/environment "$CI_PROJECT_DIR.tmp/steps-environment.json"',
        'mkdir "$CI_PROJECT_DIR.tmp/steps-policy.json"',
    )
    job = evolve(
        steps({"name": "look", "script": "echo here"}, variables=(Variable(key="SECRET", value="hunter2-hunter2"),)),
        hooks=(Hook(name="pre_get_sources_script", script=plant),),
    )
    async with desk_on(tmp_path, taskscaler=OwnSettings(steps_policy=policy)) as desk:
        ended = await desk.run(with_sources(job, tmp_path))
    assert ended.state.value == "success", desk.log(ended)
    assert [file.read_text() for file in seen.iterdir()] == ["", ""]
