"""Runs a daemon in this process, from the command line of whoever has one."""

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio

from fleeting.cli import outcome
from taskscaler._open_files import allow_open_files
from taskscaler.cli._log import logging_on, note
from taskscaler.cli._log_formats import LogFormat
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
    page: Listen | None = None,
    page_without_link: bool = False,
    owners: Callable[[Callable[[str], None]], Sequence[JobOwner]] = lambda _: (),
    notes: Sequence[str] = (),
    loggers: Sequence[str] = (),
    level: int = logging.INFO,
    style: LogFormat = "text",
) -> int:
    """Serve the fleet of a file until it is stopped; returns the exit status.

    Args:
        file: The fleet.
        place: Where its socket is.
        group: Users who may connect besides our own.
        stop_timeout: Seconds that leases have to end after the first signal.
        runner: Which runner of a ``config.toml``.
        listen: Where it listens over TCP, too.
        page: Where it shows the status page.
        page_without_link: Whether everybody who reaches that may look.
        owners: Makes those who bring jobs, in the event loop; takes what prints a line.
        notes: Lines to be printed first.
        loggers: Names of libraries that log, too.
        level: What is logged, and what is more important.
        style: How; unless it is text, what is said to people is logged, too, instead of printed.
    """
    tell = say if style == "text" else note

    def serve() -> int:
        for line in (*notes, *(f"note: {each}" for each in file.notes)):
            tell(line)
        entrance, shown = (None if each is None else Entrance.of(each) for each in (listen, page))
        if page_without_link and shown is not None:
            shown.check_own("--http-no-link")

        async def run() -> int:
            daemon = Daemon(
                file,
                place,
                group,
                stop_timeout,
                tell,
                runner,
                entrance,
                shown,
                page_without_link,
                owners(tell),
                on_terminal=style == "text" and sys.stdout.isatty(),
            )
            return await daemon.run()

        allow_open_files()
        return anyio.run(run)

    with logging_on(sys.stderr, also=loggers, level=level, style=style):
        return outcome(serve)
