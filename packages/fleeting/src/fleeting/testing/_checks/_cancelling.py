"""What a cancellation leaves behind, whichever await it hits."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import anyio

from fleeting._errors import ProviderError
from fleeting._protocols import GivesNotice
from fleeting._types import Capability
from fleeting.testing._harness import Answer, Call, Harness, Probe, Violation, answer_of, describe, new_intent, without
from fleeting.testing._holdings import released, settled
from fleeting.testing._interrupt import MAX_AWAITS, interrupted

SPARE = 7
"""So many more things may be held after more cancellations than that: a pool may have grown."""


async def check_cancelled_increase_leaves_no_trace(harness: Harness) -> None:
    """Wherever `increase` is cancelled, `update` shows its outcome."""
    clause = "cancelling a call leaves nothing that update does not show"
    async with harness.opened() as probe:
        for number in range(1, MAX_AWAITS + 1):
            before = await probe.added()
            came_so_far = True
            with suppress(ProviderError):
                came_so_far = await interrupted(probe.group.increase(1, intent=new_intent()), at=number)
            await probe.rest(harness.settle)
            added = await probe.added()
            if len(without(added, before)) > 1:
                raise Violation(clause, f"one request was cancelled, and then {describe(added)} appeared")
            if harness.alive is not None and (unseen := set(await harness.alive()) - {*added, *probe.found}):
                raise Violation(clause, f"cancelled at its await {number}, it left {sorted(unseen)} behind")
            await probe.remove(list(added))
            if not came_so_far:
                break


async def check_cancelled_calls_change_nothing_else(harness: Harness) -> None:
    """Wherever any other call is cancelled, the group keeps working, and shows what exists."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        group = probe.group
        calls: dict[str, Call] = {
            "update": group.update,
            "connect_info": partial(group.connect_info, instance),
            "heartbeat": partial(group.heartbeat, instance),
            **_listening(probe),
            **probe.extras(instance),
            "decrease": partial(group.decrease, [instance]),
        }
        for name, call in calls.items():
            for number in range(1, MAX_AWAITS + 1):
                came_so_far = await _interrupted_at(number, call)
                await _goes_on(probe, name, instance)
                if not came_so_far:
                    break
            if name in probe.reads(instance):
                await _adds_nothing_up(harness, name, call, number)
        await probe.remove([instance])


def _listening(probe: Probe) -> Mapping[str, Call]:
    """To wait for a notice for a while, if the group gives any; none comes."""
    group = probe.group
    if Capability.NOTICES not in probe.info.capabilities or not isinstance(group, GivesNotice):
        return {}

    async def listen() -> None:
        with anyio.move_on_after(probe.harness.settle):
            async for _ in group.notices():
                pass

    return {"notices": listen}


async def _interrupted_at(number: int, call: Call) -> bool:
    """Cancel the call there; returns whether it came so far."""
    with suppress(ProviderError):
        return await interrupted(call(), at=number)
    return True


async def _adds_nothing_up(harness: Harness, name: str, call: Call, awaits: int) -> None:
    """Cancel a call more often than a pool may grow, at each of its awaits in turn, and count what is held then."""
    before = await settled(harness)
    times = max(awaits, SPARE + 1)
    for number in range(times):
        await _interrupted_at(1 + number % max(1, awaits - 1), call)
    seen = f"{times} calls of {name}, each cancelled at a different await, have "
    clause = "a cancelled call leaves nothing open"
    await released(harness, before, clause, seen, allowed=SPARE, spared=("child process",))


async def _goes_on(probe: Probe, name: str, instance: str) -> None:
    """Look at the group after a call that was cancelled."""
    clause = f"after a cancelled {name}, the group still works"
    answer = Answer()
    with anyio.move_on_after(probe.harness.patience) as limit:
        answer = await answer_of(probe.shown())
    if limit.cancelled_caught:
        raise Violation(clause, "the next update did not end")
    if answer.error is not None:
        raise Violation(clause, f"the next update {answer}") from answer.error
    if name != "decrease" and instance not in answer.value:
        raise Violation(clause, f"the next update shows {describe(answer.value)}, without {instance}")
