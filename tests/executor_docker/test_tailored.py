"""How much memory a job gets by what its earlier runs needed; and what is remembered of those."""

import math
import stat
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from executor_docker import DockerConfig, DockerOptions, TailorMemory
from executor_docker import _memory as memory_module
from executor_docker._memory import Memory
from executor_docker._owner import Unit
from executor_docker._rules import admit
from executor_docker._script import Report, around, read_report
from executor_docker._sizes import LARGEST_SIZE
from executor_docker._tailored import ENOUGH, MARGIN, REMEMBERED, Run, need_of, remembering, tailor
from executor_docker._work import Work
from fleeting import ConfigError, Connection
from fleeting.plugins import structure
from fleeting_docker_engine import ContainerState
from taskscaler.executors import JobOutcome, JobSpec, MemoryLimit
from tests.taskscaler.leased import Slot

MIB = 1 << 20
SIZES = st.integers(6 * MIB, 2**34)
RUNS = st.lists(
    st.builds(
        Run,
        unit=st.integers(0, 2**32).map(str),
        peak=st.integers(0, 2**34),
        limit=st.just(0) | SIZES,
        killed=st.sampled_from([False, False, False, True]),
    ),
    max_size=30,
)
BOUNDS = st.lists(SIZES, min_size=2, max_size=2).map(sorted)


@given(runs=RUNS, usual=st.none() | SIZES, bounds=BOUNDS)
def test_a_limit_is_the_operator_s_to_bound_and_only_a_kill_raises_it(
    runs: list[Run], usual: int | None, bounds: list[int]
) -> None:
    """Never above the most; below the least only what was there already; each kill counts twice its limit."""
    least, most = bounds
    start = min(most, usual or most)
    got = tailor(runs, usual=usual, least=least, most=most).memory
    assert min(least, start) <= got <= most
    recent = runs[-REMEMBERED:]
    kills = [run.limit for run in recent if run.killed]
    assert got >= min(most, 2 * max(kills, default=0))
    if not kills:
        assert got <= max(start, *(run.limit for run in recent), 0)
    if not kills and sum(not run.killed for run in recent) < ENOUGH:
        assert got == start


@given(runs=RUNS, usual=st.none() | SIZES, bounds=BOUNDS, more=st.integers(0, 2**30), place=st.integers(0, 29))
def test_who_needed_more_gets_no_less(
    runs: list[Run], usual: int | None, bounds: list[int], more: int, place: int
) -> None:
    """Whichever run it was; those that are too long ago count for nothing."""
    least, most = bounds
    got = tailor(runs, usual=usual, least=least, most=most)
    larger = [evolve(run, peak=run.peak + more) if at == place else run for at, run in enumerate(runs)]
    assert tailor(larger, usual=usual, least=least, most=most).memory >= got.memory
    older = [Run(unit="old", peak=2**40, limit=2**40, killed=True)] * max(0, REMEMBERED - len(runs))
    if len(runs) >= REMEMBERED:
        assert tailor([*older, *runs], usual=usual, least=least, most=most) == got


@given(peaks=st.lists(st.integers(0, 2**34), min_size=ENOUGH, max_size=REMEMBERED))
def test_what_runs_needed_is_enough_for_95_of_100(peaks: list[int]) -> None:
    """The nearest rank: a value that was there, with no more than a twentieth of them above."""
    need = need_of([Run(unit=str(at), peak=peak, limit=0, killed=False) for at, peak in enumerate(peaks)])
    assert need in peaks
    assert sum(peak > (need or 0) for peak in peaks) <= len(peaks) * 0.05
    got = tailor([Run(unit="", peak=peak, limit=0, killed=False) for peak in peaks], usual=None, least=1, most=2**40)
    assert (need or 0) * MARGIN <= got.memory < (need or 0) * MARGIN + MIB + 1


@given(need=SIZES, usual=st.none() | SIZES, bounds=BOUNDS, count=st.integers(1, 70))
@example(need=100 * MIB, usual=64 * MIB, bounds=[64 * MIB, 4096 * MIB], count=70)
def test_a_job_that_always_needs_the_same_is_killed_a_few_times_and_then_never(
    need: int, usual: int | None, bounds: list[int], count: int
) -> None:
    """As often as its usual limit has to be doubled; unless it needs more than there is. Its limit comes down again."""
    least, most = bounds
    start = min(most, usual or most)
    runs: list[Run] = []
    killed = 0
    for turn in range(count):
        limit = tailor(runs, usual=usual, least=least, most=most).memory
        is_killed = need > limit
        killed += is_killed
        runs = [*remembering(runs, Run(unit=str(turn), peak=min(need, limit), limit=limit, killed=is_killed))]
    if need <= most:
        assert killed <= max(0, math.ceil(math.log2(need / start)))
        if count > 2 * REMEMBERED + 20:
            last = tailor(runs, usual=usual, least=least, most=most).memory
            assert need <= last <= max(need * MARGIN + MIB, least)
    else:
        assert killed == count


@given(runs=RUNS, need=SIZES, usual=st.none() | SIZES, bounds=BOUNDS)
def test_a_history_that_was_spoilt_costs_a_job_one_run(
    runs: list[Run], need: int, usual: int | None, bounds: list[int]
) -> None:
    """By runs that needed next to nothing, such as those of a change that left out what takes memory."""
    least, most = bounds
    start = min(most, usual or most)
    need = min(need, most)
    known = [evolve(run, limit=min(run.limit, most)) for run in runs]
    killed = 0
    for turn in range(2 * REMEMBERED):
        limit = tailor(known, usual=usual, least=least, most=most).memory
        killed += need > limit
        known = [*remembering(known, Run(unit=f"t{turn}", peak=min(need, limit), limit=limit, killed=need > limit))]
    assert killed <= 1 + max(0, math.ceil(math.log2(need / start)))


TWENTY = "1.2 times the 2 MiB that 95% of the last 20 runs needed, but at least 8 MiB"
USUAL_AGAIN = "more than the 8 MiB at which an earlier run was killed"
KILLED = "twice the 200 MiB at which an earlier run was killed, but at most 256 MiB"


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([], ""),
        ([(10, 64, False)] * 4, ""),
        ([(10, 64, False)] * 10, "Memory limit: 12 MiB (1.2 times the 10 MiB that 95% of the last 10 runs needed)"),
        ([(2, 64, False)] * 25, f"Memory limit: 8 MiB ({TWENTY})"),
        ([(64, 64, True)], "Memory limit: 128 MiB (twice the 64 MiB at which an earlier run was killed)"),
        ([(200, 200, True)], f"Memory limit: 256 MiB ({KILLED})"),
        ([*[(2, 64, False)] * 9, (8, 8, True)], f"Memory limit: 64 MiB ({USUAL_AGAIN})"),
    ],
)
def test_a_job_s_log_says_what_its_limit_is_and_why(runs: list[tuple[int, int, bool]], said: str) -> None:
    """In its first line; nothing if nothing is known."""
    known = [
        Run(unit=str(at), peak=peak * MIB, limit=limit * MIB, killed=killed)
        for at, (peak, limit, killed) in enumerate(runs)
    ]
    found = tailor(known, usual=64 * MIB, least=8 * MIB, most=256 * MIB)
    assert found.notice == said
    assert (said in around([], "x", notice=found.notice)[2]) is True
    assert found.by == ("killed" if "killed" in said else "measured" if said else "usual")
    if not said:
        assert found.memory == 64 * MIB
        assert around([], "x", notice=found.notice) == around([], "x")


def test_what_is_remembered_survives_and_is_ours_alone(tmp_path: Path) -> None:
    """A run that is noted twice counts once; names are no paths; what is damaged is not known."""
    kept = Memory(tmp_path / "memory")
    series = "../../etc/passwd \ud800 job"
    assert kept.runs(series) == []
    runs = [Run(unit=str(number), peak=number, limit=0, killed=number % 2 == 0) for number in range(25)]
    for run in [*runs, *runs[-3:]]:
        kept.note(series, run)
    assert Memory(tmp_path / "memory").runs(series) == runs[-REMEMBERED:]
    assert kept.runs("another") == []
    (file,) = (tmp_path / "memory").glob("*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "memory").stat().st_mode) == 0o700
    whole = file.read_text()
    for damaged in ("", "[" * 100_000, "[]", "{}", whole[:-9], whole.replace('"killed": true', '"killed": 1')):
        file.write_text(damaged)
        assert kept.runs(series) == []
    for bad in ('"peak": -1', '"peak": 1e400', f'"peak": {2**63}', '"peak": NaN', '"peak": null'):
        file.write_text(whole.replace('"peak": 24', bad))
        assert kept.runs(series) == []
    kept.note(series, runs[0])
    assert kept.runs(series) == runs[:1]


@pytest.mark.anyio
async def test_a_process_that_hangs_while_it_notes_something_holds_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is told of; once the other has gone on, runs are noted again."""
    kept, run = Memory(tmp_path / "memory"), Run(unit="1", peak=1, limit=2, killed=False)
    assert await kept.keep("job 0", run) == ""
    with monkeypatch.context() as hasty:
        hasty.setattr(memory_module, "PATIENCE", 0.05)
        with kept._locked():
            why = await Memory(tmp_path / "memory").keep("job", run)
    assert why == f"another process has had {tmp_path}/memory locked for 0.05 s; it may hang"
    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(kept.keep, f"job {number % 2}", evolve(run, unit=f"later {number}"))
    assert sum(len(kept.runs(f"job {number}")) for number in range(2)) == 11


def worked(code: int, report: Report, *, limit: int) -> tuple[JobOutcome, Run | None]:
    """What became of a job, and what is remembered of it."""
    config = DockerConfig(image="busybox")
    engine: Any = None
    job = JobSpec(name="job", script="x")
    work = Work(config, engine, admit(config, DockerOptions()), job, Unit(id="u", labels={}), Slot("i-1", _nowhere))
    work._limit = limit
    return work.outcome(code, ContainerState(Running=False, OOMKilled=False, ExitCode=code), report), work._needed


def test_who_is_killed_for_what_others_have_taken_gets_no_more_memory() -> None:
    """A job beside it may fill the instance: its own limit was not reached, and would be doubled again and again."""
    whole = {"is_complete": True, "is_whole": True}
    said = (
        b"\ntaskscaler ended 137\ntaskscaler memory 4096\ntaskscaler oom 0\ntaskscaler oom_kill 1\ntaskscaler whole 1\n"
    )
    outcome, remembered = worked(137, read_report(said), limit=MIB)
    assert "the instance had no memory left" in outcome.why
    assert outcome.memory_limit == MemoryLimit(size=MIB, by="usual", why="", reached=False)
    assert remembered is None
    outcome, remembered = worked(0, read_report(said), limit=MIB)
    assert outcome.warnings == ("processes of the job were killed because the instance had no memory left",)
    assert remembered is None
    for hits in (None, 1):  # with the first control groups, nobody knows
        outcome, remembered = worked(137, Report(killed_for_memory=1, hits_of_limit=hits, **whole), limit=MIB)
        assert "it needed more memory than its 1 MiB and was killed" in outcome.why
        assert remembered == Run(unit="u", peak=0, limit=MIB, killed=True)


@pytest.mark.parametrize(("limit", "peak"), [(MIB, MIB), (0, LARGEST_SIZE)])
def test_no_job_has_needed_more_than_it_can_have(limit: int, peak: int) -> None:
    """It can say so: then all that is known of its runs could not be read any more."""
    report = read_report(b"taskscaler ended 0\ntaskscaler memory 9999999999999999999\ntaskscaler whole 1\n")
    _, remembered = worked(0, report, limit=limit)
    assert remembered == Run(unit="u", peak=peak, limit=limit, killed=False)


def _nowhere() -> AbstractAsyncContextManager[Connection]:
    raise AssertionError("nobody dials")


def test_no_more_jobs_are_remembered_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones stay."""
    monkeypatch.setattr(memory_module, "MOST_JOBS", 20)
    kept = Memory(tmp_path / "memory")
    for number in range(50):
        kept.note(f"job {number}", Run(unit="a", peak=1, limit=2, killed=False))
        assert len([*(tmp_path / "memory").glob("*.json")]) <= 20
    assert kept.runs("job 49")


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"memory": "2g", "tailor_memory": {"max": "1g"}}, "a max in tailor_memory of at least memory, 2 GiB"),
        ({"tailor_memory": {"max": "32m"}}, "a min that is no more than max"),
        ({"tailor_memory": {"max": "1g", "min": "1m"}}, "at least 6m"),
        ({"memory": "9" * 400 + "g"}, 'a size such as "512m" or "2g"'),
        ({"tailor_memory": {"max": "9999999t"}}, 'a size such as "512m" or "2g"'),
        ({"tailor_memory": {"max": "lots"}}, 'a size such as "512m" or "2g"'),
        ({"tailor_memory": {}}, "max"),
    ],
)
def test_bounds_that_cannot_be_are_told_when_the_file_is_read(settings: dict[str, object], found: str) -> None:
    """With what was expected."""
    with pytest.raises(ConfigError, match=found):
        structure(settings, DockerConfig)


def test_bounds_are_read_in_bytes() -> None:
    """The least has a usual value."""
    config = structure({"memory": "2g", "tailor_memory": {"max": "4g"}}, DockerConfig)
    assert config.tailor_memory == TailorMemory(max="4g", min="64m")
    assert (config.tailor_memory.least, config.tailor_memory.most) == (64 * MIB, 4 << 30)
