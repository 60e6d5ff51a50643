"""A command on the instance of a lease, as far as it depends on what the instance is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from fleeting import Unsupported
from taskscaler._wire import KeptFacts
from taskscaler.cli._lease_there import There
from taskscaler.cli._work_tree import WorkTree
from tests.taskscaler.here import Here

pytestmark = pytest.mark.anyio


class Windows(Here):
    """An instance that says that it runs Windows."""

    os = "windows"


@frozen
class Held:
    """A lease, as far as its instance is connected to."""

    home: Path

    @asynccontextmanager
    async def dial(self) -> AsyncIterator[Windows]:
        """Connect."""
        yield Windows(self.home)


def there(home: Path, *, again: bool) -> There:
    """A place on it, of a lease that is kept."""
    lease: Any = Held(home)
    kept = KeptFacts(name="0" * 16, ttl=30.0, idle_timeout=None, stays=False, there=True)
    return There(lease=lease, kept=kept, again=again)


@pytest.mark.parametrize("again", [False, True])
async def test_no_tree_is_left_behind_unsaid(tmp_path: Path, *, again: bool) -> None:
    """An instance to which none can be brought is no place for a command that needs it; others run."""
    place = there(tmp_path, again=again)
    tree = WorkTree(root=tmp_path, prefix="", files={}, size=0)
    with pytest.raises(Unsupported, match="--sync needs an instance with a POSIX shell and tar"):
        await place.run("echo wrong", None, tree)
    assert await place.run("exit 3", None, None) == 3
