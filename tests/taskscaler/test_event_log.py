"""The event log: what was written comes back, whatever happened to the file or the command in between."""

import json
import os
import resource
from contextlib import closing
from math import inf
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskscaler import Decision, DecisionEvent, InstanceEvent, LeaseEvent
from taskscaler.batch import (
    Begun,
    CannotResume,
    Ended,
    EventLog,
    GivenUp,
    Job,
    JobState,
    Joined,
    Over,
    Planned,
    PoolFacts,
    RecordedEvent,
    RecordUnreadable,
    Replanned,
    Rerun,
    Results,
    Resumed,
    Retries,
    Started,
    _event_log,
    read_events,
)
from taskscaler.batch._events import as_line, header
from taskscaler.core._decide import Demand, PoolDecision, Removal, Sleep, Wake
from taskscaler.executors import JobSpec
from tests.taskscaler.uses import MEMORY_LIMITS, STEP_USES

pytestmark = pytest.mark.anyio

POOL = PoolFacts(name="default", plugin="local", capacity_per_instance=2, max_instances=4)
JOBS = [Job(spec=JobSpec(name="a", script="true"))]
ID = "0123456789ab"
BEGUN = Begun.of(JOBS, at=1.0, pools=[POOL], id=ID)
CAME = InstanceEvent(at=2.0, pool="default", instance="i", state="creating")

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
states = st.sampled_from(JobState)
retries = st.builds(
    Retries,
    lost=counts | st.just("any"),
    failed=counts,
    backoff=times,
    on_exit=st.lists(st.integers(1, 255), max_size=2).map(tuple),
)
planned = st.builds(Planned, name=names, retries=counts | retries)
events: st.SearchStrategy[RecordedEvent] = st.one_of(
    st.builds(InstanceEvent, at=times, pool=names, instance=names, state=names, why=names, lost=st.booleans()),
    st.builds(DecisionEvent, at=times, decision=decisions),
    st.builds(
        Begun,
        at=times,
        jobs=st.lists(planned, max_size=4).map(tuple),
        pools=st.just((POOL,)),
        jobs_file=names,
        socket=names,
        id=names,
    ),
    st.builds(Resumed, at=times, pools=st.just((POOL,))),
    st.builds(Replanned, at=times, jobs=st.lists(planned, max_size=4).map(tuple)),
    st.builds(Rerun, at=times, jobs=st.lists(names, max_size=3).map(tuple)),
    st.builds(
        Started, at=times, job=names, pool=names, instance=names, slot=counts, detached=st.booleans(), logged=counts
    ),
    st.builds(Joined, at=times, job=names),
    st.builds(
        Ended,
        at=times,
        job=names,
        state=states,
        exit_code=st.none() | counts,
        why=names,
        cpu_time=st.none() | times,
        peak_memory=st.none() | counts,
        disk_written=st.none() | counts,
        memory_limit=st.none() | MEMORY_LIMITS,
        steps=st.lists(STEP_USES, max_size=3).map(tuple),
        preempted=st.booleans(),
        interrupted=st.booleans(),
        warnings=st.lists(names, max_size=2).map(tuple),
    ),
    st.builds(GivenUp, at=times, jobs=st.lists(names, max_size=3).map(tuple), state=states, why=names),
    st.builds(Over, at=times, well=st.booleans()),
)


def write(path: Path, *written: RecordedEvent | bytes) -> Path:
    """Write a log, lines of which may be given as they are."""
    path.write_bytes(header() + b"".join(each if isinstance(each, bytes) else as_line(each) for each in written))
    return path


@pytest.fixture(autouse=True)
def known_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every batch be called the same."""
    monkeypatch.setattr(_event_log, "token_hex", lambda _: ID)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """A directory for results, made."""
    results = Results(tmp_path / "results")
    results.prepare()
    return results


# --- the file ----------------------------------------------------------------------------------------------------


@given(written=st.lists(events, max_size=6), cut=st.integers(0, 3000))
def test_what_was_written_comes_back(
    tmp_path_factory: pytest.TempPathFactory, written: list[RecordedEvent], cut: int
) -> None:
    """In order, but for the line in which a command was killed."""
    path = write(tmp_path_factory.mktemp("log") / "events.jsonl", *written)
    assert read_events(path) == written
    os.truncate(path, max(len(header()), path.stat().st_size - cut))
    kept = read_events(path)
    assert kept == written[: len(kept)]
    assert len(kept) == path.read_bytes().count(b"\n") - 1


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    """One object a line, without what only Python reads; a decision is there in words too."""
    demand = Demand(in_use=0, reserved=0, pending=3)
    decision = Decision(1.0, demand, 0, 3, 2, 0, (), inf)
    path = write(tmp_path / "events.jsonl", BEGUN, DecisionEvent(at=1.0, decision=decision))
    first, begun, decided = (json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines())
    assert first == {"format": "taskscaler events", "version": 3}
    assert (begun["event"], begun["jobs"], begun["pools"][0]["plugin"]) == (
        "begun",
        [{"retries": 2, "names": ["a"]}],
        "local",
    )
    assert decided["decision"]["demand"]["pending"] == 3
    assert decided["decision"]["look_again_at"] is None
    assert decided["text"] == "3 slots, 2 instances (3 waiting)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not the event log of a batch"),
        ("???\n", "it is not the event log of a batch"),
        ('{"event": "begun"}\n', "it is not the event log of a batch"),
        ('{"format": "events of another", "version": 1}\n', "it is not the event log of a batch"),
        ('{"format": "taskscaler events", "version": 4}\n{"event": "x"}\n', "a newer release has written it"),
    ],
    ids=["empty", "garbage", "headless", "foreign", "newer"],
)
def test_a_file_of_others_or_of_a_later_release_is_refused(results: Results, text: str, message: str) -> None:
    """What would be misunderstood is not read; the error names the file. Twice, for the file was let go."""
    results.events.write_text(text)
    with pytest.raises(RecordUnreadable, match=rf"events\.jsonl cannot be used: {message}"):
        read_events(results.events)
    for _ in range(2):
        with pytest.raises(CannotResume, match=rf"events\.jsonl cannot be used: {message}"):
            EventLog.reopen(results)
    assert results.events.read_text() == text


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"3",
        b"null",
        b"[]",
        b"{}",
        b'{"at": null, "event": "resumed"}',
        b'{"at": 1, "event": "started"}',
        b'{"at": 1, "event": "ended", "job": "a", "state": "dancing"}',
        b"\xff",
    ],
)
def test_a_line_that_makes_no_sense_is_named(results: Results, line: bytes) -> None:
    """Nobody can say any more what has run."""
    write(results.events, BEGUN, line + b"\n", CAME)
    with pytest.raises(RecordUnreadable, match="line 3 is not a valid event"):
        read_events(results.events)
    with pytest.raises(CannotResume, match="line 3 is not a valid event; start a new batch"):
        EventLog.reopen(results)


def test_no_line_is_unfolded_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line may be so long and have so many values: a few bytes of each become seventy."""
    many = b'{"at": 1, "event": "none", "of": [' + b"[]," * 3000 + b"[]]}\n"
    assert read_events(write(tmp_path / "log", many)) == []
    monkeypatch.setattr("taskscaler.batch._events.MOST_VALUES", 6000)
    with pytest.raises(RecordUnreadable, match="line 2 has more than 6,000 values, as no event has"):
        read_events(write(tmp_path / "log", many))
    monkeypatch.setattr("taskscaler.batch._events.LONGEST_LINE", 1 << 20)
    with pytest.raises(RecordUnreadable, match="line 2 is longer than 1 MiB, as no event is"):
        read_events(write(tmp_path / "log", b" " * (1 << 20)))
    deep = b'{"event": ' + b"[" * 5000 + b"\n"
    with pytest.raises(RecordUnreadable, match="line 2 is not a valid event"):
        read_events(write(tmp_path / "log", deep))


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ([], "its first event is not the start of a batch"),
        ([Resumed(at=1.0)], "its first event is not the start of a batch"),
        ([BEGUN, BEGUN], "a batch starts only once"),
        ([BEGUN, Started(at=1.0, job="z", pool="", instance="i", slot=0)], "it has the unknown job 'z'"),
        ([BEGUN, Ended(at=1.0, job="a", state=JobState.LOST)], "the job 'a' is queued where it should be running"),
    ],
)
def test_events_that_cannot_be_are_refused(results: Results, written: list[RecordedEvent], message: str) -> None:
    """Each by itself makes sense, but not after those before."""
    write(results.events, *written)
    with pytest.raises(CannotResume, match=rf"events\.jsonl is damaged: {message}; start a new batch"):
        EventLog.reopen(results)


def test_what_a_later_release_adds_is_passed_over(tmp_path: Path) -> None:
    """New kinds of events, and new keys, come without a new version."""
    added = json.dumps({**json.loads(as_line(CAME)), "new": 1}).encode() + b"\n"
    path = write(tmp_path / "events.jsonl", BEGUN, b'{"at": 1, "event": "new"}\n', added)
    assert read_events(path) == [BEGUN, CAME]


# --- writing it --------------------------------------------------------------------------------------------------


async def test_what_the_scaler_reports_follows_soon(results: Results) -> None:
    """Also what it reported before the batch began; what became of a lease, the batch says."""
    lease = LeaseEvent(at=2.0, key="a", pool="default", instance="i", slot=0, what="acquired")
    with closing(EventLog(results, pools=[POOL])) as log:
        log(CAME)
        log(lease)
        log.begin(JOBS, at=1.0)
        log.open()
        assert read_events(results.events) == [BEGUN, CAME]
        async with log.writing():
            log(CAME)
            while len(read_events(results.events)) == 2:
                await anyio.lowlevel.checkpoint()
            log(CAME)
        assert read_events(results.events) == [BEGUN, CAME, CAME, CAME]


async def test_what_waits_for_the_disk_is_written_at_once(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """And waits together: a hundred jobs that end at the same time cost a few `fsync`, and nothing overtakes."""
    syncs, fsync = [], os.fsync

    def counted(file: int) -> None:
        syncs.append(file)
        fsync(file)

    monkeypatch.setattr(os, "fsync", counted)
    jobs = [Job(spec=JobSpec(name=f"job-{number}", script="true")) for number in range(100)]
    with closing(EventLog(results)) as log:
        log.begin(jobs, at=1.0)
        log.open()
        syncs.clear()
        log(CAME)
        async with anyio.create_task_group() as tasks:
            for each in jobs:
                tasks.start_soon(log.commit, Started(at=3.0, job=each.name, pool="default", instance="i", slot=0))
        assert read_events(results.events)[1] == CAME
        assert len(read_events(results.events)) == 102
        assert len(syncs) <= 5


def limited(path: Path, room: int) -> tuple[int, int]:
    """Leave files room for so many bytes behind what is in one; returns what to set back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
    return soft, hard


async def test_a_full_disk_harms_nobody(results: Results, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once, no half line is left, and what comes when there is room again is written.

    What was asked for to be durable is refused; what became of jobs otherwise is written later, of the fleet not.
    """
    given_up = GivenUp(at=4.0, jobs=("a",), state=JobState.CANCELLED, why="enough")
    started = Started(at=3.0, job="a", pool="default", instance="i", slot=0)
    with closing(EventLog(results, pools=[POOL])) as log:
        log.begin(JOBS, at=1.0)
        log.open()
        before = limited(results.events, 10)
        try:
            log(CAME)
            log.put(given_up)
            with pytest.raises(OSError, match="too large"):
                await log.commit(started)
            await log.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        await log.flush()
    assert read_events(results.events) == [BEGUN, given_up]
    assert [each.getMessage() for each in caplog.records] == ["events_not_written"]


async def test_the_last_event_is_never_without_those_before_it(results: Results) -> None:
    """Where the disk was full there is no end, and the jobs file stays; with room again, all is there in its order."""
    given_up = GivenUp(at=4.0, jobs=("a",), state=JobState.CANCELLED, why="enough")
    over = Over(at=5.0, well=False)
    with closing(EventLog(results, jobs_file=Path("jobs.toml"), text="secret")) as log:
        log.begin(JOBS, at=1.0)
        log.open()
        begun = [*read_events(results.events)]
        before = limited(results.events, len(as_line(over)))  # room for the last alone
        try:
            log.put(given_up)
            await log.flush()
            with pytest.raises(OSError, match="too large"):
                log.end(over)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert read_events(results.events) == begun
        assert results.jobs_file.exists()
        log.end(over)
    assert read_events(results.events) == [*begun, given_up, over]
    assert not results.jobs_file.exists()


async def test_what_is_written_is_made_durable_once(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if nothing has come since: what became of jobs may be in the file and not on the disk."""
    syncs: list[int] = []
    with closing(EventLog(results, pools=[POOL])) as log:
        log.begin(JOBS, at=1.0)
        log.open()
        monkeypatch.setattr(os, "fsync", syncs.append)
        log.put(GivenUp(at=4.0, jobs=("a",), state=JobState.CANCELLED, why="enough"))
        await log._write(durable=False)
        assert not syncs
        await log.flush()
        await log.flush()
    assert len(syncs) == 1


async def test_what_is_asked_for_together_is_made_durable_together(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty jobs that end cost three syncs of the log at most, and of their directory; empty logs need none.

    One write may be under way when they come. What a job has left is there before its line is, and what was to follow
    has been done when its caller goes on.
    """
    results.begin(20)
    synced: list[str] = []
    followed: list[int] = []

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    async def end(number: int) -> None:
        path = results.log(f"job-{number}")
        path.write_text("said" if number == 0 else "")
        event = GivenUp(at=4.0, jobs=(str(number),), state=JobState.CANCELLED, why="enough")
        await log.commit(event, leaves=[path, results.artifacts(f"job-{number}")], then=lambda: followed.append(number))
        assert number in followed

    with closing(EventLog(results, pools=[POOL])) as log:
        log.begin(JOBS, at=1.0)
        log.open()
        monkeypatch.setattr(os, "fsync", fsync)
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(end, number)
    assert sorted(followed) == [*range(20)]
    assert 1 <= synced.count("events.jsonl") == synced.count("logs") <= 3
    assert [*{*synced} - {"events.jsonl", "logs"}] == ["job-0.log"]
    assert synced.index("job-0.log") < len(synced) - synced[::-1].index("events.jsonl") - 1


async def test_nothing_is_written_of_a_batch_that_never_begins(results: Results) -> None:
    """The directory may be used again, also if its command was killed just before it began."""
    with closing(EventLog(results)) as log:
        async with log.writing():
            log(CAME)
    assert not list(results.directory.iterdir())
    results.resume.mkdir(mode=0o700)
    results.jobs_file.touch()
    (results.directory / ".events.jsonl.part").touch()
    results.prepare()
    with closing(EventLog(results, jobs_file=Path("jobs.toml"), text="x = 1\n")) as log:
        log.begin(JOBS, at=1.0)
        log.open()
        assert results.jobs_file.read_text() == "x = 1\n"
        other = EventLog(results)
        other.begin(JOBS, at=1.0)
        with pytest.raises(FileExistsError):
            other.open()
    assert len(read_events(results.events)) == 1
