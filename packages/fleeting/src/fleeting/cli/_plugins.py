"""``fleeting plugins``: what is installed, without importing any of it."""

from importlib.metadata import entry_points

from fleeting.cli._text import print_table

KINDS = {
    "fleeting.groups": "group",
    "fleeting.connectors": "connector",
    "taskscaler.executors": "executor",
    "taskscaler.observers": "observer",
}
"""The entry-point groups of the suite, and what they hold."""


def list_plugins() -> int:
    """Print a line for each."""
    rows = [
        (kind, entry.name, f"{entry.dist.name} {entry.dist.version}" if entry.dist else "", entry.value)
        for group, kind in KINDS.items()
        for entry in sorted(entry_points(group=group), key=lambda entry: entry.name)
    ]
    print_table(("KIND", "NAME", "DISTRIBUTION", "MODULE"), rows)
    return 0
