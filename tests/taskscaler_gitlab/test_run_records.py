"""What is written down about a job that runs: the next manager reads it, or says in one sentence why it cannot."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from fleeting import Usage
from gitlab_jobs import Outcome
from taskscaler.executors import MemoryLimit
from taskscaler_gitlab.runner import RecordUnreadable, has_begun, kept_log, memory_limit_of, stages_of, usage_of
from taskscaler_gitlab.runner._record import DIRECTORY, LegRecord, Record
from taskscaler_gitlab.runner._stages import Ended

LIMIT = MemoryLimit(size=1 << 26, by="measured", why="1.2 times what 95% needed")


def written(directory: Path) -> Path:
    """The file of a job of which all is known."""
    record = Record.load(directory)
    record.began, record.home, record.log_size, record.said = 1.5, "/home/x", 70, ["a line\n"]
    record.legs = [LegRecord(kind="all", name="a-7-0", began=2.5, is_over=True, why="lost")]
    record.ended, record.begun, record.sent = {3: Ended(7, is_stopped=True)}, {0, 3}, {0: "413"}
    record.usage = Usage(cpu_time=1.25, peak_memory=4096)
    record.memory_limit = LIMIT
    record.add_time("get_sources", 1.5)
    record.add_time("get_sources", 2)
    record.outcome = Outcome(is_success=False, failure_reason="script_failure", exit_code=7)
    record.save()
    return directory / DIRECTORY / "record.json"


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    """All of it, and whoever asks for a part has that."""
    written(tmp_path)
    record = Record.load(tmp_path)
    record.save()
    assert Record.load(tmp_path) == record
    assert record.ended == {3: Ended(7, is_stopped=True)}
    assert (kept_log(tmp_path), has_begun(tmp_path)) == (70, True)
    assert usage_of(tmp_path) == Usage(cpu_time=1.25, peak_memory=4096)
    assert memory_limit_of(tmp_path) == LIMIT
    assert stages_of(tmp_path) == {"get_sources": 3.5}


def test_a_job_that_has_not_begun_has_nothing(tmp_path: Path) -> None:
    """And that is no error."""
    assert (kept_log(tmp_path), has_begun(tmp_path)) == (0, False)


def test_a_record_without_a_version_is_of_the_first(tmp_path: Path) -> None:
    """Managers wrote them before there were versions."""
    path = written(tmp_path)
    state = json.loads(path.read_text())
    del state["version"]
    path.write_text(json.dumps(state))
    assert kept_log(tmp_path) == 70


def test_a_record_without_what_the_job_has_used_is_of_an_earlier_release(tmp_path: Path) -> None:
    """A job that it began goes on."""
    path = written(tmp_path)
    state = json.loads(path.read_text())
    del state["usage"], state["took"], state["memory_limit"]
    path.write_text(json.dumps(state))
    assert usage_of(tmp_path) == Usage()
    assert memory_limit_of(tmp_path) is None
    assert stages_of(tmp_path) == {}


def test_the_limit_that_counts_is_that_of_the_script_or_of_what_needed_more() -> None:
    """A helper that brings sources has one of its own, which says nothing of the job."""
    record = Record(path=Path())
    record.add_limit(evolve(LIMIT, size=1), has_script=False)
    assert record.memory_limit is None
    record.add_limit(LIMIT, has_script=True)
    record.add_limit(None, has_script=True)
    record.add_limit(evolve(LIMIT, size=2), has_script=False)
    assert record.memory_limit == LIMIT
    record.add_limit(evolve(LIMIT, size=3, reached=True), has_script=False)
    assert record.memory_limit == evolve(LIMIT, size=3, reached=True)


FIGURES = st.none() | st.integers(0, 2**40)
USES = st.builds(
    Usage, cpu_time=st.none() | st.integers(0, 2**40).map(float), peak_memory=FIGURES, disk_written=FIGURES
)


@given(st.lists(USES, max_size=5), st.randoms(use_true_random=False))
def test_legs_add_up_in_any_order(uses: list[Usage], random: Random) -> None:
    """What is known of one is known of all; they come after each other, so memory is that of the largest."""
    totals = []
    for _ in range(2):
        record = Record(path=Path())
        for each in uses:
            record.add_usage(each)
        totals.append(record.usage)
        random.shuffle(uses)
    assert totals[0] == totals[1]
    memory = [each.peak_memory for each in uses if each.peak_memory is not None]
    assert totals[0].peak_memory == max(memory, default=None)
    assert (totals[0].cpu_time is None) == all(each.cpu_time is None for each in uses)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: {**state, "version": 2},
        lambda state: {**state, "version": "x\n" * 1000},
        lambda state: {key: value for key, value in state.items() if key != "legs"},
        lambda state: {**state, "legs": [{"kind": "all", "more": 1}]},
        lambda state: {**state, "ended": [[1]]},
        lambda state: {**state, "outcome": [True]},
        lambda state: {**state, "usage": ["much"]},
        lambda state: {**state, "memory_limit": {"size": "much"}},
        lambda state: [state],
        lambda _: None,
    ],
    ids=[
        "later",
        "no version",
        "no legs",
        "other legs",
        "other ends",
        "other outcome",
        "other use",
        "other limit",
        "list",
        "null",
    ],
)
@pytest.mark.parametrize("ask", [kept_log, has_begun])
def test_a_record_of_another_release_is_one_sentence(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], ask: Callable[[Path], object]
) -> None:
    """It names the file, on one line."""
    path = written(tmp_path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(RecordUnreadable) as caught:
        ask(tmp_path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert len(message) < len(str(path)) + 200
    assert "\n" not in message


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b'{"version": 1'])
def test_a_record_that_was_cut_is_one_sentence(tmp_path: Path, text: bytes) -> None:
    """By a disk that lost its end."""
    written(tmp_path).write_bytes(text)
    with pytest.raises(RecordUnreadable, match="is damaged"):
        kept_log(tmp_path)
