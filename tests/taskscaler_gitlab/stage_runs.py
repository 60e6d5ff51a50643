"""The script of a whole job, run by a shell of this machine."""

import os
import re
import shlex
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from attrs import field, frozen

from gitlab_jobs import Job
from taskscaler_gitlab import RunnerSettings
from taskscaler_gitlab.runner._marks import Marks
from taskscaler_gitlab.runner._plan import Plan, plan_of
from taskscaler_gitlab.runner._script import Before, write_script
from taskscaler_gitlab.runner._variables import Place, environment_of

SETTINGS = RunnerSettings(url="https://gitlab.example.com", token="glrt-0123456789", executor="instance")
NONCE = "0123456789abcdef"


@frozen
class Ran:
    """What became of a job."""

    plan: Plan
    code: int
    log: str = field(repr=False)
    marks: Marks
    directory: Path

    @property
    def phases(self) -> list[str]:
        """Which sections there were, in their order."""
        return re.findall(r"section_start:\d+:(\w+)", self.log)

    def files(self, number: int = 0) -> set[str]:
        """What artifacts have."""
        path = self.directory / "work" / "out" / f"artifacts-{number}.tar"
        if not path.exists():
            return set()
        with tarfile.open(path, errors="surrogateescape") as archive:
            return {name.removeprefix("./") for name in archive.getnames()}


def run(
    shell: Sequence[str],
    job: Job,
    directory: Path,
    *,
    before: Before | None = None,
    tools: Path | None = None,
    is_full: bool = False,
) -> Ran:
    """Run a job in a shell, with other tools before those of this machine; maybe where no file has room for a byte."""
    work = directory / "work"
    work.mkdir()
    place = Place(builds_dir=str(directory / "builds"), instance="i-1", slot=0)
    environment = environment_of(job, SETTINGS, place)
    plan = plan_of(job, SETTINGS, environment, cache_dir=str(directory / "cache"), brings=False)
    text = write_script(
        plan.stages,
        before or Before(),
        nonce=NONCE,
        shell=shlex.join(shell) if len(shell) == 1 else "",
        script_timeout=environment.options.script_timeout,
    )
    path = directory / "script"
    path.write_text(text)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}" if tools else os.environ["PATH"]}
    command = [*shell, "-e", str(path)]
    if is_full:
        command = [*shell, "-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "sh", *command]
    done = subprocess.run(command, cwd=work, env=env, capture_output=True, check=False)
    marks = Marks(NONCE, 100)
    log = marks.feed(done.stdout) + marks.end()
    assert done.stderr == b""
    return Ran(plan, done.returncode, log.decode(errors="replace"), marks, directory)
