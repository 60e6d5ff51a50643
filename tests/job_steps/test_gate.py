"""A policy where a job is admitted, and again where its steps are loaded."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from job_steps import (
    GitReference,
    LocalReference,
    Origin,
    Status,
    Step,
    StepRefused,
    StepResult,
    StepsInvalid,
    Variable,
    read_steps,
    run_steps,
)
from job_steps._gate import admit_steps, gate, written
from job_steps._policy import Policy, PolicyRefused
from job_steps._yaml import plain, read_documents

SCAN = {"name": "scan", "script": "echo scanned"}
SIGN = {"name": "sign", "script": "echo signed"}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def refusal(policy: Policy, text: str) -> tuple[str, str]:
    """Say which rule refuses which step."""
    with pytest.raises(PolicyRefused) as refused:
        admit_steps(policy, text)
    return refused.value.rule, refused.value.step


@pytest.mark.parametrize(
    ("step", "policy", "rule"),
    [
        ("script: echo", Policy(scripts=False), "scripts"),
        ("step: builtin://script\n  inputs: {script: echo}", Policy(scripts=False), "scripts"),
        ("step: ./ci/build", Policy(scripts=False), "scripts"),
        ("step: ./ci/build", Policy(allowed_paths=("lib/*",)), "allowed_paths"),
        ("step: ./ci/../../build", Policy(allowed_paths=("*",)), "allowed_paths"),
        ("step: /etc/build", Policy(allowed_paths=("ci/*",)), "allowed_paths"),
        ("step: gitlab.com/steps/build@v1", Policy(allowed_git=()), "allowed_git"),
        ("step: gitlab.com/steps/build@v1", Policy(allowed_git=("gitlab.com/*@v2",)), "allowed_git"),
        ("step: gitlab.com/steps/build@v1", Policy(commits=True), "commits"),
        ("step: {git: {url: gitlab.com/steps/build, rev: main, dir: x}}", Policy(commits=True), "commits"),
        ("step: {oci: {registry: r.io, repository: x, tag: v1}}", Policy(commits=True), "commits"),
        ("step: {oci: {registry: r.io, repository: x, tag: v1}}", Policy(allowed_images=("r.io/y",)), "allowed_images"),
        ("step: builtin://other", Policy(allowed_builtins=()), "allowed_builtins"),
    ],
)
def test_a_list_is_refused_before_anything_runs(step: str, policy: Policy, rule: str) -> None:
    """However a step is written, the rule sees what it is taken from."""
    text = f"- name: build\n  {step}\n"
    assert refusal(policy, text) == (rule, "build")
    assert refusal(policy, f"{{}}\n---\nrun:\n{text}") == (rule, "build")
    assert admit_steps(Policy(), text) == text


def test_what_an_expression_will_be_is_left_to_the_agent() -> None:
    """Nobody knows it before the steps before it have run."""
    text = '- name: build\n  step: "${{ inputs.where }}"\n- name: test\n  step: "./${{ inputs.what }}"\n'
    assert admit_steps(Policy(allowed_paths=()), text) == text


def test_a_job_that_is_a_command_is_a_script() -> None:
    """Its author wrote it; and no step can be put before a command."""
    text = "{}\n---\nexec: {command: [echo]}\n"
    assert admit_steps(Policy(), text) == text
    assert refusal(Policy(scripts=False), text) == ("scripts", "exec")
    assert refusal(Policy(before=[SCAN]), text) == ("before", "exec")
    assert refusal(Policy(after=[SIGN]), text) == ("after", "exec")


@pytest.mark.parametrize("head", ["", "spec:\n  inputs: {x: {type: string, default: y}}\n---\nenv: {A: b}\nrun:\n"])
def test_steps_are_put_before_and_after_once(head: str) -> None:
    """What surrounds the list stays as it is."""
    text = f"{head}- name: build\n  script: echo\n"
    policy = Policy(before=[SCAN], after=[SIGN])
    once = admit_steps(policy, text)
    function = read_steps(once)
    assert [each.name for each in function.steps] == ["scan", "build", "sign"]
    assert (bool(function.inputs), dict(function.env)) == ((True, {"A": "b"}) if head else (False, {}))
    assert admit_steps(policy, once) == once


def test_a_job_cannot_put_another_step_in_the_place_of_one_that_is_added() -> None:
    """To Python, its numbers may be equal; and a name may be written without quotes."""
    strict = {"name": "true", "script": "echo $STRICT", "env": {"STRICT": 1}}
    policy = Policy(before=[strict])
    own = admit_steps(policy, "- {name: build, script: echo}")
    text = "- {{name: 'true', script: echo $STRICT, env: {{STRICT: {}}}}}\n- {{name: build, script: echo}}\n"
    assert refusal(policy, text.format("true")) == ("before", "true")
    assert [admit_steps(policy, text.format(each)) for each in ("0x1", "1.0")] == [own, own]
    assert refusal(policy, "- {name: true, script: echo}\n") == ("before", "true")


def test_a_jobs_own_steps_stay_as_they_are_written() -> None:
    """A number is a text where one is expected, whether the policy adds anything or not."""
    text = "- {name: build, script: echo, env: {A: 1.10, B: 0x1F, C: 'x', D: yes, E: 1e3}}\n"
    for policy in (Policy(), Policy(before=[SCAN])):
        build = read_steps(admit_steps(policy, text)).steps[-1]
        assert dict(build.env) == {"A": "1.10", "B": "0x1F", "C": "x", "D": "yes", "E": "1e3"}


def test_what_aliases_make_long_is_refused() -> None:
    """When it is written again, each of them is as long as what it stands for."""
    long = "- {name: a, script: &a '" + "x" * 100_000 + "'}\n"
    text = long + "".join(f"- {{name: s{n}, script: *a}}\n" for n in range(20))
    assert admit_steps(Policy(), text) == text
    with pytest.raises(StepsInvalid, match="those behind aliases included"):
        admit_steps(Policy(before=[SCAN]), text)


def test_what_cannot_be_read_is_not_admitted() -> None:
    """It is the reader's error."""
    with pytest.raises(StepsInvalid):
        admit_steps(Policy(), "- name: [")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_what_is_written_is_read(value: object) -> None:
    """Whatever characters there are in it."""
    (document,) = read_documents(written(value), source="x")
    assert plain(document.root) == value


@pytest.mark.anyio
async def test_the_agents_gate_sees_what_only_the_run_finds(tmp_path: Path) -> None:
    """A directory that the job may take calls a step that it may not: that step fails, and names the rule."""
    for name, step in (("outer", "step: ../inner"), ("inner", "script: echo ran")):
        (tmp_path / "ci" / name).mkdir(parents=True)
        text = f"spec: {{}}\n---\nrun:\n- name: below\n  {step}\n"
        (tmp_path / "ci" / name / "step.yml").write_text(text)
    policy = Policy(allowed_paths=("ci/outer",))
    result, log = await ran(policy, '- name: build\n  step: "${{ vars.WHERE }}"\n', tmp_path)
    assert result.status is Status.FAILURE
    assert "the policy's `allowed_paths` refuses the step `build`" in str(result.steps[0].error)
    result, log = await ran(policy, "- name: build\n  step: ./ci/outer\n", tmp_path)
    assert "refuses the step `build/below`: expected ci/outer, found ci/inner" in str(result.steps[0].steps[0].error)
    result, log = await ran(Policy(allowed_paths=("ci/*",)), "- name: build\n  step: ./ci/outer\n", tmp_path)
    assert (result.status, log) == (Status.SUCCESS, b"ran\n")


@pytest.mark.anyio
async def test_steps_of_the_policy_need_no_leave(tmp_path: Path) -> None:
    """A job that may have no script has the policy's run."""
    (tmp_path / "step.yml").write_text("spec: {}\n---\nexec: {command: [echo, built]}\n")
    policy = Policy(scripts=False, allowed_paths=(".",), before=[SCAN], after=[SIGN])
    result, log = await ran(policy, "- name: build\n  step: ./\n", tmp_path)
    assert (result.status, log) == (Status.SUCCESS, b"scanned\nbuilt\nsigned\n")


@pytest.mark.anyio
@pytest.mark.parametrize(
    "text",
    [
        "{}\n---\nenv: {BASH_ENV: '${{ work_dir }}/evil', WHO: job}\nrun:\n- {name: build, script: 'true'}\n",
        "- {name: build, step: ./leak}\n",
    ],
)
async def test_a_job_does_not_change_what_the_policys_steps_run(text: str, tmp_path: Path) -> None:
    """Neither by its environment nor by exports; they ask for what they want to know, and may export to each other."""
    (tmp_path / "evil").write_text("echo evil\n")
    exports(tmp_path / "scan", "echo scan ${WHO-nobody}", FROM="scan")
    exports(tmp_path / "leak", "echo build $FROM", BASH_ENV=f"{tmp_path}/evil", PATH=str(tmp_path), WHO="job")
    script = "env true; echo sign ${WHO-nobody} $ASKED $FROM"
    sign = {"name": "sign", "script": script, "env": {"ASKED": "${{ env.WHO }}"}}
    policy = Policy(before=[{"name": "scan", "step": "./scan"}], after=[sign])
    given = {"PATH": "/usr/bin:/bin", "BASH_ENV": str(tmp_path / "evil"), "WHO": "job"}
    result, log = await ran(policy, text, tmp_path, env=given)
    assert result.error is None
    said = log.decode().splitlines()
    assert (said[0], said[-1]) == ("scan nobody", "sign nobody job scan")
    assert said.count("evil") == (0 if "leak" in text else 1)  # in bash, which is the job's own step alone


def exports(directory: Path, script: str, **variables: str) -> None:
    """Write a function that exports variables."""
    directory.mkdir()
    lines = [json.dumps({"name": name, "value": value}) for name, value in variables.items()]
    command = ["/bin/sh", "-c", f"{script}; printf '%s\\n' \"$@\" > ${{{{ export_file }}}}", "sh", *lines]
    (directory / "step.yml").write_text(f"{{}}\n---\n{json.dumps({'exec': {'command': command}})}\n")


async def ran(
    policy: Policy, text: str, directory: Path, env: Mapping[str, str] | None = None
) -> tuple[StepResult, bytes]:
    """Run a list as the agent does; returns what came of it, and what was printed."""
    printed = b""

    async def log(data: bytes) -> None:
        nonlocal printed
        printed += data

    result = await run_steps(
        read_steps(admit_steps(policy, text)),
        directory=directory,
        env=env or {"PATH": "/usr/bin:/bin"},
        own=policy.own_names,
        own_env={"PATH": "/usr/bin:/bin"},
        variables=[Variable(key="WHERE", value="./elsewhere")],
        log=log,
        admit=gate(policy),
    )
    return result, b"".join(
        line for line in printed.splitlines(keepends=True) if line[:3] in (b"ran", b"sca", b"bui", b"sig", b"evi")
    )


def test_a_repositorys_own_directories_are_part_of_it() -> None:
    """They were allowed with it; what it names outside is not, and an expression may have any value."""
    look = gate(Policy(allowed_paths=(), allowed_git=()))
    inside = Origin(kind="git", root="/cache/x", directory="/cache/x/steps/build")
    look(Step(name="lint", reference=LocalReference("../lint")), ("build", "lint"), inside)
    for place in ("../../../y", "/etc", "${{"):
        origin = inside if place != "${{" else Origin(kind="job", root="/p", directory="/p")
        with pytest.raises(StepRefused, match="allowed_paths"):
            look(Step(name="lint", reference=LocalReference(place)), ("build", "lint"), origin)
    with pytest.raises(StepRefused, match="allowed_git"):
        look(Step(name="lint", reference=GitReference("https://gitlab.com/x", COMMIT)), ("build", "lint"), inside)


def test_the_policys_steps_are_as_every_program_writes_them() -> None:
    """What was put in comes back as it was, as JSON in a document of YAML."""
    text = admit_steps(
        Policy(before=[{"name": "scan", "script": "echo '\u0085 \u2028 \U0001f600 \x7f'"}]), "- name: b\n  script: x"
    )
    assert read_steps(text).steps[0].script == "echo '\u0085 \u2028 \U0001f600 \x7f'"


@pytest.mark.anyio
async def test_what_a_function_of_the_machine_names_is_looked_at_where_it_is(tmp_path: Path) -> None:
    """By its absolute path: relative patterns are for the job's own files, absolute ones hold below what is allowed."""
    calls = "spec:\n---\nrun: [{name: below, func: ./c}, {name: beside, func: ../b}]\n"
    for name, text in (("a", calls), ("a/c", "spec:\n---\nrun: []\n"), ("b", "spec:\n---\nrun: []\n")):
        (tmp_path / "opt" / name).mkdir(parents=True)
        (tmp_path / "opt" / name / "func.yml").write_text(text)

    project = tmp_path / "project"
    project.mkdir()

    async def error(*patterns: str) -> str:
        function = read_steps(f"- {{name: a, func: {tmp_path}/opt/a}}\n")
        looks = gate(Policy(allowed_paths=patterns))
        result = await run_steps(function, directory=project, env={}, log=_ignore, admit=looks)
        return str(result.error)

    assert await error(f"{tmp_path}/opt/*") == "None"
    assert f"found {tmp_path}/opt/a/c" in await error(f"{tmp_path}/opt/a", "c", "*/c")


async def _ignore(_: bytes) -> None:
    """Drop what is printed."""
