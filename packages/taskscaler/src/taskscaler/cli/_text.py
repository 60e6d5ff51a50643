"""Text for people: lists, and lines that are no longer than they may be."""

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from textwrap import TextWrapper

from fleeting.plugins import one_line


def listed(parts: Iterable[str]) -> str:
    """Join what stands side by side in a line of the display."""
    return " · ".join(parts)


def broken(text: str, width: int, *, most: int | None = None) -> list[str]:
    """Break a text into lines between words; a word that is longer than a line stays whole, so that it can be copied.

    Args:
        text: Of one line.
        width: Characters that a line has at most.
        most: Lines that there are at most; the last one shows that something is left out.

    Returns:
        At least one line.
    """
    wrapper = TextWrapper(
        max(1, width), max_lines=most, placeholder=" …", break_long_words=False, break_on_hyphens=False
    )
    return wrapper.wrap(text) or [""]


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Write rows below each other, each column as wide as it needs to be; ``-`` stands for what is empty."""
    lines = [[one_line(cell) or "-" for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def amount(amount: float) -> str:
    """Write two decimals of what is large enough, else enough to differ from nothing."""
    return f"{amount:,.2f}" if amount >= 1 else f"{Decimal(f'{amount:.2g}'):f}"
