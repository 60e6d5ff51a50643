"""``taskscaler errors``: what the catalogue of errors says."""

from fleeting import CatalogueEntry, catalogue


def print_catalogue() -> None:
    """Print every entry's code and cause."""
    for entry in catalogue().values():
        print(f"{entry.code}  {entry.cause}")  # noqa: T201  (what was asked for)


def print_entry(entry: CatalogueEntry) -> None:
    """Print all that the catalogue says of one kind of error."""
    print(f"{entry.code}\ncause   {entry.cause}\nremedy  {entry.remedy}")  # noqa: T201  (as above)
