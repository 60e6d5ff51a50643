"""Limits of memory and network, kept by this machine's means, at both gates."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import anyio
import pytest

from job_steps import Limits, Status, StepResult, _keeping
from job_steps._agent._running import Rules
from job_steps._agent._service import Service
from job_steps._limits import Known, memory_of, processes_of
from job_steps.client import RunRequest, RunState, step_runner
from job_steps.executor import PolicySettings
from job_steps.executor._config import StepsConfig
from job_steps.executor._outcome import outcome_of
from job_steps.policy import Policy, as_mapping, policy_of
from tests.fleeting.local_agents import POLL
from tests.job_steps.agents import log_of
from tests.job_steps.groups import runs
from tests.job_steps.running import Project

pytestmark = pytest.mark.anyio

POLICIES = [{"memory": "64m", "network": "none"}, {"memory": "8g"}]
"""That of a machine, and what a manager would rather have."""

MIB = 1 << 20

LEAK = """
import os, time
pieces = [bytearray(30 << 20)]
if os.fork() == 0:
    pieces.append(bytearray(50 << 20))
time.sleep(1000)
"""
"""A program of which no process has 100 MiB, and all together have."""

OVER = r"it needed more memory than its limit `memory` allows, which is 64 MiB; it had [0-9.]+ MiB"
"""What is said of it."""

SHARING = """
import os, sys, time
whole = bytearray(40 << 20)
for _ in range(3):
    if os.fork() == 0:
        time.sleep(1000)
print("ready", flush=True)
sys.stdin.read()
"""
"""A program of which four processes have the same 40 MiB."""


async def test_a_step_over_its_memory_is_killed_and_named(project: Project) -> None:
    """With all that it has started; result and log say so by name, with how much it may have, and how much it had."""
    script = f"exec {sys.executable} -I -S -c '{LEAK}'"
    text = json.dumps([{"name": "small", "script": "echo fine"}, {"name": "leak", "script": script}])
    result = await project.run(text, limits=Limits(memory=64 * MIB))
    small, leak = result.steps
    assert (small.status, small.cause) == (Status.SUCCESS, None)
    assert (leak.status, leak.cause, leak.exit_code) == (Status.FAILURE, "out_of_memory", 128 + signal.SIGKILL)
    assert leak.error
    assert re.fullmatch(f"the command was killed: {OVER}", leak.error)
    assert result.error == f"step `leak`: {leak.error}"
    assert project.lines[-1] == leak.error.replace("the command", 'Step "leak"')
    assert leak.as_dict()["cause"] == "out_of_memory"
    assert leak.resources
    assert leak.resources.peak_memory >= 64 * MIB


async def test_what_a_step_leaves_in_the_background_has_its_limit_too(project: Project) -> None:
    """Where no control group has it: else a step would need no more than an `&` to have any amount."""
    beside = f"{sys.executable} -I -S -c '{LEAK}' & echo $! > pid"
    wait = "while kill -0 $(cat pid) 2>/dev/null; do sleep 0.05; done; echo gone"
    text = json.dumps([{"name": "beside", "script": beside}, {"name": "wait", "script": wait}])
    result = await project.run(text, limits=Limits(memory=64 * MIB))
    assert (result.status, result.error) == (Status.SUCCESS, None)
    assert project.lines[-1] == "gone"


FAMILY = """
import os, time
def be(then=lambda: None):
    with open(f"{os.getpid()}.pid", "w"):
        time.sleep(0.01)
    own = bytearray(30 << 20)
    then()
    time.sleep(1000)
def other(do):
    if os.fork() == 0:
        do()
be(lambda: other(lambda: (os.setsid(), be(lambda: other(lambda: (os.setpgid(0, 0), be()))))))
"""
"""A program whose child leads a session, in which a grandchild leads a process group."""


async def test_no_relative_of_a_command_over_its_memory_stays(project: Project) -> None:
    """Wherever it has gone, as long as the one that has started it is there."""
    await project.run_script(f"exec {sys.executable} -I -S -c '{FAMILY}'", limits=Limits(memory=85 * MIB))
    family = [int(each.stem) for each in project.directory.glob("*.pid")]
    assert len(family) == 3
    while any(runs(process) for process in family):  # noqa: ASYNC110  (they tell nobody)
        await anyio.sleep(POLL)


async def test_a_look_that_fails_is_followed_by_another(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """For want of descriptors, for example, of which all jobs of an agent have a thousand together."""
    looks = 0

    def short(leaders: Collection[int], known: Known | None = None) -> dict[int, list[int]]:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return processes_of(leaders, known)

    monkeypatch.setattr(_keeping, "processes_of", short)
    result = await project.run_script(f"exec {sys.executable} -I -S -c '{LEAK}'", limits=Limits(memory=64 * MIB))
    assert result.steps[0].cause == "out_of_memory"


@pytest.mark.needs("grep")
async def test_a_limit_changes_nothing_else(project: Project) -> None:
    """A step sees the same environment, signals, descriptors and errors with limits as without."""
    script = 'env -i "$(command -v env)"; env | sort; ls /proc/self/fd; exit 7'
    # Not by a shell, which blocks all signals for a moment when it starts a program.
    signals = ["grep", "-E", "Sig(Blk|Ign|Cgt)", "/proc/self/status"]
    commands = [
        ["sh", "-c", script],
        signals,
        ["no-such-program"],
        ["/etc"],
        ["./text"],
        ["./gone"],
        ["sh", "-c", "kill -9 $$"],
    ]
    (project.directory / "text").write_text("no program\n")
    (project.directory / "text").chmod(0o755)
    (project.directory / "gone").write_text("#!/no/such/interpreter\n")
    (project.directory / "gone").chmod(0o755)
    seen = []
    for limits in (Limits(), Limits(network="none")):
        for command in commands:
            project.log.clear()
            result = await project.run(
                json.dumps({"spec": {}}) + "\n---\n" + json.dumps({"exec": {"command": command}}), limits=limits
            )
            seen.append((result.status, result.exit_code, result.error, result.cause, project.lines))
    for without, limited in zip(seen[: len(commands)], seen[len(commands) :], strict=True):
        assert without == limited


async def test_without_network_a_step_has_only_its_own_loopback(project: Project) -> None:
    """It reaches nothing that listens here, and can still talk to itself."""
    program = """
import socket, sys
names = sorted(name for _, name in socket.if_nameindex() if name == "lo" or name.startswith("e"))
print(*names)
own = socket.create_server(("127.0.0.1", 0))
socket.create_connection(own.getsockname())
print("itself")
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])))
except OSError as error:
    print(error.strerror)
"""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        script = f"exec {sys.executable} -I -S -c '{program}' {port}"
        result = await project.run_script(script, limits=Limits(network="none"))
    assert result.status is Status.SUCCESS, (result.error, project.lines)
    assert project.lines[1:] == ["lo", "itself", "Connection refused"]


CHECK = """
import ctypes, json, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
drop, forbid = json.loads(sys.argv[1])
if drop and os.geteuid() == 0 and libc.prctl(24, 21, 0, 0, 0):  # PR_CAPBSET_DROP, CAP_SYS_ADMIN
    raise SystemExit("capability")
if forbid:  # unshare is refused, as in containers: PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
    number = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
    lines = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code)))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
        raise SystemExit("filter")
os.execv(sys.executable, [sys.executable, "-c", sys.argv[2]])
"""
"""Becomes a Python that may do less."""

CAN = """
from job_steps._errors import StepFailed
from job_steps._limits import Limits, check_limits
try:
    check_limits(Limits(network="none"))
    print("can")
except StepFailed as error:
    print(error)
"""


@pytest.mark.parametrize("forbid", [False, True])
def test_without_the_right_to_it_a_user_namespace_has_to_do_or_nothing_runs(forbid: bool) -> None:  # noqa: FBT001  (a case)
    """Where those are not allowed either, the sentence says what to do."""
    command = [sys.executable, "-c", CHECK]
    enough = "import ctypes, os; os._exit(ctypes.CDLL(None).unshare(0x50000000) != 0)"
    can = subprocess.run([*command, json.dumps([True, forbid]), enough], check=False).returncode == 0
    done = subprocess.run(
        [*command, json.dumps([True, forbid]), CAN], capture_output=True, text=True, check=True, cwd="/"
    )
    why = (
        "the limit `network` cannot be kept here, so no step runs: Operation not permitted; run the agent as root,"
        " allow user namespaces, or use a container without network"
    )
    assert can is not forbid or not can
    assert done.stdout.strip() == ("can" if can else why)


def test_memory_that_processes_share_counts_once() -> None:
    """Otherwise a program that forks would be killed for what it does not have."""
    command = [sys.executable, "-I", "-S", "-c", SHARING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        found = processes_of((process.pid, os.getpid()))[process.pid]
        assert len(found) == 4
        assert memory_of(found, 1000 * MIB) >= 160 * MIB, "quick, and enough to see that it is not too much"
        assert 40 * MIB <= memory_of(found, 100 * MIB) <= 100 * MIB
        os.killpg(process.pid, signal.SIGKILL)


def test_policies_have_limits() -> None:
    """Written, read, refused with what was expected; of several, the strictest counts."""
    policy = policy_of({"memory": "512m", "network": "none"})
    assert policy == policy_of(json.loads(json.dumps(as_mapping(policy))))
    assert policy.limits == Limits(memory=512 * MIB, network="none")
    assert policy.limits.within(Limits(memory=64 * MIB)) == Limits(memory=64 * MIB, network="none")
    assert Limits(memory=64 * MIB).within(policy.limits) == Limits(memory=64 * MIB, network="none")
    assert Policy().limits == Limits()
    for written, said in (
        ({"memory": "5m"}, 'memory: expected bytes, or a size such as "512m", of at least 6m'),
        ({"memory": "much"}, 'memory: expected a size such as "512m" or "2g"'),
        ({"memory": True}, "memory: expected bytes"),
        ({"network": "host"}, 'network: expected "none", or no such key'),
    ):
        with pytest.raises(ValueError, match="expected") as caught:
            policy_of(written)
        assert str(caught.value).startswith(said)


async def test_the_agent_keeps_its_limits_whatever_a_manager_says(tmp_path: Path) -> None:
    """The job that needs more is ended, and nothing beside it; a manager's own policy lifts no other one."""
    (tmp_path / "jobs").mkdir()
    leak = json.dumps([{"name": "leak", "script": f"exec {sys.executable} -I -S -c '{LEAK}'"}])
    quiet = json.dumps([{"name": "quiet", "script": "while [ ! -e go ]; do sleep 0.05; done; cat /proc/net/route"}])
    async with anyio.create_task_group() as tasks:
        listener = await anyio.create_unix_listener(tmp_path / "s")
        service = Service(tmp_path / "jobs", tasks, Rules.of(POLICIES))
        tasks.start_soon(listener.serve, service.serve)
        async with listener, step_runner(await anyio.connect_unix(tmp_path / "s")) as client:
            for name, steps in (("quiet", quiet), ("leak", leak)):
                await client.run(RunRequest(id=name, steps=steps, work_dir=str(tmp_path)))
            await log_of(client, "leak")
            (tmp_path / "go").touch()
            said = await log_of(client, "quiet")
            ended = [await client.status(name) for name in ("quiet", "leak")]
            found = await client.results("leak")
            tasks.cancel_scope.cancel()
    assert [each.state for each in ended] == [RunState.SUCCESS, RunState.FAILURE]
    assert re.fullmatch(f"step `leak`: the command was killed: {OVER}", ended[1].message)
    assert found
    assert found.tree
    tree = StepResult.from_dict(found.tree)
    assert tree.steps[0].cause == "out_of_memory"
    assert re.fullmatch(f"the step `leak` was killed: {OVER}", outcome_of(ended[1], tree, timed_out="").why)
    assert len(said.splitlines()) == 2, "a table of routes with nothing but its heading"


def test_gitlabs_step_runner_keeps_no_such_limits() -> None:
    """So a policy that has them is refused together with it."""
    for settings in (PolicySettings(memory="512m"), PolicySettings(network="none")):
        with pytest.raises(ValueError, match="a policy without memory and network, or no step_runner"):
            StepsConfig(step_runner="/usr/bin/step-runner", policy=settings)
    with pytest.raises(ValueError, match="a memory of at least 6m"):
        PolicySettings(memory="1m")
