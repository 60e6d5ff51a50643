"""``taskscaler-gitlab route``: what runners talk to where there are several cells."""

import sys
from hashlib import sha256
from pathlib import Path
from typing import Literal

import anyio

from fleeting.cli import WRONG, WRONG_FILE, outcome, report_errors
from fleeting.plugins import state_home
from taskscaler.serve import allow_open_files, logging_on, say
from taskscaler_gitlab.cells._serve import run_router
from taskscaler_gitlab.cells._settings import RouterFile, read_router_file


def route(path: Path, *, style: Literal["text", "json", "journal"]) -> int:
    """Pass on what runners say until it is stopped; returns the exit status."""
    try:
        file = read_router_file(path)
        directory = directory_of(file)
    except WRONG_FILE as error:
        return report_errors([error], WRONG)

    def serve() -> int:
        allow_open_files()
        return anyio.run(run_router, file, directory, say)

    with logging_on(sys.stderr, also=("taskscaler.gitlab",), style=style):
        return outcome(serve)


def directory_of(file: RouterFile) -> Path:
    """Where a router keeps its key: by default for each file another."""
    if file.router.state_dir is not None:
        return Path(file.router.state_dir)
    whose = sha256(str(file.path.resolve()).encode()).hexdigest()[:12]
    return state_home() / "taskscaler" / f"router-{whose}"
