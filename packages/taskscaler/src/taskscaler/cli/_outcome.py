"""How a command ends: exit statuses, and errors in sentences."""

import sys
from collections.abc import Callable, Iterable

from fleeting import ConfigError, FleetingError, InterfaceMismatch, PluginBroken
from taskscaler.cli._text import harmless

SUCCEEDED, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses."""

EXPECTED = (FleetingError, OSError)
"""What is told in a sentence; anything else is a mistake of ours and shows where it is."""

WRONG_FILE = (ConfigError, PluginBroken, InterfaceMismatch, OSError)
"""What is wrong with a file, or with what it names, before anything has begun."""


def tell(errors: Iterable[BaseException | None], status: int) -> int:
    """Tell what went wrong on standard error, and return the exit status."""
    for error in errors:
        for line in harmless(str(error)).splitlines():
            print(f"error: {line}", file=sys.stderr)  # noqa: T201  (a command's errors go there)
    return status


def outcome(command: Callable[[], int]) -> int:
    """Run a command that returns its exit status, and return it; expected errors are told and have theirs."""
    try:
        return command()
    except KeyboardInterrupt:  # before the event loop heeds signals
        return INTERRUPTED
    except EXPECTED as error:
        return tell([error], FAILED)
    except BaseExceptionGroup as group:
        expected, rest = group.split(EXPECTED)
        if rest is not None:
            raise
        return tell(_leaves(expected), FAILED)


def _leaves(error: BaseException | None) -> Iterable[BaseException | None]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
