"""Instances that are put to sleep and woken."""

from collections.abc import Awaitable, Callable, Sequence

from attrs import frozen

from fleeting._errors import CapacityUnavailable
from fleeting._protocols import Suspends
from fleeting._types import Capability, ConnectInfo, State
from fleeting.testing._harness import Answer, Harness, Probe, Trouble, Violation, answer_of, describe

BETWEEN = {State.RUNNING, State.SUSPENDING, State.SUSPENDED, State.RESUMING}
"""What a slow view may show of an instance on its way."""


async def check_suspended_instances_come_back(harness: Harness) -> None:
    """With `SUSPEND_RESUME`, an instance can be suspended and resumed, is always shown, and no other is affected."""
    async with harness.opened() as probe:
        wishes = _wishes(probe)
        instance, other = await probe.grow(2)
        before = await _lasting(probe, instance)
        for wish in (*wishes, *wishes):  # the second time as the first
            await _bring(probe, wish, instance)
        await probe.rest(harness.settle)
        shown = await probe.shown()
        if shown.keys() != {*probe.found, instance, other} or shown[other].state is not State.RUNNING:
            clause = "suspend and resume affect the named instances, and no others"
            raise Violation(clause, f"of {instance} and {other} the first was named; left are {describe(shown)}")
        after = await _lasting(probe, instance)
        if changed := [
            f"{part} {value!r}, then {after[part]!r}" for part, value in before.items() if after[part] != value
        ]:
            clause = "a suspended instance keeps its intent and all its connection details except addresses"
            raise Violation(clause, f"{instance} had {changed[0]}")


async def check_suspending_again_is_accepted(harness: Harness) -> None:
    """With `SUSPEND_RESUME`, `suspend` accepts a suspended instance and `resume` a running one; they stay so."""
    async with harness.opened() as probe:
        wishes = _wishes(probe)
        (instance,) = await probe.grow(1)
        for wish in wishes:
            await _bring(probe, wish, instance)
            await probe.rest(harness.settle)
            answer = await answer_of(wish.ask([instance]))
            await probe.rest(harness.settle)
            shown = await probe.shown()
            stays = instance in shown and shown[instance].state is wish.there
            if answer.error is not None or list(answer.value) != [instance] or not stays:
                clause = f"{wish.name} accepts an instance that is already {wish.there.value}, and leaves it so"
                raise Violation(clause, f"{wish.name}([{instance!r}]) {answer}, and left are {describe(shown)}")


async def check_suspending_goes_on_past_what_is_gone(harness: Harness) -> None:
    """With `SUSPEND_RESUME`, an id that is gone or was never known is no error, and stops no other."""
    async with harness.opened() as probe:
        wishes = _wishes(probe)
        gone, alive = await probe.grow(2)
        await probe.remove([gone])
        for wish in wishes:
            answer = await answer_of(wish.ask([harness.unknown_id]))
            if answer.error is not None or list(answer.value):
                clause = f"{wish.name} neither accepts an instance that does not exist nor raises"
                raise Violation(clause, f"{wish.name}([{harness.unknown_id!r}]) {answer}")
            await _bring(probe, wish, gone, harness.unknown_id, alive)


async def check_suspended_instances_can_be_deleted(harness: Harness) -> None:
    """With `SUSPEND_RESUME`, a suspended instance stays suspended when the group closes, and can be deleted."""
    async with harness.opened(keep=True) as first:
        suspend, _ = _wishes(first)
        (instance,) = await first.grow(1)
        await _bring(first, suspend, instance)
    async with harness.opened() as second:
        shown = second.found.copy()
        second.found.pop(instance, None)  # so that it is deleted in the end
        if instance not in shown or shown[instance].state is not State.SUSPENDED:
            clause = "a suspended instance stays so after shutdown, and another object for the group sees it"
            raise Violation(clause, f"{instance} was suspended; left are {describe(shown)}")
        await second.remove([instance])


async def check_resuming_without_room_is_reported(harness: Harness) -> None:
    """With `SUSPEND_RESUME`, if there is no stock to resume an instance, `resume` says so, and works later."""
    async with harness.opened() as probe:
        suspend, resume = _wishes(probe)
        (instance,) = await probe.grow(1)
        await _bring(probe, suspend, instance)
        async with harness.trouble(Trouble.STOCK_OUT):
            answer = await answer_of(resume.ask([instance]))
        if answer.error is not None and not isinstance(answer.error, CapacityUnavailable):
            clause = "resume raises CapacityUnavailable if the cloud has no room"
            raise Violation(clause, f"the cloud {Trouble.STOCK_OUT.value}; resume {answer}")
        await _bring(probe, resume, instance)


@frozen
class _Wish:
    """What is asked of instances, and the state that they come to."""

    name: str
    ask: Callable[[Sequence[str]], Awaitable[Sequence[str]]]
    there: State


def _wishes(probe: Probe) -> tuple[_Wish, _Wish]:
    """To suspend, and to resume; ends the check unless the group claims that it can."""
    probe.needs(Capability.SUSPEND_RESUME)
    group = probe.group
    if not isinstance(group, Suspends):
        raise Violation("a group that claims SUSPEND_RESUME has the methods of Suspends", "it lacks them")
    suspend = _Wish("suspend", group.suspend, State.SUSPENDED)
    return suspend, _Wish("resume", group.resume, State.RUNNING)


async def _bring(probe: Probe, wish: _Wish, *instances: str) -> None:
    """Ask until the last of them is accepted, and wait until it is there; it is in the view all the way."""
    instance = instances[-1]
    clock = probe.harness.settings.clock
    end = clock.now() + probe.harness.deadline
    accepted = False
    while True:
        accepted = accepted or instance in _accepted(wish, instances, await answer_of(wish.ask(instances)))
        shown = await probe.shown()
        if instance not in shown or shown[instance].state not in BETWEEN:
            clause = "an instance that is suspended or resumed stays in update, neither failed nor deleted"
            raise Violation(clause, f"{wish.name} was requested for {instance}; the view has {describe(shown)}")
        if accepted and shown[instance].state is wish.there:
            return
        if clock.now() >= end:
            clause = f"{wish.name} accepts an instance sooner or later, and the instance becomes {wish.there.value}"
            seen = f"after {probe.harness.deadline:g} s it had {'' if accepted else 'not '}accepted {instance}"
            raise Violation(clause, f"{seen}; the view has {describe(shown)}")
        await probe.rest(probe.harness.poll)


def _accepted(wish: _Wish, instances: Sequence[str], answer: Answer) -> Sequence[str]:
    """Look at an answer."""
    if answer.error is not None or not set(answer.value) <= set(instances):
        clause = f"{wish.name} returns those of its arguments that it accepted"
        raise Violation(clause, f"{wish.name}({list(instances)}) {answer}")
    accepted: Sequence[str] = answer.value
    return accepted


async def _lasting(probe: Probe, instance: str) -> dict[str, object]:
    """What a suspension leaves as it is: all but addresses, and credentials that may be made for the moment."""
    info: ConnectInfo = await probe.group.connect_info(instance)
    parts = ("id", "os", "arch", "protocol", "port", "user", "host_key")
    intent = (await probe.shown())[instance].intent
    return {"intent": intent, **{part: getattr(info, part) for part in parts}}
