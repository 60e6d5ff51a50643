"""Time limits that a test lets pass, but not before something has happened: how soon it does, nobody can say."""

from collections.abc import Iterator

LONGEST = 45.0
"""Seconds within which anything begins, also on a machine with twenty other things to do."""


NEVER_REACHED = 86_400.0
"""Seconds for a setting of the product that no test may reach: longer than any test's own limit, the only clock."""


def longer_and_longer(first: float) -> Iterator[float]:
    """Seconds to try one after the other, until what has to come before the limit does: *first*, or a few times that.

    So a test takes no longer than it has to, and is right on a busy machine, too. There is no end, but an error.
    """
    limit = first
    while limit < LONGEST:
        yield limit
        limit *= 5
    yield LONGEST
    raise AssertionError(f"it did not come within {LONGEST:g} s")
