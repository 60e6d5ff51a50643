"""What tests of steps share."""

from pathlib import Path

import pytest

from tests.job_steps import agents
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
