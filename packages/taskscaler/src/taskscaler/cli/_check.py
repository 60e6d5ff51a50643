"""``taskscaler check``: says what a file means, what the cloud shows, and what would be done now; does nothing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import anyio
from attrs import frozen

from fleeting import (
    ConnectError,
    FleetingError,
    GroupInfo,
    InstanceGroup,
    LoopClock,
    Observation,
    PluginNotFound,
    ProviderError,
    State,
    dial,
)
from fleeting.cli import FAILED, SUCCEEDED, WRONG, WRONG_FILE, outcome, report_errors
from fleeting.plugins import span
from fleeting.runtime import Dial
from taskscaler._scaler import Taskscaler
from taskscaler._wording import counted
from taskscaler.cli._console import PatientConsole
from taskscaler.cli._fleet import UNEXPLAINED, fleet_rows
from taskscaler.cli._log import logging_to
from taskscaler.cli._look import PATIENCE, dial_once, too_small, view_of
from taskscaler.cli._paragraphs import Paragraphs, Row
from taskscaler.cli._settings import settings_rows
from taskscaler.cli._subject import read_subject
from taskscaler.config import Autoscaler, PoolTable
from taskscaler.core._decide import Decision
from taskscaler.diagnose._first_minute import first_minute

FEW = 10
"""So many instances are named."""


def check_file(
    path: Path, *, runner: str | None, offline: bool, settings: bool = False, price_per_hour: float | None = None
) -> int:
    """Check a jobs file or a runner of a ``config.toml``; return the exit status.

    Args:
        path: The file.
        runner: The name of the runner, in a ``config.toml`` with several.
        offline: Whether neither the cloud nor an instance is asked.
        settings: Whether settings are shown that have their defaults.
        price_per_hour: What one instance costs an hour, if that is known.
    """
    try:
        subject = read_subject(path, runner)
    except (*WRONG_FILE, PluginNotFound) as error:
        return report_errors([error], WRONG)
    report = Paragraphs(PatientConsole())
    report.add(("file", f"{path} is valid"), *subject.rows)
    now = datetime.now(UTC).timestamp()
    report.add(*fleet_rows(subject.fleet, now))
    report.add(*settings_rows(subject.fleet, subject.written, subject.meant, defaults=settings))
    if offline:
        report.add_if(*first_minute_rows(subject.fleet, {}, subject.jobs, now, price_per_hour))
        return SUCCEEDED
    if not subject.groups:
        return report_errors(filter(None, [subject.missing]), FAILED)
    look = _Look(subject.fleet, subject.groups, report, jobs=subject.jobs, price_per_hour=price_per_hour)

    def run() -> int:
        with logging_to(None):  # what matters of it is in the report
            return anyio.run(look.run)

    return outcome(run)


@frozen
class _Look:
    """A look at the groups that changes nothing."""

    fleet: Autoscaler
    groups: Sequence[InstanceGroup]
    report: Paragraphs
    dial: Dial = dial
    jobs: int = 0
    """How many would wait from the start."""

    price_per_hour: float | None = None

    async def run(self) -> int:
        """Open the groups, print what is there and what would be done, dial one instance of each."""
        clock = LoopClock()
        failures: list[FleetingError] = []
        at_start: list[Row] = []
        async with self.fleet.scaler(self.groups, clock=clock, observe_only=True) as scaler:
            for pool, group in zip(self.fleet.all_pools, self.groups, strict=True):
                view = await self._view(scaler, pool, group)
                self.report.add(*self._group_rows(scaler, pool), *_instance_rows(view))
                failures += await self._dial_one(view, clock, pool, group)
                at_start += self._start_rows(view, pool)
            decision = (await scaler.explain()).decisions[-1]
            self.report.add(("would do", would_do(decision)), ("because", str(decision)), *at_start)
            self.report.add_if(
                *first_minute_rows(self.fleet, scaler.groups, self.jobs, clock.now(), self.price_per_hour)
            )
        return report_errors(failures, FAILED) if failures else SUCCEEDED

    async def _view(self, scaler: Taskscaler, pool: PoolTable, group: InstanceGroup) -> Observation:
        """See the group once more: that the scaler could not see it, it would take for a passing trouble."""
        view = await view_of(group)
        known = [instance for instance in await scaler.instances() if instance.pool == pool.name]
        if not known and any(seen.state is not State.DELETED for seen in view.instances.values()):
            raise ProviderError("the cloud reported the group only on the second try; try again")
        return view

    def _group_rows(self, scaler: Taskscaler, pool: PoolTable) -> Iterator[Row]:
        info = scaler.groups[pool.name]
        yield from ([("pool", pool.name)] if self.fleet.pools else [])
        yield "group", info.identity + (f", at most {counted(info.max_size, 'instance')}" if info.max_size else "")
        yield from (("advice", sentence) for sentence in info.advice)
        yield from (("advice", sentence) for sentence in too_small(info, pool.max_instances))

    def _start_rows(self, view: Observation, pool: PoolTable) -> Iterator[Row]:
        """What becomes of the instances when a manager starts: the decision takes them for usable."""
        if view.instances:
            unless = ", unless the kept state knows them" if self.fleet.state_storage.enabled else ""
            of_pool = f" of pool {pool.name}" if self.fleet.pools else ""
            yield "at start", f"the instances above{of_pool} {UNEXPLAINED[pool.preexisting]}{unless}"

    async def _dial_one(
        self, view: Observation, clock: LoopClock, pool: PoolTable, group: InstanceGroup
    ) -> Sequence[FleetingError]:
        """Connect to an instance that runs, if there is one; return why that failed, if it did."""
        running = [instance for instance, seen in view.instances.items() if seen.state is State.RUNNING]
        if not running:
            self.report.go_on(("dialled", "none: no instance is running"))
            return []
        instance, started = running[0], clock.now()
        try:
            with anyio.fail_after(PATIENCE):
                info = await group.connect_info(instance)
            protocol = await dial_once(info, pool, dial=self.dial)
            self.report.go_on(("dialled", f"{instance} over {protocol} in {span(clock.now() - started)}"))
        except (FleetingError, OSError) as error:
            return [ConnectError(f"{instance} cannot be dialled: {str(error) or type(error).__name__}")]
        return []


def _instance_rows(view: Observation) -> Iterable[Row]:
    shown = [f"{instance} {seen.state.value}" for instance, seen in list(view.instances.items())[:FEW]]
    more = [f"{len(view.instances) - FEW} more"] if len(view.instances) > FEW else []
    yield "instances", f"{len(view.instances)}: {', '.join([*shown, *more])}" if shown else "none"
    yield from (("problem", problem.message) for problem in view.problems)


def first_minute_rows(
    fleet: Autoscaler, infos: Mapping[str, GroupInfo], jobs: int, now: float, price_per_hour: float | None
) -> Iterator[Row]:
    """Describe what a batch of so many jobs would ask for in its first minute; nothing of a file without jobs."""
    if jobs:
        pools = fleet.all_pools
        ceiling = fleet.max_instances if fleet.pools else 0
        minute = first_minute(
            pools, fleet.policy, infos, jobs=jobs, now=now, max_instances=ceiling, price_per_hour=price_per_hour
        )
        yield from (("first minute", sentence) for sentence in minute.sentences())


def would_do(decision: Decision) -> str:
    """Say in short what a manager would do by this decision."""
    parts = [f"request {counted(decision.increase, 'instance')}"] if decision.increase else []
    parts += [f"remove {counted(len(decision.removals), 'instance')}"] if decision.removals else []
    return ", ".join(parts) or "nothing"
