"""Where things are kept on the manager's own machine."""

import os
from pathlib import Path


def state_home() -> Path:
    """Tell where the user's programs keep what they must remember; absolute, need not exist.

    Raises:
        RuntimeError: The user has no home directory.

    Source: the XDG base directory specification.
    """
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    return given if given.is_absolute() else Path.home() / ".local" / "state"  # one that is relative is passed over
