"""What executors raise, sorted into what they may raise and what nobody expects."""

from collections.abc import Iterator
from itertools import islice

from fleeting import ConnectError, Unreachable
from fleeting.plugins import one_line
from taskscaler._wording import MOST_NAMED


def documented(error: Exception) -> ConnectError | OSError | None:
    """Find the error that an executor has reported to the caller, also if tasks have wrapped it in groups.

    Returns:
        One that `Executor.run` documents; `Unreachable` only if there is nothing else. None: something else was raised,
        and nothing that the executor or the instance says can be relied on.
    """
    leaves = list(_leaves(error))
    known = [leaf for leaf in leaves if isinstance(leaf, ConnectError | OSError)]
    if len(known) < len(leaves):
        return None
    return next((leaf for leaf in known if not isinstance(leaf, Unreachable)), known[0])


def named(error: Exception) -> str:
    """Name an error that nobody expects by its class, and by what it says."""
    return "; ".join(
        f"{type(leaf).__name__}: {text}" if (text := _text(leaf)) else type(leaf).__name__
        for leaf in islice(_leaves(error), MOST_NAMED)
    )


def _text(error: Exception) -> str:
    try:
        return one_line(str(error))
    except Exception:  # noqa: BLE001  (it is somebody else's, and what they raise is all that is known of them)
        return ""


def _leaves(error: Exception) -> Iterator[Exception]:
    """Take groups apart, however deep they are."""
    left = [error]
    while left:
        last = left.pop()
        if isinstance(last, ExceptionGroup):
            left += reversed(last.exceptions)
        else:
            yield last
