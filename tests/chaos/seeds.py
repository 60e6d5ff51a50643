"""Which stories are played: those that a commit's tree names, and those that have failed once. Pure but for reading.

The seeds of a tree are new with every change, so that each change is tried by stories that nobody has seen pass, and
are the same wherever that commit is checked out. ``git rev-parse HEAD^{tree}`` names the tree; where git cannot say
it (an archive without history), the seeds of `NO_TREE` are played, always the same ones.

A seed stands for one story only together with the code that draws it: an entry in the list names the commit, too.
"""

import hashlib
import re
import subprocess
from pathlib import Path

from attrs import frozen

REGRESSIONS = Path(__file__).with_name("regressions.txt")
"""Seeds that failed once; one that fails is added, whether or not the change at hand is to blame."""

NO_TREE = "no tree"
"""Stands for the tree where there is no git to name it."""

FIRST, BEYOND = 10_000_000, 2**31
"""The seeds of a tree are from here: people count theirs from 0."""

ENTRY = re.compile(r"(?P<seed>\d+) (?P<commit>[0-9a-f]{7,40}) (?P<why>\S.*)")


@frozen(kw_only=True)
class Regression:
    """A story that failed once."""

    seed: int
    commit: str
    """Where it failed: the first digits of the commit's name, at least seven."""

    why: str
    """What was wrong, and with what."""


def seeds_of_tree(tree: str, count: int) -> list[int]:
    """The first *count* seeds of the tree of that name, no two the same. More of them begin with the fewer."""
    seeds: dict[int, None] = {}
    number = 0
    while len(seeds) < count:
        digest = hashlib.sha256(f"{tree}/{number}".encode()).digest()
        seeds[FIRST + int.from_bytes(digest[:8], "big") % (BEYOND - FIRST)] = None
        number += 1
    return list(seeds)


def read_tree(directory: Path = Path(__file__).parent) -> str:
    """The name of the tree of the last commit there; `NO_TREE` if git is not there, or does not know."""
    return _ask_git("HEAD^{tree}", directory) or NO_TREE


def read_commit(directory: Path = Path(__file__).parent) -> str:
    """The name of the last commit there; empty if git is not there, or does not know."""
    return _ask_git("HEAD", directory)


def _ask_git(what: str, directory: Path) -> str:
    """The whole name of what is there; empty if there is no such thing."""
    command = ["git", "rev-parse", "--verify", "--quiet", what]
    try:
        done = subprocess.run(command, cwd=directory, check=False, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def parse_regressions(text: str) -> list[Regression]:
    """The entries of a list, in its order: a seed, a commit, and why, one to a line; ``#`` begins a comment.

    Raises:
        ValueError: A line is something else, or a seed is there twice; names the line.
    """
    found: dict[int, Regression] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = ENTRY.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"line {number} is {line!r}, not SEED COMMIT WHY; correct it")
        seed = int(match["seed"])
        if seed in found:
            raise ValueError(f"line {number} lists seed {seed} again; say all about it on one line")
        found[seed] = Regression(seed=seed, commit=match["commit"], why=match["why"])
    return list(found.values())


def regressions() -> list[int]:
    """The seeds that failed once, in the order in which they did."""
    return [each.seed for each in parse_regressions(REGRESSIONS.read_text())]
