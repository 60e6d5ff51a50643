"""How soon a command that was killed has its jobs again: 50 of them, on 8 hosts with OpenSSH's stock server.

From the start of the process that resumes the batch until the log of every job has what the job printed meanwhile.
Bytecode comes from a cache, as it does wherever the packages are installed; the command that is killed first fills it.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

from _figures import report
from _needs import SSHD, run
from attrs import define, field

from tests.e2e import hosts
from tests.e2e.leftovers import environment

COMMAND = (str(Path(sys.executable).with_name("taskscaler")), "run")
HOSTS = 8
JOBS = 50
ROUNDS = 3
LOOK_EVERY = 0.005
PATIENCE = 120.0

FILE = """
[autoscaler]
plugin = "static"
capacity_per_instance = {capacity}
update_interval_when_expecting = "50ms"

[[jobs]]
name = "job"
copies = {jobs}
script = "exec cat {pipes}/$TASKSCALER_JOB_NAME"
detach = true
"""


@define
class Trial:
    """Jobs that print what they are told to, whether somebody follows them or not."""

    home: Path
    pipes: dict[str, int] = field(factory=dict)
    """The end of each job's pipe that the job does not read from, by the job's name."""

    words: bytes = b""
    """What every job has been told, and so what its log is to be."""

    @contextmanager
    def told(self) -> Iterator[None]:
        """Have a pipe for each job: it ends when this does."""
        directory = self.home / "pipes"
        directory.mkdir()
        for number in range(1, JOBS + 1):
            name = f"job-{number:0{len(str(JOBS))}}"
            os.mkfifo(directory / name)
            self.pipes[name] = os.open(directory / name, os.O_RDWR)  # else opening it waits for the job
        try:
            yield
        finally:
            self.hang_up()

    def hang_up(self) -> None:
        """Have the jobs end."""
        while self.pipes:
            os.close(self.pipes.popitem()[1])

    def tell(self, word: bytes) -> None:
        """Have every job print a word."""
        self.words += word
        for pipe in self.pipes.values():
            os.write(pipe, word)

    def follow(self, *arguments: str, last: bool = False) -> tuple[float, float]:
        """Run a command until every log is whole, then kill it; the last one sees the jobs to their ends.

        Returns:
            The seconds that it took, and those of computing that the command has used by then.
        """
        began, used = perf_counter(), _used()
        env = {**environment(self.home), "PYTHONUNBUFFERED": "1"}
        with (
            (self.home / "said").open("wb") as said,
            subprocess.Popen([*COMMAND, *arguments], env=env, stdout=said, stderr=subprocess.STDOUT) as process,
        ):
            try:
                self._wait(process, began + PATIENCE)
                took = perf_counter() - began
                if last:
                    self.hang_up()
                    process.wait(PATIENCE)
            finally:
                process.kill()
        if last and process.returncode:
            raise RuntimeError((self.home / "said").read_text())
        return took, _used() - used

    def _wait(self, process: "subprocess.Popen[bytes]", until: float) -> None:
        behind = [self.home / "out" / "logs" / f"{name}.log" for name in self.pipes]
        while behind := [log for log in behind if not log.exists() or log.stat().st_size < len(self.words)]:
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_EVERY)
            if process.returncode is not None or perf_counter() > until:
                raise RuntimeError(f"{len(behind)} jobs are not followed:\n{(self.home / 'said').read_text()}")


def _used() -> float:
    """Seconds of computing of all commands that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Kill it a few times."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # images for containers set it
    with TemporaryDirectory() as name:
        home = Path(name)
        (home / "tmp").mkdir()
        os.environ["PYTHONPYCACHEPREFIX"] = str(home / "bytecode")
        trial = Trial(home)
        with hosts.running(home, HOSTS) as servers, trial.told():
            file = FILE.format(capacity=-(-JOBS // HOSTS), jobs=JOBS, pipes=home / "pipes")
            (home / "jobs.toml").write_text(file + hosts.plugin_config(home, servers))
            trial.tell(b"begun\n")
            trial.follow(str(home / "jobs.toml"), "--output", str(home / "out"))
            figures = []
            for number in range(ROUNDS):
                trial.tell(b"meanwhile %d\n" % number)
                figures.append(trial.follow("--resume", str(home / "out")))
            trial.follow("--resume", str(home / "out"), last=True)
        took, computed = (median(each) for each in zip(*figures, strict=True))
    conditions = f"{HOSTS} hosts, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    report(f"reattach_{JOBS}_jobs_s", took, "s", 2, conditions=conditions)
    report(f"reattach_{JOBS}_jobs_cpu_s", computed, "s", None, conditions="the command alone")


if __name__ == "__main__":
    run(main, SSHD)
