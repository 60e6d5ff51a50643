"""What the commands print."""

import os
import sys
from collections.abc import Sequence

from fleeting._terminal import harmless
from fleeting._wording import one_line


def say(line: str) -> None:
    """Print a line that is the answer, if anybody still reads; nothing in it can steer the terminal."""
    try:
        sys.stdout.write(f"{_in_one(line)}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter's last flush fails


def remark(line: str) -> None:
    """Print what should be known besides the answer."""
    sys.stderr.write(f"note: {_in_one(line)}\n")


def _in_one(line: str) -> str:
    """Make a line fit for a terminal, whatever its length: what was several lines cannot look like lines of ours."""
    return " ".join(harmless(line).splitlines())


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as they need to be; ``-`` stands for what is empty."""
    lines = [head, *([one_line(cell) or "-" for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
