"""The command `job-steps`: what people type, what they see, and how it ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from job_steps import StepResult
from job_steps.cli import main

GREET = """
spec:
  inputs:
    name: {type: string}
    times: {type: number, default: 1}
    loud: {type: boolean, default: false}
    more: {type: array, default: []}
    about: {type: struct, default: {}}
  outputs:
    greeted: {type: string}
---
exec:
  command:
    - sh
    - -c
    - |
      echo "hello $1 ${{ inputs.times }} ${{ inputs.loud }} $GREETING $PWD"
      test "$1" != nobody || exit 3
      printf '{"name":"greeted","value":"%s"}' "$1" > ${{ output_file }}
    - sh
    - ${{ inputs.name }}
"""

SHOW = "spec:\n---\nexec: {command: [echo, '${{ vars.CI_X }}']}\n"

TESTS = """
- name: greets
  inputs: {name: Sally, times: 2}
  env: {GREETING: hi}
  expect:
    outputs: {greeted: Sally}
    log: [hello Sally 2, false hi /]
- name: refuses nobody
  inputs: {name: nobody}
  expect: {status: failure, exit_code: 3, error: exit status 3}
"""

PASSED = "passed  greet: greets\npassed  greet: refuses nobody\npassed  show: shows\n3 of 3 tests passed\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that one is in, with a function in `greet`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GREETING", "mine")
    (tmp_path / "greet").mkdir()
    (tmp_path / "greet" / "func.yml").write_text(GREET)
    (tmp_path / "show").mkdir()
    (tmp_path / "show" / "step.yml").write_text(SHOW)
    (tmp_path / "show" / "step.test.yml").write_text("- {name: shows, variables: {CI_X: x}, expect: {log: x}}\n")
    return tmp_path


def job_steps(*arguments: str) -> tuple[int, str, str]:
    """Type a command; returns how it ended, and what it printed, also in error."""
    done = CliRunner().invoke(main, arguments, prog_name="job-steps")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("file", ["greet", "greet/func.yml"])
def test_a_function_is_run_with_inputs_of_their_types(place: Path, file: str) -> None:
    """Steps have the environment of whoever runs them, and run where that is."""
    code, out, err = job_steps("run", file, "--input", "name=Sally", "--input", "times=2.50", "--input", "loud=true")
    assert (code, err) == (0, "")
    assert out == f'hello Sally 2.5 true mine {place}\ngreeted = "Sally"\n'
    code, out, _ = job_steps("run", file, "--input", "name=S", "--env", "GREETING=a=b", "--work-dir", "greet")
    assert job_steps("run", "show", "--variable", "CI_X=1")[:2] == (0, "1\n")
    assert (code, out) == (0, f'hello S 1 false a=b {place}/greet\ngreeted = "S"\n')


def test_a_step_that_fails_ends_the_command_with_1(place: Path) -> None:
    """The error is one line."""
    (place / "steps.yml").write_text("- {name: a, func: ./greet, inputs: {name: nobody}}\n")
    code, out, err = job_steps("run", "steps.yml")
    assert (code, err) == (1, "error: step `a`: the command ended with exit status 3\n")
    assert out.startswith('Running step "a"\nhello nobody')


@pytest.mark.usefixtures("place")
def test_the_result_is_json_if_one_likes() -> None:
    """The log goes to standard error then."""
    code, out, err = job_steps("run", "greet", "--input", "name=ä", "--json")
    result = StepResult.from_dict(json.loads(out))
    assert (code, result.outputs, result.exit_code) == (0, {"greeted": "ä"}, 0)
    assert err.startswith("hello ä")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["run", "greet"], "error: the input `name` is missing; add --input name=VALUE"),
        (["run", "greet", "--input", "nam=a"], "error: there is no input `nam`; did you mean `name`?"),
        (["run", "greet", "--input", "name"], "error: --input name: expected NAME=VALUE"),
        (
            ["run", "greet", "--input", "times=two"],
            "error: --input times=two: the input is of type number; expected such as 3",
        ),
        (
            ["run", "greet", "--input", "loud=yes"],
            "error: --input loud=yes: the input is of type boolean; expected true or",
        ),
        (
            ["run", "greet", "--input", "more={}"],
            'error: --input more={}: the input is of type array; expected such as ["a",',
        ),
        (
            ["run", "greet", "--input", "about=[]"],
            'error: --input about=[]: the input is of type struct; expected such as {"a"',
        ),
        (
            ["run", "greet", "--input", f"more={'[' * 100000}"],
            f"error: --input more={'[' * 40}: the input is of type array; expected such",
        ),
        (["run", "."], "error: . has no func.yml and no step.yml"),
        (["run", "bad.yml"], "error: bad.yml:3: unknown key `exek` in the second document; did you mean `exec`?"),
        (["run", "/dev/null"], "error: `/dev/null` is not a file"),
        (["run", "nowhere"], "Error: Invalid value for 'FILE': Path 'nowhere' does not exist."),
        (["test", "empty"], "error: there are no tests in empty; tests of func.yml go into func.test.yml"),
        (["test", "--only", "x", "empty"], "error: there are no tests in empty; tests of"),
        (["test", "lonely"], "error: lonely/func.test.yml:1: there is no func.yml beside it, which it would test"),
        (
            ["replay", "bad.yml"],
            "error: bad.yml:1: not JSON (Expecting value); expected the JSON of a job, as GitLab's",
        ),
        (
            ["replay", "list.json"],
            "error: list.json:1: not a JSON object; expected the JSON of a job, as GitLab's `jobs/request`",
        ),
        (["replay", "script.json"], "error: script.json:1: the job has a script and no `run`; only jobs with `run`"),
        (["replay", "steps.json"], "error: steps.json: run:1: unknown key `scrip` in a step; did you mean `script`?"),
        (["replay", "keyless.json"], "error: keyless.json:1: one of the `variables` is not an object with `key`"),
        (["replay", "number.json"], "error: number.json:1: one of the `variables` is not an object with `key`"),
    ],
)
def test_bad_arguments_and_files_end_with_2(place: Path, arguments: list[str], error: str) -> None:
    """One line says what is there, and what was expected; no traceback."""
    (place / "bad.yml").write_text("spec:\n---\nexek: {}\n")
    (place / "empty").mkdir()
    (place / "lonely").mkdir()
    (place / "lonely" / "func.test.yml").write_text("- name: a\n")
    payloads = {
        "list": [],
        "script": {"id": 1, "steps": [{"name": "script", "script": ["true"]}]},
        "steps": {"id": 1, "run": '[{"name": "a", "scrip": "b"}]'},
        "keyless": {"id": 1, "run": "[]", "variables": [{"value": "a"}]},
        "number": {"id": 1, "run": "[]", "variables": [{"key": "a", "value": 1}]},
    }
    for name, payload in payloads.items():
        (place / f"{name}.json").write_text(json.dumps(payload))
    code, out, err = job_steps(*arguments)
    assert (code, out) == (2, "")
    assert error in err
    assert "Traceback" not in err


def test_tests_beside_a_function_are_run(place: Path) -> None:
    """Each in a directory of its own, without the environment of whoever runs them."""
    (place / "greet" / "func.test.yml").write_text(TESTS)
    code, out, err = job_steps("test")
    assert (code, out, err) == (0, PASSED, "")
    code, out, _ = job_steps("test", "greet", "--only", "nobody", "--json")
    told = json.loads(out)
    assert (code, told["name"], told["differences"]) == (0, "refuses nobody", [])
    assert StepResult.from_dict(told["result"]).exit_code == 3
    assert "mine" not in told["log"]
    assert str(place) not in told["log"]


def test_a_test_that_does_not_pass_says_why(place: Path) -> None:
    """All that is not as expected, where the test is, and what was printed, without what controls terminals."""
    (place / "greet" / "func.test.yml").write_text(r"""
- name: wrong
  inputs: {name: S}
  env: {GREETING: "\e[1m"}
  files: {a/b.txt: content}
  expect:
    status: failure
    outputs: {greeted: Sally, other: 1}
    exports: {FOO: bar}
    error: no such thing
    exit_code: 1
    log: not there
""")
    code, out, _ = job_steps("test", "greet")
    assert code == 1
    lines = out.splitlines()
    assert lines[:8] == [
        "failed  greet: wrong",
        "        status: expected failure, found success",
        '        outputs: `greeted`: expected "Sally", found "S"',
        "        outputs: `other`: expected 1, found none",
        '        exports: `FOO`: expected "bar", found none',
        '        error: expected "no such thing" in it, found none',
        "        exit_code: expected 1, found 0",
        '        log: expected "not there" in it',
    ]
    assert lines[8] == "        greet/func.test.yml:2"
    assert lines[9].startswith("        | hello S 1 false \ufffd[1m /")
    assert lines[-1] == "0 of 1 test passed"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "1: expected one document, a list of tests that each have a `name`"),
        ("a: 1", "1: expected one document, a list of tests that each have a `name`"),
        ("- a", "1: `a` as a test; expected keys and values"),
        ("- {inputs: {}}", "1: a test has no `name`"),
        ("- {name: a, expects: {}}", "1: unknown key `expects` in a test; did you mean `expect`?"),
        ("- {name: a}\n- {name: a}", "2: a second test is called `a`"),
        ("- {name: a, expect: {status: ok}}", "1: `ok` as `status` of test `a`; expected `success` or `failure`"),
        ("- {name: a, expect: {exit_code: true}}", "1: `exit_code` of test `a` is not a whole number"),
        ("- {name: a, files: {../b: c}}", "1: `../b` in `files` of test `a` leads out of the test's directory"),
        ("- {name: a, files: {/b: c}}", "1: `/b` in `files` of test `a` leads out of the test's directory"),
        ("- {name: a, env: {B: [c]}}", "1: a list as `B` in `env` of test `a`; expected a string"),
    ],
)
def test_a_file_of_tests_is_read_as_strictly_as_steps(place: Path, text: str, error: str) -> None:
    """The error names the line."""
    (place / "greet" / "func.test.yml").write_text(text)
    assert job_steps("test", ".") == (2, "", f"error: greet/func.test.yml:{error}\n")


def test_a_job_is_replayed_with_its_variables(place: Path) -> None:
    """As a runner gets it from GitLab; what is given here goes before what the job has."""
    steps = [
        {"name": "a", "step": "./greet", "inputs": {"name": "${{ vars.WHO }}"}},
        {"name": "b", "script": "cat ${{ job.CERT }}; echo; echo ${{ job.CI_PROJECT_DIR }} ${{ job.SECRET }}"},
    ]
    variables = [
        {"key": "WHO", "value": "Patrick", "public": True, "file": False, "masked": False},
        {"key": "CERT", "value": "certificate", "file": True},
        {"key": "SECRET", "value": "s3cr3ts3cr3t", "masked": True},
    ]
    payload = {"id": 17, "token": "glcbt-x", "run": json.dumps(steps), "variables": variables, "steps": None}
    (place / "job.json").write_text(json.dumps(payload))
    code, out, err = job_steps("replay", "job.json", "--json", "--variable", "WHO=Sally")
    assert code == 0
    assert err.splitlines() == [
        'Running step "a"',
        f"hello Sally 1 false mine {place}",
        'Running step "b"',
        "certificate",
        f"{place} [MASKED]",
    ]
    assert "s3cr3t" not in out
    assert json.loads(out)["steps"][1]["command"][-1].endswith("[MASKED]")


def test_a_replayed_job_has_its_variables_in_the_environment(place: Path) -> None:
    """As a runner has it: those that are files as paths, and what is given here before all else."""
    script = "echo $WHO $HOW $(cat $CERT) $(stat -c %a $CERT) $CI_PROJECT_DIR"
    variables = [
        {"key": "WHO", "value": "Patrick"},
        {"key": "HOW", "value": "well"},
        {"key": "CERT", "value": "certificate", "file": True},
        {"key": "a=b", "value": "which no environment can have"},
    ]
    payload = {"run": [{"name": "a", "script": script}], "variables": variables}
    (place / "job.json").write_text(json.dumps(payload))
    code, out, _ = job_steps("replay", "job.json", "--variable", "WHO=Sally", "--env", "HOW=badly")
    assert (code, out) == (0, f'Running step "a"\nSally badly certificate 600 {place}\n')


BATCH = """
[defaults]
executor = "steps"
env = { WHO = "Patrick", HOW = "well" }

[executors.steps.policy]
allowed_paths = ["greet"]

[[executors.steps.policy.before]]
name = "scan"
script = "echo scanned"

[[jobs]]
name = "listed"
env = { HOW = "badly" }
options.steps.file = "ci.yml"

[[jobs]]
name = "script"
script = "#!/bin/sh -e\\necho $0 $WHO '${{ none }}'"

[[jobs]]
name = "one"
options.steps = { step = "./greet", inputs = { name = "Sally" } }

[[jobs]]
name = "refused"
options.steps.step = "./show"

[[jobs]]
name = "several"
script = "true"
matrix = { a = [1, 2] }

[[jobs]]
name = "other"
executor = "instance"
script = "true"

[[jobs]]
name = "wrong"
options.steps.stepz = "./show"
"""


def test_a_job_of_a_batch_is_replayed(place: Path) -> None:
    """With its environment, what the policy adds, and a script as the file that it is there."""
    (place / "jobs.toml").write_text(BATCH)
    (place / "ci.yml").write_text("- {name: a, script: 'echo $WHO $HOW ${{ env.TASKSCALER_JOB_NAME }}'}\n")
    code, out, _ = job_steps("replay", "jobs.toml", "--job", "listed", "--env", "WHO=Sally")
    assert (code, out) == (0, 'Running step "scan"\nscanned\nRunning step "a"\nSally badly listed\n')
    code, out, _ = job_steps("replay", "jobs.toml", "--job", "script")
    assert (code, out.splitlines()[-1]) == (0, f"{place / '.job-script'} Patrick ${{{{ none }}}}")
    assert not (place / ".job-script").exists()
    code, out, _ = job_steps("replay", "jobs.toml", "--job", "one")
    assert (code, out.splitlines()[-1]) == (0, f"hello Sally 1 false mine {place}")


@pytest.mark.parametrize(
    ("job", "error"),
    [
        ("", "jobs.toml is a jobs file; name one of its jobs with --job: `listed`, `script`, `one`"),
        ("lsted", "jobs.toml has no job `lsted`; did you mean `listed`?"),
        ("refused", "the policy's `allowed_paths` refuses the step `step`: expected greet, found show"),
        ("several", "the job `several` has `matrix`, so it is several; they cannot be replayed"),
        ("other", "the job `other` has the executor instance; only those of `steps` can be replayed"),
        (
            "wrong",
            "jobs.toml: the job `wrong` cannot be read: unknown key `stepz` in [options.steps] (known keys: steps,",
        ),
    ],
)
def test_a_job_of_a_batch_that_cannot_be_replayed(place: Path, job: str, error: str) -> None:
    """One line says why, and what to do."""
    (place / "jobs.toml").write_text(BATCH)
    code, out, err = job_steps("replay", "jobs.toml", *(["--job", job] if job else []))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {error}"), err


def test_what_a_script_would_lose_is_said(place: Path) -> None:
    """It has no outputs and exports, in GitLab neither, and nothing else would tell."""
    (place / "steps.yml").write_text(
        "- {name: a, script: 'echo {} > ${{ export_file }}'}\n- {name: b, script: 'true'}\n"
    )
    code, _, err = job_steps("run", "steps.yml")
    said = "what the script of step `a` writes to `export_file` is lost: a script has no exports"
    assert (code, err) == (0, f"hint: {said}; write a function with `exec` for them\n")


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("time", "code"), [("60", 0), ("2m", 0), ("0.5h", 0), ("5x", 2), ("0", 2), ("-1", 2), ("", 2)])
def test_a_time_limit_is_seconds_or_has_a_unit(time: str, code: int) -> None:
    """Others are refused with examples."""
    found, _, err = job_steps("run", "greet", "--input", "name=a", "--timeout", time)
    assert found == code
    assert ("is not a time; expected one such as 30s, 10m or 2h" in err) is bool(code)


SHELL = next(name for name in ("/usr/local/bin/bash", "/usr/bin/bash", "/bin/bash", "/bin/sh") if Path(name).exists())
"""What scripts run in here."""

BROKEN = """
- name: login
  func: ./login
  inputs: {token: "${{ vars.TOKEN }}"}
- name: bang
  script: echo made > here; exit 7
"""

LOGIN = """
spec: {inputs: {token: {type: string, sensitive: true}}, outputs: {key: {type: string}}}
---
env: {TOKEN: "${{ inputs.token }}"}
exec: {command: [sh, -c, 'echo in; cp key ${{ output_file }}']}
"""


def at_breakpoints(place: Path, typed: str, *options: str) -> tuple[int, list[str], str]:
    """Run steps that stop, and type something; returns how it ended, and what was printed, also in error."""
    (place / "login").mkdir()
    (place / "login" / "func.yml").write_text(LOGIN)
    (place / "key").write_text('{"name":"key","value":"k1"}')
    (place / "steps.yml").write_text(BROKEN)
    arguments = ["run", "steps.yml", "--variable", "TOKEN=hunter2hunter2", *options]
    done = CliRunner().invoke(main, arguments, input=typed, env={"SHELL": "/bin/sh"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, done.stdout.splitlines(), done.stderr


def test_a_run_stops_at_breakpoints(place: Path) -> None:
    """Before a step and if it fails, or at one moment; secrets are masked, and what is typed wrongly is said."""
    typed = "help\ninputs\nenv\noutputs\ncommand\nnonsense\n\nc\noutputs\ncontinue\ncontinue\ncommand\ncontinue\n"
    code, out, err = at_breakpoints(place, typed, "--break", "log*:before", "--break", "login:after", "--break", "bang")
    assert code == 1
    assert out == [
        'Running step "login"',
        "before login; `help` for commands",
        "(job-steps) inputs, env, outputs   show what the step has, with secrets masked",
        "command                show what runs, and where",
        "shell                  open a shell in the step's directory, with its environment, unmasked",
        "continue, abort        go on, or cancel the run",
        '(job-steps) token = "[MASKED]"',
        '(job-steps) TOKEN = "[MASKED]"',
        "(job-steps) no outputs",
        "(job-steps) sh -c 'echo in; cp key ${{ output_file }}'",
        f"in {place}",
        "(job-steps) `nonsense` is not a command; `help` shows those there are",
        "(job-steps) (job-steps) in",
        "after login; `help` for commands",
        '(job-steps) key = "k1"',
        '(job-steps) Running step "bang"',
        "before bang; `help` for commands",
        "(job-steps) failed: bang (exit status 7); `help` for commands",
        f"(job-steps) {SHELL} -c 'echo made > here; exit 7'",
        f"in {place}",
        "(job-steps) ",
    ]
    assert err == "error: step `bang`: the command ended with exit status 7\n"


def test_a_run_is_aborted_at_a_breakpoint(place: Path) -> None:
    """The step does not run, and the result is cancelled."""
    code, out, err = at_breakpoints(place, "abort\n", "--break", "bang:before", "--json")
    result = StepResult.from_dict(json.loads(out[0]))
    assert (code, result.status.value, result.error) == (1, "cancelled", "aborted before bang")
    assert [each.status.value for each in result.steps] == ["success", "cancelled"]
    assert not (place / "here").exists()
    assert "before bang; `help` for commands\n(job-steps) " in err


def test_nobody_at_the_prompt_means_to_go_on(place: Path) -> None:
    """A script's standard input has an end."""
    code, out, _ = at_breakpoints(place, "", "--break", "login")
    assert (code, out[:3]) == (1, ['Running step "login"', "before login; `help` for commands", "(job-steps) "])


def test_breakpoints_come_from_a_file_and_a_variable_too(place: Path) -> None:
    """Beside those of the command line; a file may say how long they hold, which nobody at the prompt outlasts."""
    (place / "breakpoints.yml").write_text("breakpoints: [login:before]\nbreakpoint_timeout: 1h\n")
    options = ["--breakpoints", "breakpoints.yml", "--variable", "JOB_STEPS_BREAKPOINTS=login:after, bang:before"]
    code, out, _ = at_breakpoints(place, "c\nc\nc\nc\n", *options, "--break", "bang:failure")
    assert code == 1
    assert [line.removeprefix("(job-steps) ") for line in out if "for commands" in line] == [
        "before login; `help` for commands",
        "after login; `help` for commands",
        "before bang; `help` for commands",
        "failed: bang (exit status 7); `help` for commands",
    ]


def test_a_run_goes_on_when_nobody_decides_in_time(place: Path) -> None:
    """A terminal at which nobody types."""
    (place / "steps.yml").write_text("[{name: one, script: echo one}, {name: two, script: echo two}]")
    command = [sys.executable, "-c", "from job_steps.cli import main; main()", "run", "steps.yml", "--break", "*"]
    reading, writing = os.pipe()
    done = subprocess.run(
        [*command, "--breakpoint-timeout=0.1s"], cwd=place, stdin=reading, capture_output=True, text=True, check=False
    )
    os.close(reading)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        'Running step "one"',
        "before one; `help` for commands",
        "(job-steps) ",
        "nobody has decided in time; the run goes on, and does not stop again",
        "one",
        'Running step "two"',
        "two",
    ]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--break", "logn/x"], "--break: there is no step `logn`; did you mean `login`?"),
        (["--breakpoints", "none.yml"], "File 'none.yml' does not exist"),
        (["--breakpoints", "steps.yml"], "steps.yml:"),
        (["--break", "bang", "--breakpoint-timeout", "2d"], "--breakpoint-timeout: 2d; expected a time such as 30s"),
        (["--variable", "JOB_STEPS_BREAKPOINTS=bang:x"], "breakpoints: `bang:x`; expected STEP"),
    ],
)
def test_breakpoints_that_cannot_be_met_are_refused(place: Path, options: list[str], error: str) -> None:
    """In one sentence."""
    code, out, err = at_breakpoints(place, "", *options)
    assert (code, out) == (2, [])
    assert error in err


@pytest.mark.usefixtures("place")
def test_a_command_without_steps_has_no_name_to_stop_at() -> None:
    """Only `*` does; whoever gives it a name is told."""
    run = ("run", "greet", "--input", "name=a")
    code, _, err = job_steps(*run, "--break", "greet")
    said = "there is no step `greet`; the function is one command, and `*` stops at that"
    assert (code, err) == (0, f"a breakpoint was never met: {said}\n")
    done = CliRunner().invoke(main, [*run, "--break", "*"], input="quit\nc\n")
    assert done.stdout.startswith(
        "before the command; `help` for commands\n(job-steps) `quit` leaves a job that an agent"
    )


def test_a_breakpoint_that_was_never_met_is_said_at_the_end(place: Path) -> None:
    """A name may be that of a step of a function that is loaded later."""
    code, _, err = at_breakpoints(place, "", "--break", "logn")
    assert code == 1
    assert err.startswith("a breakpoint was never met: there is no step `logn`; did you mean `login`?\n")


@pytest.mark.parametrize("text", ["", ":before", "a:b", "a:"])
def test_a_breakpoint_that_means_nothing_is_refused(place: Path, text: str) -> None:
    """Before anything runs."""
    code, out, err = at_breakpoints(place, "", "--break", text)
    assert (code, out) == (2, [])
    assert err == f"error: --break: `{text}`; expected STEP, STEP:before, STEP:after or STEP:failure\n"


def test_a_shell_at_a_breakpoint_has_the_steps_environment(place: Path) -> None:
    """In its directory, with nothing masked; what a command that failed has left is there."""
    typed = "shell\ncontinue\n"
    (place / "login").mkdir()
    (place / "login" / "func.yml").write_text(LOGIN)
    (place / "key").write_text('{"name":"key","value":"k1"}')
    (place / "steps.yml").write_text(BROKEN)
    (place / "sh").write_text('#!/bin/sh\necho "$PWD $(cat here)"\n')
    (place / "sh").chmod(0o755)
    command = [sys.executable, "-c", "from job_steps.cli import main; main()", "run", "steps.yml"]
    options = ["--variable", "TOKEN=hunter2hunter2", "--break", "bang:failure"]
    done = subprocess.run(
        [*command, *options], cwd=place, input=typed, capture_output=True, text=True, check=False,
        env={**os.environ, "SHELL": str(place / "sh")},
    )  # fmt: skip
    assert done.returncode == 1
    assert f"{place} made\n" in done.stdout


def test_memory_is_that_of_the_biggest_process(place: Path) -> None:
    """Of a child of a child, too; the command itself has little."""
    fill = f"{sys.executable} -c 'b\"x\" * (128 << 20)'; true"
    steps = [{"name": "idle", "script": "true"}, {"name": "busy", "script": fill}]
    (place / "steps.yml").write_text(json.dumps(steps))
    command = [sys.executable, "-c", "from job_steps.cli import main; main()", "run", "--json", "steps.yml"]
    done = subprocess.run(command, cwd=place, capture_output=True, check=True)
    idle, busy = (each["resources"]["peak_memory"] for each in json.loads(done.stdout)["steps"])
    assert busy > 128 << 20 > idle > 0


def test_ctrl_c_ends_the_command_with_130(place: Path) -> None:
    """What it runs is gone then, and nothing is said of Python."""
    os.mkfifo(place / "fifo")
    (place / "steps.yml").write_text("- {name: a, script: 'echo $$ > fifo; exec sleep 1000'}\n")
    command = [sys.executable, "-c", "from job_steps.cli import main; main()", "run", "steps.yml"]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        child = os.pidfd_open(int((place / "fifo").read_text()))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, 'Running step "a"\n', "")
    with pytest.raises(ProcessLookupError):
        signal.pidfd_send_signal(child, 0)
    os.close(child)
