"""The mark that says whose the group is."""

from collections.abc import Callable, Sequence

from attrs import frozen

from fleeting._errors import GroupRefused
from fleeting._protocols import MarksOwner, ReadsMarks
from fleeting._types import Capability, Mark
from fleeting.testing._harness import Answer, Harness, NotChecked, Probe, Violation, answer_of

OTHER = "conformance-other"
"""The other manager."""

SHORT = 1.0
"""Seconds for which a mark holds, beyond those that it takes to be seen, that is to expire before the check ends."""

LONG_AGO = 7200.0
"""Seconds since a mark has expired that a manager has left which died."""

ROUNDING = 1.0
"""Seconds by which an expiry that is shown may differ: clouds have places for whole numbers."""


async def check_owner_mark_keeps_others_out(harness: Harness) -> None:
    """With `OWNER_MARK`, an owner's mark is refused to others, with the owner's name, until it is removed."""
    async with harness.opened() as one:
        ours = _marker(one)
        async with harness.opened(owner=OTHER) as other:
            theirs = _marker(other)
            await ours.put()
            await theirs.is_refused(by=ours)
            await theirs.take_away()
            await theirs.is_refused(by=ours)
            await ours.take_away()
            await theirs.gets_it()


async def check_owner_mark_is_renewed(harness: Harness) -> None:
    """With `OWNER_MARK`, an owner can renew its mark, even after a restart, and the later expiry counts."""
    async with harness.opened(keep=True) as first:
        ours = _marker(first)
        await ours.put(lasting=harness.settle + SHORT)
        await ours.put()
    async with harness.opened() as second:
        ours = _marker(second)
        await ours.put()
        await second.rest(harness.settle + SHORT)
        async with harness.opened(owner=OTHER) as other:
            await _marker(other).is_refused(by=ours)


async def check_expired_owner_mark_is_taken_over(harness: Harness) -> None:
    """With `OWNER_MARK`, an expired mark keeps nobody out, and its owner cannot renew it after a takeover."""
    async with harness.opened() as one:
        ours = _marker(one)
        await ours.put(lasting=harness.settle + SHORT)
        async with harness.opened(owner=OTHER) as other:
            theirs = _marker(other)
            await theirs.gets_it()
            await ours.is_refused(by=theirs)


async def check_owner_marks_are_shown(harness: Harness) -> None:
    """With `OWNER_MARK`, `read_marks` shows whose marks are there and until when, also to observers, expired or not."""
    async with harness.opened(observe_only=True, owner=OTHER) as beside:
        beside.needs(Capability.OWNER_MARK)
        reader = _reader(beside)
        async with harness.opened(keep=True) as one:
            ours = _marker(one)
            await reader.sees_none_of(ours)
            await reader.sees(ours, await ours.put())
            await reader.sees(ours, await ours.put(lasting=6 * harness.deadline))
            await ours.take_away()
            await reader.sees_none_of(ours)
            await reader.sees(ours, await ours.put(lasting=-LONG_AGO))
        async with harness.opened(owner=OTHER) as other:
            theirs = _marker(other)
            await reader.sees(theirs, await theirs.gets_it())


@frozen
class _Marker:
    """Somebody who wants the mark."""

    probe: Probe
    group: MarksOwner
    name: str

    async def put(self, lasting: float | None = None) -> float:
        """Put the mark on the group, or renew it; as nobody else's is there, it works. Returns until when."""
        until = self._until(lasting)
        answer = await self._ask(until)
        if answer.error is not None:
            clause = "mark_owner puts a mark on a group that has none, or this owner's own"
            raise Violation(clause, f"mark_owner by {self.name} {answer}")
        if lasting is None:
            await self.probe.rest(self.probe.harness.settle)
        return until

    async def take_away(self) -> None:
        """Take the mark away if it is this one's; if it is another's, nothing happens."""
        answer = await answer_of(self.group.mark_owner(None))
        if answer.error is not None:
            raise Violation("removing a mark that does not exist is not an error", f"mark_owner(None) {answer}")
        await self.probe.rest(self.probe.harness.settle)

    async def is_refused(self, by: "_Marker") -> None:
        """Ask in vain."""
        answer = await self._ask(self._until())
        if not isinstance(answer.error, GroupRefused):
            clause = "mark_owner raises GroupRefused while another owner's mark exists and has not expired"
            raise Violation(clause, f"the mark was {by.name}'s, and mark_owner by {self.name} {answer}")
        if by.name not in str(answer.error):
            clause = "the GroupRefused of mark_owner names the owner of the mark"
            raise Violation(clause, f"the mark was {by.name}'s, and the error says: {answer.error}")

    async def gets_it(self) -> float:
        """Ask until it is granted; returns until when it is."""
        clock, harness = self.probe.harness.settings.clock, self.probe.harness
        end = clock.now() + harness.deadline
        until = self._until()
        while isinstance((answer := await self._ask(until)).error, GroupRefused) and clock.now() < end:
            await self.probe.rest(harness.poll)
        if answer.error is not None:
            clause = "a new owner gets the mark once it was removed or has expired"
            raise Violation(clause, f"{harness.deadline:g} s later, mark_owner by {self.name} {answer}")
        await self.probe.rest(harness.settle)
        return until

    def _until(self, lasting: float | None = None) -> float:
        """When a mark expires that outlasts the check, or lasts as asked; forgotten, it keeps nobody out for long."""
        harness = self.probe.harness
        return harness.settings.clock.now() + (4 * harness.deadline if lasting is None else lasting)

    async def _ask(self, until: float) -> Answer:
        return await answer_of(self.group.mark_owner(until))


@frozen
class _Reader:
    """Somebody who reads the marks that others put there."""

    probe: Probe
    group: ReadsMarks

    async def sees(self, who: _Marker, until: float) -> None:
        """Read until the mark is shown as it was put there."""
        mark = f"{who.name}'s, until {until:.0f}"
        clause = f"read_marks shows each mark that is on the group, with its owner and its expiry: {mark}"
        await self._wait(clause, lambda marks: any(_is_of(each, who.name, until) for each in marks))

    async def sees_none_of(self, who: _Marker) -> None:
        """Read until no mark of somebody is shown."""
        clause = f"read_marks shows no mark that was never there or was taken away: none of {who.name}"
        await self._wait(clause, lambda marks: all(each.owner != who.name for each in marks))

    async def _wait(self, clause: str, met: Callable[[Sequence[Mark]], bool]) -> None:
        clock, harness = self.probe.harness.settings.clock, self.probe.harness
        end = clock.now() + harness.deadline
        while not met(marks := await self._read()):
            if clock.now() >= end:
                shown = ", ".join(f"{each.owner}'s, until {each.until:.0f}" for each in marks) or "no marks"
                raise Violation(clause, f"after {harness.deadline:g} s it returned {shown}")
            await self.probe.rest(harness.poll)

    async def _read(self) -> Sequence[Mark]:
        marks = list(await self.group.read_marks())
        owners = [each.owner for each in marks]
        if len(set(owners)) < len(owners):
            raise Violation("read_marks returns at most one mark of each owner", f"it returned marks of {owners}")
        return marks


def _is_of(mark: Mark, owner: str, until: float) -> bool:
    return mark.owner == owner and abs(mark.until - until) <= ROUNDING


def _reader(probe: Probe) -> _Reader:
    """Whoever opened the group, to read what is on it; ends the check if the group has no way to."""
    if not isinstance(probe.group, ReadsMarks):
        raise NotChecked("give the group read_marks (`fleeting.plugins.ReadsMarks`): what cleans up needs it")
    return _Reader(probe, probe.group)


def _marker(probe: Probe) -> _Marker:
    """Whoever opened the group; ends the check unless it claims to bear a mark."""
    probe.needs(Capability.OWNER_MARK)
    if not isinstance(probe.group, MarksOwner):
        raise Violation("a group that claims OWNER_MARK has the methods of MarksOwner", "it lacks them")
    return _Marker(probe, probe.group, probe.owner)
