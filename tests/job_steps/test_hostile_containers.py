"""Containers whose agent lies, and engines that hang or warn: each ends its own step at most, at a bounded cost."""

import json
import os
import signal
from pathlib import Path

import anyio
import pytest

from job_steps import Status, StepResult, Variable, _containers
from job_steps._agent import _service
from job_steps._agent._job import KeptJob
from job_steps._agent._running import Rules
from job_steps._agent._service import Service
from job_steps._containers import remove_containers
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
        result = await bench.project.run(STEP, delegation=bench.delegation())
        assert result.status is Status.SUCCESS
        assert len(bench.containers) == 1
    finally:
        os.killpg(int((tmp_path / "process").read_text()), signal.SIGKILL)


async def test_an_engine_that_hangs_keeps_no_agent_from_listening(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many jobs had containers when the agent before was killed; they are lost, and can be closed."""
    monkeypatch.setattr(_service, "REMOVE_TIMEOUT", 0.1)
    (tmp_path / "jobs").mkdir()
    for number in range(20):
        job = KeptJob.begin(tmp_path / "jobs", str(number))
        job.note.touch()
        job.log.close()
    (bench.engine / "hangs").touch()
    async with anyio.create_task_group() as tasks:
        service = Service(tmp_path / "jobs", tasks, Rules())
        await service.take_over()
        assert service.running == 0


def lie(bench: Bench, *messages: object) -> None:
    """Have an image whose agent says this, whatever it is asked, and then waits."""
    said = bench.engine / "said"
    said.write_text("".join(f"{json.dumps(each)}\n" for each in messages))
    bench.image("x", f"cat {said}; cat > {bench.engine}/heard")


def tree(status: str = "success", **more: object) -> dict[str, object]:
    """Return a result as agents say it."""
    return {"name": "x", "status": status, **more}


def deep(levels: int) -> dict[str, object]:
    """Return a result with so many levels below it."""
    found = tree()
    for _ in range(levels):
        found = tree(steps=[found])
    return found


def nested(levels: int) -> object:
    """Return a list in lists."""
    found: object = []
    for _ in range(levels):
        found = [found]
    return found


NONSENSE = "what runs in the container says something that no agent says: "


@pytest.mark.parametrize("kind", ["tree", "end"])
@pytest.mark.parametrize(
    ("said", "error"),
    [
        (deep(32), "what runs in the container reports more than 31 levels of steps"),
        (tree(steps=[tree()] * 10_000), "what runs in the container reports more than 9999 steps"),
        (tree(steps=[tree(error="x" * (5 << 20))]), "a value that is too big; at most"),
        (tree(reference="x" * (5 << 20)), "a value that is too big; at most"),
        (tree(steps=[tree(name="x" * 100_000)] * 161), "of all steps are too much together; at most 400000 parts"),
        (
            tree(inputs={"x": nested(70)}),
            NONSENSE + "ResultInvalid: not the result of steps: ValueError: more than 64",
        ),
        (tree(exit_code=256), NONSENSE + "ResultInvalid: not the result of steps: ValueError: 256, which nothing can"),
        (tree(outputs={"x": [[]] * 500_000}), NONSENSE + "b'{"),
    ],
)
async def test_no_tree_from_a_container_spoils_that_of_the_job(
    bench: Bench, kind: str, said: dict[str, object], error: str
) -> None:
    """Whoever reads the results of the job reads them all, or nothing: what goes beyond a run's limits is refused."""
    lie(bench, {"tree": said} if kind == "tree" else {"end": {"tree": said}})
    result = await bench.run(f"- {{name: first, script: echo}}\n{STEP}")
    assert error in str(result.error)
    assert [each.status for each in result.steps] == [Status.SUCCESS, Status.FAILURE]
    assert StepResult.from_dict(result.as_dict()) == result
    assert len(json.dumps(result.as_dict())) < 100_000


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"outputs": {"struct": {"x": nested(900)}}}, NONSENSE + "ValueError: more than 64 levels of lists"),
        ({"secrets": {"a": "b"}}, NONSENSE + "TypeError: secrets that are no list of strings"),
        ({"secrets": ["12345678 " + str(number) for number in range(100_000)]}, "more than 2000 lines that are to be"),
        ({"exports": {str(number): "" for number in range(500_000)}}, "are too much together; at most 400000 parts"),
        ({"tree": tree(steps=[tree("running")])}, "reports a success with steps that have not succeeded"),
    ],
)
async def test_what_comes_back_from_a_container_is_bounded(bench: Bench, said: dict[str, object], error: str) -> None:
    """An end that is none fails its step, and the agent has no error of its own."""
    lie(bench, {"end": {"tree": tree(), **said}})
    result = await bench.run(STEP)
    assert error in str(result.error)
    assert result.at(("s",)).status is Status.FAILURE


async def test_what_a_container_tells_of_is_masked_and_happened_while_it_ran(bench: Bench) -> None:
    """Wherever in the tree it puts a secret, and whatever its clock says."""
    secret = "hunter2hunter2"
    inner = tree(reference=secret, container=secret, work_dir=secret, started=5.0, ended=9e9, error=secret)
    named = {secret: {secret: [secret]}}
    inner |= {"name": secret, "inputs": named, "outputs": named, "env": {secret: secret}, "exports": {secret: secret}}
    lie(bench, {"end": {"tree": tree(steps=[inner], ended=9e9), "outputs": {"struct": {"text": secret}}}})
    variables = [Variable(key="V", value=secret, is_masked=True)]
    result = await bench.run(STEP, variables=variables)
    assert result.status is Status.SUCCESS, result.error
    assert secret not in json.dumps(result.as_dict())
    for _, each in result.walk():
        assert result.started is not None
        assert result.ended is not None
        assert result.started <= (each.started or result.started) <= (each.ended or result.ended) <= result.ended


async def test_what_a_container_passes_on_cannot_be_too_deep_to_be_written(bench: Bench) -> None:
    """What was read just so, and is to be written from farther down, is an error of the step."""
    for levels in (*range(300, 1000, 50), 10_000, 90_000):
        line = '{"to":{"a":' + "[" * levels + "]" * levels + "}}"
        (bench.engine / "said").write_text(f'{{"open":{{"image":"test/a","path":[]}}}}\n{line}\n')
        bench.image(
            "x", f"read -r request; head -n 1 {bench.engine}/said; read -r opened; tail -n 1 {bench.engine}/said"
        )
        result = await bench.run(STEP)
        assert result.error is not None
        assert result.error.startswith("step `s`: "), levels


async def test_more_than_a_message_has_room_for_is_named(bench: Bench) -> None:
    """Before there is a container, which would hear half of it."""
    variables = [Variable(key=f"V{number}", value="x" * (4 << 20)) for number in range(4)]
    result = await bench.run("- {name: s, script: echo, container: test/a}\n", variables=variables)
    assert "what goes along into the container has 167" in str(result.error)
    assert "at most 16777216 do" in str(result.error)
    assert not (bench.engine / "made").exists()


async def test_what_is_for_a_container_that_has_just_ended_is_passed_over(bench: Bench) -> None:
    """Its agent did not know yet: it hears the reason, and that is what the step says."""
    bench.image("dead", "exit 9")
    ask = json.dumps({"open": {"image": "test/dead", "path": ["s", "t"]}})
    script = f"read -r request; echo '{ask}'; read -r opened; read -r closed; echo '{{\"to\":{{}}}}'"
    bench.image("x", f'{script}; echo "$closed" > {bench.engine}/closed; exit 8')
    result = await bench.run(STEP)
    assert "ended before its steps had (exit status 8)" in str(result.error)
    assert "ended before its steps had (exit status 9)" in (bench.engine / "closed").read_text()
