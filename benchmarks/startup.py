"""What it costs to import what makes a scaler, and to be told how to use its command; the median of fresh processes.

Bytecode comes from a cache, as it does wherever the packages are installed; the first run, not counted, fills it.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from _figures import report

RUNS = 15
COMMAND = str(Path(sys.executable).with_name("taskscaler"))
IMPORT = """
from time import perf_counter
start = perf_counter()
from taskscaler import Policy, Pool, Taskscaler
print(perf_counter() - start)
"""


def import_seconds() -> float:
    """The import alone, as a fresh interpreter sees it; by name, since the package itself imports nothing before."""
    done = subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True)
    return float(done.stdout)


def help_seconds() -> float:
    """The whole process of ``taskscaler --help``."""
    start = perf_counter()
    subprocess.run([COMMAND, "--help"], check=True, capture_output=True)
    return perf_counter() - start


def median_ms(measure: Callable[[], float]) -> float:
    """The middle of several runs, after one that fills the caches."""
    measure()
    return statistics.median(measure() for _ in range(RUNS)) * 1e3


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # images for containers set it
    with TemporaryDirectory() as os.environ["PYTHONPYCACHEPREFIX"]:
        report("import_taskscaler_ms", median_ms(import_seconds), "ms", 120)
        report("cli_help_ms", median_ms(help_seconds), "ms", 300)
