"""A journal that an earlier commit wrote: a manager of today takes over from it."""

import sqlite3
from pathlib import Path

import pytest

from fleeting import Observation, Observed, PlanConfig, SqliteJournal, State
from fleeting.core import PLAN_RECORDS, Plan, Stage, Step, messages
from fleeting.journal import Recovered
from taskscaler.core._slots import LEDGER_RECORDS, CordonRecord, DirtyRecord, LeaseRecord, UsesRecord
from tests.strategies import NO_THROTTLE, a_plan, of_type

pytestmark = pytest.mark.anyio

WRITTEN = Path(__file__).parent / "journals" / "305ac4c.sql"
NOW = 1_790_000_100.0
"""Half a minute after its manager was killed."""

CONFIG = PlanConfig(scale_throttle=NO_THROTTLE)
SLEEPS = {"i-2": State.SUSPENDED}


LATER = WRITTEN.with_name("a7a4b43.sql")
"""The same, taken over by a manager whose suspended leases may expire."""


async def recovered(path: Path, script: str = WRITTEN.read_text()) -> Recovered:
    """What the journal holds."""
    with sqlite3.connect(path) as database:
        database.executescript(script)
    database.close()
    journal = SqliteJournal(path)
    kept = await journal.open(["demo://group"], "me", {**PLAN_RECORDS, **LEDGER_RECORDS})
    await journal.close()
    return kept


def look(plan: Plan, now: float, **states: State) -> Step:
    """The view of that moment: all that the journal knows of, and three instances that it does not."""
    plan.tick(now)
    shown = {f"i-{number}": State.RUNNING for number in (1, 2, 3, 4, 5, 6, 7, 8)} | SLEEPS | states
    observed = {id_: Observed(state=state, created_at=NOW - 30) for id_, state in shown.items()}
    return plan.handle(messages.Updated(Observation(observed)), now)


async def test_its_instances_and_intents_are_taken_up_where_they_stood(tmp_path: Path) -> None:
    """Each becomes ready again, sleeps on, is removed, or is kept, as its records and the first view say."""
    kept = await recovered(tmp_path / "journal.sqlite")
    records = {kind: kept.records[kind] for kind in PLAN_RECORDS}
    plan = a_plan(CONFIG, now=NOW, suspends=True, recovered=records)
    assert plan.outstanding == 2 + 3 + 1, "also what nobody knows whether it was heard"
    assert plan.retained == ["i-4"]
    look(plan, NOW)
    stages = {id_: instance.stage for id_, instance in plan.instances.items()}
    assert stages == {
        "i-1": Stage.PREPARING,
        "i-2": Stage.ASLEEP,
        "i-3": Stage.PREPARING,  # which was about to sleep
        "i-4": Stage.HELD,
        "i-5": Stage.REMOVING,
        "i-6": Stage.PREPARING,
        "i-7": Stage.PREPARING,
        "i-8": Stage.PREPARING,
    }
    asleep = plan.instances["i-2"].sleep
    assert asleep is not None
    assert (asleep.why, asleep.since) == ("all leases on it sleep", 1790000030.0)
    assert plan.instances["i-4"].removing == "not needed"
    assert plan.outstanding == 4, "two of them have appeared"


async def test_what_it_gave_up_is_not_used_again(tmp_path: Path) -> None:
    """One that was being removed is asked for again, and one that was lost and comes back is deleted."""
    kept = await recovered(tmp_path / "journal.sqlite")
    plan = a_plan(CONFIG, now=NOW, suspends=True, recovered={kind: kept.records[kind] for kind in PLAN_RECORDS})
    (again,) = of_type(messages.Decrease, plan.tick(NOW).actions)
    assert again.instances == ("i-5",)
    plan.handle(messages.DecreaseFailed(again.instances, "timed out"), NOW)
    step = look(plan, NOW + 1, **{"i-0": State.RUNNING})
    (deleted,) = of_type(messages.Decrease, step.actions)
    assert deleted.instances == ("i-0",)


async def test_its_leases_are_read(tmp_path: Path) -> None:
    """Held and suspended ones, uses, cordons and dirty slots."""
    kept = (await recovered(tmp_path / "journal.sqlite")).records
    lease, sleeper = kept["lease"]["job-1"], kept["lease"]["job-2"]
    assert lease == LeaseRecord("default/i-1", 0, 1790000012.0)
    assert sleeper == LeaseRecord("default/i-2", 0, 1790000012.0, suspended=True)
    assert sleeper.expires_at is None, "a promise to keep it for ever"
    assert kept["uses"] == {"default/i-1": UsesRecord(3), "default/i-2": UsesRecord(1)}
    assert kept["cordon"] == {"default/i-6": CordonRecord("a bad disk")}
    assert list(kept["dirty"].values()) == [DirtyRecord("default/i-1", 0, "job-1")]


@pytest.mark.parametrize("script", [WRITTEN.read_text(), LATER.read_text()], ids=[WRITTEN.stem, LATER.stem])
async def test_its_leases_end_with_their_manager(tmp_path: Path, script: str) -> None:
    """None was promised to outlive it, whichever release wrote them."""
    leases = (await recovered(tmp_path / "journal.sqlite", script)).records["lease"]
    assert leases["job-2"].expires_at is None
    assert not any(lease.persistent for lease in leases.values())


async def test_what_expires_does_so_when_it_would_have(tmp_path: Path) -> None:
    """A suspended lease of a release that knew no persistent ones keeps its time."""
    leases = (await recovered(tmp_path / "journal.sqlite", LATER.read_text())).records["lease"]
    assert leases["job-3"] == LeaseRecord("default/i-2", 1, 1790000020.0, suspended=True, expires_at=1790003620.0)
    assert leases["job-4"] == LeaseRecord("default/i-3", 0, 1790000021.0)
