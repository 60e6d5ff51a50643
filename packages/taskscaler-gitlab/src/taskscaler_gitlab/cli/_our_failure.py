"""What goes wrong in the driver of the custom executor, and nobody foresaw, is our failure and not the job's.

Python would end with 1, which gitlab-runner takes for the script's: GitLab would not run the job again. The job's log
has one line of it, for whoever may read that; the operator finds the traceback in a file of their own.
"""

import os
import re
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from fleeting.cli import Commands
from fleeting.config import harmless

_SYSTEM = "SYSTEM_FAILURE_EXIT_CODE"
_MOST = 255
_LARGEST: Final = 1 << 20
"""Bytes of the file with tracebacks, from which on it is begun again; the one before it stays."""

_LONGEST: Final = 64 << 10
"""Characters of a traceback: there are exceptions of thousands."""

_MEANT = (click.ClickException, click.Abort, click.exceptions.Exit, SystemExit)


class DriverCommands(Commands):
    """Commands that end with what gitlab-runner has named for a system failure, even if they cannot be imported."""

    def invoke(self, ctx: click.Context) -> object:
        """Read a command's own arguments, and run it."""
        try:
            return super().invoke(ctx)
        except _MEANT:
            raise
        except BaseException as error:  # noqa: BLE001  (a signal's, too)
            click.echo(f"error: {harmless(_told(error) + _kept(error))}", err=True)
            sys.exit(_status(os.environ.get(_SYSTEM, "")))


def _status(given: str) -> int:
    """Read what a system failure ends with; as `codes_of` does, which could be what cannot be imported."""
    return int(given) if re.fullmatch("[0-9]{1,3}", given) and 0 < int(given) <= _MOST else 2


def _told(error: BaseException) -> str:
    """Say in one line what went wrong, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
        frames = traceback.extract_tb(error.__traceback__) or frames
    what = " ".join(traceback.format_exception_only(error)[-1].split())
    where = f" in {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return (
        f"{what}{where}; this is not a failure of the job: if taskscaler-gitlab is not just being upgraded, report it"
    )


def _kept(error: BaseException) -> str:
    """Keep the traceback for the operator; returns where it is, for the line in the job's log."""
    try:
        from fleeting.plugins import make_private, open_private, state_home  # which may be what cannot be imported

        path = state_home() / "taskscaler" / "custom-executor-errors.log"
        make_private(path.parent)
        _make_room(path)
        with open(path, "a", encoding="utf-8", errors="backslashreplace", opener=open_private) as file:
            file.write(_account(error))
    except Exception:  # noqa: BLE001  (a full disk must not change how we end)
        return ""
    return f" with its traceback, which is in {path} on the host of gitlab-runner"


def _make_room(path: Path) -> None:
    if path.exists() and path.stat().st_size > _LARGEST:
        path.replace(path.with_suffix(".old.log"))


def _account(error: BaseException) -> str:
    """Write when it was, for which job and call, and where in the code."""
    called = " ".join(sys.argv[1:3])
    head = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {called} job={os.environ.get('CUSTOM_ENV_CI_JOB_ID', '')}"
    told = "".join(traceback.format_exception(error))
    return f"{harmless(head)[:1000]}\n{told[-_LONGEST:]}\n"
