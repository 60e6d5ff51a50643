"""What `increase` brings, and what it says that it brings."""

from fleeting._errors import OutcomeUnknown, ProviderError
from fleeting._types import Capability, State
from fleeting.testing._harness import (
    Answer,
    Harness,
    NotApplicable,
    Probe,
    Trouble,
    Violation,
    answer_of,
    describe,
    new_intent,
)

MAX_SIZE = 8
"""The largest group that is filled up to see what it does when it is full."""


async def check_increase_brings_what_it_accepted(harness: Harness) -> None:
    """The instances that `increase` accepted appear, have a known state, start running, and are no more than that."""
    async with harness.opened() as probe:
        new = await probe.grow(2)
        await probe.rest(harness.settle)
        added = await probe.added()
        if len(added) != len(new) or len(new) != 2:  # noqa: PLR2004  (asked for above)
            raise Violation("increase adds as many instances as it accepted", f"accepted 2, got {describe(added)}")
        if strange := [each.state for each in added.values() if each.state not in set(State)]:
            raise Violation("the state of an instance is a State", f"{strange[0]!r}")


async def check_named_create_is_idempotent(harness: Harness) -> None:
    """With `NAMED_CREATE`, repeating a request with the same intent creates nothing new."""
    async with harness.opened() as probe:
        probe.needs(Capability.NAMED_CREATE)
        intent = new_intent()
        await probe.grow(1, intent)
        again = await probe.group.increase(1, intent=intent)
        await probe.rest(harness.settle)
        added = await probe.added()
        if again != 1 or len(added) != 1:
            clause = "a repeat with the same intent requests nothing new, and returns what the first call returned"
            raise Violation(clause, f"the repeat returned {again}, the view has {describe(added)}")


async def check_named_create_carries_the_intent(harness: Harness) -> None:
    """With `NAMED_CREATE`, every instance carries the intent that requested it."""
    async with harness.opened() as probe:
        probe.needs(Capability.NAMED_CREATE)
        for intent in (new_intent(), new_intent()):
            (instance,) = await probe.grow(1, intent)
            carried = (await probe.shown())[instance].intent
            if carried != intent:
                raise Violation("instances carry the intent", f"requested under {intent}, {instance} carries {carried}")


async def check_increase_stops_at_max_size(harness: Harness) -> None:
    """Beyond the cloud's ceiling, `increase` accepts only a part."""
    async with harness.opened() as probe:
        limit = probe.info.max_size
        if limit is None or limit > MAX_SIZE:
            raise NotApplicable(f"the group has no max_size of at most {MAX_SIZE}")
        room = limit - len(probe.found)
        accepted = await probe.increase(room + 1)
        await probe.rest(harness.settle)
        shown = await probe.shown()
        if accepted != room or len(shown) > limit:
            clause = f"increase beyond max_size {limit} accepts as many as fit"
            raise Violation(
                clause, f"there was room for {room}, {accepted} were accepted, and the view has {describe(shown)}"
            )


async def check_ids_are_never_reused(harness: Harness) -> None:
    """An id identifies one instance, for ever."""
    async with harness.opened() as probe:
        used = set(probe.found)
        for _ in range(3):
            new = await probe.grow(1)
            if reused := used & set(new):
                raise Violation("instance ids are never reused", f"{sorted(reused)} came back for a new instance")
            used |= set(new)
            await probe.remove(new)


async def check_partial_success_is_reported(harness: Harness) -> None:
    """If the cloud accepts only a part of the request, `increase` returns the size of that part."""
    async with harness.opened() as probe:
        async with harness.trouble(Trouble.PARTIAL):
            answer = await answer_of(probe.group.increase(3, intent=new_intent()))
        await _compare(probe, answer, "increase returns how many the cloud accepted, be it a part")


async def check_lost_answer_is_an_unknown_outcome(harness: Harness) -> None:
    """If the answer to a request is lost, `increase` says so, and does not ask once more for something new."""
    async with harness.opened() as probe:
        async with harness.trouble(Trouble.LOST_ANSWER):
            answer = await answer_of(probe.group.increase(1, intent=new_intent()))
        clause = "increase raises OutcomeUnknown if it does not know the outcome of its request, which it made once"
        await _compare(probe, answer, clause, at_most=1)


async def check_named_create_settles_a_lost_answer(harness: Harness) -> None:
    """With `NAMED_CREATE`, repeating a request whose answer was lost returns its outcome and creates no more."""
    async with harness.opened() as probe:
        probe.needs(Capability.NAMED_CREATE)
        intent = new_intent()
        async with harness.trouble(Trouble.LOST_ANSWER):
            await answer_of(probe.group.increase(1, intent=intent))
        again = await answer_of(probe.group.increase(1, intent=intent))
        await probe.rest(harness.settle)
        added = await probe.added()
        if again.value != 1 or len(added) != 1:
            clause = "after a lost answer, a repeat with the same intent requests nothing new"
            raise Violation(clause, f"the repeat {again}, the view has {describe(added)}")


async def check_named_create_outlives_its_manager(harness: Harness) -> None:
    """With `NAMED_CREATE`, a restarted manager may repeat what the previous one requested."""
    intent = new_intent()
    async with harness.opened(keep=True) as first:
        first.needs(Capability.NAMED_CREATE)
        (instance,) = await first.grow(1, intent)
    async with harness.opened() as second:
        second.found.pop(instance, None)  # so that it is deleted in the end
        again = await answer_of(second.group.increase(1, intent=intent))
        await second.rest(harness.settle)
        added = await second.added()
        if again.value != 1 or list(added) != [instance]:
            clause = "a repeat with the same intent requests nothing new, even from another object for the group"
            raise Violation(clause, f"the repeat {again}, the view has {describe(added)}")


async def _compare(probe: Probe, answer: Answer, clause: str, *, at_most: int = 3) -> None:
    """Compare what `increase` said with what came: exactly that, or if it does not know, no more than was asked for."""
    unknown = isinstance(answer.error, OutcomeUnknown | OSError)
    if answer.error is not None and not unknown and not isinstance(answer.error, ProviderError):
        raise Violation(clause, f"it {answer}") from answer.error
    said = answer.value or 0
    await probe.until(f"{clause}: all that appear", lambda shown: len(shown) >= said + len(probe.found))
    await probe.rest(probe.harness.settle)
    added = await probe.added()
    if len(added) > at_most or (len(added) != said and not unknown):
        raise Violation(clause, f"it {answer}, and then {describe(added)} appeared") from answer.error
