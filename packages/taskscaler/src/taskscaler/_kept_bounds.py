"""For how long a lease may be kept that nobody uses, for the daemon and its clients alike."""

from typing import Final

from fleeting.plugins import span

DEFAULT_TIME: Final = 8 * 3600.0
"""Seconds after which a lease that no client has ends, unless somebody says otherwise: a day's work."""

MOST_TIME: Final = 7 * 86400.0
"""So long a bound may be, in seconds."""

LEAST_TIME: Final = 1.0
"""In seconds."""


def check_bound(name: str, seconds: float | None) -> None:
    """See that a bound is in its range; None: it is not named.

    Args:
        name: What it is called.
        seconds: How long it is.

    Raises:
        ValueError: It is not.
    """
    if seconds is not None and not LEAST_TIME <= seconds <= MOST_TIME:
        raise ValueError(f"{name}: expected {span(LEAST_TIME)} to {span(MOST_TIME)}, found {span(seconds)}")
