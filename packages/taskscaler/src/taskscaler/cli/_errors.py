"""``taskscaler errors``: what the catalogue of errors says."""

import sys

import taskscaler._errors  # noqa: F401  (so that our own are in the catalogue: nothing else has imported them)
from fleeting.cli import fitted
from fleeting.errors import CatalogueEntry, catalogue


def print_catalogue() -> None:
    """Print every entry's code and cause."""
    for entry in catalogue().values():
        _print(entry.code, entry.cause, width=7)


def print_entry(entry: CatalogueEntry) -> None:
    """Print all that the catalogue says of one kind of error."""
    print(entry.code)  # noqa: T201  (what was asked for)
    _print("cause", entry.cause, width=8)
    _print("remedy", entry.remedy, width=8)


def _print(label: str, text: str, *, width: int) -> None:
    """Print a text beside its label."""
    print(fitted(f"{label:<{width}}{text}", sys.stdout, indent=" " * width))  # noqa: T201  (as above)
