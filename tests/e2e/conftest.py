"""What end-to-end tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.leftovers import agents


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A directory for temporary files of our own: whatever the fleet leaves on this machine is left here."""
    home = tmp_path / "tmp"
    home.mkdir()
    yield home
    assert list(home.iterdir()) == [], "directories or sockets were left behind"
    assert agents(home) == [], "processes were left behind"
