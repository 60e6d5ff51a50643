"""How many files and connections this process may have open."""

import resource
from contextlib import suppress

MOST = 65_536
"""More are of no use, and programs that close all that they might have inherited would take long."""


def allow_open_files() -> int:
    """Raise the limit as far as the system lets us: most give 1,024, which as many clients or jobs use up.

    Returns:
        The limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before, most = (MOST if each == resource.RLIM_INFINITY else each for each in (soft, hard))
    wanted = min(most, MOST)
    if before >= wanted:
        return before
    with suppress(ValueError, OSError):  # macOS has a lower one of its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return before
