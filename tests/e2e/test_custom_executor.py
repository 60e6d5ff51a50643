"""The driver of GitLab Runner's custom executor, called as that calls it, with a daemon on the local group or sshd."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest
from attrs import define
from click.testing import CliRunner

from taskscaler_gitlab.cli import main
from taskscaler_gitlab.custom._contract import called_for
from tests.e2e.hosts import plugin_config, running
from tests.e2e.leasing import held, leases, prepare, ran, room_for_two, work_of
from tests.taskscaler.services import Service, command, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COMMAND = (sys.executable, "-c", "from taskscaler_gitlab.cli import main; main()", "custom-executor")
BUILD, SYSTEM = 3, 4
"""Exit statuses that are not the usual ones."""

SCRIPT = "#!/usr/bin/env bash\n\ntrap exit 1 TERM\n\nset -o errexit\n: | eval {line}\nexit 0\n"
SLEEPS = "echo $$ > {pid}; echo begun; while :; do sleep 0.05; done"


@define
class Called:
    """A job's gitlab-runner, as far as its driver knows it."""

    here: Path
    job: int = 17
    socket: Path | None = None

    @property
    def env(self) -> dict[str, str]:
        """What it says; the host's own variables are there, too."""
        (self.here / f"response-{self.job}").write_text(json.dumps({"id": self.job, "token": f"token-{self.job}"}))
        others = {"PATH": os.environ["PATH"], "HOME": str(self.here), "XDG_RUNTIME_DIR": str(self.here)}
        return {
            **others,
            "TMPDIR": str(self.here),
            "BUILD_FAILURE_EXIT_CODE": str(BUILD),
            "SYSTEM_FAILURE_EXIT_CODE": str(SYSTEM),
            "BUILD_EXIT_CODE_FILE": str(self.here / "code"),
            "JOB_RESPONSE_FILE": str(self.here / f"response-{self.job}"),
            "CUSTOM_ENV_CI_JOB_ID": str(self.job),
            **({"TASKSCALER_SOCKET": str(self.socket), "TASKSCALER_SHELL": "bash"} if self.socket else {}),
        }

    def __call__(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Call the driver here, as if it were a process: most of what that costs is to start it."""
        with chdir(self.here):
            done = CliRunner().invoke(main, ["custom-executor", *arguments], env=self.env)
        assert isinstance(done.exception, SystemExit | None), done.exception
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    def begin(self, *arguments: str) -> "subprocess.Popen[str]":
        """Call it, in a process group of its own."""
        return subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=self.env,
            cwd=self.here,
        )

    def written(self, line: str) -> str:
        """Write a script, as gitlab-runner does; returns its path."""
        path = self.here / "script.sh"
        quoted = "'" + line.replace("'", "'\\''") + "'"
        path.write_text(SCRIPT.format(line=quoted))
        return str(path)

    def run(self, line: str) -> "subprocess.CompletedProcess[str]":
        """Run a script of the job."""
        return self("run", self.written(line), "build_script")

    def begun(self, line: str) -> "subprocess.Popen[str]":
        """Run one that prints a line, until it has."""
        process = self.begin("run", self.written(line), "build_script")
        assert process.stdout
        assert process.stdout.readline() == "begun\n", process.stderr and process.stderr.read()
        return process

    @property
    def code(self) -> str:
        """The script's exit status, as gitlab-runner gets it."""
        return (self.here / "code").read_text()


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A daemon with room for two."""
    with room_for_two(tmp_path, monkeypatch) as service:
        yield service


@pytest.fixture
def called(tmp_path: Path, service: Service) -> Called:
    """A job for it."""
    return Called(tmp_path, socket=service.socket)


def ends(pid: int) -> bool:
    """Whether a process has ended, once it has."""
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True


def test_a_job_from_its_configuration_to_its_cleanup(called: Called, service: Service) -> None:
    """All of its scripts run on the instance of one slot, which goes back; the calls end as gitlab-runner wants it."""
    first = Called(called.here)("config", "--socket", str(service.socket), "--builds-dir", "/b", "--cache-dir", "/c")
    assert (first.returncode, first.stderr) == (0, "")
    said = json.loads(first.stdout)
    assert (said["builds_dir"], said["cache_dir"], said["builds_dir_is_shared"]) == ("/b", "/c", True)
    assert (said["driver"]["name"], said["shell"]) == ("taskscaler", "bash")
    assert said["job_env"] == {"TASKSCALER_SOCKET": str(service.socket), "TASKSCALER_SHELL": "bash"}
    ready = called("prepare")
    assert (ready.returncode, ready.stderr) == (0, "")
    [lease] = leases(service).values()
    assert ready.stdout == f"Running in slot {lease['slot']} of {lease['instance']}...\n"
    assert (lease["kept"], lease["pid"]) == (True, None)
    done = called.run("cat; pwd; echo wrong >&2; echo $TASKSCALER_INSTANCE; echo left > left")
    work = work_of(called.here, str(lease["instance"]))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{work}\n{lease['instance']}\n", "wrong\n")
    assert called.run("cat left").stdout == "left\n"
    failed = called.run("exit 7")
    assert (failed.returncode, failed.stdout, failed.stderr, called.code) == (BUILD, "", "", "7\n")
    assert called.run(f"exit {SYSTEM}").returncode == BUILD
    assert (called.code, held(service)) == (f"{SYSTEM}\n", 1)
    again = called("prepare")
    assert (again.returncode, again.stdout) == (0, ready.stdout)
    for _ in range(2):
        clean = called("cleanup")
        assert (clean.returncode, clean.stdout, clean.stderr) == (0, "", "")
        assert leases(service) == {}
    late = called.run("echo never")
    assert (late.returncode, late.stdout, len(late.stderr.splitlines())) == (SYSTEM, "", 1)
    assert "there is no slot for this job" in late.stderr


def test_a_script_that_is_cancelled_ends_with_what_it_has_started(called: Called, service: Service) -> None:
    """It hears of it first; then the next script runs in the same slot, which goes back in the end."""
    assert called("prepare").returncode == 0
    pid = called.here / "pid"
    line = f"sleep 600 & echo $! > {pid}; trap 'echo heard' TERM; echo begun; wait; exit 9"
    with called.begun(line) as process:
        os.killpg(process.pid, signal.SIGTERM)
        printed, said = process.communicate()
    assert (process.returncode, printed, called.code) == (BUILD, "heard\n", "1\n")
    assert said == "taskscaler: SIGTERM: asking the script to end\n"
    assert ends(int(pid.read_text()))
    assert called.run("echo after").stdout == "after\n"
    assert called("cleanup").returncode == 0
    assert held(service) == 0


def test_a_call_that_is_killed_leaves_nothing_running(called: Called, service: Service) -> None:
    """The next script begins once the last one has ended, and so does the cleanup."""
    assert called("prepare").returncode == 0
    pid = called.here / "pid"
    deaf = "trap '' TERM; " + SLEEPS.format(pid=pid)
    with called.begun(deaf) as process:
        os.killpg(process.pid, signal.SIGKILL)
    after = called.run(f"kill -0 $(cat {pid}) 2>/dev/null || echo ended")
    assert (after.stdout, after.returncode) == ("ended\n", 0), after.stderr
    with called.begun(deaf) as process:
        os.killpg(process.pid, signal.SIGKILL)
    assert called("cleanup").returncode == 0
    assert ends(int(pid.read_text()))
    assert held(service) == 0


def test_a_slot_goes_back_when_gitlab_runner_is_killed(called: Called, service: Service) -> None:
    """While a script runs that prints nothing, and between two of them: nobody calls the cleanup."""
    assert called("prepare").returncode == 0
    pid = called.here / "pid"
    with called.begun(SLEEPS.format(pid=pid)) as process:
        assert process.stdout
        process.stdout.close()  # as the kernel does it
        assert process.wait() == SYSTEM
    assert ends(int(pid.read_text()))
    assert leases(service) == {}
    assert called("prepare", "--ttl", "1s").returncode == 0
    while held(service):
        """The daemon gives it back."""
    assert "nobody used it for 1s" in ran("attach", called_key(called)).stderr


def called_key(called: Called) -> str:
    """The key of a job's slot."""
    env = called.env
    return called_for(env, Path(env["JOB_RESPONSE_FILE"]).read_bytes()).key


def test_who_waits_for_a_slot_says_what_for(called: Called, service: Service) -> None:
    """In the job's log; SIGTERM ends the wait, and so does a killed gitlab-runner, and nothing is left of it."""
    for job in (1, 2):
        assert Called(called.here, job, called.socket)("prepare").returncode == 0
    with called.begin("prepare") as process:
        assert process.stderr
        assert process.stderr.readline().startswith("taskscaler: ")
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait() == SYSTEM
        assert "SIGTERM has ended this" in process.stderr.read()
    with called.begin("prepare") as process:
        assert process.stderr
        process.stderr.readline()
        process.kill()
    in_vain = called("prepare", "--timeout", "0s")
    first, *more = in_vain.stderr.splitlines()
    assert in_vain.returncode == SYSTEM
    assert first.startswith("error: ")
    assert all(line.startswith("  ") for line in more)
    assert called("cleanup").returncode == 0
    for job in (1, 2):
        assert Called(called.here, job, called.socket)("cleanup").returncode == 0
    assert called("prepare").returncode == 0
    assert len(leases(service)) == 1
    assert called("cleanup").returncode == 0


def test_an_instance_that_is_lost_is_our_failure(called: Called, service: Service) -> None:
    """So GitLab may run the job again; the scripts that follow say why they cannot run."""
    assert called("prepare").returncode == 0
    [lease] = leases(service).values()
    with called.begun("echo begun; exec sleep 600") as process:
        agent = called.here / "fleet" / str(lease["instance"]) / "agent.pid"
        os.kill(int(agent.read_text()), signal.SIGKILL)
        _, said = process.communicate()
    assert process.returncode == SYSTEM
    last = said.splitlines()[-1]  # bash may say first what was terminated
    assert last.startswith("error: ")
    assert str(lease["instance"]) in last
    after = called.run("echo never")
    assert (after.returncode, after.stdout, len(after.stderr.splitlines())) == (SYSTEM, "", 1)
    assert called("cleanup").returncode == 0
    assert leases(service) == {}


def test_a_daemon_that_is_killed_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script runs on meanwhile, a call that begins meanwhile waits, and the slot is the same."""
    prepare(tmp_path, monkeypatch)
    go = tmp_path / "go"
    with serving(tmp_path) as service:
        called = Called(tmp_path, socket=service.socket)
        assert called("prepare").returncode == 0
        process = called.begun(f"echo begun; until [ -e {go} ]; do sleep 0.05; done; echo done")
        service.process.kill()
        service.process.wait()
    go.touch()
    with process:
        assert process.stdout
        assert (process.stdout.read(), process.wait()) == ("done\n", 0)
    between = called.begin("run", called.written("echo $TASKSCALER_SLOT"), "after_script")
    with serving(tmp_path) as service, between:
        assert between.communicate()[0] == "0\n"
        assert called("cleanup").returncode == 0
        assert held(service) == 0
        assert command("drain", "--delete")[0] == 0


def test_on_a_host_reached_over_ssh_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts run there, a cancelled one ends there, and nothing of the job's slot is left."""
    prepare(tmp_path, monkeypatch)
    with running(tmp_path, 1) as hosts:
        state = f'[autoscaler.state_storage]\ndir = "{tmp_path}/state"\n'
        fleet = f'[autoscaler]\nplugin = "static"\nmax_instances = 1\n{state}{plugin_config(tmp_path, hosts)}\n'
        (tmp_path / "fleet.toml").write_text(fleet)
        home, pid = tmp_path / "home-0", tmp_path / "pid"
        with serving(tmp_path) as service:
            called = Called(tmp_path, socket=service.socket)
            assert called("prepare").returncode == 0
            done = called.run("pwd; echo $TASKSCALER_INSTANCE; exit 7")
            assert (done.returncode, done.stdout, called.code) == (BUILD, f"{home}\nhost-0.1\n", "7\n")
            with called.begun(f"sleep 600 & echo $! > {pid}; echo begun; wait") as process:
                os.killpg(process.pid, signal.SIGTERM)
                assert process.wait() == BUILD
            assert ends(int(pid.read_text()))
            with called.begun(SLEEPS.format(pid=pid)) as process:
                os.killpg(process.pid, signal.SIGKILL)
            assert called("cleanup").returncode == 0
            assert ends(int(pid.read_text()))
            assert (leases(service), [*home.glob(".taskscaler/*")]) == ({}, [])


LEAVES = [
    "sleep 600 >/dev/null 2>&1 & echo $! > {pid}; echo begun",
    "(trap '' TERM; exec sleep 600) >/dev/null 2>&1 & echo $! > {pid}; echo begun; wait",
]


def test_what_has_outlived_its_script_over_ssh_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the next script begins, and before the slot goes back; a job that hides it costs its instance."""
    prepare(tmp_path, monkeypatch)
    with running(tmp_path, 1) as hosts:
        state = f'[autoscaler.state_storage]\ndir = "{tmp_path}/state"\n'
        fleet = f'[autoscaler]\nplugin = "static"\nmax_instances = 1\n{state}{plugin_config(tmp_path, hosts)}\n'
        (tmp_path / "fleet.toml").write_text(fleet)
        home, pid = tmp_path / "home-0", tmp_path / "pid"
        with serving(tmp_path) as service:
            called = Called(tmp_path, socket=service.socket)
            assert called("prepare").returncode == 0
            for line in LEAVES:
                with called.begun(line.format(pid=pid)) as process:
                    if "wait" in line:
                        os.killpg(process.pid, signal.SIGTERM)
                    process.wait()
                after = called.run(f"grep -s '^State:.[^ZX]' /proc/$(cat {pid})/status || echo ended")
                assert after.stdout == "ended\n", (line, after.stderr)
                assert called.run(line.format(pid=pid).partition("; wait")[0]).returncode == 0
                left = int(pid.read_text())
                clean = called("cleanup")
                assert (clean.returncode, clean.stderr) == (0, "")
                assert ends(left)
                assert (leases(service), [*home.glob(".taskscaler/*")]) == ({}, [])
                assert called("prepare").returncode == 0
            hides = f"{LEAVES[0]}; rm -r ~/.taskscaler"
            assert called.run(hides.format(pid=pid)).returncode == 0
            refused = called.run("echo never")
            assert (refused.returncode, refused.stdout) == (SYSTEM, "")
            assert "nobody knows what runs there" in refused.stderr
            removed = called("cleanup")
            assert (removed.returncode, "is removed" in removed.stderr) == (0, True), removed.stderr
            os.kill(int(pid.read_text()), signal.SIGKILL)


AS_ANOTHER = """
import os, sys
from taskscaler_gitlab.cli import main
from taskscaler_gitlab.custom._contract import called_for
from taskscaler_gitlab.custom import _driver
from taskscaler import remote
from taskscaler.remote import _scaler
os.setgroups([])
os.setresgid(54321, 54321, 54321)
os.setresuid(54321, 54321, 54321)
main(["custom-executor", "prepare"])
"""
"""What a user's process does: it becomes that user once it has all its modules."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs as other users")
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_another_user_has_no_permission(called: Called, service: Service, mode: int) -> None:
    """It is said at once, before anything is waited for, whether the socket can be seen or not."""
    env = called.env
    response = Path("/tmp") / f"response-{os.getpid()}.json"  # noqa: S108  (where another user can read)
    response.write_text(Path(env["JOB_RESPONSE_FILE"]).read_text())
    service.socket.parent.chmod(mode)
    try:
        done = subprocess.run(
            [sys.executable, "-c", AS_ANOTHER],
            capture_output=True,
            text=True,
            check=False,
            env={**env, "JOB_RESPONSE_FILE": str(response)},
        )
    finally:
        response.unlink()
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (SYSTEM, "", 1), done.stderr
    assert "run gitlab-runner as the user of the daemon" in done.stderr
