"""Steps that run, with real processes: what they get, what they return, and how they end."""

import json
import os
import signal
import sys
from pathlib import Path

import anyio
import pytest

from job_steps import (
    Decision,
    Moment,
    Origin,
    Resources,
    Status,
    Step,
    StepRefused,
    StepResult,
    Variable,
    read_steps,
    run_steps,
)
from job_steps._files import MAX_FILE
from tests.job_steps.running import ENV, Project

pytestmark = pytest.mark.anyio


async def test_outputs_and_exports_reach_the_steps_after(project: Project) -> None:
    """In the order of the list, and in the result."""
    project.add_script(
        "setup",
        """echo '{"name":"WHERE","value":"/opt"}' > EXP; echo '{"name":"n","value":4.5}' > OUT""",
        spec={"outputs": {"n": {"type": "number"}}},
    )
    text = """
- name: setup
  func: ./setup
- name: say
  func: ./echo
  inputs: {message: "${{ env.WHERE }} ${{ steps.setup.outputs.n + 1 }}"}
- name: shell
  script: echo "$WHERE"
"""
    result = await project.run(text)
    assert result.status is Status.SUCCESS
    assert project.lines == [
        'Running step "setup"',
        'Running step "say"',
        "/opt 5.5",
        'Running step "shell"',
        "/opt",
    ]
    setup, say, _ = result.steps
    assert (setup.outputs, setup.exports) == ({"n": 4.5}, {"WHERE": "/opt"})
    assert (say.inputs, say.outputs) == ({"message": "/opt 5.5"}, {"message": "/opt 5.5"})
    assert (say.exit_code, say.reference, say.work_dir) == (0, "./echo", str(project.directory))
    assert [each.status for each in project.trees[-1].steps] == [Status.SUCCESS] * 3
    assert StepResult.from_dict(json.loads(json.dumps(result.as_dict()))) == result


async def test_the_first_step_that_fails_ends_the_run(project: Project) -> None:
    """The result says which, with its exit status."""
    project.add("inner", "spec:\n---\nrun:\n  - {name: bang, script: exit 3}\n  - {name: never, script: echo no}\n")
    result = await project.run("- {name: outer, func: ./inner}\n- {name: after, script: echo no}\n")
    assert result.status is Status.FAILURE
    assert result.error == "step `outer`: step `bang`: the command ended with exit status 3"
    failed = result.failed()
    assert failed
    assert (failed.name, failed.exit_code) == ("bang", 3)
    assert [("/".join(path), each.status.value) for path, each in result.walk()] == [
        ("", "failure"),
        ("outer", "failure"),
        ("outer/bang", "failure"),
    ]
    assert project.lines == ['Running step "bang"']


@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        ("[sh, -c, 'kill -9 $$']", 137, "the command was ended by SIGKILL"),
        ("[sh, -c, 'exit 137']", 137, "the command ended with exit status 137"),
        ("[no-such-program-here]", None, "there is no program `no-such-program-here` in PATH"),
        ("[./no-such-file]", None, "there is no program `./no-such-file`"),
        ("[/etc]", None, "the program `/etc` cannot be started: Permission denied; is it executable? (chmod +x)"),
        ("['${{ inputs.empty }}']", None, "the command is empty"),
        ("[echo, '${{ inputs.nul }}']", None, "a character 0 in the command or its environment"),
    ],
)
async def test_how_a_command_ends_is_told(project: Project, command: str, code: int | None, error: str) -> None:
    """Signals apart from exit statuses, and programs that are not there apart from both."""
    inputs = "{empty: {type: string, default: ''}, nul: {type: string, default: \"a\\0b\"}}"
    result = await project.run(f"spec: {{inputs: {inputs}}}\n---\nexec: {{command: {command}}}\n")
    assert (result.status, result.exit_code, result.error) == (Status.FAILURE, code, error)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo x > OUT", 'line 1 of the outputs is not JSON; expected {"name": "…", "value": …}'),
        ("echo '[1]' > OUT", 'line 1 of the outputs has no `name`; expected {"name": "…", "value": …}'),
        ('echo; echo \'{"name":"a"}\' > OUT', 'line 1 of the outputs has no `value`; expected {"name"'),
        ('echo \'{"name":"","value":1}\' > OUT', "line 1 of the outputs has no `name`"),
        ('echo \'{"name":"a","value":NaN}\' > OUT', "line 1 of the outputs is not JSON"),
        ('echo \'{"name":"b","value":1}\' > OUT', "the output `b` (line 1) is not declared; the function declares `a`"),
        ('echo \'{"name":"a","value":"1"}\' > OUT', "the output `a` (line 1) is of type string; declared as number"),
        ("true", "the output `a` is missing; write it, or give it a default"),
        ("head -c 20000000 /dev/zero > OUT", f"the file of the outputs has more than {MAX_FILE} bytes"),
        ("rm OUT", "the command has removed a file for outputs or exports, or made it unreadable: No such file"),
        ("rm OUT; mkfifo OUT", "the command has put something else in the place of a file for outputs or exports"),
        ("rm OUT; ln -s /etc/passwd OUT", "the command has removed a file for outputs or exports, or made it"),
        ("python3 -c 'print(\"[\" * 100000)' > OUT", "line 1 of the outputs is not JSON"),
        ('echo \'{"name":"X","value":[1]}\' > EXP', "the export `X` (line 1) is of type array; expected string, num"),
        ('echo \'{"name":"A=B","value":1}\' > EXP', "the export in line 1 cannot be a variable of the environment"),
    ],
)
async def test_what_a_step_writes_is_not_trusted(project: Project, script: str, error: str) -> None:
    """Neither its form nor its size, nor that it is a file at all."""
    script = script.replace("OUT", "${{ output_file }}").replace("EXP", "${{ export_file }}")
    script = f'echo \'{{"name":"a","value":1}}\' > ${{{{ output_file }}}}; {script}' if "EXP" in error else script
    if "export_file" in script:
        script = f'echo \'{{"name":"a","value":1}}\' > ${{{{ output_file }}}}; {script}'
    command = json.dumps(["sh", "-c", script])
    result = await project.run(f"spec: {{outputs: {{a: {{type: number}}}}}}\n---\nexec: {{command: {command}}}\n")
    assert result.status is Status.FAILURE
    assert result.error
    assert result.error.startswith(error)


async def test_the_environment_has_layers(project: Project) -> None:
    """What was given, what was exported, what `env` says of functions and steps; the innermost wins."""
    export = """echo '{"name":"V","value":"${{ inputs.v }}"}' > EXP"""
    project.add_script("export", export, spec={"inputs": {"v": {"type": "string"}}})
    project.add_script("show", "echo $V")
    project.add_script("own", "echo $V", env={"V": "function ${{ env.V }}"})
    text = """
spec:
---
run:
  - {name: a, func: ./show}
  - {name: b, func: ./export, inputs: {v: exported}}
  - {name: c, func: ./show}
  - {name: d, func: ./show, env: {V: "step ${{ env.V }}"}}
  - {name: e, func: ./own, env: {V: "step"}}
  - {name: f, func: ./show}
"""
    result = await project.run(text, env={"V": "given"})
    assert result.error is None
    said = [line for line in project.lines if not line.startswith("Running")]
    assert said == ["given", "exported", "step exported", "function step", "exported"]
    assert [each.env for each in result.steps] == [{}, {}, {}, {"V": "step exported"}, {"V": "function step"}, {}]


async def test_nothing_is_inherited(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is what was given, and how much functions are to say."""
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "1")
    result = await project.run_script("env | cut -d= -f1 | sort | tr '\\n' ' '")
    assert result.status is Status.SUCCESS
    names = {*project.lines[-1].split()} - {"_", "PWD", "SHLVL", "OLDPWD"}  # which shells add
    assert names == {*ENV, "CI_STEPS_LOG_LEVEL"}


async def test_secrets_are_shown_nowhere(project: Project) -> None:
    """Sensitive inputs and outputs, masked variables, and texts that were made of them; steps get them whole."""
    (project.directory / "key").write_text("sesame-open")
    project.add_script(
        "login",
        "test $PASSWORD = hunter2hunter2 || exit 1; key=$(cat key); echo $PASSWORD;"
        """printf '{"name":"key","value":"%s"}' $key > OUT; printf '{"name":"K","value":"k %s"}' $key > EXP""",
        spec={
            "inputs": {"password": {"type": "string", "sensitive": True}},
            "outputs": {"key": {"type": "string", "sensitive": True}},
        },
        env={"PASSWORD": "${{ inputs.password }}"},
    )
    text = """
- {name: login, func: ./login, inputs: {password: "${{ vars.PASSWORD }}"}}
- name: use
  func: ./echo
  inputs: {message: "key=${{ steps.login.outputs.key }}"}
- name: fail
  script: exit ${{ num(vars.PASSWORD) }}
"""
    variables = [Variable(key="PASSWORD", value="hunter2hunter2", is_masked=True), Variable(key="OPEN", value="open")]
    result = await project.run(text, variables=variables)
    assert "key=[MASKED]" in project.lines
    assert "sesame" not in project.log.decode()
    shown = json.dumps([each.as_dict() for each in (result, *project.trees)]) + repr(result) + repr(variables)
    assert "hunter2" not in shown + project.log.decode()
    assert "sesame" not in shown
    login, use, fail = result.steps
    assert login.exports == {"K": "k [MASKED]"}
    assert (login.inputs, login.env, login.outputs) == (
        {"password": "[MASKED]"},
        {"PASSWORD": "[MASKED]"},
        {"key": "[MASKED]"},
    )
    assert use.inputs == {"message": "key=[MASKED]"}
    assert use.command[-1] == "key=[MASKED]"
    assert fail.error == "`num` needs a string with a number in it; found a string: `[MASKED]`"


async def test_equal_runs_have_equal_results(project: Project) -> None:
    """Apart from the times: not even the names of files are others."""
    text = "- {name: a, func: ./echo, inputs: {message: hello}}\n- {name: b, script: 'echo ${{ output_file }}'}\n"
    first = await project.run(text)
    second = await project.run(text)
    assert first.as_dict(times=False) == second.as_dict(times=False)
    assert first.without_times() == second.without_times()
    assert first.started
    assert first.ended


async def test_what_commands_use_is_counted(project: Project) -> None:
    """Of each, with all that it has waited for; functions have the sum, and the peak."""
    project.add_script("busy", f"{sys.executable} -c '[i * i for i in range(1 << 20)]'; true")
    project.add("outer", "spec:\n---\nrun:\n  - {name: idle, script: 'true'}\n  - {name: busy, func: ../busy}\n")
    result = await project.run("- {name: outer, func: ./outer}\n")
    assert result.error is None
    idle, busy = (each.resources for each in result.steps[0].steps)
    assert idle
    assert busy
    assert busy.cpu_seconds > idle.cpu_seconds
    assert busy.peak_memory > 0
    assert result.resources == Resources.of_all([idle, busy])
    assert result.as_dict()["resources"]["peak_memory"] == max(idle.peak_memory, busy.peak_memory)
    assert StepResult.from_dict(result.as_dict()) == result


async def test_variables_that_are_files_are_files(project: Project) -> None:
    """Expressions have the path, which only the user of the steps can read; none is left over."""
    variables = [Variable(key="CERT", value="content", is_file=True), Variable(key="../a b", value="odd", is_file=True)]
    script = 'stat -c %a ${{ vars.CERT }}; cat ${{ vars.CERT }} "${{ vars["../a b"] }}"; echo; echo ${{ job.CERT }}'
    result = await project.run_script(script, variables=variables)
    assert result.error is None
    assert project.lines[1:3] == ["600", "contentodd"]
    assert project.lines[3].endswith("/CERT")
    assert not await anyio.Path(project.lines[3]).exists()


async def test_a_cancelled_run_takes_all_processes_along(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the command has started too, and those that ignore SIGTERM; what is over stays in the tree."""
    monkeypatch.setattr("job_steps._process.GRACE", 0.1)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    text = f"""
- {{name: before, script: "true"}}
- name: hangs
  script: trap '' TERM; sh -c 'trap "" TERM; echo $$ > {fifo}; exec sleep 1000' & wait; sleep 1000
"""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(project.run, text)
        child = os.pidfd_open(int(await anyio.to_thread.run_sync(fifo.read_text)))
        tasks.cancel_scope.cancel()
    await anyio.wait_readable(child)  # it has ended
    os.close(child)
    tree = project.trees[-1]
    assert [tree.status, *(each.status for each in tree.steps)] == [
        Status.CANCELLED,
        Status.SUCCESS,
        Status.CANCELLED,
    ]


async def test_time_is_up_for_all_steps_together(project: Project) -> None:
    """The result says so; nothing is raised."""
    result = await project.run_script("sleep 1000", timeout=0.1)
    assert (result.status, result.error) == (Status.CANCELLED, "the steps took longer than 0.1 seconds")
    assert [each.status for each in result.steps] == [Status.CANCELLED]


async def test_what_stays_in_the_background_does_not_hold_the_run_up(project: Project) -> None:
    """All that the command has printed is there, and nobody waits for what it has left running."""
    result = await project.run_script("sleep 100 & echo $!; seq 20000")
    assert result.status is Status.SUCCESS
    assert project.lines[2:] == [str(number) for number in range(1, 20001)]
    os.kill(int(project.lines[1]), signal.SIGKILL)


async def test_a_log_that_takes_no_more_ends_the_run(project: Project) -> None:
    """What it raises comes out, alone, and the command is gone."""

    async def full(data: bytes) -> None:
        if b"Running" not in data:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        await run_steps(
            read_steps("- {name: a, script: yes}"),
            directory=project.directory,
            env=ENV,
            log=full,
            on_result=project.trees.append,
        )
    assert project.trees[-1].status is Status.CANCELLED


async def test_every_step_is_asked_for_before_it_is_loaded(project: Project) -> None:
    """With its path in the tree, and where its list comes from; who forbids one says why, in the result."""
    project.add("outer", "spec:\n---\nrun:\n  - {name: in, func: ../echo, inputs: {message: hi}}\n")
    asked: list[tuple[str, str, str]] = []

    def admit(step: Step, path: tuple[str, ...], origin: Origin) -> None:
        asked.append(("/".join(path), str(step.reference), origin.kind))
        if step.script:
            raise StepRefused(rule="scripts", why="scripts are not allowed")

    text = "- {name: a, func: './${{ vars.DIR }}'}\n- {name: b, script: 'echo no'}\n"
    result = await project.run(text, variables=[Variable(key="DIR", value="outer")], admit=admit)
    assert asked == [("a", "./outer", "job"), ("a/in", "../echo", "job"), ("b", "script", "job")]
    assert result.error == "step `b`: scripts are not allowed (rule `scripts`)"
    assert "no" not in project.lines


async def test_each_command_has_its_moments(project: Project) -> None:
    """Before, and after it or when it fails: with what is known of the step then, and its real environment."""
    seen: list[tuple[str, str, int | None, object, str]] = []

    async def at(moment: Moment) -> Decision:
        await anyio.lowlevel.checkpoint()
        result = moment.result
        seen.append(("/".join(moment.path), moment.when.value, result.exit_code, result.outputs, moment.env["V"]))
        return Decision.CONTINUE

    project.add("outer", "spec:\n---\nrun: [{name: in, func: ../echo, inputs: {message: hi}}]\n")
    text = "- {name: a, func: ./outer, env: {V: '${{ vars.V }}'}}\n- {name: b, script: exit 3, env: {V: b}}\n"
    result = await project.run(text, variables=[Variable(key="V", value="hidden-value", is_masked=True)], at=at)
    assert result.status is Status.FAILURE
    assert seen == [
        ("a/in", "before", None, {}, "hidden-value"),
        ("a/in", "after", 0, {"message": "hi"}, "hidden-value"),
        ("b", "before", None, {}, "b"),
        ("b", "failure", 3, {}, "b"),
    ]


async def test_a_function_that_calls_itself_is_refused(project: Project) -> None:
    """At once if it always does, at a depth where it may end one day."""
    project.add("a", "spec:\n---\nrun:\n  - {name: b, func: ../b}\n")
    project.add("b", "spec:\n---\nrun:\n  - {name: a, func: ../a}\n")
    result = await project.run("- {name: a, func: ./a}\n")
    assert result.error
    way = "(./a → ../b → ../a)"
    assert result.error.endswith(f"`../a` is a function that is running already {way}; it would call itself for ever")
    project.add(
        "c",
        "spec: {inputs: {next: {type: string}}}\n---\nrun:\n  - {name: c, func: '${{ inputs.next }}', "
        "inputs: {next: '${{ inputs.next }}'}}\n",
    )
    result = await project.run(f"- {{name: c, func: ./c, inputs: {{next: {project.directory}/c}}}}\n")
    assert result.error
    assert result.error.endswith("more than 32 levels of functions that call functions")


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("{func: ./nowhere}", "there is no directory `DIR/nowhere`, which should have the function"),
        ("{func: ./echo/other.yml}", "there is no `other.yml` in `DIR/echo`"),
        ("{func: ./bad}", "DIR/bad/func.yml:3: unknown key `exek` in the second document; did you mean `exec`?"),
        ("{func: ./latin}", "`DIR/latin/func.yml` is not text in UTF-8 (byte 9)"),
        ("{func: ./pipe}", "`DIR/pipe/func.yml` is not a file"),
        ("{func: ./echo}", "the input `message` is missing; the function needs it"),
        ("{func: ./echo, inputs: {mesage: a}}", "there is no input `mesage`; did you mean `message`?"),
        ("{func: ./echo, inputs: {message: '${{ env.NO }}'}}", "there is no `NO` in `env`"),
        ("{func: '${{ env.PATH }}'}", "there is no directory `/"),
        ("{func: 'nowhere${{ 1 }}'}", "`nowhere1` is not a reference to a function; expected a path"),
        ("{func: builtin://magic}", "there is no built-in function `magic`; there is `script`"),
        ("{func: r.io/x/y:1}", "r.io/x/y:1 is an image, and those cannot be fetched here; expected a directory or git"),
    ],
)
async def test_a_step_that_cannot_be_loaded_fails(project: Project, step: str, error: str) -> None:
    """The result says which, and why."""
    project.add("bad", "spec:\n---\nexek: {}\n")
    project.add("latin", "")
    (project.directory / "latin" / "func.yml").write_bytes(b"spec: {} \xe4")
    (project.directory / "pipe").mkdir()
    os.mkfifo(project.directory / "pipe" / "func.yml")
    result = await project.run(f"- {{name: s, {step[1:]}\n")
    assert result.status is Status.FAILURE
    assert [each.name for each in result.steps] == ["s"]
    assert result.steps[0].error
    assert result.steps[0].error.startswith(error.replace("DIR", str(project.directory)))


async def test_outputs_can_be_delegated(project: Project) -> None:
    """To a step, or to a result that a command writes; what is sensitive stays so."""
    project.add(
        "by_step",
        "spec: {outputs: delegate}\n---\nrun:\n  - {name: e, func: ../echo, inputs: {message: hi}}\ndelegate: e\n",
    )
    written = json.dumps({"status": "success", "outputs": {"a": [1, {"b": 2}]}})
    command = json.dumps(["sh", "-c", f"echo '{written}' > ${{{{ output_file }}}}"])
    project.add("by_file", f"spec: {{outputs: delegate}}\n---\nexec: {{command: {command}}}\n")
    project.add("badly", "spec: {outputs: delegate}\n---\nexec: {command: ['true']}\n")
    text = "- {name: a, func: ./by_step}\n- {name: b, func: ./by_file}\n- {name: c, func: ./badly}\n"
    result = await project.run(text)
    assert [each.outputs for each in result.steps] == [{"message": "hi"}, {"a": [1, {"b": 2}]}, {}]
    assert result.error == "step `c`: the outputs are delegated, and the output file has no result of a step"
