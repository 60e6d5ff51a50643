"""What end-to-end tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import quickstart as files
from tests.e2e.leftovers import agents, instances


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Directories of our own for temporary files and for state: whatever the fleet leaves on this machine is there."""
    home = tmp_path / "home"
    (home / "tmp").mkdir(parents=True)
    yield home
    assert list((home / "tmp").iterdir()) == [], "directories or sockets were left behind"
    assert instances(home) == [], "instances were left behind"
    assert agents(home) == [], "processes were left behind"


@pytest.fixture
def quickstart(tmp_path: Path, *, full: bool) -> Path:
    """The quickstart's jobs file, in a directory of our own; as printed, or with less to measure for each job."""
    return files.copy(tmp_path / "quickstart", whole=full)
