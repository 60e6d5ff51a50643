"""Which batch is meant: one whose results are in a directory here, or one that a daemon has."""

import re
from pathlib import Path

BATCH_ID = re.compile(r"[0-9a-f]{8}")
"""What names a batch that was submitted to a daemon."""


def directory_of(given: str) -> Path | None:
    """Take what was given as a directory; None: it can only be the id of a batch that was submitted to a daemon."""
    return None if BATCH_ID.fullmatch(given) and not Path(given).exists() else Path(given)
