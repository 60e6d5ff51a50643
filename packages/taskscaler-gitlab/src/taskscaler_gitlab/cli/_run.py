"""``taskscaler-gitlab run``: a daemon like that of ``taskscaler serve``, with GitLab's jobs among its jobs."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from fleeting import PluginNotFound
from fleeting.cli import EXPECTED, FAILED, WRONG, WRONG_FILE, report_errors
from fleeting.errors import WrongArguments
from fleeting.plugins import make_private
from taskscaler.serve import FleetFile, JobOwner, place_of, read_fleet_file, run_daemon
from taskscaler_gitlab._config import ServiceConfig, read_config
from taskscaler_gitlab._gitlab import client_of
from taskscaler_gitlab._service import RunnerService, executor_of
from taskscaler_gitlab.cli._check import notes_of

_LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
    "panic": logging.CRITICAL,
}


def run_service(
    path: Path,
    *,
    runner: str | None,
    socket: Path | None,
    group: str | None,
    metrics: str | None = None,
    traces: bool = False,
    style: Literal["text", "json", "journal"] | None = None,
) -> int:
    """Run the jobs of one runner until it is stopped; returns the exit status."""
    try:
        config = read_config(path, runner=runner)
        client_of(config.runner)
        executor = executor_of(config)
        fleet = read_fleet_file(path, runner).shown(metrics or config.top.listen_address or None, traces=traces)
        place = place_of(path, socket, group)
        make_private(directory := directory_of(config, fleet))
    except (*WRONG_FILE, PluginNotFound, WrongArguments) as error:
        return report_errors([error], WRONG)
    except EXPECTED as error:
        return report_errors([error], FAILED)
    is_kept = fleet.autoscaler.state_storage.enabled

    def owners(say: Callable[[str], None]) -> list[JobOwner]:
        return [RunnerService(config, executor, directory, is_kept, say, metrics=fleet.metrics)]

    return run_daemon(
        fleet,
        place,
        group=group,
        stop_timeout=config.shutdown_timeout,
        runner=runner,
        owners=owners,
        notes=[*notes_of(config)],
        loggers=("gitlab_jobs",),
        level=_LEVELS[config.top.log_level],
        style=style or ("json" if config.top.log_format == "json" else "text"),
    )


def directory_of(config: ServiceConfig, fleet: FleetFile) -> Path:
    """Where a runner notes down its jobs, and what tells it from others.

    Raises:
        JournalError: The user has no home directory.
    """
    given = config.runner.taskscaler.state_dir
    return fleet.kept("gitlab") if given is None else Path(given)
