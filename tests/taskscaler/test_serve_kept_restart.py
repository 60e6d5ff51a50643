"""Leases that outlive their clients, and the daemon: what the next one finds."""

import json
from pathlib import Path
from stat import S_IMODE

import anyio
import pytest

from fleeting import MemoryJournal
from fleeting.testing import FakeCloud
from tests.taskscaler.calling import Caller, called

pytestmark = pytest.mark.anyio


def records(directory: Path) -> dict[str, Path]:
    """What is written down, by key."""
    return {json.loads(path.read_bytes())["key"]: path for path in directory.iterdir()}


def modes(*paths: Path) -> list[int]:
    """Who may read what."""
    return [S_IMODE(path.stat().st_mode) for path in paths]


async def kept(ask: Caller, number: int, key: str, **bounds: object) -> Caller:
    """Be a client that has acquired a lease, and have it kept."""
    client = ask.called(number)
    await client("POST", "/client", {})
    lease = await client("POST", "/acquire", {"key": key, "request": "1"})
    answer = await client("POST", "/keep", {"key": key, "lease": lease.data["lease"], **bounds})
    assert answer.status == 200
    return client


async def test_the_next_daemon_keeps_what_the_last_one_has_kept(tmp_path: Path) -> None:
    """For whom and for how long; a client that had one gets it again, and so does one that comes later."""
    cloud, journal, leases = FakeCloud(), MemoryJournal(), tmp_path / "leases"
    async with called(cloud, journal=journal, leases=leases, capacity_per_instance=2) as (ask, _):
        gone = await kept(ask, 1, "left", ttl=5000, idle_timeout=400)
        await gone("DELETE", "/client")
        await kept(ask, 2, "had")
    assert modes(leases, *records(leases).values()) == [0o700, 0o600, 0o600]
    async with called(cloud, journal=journal, leases=leases, capacity_per_instance=2) as (ask, fleet):
        client = ask.called(2)
        answer = await client("POST", "/client", {"leases": ["had"]})
        assert answer.data["leases"] == []
        assert {each["key"] for each in answer.data["detached"]} == {"left", "had"}
        assert all(each["reattach_by"] == "inf" for each in answer.data["detached"])
        for key, bounds in (("had", (8 * 3600, None)), ("left", (5000, 400))):
            lease = await client("POST", "/reattach", {"key": key, "request": key})
            assert (lease.data["instance"], lease.data["persistent"]) == ("i-1", True)
            found = fleet.holders.keeper.kept[key]
            assert (found.ttl, found.idle_timeout, found.uid) == (*bounds, 0)
        assert (await fleet.scaler.capacity()).acquired == 2


async def test_time_without_a_daemon_counts(tmp_path: Path) -> None:
    """A lease whose time has come meanwhile ends as soon as the next one is there, and no other."""
    cloud, journal = FakeCloud(), MemoryJournal()
    async with called(cloud, journal=journal, leases=tmp_path) as (ask, _):
        await (await kept(ask, 1, "dev"))("DELETE", "/client")
        await (await kept(ask, 2, "lives"))("DELETE", "/client")
    record = records(tmp_path)["dev"]
    data = json.loads(record.read_bytes())
    record.write_text(json.dumps({**data, "left_at": data["left_at"] - 9 * 3600}))
    async with called(cloud, journal=journal, leases=tmp_path) as (ask, fleet):
        await anyio.wait_all_tasks_blocked()
        late = await ask("POST", "/stop", {"key": "dev"})
        why = "the lease 'dev' has ended: nobody used it for 8h"
        assert (late.status, late.why.partition(";")[0]) == (404, why)
        assert ([*fleet.holders.keeper.kept], (await fleet.scaler.capacity()).acquired) == (["lives"], 1)
    async with called(cloud, journal=journal, leases=tmp_path) as (_, fleet):
        assert [*fleet.holders.keeper.kept] == ["lives"]


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"key": "dev"}', '{"key": "dev", "name": "n", "uid": 0, "ttl": 1e9}']
)
async def test_a_damaged_record_keeps_nothing(tmp_path: Path, damage: str) -> None:
    """Its lease is detached like any other of the last daemon's, for as long as those are."""
    cloud, journal = FakeCloud(), MemoryJournal()
    async with called(cloud, journal=journal, leases=tmp_path) as (ask, _):
        await kept(ask, 1, "dev")
    records(tmp_path)["dev"].write_text(damage)
    async with called(cloud, journal=journal, leases=tmp_path) as (ask, fleet):
        assert (fleet.holders.keeper.kept, records(tmp_path)) == ({}, {})
        [left] = (await ask.called(1)("POST", "/client", {})).data["detached"]
        assert left["reattach_by"] != "inf"


async def test_what_is_lost_meanwhile_is_kept_no_longer(tmp_path: Path) -> None:
    """A record without a slot is deleted, and whoever comes back learns why."""
    cloud, journal = FakeCloud(), MemoryJournal()
    async with called(cloud, journal=journal, leases=tmp_path) as (ask, _):
        await kept(ask, 1, "dev")
    async with called(FakeCloud(), leases=tmp_path) as (ask, fleet):
        assert fleet.holders.keeper.kept == {}
        client = ask.called(1)
        await client("POST", "/client", {})
        late = await client("POST", "/reattach", {"key": "dev", "request": "1"})
        assert (late.status, late.why) == (404, "the lease 'dev' was lost while the daemon was away")


async def test_what_cannot_be_written_down_is_not_kept(tmp_path: Path) -> None:
    """The client is told why, and its lease is as before."""
    (tmp_path / "file").touch()
    async with called(FakeCloud(), leases=tmp_path / "file" / "leases") as (ask, fleet):
        client = ask.called(1)
        await client("POST", "/client", {})
        lease = await client("POST", "/acquire", {"key": "dev", "request": "1"})
        answer = await client("POST", "/keep", {"key": "dev", "lease": lease.data["lease"]})
        assert (answer.status, "could not be stored (Not a directory)" in answer.why) == (507, True)
        assert fleet.holders.keeper.kept == {}
        await client("DELETE", "/client")
        assert (await fleet.scaler.capacity()).acquired == 0
