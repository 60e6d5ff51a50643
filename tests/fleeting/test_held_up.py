"""What holds up the event loop, and what is only short of a processor."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

import pytest

from fleeting.testing._blocking import STALL, held_up

pytestmark = pytest.mark.anyio

BUSY = (sys.executable, "-c", "while True: pass")


@contextmanager
def crowded(others: int) -> Iterator[None]:
    """Share one processor with other programs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    programs: list[subprocess.Popen[bytes]] = []
    try:
        programs += (subprocess.Popen(BUSY) for _ in range(others))
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()
        os.sched_setaffinity(0, before)


async def be_crowded_out(seconds: float) -> None:
    """Compute until others have had the processor for so long."""
    end = time.perf_counter() - time.thread_time() + seconds
    while time.perf_counter() - time.thread_time() < end:
        pass


async def wait_blocking(seconds: float) -> None:
    """Wait as no coroutine may."""
    Event().wait(seconds)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts how long a thread waits for a processor")
async def test_a_step_that_others_crowd_out_holds_nobody_up() -> None:
    """On a busy machine it takes several times as long as it needs, but waits for nothing."""
    with crowded(4):
        assert await held_up(be_crowded_out(STALL * 1.2)) == ""


async def test_a_step_that_waits_holds_the_others_up() -> None:
    """However busy the machine is."""
    assert "between two awaits it waited" in await held_up(wait_blocking(STALL * 1.2))
