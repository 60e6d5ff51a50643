"""What ``taskscaler doctor`` says of the machine: releases, plugins, clock, disk, and what managers left."""

import sqlite3
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event

import anyio
import anyio.to_thread
import pytest

from fleeting import ConnectorConfig, SqliteJournal
from fleeting.core import Put
from fleeting.core._intents import IntentRecord
from fleeting.errors import PluginBroken
from fleeting.plugins import in_units
from taskscaler.cli._doctor import _host, _state
from taskscaler.cli._doctor._checks import Check, Checks, Report
from taskscaler.cli._doctor._finding import Finding, Grade
from taskscaler.cli._doctor._plugins import PluginLook, likely_protocol
from taskscaler.cli._doctor._state import Disk, judge_disk
from taskscaler.config import Autoscaler

NOON = 1783512000.0
"""12:00 UTC on Wednesday, 8 July 2026."""

DAY = 86_400.0
INTENT = IntentRecord(pool="", count=2, accepted=None, matched=0, requested_at=NOON, asked_at=NOON)
GIB = 1 << 30


# --- releases, plugins, clock ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requirement", "found", "wrong"),
    [
        ("fleeting>=0.1,<0.2", "0.1.7", None),
        ("fleeting>=0.1,<0.2", "0.2.0", "0.2.0 is installed"),
        ("fleeting>=0.1,<0.2", None, "it is not installed"),
        ("fleeting>=0.1", "0.2.0rc1", None),
        ("paramiko>=5; extra == 'ssh'", None, None),
        ("paramiko>=5; extra == 'ssh'", "3.0", "3.0 is installed"),
        ("tomli>=9; python_version < '3'", None, None),
        ("fleeting[ssh]>=0.1", "0.1", None),
    ],
)
def test_requirements_that_are_not_met(requirement: str, found: str | None, wrong: str | None) -> None:
    """What only an extra requires may be missing; what is there has to fit."""
    unmet = [*_host.unmet({"taskscaler": [requirement]}, lambda _: found)]
    assert [each[2] for each in unmet] == ([] if wrong is None else [wrong])


@pytest.mark.parametrize(
    ("now", "is_kept", "grade"),
    [
        (NOON, True, Grade.OK),
        (NOON, None, Grade.OK),
        (NOON, False, Grade.WARNING),
        (NOON - 0.5 * DAY, True, Grade.OK),
        (NOON - 2 * DAY, True, Grade.PROBLEM),
        (0.0, None, Grade.PROBLEM),
    ],
)
def test_clocks(now: float, is_kept: bool | None, grade: Grade) -> None:  # noqa: FBT001  (pytest's)
    """One from before the release was installed is wrong; one that nothing keeps may become so."""
    finding = _host.judge_clock(now, NOON, is_kept=is_kept)
    assert finding.grade is grade
    assert bool(finding.do) == (grade is not Grade.OK)


def lacking(name: str) -> object:
    """Load a plugin that lacks a package."""
    try:
        raise ModuleNotFoundError("paramiko is not installed; pip install 'fleeting[ssh]'")
    except ModuleNotFoundError as error:
        raise PluginBroken(name, reason="it fails") from error


@pytest.mark.parametrize(("is_needed", "grade"), [(True, Grade.PROBLEM), (False, Grade.OK)])
def test_an_extra_that_is_missing(is_needed: bool, grade: Grade) -> None:  # noqa: FBT001  (pytest's)
    """Is a problem only for a file that needs it; what to install is said in both cases."""
    found: list[Finding] = []
    PluginLook("connector", "ssh", "fleeting 0.1", lacking, is_needed=is_needed).run(found.append)
    assert [each.grade for each in found] == [grade]
    assert found[0].found == "connector ssh: paramiko is not installed"
    assert found[0].do.startswith("pip install 'fleeting[ssh]'")


def test_a_module_that_is_missing_for_another_reason_is_no_extra() -> None:
    """Nobody said what to install for it."""

    def broken(name: str) -> object:
        raise PluginBroken(name, reason="it fails") from ModuleNotFoundError("No module named 'x'")

    with pytest.raises(PluginBroken):
        PluginLook("group", "x", "x 1", broken).run(lambda _: None)


@pytest.mark.parametrize(
    ("plugin", "connector", "protocol"),
    [
        ("aws", {}, "ssh"),
        ("aws", {"os": "windows"}, "winrm"),
        ("aws", {"os": "windows", "protocol": "ssh"}, "ssh"),
        ("aws", {"protocol": "winrm+https"}, "winrm"),
        ("local", {}, "local"),
    ],
)
def test_the_connector_that_will_be_needed(plugin: str, connector: Mapping[str, str], protocol: str) -> None:
    """As far as the file shows it: no cloud has to be asked for that."""
    pool = Autoscaler(plugin=plugin, connector_config=ConnectorConfig(**connector))  # type: ignore[arg-type]  # names and values
    assert likely_protocol(pool) == protocol


# --- disk and state --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("disk", "grade"),
    [
        (Disk(size=100 * GIB, free=50 * GIB, inodes=1000, is_read_only=False), None),
        (Disk(size=100 * GIB, free=50 * GIB, inodes=None, is_read_only=False), None),
        (Disk(size=100 * GIB, free=9 * GIB, inodes=1000, is_read_only=False), Grade.WARNING),
        (Disk(size=GIB, free=GIB // 8, inodes=1000, is_read_only=False), Grade.WARNING),
        (Disk(size=GIB, free=0, inodes=1000, is_read_only=False), Grade.PROBLEM),
        (Disk(size=GIB, free=GIB, inodes=0, is_read_only=False), Grade.PROBLEM),
        (Disk(size=GIB, free=GIB, inodes=1000, is_read_only=True), Grade.PROBLEM),
        (Disk(size=0, free=0, inodes=None, is_read_only=False), Grade.PROBLEM),
    ],
)
def test_disks(disk: Disk, grade: Grade | None) -> None:
    """Full, nearly full, out of files, read-only."""
    found = [*judge_disk("state", Path("/state"), disk, "move it")]
    assert [each.grade for each in found] == ([] if grade is None else [grade])
    assert all(each.do and each.found.startswith("/state: ") for each in found)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (5 << 20, "5 MiB"), (9 << 30, "9 GiB"), (3 << 40, "3 TiB")]
)
def test_sizes(size: int, text: str) -> None:
    """In the largest unit of which there is at least one."""
    assert in_units(size) == text


def times(directory: Path) -> Mapping[str, int]:
    """When each file there was last changed."""
    return {each.name: each.stat().st_mtime_ns for each in directory.iterdir()}


def left(directory: Path) -> Sequence[Finding]:
    """What is said of managers."""
    return [*_state.look_at_managers(directory)]


async def keep(path: Path, owner: str) -> SqliteJournal:
    """Write down a request for instances as a manager does."""
    journal = SqliteJournal(path)
    await journal.open(["aws:1"], owner, {})
    await journal.commit([Put("intent", "one", INTENT)])
    return journal


@pytest.mark.anyio
async def test_what_a_dead_manager_left(tmp_path: Path) -> None:
    """It is named with what is still known of its fleet; of one that lives, only that it does. Nothing is changed."""
    path = tmp_path / "fleet.sqlite"
    journal = await keep(path, "build-7")
    (finding,) = left(tmp_path)
    assert finding.grade is Grade.OK
    assert finding.found.startswith("build-7 (process ")
    await journal.close()
    before = times(tmp_path)
    (finding,) = left(tmp_path)
    assert finding.grade is Grade.WARNING
    assert "ended and left 1 intent of aws:1" in finding.found
    assert times(tmp_path) == before


@pytest.mark.anyio
async def test_what_is_in_the_log_of_a_killed_managers_journal_counts(tmp_path: Path) -> None:
    """It never got round to writing it into the file itself."""
    journal = await keep(tmp_path / "fleet.sqlite", "build-7")
    copy = tmp_path / "copy"
    copy.mkdir(mode=0o700)
    for name in ("fleet.sqlite", "fleet.sqlite-wal", "fleet.sqlite-shm"):
        (copy / name).write_bytes((tmp_path / name).read_bytes())
    await journal.close()
    (finding,) = left(copy)
    assert "ended and left 1 intent of aws:1" in finding.found


def test_a_file_of_somebody_elses(tmp_path: Path) -> None:
    """Is damaged, for our purposes."""
    with sqlite3.connect(tmp_path / "other.sqlite") as database:
        database.execute("CREATE TABLE x (y)")
    database.close()
    (finding,) = left(tmp_path)
    assert (finding.grade, finding.code) == (Grade.PROBLEM, "FL202")


def test_an_empty_directory_and_none(tmp_path: Path) -> None:
    """Nobody was there."""
    for directory in (tmp_path, tmp_path / "nowhere"):
        assert [each.grade for each in left(directory)] == [Grade.OK]


# --- checks side by side ---------------------------------------------------------------------------------


def finding(text: str) -> Finding:
    """One that is in order."""
    return Finding(check="x", grade=Grade.OK, found=text)


@pytest.mark.anyio
async def test_checks_end_only_themselves() -> None:
    """What they found before is kept, in their order, whichever is done first; and it is known that one hangs."""
    let_go, has_gone = Event(), Event()

    def raises(report: Report) -> None:
        report(finding("before"))
        raise SystemExit(3)

    def hangs(report: Report) -> None:
        report(finding("so far"))
        let_go.wait()
        has_gone.set()

    def ends(report: Report) -> None:
        report(finding("well"))

    checks, shown = Checks(), list[str]()
    plan = [Check("a", raises, 20), Check("b", hangs, 1), Check("c", ends, 20)]
    await checks.run(plan, lambda each: shown.append(each.found))
    assert shown == ["before", "SystemExit: 3", "so far", "no result after 1s", "well"]
    assert checks.hangs
    let_go.set()
    assert await anyio.to_thread.run_sync(has_gone.wait, 20)


def test_the_host_of_the_tests() -> None:
    """Is one that the release is tested on."""
    assert [each.grade for each in _host.look_at_python()] == [Grade.OK]
    assert [each.grade for each in _host.look_at_versions()] == [Grade.OK]
    assert sys.platform != "win32"
