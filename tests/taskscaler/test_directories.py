"""Directories of jobs on an instance, for authors of executors."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from fleeting import Completed, ConnectError
from fleeting.archives import ArchiveRefused
from fleeting.connectors import Sink
from taskscaler.executors import artifacts, directories
from tests.fleeting.local_agents import connected

pytestmark = pytest.mark.anyio


async def test_a_directory_is_made_filled_emptied_and_removed(tmp_path: Path) -> None:
    """Made a second time it is the same one; of what is asked for, what is not there is named."""
    (tmp_path / "in").write_text("given")
    files = {"a/b c": tmp_path / "in"}
    async with connected(tmp_path / "group") as connection:
        path = await directories.make(connection, "base", "kept", files)
        assert await directories.make(connection, "base", "kept", {}) == path
        assert await anyio.Path(path, "a", "b c").read_text() == "given"

        async def download(patterns: Sequence[str], store: Sink) -> Completed:
            return await directories.download(connection, path, patterns, store)

        missing = await artifacts.fetch(download, ["a/b *", "x"], tmp_path / "out", limit=100)
        assert (missing, (tmp_path / "out" / "a" / "b c").read_text()) == (["x"], "given")
        with pytest.raises(ArchiveRefused, match="4 bytes"):
            await artifacts.fetch(download, ["a"], tmp_path / "none", limit=4)
        assert not (tmp_path / "none").exists()
        assert (await directories.remove(connection, [path])).ok
        assert not await anyio.Path(path).exists()


async def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """It says where, and what the instance said."""
    async with connected(tmp_path / "group") as connection:
        with pytest.raises(ConnectError, match="cannot prepare /dev/null/x: "):
            await directories.make(connection, "/dev/null", "x", {})
