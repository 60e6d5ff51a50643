"""Where state lives: a journal of its own for each group, in one directory that is the user's alone."""

import os
import sqlite3
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from attrs import frozen

from fleeting import JournalError
from fleeting.core import Put
from fleeting.journal import Recovered
from taskscaler._state import StateJournal, default_directory

pytestmark = pytest.mark.anyio


@frozen
class Note:
    """A record of a test."""

    text: str


KINDS: Mapping[str, type] = {"note": Note}


@asynccontextmanager
async def opened(
    directory: Path, *identities: str, owner: str = "me"
) -> AsyncIterator[tuple[StateJournal, Mapping[str, Note]]]:
    """An open journal of these groups, and the notes that it held."""
    journal = StateJournal(directory)
    recovered: Recovered = await journal.open(identities, owner, KINDS)
    try:
        yield journal, recovered.records["note"]
    finally:
        await journal.close()


@pytest.mark.parametrize(
    ("variables", "directory"),
    [
        ({"XDG_STATE_HOME": "/state", "HOME": "/home/me"}, "/state/taskscaler"),
        ({"HOME": "/home/me"}, "/home/me/.local/state/taskscaler"),
        ({"XDG_STATE_HOME": "", "HOME": "/home/me"}, "/home/me/.local/state/taskscaler"),
        ({"XDG_STATE_HOME": "state", "HOME": "/home/me"}, "/home/me/.local/state/taskscaler"),
    ],
)
def test_state_is_kept_where_the_desktop_specification_says(
    monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], directory: str
) -> None:
    """Below XDG_STATE_HOME if that is absolute, else below the home directory."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_directory() == Path(directory)


def test_a_user_without_a_home_is_told_to_name_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run under user ids that nobody has heard of."""

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(JournalError, match=r"no home directory .* set dir in \[autoscaler\.state_storage\]"):
        default_directory()


async def test_each_group_has_a_journal_of_its_own(tmp_path: Path) -> None:
    """What was written for one is there when it is opened again, and not for another."""
    async with opened(tmp_path / "state", "local:host:/a") as (journal, notes):
        assert notes == {}
        await journal.commit([Put("note", "n", Note("of a"))])
    async with opened(tmp_path / "state", "local:host:/b") as (_, notes):
        assert notes == {}
    async with opened(tmp_path / "state", "local:host:/a") as (_, notes):
        assert notes == {"n": Note("of a")}


def test_a_journal_s_name_tells_people_and_programs_which_group_it_is_of() -> None:
    """The identity as far as a file name can have it, and a hash, so that no two are alike."""
    journal = StateJournal(Path("/state"))
    path = journal.path(["aws:123/eu-west-1/ci runners"])
    assert path.parent == Path("/state")
    assert path.name.startswith("aws-123-eu-west-1-ci-runners-")
    assert journal.path(["aws:123/eu-west-1/ci_runners"]) != path
    assert journal.path(["a", "b"]) == journal.path(["b", "a"])
    assert len(journal.path(["../" * 500]).name) < 150


async def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    """Files are 0600 in a directory that is 0700."""
    directory = tmp_path / "made" / "state"
    async with opened(directory, "group") as (journal, _):
        await journal.commit([Put("note", "a", Note("one"))])
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()} == {0o600}


async def test_a_second_manager_is_refused_with_the_holder_s_name(tmp_path: Path) -> None:
    """Until the first has closed; one of another group is not."""
    async with opened(tmp_path, "group", owner="the first"):
        with pytest.raises(JournalError, match=r"group is already managed by the first \(process"):
            async with opened(tmp_path, "group"):
                pass
        async with opened(tmp_path, "another group"):
            pass
    async with opened(tmp_path, "group"):
        pass


async def test_a_directory_that_is_of_no_use_is_refused(tmp_path: Path) -> None:
    """One that cannot be made, or that others can write into; it says which key to set."""
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match=r"file/state cannot be made: Not a directory; set dir in \[autoscaler"):
        async with opened(tmp_path / "file" / "state", "group"):
            pass
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(JournalError, match=r"open belongs to or can be written by another user; set dir in \[auto"):
        async with opened(tmp_path / "open", "group"):
            pass


async def test_a_read_only_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a read-only file system shows it; for root nothing else is."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(JournalError, match="cannot be written; check its permissions, or set dir"):
        async with opened(tmp_path, "group"):
            pass


async def test_what_is_wrong_with_the_file_is_told(tmp_path: Path) -> None:
    """A damaged one, and one of a newer release; the locks are free again afterwards."""
    path = StateJournal(tmp_path).path(["group"])
    path.write_bytes(b"no database at all" * 100)
    for _ in range(2):
        with pytest.raises(JournalError, match=r"is damaged: .* move it away"):
            async with opened(tmp_path, "group"):
                pass
    path.unlink()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 1000")
    database.close()
    with pytest.raises(JournalError, match="was written by a newer release"):
        async with opened(tmp_path, "group"):
            pass


async def test_a_closed_journal_writes_nothing(tmp_path: Path) -> None:
    """Closing twice does no harm."""
    journal = StateJournal(tmp_path)
    await journal.close()
    with pytest.raises(JournalError, match="closed"):
        await journal.commit([])
