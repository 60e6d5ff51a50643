"""``taskscaler-gitlab check``: whether a runner could begin."""

from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click

from fleeting import FleetingError, PluginNotFound
from fleeting.cli import FAILED, SUCCEEDED, WRONG, WRONG_FILE, report_errors
from fleeting.plugins import one_line
from gitlab_jobs import GitLabJobsError, Job, decode_job
from taskscaler_gitlab._config import ServiceConfig, read_config
from taskscaler_gitlab._gitlab import about, client_of, said
from taskscaler_gitlab._record import MAX_JOB
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab._sidecar_settings import keys_that_jobs_can_read


def check_config(path: Path, runner: str | None, *, canary: bool = False) -> int:
    """Check the file and the runner's token, and return the exit status. What goes wrong is on standard error."""
    try:
        config = read_config(path, runner=runner)
        client_of(config.runner)
    except (*WRONG_FILE, PluginNotFound) as error:
        return report_errors([error], WRONG)
    for line in notes_of(config):
        click.echo(line)
    cells = config.runner.cells.items()
    looked = max(*(_looked(partial(_verify, *each)) for each in cells), _looked(partial(_look, config)))
    if not canary or looked != SUCCEEDED:
        return looked
    from taskscaler_gitlab.cli._canary import fly_canary  # which needs a server, and more

    return fly_canary(config, runner)


def check_job(path: Path, runner: str | None, payload: Path) -> int:
    """Say what the rules make of a job, and return the exit status. Nothing is connected to."""
    try:
        config = read_config(path, runner=runner)
        job = _read_job(payload)
    except WRONG_FILE as error:
        return report_errors([error], WRONG)
    except (ValueError, GitLabJobsError) as error:
        click.echo(f"error: {payload}: {one_line(str(error))}; expected what GitLab answers to jobs/request", err=True)
        return WRONG
    for shadow in config.dispatch.shadows():
        click.echo(f"warning: {shadow}")
    info = job.job_info
    what = " of ".join(filter(None, (one_line(info.name), one_line(info.project_full_path))))
    decision = config.dispatch.decide(job)
    click.echo(f"job {job.id}{f' ({what})' if what else ''}: {decision}")
    if most := config.dispatch.ceilings.get(decision.rule):
        click.echo(f"at most {most} jobs run by that rule at once; others wait")
    return SUCCEEDED


def _read_job(path: Path) -> Job:
    """Read a job's description.

    Raises:
        OSError: The file cannot be read.
        ValueError, GitLabJobsError: It is no such thing.
    """
    with path.open("rb") as file:
        data = file.read(MAX_JOB + 1)
    if len(data) > MAX_JOB:
        raise ValueError(f"it has more than {MAX_JOB >> 20} MiB")
    return decode_job(data)


def _looked(look: Callable[[], Coroutine[Any, Any, str]]) -> int:
    """Print what is seen, or why nothing is; returns the exit status."""
    try:
        click.echo(anyio.run(look))
    except GitLabJobsError as error:
        click.echo(f"error: {said(error)}", err=True)
        return FAILED
    except (FleetingError, OSError) as error:
        return report_errors([error], FAILED)
    return SUCCEEDED


def notes_of(config: ServiceConfig) -> list[str]:
    """What of the file is not as one might think, a line each."""
    ignored = [f"ignored: {key} means nothing here" for key in config.ignored]
    unsupported = [f"note: {sentence}" for sentence in config.unsupported]
    cells = [f"cells: {sentence}" for sentence in _cells(config.runner)]
    shadows = [f"warning: {shadow}" for shadow in config.dispatch.shadows()]
    sidecars = [f"sidecars: {sentence}" for sentence in _sidecars(config.runner)]
    readable = [
        f"warning: jobs can read {key}, which their sidecar has in a file of theirs; use a role of the instance instead"
        for key in keys_that_jobs_can_read(config.runner)
    ]
    return [*ignored, *unsupported, *shadows, *cells, *sidecars, *readable]


def _cells(runner: RunnerSettings) -> Iterator[str]:
    """Whose jobs would be run, if there are several GitLabs."""
    if upstreams := runner.taskscaler.upstreams:
        total = sum(each.weight for each in upstreams)
        shares = ", ".join(f"{each.cell} {each.weight / total:.0%}" for each in upstreams)
        yield f"slots that all of them could use are shared as {shares}"


def _sidecars(runner: RunnerSettings) -> Iterator[str]:
    """What jobs would be run with, if sidecars run them."""
    if not runner.has_sidecars:
        return
    own, sidecar = runner.taskscaler, runner.taskscaler.sidecar
    place = f"{sidecar.upload}, brought to each instance once" if sidecar.upload else "on each instance"
    what = "" if sidecar.upload else f" as {sidecar.binary or 'gitlab-runner'}"
    yield f'jobs run with the executor "{sidecar.executor}" of a gitlab-runner: {place}{what}'
    where = f"at {own.advertise_url}; it listens at {own.listen}"
    yield f"they reach this service {'through the connection to their instance' if own.reach == 'tunnel' else where}"


async def _look(config: ServiceConfig) -> str:
    """Open the fleet's groups, change nothing, and count what is there; its manager may run meanwhile."""
    async with config.fleet.scaler(observe_only=True) as scaler:
        there, groups = len(await scaler.instances()), scaler.groups
    names = ", ".join(each.identity for each in groups.values())
    at_once = config.fleet.jobs_at_once
    return f"ok: {names} can be opened, with {there} instances; at most {at_once} jobs run at once"


async def _verify(cell: str, runner: RunnerSettings) -> str:
    """Ask one GitLab; of several, say which."""
    async with client_of(runner) as client:
        found = await client.verify(runner.token, info=about(runner))
    until = f", until {found.token_expires_at}" if found.token_expires_at else ""
    which = f"{cell} ({runner.url})" if cell else runner.url
    return f"ok: {which} knows the runner as number {found.id}{until}"
