"""A look at a pool's group, its quotas and its instances: reads, and dials; changes nothing."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio
from attrs import define, field, frozen

from fleeting import (
    AuthFailed,
    CapacityUnavailable,
    Clock,
    ConnectInfo,
    FleetingError,
    GroupInfo,
    InstanceGroup,
    LoopClock,
    Observation,
    Problem,
    ProblemKind,
    ProviderError,
    QuotaExceeded,
    Settings,
    State,
    Unreachable,
    dial,
)
from fleeting.errors import CatalogueEntry
from fleeting.plugins import HasHosts, span
from fleeting.runtime import Dial, GroupDriver
from taskscaler._wording import counted
from taskscaler.cli._doctor._checks import SLOW, Report
from taskscaler.cli._doctor._finding import Finding, Grade, of_error
from taskscaler.cli._doctor._state import look_at_lock
from taskscaler.cli._look import PATIENCE, dial_once, too_small, view_of
from taskscaler.config import PoolTable

CLOSING = 2.0
"""Seconds that closing the group may take."""

SHARE = 0.9
"""Of the time for dialling, for the connector: it knows why an instance does not answer."""

FEW = 10
"""So many instances are dialled, at the same time."""

SKEW = 60.0
"""Seconds into the future from which an instance's creation shows that one of two clocks is wrong."""

_REMEDIES = {
    ProblemKind.CAPACITY: CapacityUnavailable.entry,
    ProblemKind.QUOTA: QuotaExceeded.entry,
    ProblemKind.AUTHORISATION: AuthFailed.entry,
}
"""What the catalogue says of the problems that clouds report; of others, that the cloud refused."""


@define(kw_only=True)
class PoolLook:
    """A look at one pool."""

    pool: PoolTable
    group: InstanceGroup
    name: str = ""
    """The pool's, if there are several."""

    state: Path | None = None
    """Where managers keep their locks; None: nowhere."""

    dial: Dial = dial
    patience: float = PATIENCE
    """Seconds for the group, and once more for its connections."""

    _doing: str = field(default="opening the group", init=False)
    """What is under way."""

    def under_way(self) -> str:
        """Say what is being done."""
        return self._doing

    def run(self, report: Report) -> None:
        """Look, in an event loop of its own."""
        anyio.run(self.look, report)

    async def look(self, report: Report) -> None:
        """Open the group as one that looks on, and report step by step; what raises ends the look."""
        with anyio.move_on_after(self.patience) as scope:
            try:
                await self._look(report, scope)
            except Exception as error:  # noqa: BLE001  (whatever a plugin raises ends the look at its pool)
                for finding in of_error("group", error, pool=self.name):
                    report(finding)
        if scope.cancelled_caught:
            report(self._finding(Grade.PROBLEM, f"{self._doing} took longer than {span(self.patience)}", do=SLOW))

    async def _look(self, report: Report, scope: anyio.CancelScope) -> None:
        clock, connector = LoopClock(), self.pool.connector_config
        driver = GroupDriver(self.group, pool=self.name or "doctor", connector=connector, dial=self.dial)
        owner = f"{os.uname().nodename}-{os.urandom(4).hex()}"
        info = await driver.open(Settings(owner=owner, clock=clock, connector=connector, observe_only=True))
        try:
            self._doing = "listing the instances"
            view = await view_of(self.group, self.patience)
            for finding in self._of_group(info, view, clock):
                report(finding)
            self._doing, scope.deadline = "dialling", anyio.current_time() + self.patience + CLOSING
            for finding in await self._of_connections(view):
                report(finding)
        finally:
            with anyio.move_on_after(CLOSING, shield=True):
                await driver.close()

    # --- the group ---------------------------------------------------------------------------------------

    def _of_group(self, info: GroupInfo, view: Observation, clock: Clock) -> Iterator[Finding]:
        ceiling = info.max_size if view.max_size is None else view.max_size
        there = [seen for seen in view.instances.values() if seen.state not in (State.DELETING, State.DELETED)]
        most = f", at most {ceiling}" if ceiling is not None else ""
        yield self._finding(Grade.OK, f"{info.identity}: {counted(len(there), 'instance')}{most}")
        if self.state is not None:
            yield from look_at_lock(self.state, info.identity)
        yield from (self._advice("group", sentence) for sentence in info.advice)
        yield from (self._advice("quota", sentence) for sentence in too_small(info, self.pool.max_instances))
        yield from self._beyond(len(there), ceiling, "the group's own limit")
        yield from self._beyond(len(there), self.pool.max_instances or None, "max_instances")
        yield from map(self._problem, view.problems)
        yield from self._skew(view, clock.now())

    def _beyond(self, there: int, ceiling: int | None, what: str) -> Iterator[Finding]:
        if ceiling is not None and there > ceiling:
            found = f"there are {counted(there, 'instance')}, and {what} is {ceiling}"
            yield self._finding(Grade.WARNING, found, do="raise it, or remove those that nobody needs", check="quota")

    def _problem(self, problem: Problem) -> Finding:
        entry: CatalogueEntry = _REMEDIES.get(problem.kind, ProviderError.entry)
        if problem.kind is ProblemKind.IMAGE:
            do = "correct the image that the group starts its instances from"
        else:
            do = entry.remedy.removesuffix(".")
        passing = problem.kind is ProblemKind.CAPACITY
        return self._finding(
            Grade.WARNING if passing else Grade.PROBLEM,
            f"the cloud reports: {problem.message}",
            do=f"{do[:1].lower()}{do[1:]}",
            check="quota" if problem.kind in (ProblemKind.QUOTA, ProblemKind.CAPACITY) else "group",
            code=entry.code,
        )

    def _skew(self, view: Observation, now: float) -> Iterator[Finding]:
        newest = max((seen.created_at for seen in view.instances.values() if seen.created_at is not None), default=now)
        if newest > now + SKEW:
            found = f"an instance was created {span(newest - now)} from now: the clock here or the cloud's is wrong"
            yield self._finding(Grade.PROBLEM, found, do="set the clock", check="clock")

    # --- connections -------------------------------------------------------------------------------------

    async def _of_connections(self, view: Observation) -> Sequence[Finding]:
        """Dial the first few that can be dialled, at the same time."""
        names = [instance for instance, seen in view.instances.items() if seen.state is State.RUNNING]
        hosts: dict[str, ConnectInfo] = {}
        if isinstance(self.group, HasHosts):
            hosts = {info.id: info for info in await self.group.hosts()}
            names = list(hosts)
        if not names:
            return [self._finding(Grade.OK, "not tried: no instance is running", check="connection")]
        tries = [_Try(self, name, hosts.get(name)) for name in names[:FEW]]
        results: dict[str, Sequence[Finding]] = {}
        async with anyio.create_task_group() as tasks:
            for each in tries:
                tasks.start_soon(each.run, results)
        more = f" of {len(names)}" if len(names) > FEW else ""
        failed = [finding for each in tries for finding in results[each.name]]
        well = len(tries) - sum(1 for each in tries if results[each.name])
        if well:
            what = counted(well, "host" if hosts else "instance")
            failed.append(self._finding(Grade.OK, f"{what}{more} dialled", check="connection"))
        return failed

    def _advice(self, check: str, sentence: str) -> Finding:
        found, _, do = sentence.partition("; ")
        return self._finding(Grade.WARNING, found, do=do, check=check)

    def _finding(self, grade: Grade, found: str, *, do: str = "", check: str = "group", code: str = "") -> Finding:
        return Finding(check=check, grade=grade, found=found, do=do, code=code, pool=self.name)


@frozen
class _Try:
    """One instance is dialled."""

    look: PoolLook
    name: str
    info: ConnectInfo | None

    async def run(self, results: dict[str, Sequence[Finding]]) -> None:
        """Dial, and note what is wrong; nothing, if nothing is."""
        look = self.look
        try:
            with anyio.fail_after(look.patience):
                info = self.info or await look.group.connect_info(self.name)
                await dial_once(info, look.pool, dial=look.dial, patience=SHARE * look.patience)
        except TimeoutError:
            late = f"{self.name} cannot be dialled within {span(look.patience)}; check network, firewall and address"
            results[self.name] = of_error("connection", Unreachable(late), pool=look.name)
        except Exception as error:  # noqa: BLE001  (a connector's, too)
            named = str(error).startswith(f"{self.name} ") if isinstance(error, FleetingError) else False
            about = "" if named else f"{self.name} cannot be dialled: "
            results[self.name] = of_error("connection", error, pool=look.name, about=about)
        else:
            results[self.name] = []
