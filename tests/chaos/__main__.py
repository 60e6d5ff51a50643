"""Plays many stories, or one: ``python -m tests.chaos --seeds 0:2000 --jobs 2``, ``--seed 1234 --verbose``."""

import argparse
import sys

from tests.chaos.runner import run, set_up, show


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="FIRST:BEYOND")
    parser.add_argument("--seed", type=int, help="play only this one")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--verbose", action="store_true", help="print the story as a timeline")
    arguments = parser.parse_args()
    set_up()
    if arguments.seed is not None:
        return show(arguments.seed, verbose=arguments.verbose)
    first, beyond = map(int, arguments.seeds.split(":"))
    return run(range(first, beyond), arguments.jobs)


if __name__ == "__main__":
    sys.exit(main())
