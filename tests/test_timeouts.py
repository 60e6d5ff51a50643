"""A test that takes too long fails, one that crashes its worker does so once, and the run goes on."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

CONFTEST = """
from tests.conftest import anyio_backend, pytest_xdist_make_scheduler

pytest_plugins = ["tests.timeouts"]
"""

TESTS = """
import os

import anyio
import pytest

pytestmark = pytest.mark.anyio


@pytest.mark.timeout(5, func_only=True)
async def test_waits_for_ever():
    await anyio.sleep_forever()


def test_crashes():
    os._exit(1)


@pytest.mark.parametrize("number", range(4))
async def test_is_well(number):
    await anyio.lowlevel.checkpoint()
"""


@pytest.mark.timeout(600)  # three workers start one after the other, on a machine that may be busy
def test_what_is_stuck_or_crashes_fails_and_all_others_run(tmp_path: Path) -> None:
    """Alone, pytest-timeout leaves a run on trio stuck, and pytest-xdist starts what crashes again and again."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_stuck.py").write_text(TESTS)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-n2", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    ends = re.findall(r"^\[gw\d+\] \[ *\d+%\] (PASSED|FAILED|ERROR) \S+::(\w+)", run.stdout, re.MULTILINE)
    assert Counter(ends) == {
        ("FAILED", "test_waits_for_ever"): 2,
        ("FAILED", "test_crashes"): 1,
        ("PASSED", "test_is_well"): 8,
    }, run.stdout
    for backend in ("asyncio", "trio"):
        places = run.stdout.partition(f"test_waits_for_ever[{backend}] _")[2].partition("\n____")[0]
        assert "await anyio.sleep_forever()" in places, f"on {backend}, it does not say where"
