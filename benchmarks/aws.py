"""What one view of 1,000 instances costs the `aws` group: requests to AWS, and seconds.

The seconds are those of moto's server, which takes longest to answer: AWS's own are others. What is ours of them is the
processor time of this process.
"""

import os
import sys
from pathlib import Path
from time import perf_counter, process_time

sys.path.insert(0, str(Path(__file__).parents[1]))

import anyio
from _figures import report
from _needs import run

from fleeting import LoopClock, Settings
from tests.fleeting_aws.clouds import ENVIRONMENT, Cloud, new_cloud, running_server

INSTANCES = 1000
ROUNDS = 3


async def measure(cloud: Cloud) -> tuple[int, float, float]:
    """The requests of one view, its seconds, and the processor time of it that is ours; the best of several."""
    group = cloud.group(timeout=120.0)
    await group.init(Settings(owner="benchmark", clock=LoopClock()))
    figures = []
    for _ in range(ROUNDS):
        before, start, used = sum(cloud.calls().values()), perf_counter(), process_time()
        view = await group.update()
        taken, used = perf_counter() - start, process_time() - used
        assert len(view.instances) == INSTANCES  # noqa: S101  (else there is nothing to measure)
        figures.append((sum(cloud.calls().values()) - before, taken, used))
    await group.shutdown()
    return min(figures, key=lambda figure: figure[1])


def main() -> None:
    """Measure, against a server of the tests'."""
    os.environ.update(ENVIRONMENT)
    with running_server() as port:
        cloud = new_cloud(port, group={"max_size": INSTANCES})
        cloud.do("launch", count=INSTANCES)
        calls, seconds, own = anyio.run(measure, cloud)
    report("update_1000_calls_aws", calls, "calls", 12)
    report("update_1000_s_aws", seconds, "s", None)
    report("update_1000_cpu_s_aws", own, "s", None)


if __name__ == "__main__":
    run(main)
