"""The last lines of what a job printed."""

from collections import deque
from pathlib import Path

from fleeting.config import harmless

LAST_LINES = 5
"""So many lines of a failed job's log are shown."""

_TAIL = 64 * 1024  # bytes of a log that are read to find its last lines


def last_lines(log: Path, most: int = LAST_LINES) -> list[str]:
    """Read the last lines of what a job printed in the last try that printed something, made harmless.

    Returns:
        None of them if there is no log to read.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    last, over = deque[str](maxlen=most), False
    for line in filter(str.strip, harmless(text).splitlines()):
        if line.startswith("taskscaler: "):
            over = True
            continue
        if over:
            last.clear()
            over = False
        last.append(line)
    return list(last)
