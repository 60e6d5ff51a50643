"""Runs a daemon in this process, from the command line of whoever has one."""

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio

from fleeting.cli import outcome
from taskscaler._open_files import allow_open_files
from taskscaler.cli._log import logging_on
from taskscaler.serve._daemon import Daemon
from taskscaler.serve._fleet_file import FleetFile
from taskscaler.serve._owners import JobOwner
from taskscaler.serve._tcp import Entrance, Listen


def say(line: str) -> None:
    """Print a line at once, for who has started the daemon, or the service manager's log."""
    print(line, flush=True)  # noqa: T201  (see above)


def run_daemon(
    file: FleetFile,
    place: Path,
    *,
    group: str | None,
    stop_timeout: float,
    runner: str | None,
    listen: Listen | None = None,
    owners: Callable[[], Sequence[JobOwner]] = tuple,
    loggers: Sequence[str] = (),
    level: int = logging.INFO,
    as_json: bool = False,
) -> int:
    """Serve the fleet of a file until it is stopped; returns the exit status.

    Args:
        file: The fleet.
        place: Where its socket is.
        group: Users who may connect besides our own.
        stop_timeout: Seconds that leases have to end after the first signal.
        runner: Which runner of a ``config.toml``.
        listen: Where it listens over TCP, too.
        owners: Makes those who bring jobs, in the event loop.
        loggers: Names of libraries that log, too.
        level: What is logged, and what is more important.
        as_json: Whether as JSON.
    """
    for note in file.notes:
        say(f"note: {note}")

    def serve() -> int:
        entrance = None if listen is None else Entrance.of(listen)

        async def run() -> int:
            return await Daemon(file, place, group, stop_timeout, say, runner, entrance, owners()).run()

        allow_open_files()
        with logging_on(sys.stderr, also=loggers, level=level, as_json=as_json):
            return anyio.run(run)

    return outcome(serve)
