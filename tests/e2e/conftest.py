"""What end-to-end tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

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
