"""``taskscaler-gitlab check``: whether a runner could begin."""

from pathlib import Path

import anyio
import click

from fleeting import PluginNotFound
from fleeting.cli import FAILED, SUCCEEDED, WRONG, WRONG_FILE, report_errors
from gitlab_jobs import Refused, Unreachable
from taskscaler_gitlab._config import ServiceConfig, read_config
from taskscaler_gitlab._gitlab import about, client_of


def check_config(path: Path, runner: str | None) -> int:
    """Check the file and the runner's token, and return the exit status. What goes wrong is on standard error."""
    try:
        config = read_config(path, runner=runner)
        client_of(config.runner)
    except (*WRONG_FILE, PluginNotFound) as error:
        return report_errors([error], WRONG)
    for line in notes_of(config):
        click.echo(line)
    try:
        click.echo(anyio.run(_verify, config))
    except (Refused, Unreachable) as error:
        click.echo(f"error: {error}", err=True)
        return FAILED
    return SUCCEEDED


def notes_of(config: ServiceConfig) -> list[str]:
    """What of the file is not as one might think, a line each."""
    ignored = [f"ignored: {key} means nothing here" for key in config.ignored]
    unsupported = [f"note: {sentence}" for sentence in config.unsupported]
    return [*ignored, *unsupported]


async def _verify(config: ServiceConfig) -> str:
    runner = config.runner
    async with client_of(runner) as client:
        found = await client.verify(runner.token, info=about(runner))
    until = f", until {found.token_expires_at}" if found.token_expires_at else ""
    return f"ok: {runner.url} knows the runner as number {found.id}{until}"
