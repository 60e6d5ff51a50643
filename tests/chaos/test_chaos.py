"""Many stories, each with its own cloud, jobs, troubles and deaths of the manager."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SEEDS = "0:2000"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_story_breaks_a_promise() -> None:
    """None breaks a promise, and together they meet every trouble and every transition there is.

    If one does, what is printed ends with the command that replays it.
    """
    command = [sys.executable, "-m", "tests.chaos", "--seeds", SEEDS]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
