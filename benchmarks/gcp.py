"""What a look at 1,000 instances on Google Cloud costs: requests, seconds, and what the SDK takes once.

The endpoint of the tests runs in a process of its own, as Google does.
"""

import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import anyio
from _figures import report
from _needs import PROC, run

sys.path.insert(0, str(Path(__file__).parents[1]))

from fleeting import LoopClock, Settings
from fleeting_gcp import GcpConfig, GcpGroup
from tests.fleeting_gcp.clouds import write_credentials

INSTANCES, ROUNDS = 1000, 7
ROOT = Path(__file__).parents[1]

MEMORY = """
from pathlib import Path
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
before = resident()
import google.cloud.compute_v1
print(resident() - before)
"""


@contextmanager
def cloud() -> Iterator[str]:
    """Run the endpoint; gives its URL."""
    command = [sys.executable, "-m", "tests.fleeting_gcp.compute_endpoint", str(INSTANCES)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip() if process.stdout else ""
        finally:
            process.kill()


class Requests(logging.Handler):
    """Counts what urllib3 says that it has asked."""

    def __init__(self) -> None:
        """Count from nothing."""
        super().__init__(level=logging.DEBUG)
        self.number = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count an answer."""
        self.number += "HTTP/1.1" in record.getMessage()


async def looks(url: str, directory: Path) -> None:
    """Open a group of 1,000, and look at it again and again."""
    requests = Requests()
    logging.getLogger("urllib3.connectionpool").addHandler(requests)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.DEBUG)
    config = GcpConfig(
        name="runners",
        project="acme",
        zone="europe-west1-b",
        credentials_file=str(write_credentials(directory)),
        endpoint=url,
    )
    group = GcpGroup(config)
    begun = perf_counter()
    await group.init(Settings(owner="benchmark", clock=LoopClock()))
    report("open_first_s_gcp", perf_counter() - begun, "s", None)
    seconds = []
    for _ in range(ROUNDS):
        requests.number, begun = 0, perf_counter()
        view = await group.update()
        seconds.append(perf_counter() - begun)
        if len(view.instances) != INSTANCES:
            raise SystemExit(f"the view has {len(view.instances)} instances instead of {INSTANCES}")
    report("update_1000_calls_gcp", requests.number, "requests", 4)
    report("update_1000_s_gcp", sorted(seconds)[ROUNDS // 2], "s", None)
    await group.shutdown()


def main() -> None:
    """Measure."""
    with tempfile.TemporaryDirectory() as directory, cloud() as url:
        anyio.run(looks, url, Path(directory))
    memory = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    report("sdk_memory_mib_gcp", float(memory.stdout), "MiB", None)


if __name__ == "__main__":
    run(main, PROC)
