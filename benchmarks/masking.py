"""Hiding secrets in a job's output: twenty masked values, beside GitLab's tokens and parameters of URLs.

The log is that of a build: lines that are alike, with numbers and paths, and one with a secret in a thousand.
"""

import random
from time import process_time

from _figures import best_of, report

from gitlab_jobs import Masker

VALUES = 20
LINES = 200_000
PIECE = 32 << 10
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def measure(values: list[str], log: bytes) -> float:
    """MiB a second of a core, in pieces as a connection brings them."""
    masker = Masker(values)
    start = process_time()
    for at in range(0, len(log), PIECE):
        masker.feed(log[at : at + PIECE])
    masker.end()
    return len(log) / (1 << 20) / (process_time() - start)


if __name__ == "__main__":
    numbers = random.Random(1)  # noqa: S311  (the same log each time)
    values = ["".join(numbers.choices(LETTERS, k=20)) for _ in range(VALUES)]
    lines = (
        f"[{number}/{LINES}] cc -O2 -c src/module_{number % 77}/file_{number}.c -o build/{number:x}.o"
        + (f" --key {values[number // 1000 % VALUES]}\n" if number % 1000 == 0 else "\n")
        for number in range(LINES)
    )
    log = "".join(lines).encode()
    report("masking_mib_s", best_of(5, lambda: measure(values, log)), "MiB/s", 100, conditions=f"{VALUES} values")
