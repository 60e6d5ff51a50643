"""Jobs files whose jobs are steps: what is read, and what is said of mistakes before there is an instance."""

import io
from pathlib import Path

import pytest

from fleeting import ConfigError
from job_steps.executor import StepsOptions
from taskscaler._jobsfile import read_jobs_file
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
    "jobs[0].options.steps (job \"a\"): the policy's commits refuses the step 'greet': expected a whole commit as the"
    " version, found https://gitlab.com/steps/greet@v1; change the step, or commits in [executors.steps.policy] if it"
    " is to be allowed"
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
        ('step = "./greet"', 'step = "nowhere"', "refers to nothing"),
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
    for nothing in ('{"name": "x", "options": {}}', '{"name": "x"}', '{"options": {"steps": {}}, "executor": "steps"}'):
        with pytest.raises(ConfigError, match="it has nothing to run; give `script` or `command`"):
            read(f"{nothing}\n")
