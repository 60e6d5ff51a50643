"""The mark that says whose the group is."""

from attrs import frozen

from fleeting._errors import GroupRefused
from fleeting._protocols import MarksOwner
from fleeting._types import Capability
from fleeting.testing._harness import Answer, Harness, Probe, Violation, answer_of

OTHER = "conformance-other"
"""The other manager."""

SHORT = 1.0
"""Seconds for which a mark holds, beyond those that it takes to be seen, that is to expire before the check ends."""


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


@frozen
class _Marker:
    """Somebody who wants the mark."""

    probe: Probe
    group: MarksOwner
    name: str

    async def put(self, lasting: float | None = None) -> None:
        """Put the mark on the group, or renew it; as nobody else's is there, it works."""
        answer = await self._ask(lasting)
        if answer.error is not None:
            clause = "mark_owner puts a mark on a group that has none, or this owner's own"
            raise Violation(clause, f"mark_owner by {self.name} {answer}")
        if lasting is None:
            await self.probe.rest(self.probe.harness.settle)

    async def take_away(self) -> None:
        """Take the mark away if it is this one's; if it is another's, nothing happens."""
        answer = await answer_of(self.group.mark_owner(None))
        if answer.error is not None:
            raise Violation("removing a mark that does not exist is not an error", f"mark_owner(None) {answer}")
        await self.probe.rest(self.probe.harness.settle)

    async def is_refused(self, by: "_Marker") -> None:
        """Ask in vain."""
        answer = await self._ask()
        if not isinstance(answer.error, GroupRefused):
            clause = "mark_owner raises GroupRefused while another owner's mark exists and has not expired"
            raise Violation(clause, f"the mark was {by.name}'s, and mark_owner by {self.name} {answer}")
        if by.name not in str(answer.error):
            clause = "the GroupRefused of mark_owner names the owner of the mark"
            raise Violation(clause, f"the mark was {by.name}'s, and the error says: {answer.error}")

    async def gets_it(self) -> None:
        """Ask until it is granted."""
        clock, harness = self.probe.harness.settings.clock, self.probe.harness
        end = clock.now() + harness.deadline
        while isinstance((answer := await self._ask()).error, GroupRefused) and clock.now() < end:
            await self.probe.rest(harness.poll)
        if answer.error is not None:
            clause = "a new owner gets the mark once it was removed or has expired"
            raise Violation(clause, f"{harness.deadline:g} s later, mark_owner by {self.name} {answer}")
        await self.probe.rest(harness.settle)

    async def _ask(self, lasting: float | None = None) -> Answer:
        """Ask for a mark that outlasts the check, or expires as asked; forgotten, it keeps nobody out for long."""
        harness = self.probe.harness
        seconds = 4 * harness.deadline if lasting is None else lasting
        return await answer_of(self.group.mark_owner(harness.settings.clock.now() + seconds))


def _marker(probe: Probe) -> _Marker:
    """Whoever opened the group; ends the check unless it claims to bear a mark."""
    probe.needs(Capability.OWNER_MARK)
    if not isinstance(probe.group, MarksOwner):
        raise Violation("a group that claims OWNER_MARK has the methods of MarksOwner", "it lacks them")
    return _Marker(probe, probe.group, probe.owner)
