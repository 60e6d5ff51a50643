"""What tests of steps share."""

import sys
from pathlib import Path

import pytest

from job_steps._zipapp import zipapp
from tests.job_steps import agents, fake_docker
from tests.job_steps.benches import INNER, OUTER, Bench
from tests.job_steps.running import ECHO, Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return an empty project with one function, `./echo`."""
    (tmp_path / "project").mkdir()
    found = Project(tmp_path / "project")
    found.add("echo", ECHO)
    return found


@pytest.fixture(scope="session")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a ``.job-steps`` with the agent in it, compiled."""
    home = tmp_path_factory.mktemp("placed") / ".job-steps"
    agents.place(home)
    return home


@pytest.fixture(scope="session")
def agent_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the agent's zipapp."""
    path = tmp_path_factory.mktemp("agent") / "agent.pyz"
    path.write_bytes(zipapp().data)
    return path


@pytest.fixture
def bench(project: Project, tmp_path: Path, agent_file: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a project whose engine has the images `test/a` and `test/b`."""
    engine, programs = tmp_path / "engine", tmp_path / "programs"
    for each in (engine / "images", engine / "containers", programs):
        each.mkdir(parents=True)
    program = programs / "docker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {fake_docker.__file__} {engine} "$@"\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    bench = Bench(project, engine, agent_file)
    bench.image("a")
    bench.image("b")
    project.add("outer", OUTER)
    project.add("inner", INNER)
    return bench
