"""The record of a fleet: what was told comes back, whatever happened to the file or the command in between."""

import json
import os
import resource
from collections.abc import Sequence
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskscaler import Decision, DecisionEvent, InstanceEvent, LeaseEvent, ScalerEvent
from taskscaler.batch import FleetRecord, Opened, PoolFacts, RecordUnreadable, read_record
from taskscaler.core._decide import Demand, PoolDecision, Removal, Sleep, Wake

POOL = PoolFacts(name="default", plugin="local", capacity_per_instance=2, max_instances=4)

times = st.floats(0, 2e9)
names = st.text(max_size=5)
counts = st.integers(0, 5)
pools = st.builds(
    PoolDecision,
    counts.map(str),
    have=counts,
    wanted=counts,
    increase=counts,
    limited_by=names,
    withdraw=counts,
    excess=counts,
)
decisions = st.builds(
    Decision,
    at=times,
    demand=st.builds(Demand, counts, counts, counts),
    idle_target=counts,
    target=counts,
    target_instances=counts,
    spare=counts,
    pools=st.lists(pools, max_size=2).map(tuple),
    look_again_at=times | st.just(inf),
    removals=st.lists(st.builds(Removal, names, names, names), max_size=2).map(tuple),
    sleeps=st.lists(st.builds(Sleep, names, names, names), max_size=2).map(tuple),
    wakes=st.lists(st.builds(Wake, names, names, names), max_size=2).map(tuple),
)
events: st.SearchStrategy[ScalerEvent] = st.one_of(
    st.builds(InstanceEvent, at=times, pool=names, instance=names, state=names, why=names, lost=st.booleans()),
    st.builds(LeaseEvent, at=times, key=names, pool=names, instance=names, slot=counts, what=names, why=names),
    st.builds(DecisionEvent, at=times, decision=decisions),
)


def write(path: Path, told: Sequence[ScalerEvent]) -> None:
    """Write as one manager does."""
    record = FleetRecord(path, [POOL])
    for event in told:
        record(event)
    record.close()


@given(lives=st.lists(st.lists(events, min_size=1, max_size=4), min_size=1, max_size=3), cut=st.integers(0, 3000))
def test_what_was_told_comes_back(
    tmp_path_factory: pytest.TempPathFactory, lives: list[list[ScalerEvent]], cut: int
) -> None:
    """All managers' events, in order, but for the line in which one was killed."""
    path = tmp_path_factory.mktemp("record") / "fleet.jsonl"
    expected: list[object] = []
    for told in lives:
        write(path, told)
        expected += [Opened(at=told[0].at, pools=(POOL,)), *told]
    assert read_record(path) == expected
    os.truncate(path, max(0, path.stat().st_size - cut))
    whole = path.read_bytes().count(b"\n")
    ends = path.read_bytes().endswith((b"\n", b"}"))
    kept = read_record(path)
    assert kept == expected[: len(kept)]
    assert len(kept) in ({whole, whole + 1} if ends else {whole})
    write(path, lives[0])
    assert read_record(path) == [*kept, Opened(at=lives[0][0].at, pools=(POOL,)), *lives[0]]


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    """One object a line, without what only Python reads; a decision is there in words too."""
    path = tmp_path / "fleet.jsonl"
    demand = Demand(in_use=0, reserved=0, pending=3)
    decision = Decision(1.0, demand, 0, 3, 2, 0, (), inf)
    write(path, [DecisionEvent(at=1.0, decision=decision)])
    opened, decided = (json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines())
    assert (opened["event"], opened["version"], opened["pools"][0]["plugin"]) == ("opened", 1, "local")
    assert decided["decision"]["demand"]["pending"] == 3
    assert decided["decision"]["look_again_at"] is None
    assert decided["text"] == "0 in use, 0 reserved, 3 waiting, 0 to keep idle: 3 slots, 2 instances"


def test_a_record_of_a_later_release_is_refused(tmp_path: Path) -> None:
    """What would be misunderstood is not read; the error names the file and what to do."""
    path = tmp_path / "fleet.jsonl"
    path.write_text(json.dumps({"at": 0.0, "event": "opened", "version": 2, "pools": [], "new": 1}))
    with pytest.raises(RecordUnreadable, match=r"fleet\.jsonl cannot be used: a newer release has written it"):
        read_record(path)


@pytest.mark.parametrize(
    "line", ["", "3", "null", "[]", "{}", '{"at": null, "event": "lease"}', '{"at": 1, "event": "x"}', "\xff"]
)
def test_lines_that_make_no_sense_are_passed_over(tmp_path: Path, line: str) -> None:
    """The rest is told."""
    path = tmp_path / "fleet.jsonl"
    event = LeaseEvent(at=1.0, key="a", pool="default", instance="i", slot=0, what="acquired")
    write(path, [event])
    with path.open("ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    write(path, [event])
    assert [each for each in read_record(path) if each == event] == [event, event]


def test_a_full_disk_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once, no half line is left, and what comes when there is room again is written."""
    path = tmp_path / "fleet.jsonl"
    record = FleetRecord(path, [POOL])
    event = LeaseEvent(at=1.0, key="a", pool="default", instance="i", slot=0, what="acquired")
    record(event)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
    try:
        record(event)
        record(event)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    record(event)
    record.close()
    assert read_record(path)[1:] == [event, event]
    assert [each.getMessage() for each in caplog.records] == ["record_failed"]


def test_a_record_without_a_place_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is written, and that is logged once."""
    write(tmp_path / "nowhere" / "fleet.jsonl", [LeaseEvent(at=1.0, key="a", pool="p", instance="i", slot=0, what="x")])
    assert [each.getMessage() for each in caplog.records] == ["record_failed"]
