"""A git server, a project at it, and slots of instances in every shell of this machine."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.taskscaler_gitlab.projects import SHELL, SHELLS, Project, Server, Slot, serving


@pytest.fixture(scope="session")  # not a module's: stories, which come between its tests, would end it each time
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A git server for all tests here."""
    with serving(tmp_path_factory.mktemp("git") / "server") as running:
        yield running


@pytest.fixture
def project(server: Server, tmp_path: Path) -> Project:
    """A project of this test's own."""
    return server.project(f"group/{tmp_path.name}")


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> Sequence[str]:
    """Each shell in turn."""
    command: Sequence[str] = request.param
    return command


@pytest.fixture
def slot(tmp_path: Path, server: Server, shell: Sequence[str]) -> Slot:
    """A slot that no job had before."""
    return Slot(tmp_path, shell, server.url)


@pytest.fixture
def one_slot(tmp_path: Path, server: Server) -> Slot:
    """The same in one shell, for what does not depend on that."""
    return Slot(tmp_path, SHELL, server.url)
