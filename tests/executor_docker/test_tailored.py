"""How much memory a job gets by what its earlier runs needed; and what is remembered of those."""

import math
import stat
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from executor_docker import DockerConfig, TailorMemory
from executor_docker import _memory as memory_module
from executor_docker._memory import Memory
from executor_docker._script import around
from executor_docker._tailored import ENOUGH, MARGIN, REMEMBERED, Run, need_of, remembering, tailor
from fleeting import ConfigError
from fleeting.plugins import structure

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


TWENTY = "1.2 times the 2 MiB that 95% of the last 20 runs needed, but at least 8 MiB"
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
