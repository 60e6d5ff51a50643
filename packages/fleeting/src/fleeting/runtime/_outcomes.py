"""What calls have in common: how long one that reads may take, and what the core learns of one that fails."""

import logging

from fleeting import _errors
from fleeting._errors import FleetingError, LoginRejected, RateLimited
from fleeting._wording import one_line

READ_TIMEOUT = 120.0
"""Seconds that fetching the view or connection details may take."""

LONGEST_WAIT = 3600.0
"""Seconds for which a cloud is left alone at the most, whatever it asks for: nothing else would end a wait of years."""

LOGIN_RETRY = 30.0
"""Seconds before a new instance that refused the login is tried again: its user or key may be set up late in the boot,
and a host may lock out who tries too often."""

log = logging.getLogger("fleeting.provisioner")


def words(error: Exception) -> str:
    """What went wrong, in one line, whatever a plugin quotes; some errors say nothing but their names."""
    return one_line(str(error)) or type(error).__name__


def retry_after(error: Exception) -> float | None:
    """The cloud's own advice, if it gave any that can be taken; ours for a login that may be let in later."""
    if isinstance(error, LoginRejected):
        return LOGIN_RETRY
    advice = error.retry_after if isinstance(error, RateLimited) else None
    return min(advice, LONGEST_WAIT) if advice is not None and advice >= 0 else None  # what is no number is not


def class_of(error: Exception) -> str:
    """The class of an error, by a name of which there are few: a plugin's own ones are those of ours they derive from.

    Returns:
        The name of a class of `fleeting.errors`, ``TimeoutError``, or ``OSError``.
    """
    if isinstance(error, TimeoutError):
        return TimeoutError.__name__
    kinds = type(error).__mro__
    ours = (kind.__name__ for kind in kinds if issubclass(kind, FleetingError) and kind.__module__ == _errors.__name__)
    return next(ours, OSError.__name__)
