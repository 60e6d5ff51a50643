"""Says what settings are worth on jobs that they were not fitted to, and how sure that is. Pure."""

from collections.abc import Sequence
from math import ceil

from attrs import frozen

from fleeting.plugins import span
from taskscaler._wording import iso
from taskscaler.simulation._compare import Comparison, compare
from taskscaler.simulation._days import DAY, FEWEST, Days, days_of, draws, saved, share_met, spread
from taskscaler.simulation._environment import Environment
from taskscaler.simulation._fleet import Fleet
from taskscaler.simulation._jobs import Jobs
from taskscaler.simulation._targets import Target

FITTED = 2 / 3
"""The share of the days that settings are fitted to, unless somebody says otherwise."""

SHORTEST = 1.5 * DAY
"""Seconds that a trace spans at least, of which a whole day is to be fitted to and another to judge by."""

TUNED = "tuned"


@frozen(kw_only=True)
class Parts:
    """The jobs to fit to, and those to judge by, which come later."""

    fitted: Jobs
    judged: Jobs
    cut: float
    """When the second begins, in seconds since the epoch; days are counted from then, in both directions."""

    @property
    def begins(self) -> float:
        """When the first day of the first part begins."""
        return self.cut - ceil((self.cut - self.fitted.begins) / DAY) * DAY


def parted(jobs: Jobs, cut: float | None) -> Parts:
    """Part jobs in two, at that time, or else at the end of a day. Raises ValueError if there is nothing to part."""
    if cut is None:
        length = jobs.ends - jobs.begins
        if length < SHORTEST:
            raise ValueError(
                f"the jobs come within {span(length)}, and settings are fitted to some days and judged by later ones;"
                " give a trace of two days or more, or say from when on to judge with --judge-from"
            )
        midnight = jobs.begins // DAY * DAY
        cut = midnight + max(1, round(FITTED * days_of(jobs, midnight))) * DAY
    fitted, judged = jobs.between(float("-inf"), cut), jobs.between(cut, float("inf"))
    if not len(fitted) or not len(judged):
        when = "before" if not len(fitted) else "from"
        then = f"{iso(cut)[:19]}Z{' on' if len(fitted) else ''}, where the judged part begins"
        raise ValueError(
            f"no job is submitted {when} {then}; the jobs come from {iso(jobs.begins)[:19]}Z to {iso(jobs.ends)[:19]}Z"
        )
    return Parts(fitted=fitted, judged=judged, cut=cut)


@frozen(kw_only=True)
class Certainty:
    """What would come of other days like the judged ones: between which values 90 % of the draws of these lie."""

    share_met: float
    """In which share of the draws all targets are met."""

    values: Sequence[tuple[float, float]]
    """Of what each target is about, in seconds."""

    hours: tuple[float, float]
    """Of the tuned fleet's hours, as a multiple of the given one's on the same days."""


@frozen(kw_only=True)
class Judgement:
    """What came of the given fleet and the tuned one."""

    comparison: Comparison
    """Of both, in this order."""

    days: int
    values: Sequence[float]
    """Of what each target is about, in seconds, with the tuned settings."""

    is_met: bool
    """Whether the tuned settings meet all targets and refuse no job."""

    certainty: Certainty | None
    """None: there are too few days."""


def judge(
    given: tuple[str, Fleet],
    tuned: Fleet,
    jobs: Jobs,
    targets: Sequence[Target],
    *,
    since: float,
    environment: Environment,
    seed: int = 0,
) -> Judgement:
    """Simulate both.

    Args:
        given: The fleet as it is, and its name.
        tuned: The other.
        jobs: At least one.
        targets: At least one.
        since: When the first day begins.
        environment: As `simulate` has it.
        seed: Of all that is left to chance.

    Raises:
        SimulationStuck: Some jobs get no slot, ever.
    """
    comparison = compare({given[0]: given[1], TUNED: tuned}, jobs, environment=environment, seed=seed)
    before, after = (entry.outcome for entry in comparison.entries)
    values = [target.of(after.waits) for target in targets]
    days, certainty = days_of(jobs, since), None
    if days >= FEWEST:
        drawn = draws(days, seed, "judged")
        apart = Days.of(after, jobs, since)
        certainty = Certainty(
            share_met=share_met(apart, targets, drawn),
            values=[spread(apart.value(target, each) for each in drawn) for target in targets],
            hours=saved(apart, Days.of(before, jobs, since), drawn),
        )
    return Judgement(
        comparison=comparison,
        days=days,
        values=values,
        is_met=not after.refused
        and not any(target.missed_by(found) for target, found in zip(targets, values, strict=True)),
        certainty=certainty,
    )
