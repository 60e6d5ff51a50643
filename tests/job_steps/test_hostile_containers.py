"""Containers whose agent lies, and engines that hang or warn: each ends its own step at most, at a bounded cost."""

import json
import os
import signal
from pathlib import Path

import anyio
import pytest

from job_steps import Status, _containers
from job_steps._containers import remove_containers
from tests.job_steps.agents import PATIENCE
from tests.job_steps.benches import Bench

pytestmark = pytest.mark.anyio

STEP = "- {name: s, script: echo, container: test/x}\n"


async def test_what_agents_say_to_each_other_is_in_no_log_of_the_engine(bench: Bench) -> None:
    """An engine that ships the output of containers somewhere would ship what is sensitive."""
    await bench.run("- {name: s, script: echo, container: test/a}\n")
    (made,) = bench.made
    assert made["--log-driver"] == ["none"]


async def test_what_the_command_warns_of_is_no_container(bench: Bench) -> None:
    """Nor does it keep from seeing what an image is: it is all one output."""
    (bench.engine / "warns").touch()
    for name, label in (("mine", "m"), ("loading", "n")):
        record = {"process": 0, "label": f"job-steps.job={label}"}
        (bench.engine / "containers" / name).write_text(json.dumps(record))
    await remove_containers("m")
    assert bench.containers == ["loading"]
    (bench.engine / "containers" / "loading").unlink()
    bench.files("f", {"func.yml": "spec: {}\n---\nexec: {command: [echo, it runs]}\n"})
    result = await bench.run("- {name: s, func: docker.io/test/f:latest}\n")
    assert result.status is Status.SUCCESS, result.error


async def test_all_that_is_left_is_removed_however_many_there_are(bench: Bench) -> None:
    """Of a long list, the end alone is kept: nothing is taken for a container that is half of a name."""
    record = json.dumps({"process": 0, "label": "job-steps.job=m"})
    for number in range(400):
        (bench.engine / "containers" / f"left-{number}").write_text(record)
    await remove_containers("m")
    assert bench.containers == []


async def test_a_container_that_cannot_be_written_down_is_not_made(bench: Bench) -> None:
    """A job may have removed where its note should be; that is an error of its step."""
    (bench.engine / "note").symlink_to("/nonexistent/note")
    result = await bench.run("- {name: s, script: echo, container: test/a}\n")
    why = "that there is a container cannot be written down: No such file or directory"
    assert result.error == f"step `s`: {why}"


async def test_an_engine_that_removes_nothing_keeps_no_step(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its command would wait for the container for ever, and the step for that."""
    monkeypatch.setattr(_containers, "END_TIMEOUT", 0.1)
    end = json.dumps({"end": {"tree": {"name": "", "status": "success"}}})
    bench.image("x", f"trap '' TERM; echo $$ > {tmp_path}/process; echo '{end}'; while :; do sleep 1; done")
    (bench.engine / "refuses").write_text("rm")
    try:
        with anyio.fail_after(PATIENCE):
            result = await bench.project.run(STEP, delegation=bench.delegation())
        assert result.status is Status.SUCCESS
        assert len(bench.containers) == 1
    finally:
        os.killpg(int((tmp_path / "process").read_text()), signal.SIGKILL)
