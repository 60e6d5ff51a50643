"""``register``, ``unregister`` and ``reset-token``: the runner's place at GitLab, and its entry in the file."""

import json
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import anyio
import click
from attrs import evolve

from fleeting import ConfigError, PluginNotFound
from fleeting.cli import FAILED, SUCCEEDED, WRONG, WRONG_FILE, report_errors
from fleeting.config import did_you_mean
from fleeting.errors import WrongArguments
from fleeting.plugins import write_whole
from gitlab_jobs import GitLabJobsError
from gitlab_jobs.client import GitLabClient, Registered
from taskscaler.serve import read_fleet_file
from taskscaler_gitlab._config import ServiceConfig, read_config
from taskscaler_gitlab._expiry import keep_alone, keep_token, may_keep, may_keep_alone
from taskscaler_gitlab._gitlab import about, client_of, said
from taskscaler_gitlab._settings import EXECUTORS, RunnerSettings
from taskscaler_gitlab._system_id import system_id
from taskscaler_gitlab.cli._run import directory_of

_ENTRY = """
[[runners]]
name = {name}
url = {url}
id = {id}
token = {token}
executor = {executor}
{expiry}
[runners.autoscaler]
plugin = {plugin}
"""


def register(path: Path, *, url: str, token: str, name: str, executor: str, plugin: str) -> int:
    """Add a runner to a file, once GitLab has accepted its token; returns the exit status."""
    if executor not in EXECUTORS:
        return report_errors(
            [WrongArguments(f"--executor: expected {', '.join(EXECUTORS)}, found {executor!r}")], WRONG
        )
    settings = RunnerSettings(name=name, url=url.rstrip("/"), token=token, executor=executor)  # type: ignore[arg-type]

    async def ask() -> Registered:
        async with _client(url) as client:
            if token.startswith("glrt-"):
                return await client.verify(token, info=about(settings))
            return await client.register(token, description=name, info=about(settings))

    def add(found: Registered) -> str:
        text = path.read_text(encoding="utf-8") if path.exists() else "concurrent = 1\n"
        expiry = f"token_expires_at = {_quoted(found.token_expires_at)}\n" if found.token_expires_at else ""
        values = {"name": name, "url": settings.url, "token": found.token, "executor": executor, "plugin": plugin}
        written = {key: _quoted(value) for key, value in values.items()}
        write_whole(path, (text + _ENTRY.format(**written, id=found.id, expiry=expiry)).encode())
        return f"registered as number {found.id}; see [runners.autoscaler] in {path} for the rest of its fleet"

    return _done(ask, add)


def unregister(path: Path, runner: str | None, cell: str | None) -> int:
    """Take a runner off GitLab; a runner that was created there loses this machine only. The file stays as it is."""
    config = _config_of(path, runner, cell)
    if isinstance(config, int):
        return config
    settings, directory = config.runner, directory_of(config, read_fleet_file(path, runner))

    async def ask() -> None:
        async with client_of(settings) as client:
            await client.unregister(settings.token, system_id=system_id(directory))

    return _done(ask, lambda _: f"{settings.url} does not know the runner here any more; its entry in {path} is left")


def reset_token(path: Path, runner: str | None, cell: str | None) -> int:
    """Have GitLab replace a runner's token, and put the new one into its file."""
    config = _config_of(path, runner, cell)
    if isinstance(config, int):
        return config
    settings = config.runner
    alone = next((Path(each.token_file) for each in settings.taskscaler.upstreams if each.cell == cell), None)
    if why := may_keep(path, settings.token) if alone is None else may_keep_alone(alone):
        return report_errors([WrongArguments(f"the new token could not be kept: {why}; nothing was changed")], WRONG)

    async def ask() -> Registered:
        async with client_of(settings) as client:
            return await client.reset_token(settings.token)

    def keep(found: Registered) -> str:
        if alone is None:
            keep_token(path, settings.token, found.token)
        else:
            keep_alone(alone, settings.token, found.token)
        return f"{alone or path} has the new token; a runner that runs takes it over with `taskscaler reload`"

    return _done(ask, keep)


def _client(url: str) -> GitLabClient:
    try:
        return GitLabClient(url)
    except ValueError as error:
        raise WrongArguments(f"--url: {error}") from None


def _config_of(path: Path, runner: str | None, cell: str | None) -> ServiceConfig | int:
    """Read the file, with the address and the token of the one GitLab that is meant."""
    try:
        config = read_config(path, runner=runner)
        client_of(config.runner)
        upstreams = {each.cell: each for each in config.runner.taskscaler.upstreams}
        if cell is None and not upstreams:
            return config
        if cell not in upstreams:
            raise WrongArguments(_no_cell(cell, [*upstreams]))
    except (*WRONG_FILE, PluginNotFound, WrongArguments) as error:
        return report_errors([error], WRONG)
    its = config.runner.cells[cell]
    return evolve(config, runner=evolve(config.runner, url=its.url, token=its.token))


def _no_cell(cell: str | None, known: Sequence[str]) -> str:
    if not known:
        return f"--cell {cell}: the runner has no upstreams; leave the option out"
    names = ", ".join(known)
    if cell is None:
        return f"the runner has several GitLabs; say which with --cell: {names}"
    hint = did_you_mean(cell, known)
    return f"--cell {cell}: expected one of {names}; {hint or 'name one of them'}"


def _done(ask: Callable[[], Coroutine[Any, Any, Any]], then: Callable[[Any], str]) -> int:
    """Ask GitLab, and say what came of it."""
    try:
        done = then(anyio.run(ask))
    except WrongArguments as error:
        return report_errors([error], WRONG)
    except (ConfigError, OSError) as error:
        return report_errors([error], FAILED)
    except GitLabJobsError as error:
        click.echo(f"error: {said(error)}", err=True)
        return FAILED
    except ValueError as error:
        click.echo(f"error: {error}", err=True)
        return FAILED
    click.echo(done)
    return SUCCEEDED


def _quoted(text: str | None) -> str:
    """Write a string as TOML has it, which is as JSON has it."""
    return json.dumps(text or "", ensure_ascii=False)
