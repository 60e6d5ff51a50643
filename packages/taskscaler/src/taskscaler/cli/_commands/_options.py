"""What options of several commands are, and how their values are read; all else is imported when a command runs."""

import sys
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from taskscaler._socket import Place

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
RUNNER = click.option("--runner", metavar="NAME", help="Which runner, if the config.toml has several.")

DAEMON_EPILOG = """
Exit status: 0 on success, 1 if no daemon answers or it refuses, 2 if the arguments are wrong.
"""


def as_new_file(_: click.Context, __: click.Parameter, given: Path | None) -> Path | None:
    if given is not None and not given.parent.is_dir():
        raise click.BadParameter(f"there is no directory {given.parent}")
    return given


def as_daemon(_: click.Context, __: click.Parameter, given: str | None) -> "Place | None":
    if given is None:
        return None
    from fleeting.errors import WrongArguments
    from taskscaler._socket import find_socket

    try:
        return find_socket(given)
    except WrongArguments as error:
        raise click.BadParameter(str(error)) from error


SOCKET = click.option(
    "--socket",
    metavar="PATH",
    callback=as_daemon,
    help="The daemon's socket, or its address, as https://HOST:PORT.  [default: TASKSCALER_SOCKET, or the only one in "
    "$XDG_RUNTIME_DIR/taskscaler]",
)


JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def as_place(_: click.Context, __: click.Parameter, given: str | None) -> tuple[str, int] | None:
    if given is None:
        return None
    from fleeting.plugins import place_to_listen

    try:
        return place_to_listen(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def as_address(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    """Check an address, and leave it as it is written."""
    as_place(_, __, given)
    return given


METRICS = click.option(
    "--metrics",
    metavar="HOST:PORT",
    callback=as_address,
    help="Show metrics for Prometheus there, at /metrics, without asking for a password.",
)


TRACES = click.option(
    "--traces",
    is_flag=True,
    help="Send a trace of each job to OpenTelemetry, as the OTEL_* variables say.  [default: to http://localhost:4318]",
)


JUNIT = click.option(
    "--junit",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=as_new_file,
    help="Write JUnit XML: each job is a test case.",
)


def as_price(_: click.Context, __: click.Parameter, given: str | None) -> float | None:
    if given is None:
        return None
    with suppress(ValueError):
        if 0 <= (price := float(given)) < inf:
            return price
    raise click.BadParameter(f"{given!r} is not a price such as 0.12")


def directory_of(batch: str, socket: "Place | None") -> Path | None:
    """Take a batch as a directory; None: it is the id of a daemon's."""
    from taskscaler._batch_id import directory_of

    directory = directory_of(batch)
    if directory is not None and socket is not None:
        raise click.UsageError("a directory and --socket cannot be combined; ask about a batch or about a daemon")
    return directory


def results_of(batch: str, socket: "Place | None") -> Path:
    """Find the results directory of a batch, or end with an error."""
    if directory := directory_of(batch, socket):
        return directory
    from fleeting.cli import outcome
    from taskscaler.cli._batches import results_of

    found: list[Path] = []

    def ask() -> int:
        found.append(results_of(batch, socket))
        return 0

    if status := outcome(ask):
        sys.exit(status)
    return found[0]
