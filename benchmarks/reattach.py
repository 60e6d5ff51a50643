"""How soon a command that was killed has its jobs again: 50 of them, on 8 hosts with OpenSSH's stock server.

From the start of the process that resumes the batch until it has said of the last job that it runs.
"""

import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

from _figures import report
from _needs import SSHD, run

from tests.e2e import hosts
from tests.e2e.leftovers import environment

COMMAND = (str(Path(sys.executable).with_name("taskscaler")), "run")
HOSTS = 8
JOBS = 50
ROUNDS = 3

FILE = f"""
[autoscaler]
plugin = "static"
capacity_per_instance = {-(-JOBS // HOSTS)}
update_interval_when_expecting = "50ms"

[[jobs]]
name = "job"
copies = {JOBS}
script = "exec sleep 600"
detach = true
"""


def seconds(home: Path, *arguments: str, last: bool) -> float:
    """Run a command until all of its jobs run, then kill it; the last one is told to end them."""
    began = perf_counter()
    with subprocess.Popen(
        [*COMMAND, *arguments],
        env={**environment(home), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None  # noqa: S101  (for the type checker)
        running = 0
        while running < JOBS and (line := process.stdout.readline()):
            running += " runs on " in line
        took = perf_counter() - began
        if last:
            process.terminate()
        else:
            process.kill()
        process.stdout.read()
    assert running == JOBS  # noqa: S101  (else there is nothing to measure)
    return took


def main() -> None:
    """Kill it a few times."""
    with TemporaryDirectory() as name:
        home = Path(name)
        (home / "tmp").mkdir()
        with hosts.running(home, HOSTS) as servers:
            (home / "jobs.toml").write_text(FILE + hosts.plugin_config(home, servers))
            output = str(home / "out")
            seconds(home, str(home / "jobs.toml"), "--output", output, last=False)
            took = [seconds(home, "--resume", output, last=number == ROUNDS - 1) for number in range(ROUNDS)]
    report(f"reattach_{JOBS}_jobs_s", median(took), "s", 2, conditions=f"{HOSTS} hosts")


if __name__ == "__main__":
    run(main, SSHD)
