"""Looks at groups, and removes what the policy allows; while it does, the group is marked as its own.

The mark is what makes that safe: the cloud gives it to one at a time, so no manager can begin in between, and one that
has come back in time keeps it. In the end the group is left marked as it was found, as expired as it was, so that what
is left there, because of `ReapPolicy.at_most` or because the cloud refused, is still an orphan.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Collection, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from typing import TypeVar, cast

import anyio
from attrs import evolve, field, frozen

from fleeting import (
    Capability,
    Clock,
    ConnectorConfig,
    FleetingError,
    GroupInfo,
    GroupRefused,
    InstanceGroup,
    ProviderError,
    Settings,
    dial,
)
from fleeting.plugins import Mark, MarksOwner, ReadsMarks, one_line, span
from fleeting.runtime import MARK_LASTS, GroupDriver
from taskscaler.reap._known import Known
from taskscaler.reap._policy import ReapPolicy, Survey, Verdict, judge, newest

T = TypeVar("T")

READ_TIMEOUT = 120.0
"""Seconds that a cloud may take for a question."""

CHANGE_TIMEOUT = 0.8 * MARK_LASTS
"""Seconds that a cloud may take for deletions: our mark, which was renewed just before, lasts longer."""

CLOSE_TIMEOUT = 30.0
"""Seconds that leaving a group may take."""

BATCH = 50
"""Instances that are deleted between two renewals of the mark."""

LONGEST_OWNER = 80
"""Characters of an owner's name that a reaper has in its own: clouds have bounds for the places where marks are."""

AFTER, MARKED = "reap-after-", "-by-"
"""How the name of a reaper begins that clears away behind an owner, whose name follows, and what stands behind that."""


class _Spared(Exception):
    """Nothing more of the group may be removed; says why."""


class Outcome(Enum):
    """What became of an instance that was to be removed."""

    REMOVED = "removed"
    """The cloud has accepted its deletion."""

    SPARED = "spared"
    """It is none that may be removed any more: somebody has come, or it has gone."""

    FAILED = "failed"
    """The cloud has not accepted its deletion."""


@frozen(kw_only=True)
class Reaped:
    """What became of an instance that was to be removed, and why."""

    pool: str
    instance: str
    outcome: Outcome
    why: str
    """A sentence without a full stop."""


@frozen(kw_only=True)
class Target:
    """A pool's group, not opened yet."""

    pool: str
    group: InstanceGroup
    connector: ConnectorConfig


@frozen(kw_only=True)
class Reaper:
    """Applies one policy to some groups."""

    policy: ReapPolicy
    clock: Clock
    known: Known | None = None
    """What this machine's managers know; None: the configuration keeps no state."""

    notes: list[str] = field(factory=list, init=False)
    """What went wrong with the marks of this reaper, a sentence each."""

    async def survey(self, targets: Sequence[Target]) -> list[Survey]:
        """Look at each group, without changing anything; one that cannot be looked at is left alone, and says why."""
        return [await self._look(target) for target in targets]

    async def remove(
        self, targets: Sequence[Target], surveys: Sequence[Survey], verdicts: Sequence[Verdict]
    ) -> list[Reaped]:
        """Remove the instances that the verdicts name, each group after another look at its marks.

        Args:
            targets: The same as for `survey`, made anew: a group is opened once.
            surveys: What `survey` has found, in the same order.
            verdicts: What `judge` has made of it.

        Returns:
            What became of each instance that was to be removed, in the order of the verdicts.
        """
        found: dict[tuple[str, str], Reaped] = {}
        for target, survey in zip(targets, surveys, strict=True):
            going = [each.instance for each in verdicts if each.remove and each.pool == survey.pool]
            if going:
                for each in await self._reap(target, survey, going):
                    found[each.pool, each.instance] = each
        return [found[each.pool, each.instance] for each in verdicts if each.remove]

    # --- looking -----------------------------------------------------------------------------------------

    async def _look(self, target: Target) -> Survey:
        survey = Survey(pool=target.pool, identity="")
        try:
            async with self._opened(target, f"reap-{_token()}", observe_only=True) as (info, group):
                survey = evolve(survey, identity=info.identity)
                if Capability.OWNER_MARK not in info.capabilities:
                    why = "it carries no marks, so nobody knows whether its manager lives"
                    return evolve(survey, left_alone=why)
                if not isinstance(group, ReadsMarks):
                    return evolve(survey, left_alone="its plugin does not show marks (it has no read_marks)")
                survey = evolve(self._with_known(survey), marks=await _in_time(group.read_marks()))
                return evolve(survey, instances=(await _in_time(group.update())).instances)
        except (FleetingError, OSError) as error:
            return evolve(survey, left_alone=f"it cannot be looked at: {_words(error)}", has_failed=True)

    def _with_known(self, survey: Survey) -> Survey:
        if (known := self.known) is None:
            return survey
        identity = survey.identity
        return evolve(survey, us=known.owner, ours=known.instances(identity), holder=known.holder(identity))

    # --- removing ----------------------------------------------------------------------------------------

    async def _reap(self, target: Target, survey: Survey, going: Sequence[str]) -> list[Reaped]:
        """Remove instances of one group."""
        found = dict.fromkeys(going, (Outcome.FAILED, "it was not come to"))
        owner = _owner(before := newest(survey.marks))
        try:
            async with self._opened(target, owner, observe_only=False) as (info, group):
                if info.identity != survey.identity or not isinstance(group, ReadsMarks):
                    raise _Spared(f"the configuration now names {info.identity}; run this again")
                survey = evolve(self._with_known(survey), marks=await _in_time(group.read_marks()))
                self._check(survey, before, going)
                async with self._marked(cast("MarksOwner", group), before):
                    survey = evolve(survey, instances=(await _in_time(group.update())).instances)
                    await self._delete(group, survey, going, found)
        except _Spared as error:
            spared = (Outcome.SPARED, _words(error))
            found |= {each: spared for each, (outcome, _) in found.items() if outcome is not Outcome.REMOVED}
        except (FleetingError, OSError) as error:
            failed = (Outcome.FAILED, _words(error))
            found |= {each: failed for each, (outcome, _) in found.items() if outcome is not Outcome.REMOVED}
        return [Reaped(pool=survey.pool, instance=each, outcome=found[each][0], why=found[each][1]) for each in going]

    def _check(self, survey: Survey, before: Mark | None, going: Collection[str]) -> None:
        """See that the marks still allow what they allowed; the instances are looked at once the group is marked.

        Raises:
            _Spared: They do not.
        """
        now = newest(survey.marks)
        if (now and now.owner) != (before and before.owner):
            raise _Spared(f"its mark was {_whose(before)}, and is {_whose(now)}; run this again")
        verdicts = [each for each in self._judged(survey) if each.instance in going]
        if verdicts and not any(each.remove for each in verdicts):
            raise _Spared(verdicts[0].why)
        if now and before and now.until > before.until:  # whatever the clocks say
            raise _Spared(f"{now.owner} lives: it has renewed its mark; check the clock here, and that of its machine")

    async def _delete(
        self, group: InstanceGroup, survey: Survey, going: Sequence[str], found: dict[str, tuple[Outcome, str]]
    ) -> None:
        """Delete those that are still there and may still go; notes what becomes of each."""
        verdicts = {each.instance: each for each in self._judged(survey)}
        gone = (Outcome.SPARED, "it has gone meanwhile")
        for each in going:
            if each not in verdicts or not verdicts[each].remove:
                found[each] = (Outcome.SPARED, verdicts[each].why) if each in verdicts else gone
        going = [each for each in going if each in verdicts and verdicts[each].remove]
        for batch in (going[start : start + BATCH] for start in range(0, len(going), BATCH)):
            await self._renew(cast("MarksOwner", group))
            try:
                accepted = await _in_time(group.decrease(batch), CHANGE_TIMEOUT)
            except ProviderError as error:
                found |= {each: (Outcome.FAILED, _words(error)) for each in batch}
                continue
            refused = (Outcome.FAILED, "the cloud has not accepted its deletion")
            found |= {each: (Outcome.REMOVED, verdicts[each].why) if each in accepted else refused for each in batch}

    def _judged(self, survey: Survey) -> Sequence[Verdict]:
        """Judge one group, whose share of what may go at once is known."""
        return judge([survey], evolve(self.policy, at_most=max(1, len(survey.instances))), self.clock.now())

    async def _renew(self, group: MarksOwner) -> None:
        """Put our mark on the group, or renew it.

        Raises:
            _Spared: Somebody else has it.
        """
        try:
            await _in_time(group.mark_owner(self.clock.now() + MARK_LASTS))
        except GroupRefused as error:
            raise _Spared(_words(error)) from error

    @asynccontextmanager
    async def _marked(self, group: MarksOwner, before: Mark | None) -> AsyncIterator[None]:
        """Mark the group as ours meanwhile, and leave it as it was: as expired as it was, or without a mark."""
        await self._renew(group)
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await _in_time(group.mark_owner(before.until if before is not None else None), CLOSE_TIMEOUT)
                except GroupRefused:  # it is somebody else's
                    pass
                except (FleetingError, OSError) as error:  # what was removed is removed
                    left = f"its mark was left on the group and expires within {span(MARK_LASTS)}"
                    self.notes.append(f"{left}: {_words(error)}")

    @asynccontextmanager
    async def _opened(
        self, target: Target, owner: str, *, observe_only: bool
    ) -> AsyncIterator[tuple[GroupInfo, InstanceGroup]]:
        driver = GroupDriver(target.group, pool=target.pool, connector=target.connector, dial=dial)
        settings = Settings(owner=owner, clock=self.clock, connector=target.connector, observe_only=observe_only)
        info = await _in_time(driver.open(settings))
        try:
            yield info, driver.group
        finally:
            with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
                await driver.close()


async def _in_time(call: Awaitable[T], seconds: float = READ_TIMEOUT) -> T:
    """Wait for a call.

    Raises:
        ProviderError: It takes too long.
    """
    try:
        with anyio.fail_after(seconds):
            return await call
    except TimeoutError as error:
        raise ProviderError(f"the cloud did not answer within {span(seconds)}") from error


def _owner(before: Mark | None) -> str:
    """As whom to mark a group: nobody else does, and people see behind whom it clears away."""
    if before is None:
        return f"reap-{_token()}"
    dead = before.owner.removeprefix(AFTER).rpartition(MARKED)[0] if before.owner.startswith(AFTER) else before.owner
    return f"{AFTER}{dead[:LONGEST_OWNER]}{MARKED}{os.urandom(4).hex()}"


def _token() -> str:
    return f"{os.uname().nodename}-{os.urandom(4).hex()}"


def _whose(mark: Mark | None) -> str:
    return f"that of {mark.owner}" if mark is not None else "none"


def _words(error: Exception) -> str:
    return one_line(str(error)) or type(error).__name__
