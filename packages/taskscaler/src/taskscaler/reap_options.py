"""The options of `taskscaler reap`, which are those of `taskscaler-gitlab reap` too; neither starts later for them."""

from collections.abc import Callable
from typing import Any, TypedDict, TypeVar

import click

from fleeting.cli import as_duration

__all__ = ["REAP_EPILOG", "ReapWish", "reap_options"]

F = TypeVar("F", bound=Callable[..., Any])


class ReapWish(TypedDict):
    """What may be removed and how that is shown, as the options say it."""

    remove: bool
    """Whether it is removed; else nothing is changed."""

    expired_for: float
    """Seconds."""

    at_most: int
    """Instances."""

    unmarked: float | None
    """Seconds. None: what nobody has marked stays."""

    as_json: bool
    """Whether to print JSON, for programs."""


REAP_EPILOG = """
Exit status: 0 if every instance that was to be removed is, also if there was none, and without --remove; 1 if a group
could not be looked at, or an instance could not be removed; 2 if the file or the arguments are wrong.
"""

_OPTIONS = [
    click.option("--remove", is_flag=True, help="Remove them.  [default: only show what would be removed]"),
    click.option(
        "--expired-for",
        metavar="DURATION",
        default="1h",
        show_default=True,
        callback=as_duration,
        help="For how long a manager's mark has to have expired, at least 1m: clocks differ.",
    ),
    click.option(
        "--at-most",
        metavar="N",
        type=click.IntRange(min=1),
        default=20,
        show_default=True,
        help="How many instances are removed at once, the oldest first.",
    ),
    click.option(
        "--unmarked",
        metavar="DURATION",
        callback=as_duration,
        help="Also remove instances that are older than this from groups that nobody has marked. A manager that does "
        "not mark its groups, such as GitLab Runner's own, loses them.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs."),
]


def reap_options(command: F) -> F:
    """Give a command the options that make a `ReapWish`, as parameters of its names."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
