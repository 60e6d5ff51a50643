"""``taskscaler reap``, which ``taskscaler-gitlab reap`` is too: removes the instances of managers that have died."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Unpack

import anyio
import click
from attrs import frozen

from fleeting import Clock, FleetingError, LoopClock, PluginNotFound, ProviderError, Unsupported
from fleeting.cli import FAILED, SUCCEEDED, WRONG, WRONG_FILE, outcome, report_errors
from fleeting.config import harmless
from fleeting.plugins import span
from taskscaler._state import default_directory
from taskscaler._wording import counted
from taskscaler.cli._console import PatientConsole
from taskscaler.cli._log import logging_to
from taskscaler.cli._text import columns
from taskscaler.reap import LEAST_EXPIRED, Known, Outcome, Reaped, Reaper, ReapPolicy, Survey, Target, Verdict, judge
from taskscaler.reap_options import ReapWish
from taskscaler.serve import FleetFile, read_fleet_file

__all__ = ["policy_of", "reap_fleet"]


def reap_fleet(path: Path, runner: str | None, **wish: Unpack[ReapWish]) -> int:
    """Show what would be removed of the groups of a file, or remove it; returns the exit status.

    Args:
        path: A jobs file, a fleet's, or GitLab's ``config.toml``.
        runner: The name of the runner, in a ``config.toml`` with several.
        wish: What the options say.

    Raises:
        click.UsageError: A duration is too short.
    """
    policy = policy_of(expired_for=wish["expired_for"], at_most=wish["at_most"], unmarked=wish["unmarked"])
    try:
        fleet = read_fleet_file(path, runner)
    except (*WRONG_FILE, PluginNotFound) as error:
        return report_errors([error], WRONG)
    command = _Command(path=path, runner=runner, policy=policy, remove=wish["remove"], as_json=wish["as_json"])

    def run() -> int:
        with logging_to(None):  # what matters of it is in the answer
            return anyio.run(command.run, fleet)

    return outcome(run)


def policy_of(*, expired_for: float, at_most: int, unmarked: float | None) -> ReapPolicy:
    """Make a policy of a command's options.

    Raises:
        click.UsageError: A duration is too short.
    """
    for name, seconds in (("--expired-for", expired_for), ("--unmarked", unmarked)):
        if seconds is not None and seconds < LEAST_EXPIRED:
            least = span(LEAST_EXPIRED)
            raise click.UsageError(f"{name} {span(seconds)} is too short: clocks differ; it is at least {least}")
    return ReapPolicy(expired_for=expired_for, at_most=at_most, unmarked=unmarked)


@frozen(kw_only=True)
class _Command:
    """One run of it."""

    path: Path
    runner: str | None
    policy: ReapPolicy
    remove: bool
    as_json: bool

    async def run(self, fleet: FleetFile) -> int:
        """Look, judge, maybe remove, and print what came of it."""
        clock = LoopClock()
        reaper = Reaper(policy=self.policy, clock=clock, known=_known(fleet))
        surveys = await reaper.survey(_targets(fleet))
        verdicts = judge(surveys, self.policy, clock.now())
        reaped: list[Reaped] = []
        if self.remove and any(verdict.remove for verdict in verdicts):
            reaped = await reaper.remove(_targets(read_fleet_file(self.path, self.runner)), surveys, verdicts)
        answer = _Answer(surveys, verdicts, reaped if self.remove else None, clock)
        console = PatientConsole()
        lines = [json.dumps(answer.as_dict(), indent=2, allow_nan=False)] if self.as_json else answer.lines()
        for line in lines:
            console.print(line if self.as_json else harmless(line), markup=False, highlight=False, soft_wrap=True)
        return report_errors(answer.errors(reaper.notes), FAILED) if answer.has_failed else SUCCEEDED


def _known(fleet: FleetFile) -> Known | None:
    storage = fleet.autoscaler.state_storage
    if not storage.enabled:
        return None
    return Known(default_directory() if storage.dir is None else Path(storage.dir))


def _targets(fleet: FleetFile) -> list[Target]:
    pools = zip(fleet.autoscaler.all_pools, fleet.groups, strict=True)
    return [Target(pool=pool.name, group=group, connector=pool.connector_config) for pool, group in pools]


@frozen
class _Answer:
    """What came of it, for people and for programs."""

    surveys: Sequence[Survey]
    verdicts: Sequence[Verdict]
    reaped: Sequence[Reaped] | None
    """None: it was only shown."""

    clock: Clock

    @property
    def has_failed(self) -> bool:
        """Whether a group could not be judged though it should, or an instance is still there."""
        none_judged = all(survey.left_alone for survey in self.surveys)
        return none_judged or any(survey.has_failed for survey in self.surveys) or any(self._failed())

    def errors(self, notes: Sequence[str]) -> Iterator[FleetingError]:
        """What went wrong."""
        for survey in self.surveys:
            if survey.left_alone and (survey.has_failed or all(each.left_alone for each in self.surveys)):
                about = survey.identity or f"the group of pool {survey.pool}"
                kind = ProviderError if survey.has_failed else Unsupported
                yield kind(f"{about}: {survey.left_alone}")
        for each in self._failed():
            yield ProviderError(f"{each.instance} was not removed: {each.why}")
        yield from map(ProviderError, notes)

    def _failed(self) -> Iterator[Reaped]:
        return (each for each in self.reaped or () if each.outcome is Outcome.FAILED)

    def as_dict(self) -> Mapping[str, object]:
        """All of it."""
        return {"dry_run": self.reaped is None, "groups": [self._group_as_dict(survey) for survey in self.surveys]}

    def _group_as_dict(self, survey: Survey) -> Mapping[str, object]:
        marks = [{"owner": mark.owner, "until": mark.until if isfinite(mark.until) else None} for mark in survey.marks]
        return {
            "pool": survey.pool,
            "group": survey.identity or None,
            "left_alone": survey.left_alone or None,
            "marks": marks,
            "instances": [self._instance_as_dict(each) for each in self._verdicts_of(survey)],
        }

    def _instance_as_dict(self, verdict: Verdict) -> Mapping[str, object]:
        reaped = self._reaped_of(verdict)
        return {
            "id": verdict.instance,
            "state": verdict.seen.state.value,
            "created_at": verdict.seen.created_at,
            "remove": verdict.remove,
            "outcome": reaped.outcome.value if reaped else None,
            "why": reaped.why if reaped else verdict.why,
        }

    def lines(self) -> Iterator[str]:
        """The groups with their instances, and how many of them go."""
        for survey in self.surveys:
            yield from self._group_lines(survey)
        going = [verdict for verdict in self.verdicts if verdict.remove]
        of_all = f"of {counted(len(self.verdicts), 'instance')}"
        if self.reaped is None:
            how = "; --remove removes them" if going else ""
            yield f"would remove {len(going)} {of_all}; nothing was changed{how}"
        else:
            removed = sum(each.outcome is Outcome.REMOVED for each in self.reaped)
            yield f"removed {removed} {of_all}"

    def _group_lines(self, survey: Survey) -> Iterator[str]:
        about = f"{survey.identity or 'its group'} (pool {survey.pool})"
        if survey.left_alone:
            yield f"{about} is left alone: {survey.left_alone}"
        else:
            marks = "; ".join(self._mark_in_words(mark.owner, mark.until) for mark in survey.marks)
            yield f"{about}: {marks or 'nobody has marked it'}"
            if verdicts := self._verdicts_of(survey):
                yield from columns([("INSTANCE", "STATE", "AGE", "WHAT", "WHY"), *map(self._row, verdicts)])
            else:
                yield "no instances"
        yield ""

    def _mark_in_words(self, owner: str, until: float) -> str:
        if not isfinite(until):
            return f"marked by {owner}, nobody knows until when"
        when = datetime.fromtimestamp(until, UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
        return f"marked by {owner}, {'expired' if until <= self.clock.now() else 'until'} {when} UTC"

    def _row(self, verdict: Verdict) -> Sequence[str]:
        created, reaped = verdict.seen.created_at, self._reaped_of(verdict)
        age = "" if created is None else span(max(0.0, self.clock.now() - created))
        what = reaped.outcome.value if reaped else "remove" if verdict.remove else "keep"
        return verdict.instance, verdict.seen.state.value, age, what, reaped.why if reaped else verdict.why

    def _verdicts_of(self, survey: Survey) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.pool == survey.pool]

    def _reaped_of(self, verdict: Verdict) -> Reaped | None:
        place = verdict.pool, verdict.instance
        return next((each for each in self.reaped or () if (each.pool, each.instance) == place), None)
