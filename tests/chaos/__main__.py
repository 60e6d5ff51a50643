"""Plays stories: ``--seeds 0:2000 --jobs 2``, ``--tree``, ``--fresh 50000``, ``--regressions``, or ``--seed 1234``."""

import argparse
import sys

from tests.chaos.runner import run, set_up, show, show_shrunk, tell
from tests.chaos.seeds import NO_TREE, read_tree, regressions, seeds_of_tree

OF_A_TREE = 200
"""Stories that a commit's tree names, at the most."""

TREE_SECONDS = 90.0
"""Seconds that they may take; those that are not begun by then are not played."""


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", default="0:200", help="FIRST:BEYOND")
    which.add_argument("--tree", action="store_true", help="those that the tree of the last commit names")
    which.add_argument("--fresh", type=int, metavar="COUNT", help="so many of those it names beyond them")
    which.add_argument("--regressions", action="store_true", help="those that failed once")
    which.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--verbose", action="store_true", help="print the story of --seed as a timeline")
    parser.add_argument("--shrink", action="store_true", help="print what it takes for that of --seed to fail")
    arguments = parser.parse_args()
    if (arguments.verbose or arguments.shrink) and arguments.seed is None:
        parser.error("--verbose and --shrink are for one story; say which with --seed")
    set_up()
    if arguments.seed is not None:
        return show_shrunk(arguments.seed) if arguments.shrink else show(arguments.seed, verbose=arguments.verbose)
    if arguments.tree:
        return run(named_by_tree(OF_A_TREE), arguments.jobs, seconds=TREE_SECONDS)
    if arguments.fresh is not None:
        return run(named_by_tree(OF_A_TREE + arguments.fresh)[OF_A_TREE:], arguments.jobs)
    if arguments.regressions:
        return run(regressions(), arguments.jobs)
    first, beyond = map(int, arguments.seeds.split(":"))
    return run(range(first, beyond), arguments.jobs)


def named_by_tree(count: int) -> list[int]:
    """The first seeds of the last commit, saying which commit that is: a seed alone does not tell a story."""
    tree = read_tree()
    tell("git names no tree here; the seeds are the same each time" if tree == NO_TREE else f"tree {tree}")
    return seeds_of_tree(tree, count)


if __name__ == "__main__":
    sys.exit(main())
