"""Text for people: lists."""

from collections.abc import Iterable


def listed(parts: Iterable[str]) -> str:
    """Join what stands side by side in a line of the display."""
    return " · ".join(parts)
