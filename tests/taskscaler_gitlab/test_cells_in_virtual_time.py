"""A whole runner of three GitLabs, of which one is far and one away for a while: who waits, and for how long."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from attrs import define, field

from fleeting.testing import virtual_time
from gitlab_jobs import Job, Outcome
from gitlab_jobs.client import Reporting
from gitlab_jobs.testing import State
from taskscaler import Lease, Policy
from taskscaler_gitlab._view import JobView
from tests.taskscaler_gitlab.cells_here import CellHere, cell
from tests.taskscaler_gitlab.services import Bench, Scripted, a_job, serving

pytestmark = [
    pytest.mark.anyio,
    # as in test_cells.py
    pytest.mark.filterwarnings("ignore:.*async_generator object .*Stream:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
]
anyio_backend = virtual_time

SLOTS = 8
LOOK = 0.05
"""Seconds between two looks."""

LENGTHS = (4.0, 2.2, 5.2, 3.2, 5.8, 2.8, 4.8)
"""Seconds that jobs take, one after the other."""

DOWN, UP = 10.0, 40.0
"""When one of them goes away, and when it is back."""


@define
class Day:
    """What is seen of it."""

    cells: list[CellHere]
    begun: list[tuple[float, str]] = field(factory=list, init=False)
    """When each job began, and which cell it is of."""

    worst: float = field(default=0.0, init=False)
    """Seconds for which a slot was nobody's at the longest while jobs waited in a cell that could be reached."""

    _idle_since: list[float] = field(factory=list, init=False)
    """Since when each of these is, the longest first."""

    async def run(self, job: Job, _: Lease, __: Reporting) -> Outcome:
        """Be a job."""
        self.begun.append((anyio.current_time(), job.job_info.name))
        await anyio.sleep(LENGTHS[len(self.begun) % len(LENGTHS)])
        return Outcome(is_success=True)

    async def look(self, bench: Bench) -> None:
        """See for how long slots are idle."""
        while True:
            now, known = anyio.current_time(), bench.service._asking.upstreams.cells
            reachable = [each for each in self.cells if not each.way.is_cut and known[each.name].probe_at is None]
            idle = SLOTS - sum(isinstance(each, JobView) and each.work.lease is not None for each in bench.service.jobs)
            idle_since = self._idle_since if any(self._has_jobs(each) for each in reachable) else []
            self._idle_since = [*idle_since[max(0, len(idle_since) - idle) :], *[now] * (idle - len(idle_since))]
            self.worst = max([self.worst, *(now - since for since in self._idle_since)])
            await anyio.sleep(LOOK)

    @staticmethod
    def _has_jobs(cell: CellHere) -> bool:
        jobs = cell.gitlab.server.jobs.values()
        return any(each.state is State.PENDING and each.acknowledge_by is None for each in jobs)

    def is_fair(self, begin: float, end: float, *names: str) -> bool:
        """Whether each cell had its share of the jobs that began in that time, within 10 %, or one job."""
        had = Counter(name for at, name in self.begun if begin < at <= end)
        share = sum(had[name] for name in names) / len(names)
        return share > 0 and all(abs(had[name] - share) <= 0.1 * share + 1 for name in names)


async def at_once(do: Callable[..., Any], *arguments: Any, **_: Any) -> Any:  # noqa: ANN401  (of what is done)
    """Do what a thread would, between two moments: virtual time waits for no thread."""
    await anyio.lowlevel.checkpoint()
    return do(*arguments)


async def test_300_jobs_of_three_cells_one_slow_and_one_away_for_half_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cell has a call about another's job, no slot is idle for longer than a second, and shares are fair.

    That of the core alone is in test_upstreams.py; here, jobs are claimed, run and reported as well.
    """
    monkeypatch.setattr(to_thread, "run_sync", at_once)
    near, _, away = cells = [cell(tmp_path, "near"), cell(tmp_path, "far", latency=1.0), cell(tmp_path, "away")]
    day = Day(cells)
    for each in cells:
        for _ in range(100):
            each.gitlab.enqueue(a_job(each.name))
    fleet: dict[str, Any] = {
        "max_instances": SLOTS,
        "capacity_per_instance": 1,
        "update_interval": 60.0,
        "policies": [Policy(idle_count=SLOTS, idle_time=600.0)],
    }
    more = "request_concurrency = 4"
    async with serving(
        tmp_path, near.gitlab, cells=cells, runs=Scripted(day.run), concurrent=SLOTS, more=more, **fleet
    ) as bench:
        await bench.until(lambda: len(day.begun) >= SLOTS)  # all instances have booted
        began = anyio.current_time()
        bench.tasks.start_soon(day.look, bench)
        await anyio.sleep_until(began + DOWN)
        away.way.is_cut = True
        await anyio.sleep_until(began + UP)
        away.way.is_cut = False
        with anyio.fail_after(1000.0):
            while not all(each.is_done for each in cells):  # noqa: ASYNC110  (nobody says)
                await anyio.sleep(1.0)
    assert Counter(name for _, name in day.begun) == {"near": 100, "far": 100, "away": 100}
    assert [each.way.refused for each in cells] == [0, 0, 0]
    assert day.worst + LOOK <= 1.0
    assert day.is_fair(began + DOWN + 5, began + UP, "near", "far")
    assert day.is_fair(began + UP + 10, began + 100, "near", "far", "away")
