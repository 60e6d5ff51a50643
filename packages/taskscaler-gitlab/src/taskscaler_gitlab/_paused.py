"""Whether a runner is paused: a file beside its jobs, so that one that is restarted by whoever supervises it stays so.

It may be written before the runner is started for the first time.
"""

import os
from pathlib import Path

from fleeting.plugins import make_private, write_whole

_FILE = "paused"
_SAYS = b"This runner asks for no jobs. Have it ask again with `taskscaler pause --undo`, or remove this file first.\n"


def is_paused(directory: Path) -> bool:
    """Whether the runner whose jobs are noted down in a directory is paused."""
    return (directory / _FILE).exists()


def pause(directory: Path) -> None:
    """Have it paused from now on.

    Raises:
        OSError: That cannot be written down.
    """
    make_private(directory)
    write_whole(directory / _FILE, _SAYS)


def unpause(directory: Path) -> None:
    """Have it paused no more.

    Raises:
        OSError: That cannot be written down.
    """
    try:
        (directory / _FILE).unlink()
    except FileNotFoundError:
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
