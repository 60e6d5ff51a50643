"""How the command tells what went wrong: a line each, with what to do and the code to look up."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from fleeting import CatalogueEntry, ConfigError, FleetingError, catalogue
from fleeting.terminal import harmless
from taskscaler._errors import SystemRefused

Expected: TypeAlias = FleetingError | OSError
EXPECTED: tuple[type[Expected], ...] = (FleetingError, OSError)
"""What is told in a sentence; anything else is a mistake of ours and shows where it is."""


def tell(errors: Iterable[Expected], status: int) -> int:
    """Print the errors on standard error and return the exit status."""
    for error in errors:
        for line in in_lines(error):
            print(line, file=sys.stderr)  # noqa: T201  (a command's errors go there)
    return status


def in_lines(error: Expected) -> Iterator[str]:
    """Write an error: a line for each thing that is wrong, then what belongs to it, indented.

    What to do stands behind a semicolon, by the convention of our messages; where it does not, the catalogue says it.
    """
    if isinstance(error, OSError):
        error = SystemRefused(error)
    if isinstance(error, ConfigError):
        for line, problem in zip(error.lines, error.problems, strict=True):
            yield f"error: {harmless(line)} [{problem.mistake.value.code}]"
    else:
        first, *more = harmless(str(error)).splitlines() or [""]
        yield f"error: {_with_remedy(first, error.entry)} [{error.entry.code}]"
        yield from (f"  {line}" for line in more)


def print_catalogue() -> None:
    """Print every entry's code and cause."""
    for entry in catalogue().values():
        print(f"{entry.code}  {entry.cause}")  # noqa: T201  (what was asked for)


def print_entry(entry: CatalogueEntry) -> None:
    """Print all that the catalogue says of one kind of error."""
    print(f"{entry.code}\ncause   {entry.cause}\nremedy  {entry.remedy}")  # noqa: T201  (as above)


def _with_remedy(message: str, entry: CatalogueEntry) -> str:
    if ";" in message:
        return message
    remedy = entry.remedy.removesuffix(".")
    return f"{message}; {remedy[:1].lower()}{remedy[1:]}"
