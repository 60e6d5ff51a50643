"""A GitLab on the desk and a runner of our own, both as commands: what the guide says, and what is killed meanwhile."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from attrs import define, field

from taskscaler.cli._ask import ask
from tests.e2e import hosts
from tests.e2e.leftovers import environment
from tests.fleeting_docker_engine.daemons import IMAGE, Daemon

ROOT = Path(__file__).parents[2]
RUNNER = (sys.executable, "-c", "from taskscaler_gitlab.cli import main; main()")
TASKSCALER = (sys.executable, "-c", "from taskscaler.cli import main; main()")
GITLAB = (sys.executable, "-c", "from gitlab_jobs.cli import main; main()")

SLOW = """
[[jobs]]
name = "first"
script = [
  "for i in 1 2 3 4; do echo line $i; sleep 0.1; done",
  "until [ -e {here}/go ]; do sleep 0.1; done",
  "for i in 5 6 7 8; do echo line $i; sleep 0.1; done",
  "echo first >> {here}/ran",
]

[[jobs]]
name = "second"
script = [
  "for i in 1 2 3 4; do echo line $i; sleep 0.1; done",
  "until [ -e {here}/go ]; do sleep 0.1; done",
  "for i in 5 6 7 8; do echo line $i; sleep 0.1; done",
  "echo second >> {here}/ran",
]

[[jobs]]
name = "third"
needs = ["first"]
script = ["echo third >> {here}/ran"]
"""
"""The first two wait for a file once they have printed half of their lines."""

IN_CONTAINERS = """
concurrent = 8
check_interval = 1
[[runners]]
name = "desk"
url = "{url}"
token = "glrt-on-your-desk"
executor = "docker-autoscaler"
[runners.docker]
image = "{image}"
pull_policy = "never"
[runners.autoscaler]
plugin = "docker"
capacity_per_instance = 4
max_instances = 2
update_interval = "1s"
update_interval_when_expecting = "200ms"
[runners.autoscaler.plugin_config]
name = "e2e-gitlab"
socket = "{socket}"
volumes = ["{socket}:/var/run/docker.sock"]
[[runners.autoscaler.policy]]
idle_count = 0
idle_time = "1m"
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@define
class Program:
    """A command that runs."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(factory=list)

    def wait_for(self, text: str) -> str:
        """Read what it prints until a line has this."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if text in line:
                return self.lines[-1]
        raise AssertionError(f"it ended without {text!r}: {self.lines}")

    def end(self, number: int | None = None) -> int:
        """Send it a signal, and wait for its end."""
        if number is not None:
            self.process.send_signal(number)
        assert self.process.stdout
        self.lines += self.process.stdout.read().splitlines()  # `communicate` would not see what was read ahead
        return self.process.wait()


@define
class Place:
    """Where everything of a test is."""

    here: Path
    home: Path
    port: int

    @property
    def env(self) -> Mapping[str, str]:
        """A user's, whose state and sockets are here."""
        return {**environment(self.home), "XDG_RUNTIME_DIR": str(self.here)}  # with a socket, whose path must be short

    @property
    def socket(self) -> Path:
        """The daemon's."""
        return self.here / "taskscaler" / "config.sock"

    @contextmanager
    def running(self, *command: str | Path) -> Iterator[Program]:
        """Run a command while the body runs."""
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.env, cwd=self.here
        ) as process:
            try:
                yield Program(process)
            finally:
                process.kill()

    @contextmanager
    def gitlab(self, jobs: Path) -> Iterator[Program]:
        """A GitLab that hands out the jobs of a file."""
        bind, token = f"127.0.0.1:{self.port}", "glrt-on-your-desk"
        with self.running(*GITLAB, "fake", jobs, "--bind", bind, "--token", token) as program:
            program.wait_for("jobs ")
            yield program

    @contextmanager
    def runner(self) -> Iterator[Program]:
        """The runner of the example."""
        with self.running(*RUNNER, "run", self.here / "config.toml") as program:
            program.wait_for("ready: ")
            yield program

    def log(self, number: int) -> str:
        """A job's log, as GitLab has it."""
        return (self.here / "gitlab" / f"{number}.log").read_text()

    def see(self, gitlab: Program, runner: Program) -> str:
        """What is known of a pipeline that did not end as expected."""
        runner.end(signal.SIGKILL)
        numbers = re.findall(r"; see gitlab/(\d+)\.log", "\n".join(gitlab.lines))
        logs = [f"--- {number}: {self.log(int(number))}" for number in numbers]
        return "\n".join([*gitlab.lines, *logs, "--- runner", *runner.lines])


@pytest.fixture
def place(tmp_path: Path, home: Path) -> Place:
    """An empty one, with the example's configuration."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    text = (ROOT / "examples/gitlab/config.toml").read_text()
    caches = f'[runners.taskscaler]\ncache_on_manager = "{tmp_path}/caches"\n'  # one instance may lack the other's
    (tmp_path / "config.toml").write_text(text.replace("127.0.0.1:8929", f"127.0.0.1:{port}") + caches)
    return Place(tmp_path, home, port)


def orphans_end(place: Place, *, after: str) -> None:
    """Have the instances end so long after their runner."""
    config = place.here / "config.toml"
    booting = 'boot_time = "0s"\n'
    assert booting in config.read_text()
    config.write_text(config.read_text().replace(booting, f'{booting}orphan_ttl = "{after}"\n'))


def drain(place: Place) -> None:
    """End the runner, and delete its instances."""
    assert ask(place.socket, "POST", "/drain", json={"delete": True, "timeout": 60}, timeout=70)["drained"]


def test_the_pipeline_of_the_guide_ends_as_expected(place: Place) -> None:
    """Twenty jobs with needs, artifacts and caches, one that fails and one that is cancelled."""
    with place.gitlab(ROOT / "examples/gitlab/jobs.toml") as gitlab, place.runner() as runner:
        assert gitlab.end() == 0, place.see(gitlab, runner)
        assert gitlab.lines[-1] == "20 of 20 jobs ended as expected"
        jobs = ask(place.socket, "GET", "/batches")["batches"]
        assert len(jobs) == 19, "one is skipped, because what it needs has failed"
        assert {each["state"] for each in jobs} == {"succeeded", "failed", "cancelled"}
        status = ask(place.socket, "GET", "/status")
        assert (status["leases"], len(status["owners"])) == (0, 1)
        drain(place)
        assert runner.end() == 0
    assert "correct horse battery" not in place.log(14)
    assert "[MASKED]" in place.log(14)
    assert re.findall("^(cold|warm)$", place.log(13), flags=re.MULTILINE) == ["cold", "warm"]
    assert not list(place.home.rglob("job.json")), "no job's token is left"


def test_the_pipeline_ends_as_expected_over_ssh(place: Place) -> None:
    """On two hosts with OpenSSH's own server, where nothing is installed."""
    with hosts.running(place.here, 2) as servers:
        fleet = hosts.plugin_config(place.here, servers).replace("[autoscaler.", "[runners.autoscaler.")
        text = (place.here / "config.toml").read_text().replace('plugin = "local"', 'plugin = "static"')
        local = '[runners.autoscaler.plugin_config]\nboot_time = "0s"\n'
        assert local in text
        (place.here / "config.toml").write_text(text.replace(local, f"{fleet}\n"))
        with place.gitlab(ROOT / "examples/gitlab/jobs.toml") as gitlab, place.runner() as runner:
            assert gitlab.end() == 0, place.see(gitlab, runner)
            assert gitlab.lines[-1] == "20 of 20 jobs ended as expected"
            assert runner.end(signal.SIGTERM) == 0


def test_the_pipeline_ends_as_expected_in_containers(place: Place, docker: Daemon) -> None:
    """Each job in a container of its own, on instances that are containers, over the connection to each."""
    address = f"http://127.0.0.1:{place.port}"
    text = IN_CONTAINERS.format(url=address, image=IMAGE, socket=docker.socket)
    (place.here / "config.toml").write_text(text)
    with place.gitlab(ROOT / "examples/gitlab/jobs.toml") as gitlab, place.runner() as runner:
        assert gitlab.end() == 0, place.see(gitlab, runner)
        assert gitlab.lines[-1] == "20 of 20 jobs ended as expected"
        drain(place)
        assert runner.end() == 0


def test_a_runner_that_is_killed_goes_on(place: Place) -> None:
    """Each job runs once, and its log is whole; who follows it meanwhile sees all of it, once."""
    (place.here / "jobs.toml").write_text(SLOW.format(here=place.here))
    orphans_end(place, after="5m")  # a busy machine takes its time to start another
    with ExitStack() as stack:
        gitlab = stack.enter_context(place.gitlab(place.here / "jobs.toml"))
        with place.runner() as runner:
            for _ in range(2):
                gitlab.wait_for("running")
            follow = place.running(*TASKSCALER, "logs", "-f", "gitlab-1", "--lines", "99", "--socket", place.socket)
            followed = stack.enter_context(follow)
            followed.wait_for("line 1")
            gitlab_log = place.here / "gitlab" / "1.log"
            while "line 2" not in (gitlab_log.read_text() if gitlab_log.exists() else ""):
                signal.sigtimedwait([], 0.1)
            assert runner.end(signal.SIGKILL) == -signal.SIGKILL
        with place.runner() as runner:
            assert "resuming 2 jobs of gitlab" in runner.lines
            answer = ask(place.socket, "GET", "/explain", params={"key": "gitlab-1"})
            assert answer["answer"].startswith("gitlab-1 "), "it is known, wherever it stands by now"
            (place.here / "go").touch()
            assert gitlab.end() == 0, place.see(gitlab, runner)
            assert followed.end() == 0
            drain(place)
            assert runner.end() == 0
    seen = "\n".join(followed.lines)
    assert re.findall(r"^line (\d)$", seen, flags=re.MULTILINE) == list("12345678")
    assert seen.count("Job succeeded") == 1
    assert sorted((place.here / "ran").read_text().split()) == ["first", "second", "third"]
    for number in (1, 2):
        assert re.findall(r"^line (\d)$", place.log(number), flags=re.MULTILINE) == list("12345678")
        assert place.log(number).count("Job succeeded") == 1


def test_a_runner_that_is_stopped_waits_for_its_jobs(place: Place) -> None:
    """It takes no more, and ends once those that run have ended and are reported."""
    (place.here / "jobs.toml").write_text(SLOW.format(here=place.here))
    orphans_end(place, after="3s")  # the runner deletes no instance
    with place.gitlab(place.here / "jobs.toml") as gitlab, place.runner() as runner:
        for _ in range(2):
            gitlab.wait_for("running")
        runner.process.send_signal(signal.SIGTERM)
        runner.wait_for("2 jobs of gitlab")
        (place.here / "go").touch()
        assert runner.end() == 0
        gitlab.end(signal.SIGTERM)
        ended = [line for line in gitlab.lines if "success" in line]
        assert len(ended) == 2, gitlab.lines
    assert sorted((place.here / "ran").read_text().split()) == ["first", "second"]
