"""A batch of steps as a receiver of OpenTelemetry's spans gets it, whatever becomes of the command that runs it."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from job_steps import StepResult
from taskscaler.tracing import SpanContext
from tests.taskscaler.otlp import Received, Receiver, inside, receiving
from tests.taskscaler.services import COMMAND

pytestmark = [pytest.mark.slow]

ABOVE = SpanContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, is_sampled=True)
SECRET = "s3cret-of-the-steps"

JOBS = """
[autoscaler]
plugin = "local"
update_interval_when_expecting = "20ms"
max_instances = 1
capacity_per_instance = 2
plugin_config = {{ directory = "{here}/fleet", orphan_ttl = "3m" }}
state_storage = {{ dir = "{here}/state" }}
[defaults]
executor = "steps"
[[jobs]]
name = "whole"
files = ["build"]
[[jobs.options.steps.steps]]
name = "build"
step = "./build"
inputs = {{ text = "{secret}" }}
[[jobs.options.steps.steps]]
name = "wait"
script = "touch {here}/begun; until [ -e {here}/go ]; do sleep 0.05; done"
[[jobs]]
name = "bad"
needs = ["whole"]
script = "exit 7"
"""

BUILD = """
spec:
  inputs: {text: {type: string}}
---
run:
  - {name: lint, script: "sleep 0.1; echo ${{ inputs.text }}"}
  - {name: link, script: "true"}
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with a batch of steps."""
    (tmp_path / "jobs.toml").write_text(JOBS.format(here=tmp_path, secret=SECRET))
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "step.yml").write_text(BUILD)
    return tmp_path


def run(here: Path, endpoint: str, *arguments: str) -> "subprocess.Popen[str]":
    """Run it, or go on with it."""
    named = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TRACE"))}
    return subprocess.Popen(
        [*COMMAND, "run", *arguments, "--traces"],
        cwd=here,
        env={**named, **ABOVE.env, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "HOME": str(here)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def steps_below(receiver: Receiver, span: Received) -> Iterator[tuple[str, Received]]:
    """All steps below a span, by the names that lead to them."""
    for each in receiver.below(span):
        if "taskscaler.step.path" in each.attributes:
            assert inside(each, span)
            yield str(each.attributes["taskscaler.step.path"]), each
            yield from steps_below(receiver, each)


def is_as_its_results(here: Path, receiver: Receiver, job: Received) -> None:
    """Each step of a job is a span, and says what the results say."""
    name = str(job.attributes["cicd.pipeline.task.name"])
    tree = StepResult.from_dict(json.loads((here / "out" / "artifacts" / name / "step-results.json").read_text()))
    (tried,) = [each for each in receiver.below(job) if each.name == "try"]
    (ran,) = [each for each in receiver.below(tried) if each.name == "run"]
    assert inside(tried, job)
    assert inside(ran, tried)
    spans = dict(steps_below(receiver, ran))
    steps = {"/".join(path): each for path, each in tree.walk() if path}
    assert spans.keys() == steps.keys()
    for path, step in steps.items():
        span = spans[path]
        assert step.started is not None
        assert step.ended is not None
        assert (span.began, span.ended) == (round(step.started * 1e9), round(step.ended * 1e9))
        assert "taskscaler.clock_offset" not in span.attributes
        assert (span.name, span.error) == (step.name, {"success": "", "failure": "failed"}[step.status.value])
        assert span.attributes.get("process.exit.code") == step.exit_code
        assert step.resources is not None
        assert span.attributes["taskscaler.cpu_time"] == step.resources.cpu_seconds
        assert span.attributes["taskscaler.peak_memory"] == step.resources.peak_memory


def test_a_batch_is_one_tree_though_its_command_is_killed(here: Path) -> None:
    """Jobs, tries, what ran, steps and those within them, once each; the command was killed with a job half done."""
    with receiving() as receiver:
        with run(here, receiver.url, "jobs.toml", "--output", "out") as killed:
            while not (here / "begun").exists():
                with suppress(subprocess.TimeoutExpired):
                    killed.wait(0.1)
                assert killed.returncode is None, killed.communicate()
            killed.kill()
        assert "whole" not in {each.attributes["cicd.pipeline.task.name"] for each in receiver.named("job")}
        (here / "go").touch()
        with run(here, receiver.url, "--resume", "out") as resumed:
            said, _ = resumed.communicate()
        assert resumed.returncode == 1, said  # a job has failed
    whole, bad = sorted(receiver.named("job"), key=lambda job: bool(job.error))
    assert '"event":"joined"' in (here / "out" / "events.jsonl").read_text().replace(" ", "")
    for job in (whole, bad):
        assert (job.trace, job.parent) == (f"{ABOVE.trace_id:032x}", f"{ABOVE.span_id:016x}")
    is_as_its_results(here, receiver, whole)
    is_as_its_results(here, receiver, bad)
    known = {span.id for span in receiver.spans}
    of_jobs = [span for span in receiver.spans if span.trace == whole.trace]
    assert len({span.id for span in of_jobs}) == len(of_jobs)
    assert {span.parent for span in of_jobs} <= known | {whole.parent}
    assert SECRET.encode() not in b"".join(receiver.raw)
