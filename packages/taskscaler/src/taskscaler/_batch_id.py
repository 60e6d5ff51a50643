"""Which batch is meant: one whose results are in a directory here, or one that a daemon has."""

import re
from pathlib import Path

BATCH_ID = re.compile(r"[0-9a-f]{8}")
"""What names a batch that was submitted to a daemon."""

JOB_ID = re.compile(r"[a-z]+-[0-9]+")
"""What names a job that somebody else brings to a daemon's fleet, such as ``gitlab-17``."""

TICKET = "batch.json"
"""What a daemon keeps beside the results of such a batch."""


def directory_of(given: str) -> Path | None:
    """Take what was given as a directory; None: it can only be the id of something that a daemon has."""
    is_id = BATCH_ID.fullmatch(given) or JOB_ID.fullmatch(given)
    return None if is_id and not Path(given).exists() else Path(given)
