"""The journal in SQLite: what it keeps, what it refuses, and what a damaged disk makes of it."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from fleeting import JournalError, MemoryJournal, SqliteJournal
from fleeting.core import PLAN_RECORDS, Drop, Put, Write
from fleeting.journal._sqlite import MIGRATIONS

pytestmark = pytest.mark.anyio


@frozen
class Note:
    """A record of a test."""

    text: str
    number: float | None = None


@frozen
class EarlierInstance:
    """An instance, as it was written down before there was `retain`."""

    pool: str
    origin: str
    intent: str | None
    first_seen: float
    removing: str


KINDS: Mapping[str, type] = {"note": Note, **PLAN_RECORDS}


@asynccontextmanager
async def opened(
    path: Path, *identities: str, owner: str = "me"
) -> AsyncIterator[tuple[SqliteJournal, dict[str, Any]]]:
    """An open journal, and the notes that it held."""
    journal = SqliteJournal(path)
    recovered = await journal.open(identities or ("group",), owner, KINDS)
    try:
        yield journal, dict(recovered.records["note"])
    finally:
        await journal.close()


async def test_what_was_committed_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    """Puts replace, drops forget, the epoch grows, and other kinds are left alone."""
    path = tmp_path / "state" / "journal.sqlite"
    async with opened(path) as (journal, notes):
        assert notes == {}
        await journal.commit([Put("note", "a", Note("one", 1.5)), Put("note", "b", Note("two"))])
        await journal.commit([Put("note", "a", Note("three")), Drop("note", "b"), Drop("note", "never there")])
    async with opened(path) as (journal, notes):
        assert notes == {"a": Note("three")}
    journal = SqliteJournal(path)
    recovered = await journal.open(["group"], "me", {})
    await journal.close()
    assert (recovered.epoch, recovered.records) == (3, {})


async def test_an_instance_that_an_earlier_release_wrote_down_is_not_retained(tmp_path: Path) -> None:
    """What was not known yet when a record was written is as it was then."""
    path = tmp_path / "journal.sqlite"
    record = EarlierInstance(pool="default", origin="requested", intent=None, first_seen=7.0, removing="")
    async with opened(path) as (journal, _):
        await journal.commit([Put("instance", "default/i-1", record)])
    journal = SqliteJournal(path)
    recovered = await journal.open(["group"], "me", KINDS)
    await journal.close()
    assert recovered.records["instance"]["default/i-1"].retained is None


async def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    """Files are 0600 in a directory that is 0700, SQLite's own helpers included."""
    path = tmp_path / "state" / "journal.sqlite"
    async with opened(path) as (journal, _):
        await journal.commit([Put("note", "a", Note("one"))])
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


async def test_a_second_manager_is_refused_with_the_holders_name(tmp_path: Path) -> None:
    """Of the same journal, or of the same group with another journal; not once the first has closed."""
    path, other = tmp_path / "journal.sqlite", tmp_path / "other.sqlite"
    async with opened(path, "group", owner="the first"):
        for second, identities in ((path, ("another group",)), (other, ("another group", "group"))):
            with pytest.raises(JournalError, match=rf"already managed by the first \(process {os.getpid()}\)"):
                async with opened(second, *identities):
                    pass
    async with opened(other, "another group", "group", owner="the second"):
        pass


HOLDER = """
import sys, anyio
from fleeting import SqliteJournal
async def main():
    await SqliteJournal(sys.argv[1]).open(["group"], "the dead", {})
    print("open", flush=True)
    await anyio.sleep_forever()
anyio.run(main)
"""


def test_a_dead_holders_lock_is_taken_over(tmp_path: Path) -> None:
    """The kernel frees it in the moment of its death, also by kill -9."""
    path = tmp_path / "journal.sqlite"

    async def open_and_close() -> None:
        async with opened(path):
            pass

    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(JournalError, match="already managed by the dead"):
            anyio.run(open_and_close)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    anyio.run(open_and_close)


async def test_the_journal_of_other_groups_is_refused(tmp_path: Path) -> None:
    """A file that holds the state of quite other groups was named by mistake; another pool may be added."""
    path = tmp_path / "journal.sqlite"
    async with opened(path, "mine"):
        pass
    with pytest.raises(JournalError, match="holds the state of mine, not of yours; name another file"):
        async with opened(path, "yours"):
            pass
    async with opened(path, "mine", "yours"):
        pass


async def test_whoever_was_taken_over_can_write_no_more(tmp_path: Path) -> None:
    """Every write carries the owner's epoch; one of an earlier epoch is refused, whatever the locks say."""
    path = tmp_path / "journal.sqlite"
    async with opened(path) as (journal, _):
        with sqlite3.connect(path) as database:
            database.execute("UPDATE owner SET epoch = epoch + 1")
        database.close()
        with pytest.raises(JournalError, match="taken over by another manager"):
            await journal.commit([Put("note", "a", Note("one"))])


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """It says which release to install, and changes nothing."""
    path = tmp_path / "journal.sqlite"
    async with opened(path):
        pass
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    database.close()
    with pytest.raises(JournalError, match="written by a newer release"):
        async with opened(path):
            pass


async def test_a_file_that_is_refused_is_closed(tmp_path: Path) -> None:
    """Also while somebody keeps the error, and with it the frames that raised it."""
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"no database at all" * 100)
    path.chmod(0o600)
    with pytest.raises(JournalError, match="is damaged") as kept:
        async with opened(path):
            pass
    assert kept.value.__traceback__ is not None
    assert str(path) not in open_files()


def open_files() -> list[str]:
    """What this process has open."""
    return [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]


async def test_a_record_that_cannot_be_read_is_an_error_not_a_loss(tmp_path: Path) -> None:
    """Forgetting it silently would leave an instance that nobody knows."""
    path = tmp_path / "journal.sqlite"
    async with opened(path) as (journal, _):
        await journal.commit([Put("note", "a", Note("one"))])
    with sqlite3.connect(path) as database:
        database.execute("UPDATE record SET data = '[]'")
    database.close()
    with pytest.raises(JournalError, match="is damaged: the record note a cannot be read; move it away"):
        async with opened(path):
            pass


# --- disks ----------------------------------------------------------------------------------------------


async def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    """While there is no room a commit is refused whole; once there is, the same journal takes it."""
    path = tmp_path / "journal.sqlite"
    big = [Put("note", f"big-{number}", Note("x" * 10_000)) for number in range(50)]
    async with opened(path) as (journal, _):
        await journal.commit([Put("note", "before", Note("one"))])
        assert journal._database is not None
        (pages,) = journal._database.execute("PRAGMA page_count").fetchone()
        journal._database.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(JournalError, match="database or disk is full; check disk space"):
            await journal.commit(big)
        journal._database.execute("PRAGMA max_page_count = 1000000")
        await journal.commit([*big, Drop("note", "before")])
    async with opened(path) as (journal, notes):
        assert len(notes) == 50


async def test_a_directory_that_cannot_be_made_is_told_about(tmp_path: Path) -> None:
    """A file is in the way; the error says where."""
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match=r"/file.* cannot be used: (Not a directory|File exists)"):
        async with opened(tmp_path / "file" / "journal.sqlite"):
            pass


async def test_a_read_only_database_is_told_about(tmp_path: Path) -> None:
    """What was open for writing yesterday is on a disk that is read-only today."""
    path = tmp_path / "journal.sqlite"
    async with opened(path) as (journal, _):
        assert journal._database is not None
        journal._database.execute("PRAGMA query_only = 1")  # root is not stopped by file modes
        with pytest.raises(JournalError, match="attempt to write a readonly database; check disk space"):
            await journal.commit([Put("note", "a", Note("one"))])
        journal._database.execute("PRAGMA query_only = 0")
        await journal.commit([Put("note", "a", Note("one"))])


async def test_a_corrupt_page_is_found_at_start(tmp_path: Path) -> None:
    """Garbage in the middle of the file is an error that says what to do, not a shorter memory."""
    path = tmp_path / "journal.sqlite"
    async with opened(path) as (journal, _):
        await journal.commit([Put("note", f"{number}", Note("x" * 500)) for number in range(200)])
    content = bytearray(path.read_bytes())
    content[8192:12288] = b"\x5a" * 4096
    path.write_bytes(content)
    with pytest.raises(JournalError, match=r"is damaged: .*; move it away"):
        async with opened(path):
            pass


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.6, 0.9, 0.999])
async def test_a_torn_write_is_undone(tmp_path: Path, kept: float) -> None:
    """Power fails in the middle of a commit: of its transaction nothing is seen, of those before all."""
    path, torn = tmp_path / "journal.sqlite", tmp_path / "torn" / "journal.sqlite"
    torn.parent.mkdir()
    async with opened(path) as (journal, _):
        await journal.commit([Put("note", "whole", Note("one"))])
        log = path.with_name("journal.sqlite-wal")
        before = log.stat().st_size
        await journal.commit([Put("note", f"torn-{number}", Note("x" * 500)) for number in range(50)])
        after = log.read_bytes()
        (torn.parent / log.name).write_bytes(after[: before + int((len(after) - before) * kept)])
        torn.write_bytes(path.read_bytes())
    async with opened(torn) as (journal, notes):
        assert notes == {"whole": Note("one")}


# --- the same as in memory ------------------------------------------------------------------------------

keys = st.sampled_from("abc")
records = st.builds(Note, st.text(max_size=20), st.none() | st.floats(allow_nan=False))
writes: st.SearchStrategy[Write] = st.builds(Put, st.just("note"), keys, records) | st.builds(
    Drop, st.just("note"), keys
)


@given(commits=st.lists(st.lists(writes, max_size=5), max_size=8))
@settings(max_examples=50)
def test_it_keeps_what_the_journal_in_memory_keeps(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[Write]]
) -> None:
    """Whatever is committed, in whatever order; any text and any number comes back as it went in."""
    path = tmp_path_factory.mktemp("journal") / "journal.sqlite"

    async def main() -> None:
        memory = MemoryJournal()
        await memory.open(["group"], "me", KINDS)
        async with opened(path) as (journal, _):
            for commit in commits:
                await journal.commit(commit)
                await memory.commit(commit)
        async with opened(path) as (_, notes):
            assert notes == memory.records.get("note", {})

    anyio.run(main)
