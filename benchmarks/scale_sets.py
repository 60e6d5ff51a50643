"""What one view of a thousand instances costs: requests and seconds, with the real SDK against the tests' server.

The server runs in the same process and makes up its answers, a hundred instances a page, so it has its share of the
seconds; Azure's own time is not in them.
"""

import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

import anyio
from _figures import report
from _needs import run

from fleeting import LoopClock, Settings
from tests.fleeting_azure.arm_cloud import Mode
from tests.fleeting_azure.arm_server import group_of, running

INSTANCES = 1000
PAGE = 100
ROUNDS = 5


async def measure(mode: Mode) -> tuple[int, float]:
    """Most requests, and the middle of the seconds, of several views."""
    with tempfile.TemporaryDirectory() as directory:
        async with running(Path(directory), mode, page=PAGE) as (cloud, config):
            await cloud.launch(INSTANCES)
            group = group_of(config)
            await group.init(Settings(owner="benchmark", clock=LoopClock()))
            taken, asked = [], []
            for _ in range(ROUNDS):
                before, start = len(cloud.log), perf_counter()
                assert len((await group.update()).instances) == INSTANCES  # noqa: S101  (else it measures nothing)
                taken.append(perf_counter() - start)
                asked.append(len(cloud.log) - before)
            await group.shutdown()
            return max(asked), statistics.median(taken)


async def main() -> None:
    """The worse of the two kinds."""
    figures = [await measure("Uniform"), await measure("Flexible")]
    report("update_1000_calls_azure", max(asked for asked, _ in figures), "requests", 24)
    report("update_1000_s_azure", max(seconds for _, seconds in figures), "s", None)


if __name__ == "__main__":
    run(partial(anyio.run, main))
