"""``taskscaler-gitlab check --canary``: a job of our own, through everything that GitLab's jobs go through."""

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import anyio
import click
from attrs import evolve, frozen

from fleeting import FleetingError, JournalError, LoopClock, Preexisting
from fleeting.cli import FAILED, SUCCEEDED, report_errors
from fleeting.plugins import one_line, span
from gitlab_jobs import Features, Job, JobInfo, Step, Variable
from gitlab_jobs.client import GitLabClient
from gitlab_jobs.testing import URL, FakeGitLab, Stored
from taskscaler import Taskscaler
from taskscaler.serve import FleetFile, read_fleet_file
from taskscaler_gitlab._config import ServiceConfig
from taskscaler_gitlab._record import found, hold
from taskscaler_gitlab._service import RunnerService, executor_of
from taskscaler_gitlab.cli._run import directory_of
from taskscaler_gitlab.relay._deliveries import found as found_relayed

PATIENCE = 1800.0
"""Seconds that an instance may take to boot, and the job to run."""

_SAYS = "canary: ran"
_SCRIPT = (f'echo "{_SAYS} on $TASKSCALER_INSTANCE, slot $TASKSCALER_SLOT"',)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SHOWN = 10


@frozen(kw_only=True)
class _Flight:
    """What came of it."""

    stored: Stored | None
    """None: it did not end in time."""

    log: Sequence[str]
    took: float


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
            flight = anyio.run(_fly, config, fleet)
    except (FleetingError, OSError) as error:
        return report_errors([error], FAILED)
    said = next((line for line in flight.log if line.startswith(_SAYS)), "")
    if said and flight.stored is not None and flight.stored.failure_reason is None:
        click.echo(f"ok: {said}; {span(flight.took)} from its request to its end")
        return SUCCEEDED
    why = "did not end in time" if flight.stored is None else f"failed ({flight.stored.failure_reason})"
    click.echo(f"error: the canary {why}; its log ends with", err=True)
    for line in flight.log[-_SHOWN:]:
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


async def _fly(config: ServiceConfig, fleet: FleetFile) -> _Flight:
    """Be the GitLab of the runner for one job."""
    with TemporaryDirectory(prefix="taskscaler-canary-") as place:
        gitlab = FakeGitLab(Path(place), long_poll=1.0, accepts=0)
        number = gitlab.enqueue(_job())
        alone = evolve(config.runner.taskscaler, upstreams=())
        settings = evolve(config.runner, url=URL, token=gitlab.runner_token, taskscaler=alone)
        service = RunnerService(
            evolve(config, runner=settings),
            executor_of(config),
            Path(place, "state"),
            is_kept=False,
            say=lambda line: click.echo(line, err=True),
            connect=lambda _: GitLabClient(URL, transport=gitlab.transport()),
        )
        began, stored = monotonic(), None
        clock = LoopClock()
        async with fleet.scaler(clock, []) as scaler:
            _check_leases(scaler)
            async with anyio.create_task_group() as tasks:
                await service.take_up(scaler, clock)
                tasks.start_soon(service.run)
                with anyio.move_on_after(PATIENCE):
                    stored = await gitlab.ended(number)
                took = monotonic() - began
                await service.leave()
                tasks.cancel_scope.cancel()
        text = _COLOUR.sub("", gitlab.log(number).decode(errors="replace"))
        return _Flight(stored=stored, log=[one_line(line) for line in text.splitlines() if line.strip()], took=took)


def _job() -> Job:
    step = Step(name="script", script=_SCRIPT, timeout=3600, when="on_success")
    reasons = ("runner_configuration_error", "image_pull_failure", "unknown_failure")
    return Job(
        id=0,
        token="",
        job_info=JobInfo(name="canary"),
        variables=(Variable(key="GIT_STRATEGY", value="none"),),
        steps=(step,),
        features=Features(failure_reasons=reasons),
    )
