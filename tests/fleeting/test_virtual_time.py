"""Virtual time: the same on both backends, and exact."""

import subprocess
import sys
from typing import Literal

import anyio
import pytest
from anyio import to_thread

from fleeting import LoopClock
from fleeting.testing import Deadlock, virtual_backend, virtual_run, virtual_time

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


async def test_two_hours_pass_at_once() -> None:
    """Whoever sleeps wakes exactly when it wanted to, by the clock of production."""
    clock = LoopClock()
    start = clock.now()
    await clock.sleep_until(start + 7200)
    assert clock.now() - start == pytest.approx(7200, abs=1e-6)


async def test_time_stands_still_while_tasks_work() -> None:
    """Work that waits for nothing takes no time."""
    start = anyio.current_time()
    for _ in range(100):
        await anyio.lowlevel.checkpoint()
    assert anyio.current_time() == start


async def test_deadlines_are_virtual() -> None:
    """A time limit of two hours is over at once if nothing else happens, and not before that."""
    clock = LoopClock(epoch=0)
    with pytest.raises(TimeoutError):
        with anyio.fail_after(7200):
            await anyio.sleep_forever()
    assert clock.now() == pytest.approx(7200)


async def test_sleepers_wake_in_order() -> None:
    """However they were started, the one with the nearest time wakes first."""
    woken = []

    async def sleeper(seconds: float) -> None:
        await anyio.sleep(seconds)
        woken.append(seconds)
        assert anyio.current_time() == pytest.approx(seconds)

    async with anyio.create_task_group() as tasks:
        for seconds in (3600.0, 0.001, 86400.0 * 3, 5.0):
            tasks.start_soon(sleeper, seconds)
    assert woken == [0.001, 5.0, 3600.0, 86400.0 * 3]


async def test_time_goes_on_for_decades() -> None:
    """Small steps still count when the clock shows a large number."""
    clock = LoopClock(epoch=0)
    await clock.sleep_until(20 * 365 * 86400.0)
    await clock.sleep_until(clock.now() + 0.5)
    assert clock.now() == pytest.approx(20 * 365 * 86400.0 + 0.5, abs=1e-3)


async def test_every_test_starts_at_zero() -> None:
    """The clock of one test is not that of another."""
    assert anyio.current_time() == pytest.approx(0)


@pytest.mark.parametrize("anyio_backend", [virtual_backend("asyncio")], ids=["asyncio"])
async def test_asyncio_waits_for_worker_threads() -> None:
    """No time passes while a worker thread is at work, however long that is."""
    beyond_the_deadline = 3600.0
    with anyio.fail_after(beyond_the_deadline):
        total = await to_thread.run_sync(sum, range(1_000_000))
    await anyio.sleep(1)
    assert total == sum(range(1_000_000))
    assert anyio.current_time() == pytest.approx(1)


def test_a_deadlock_is_an_error_on_asyncio() -> None:
    """When nothing is left that could wake anybody, that is said, and tasks are cleaned up."""
    cleaned = []

    async def wait() -> None:
        try:
            await to_thread.run_sync(int)  # leaves an idle worker thread behind, which changes nothing
            await anyio.Event().wait()
        finally:
            cleaned.append(True)

    with pytest.raises(Deadlock, match="every task is waiting"):
        anyio.run(wait, **virtual_run("asyncio"))
    assert cleaned == [True]


def test_importing_needs_neither_pytest_nor_trio() -> None:
    """The test tools load what is not always installed only when it is asked for."""
    program = "import sys, fleeting.testing; print({'pytest', 'trio', 'hypothesis'} & sys.modules.keys())"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


@pytest.mark.parametrize("name", ["asyncio", "trio"])
def test_virtual_time_without_pytest(name: Literal["asyncio", "trio"]) -> None:
    """A run of one's own can be in virtual time too, as a simulation wants it."""

    async def main() -> float:
        await anyio.sleep(86400)
        return anyio.current_time()

    assert anyio.run(main, **virtual_run(name)) == pytest.approx(86400)
