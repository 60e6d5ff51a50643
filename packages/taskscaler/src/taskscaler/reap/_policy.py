"""Pure: which instances of dead managers are removed, and why the others stay.

A group has one manager at a time, whose mark is on the group and is renewed while the manager lives. So an instance
belongs to whoever's mark is on its group, and is an orphan once that mark has expired for long enough. Expiries were
written by another machine's clock: what `ReapPolicy.expired_for` adds to them has to be more than the clocks differ.
"""

from collections.abc import Mapping, Sequence
from math import inf

from attrs import field, frozen
from attrs.validators import ge, optional

from fleeting import Observed, State
from fleeting.plugins import Mark, span

LEAST_EXPIRED = 60.0
"""Seconds that a mark has to have expired at least, whatever the policy: clocks differ."""

AHEAD = 3600.0
"""Seconds from now beyond which no manager lets its mark expire: one of the clocks is wrong."""


@frozen(kw_only=True)
class ReapPolicy:
    """What may be removed."""

    expired_for: float = field(default=3600.0, validator=ge(LEAST_EXPIRED))
    """Seconds since the mark has expired, at least."""

    at_most: int = field(default=20, validator=ge(1))
    """Instances in one go, of all groups together; the oldest of the first groups are taken."""

    unmarked: float | None = field(default=None, validator=optional(ge(LEAST_EXPIRED)))
    """Seconds that an instance has to exist in a group that nobody has marked; None: none of those is removed."""


@frozen(kw_only=True)
class Survey:
    """A group as it was found, and what is known of it on this machine."""

    pool: str
    """The name that the configuration has for it."""

    identity: str
    """The cloud's resource."""

    marks: Sequence[Mark] = ()
    """All that are on the group."""

    instances: Mapping[str, Observed] = field(factory=dict)
    """All that the cloud shows, by id."""

    us: str = ""
    """The owner as which this configuration's own manager marks groups; empty: each time another."""

    ours: frozenset[str] = frozenset()
    """Ids that managers on this machine have on record."""

    holder: str = ""
    """The manager on this machine that has the group; empty: none."""

    left_alone: str = ""
    """Why the group is not judged: it carries no marks, or could not be looked at; empty if it is."""

    has_failed: bool = False
    """Whether that is because the cloud did not answer as it should."""


@frozen(kw_only=True)
class Verdict:
    """What becomes of an instance, and why."""

    pool: str
    instance: str
    seen: Observed
    remove: bool
    why: str
    """A sentence without a full stop."""


def judge(surveys: Sequence[Survey], policy: ReapPolicy, now: float) -> list[Verdict]:
    """Judge every instance of every group, in the groups' order, the oldest of a group first.

    Args:
        surveys: The groups, each once.
        policy: What may be removed.
        now: Seconds since the epoch, by this machine's clock.

    Returns:
        One verdict for each instance of the groups that are not left alone; `policy.at_most` say that it is removed.
    """
    verdicts: list[Verdict] = []
    left = policy.at_most
    for survey in (each for each in surveys if not each.left_alone):
        for instance, seen in sorted(survey.instances.items(), key=_age):
            spared = _spared(survey, instance, seen, policy, now)
            if not spared and not left:
                spared = f"more than {policy.at_most} are not removed at once; run this again"
            left -= not spared
            why = spared or _reason(survey, seen, now)
            verdicts.append(Verdict(pool=survey.pool, instance=instance, seen=seen, remove=not spared, why=why))
    return verdicts


def newest(marks: Sequence[Mark]) -> Mark | None:
    """The mark that expires last, whose owner the group's instances belong to."""
    return max(marks, key=lambda mark: mark.until, default=None)


def _age(item: tuple[str, Observed]) -> tuple[float, str]:
    instance, seen = item
    return (inf if seen.created_at is None else seen.created_at), instance


def _spared(survey: Survey, instance: str, seen: Observed, policy: ReapPolicy, now: float) -> str:
    """Why an instance stays; empty if it may go."""
    if seen.state in (State.DELETING, State.DELETED):
        return f"it is {seen.state.value} already"
    if survey.holder:
        return f"the group is managed on this machine, by {survey.holder}"
    if instance in survey.ours:
        return "a manager of this machine has it on record, and takes it up when it starts"
    mark = newest(survey.marks)
    if mark is None:
        return _spared_unmarked(seen, policy, now)
    if survey.us in {each.owner for each in survey.marks} - {""}:
        return "the mark is that of this configuration's own manager, which takes it up when it starts"
    return _spared_by(mark, policy, now)


def _spared_by(mark: Mark, policy: ReapPolicy, now: float) -> str:
    if mark.until == inf:
        return f"when the mark of {mark.owner} expires cannot be read"
    if mark.until > now + AHEAD:
        return (
            f"the mark of {mark.owner} expires {span(mark.until - now)} from now: its clock, or the one here, is wrong"
        )
    if mark.until > now:
        return f"{mark.owner} manages the group: its mark expires {span(mark.until - now)} from now"
    if now - mark.until < policy.expired_for:
        return f"the mark of {mark.owner} expired only {span(now - mark.until)} ago"
    return ""


def _spared_unmarked(seen: Observed, policy: ReapPolicy, now: float) -> str:
    if policy.unmarked is None:
        return "nobody has marked the group, so nobody knows whether it is managed"
    if seen.created_at is None:
        return "nobody has marked the group, and the cloud does not say how old the instance is"
    if now - seen.created_at < policy.unmarked:
        return f"nobody has marked the group, and the instance is only {span(max(0.0, now - seen.created_at))} old"
    return ""


def _reason(survey: Survey, seen: Observed, now: float) -> str:
    """Why an instance goes."""
    if mark := newest(survey.marks):
        return f"the mark of {mark.owner} expired {span(now - mark.until)} ago"
    return f"nobody has marked the group, and the instance is {span(now - (seen.created_at or now))} old"
