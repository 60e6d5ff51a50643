"""Projects with repositories at a git server of the tests, and jobs that want them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import evolve, field, frozen

from gitlab_jobs import GitInfo, Job, JobInfo, Variable
from taskscaler_gitlab import RunnerSettings
from taskscaler_gitlab.runner._sources import sources_script
from taskscaler_gitlab.runner._variables import JobEnvironment, Place, environment_of
from tests.needs import find_program

TOKEN = "glcbt-job-token-0123456789abcdef"
"""The jobs' token: what must be found nowhere."""

GIT = shutil.which("git") or "git"

BUSYBOX = find_program("busybox") or "/usr/bin/busybox"

SHELL = ("/bin/sh",)
"""This machine's shell, for tests that run in one."""

SHELLS = [
    pytest.param(("/bin/dash",), id="dash"),
    pytest.param(("/bin/bash",), id="bash"),
    pytest.param(("/bin/bash", "--posix"), id="bash as sh"),
    pytest.param((BUSYBOX, "sh"), id="busybox", marks=pytest.mark.needs("busybox")),
]
"""The shells that instances have as ``sh``."""


def alone(home: Path) -> dict[str, str]:
    """An environment in which git has no configuration but its own."""
    home.mkdir(exist_ok=True)
    return {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C.UTF-8"}


@frozen
class Server:
    """A git server, and the directory that its repositories are in."""

    root: Path
    url: str

    @property
    def requests(self) -> list[str]:
        """What it was asked."""
        return (self.root / "requests").read_text().splitlines()

    @contextmanager
    def watching(self) -> Iterator[Path]:
        """Have a file that gets the arguments of all processes whenever it is asked, while the body runs."""
        seen = self.root / "seen"
        seen.touch()
        try:
            yield seen
        finally:
            seen.unlink()

    def allow(self, token: str) -> None:
        """Take another token for a good one."""
        with (self.root / "tokens").open("a") as file:
            file.write(f"{token}\n")

    def project(self, path: str) -> "Project":
        """A new project."""
        bare, work = self.root / f"{path}.git", self.root / f"{path}.work"
        project = Project(self, path, bare, work)
        bare.mkdir(parents=True)
        work.mkdir()
        project.git("init", "-q", "-b", "main", ".")
        project.git("init", "-q", "--bare", "-b", "main", str(bare))
        project.git("remote", "add", "origin", str(bare))
        return project


@contextmanager
def serving(root: Path, certificate: Path | None = None) -> Iterator[Server]:
    """A git server whose users have `TOKEN`, over TLS if there is a file with a certificate and its key."""
    root.mkdir()
    (root / "tokens").write_text(f"{TOKEN}\n")
    command = [sys.executable, str(Path(__file__).with_name("git_server.py")), str(root)]
    command += [str(certificate)] if certificate else []
    scheme = "https" if certificate else "http"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        yield Server(root, f"{scheme}://127.0.0.1:{process.stdout.readline().strip()}")
        process.stdin.close()


@frozen
class Project:
    """A repository at the server, and a place to make commits for it."""

    server: Server
    path: str
    bare: Path
    work: Path

    @property
    def url(self) -> str:
        """Its address, with the token in it as GitLab sends it."""
        return f"{self.server.url.replace('://', f'://gitlab-ci-token:{TOKEN}@')}/{self.path}.git"

    def git(self, *arguments: str) -> str:
        """Run git where commits are made."""
        who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.com", "-c", "protocol.file.allow=always")
        environment = alone(self.server.root / "home")
        done = subprocess.run([GIT, *who, *arguments], cwd=self.work, env=environment, check=True, capture_output=True)
        return done.stdout.decode().strip()

    def commit(self, files: Mapping[str, str], ref: str = "refs/heads/main") -> str:
        """Commit files, and make a reference of it at the server."""
        for name, text in files.items():
            place = self.work / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "a change")
        self.git("push", "-q", "--force", "origin", f"HEAD:{ref}")
        return self.git("rev-parse", "HEAD")

    def add_submodule(self, path: str, url: str, source: "Project") -> None:
        """Make another project a submodule, named by this address."""
        self.git("submodule", "add", "-q", str(source.bare), path)
        self.git("config", "-f", ".gitmodules", f"submodule.{path}.url", url)
        self.git("add", "-A")

    def job(
        self, sha: str, *, ref: str = "main", refspecs: Sequence[str] = (), depth: int = 20, **variables: str
    ) -> Job:
        """A job of this project."""
        git = GitInfo(
            repo_url=self.url,
            ref=ref,
            sha=sha,
            depth=depth,
            refspecs=tuple(refspecs) or ("+refs/heads/main:refs/remotes/origin/main",),
        )
        return Job(
            id=1,
            token=TOKEN,
            allow_git_fetch=True,
            job_info=JobInfo(project_id=7, project_full_path=self.path),
            git_info=git,
            variables=tuple(Variable(key=key, value=value) for key, value in variables.items()),
        )


@frozen
class Ran:
    """What came of a script."""

    status: int
    output: str


@frozen
class Slot:
    """A slot on an instance, which is a directory here."""

    root: Path
    shell: Sequence[str]
    gitlab: str
    environ: Mapping[str, str] = field(factory=dict)
    authority: str = ""
    """What vouches for the GitLab, as PEM."""

    def settings(self, clone_url: str = "") -> RunnerSettings:
        """The runner's configuration."""
        return RunnerSettings(
            url=self.gitlab,
            token="glrt-t1_0123456789",
            executor="instance",
            clone_url=clone_url,
            ca_chain=self.authority,
        )

    def environment(self, job: Job, clone_url: str = "") -> JobEnvironment:
        """The job's variables."""
        place = Place(builds_dir=str(self.root / "builds"), instance="i-1", slot=0)
        return environment_of(job, self.settings(clone_url=clone_url), place)

    def run(self, script: str) -> Ran:
        """Run a script from its standard input, as the executor does."""
        environment = {**alone(self.root / "home"), **self.environ}
        done = subprocess.run(
            self.shell, input=script, cwd=self.root, env=environment, text=True, capture_output=True, check=False
        )
        return Ran(done.returncode, done.stdout + done.stderr)

    def fetch(self, job: Job, *, before: str = "", after: str = "", clone_url: str = "") -> Ran:
        """Bring the sources of a job."""
        environment = self.environment(job, clone_url=clone_url)
        script = sources_script(job, environment, self.settings(clone_url=clone_url), before=before, after=after)
        return self.run(f"set -e\n{environment.preamble()}\n{script}echo the end\n")

    def project(self, job: Job) -> Path:
        """Where its sources are."""
        return Path(self.environment(job).project_dir)

    def files(self, job: Job) -> set[str]:
        """All files of it but git's own."""
        top = self.project(job)
        places = (place.relative_to(top) for place in top.rglob("*") if place.is_file())
        return {str(place) for place in places if ".git" not in place.parts}

    def head(self, job: Job) -> str:
        """The commit that is checked out."""
        return self.git(job, "rev-parse", "HEAD")

    def git(self, job: Job, *arguments: str) -> str:
        """What git says of the project."""
        command = [GIT, *arguments]
        environment = alone(self.root / "home")
        done = subprocess.run(
            command, cwd=self.project(job), env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def with_programs(self, **programs: str) -> "Slot":
        """The same with other programs in front of those of the machine, as scripts of a shell."""
        directory = self.root / "bin"
        directory.mkdir(exist_ok=True)
        for name, text in programs.items():
            file = directory / name.replace("_", "-")
            file.write_text(f"#!/bin/sh\n{text}\n")
            file.chmod(0o755)
        return evolve(self, environ={**self.environ, "PATH": f"{directory}:{os.environ['PATH']}"})
