"""``taskscaler-gitlab route``: what runners talk to where there are several cells."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Literal

import anyio
import click
from attrs import asdict

from fleeting import ConfigError
from fleeting.cli import FAILED, SUCCEEDED, WRONG, WRONG_FILE, outcome, report_errors
from fleeting.errors import WrongArguments
from fleeting.plugins import state_home
from taskscaler.serve import logging_on, say
from taskscaler_gitlab.cells._registry import Registered
from taskscaler_gitlab.cells._serve import registry_of, run_router
from taskscaler_gitlab.cells._settings import RouterFile, read_router_file


def route(path: Path, *, style: Literal["text", "json", "journal"]) -> int:
    """Pass on what runners say until it is stopped; returns the exit status."""
    try:
        file = read_router_file(path)
        directory = directory_of(file)
    except WRONG_FILE as error:
        return report_errors([error], WRONG)

    with logging_on(sys.stderr, also=("taskscaler.gitlab",), style=style):
        return outcome(lambda: anyio.run(run_router, file, directory, say))


def runners(path: Path, *, as_json: bool, remove: int | None) -> int:
    """List the runners that have registered with a router, or remove one; returns the exit status."""
    try:
        file = read_router_file(path)
        registry = registry_of(file, directory_of(file))
    except WRONG_FILE as error:
        return report_errors([error], WRONG)
    try:
        if remove is not None and registry.change(lambda all_: all_.remove(remove)) is None:
            return report_errors([WrongArguments(f"--remove: no runner has the number {remove}")], WRONG)
        found = [*registry.read().runners.values()]
    except (OSError, ConfigError) as error:
        return report_errors([error], FAILED)
    except ValueError as error:
        click.echo(f"error: {error}", err=True)
        return FAILED
    if as_json:
        click.echo(json.dumps([_as_json(each) for each in found], indent=2))
    elif found:
        _print_table([_HEAD, *map(_as_row, found)])
    else:
        click.echo("no runner has registered")
    return SUCCEEDED


_HEAD = ("id", "token", "registered", "expires", "last contact", "machines", "description")


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(each.ljust(width) for each, width in zip(row, widths, strict=True)).rstrip())


def _as_row(runner: Registered) -> Sequence[str]:
    times = (runner.registered_at, runner.expires_at, runner.contacted_at)
    registered, expires, contacted = ("never" if each is None else _shown(each) for each in times)
    return [
        *(str(runner.id), runner.short, registered, expires, contacted, str(len(runner.managers))),
        runner.description,
    ]


def _as_json(runner: Registered) -> dict[str, object]:
    return {key: value for key, value in asdict(runner).items() if key != "token_hash"}


def _shown(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%MZ")


def directory_of(file: RouterFile) -> Path:
    """Where a router keeps its key: by default for each file another."""
    if file.router.state_dir is not None:
        return Path(file.router.state_dir)
    whose = sha256(str(file.path.resolve()).encode()).hexdigest()[:12]
    return state_home() / "taskscaler" / f"router-{whose}"
