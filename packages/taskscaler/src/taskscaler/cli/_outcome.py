"""How a command ends: exit statuses."""

from collections.abc import Callable, Iterator
from signal import SIGINT
from typing import TypeVar

from fleeting import ConfigError, InterfaceMismatch, PluginBroken
from taskscaler.cli._errors import EXPECTED, tell

SUCCEEDED, FAILED, WRONG, SIGNALLED = 0, 1, 2, 128
"""Exit statuses; the signal's number is added to the last, as shells do."""

WRONG_FILE = (ConfigError, PluginBroken, InterfaceMismatch, OSError)
"""What is wrong with a file, or with what it names, before anything has begun."""

E = TypeVar("E", bound=BaseException)


def outcome(command: Callable[[], int]) -> int:
    """Run a command that returns its exit status, and return it; expected errors are told and have theirs."""
    try:
        return command()
    except KeyboardInterrupt:  # before the event loop heeds signals
        return SIGNALLED + SIGINT
    except EXPECTED as error:
        return tell([error], FAILED)
    except BaseExceptionGroup as group:
        expected, rest = group.split(EXPECTED)
        if expected is None or rest is not None:
            raise
        return tell(_leaves(expected), FAILED)


def _leaves(group: BaseExceptionGroup[E]) -> Iterator[E]:
    """Take groups of errors apart."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
