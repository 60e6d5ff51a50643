"""The reaper at a cloud's endpoint: what it removes of a dead manager's instances, and spares of a living one's."""

from collections.abc import Callable, Sequence

from fleeting import Clock, ConnectorConfig, InstanceGroup
from taskscaler.reap import Outcome, Reaped, Reaper, ReapPolicy, Target, judge

HOUR = 3600.0


async def reap(make: Callable[[], InstanceGroup], clock: Clock) -> Sequence[Reaped]:
    """Remove what may be removed, as the command does."""
    reaper = Reaper(policy=ReapPolicy(), clock=clock)

    def targets() -> list[Target]:
        return [Target(pool="p", group=make(), connector=ConnectorConfig())]

    surveys = await reaper.survey(targets())
    assert not any(survey.left_alone for survey in surveys), surveys
    reaped = await reaper.remove(targets(), surveys, judge(surveys, reaper.policy, clock.now()))
    assert reaper.notes == []
    return reaped


def removed(reaped: Sequence[Reaped]) -> set[str]:
    """Which of them went; nothing failed."""
    assert {each.outcome for each in reaped} <= {Outcome.REMOVED}, reaped
    return {each.instance for each in reaped}
