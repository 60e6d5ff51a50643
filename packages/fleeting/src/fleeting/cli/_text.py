"""What the commands print."""

import os
import sys
from collections.abc import Sequence

from fleeting.terminal import harmless


def say(line: str) -> None:
    """Print a line that is the answer, if anybody still reads; nothing in it can steer the terminal."""
    try:
        sys.stdout.write(f"{harmless(line)}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter's last flush fails


def remark(line: str) -> None:
    """Print what should be known besides the answer."""
    sys.stderr.write(f"note: {harmless(line)}\n")


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as they need to be; ``-`` stands for what is empty."""
    lines = [head, *([harmless(cell) or "-" for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
