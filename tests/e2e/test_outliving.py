"""A real command is killed with SIGKILL, again and again, and resumed: its jobs go on meanwhile, and run once."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from attrs import define, frozen

from tests.e2e import hosts
from tests.e2e.leftovers import environment
from tests.fleeting_docker_engine.daemons import IMAGE, Daemon

COMMAND = (str(Path(sys.executable).with_name("taskscaler")), "run")

RUNNING = 2
"""Jobs that are said to run before a command is killed."""

JOBS = """
[autoscaler]
{fleet}
capacity_per_instance = {capacity}
update_interval_when_expecting = "50ms"
state_storage = {{ dir = "{base}/journal" }}
{executor}
[[jobs]]
name = "job"
copies = {jobs}
script = '''
echo ran >> {base}/runs/$TASKSCALER_JOB_NAME
n=0
while [ $n -lt $(({ticks} + TASKSCALER_JOB_INDEX * {ticks} / {jobs})) ]; do
    n=$((n + 1))
    echo "$TASKSCALER_JOB_NAME says $n"
    sleep 0.1
done
until [ -e {base}/go ]; do sleep 0.1; done
'''
"""

CONTAINERS = """
[executors.docker]
socket = "{socket}"
image = "{image}"
allowed_services = ["{image}"]
allowed_volumes = ["{base}"]

[defaults]
executor = "docker"

[defaults.options.docker]
volumes = ["{base}:{base}"]
services = [{{ image = "{image}", aliases = ["beside"], command = ["sleep", "600"] }}]
"""
"""All hosts have the same daemon."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

_AGENT = re.compile(r"\S*python\S* -I agent\.pyz serve ")

LOOK_AGAIN = 0.1
"""Seconds after which it is looked again how many jobs have begun."""


@frozen
class Size:
    """How much of it there is."""

    jobs: int
    hosts: int
    ticks: int
    """Tenths of a second that the shortest job takes at least, half of what the longest does; all outlast the kills."""

    every: float
    """Seconds between two kills."""

    kills: int

    @property
    def capacity(self) -> int:
        """Jobs that run at once on a host."""
        return -(-self.jobs // self.hosts)


@pytest.fixture
def size(full: bool) -> Size:  # noqa: FBT001
    """Set the size: with ``--full``, that of a fleet."""
    return Size(40, 8, 200, 5.0, 10) if full else Size(4, 2, 20, 0.3, 2)


@define
class Trial:
    """A batch that is killed and resumed until it is done."""

    base: Path
    size: Size

    @property
    def output(self) -> Path:
        """Its results."""
        return self.base / "out"

    def begin(self, fleet: str, *, executor: str = "") -> None:
        """Write its file."""
        (self.base / "runs").mkdir()
        (self.base / "tmp").mkdir()
        size = {"jobs": self.size.jobs, "ticks": self.size.ticks, "capacity": self.size.capacity}
        (self.base / "jobs.toml").write_text(JOBS.format(fleet=fleet, executor=executor, base=self.base, **size))

    def see_through(self) -> None:
        """Kill and resume it, then let it end.

        Each time more jobs must have begun than the time before. What a killed command has asked of a Docker daemon,
        the daemon does all the same, and the next command undoes it and asks again: on a busy machine, commands that
        are killed by the clock alone never begin a job, and leave more and more to a daemon that does nothing in time.
        """
        for number in range(self.size.kills):
            killed = self.run(kill_at=number * self.size.jobs // self.size.kills)
            assert killed, "the batch was over before it was killed"
        (self.base / "go").touch()
        assert not self.run(kill_at=None)

    def run(self, *, kill_at: int | None) -> bool:
        """Run it or go on with it, and kill it a while after two jobs run and so many have begun.

        Returns:
            Whether it was killed.
        """
        begun = (self.output / "events.jsonl").exists()
        jobs = (str(self.base / "jobs.toml"), "--output", str(self.output))
        with subprocess.Popen(
            [*COMMAND, *(("--resume", str(self.output)) if begun else jobs)],
            env={**environment(self.base), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            said, running = [], 0
            for line in process.stdout:
                said.append(line)
                running += " runs on " in line
                if kill_at is not None and running == RUNNING:
                    self._wait_until_begun(kill_at, process)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(self.size.every)
                    process.kill()
                    running += 1
        assert process.returncode in (0, -signal.SIGKILL), "".join(said)
        return process.returncode != 0

    def _wait_until_begun(self, jobs: int, process: subprocess.Popen[str]) -> None:
        """Wait until so many have, or the command has ended."""
        while len([*(self.base / "runs").iterdir()]) < jobs and process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_AGAIN)

    def check(self, *, head: str = "") -> None:
        """All jobs have succeeded, and ran once; what they printed is in their logs, to the byte, behind a *head*.

        A command that is killed while it starts a job leaves what was not begun: that job has another try.
        """
        events = [json.loads(line) for line in (self.output / "events.jsonl").read_text().splitlines()]
        assert sum(event.get("event") == "joined" for event in events) >= RUNNING
        jobs = json.loads((self.output / "results.json").read_text())["jobs"]
        assert {job["name"]: job["attempts"] for job in jobs if job["state"] != "succeeded"} == {}
        earlier = [(job["name"], each) for job in jobs for each in job["attempts"][:-1]]
        assert [f"{name}: {each['state']}, {each['why']}" for name, each in earlier if not each["interrupted"]] == []
        for index, job in enumerate(jobs):
            name, ticks = job["name"], self.size.ticks + index * self.size.ticks // self.size.jobs
            assert (self.base / "runs" / name).read_text() == "ran\n"
            printed = "".join(f"{name} says {number}\n" for number in range(1, ticks + 1))
            assert (self.output / "logs" / f"{name}.log").read_text() == head + printed

    def processes(self) -> list[str]:
        """Name the processes that are in a directory of ours."""
        return [*self._processes().values()]

    def end_agents(self) -> int:
        """End those that carry out steps, which stay for an hour; returns how many there are."""
        agents = [number for number, command in self._processes().items() if _AGENT.match(command)]
        for number in agents:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGTERM)
        return len(agents)

    async def wait_for_the_last(self) -> None:
        """Wait until no process of ours is left."""
        while self._processes():  # noqa: ASYNC110  (only looking tells)
            await anyio.sleep(LOOK_AGAIN)

    def _processes(self) -> dict[int, str]:
        found = {}
        for directory in Path("/proc").iterdir():
            with suppress(OSError):
                if directory.name.isdigit() and (directory / "cwd").readlink().is_relative_to(self.base):
                    found[int(directory.name)] = (directory / "cmdline").read_text().replace("\0", " ")
        return found


def test_jobs_over_ssh_outlive_the_command(tmp_path: Path, size: Size) -> None:
    """Nothing is left on the hosts but empty directories."""
    with hosts.running(tmp_path, size.hosts) as servers:
        trial = Trial(tmp_path, size)
        trial.begin('plugin = "static"')
        with (tmp_path / "jobs.toml").open("a") as file:
            file.write(hosts.plugin_config(tmp_path, servers))
        trial.see_through()
    trial.check()
    assert trial.processes() == []
    for number in range(size.hosts):
        for place in ("taskscaler", ".fleeting/detached"):
            assert list((tmp_path / f"home-{number}" / place).iterdir()) == []


def test_jobs_of_steps_outlive_the_command(tmp_path: Path, size: Size, full: bool) -> None:  # noqa: FBT001
    """Their results are whole; on the hosts there are the agents alone, which wait for more jobs."""
    size = Size(50, 8, 200, 5.0, 5) if full else size
    with hosts.running(tmp_path, size.hosts) as servers:
        trial = Trial(tmp_path, size)
        trial.begin('plugin = "static"', executor='[defaults]\nexecutor = "steps"\n')
        with (tmp_path / "jobs.toml").open("a") as file:
            file.write(hosts.plugin_config(tmp_path, servers))
        try:
            trial.see_through()
            trial.check(head='Running step "script"\n')
        finally:
            agents = trial.end_agents()
        assert agents == size.hosts
        anyio.run(trial.wait_for_the_last)
    for job in json.loads((trial.output / "results.json").read_text())["jobs"]:
        tree = json.loads((trial.output / "artifacts" / job["name"] / "step-results.json").read_text())
        assert [(each["name"], each["status"]) for each in tree["steps"]] == [("script", "success")]
    for number in range(size.hosts):
        assert list((tmp_path / f"home-{number}" / "taskscaler").iterdir()) == []


def test_jobs_in_containers_outlive_the_command(tmp_path: Path, size: Size, docker: Daemon) -> None:
    """Beside each, a service lives on; neither container, network nor volume is left, nor anything on the hosts."""
    before = anyio.run(docker.holdings)
    with hosts.running(tmp_path, size.hosts) as servers:
        trial = Trial(tmp_path, size)
        containers = CONTAINERS.format(socket=docker.socket, image=IMAGE, base=tmp_path)
        trial.begin('plugin = "static"', executor=containers)
        with (tmp_path / "jobs.toml").open("a") as file:
            file.write(hosts.plugin_config(tmp_path, servers))
        trial.see_through()
    trial.check()
    assert anyio.run(docker.holdings) == before
    assert [path.name for host in range(size.hosts) for path in (tmp_path / f"home-{host}").iterdir()] == []


def test_jobs_of_local_instances_outlive_the_command(tmp_path: Path, size: Size) -> None:
    """Nothing is left on this host."""
    trial = Trial(tmp_path, size)
    config = f'{{ directory = "{tmp_path}/fleet", orphan_ttl = "10m" }}'  # a command may take its time to come back
    trial.begin(f'plugin = "local"\nmax_instances = {size.hosts}\nplugin_config = {config}')
    trial.see_through()
    trial.check()
    assert trial.processes() == []
    assert not (tmp_path / "fleet").exists()
