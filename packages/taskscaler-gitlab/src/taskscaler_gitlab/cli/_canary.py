"""``taskscaler-gitlab check --canary``: a job of our own, through everything that GitLab's jobs go through."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from time import monotonic

import anyio
import click
from attrs import evolve

from fleeting import FleetingError, JournalError, LoopClock, Preexisting
from fleeting.cli import FAILED, SUCCEEDED, report_errors
from taskscaler import Taskscaler
from taskscaler.serve import Canary, FleetFile, read_fleet_file
from taskscaler_gitlab._canary import PATIENCE, canary_gitlab, client_of_canary, landed
from taskscaler_gitlab._config import ServiceConfig
from taskscaler_gitlab._record import found, hold
from taskscaler_gitlab._service import RunnerService, executor_of
from taskscaler_gitlab.cli._run import directory_of
from taskscaler_gitlab.relay._deliveries import found as found_relayed


def fly_canary(config: ServiceConfig, runner: str | None) -> int:
    """Run a job of our own on the fleet, and say what came of it; returns the exit status.

    It is the fleet's manager meanwhile, with the runner's journal and the runner's locks, so that what the runner has
    there stays. Where that has jobs, nothing is begun: they would lose their time, and their slots.

    Args:
        config: The runner's.
        runner: Which one of the file, if it has several.
    """
    try:
        fleet = _cautious(read_fleet_file(config.path, runner))
        with closing(hold(directory := directory_of(config, fleet))):
            _check_jobs(directory)
            canary = anyio.run(_fly, config, fleet)
    except (FleetingError, OSError) as error:
        return report_errors([error], FAILED)
    return report_canary(canary)


def report_canary(canary: Canary) -> int:
    """Say what came of a canary; returns the exit status."""
    if canary.passed:
        click.echo(f"ok: {canary.says}")
        return SUCCEEDED
    click.echo(f"error: {canary.says}; its log ends with", err=True)
    for line in canary.log:
        click.echo(f"  {line}", err=True)
    return FAILED


def _cautious(fleet: FleetFile) -> FleetFile:
    """Have unknown instances refused unless the file says otherwise: they may be those of a GitLab Runner that runs."""
    pools = fleet.written.get("pools")
    tables = [fleet.written, *(pools if isinstance(pools, list) else [])]
    if any("preexisting" in table for table in tables if isinstance(table, Mapping)):
        return fleet
    refuse, autoscaler = Preexisting.REFUSE, fleet.autoscaler
    named = tuple(evolve(pool, preexisting=refuse) for pool in autoscaler.pools)
    return evolve(fleet, autoscaler=evolve(autoscaler, preexisting=refuse, pools=named))


def _check_jobs(directory: Path) -> None:
    """See that the runner has left no jobs.

    Raises:
        JournalError: It has.
        OSError: The directory cannot be used.
    """
    unfinished, _ = found(directory / "jobs")
    if number := len(unfinished) + len([*found_relayed(directory / "deliveries")]):
        raise JournalError(
            f"the runner has {number} unfinished job{'s' if number > 1 else ''} in {directory}: a canary would take"
            " their slots; start the runner, and drain it with `taskscaler drain` first"
        )


def _check_leases(scaler: Taskscaler) -> None:
    """See that nobody has left a lease on the fleet.

    Raises:
        JournalError: Somebody has.
    """
    if left := scaler.detached:
        raise JournalError(
            f"{len(left)} lease{'s' if len(left) > 1 else ''} on the fleet, such as {left[0].key}, may have work that"
            " runs on: a canary would end it; start the runner, and drain it with `taskscaler drain` first"
        )


async def _fly(config: ServiceConfig, fleet: FleetFile) -> Canary:
    """Be the GitLab of the runner for one job."""
    async with canary_gitlab(config.runner) as at:
        service = RunnerService(
            evolve(config, runner=at.settings),
            executor_of(config),
            at.gitlab.directory / "state",
            is_kept=False,
            say=lambda line: click.echo(line, err=True),
            connect=lambda _: client_of_canary(at.gitlab),
        )
        began, stored = monotonic(), None
        clock = LoopClock()
        async with fleet.scaler(clock, []) as scaler:
            _check_leases(scaler)
            async with anyio.create_task_group() as tasks:
                await service.take_up(scaler, clock)
                tasks.start_soon(service.run)
                with anyio.move_on_after(PATIENCE):
                    stored = await at.gitlab.ended(at.number)
                took = monotonic() - began
                await service.leave()
                tasks.cancel_scope.cancel()
        return landed(stored, at.log, took)
