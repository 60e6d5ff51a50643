"""Which runs of a manager are over is proved by locks that nobody can lose."""

import fcntl
import os
import sys
from pathlib import Path

import pytest

from taskscaler.executors.runs import Runs

UNIT = "1" * 12

_locked_when_removed: dict[str, bool] = {}


def _look(event: str, args: tuple[object, ...]) -> None:
    """See, as an audit hook, whether a run's file can be locked in the moment that it is removed."""
    if event == "os.remove" and str(args[0]).endswith(".run"):
        descriptor = os.open(str(args[0]), os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            _locked_when_removed[str(args[0])] = True
        else:
            _locked_when_removed[str(args[0])] = False
        finally:
            os.close(descriptor)


def claimed(root: Path) -> Runs:
    """Begin a run."""
    runs = Runs("any", root)
    runs.claim()
    return runs


def test_a_run_that_lives_is_not_over_and_one_without_a_lock_is(tmp_path: Path) -> None:
    """So are tries of this run that have ended."""
    ours, other = claimed(tmp_path), claimed(tmp_path)
    assert ours.manager == other.manager
    assert not ours.is_over(ours.manager, other.id, UNIT)
    assert ours.is_over(ours.manager, "0" * 12, UNIT)
    with ours.at_work() as unit:
        assert not ours.is_over(ours.manager, ours.id, unit)
    assert ours.is_over(ours.manager, ours.id, unit)
    ours.left_nothing(unit)
    assert not ours.is_over(ours.manager, ours.id, unit)


@pytest.mark.parametrize("run", ["", "..", "0" * 300, "0" * 11, "../" + "0" * 12, "A" * 12])
def test_what_no_run_is_called_proves_nothing(tmp_path: Path, run: str) -> None:
    """Names come from an instance or a daemon, who may say anything."""
    ours = claimed(tmp_path)
    assert not ours.is_over(ours.manager, run, UNIT)


@pytest.mark.parametrize("manager", ["", "stranger"])
def test_a_stranger_s_is_never_over(tmp_path: Path, manager: str) -> None:
    """Its locks may be on another machine."""
    assert not claimed(tmp_path).is_over(manager, "0" * 12, UNIT)


def test_a_dead_run_s_file_is_removed_under_its_lock(tmp_path: Path) -> None:
    """A run that begins meanwhile would have locked a file that is gone, and be taken for dead while it lives."""
    dead = tmp_path / f"{'0' * 12}.run"
    dead.touch(mode=0o600)
    sys.addaudithook(_look)
    claimed(tmp_path)
    assert not dead.exists()
    assert _locked_when_removed == {str(dead): True}
