"""Steps in containers on a real daemon, by a real agent, whose manager tells the truth or does not."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest
from attrs import frozen

from fleeting_docker_engine import Entry, tar_of
from job_steps import StepResult
from job_steps._gate import admit_steps
from job_steps._policy import Policy, PolicyRefused, as_mapping
from job_steps.client import CallFailed, Code, RunRequest, RunState, StepRunnerClient
from tests.fleeting_docker_engine.daemons import IMAGE, Daemon
from tests.job_steps.agents import agent, log_of, log_until
from tests.job_steps.images import PYTHON_IMAGE, import_python

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("images", "nothing_left")]

OTHER = "taskscaler-test/other:1"

OUTER = f"""
spec:
  inputs: {{who: {{type: string}}}}
  outputs: {{text: {{type: string}}}}
---
run:
  - {{name: where, script: 'echo "outer is $(hostname), $MINE"; ls /var/run/docker.sock 2>&1; true'}}
  - {{name: below, func: ../inner, container: {OTHER}, inputs: {{who: "${{{{ inputs.who }}}}!"}}}}
outputs: {{text: "${{{{ steps.below.outputs.text }}}}"}}
"""
INNER = """
spec:
  inputs: {who: {type: string}}
  outputs: {text: {type: string}}
---
exec:
  command:
    - sh
    - -c
    - |
      echo "inner is $(hostname)"
      echo made > file
      echo '{"name":"text","value":"hi ${{ inputs.who }}"}' > ${{ output_file }}
"""
STEPS = f"""
{{}}
---
run:
  - {{name: build, func: ./outer, container: {PYTHON_IMAGE}, inputs: {{who: world}}}}
  - {{name: after, script: 'echo "${{{{ steps.build.outputs.text }}}}, $(cat file), by $(hostname)"'}}
"""
ONE = f"{{}}\n---\nrun:\n- {{name: direct, script: 'echo ran', container: '{OTHER}'}}\n"
ONLY_PYTHON = Policy(allowed_images=("docker.io/taskscaler-test/python",))


@frozen
class Job:
    """What jobs of these tests need."""

    directory: Path

    def request(self, name: str, steps: str = STEPS) -> RunRequest:
        """Make a request."""
        return RunRequest(id=name, steps=steps, work_dir=str(self.directory), env={"MINE": "mine"})

    def add(self, name: str, text: str) -> None:
        """Add a function."""
        (self.directory / name).mkdir(parents=True)
        (self.directory / name / "func.yml").write_text(text)


@pytest.fixture(scope="module")
def images(docker: Daemon) -> None:
    """Give the daemon an image under two names."""
    import_python(docker)
    repository, _, tag = OTHER.rpartition(":")
    docker.ask("POST", f"/images/{PYTHON_IMAGE}/tag", query={"repo": repository, "tag": tag})


@pytest.fixture
def job(docker: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Return a job with its functions."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{docker.socket}")
    job = Job(tmp_path / "job")
    job.add("outer", OUTER)
    job.add("inner", INNER)
    return job


async def tree_of(client: StepRunnerClient, name: str) -> StepResult:
    """Return how a job's steps went."""
    results = await client.results(name)
    assert results
    assert results.tree
    return StepResult.from_dict(results.tree)


async def test_a_container_step_inside_a_container_step(job: Job, placed: Path, tmp_path: Path) -> None:
    """Two containers, neither of which has the daemon's socket; one tree, one log, files of the agent's user."""
    async with agent(placed, tmp_path / "agent") as (_, client):
        await client.run(job.request("j"))
        log = (await log_of(client, "j")).decode()
        assert (await client.status("j")).state is RunState.SUCCESS, log
        tree = await tree_of(client, "j")
        await client.close("j")
    lines = log.splitlines()
    hosts = [line.split(" is ")[1].partition(",")[0] for line in lines if " is " in line]
    assert len({*hosts}) == 2
    assert f"outer is {hosts[0]}, mine" in lines
    assert "ls: /var/run/docker.sock: No such file or directory" in lines
    assert any(line.startswith("hi world!, made, by ") for line in lines)
    build = tree.at(("build",))
    below = tree.at(("build", "below"))
    assert (build.container, below.container) == (f"docker.io/{PYTHON_IMAGE}", f"docker.io/{OTHER}")
    assert (dict(build.outputs), below.exit_code) == ({"text": "hi world!"}, 0)
    assert build.resources
    assert build.resources.cpu_seconds > 0


async def test_a_policy_that_forbids_the_inner_one_refuses_it_at_both_gates(
    job: Job, placed: Path, tmp_path: Path
) -> None:
    """A manager admits no list that names it; one that lies has its list refused by the agent, and by that inside."""
    with pytest.raises(PolicyRefused, match=r"`allowed_images` refuses the step `direct`"):
        admit_steps(ONLY_PYTHON, ONE)
    assert admit_steps(ONLY_PYTHON, STEPS) == STEPS  # what a function has in it is not known before it is loaded
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps(as_mapping(ONLY_PYTHON)))
    async with agent(placed, tmp_path / "agent", options=("--policy", str(policy))) as (_, client):
        with pytest.raises(CallFailed, match=r"`allowed_images` refuses the step `direct`") as refused:
            await client.run(job.request("lie", ONE))
        assert refused.value.code is Code.PERMISSION_DENIED
        await client.run(job.request("j"))
        log = (await log_of(client, "j")).decode()
        status, tree = await client.status("j"), await tree_of(client, "j")
        await client.close("j")
    assert "outer is " in log
    assert "inner is " not in log
    assert status.state is RunState.FAILURE
    assert (
        "`allowed_images` refuses the step `build/below`: expected docker.io/taskscaler-test/python" in status.message
    )
    failed = tree.failed()
    assert failed
    assert (failed.name, failed.container) == ("below", f"docker.io/{OTHER}")


LEAK = "import time; x = bytearray(500 << 20); time.sleep(1000)"


async def test_no_limit_is_escaped_by_containers(job: Job, docker: Daemon, placed: Path, tmp_path: Path) -> None:
    """The engine kills what needs more than anybody has looked at; where it cannot, there is no container at all."""
    job.add("leak", f"spec: {{}}\n---\nexec: {{command: [python3, -c, '{LEAK}']}}\n")
    job.add(
        "limited",
        "spec: {}\n---\nrun:\n- {name: quiet, script: 'wc -l < /proc/net/route'}\n"
        f"- {{name: below, func: ../leak, container: {OTHER}}}\n",
    )
    steps = f"{{}}\n---\nrun:\n- {{name: s, func: ./limited, container: {PYTHON_IMAGE}}}\n"
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"memory": "64m", "network": "none"}))
    async with docker.engine() as engine:
        about = await engine.ask("GET", "/info")
    async with agent(placed, tmp_path / "agent", options=("--policy", str(policy))) as (_, client):
        await client.run(job.request("j", steps))
        log = (await log_of(client, "j")).decode()
        status, tree = await client.status("j"), await tree_of(client, "j")
        await client.close("j")
    assert status.state is RunState.FAILURE
    if not about["MemoryLimit"]:
        assert "the limit `memory` cannot be kept in a container here, so it is not started" in status.message
        return
    below = tree.at(("s", "below"))
    assert (below.cause, below.exit_code) == ("out_of_memory", 137), status.message
    said = "was killed: it needed more memory than its limit `memory` allows, which is 64 MiB; it had "
    assert said in status.message
    assert f"The command {said}" in log
    assert "\n1\n" in log, "a table of routes with nothing but its heading"


async def test_containers_go_with_their_job_and_with_their_agent(
    job: Job, docker: Daemon, placed: Path, tmp_path: Path
) -> None:
    """A job that is closed, and one whose agent is killed: without a word, they end."""
    job.add("wait", f"spec: {{}}\n---\nrun:\n- {{name: w, script: 'echo begun; sleep 1000', container: {OTHER}}}\n")
    steps = f"{{}}\n---\nrun:\n- {{name: s, func: ./wait, container: {PYTHON_IMAGE}}}\n"

    async def containers() -> int:
        return sum(each.startswith("container /job-steps-") for each in await docker.holdings())

    async with agent(placed, tmp_path / "agent") as (process, client):
        await client.run(job.request("closed", steps))
        await log_until(client, "closed", b"begun")
        assert await containers() == 2
        await client.close("closed")
        assert await containers() == 0
        await client.run(job.request("lost", steps))
        await log_until(client, "lost", b"begun")
        process.send_signal(signal.SIGKILL)
        await process.wait()
    async with agent(placed, tmp_path / "agent") as (_, client):
        assert "the agent ended" in (await client.status("lost")).message
        while await containers():  # noqa: ASYNC110  (nobody tells)
            await anyio.sleep(0.1)


async def test_a_function_from_an_image_is_fetched(job: Job, docker: Daemon, placed: Path, tmp_path: Path) -> None:
    """The image has the function's files and nothing else; no container is left."""
    files = {
        "func.yml": Entry(b"spec: {}\n---\nexec: {command: [cat, '${{ func_dir }}/text']}\n"),
        "text": Entry(b"fetched\n"),
    }
    async with docker.engine() as engine:
        query = {"fromSrc": "-", "repo": "taskscaler-test/function", "tag": "1"}
        await engine.progress("POST", "/images/create", query=query, body=tar_of(files))
    async with agent(placed, tmp_path / "agent") as (_, client):
        await client.run(job.request("j", "- {name: f, func: docker.io/taskscaler-test/function:1}\n"))
        assert await log_of(client, "j") == b'Running step "f"\nfetched\n'
        await client.close("j")
    async with docker.engine() as engine:
        await engine.ask("DELETE", "/images/taskscaler-test/function:1")


async def test_what_the_fake_says_is_what_docker_says(job: Job, docker: Daemon, placed: Path, tmp_path: Path) -> None:
    """Of images that are not there, or have no Python, or no shell."""
    async with docker.engine() as engine:
        query = {"fromSrc": "-", "repo": "taskscaler-test/empty", "tag": "1"}
        await engine.progress("POST", "/images/create", query=query, body=b"\0" * 10240)
    wrong: Mapping[str, str] = {
        "taskscaler-test/none:1": "the image docker.io/taskscaler-test/none:1 is not here, and cannot be pulled: ",
        IMAGE: f"the image docker.io/{IMAGE} has no Python 3.10 or later, which its steps need; it has none",
        "taskscaler-test/empty:1": "the image docker.io/taskscaler-test/empty:1 has no /bin/sh, which its steps need",
    }
    async with agent(placed, tmp_path / "agent") as (_, client):
        for number, (image, error) in enumerate(wrong.items()):
            name = str(number)
            await client.run(job.request(name, f"- {{name: s, script: echo, container: '{image}'}}\n"))
            await log_of(client, name)
            assert f"step `s`: {error}" in (await client.status(name)).message
            await client.close(name)
    async with docker.engine() as engine:
        await engine.ask("DELETE", "/images/taskscaler-test/empty:1")
