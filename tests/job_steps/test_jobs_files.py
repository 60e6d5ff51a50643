"""Jobs files whose jobs are steps: what is read, and what is said of mistakes before there is an instance."""

import io
import os
from pathlib import Path

import pytest

from fleeting import ConfigError
from job_steps import read_steps
from job_steps.executor import StepsOptions
from job_steps.executor._list import steps_of
from job_steps.policy import Policy
from taskscaler._jobsfile import files_to_submit, read_jobs_file
from taskscaler._jobsfile._stream import keep
from taskscaler._jobsfile._tables import Defaults
from taskscaler.batch import Job

HEAD = """
[autoscaler]
plugin = "local"

[defaults]
executor = "steps"

[executors.steps.policy]
commits = true
timeout = "1h"
"""

STEPS = """
[[jobs]]
name = "a"

[[jobs.options.steps.steps]]
name = "build"
script = "make"
env = { CFLAGS = "-O2" }

[[jobs.options.steps.steps]]
name = "greet"
step = "./greet"
inputs = { who = "world", times = 3, loud = true }
"""


REFUSED = (
    'jobs[0].options.steps (job "a"): the policy\'s `commits` refuses the step `greet`: expected a whole commit as the'
    " version, found https://gitlab.com/steps/greet@v1; change the step, or `commits` in [executors.steps.policy] if it"
    " may run"
)


def jobs(directory: Path, *parts: str) -> list[Job]:
    """Write a file of these parts, and read its jobs."""
    path = directory / "jobs.toml"
    path.write_text("".join(parts))
    return [*read_jobs_file(path).jobs]


def problem(directory: Path, *parts: str) -> str:
    """Say what is wrong with such a file."""
    with pytest.raises(ConfigError) as caught:
        jobs(directory, *parts)
    (found,) = caught.value.problems
    return str(found)


def test_a_job_says_its_steps(tmp_path: Path) -> None:
    """It needs no script then."""
    (job,) = jobs(tmp_path, HEAD, STEPS)
    assert job.spec.script == ""
    assert isinstance(job.spec.options, StepsOptions)
    assert [step.name for step in job.spec.options.function().steps] == ["build", "greet"]


def test_steps_may_be_for_all_jobs(tmp_path: Path) -> None:
    """As options are."""
    more = '[defaults.options.steps]\nstep = "./ci"\n[[jobs]]\nname = "a"\noptions.steps.inputs = { x = 1 }\n'
    (job,) = jobs(tmp_path, HEAD, more)
    assert job.spec.options == StepsOptions(step="./ci", inputs={"x": 1})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('[[jobs]]\nname = "a"\n', 'missing key `script` in jobs[0] (job "a"), expected a string'),
        (
            STEPS.replace('name = "a"', 'name = "a"\nscript = "true"'),
            'jobs[0].script (job "a"): a script beside options that say what to run; remove one of them',
        ),
        (
            STEPS.replace('step = "./greet"', 'step = "gitlab.com/steps/greet@v1"'),
            REFUSED,
        ),
    ],
)
def test_what_is_wrong_is_said_before_there_is_an_instance(tmp_path: Path, more: str, message: str) -> None:
    """With the job, and the key."""
    assert problem(tmp_path, HEAD, more) == message


@pytest.mark.parametrize(
    ("wrong", "right", "said"),
    [
        ('script = "make"', 'srcipt = "make"', "srcipt"),
        ('step = "./greet"', 'step = "nowhere"', "is not a reference to a function"),
        ('inputs = { who = "world", times = 3, loud = true }', "inputs = 3", "inputs"),
    ],
)
def test_steps_that_cannot_be_read(tmp_path: Path, wrong: str, right: str, said: str) -> None:
    """The reader's own words, without a line that would be none of the file's."""
    found = problem(tmp_path, HEAD, STEPS.replace(wrong, right))
    assert found.startswith("jobs[0].options.steps")
    assert said in found
    assert "steps:1" not in found


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("srcipt = 1", "expected steps that can be read (unknown key `srcipt` in a step; did you mean `script`?)"),
        ('script = "true" }]\nstep = "./x"\nx = [{', "unknown key `x`"),
    ],
)
def test_a_mistake_reads_as_a_sentence(tmp_path: Path, more: str, message: str) -> None:
    """Not as the tuple that an error may be."""
    table = f'[[jobs]]\nname = "a"\n[jobs.options.steps]\nsteps = [{{ name = "x", {more} }}]\n'
    with pytest.raises(ConfigError) as caught:
        jobs(tmp_path, HEAD, table)
    assert message in str(caught.value)
    assert "('" not in str(caught.value)


FROM_FILE = '[[jobs]]\nname = "a"\noptions.steps.file = "ci/steps.yml"\n'
LISTED = "# what it does\n- {name: build, script: make, env: {VERSION: 1.10}}\n"


def test_steps_may_be_in_a_file_beside_the_jobs_file(tmp_path: Path) -> None:
    """A number stays as it was written there, since GitLab's files are read so; who submits the jobs sends it along."""
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "steps.yml").write_text(LISTED)
    (job,) = jobs(tmp_path, HEAD, FROM_FILE)
    assert job.spec.script == ""
    listed = read_steps(steps_of(job.spec, Policy()).text)
    assert [(step.name, step.env) for step in listed.steps] == [("build", {"VERSION": "1.10"})]
    (tmp_path / "submitted.toml").write_text(FROM_FILE)
    assert files_to_submit(tmp_path / "submitted.toml") == ["ci/steps.yml"]
    (tmp_path / "ci" / "steps.yml").unlink()
    with pytest.raises(ConfigError, match=r'jobs\[0\].options.steps.file \(job "a"\): "ci/steps.yml" is not a file in'):
        files_to_submit(tmp_path / "submitted.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {name: a, scrip: x}", "ci/steps.yml:1: unknown key `scrip` in a step; did you mean `script`?"),
        ("", "ci/steps.yml:1: found nothing; expected a list of steps, or a function"),
        ("[]", "ci/steps.yml has no steps; write a list of them"),
        ("spec: {inputs: {a: {type: string}}}\n---\nrun: []", "ci/steps.yml has a function, expected a list of steps;"),
        ("- {name: a, func: gitlab.com/steps/greet@v1}", "the policy's `commits` refuses the step `a`"),
        (b"\xff", '"ci/steps.yml", which is not text in UTF-8 (byte 0)'),
        (b"#" * (1 << 20) + b"##", "ci/steps.yml:1: 1048578 characters; at most"),
        (b"#" * (4 << 20) + b"#", '"ci/steps.yml", which has more than 4,194,304 bytes'),
    ],
)
def test_a_file_that_has_no_steps(tmp_path: Path, text: str | bytes, message: str) -> None:
    """The error names the job, the file and its line."""
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "steps.yml").write_bytes(text if isinstance(text, bytes) else text.encode())
    found = problem(tmp_path, HEAD, FROM_FILE)
    assert found.startswith("jobs[0].options.steps")
    assert message in found


def test_a_file_is_inside_the_directory_and_a_file(tmp_path: Path) -> None:
    """Of a batch that was submitted, somebody else has made the directory: no link leads out of it, no FIFO is read."""
    here = tmp_path / "here"
    (here / "ci").mkdir(parents=True)
    (tmp_path / "steps.yml").write_text(LISTED)
    (here / "ci" / "steps.yml").symlink_to(tmp_path / "steps.yml")
    assert f'"ci/steps.yml", which is outside {here}; name a file below it' in problem(here, HEAD, FROM_FILE)
    for path in (str(tmp_path / "steps.yml"), "../steps.yml", "ci/../../steps.yml"):
        assert "which is outside" in problem(here, HEAD, FROM_FILE.replace("ci/steps.yml", path))
    (here / "ci" / "steps.yml").unlink()
    assert "is not a readable file in" in problem(here, HEAD, FROM_FILE)
    os.mkfifo(here / "ci" / "steps.yml")
    assert '"ci/steps.yml", which is not a file' in problem(here, HEAD, FROM_FILE)


def test_a_jobs_own_policy_is_in_force_beside_the_operators(tmp_path: Path) -> None:
    """An error says whose rule it is; only rules that refuse steps can be in it."""
    own = f"{STEPS}\n[jobs.options.steps.policy]\nscripts = false\n"
    assert problem(tmp_path, HEAD, own) == (
        'jobs[0].options.steps (job "a"): `scripts` in the job\'s own policy refuses the step `build`: it is a script'
        " or a command of the job's own; change the step, or `scripts` in the job's policy"
    )
    wider = STEPS.replace('"./greet"', '"gitlab.com/steps/greet@v1"')
    assert problem(tmp_path, HEAD, f"{wider}\n[jobs.options.steps.policy]\ncommits = false\n") == REFUSED
    more = f"{STEPS}\n[jobs.options.steps.policy]\nbreakpoints = true\n"
    assert "unknown key `breakpoints`" in problem(tmp_path, HEAD, more)


def test_a_stream_has_jobs_of_steps_too(tmp_path: Path) -> None:
    """One on each line; one with nothing to run is refused."""
    line = '{"executor": "steps", "options": {"steps": {"steps": [{"name": "x", "script": "true"}]}}}\n'

    def read(text: str) -> list[Job]:
        lines, path = io.BytesIO(text.encode()), tmp_path / "jobs.jsonl"
        path.unlink(missing_ok=True)
        return [*keep(lines, None, path, defaults=Defaults(), directory=tmp_path, is_executor=lambda _: None)]

    (job,) = read(line)
    assert isinstance(job.spec.options, StepsOptions)
    assert job.spec.script == ""
    with pytest.raises(
        ConfigError, match=r"options.steps.file: .*a job on standard input has its steps in its own line"
    ):
        read('{"executor": "steps", "options": {"steps": {"file": "x.yml"}}}\n')
    for nothing in ('{"name": "x", "options": {}}', '{"name": "x"}', '{"options": {"steps": {}}, "executor": "steps"}'):
        with pytest.raises(ConfigError, match="it has nothing to run; give `script` or `command`"):
            read(f"{nothing}\n")
