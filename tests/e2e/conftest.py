"""What end-to-end tests share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import quickstart as files
from tests.e2e.leftovers import agents, instances, wait_for_the_end_of


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Directories of our own for temporary files and for state: whatever the fleet leaves on this machine is there."""
    home = tmp_path / "home"
    (home / "tmp").mkdir(parents=True)
    yield home
    wait_for_the_end_of(agents(home))  # the last thing that they do is to remove their directories
    assert list((home / "tmp").iterdir()) == [], "directories or sockets were left behind"
    assert instances(home) == [], "instances were left behind"
    assert agents(home) == [], "processes were left behind"


@pytest.fixture
def quickstart(tmp_path: Path, *, full: bool) -> Path:
    """The quickstart's jobs file, in a directory of our own; as printed, or with less to measure for each job."""
    return files.copy(tmp_path / "quickstart", whole=full)


@pytest.fixture(scope="session")
def without(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of modules in whose place matplotlib is not installed."""
    directory = tmp_path_factory.mktemp("without")
    (directory / "matplotlib.py").write_text("raise ImportError\n")
    return directory


@pytest.fixture
def pictures() -> None:
    """Let the commands of a test draw their timelines."""


@pytest.fixture(autouse=True)
def spare_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, without: Path) -> None:
    """Let commands run as where matplotlib is not installed, unless a test is about what they draw or leave.

    To import it and draw took more than half of what a small batch costs.
    """
    if "pictures" not in request.fixturenames:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(without), os.environ.get("PYTHONPATH")])))
