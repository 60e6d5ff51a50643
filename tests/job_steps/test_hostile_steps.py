"""Steps that mean no good: what they write, name and ask for ends themselves, and costs no more than it may."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from job_steps import Status, Variable, run_steps
from job_steps._errors import StepFailed, StepsInvalid
from job_steps._expressions import Scope, expand_string
from job_steps._nearest import nearest
from job_steps._reading import read_steps
from job_steps._run import MAX_KEPT
from job_steps._secrets import MOST, Secrets
from job_steps._values import Hidden, Value, weight_of
from tests.job_steps.running import ENV, Project

BIG: Value = ["x"] * 90_000


# --- what they write ----------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.needs("grep")
async def test_half_of_a_character_becomes_a_whole_one(project: Project) -> None:
    """As Go reads it: in outputs, their keys and exports, which the commands after it are given."""
    said = {"name": "out", "value": {"\ud800": "a\udfffb"}}
    spec = {"outputs": {"out": {"type": "struct"}}}
    export = json.dumps({"name": "E\ud800", "value": "e\ud800"})
    project.add_script("half", f"echo '{json.dumps(said)}' > OUT; echo '{export}' > EXP", spec=spec)
    steps = "- {name: a, func: ./half}\n- {name: b, script: 'echo ${{ str(steps.a.outputs.out) }}; env | grep ^E'}\n"
    result = await project.run(steps)
    assert result.error is None
    assert project.lines[-2:] == ["{\ufffd:a\ufffdb}", "E\ufffd=e\ufffd"]
    assert json.dumps(result.as_dict(), ensure_ascii=False).encode()


def test_half_of_a_character_is_no_yaml_for_any_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the manager's refuses, the agent's has to refuse, too."""
    for _ in range(2):
        with pytest.raises(StepsInvalid, match=r"steps:1: not YAML: found invalid Unicode character escape code"):
            read_steps('- {name: a, script: "echo \\ud800"}')
        monkeypatch.delattr("yaml.CSafeLoader", raising=False)


@pytest.mark.anyio
async def test_a_step_that_is_there_before_the_next_one_ends_only_the_run(project: Project) -> None:
    """It makes the files of later steps, or takes their directory away."""
    project.add_script("first", "files=OUT; touch ${files%/*}/3.outputs", spec={})
    result = await project.run("- {name: a, func: ./first}\n- {name: b, script: echo}\n")
    assert result.error == "step `b`: a file for outputs or exports cannot be made: File exists"
    project.add_script("later", "files=OUT; (sleep 0.2; rm -rf ${files%/*}) & ", spec={})
    wait = "until [ ! -e ${files%/*} ]; do sleep 0.05; done"
    project.add_script("wait", f"files=OUT; {wait}", spec={})
    result = await project.run("- {name: a, func: ./later}\n- {name: b, func: ./wait}\n- {name: c, script: echo}\n")
    assert result.status is Status.FAILURE
    assert result.error
    assert "a file for outputs or exports" in result.error  # which it has removed, or cannot be made any more


@pytest.mark.anyio
async def test_an_output_of_100_mib_is_not_read(project: Project) -> None:
    """Nor kept, nor is a log of that size held: it passes."""
    project.add_script("huge", "head -c 104857600 /dev/zero > OUT; head -c 104857600 /dev/zero", spec={"outputs": {}})
    size = 0

    async def count(data: bytes) -> None:
        nonlocal size
        size += len(data)

    function = read_steps("- {name: a, func: ./huge}")
    result = await run_steps(function, directory=project.directory, env=ENV, log=count)
    assert result.error == "step `a`: the file of the outputs has more than 4194304 bytes"
    assert size > 104857600


@pytest.mark.anyio
async def test_what_all_steps_keep_together_has_a_limit(project: Project) -> None:
    """Each may return four megabytes, but not all of them."""
    write = 'print(__import__("json").dumps({"name": "x", "value": "x" * 4000000}))'
    project.add_script("big", f"{sys.executable} -c '{write}' > OUT", spec={"outputs": {"x": {"type": "string"}}})
    result = await project.run("\n".join(f"- {{name: s{number}, func: ./big}}" for number in range(9)))
    assert result.error
    assert result.error.startswith("step `s3`: the inputs, outputs, variables and commands of all steps are too much")
    assert [each.status for each in result.steps] == [*[Status.SUCCESS] * 3, Status.FAILURE]
    assert sum(weight_of(value) for each in result.steps for value in each.outputs.values()) < MAX_KEPT


@pytest.mark.anyio
async def test_an_error_is_short_whatever_is_in_it(project: Project) -> None:
    """What a step has written may be in it."""
    project.add_script(
        "long",
        f"""{sys.executable} -c 'print("{{\\"name\\":\\"" + "x" * 1000000 + "\\",\\"value\\":1}}")' > OUT""",
        spec={},
    )
    result = await project.run("- {name: a, func: ./long}\n")
    assert result.error
    assert len(result.error) < 5000
    assert result.error.startswith("step `a`: the output `xxx")


@pytest.mark.anyio
async def test_a_run_has_no_more_secrets_than_can_be_looked_for(project: Project) -> None:
    """Each costs something for each byte of the log: more of them end the step that has them."""
    values = [f"secret-{number}" for number in range(MOST + 1)]
    (project.directory / "out").write_text(json.dumps({"name": "s", "value": values}))
    project.add_script("many", "cat out > OUT", spec={"outputs": {"s": {"type": "array", "sensitive": True}}})
    result = await project.run("- {name: a, func: ./many}\n")
    assert result.error == (
        f"step `a`: more than {MOST} lines that are to be masked, of all sensitive values of this run"
    )
    variables = [Variable(key="V", value="\n".join(values), is_masked=True)]
    result = await project.run("- {name: a, script: echo}\n", variables=variables)
    assert result.error == f"more than {MOST} lines that are to be masked, of all sensitive values of this run"
    with pytest.raises(StepFailed):
        Secrets().add("\n".join(values))


@pytest.mark.anyio
async def test_a_variable_that_is_a_file_may_have_any_name(project: Project) -> None:
    """And any text, as far as a file can have it."""
    variables = [Variable(key="K" * 300, value="a\ud800b", is_file=True)]
    result = await project.run_script(f"cat ${{{{ vars.{'K' * 300} }}}}", variables=variables)
    assert result.error is None
    assert project.lines[-1] == "a?b"


@pytest.mark.anyio
async def test_a_command_that_no_process_can_have_fails_its_step(project: Project) -> None:
    """Half of a character in what the run was given."""
    result = await project.run_script("echo", env={"A": "\ud800"})
    assert result.error
    assert "cannot be started: 'utf-8' codec can't encode character" in result.error


# --- what they ask for --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "each",
    ["str(v)", "v == v", "bool(v)", "!v", "v && 1", '"${{ v }}"', "h.v == v", "!h", "t + t", '"${{ t }}${{ t }}"'],
)
def test_expressions_that_do_not_end_are_ended(each: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a big value is gone through within one: at some point, that is too much."""
    monkeypatch.setattr("job_steps._expressions.MAX_WORK", 250_000)
    names: dict[str, Value] = {"v": BIG, "h": Hidden({"v": BIG}), "t": "x" * 2_000_000}
    scope = Scope(names)
    with pytest.raises(StepFailed, match=r"the values of these expressions are too much together|too big"):
        expand_string(f"${{{{ [{','.join([each] * 500)}] }}}}", scope)
    assert scope._work[0] < 400_000


def test_a_part_of_a_hidden_value_costs_as_much_as_any_other() -> None:
    """Nothing is copied to get there; it is hidden, too."""
    scope = Scope({"h": Hidden({"a": {"b": "c"}, "v": BIG})})
    assert expand_string("${{ h.a.b }}", scope) == Hidden("c")
    assert scope._work[0] < 10


@pytest.mark.anyio
@pytest.mark.parametrize("where", ["env", "outputs", "inputs", "command"])
async def test_what_a_step_is_given_is_no_bigger_than_it_may_be(project: Project, where: str) -> None:
    """A thousand times four megabytes, which stand there as a short expression each."""
    many = [f"a{number}" for number in range(1000)]
    big = {"big": {"type": "string", "default": "x" * 500_000}}
    spec = {"inputs": big, "outputs": {"x": {"type": "array"}}}
    texts = ["a${{ inputs.big }}"] * 1000
    run = [{"name": "a", "script": "true"}]
    body: dict[str, object]
    match where:
        case "env":
            body = {"env": dict.fromkeys(many, texts[0]), "run": run}
        case "outputs":
            body = {"outputs": {"x": texts}, "run": run}
        case "inputs":
            inner = {"spec": {"inputs": {"x": {"type": "array"}}}}
            project.add("inner", f"{json.dumps(inner)}\n---\n{json.dumps({'run': run})}\n")
            body = {"run": [{"name": "a", "func": "../inner", "inputs": {"x": texts}}]}
        case _:
            body = {"exec": {"command": ["echo", *texts]}}
    project.add("given", f"{json.dumps({'spec': spec})}\n---\n{json.dumps(body)}\n")
    result = await project.run("- {name: a, func: ./given}\n")
    assert result.error
    assert "too much together" in result.error or "too big" in result.error


def test_a_name_that_is_like_others_costs_little() -> None:
    """Comparing takes the square of their lengths."""
    assert nearest("mesage", ["message", "count"]) == "message"
    assert nearest("x" * 100_000, ["x" * 99_999]) == ""
    assert nearest("message", ["message" * 20_000]) == ""


@pytest.mark.parametrize(
    "text",
    [
        f"- {{? {'k' * 100_000}: 1, name: a, func: ./x}}",
        f"? {'k' * 1000}\n: 1\n? {'k' * 1000}\n: 2\n",
        f"- !{'t' * 100_000} x",
        f"- *{'a' * 100_000}",
        f"- {{name: {'n' * 300}, func: ./x}}",
        f"- {{name: a, func: ./x, inputs: {{{'n' * 300}: 1}}}}",
        "{" + ",".join(f"k{number}: 1" for number in range(2000)) + "}",
        "[" + "a, " * 2000,
        "- {name: a, func: ./x, inputs: {v: .nan}}",
        "- {name: a, func: ./x, inputs: {v: 0x" + "f" * 500_000 + "}}",
        "- {name: a, func: ./x, inputs: {v: 1, v: 2}}",
        "- {<<: {name: a, script: x}, <<: 5}",
        "- !!python/object/apply:os.system [id]",
        "--- 1\n" * 100_000,
    ],
)
def test_a_hostile_file_is_refused_in_a_few_words(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By both parsers."""
    monkeypatch.setattr("job_steps._yaml.MAX_NODES", 1000)
    for _ in range(2):
        with pytest.raises(StepsInvalid) as refused:
            read_steps(text)
        assert len(str(refused.value)) < 500
        monkeypatch.delattr("yaml.CSafeLoader", raising=False)


def test_a_terminal_in_the_place_of_a_file_does_not_become_that_of_whoever_reads_it() -> None:
    """An agent has none of its own: with this one it would be ended, too."""
    script = """
import sys
from job_steps._loading import read_text
try:
    read_text(sys.argv[1])
except Exception as error:
    print(error)
try:
    open("/dev/tty")
except OSError as error:
    print(error.strerror)
"""
    master, slave = os.openpty()
    terminal = os.ttyname(slave)
    os.close(slave)
    try:
        command = [sys.executable, "-c", script, terminal]
        ran = subprocess.run(command, capture_output=True, text=True, start_new_session=True, check=True)
    finally:
        os.close(master)
    assert ran.stdout.splitlines() == [f"`{terminal}` is not a file", "No such device or address"]


@pytest.mark.anyio
async def test_what_a_step_exports_is_for_later_steps_alone(project: Project, tmp_path: Path) -> None:
    """Where programs and libraries come from, for example: nothing that runs the steps looks there."""
    exported = {"PATH": str(tmp_path), "LD_PRELOAD": "/nonexistent.so", "PYTHONPATH": "/x", "GIT_DIR": "/x"}
    for name, value in exported.items():
        with (project.directory / "exports").open("a") as file:
            file.write(json.dumps({"name": name, "value": value}) + "\n")
    project.add_script("export", "cat exports > EXP")
    result = await project.run("- {name: a, func: ./export}\n- {name: b, script: 'echo $PATH'}\n")
    assert result.error is None
    assert project.lines[-1] == str(tmp_path)
