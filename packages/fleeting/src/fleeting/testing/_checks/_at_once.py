"""Calls that are made at the same time, of one object."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import anyio
import anyio.lowlevel
from attrs import evolve

from fleeting._errors import ProviderError
from fleeting._types import Capability, Observation, Observed, State
from fleeting.testing._harness import (
    Answer,
    Call,
    Harness,
    Probe,
    Trouble,
    Violation,
    answer_of,
    answers_at_once,
    describe,
    new_intent,
    without,
)
from fleeting.testing._holdings import released, settled
from fleeting.testing._interrupt import MAX_AWAITS, interrupted

CLAUSE = "concurrent calls do not affect each other"


async def check_reads_at_once_do_not_mix(harness: Harness) -> None:
    """Concurrent reads return what each would return alone."""
    async with harness.opened() as probe:
        one, other = await probe.grow(2)
        if harness.launch is not None:
            await harness.launch(harness.crowd)
            await probe.rest(harness.settle)
        group = probe.group
        calls: dict[str, Call] = {}
        for number in ("", " again"):
            calls[f"update{number}"] = group.update
            for instance in (one, other):
                calls[f"connect_info({instance!r}){number}"] = partial(group.connect_info, instance)
                calls[f"heartbeat({instance!r}){number}"] = partial(group.heartbeat, instance)
        alone = {name: await answer_of(call()) for name, call in calls.items()}
        at_once = await _ended(calls, harness)
        for name, answer in at_once.items():
            if _gist(answer) != _gist(alone[name]):
                raise Violation(CLAUSE, f"{name} {alone[name]} alone, but {answer} alongside {len(calls) - 1} others")


async def check_changes_at_once_do_not_mix(harness: Harness) -> None:
    """Concurrent changes are all carried out, each with its own arguments."""
    async with harness.opened() as probe:
        group = probe.group
        first, second = new_intent(), new_intent()
        answers = await _ended(
            {
                "increase(1)": lambda: group.increase(1, intent=first),
                "increase(2)": lambda: group.increase(2, intent=second),
                "update": group.update,
            },
            harness,
        )
        _expect(answers, {"increase(1)": 1, "increase(2)": 2})
        added = without(await _running(probe, 3), probe.found)
        intents = Counter(each.intent for each in added.values())
        if Capability.NAMED_CREATE in probe.info.capabilities and intents != {first: 1, second: 2}:
            seen = f"increase(1, {first!r}) and increase(2, {second!r}) at once brought {dict(intents)}"
            raise Violation(CLAUSE, seen)
        gone, also_gone, kept = added
        answers = await _ended(
            {
                "decrease of one": lambda: group.decrease([gone]),
                "decrease of another": lambda: group.decrease([also_gone]),
                "connect_info": lambda: group.connect_info(kept),
                "heartbeat": lambda: group.heartbeat(kept),
                "update": group.update,
            },
            harness,
        )
        _expect(answers, {})
        await probe.remove([gone, also_gone])
        shown = await probe.shown()
        if shown.keys() != {*probe.found, kept} or shown[kept].state is not State.RUNNING:
            raise Violation(CLAUSE, f"of 3, 2 were deleted at once, not {kept}; left are {describe(shown)}")


async def check_named_create_is_idempotent_at_once(harness: Harness) -> None:
    """With `NAMED_CREATE`, two concurrent requests with the same intent create its instances once."""
    async with harness.opened() as probe:
        probe.needs(Capability.NAMED_CREATE)
        intent = new_intent()
        call = partial(probe.group.increase, 1, intent=intent)
        answers = await _ended({"increase": call, "its repeat": call}, harness)
        again = await answer_of(call())  # the cloud may have refused one of two at once
        await probe.until("as many instances as increase accepted appear in update", lambda shown: _more(probe, shown))
        await probe.rest(harness.settle)
        added = await probe.added()
        wrong = [each for each in answers.values() if each.value != 1 and not isinstance(each.error, ProviderError)]
        if wrong or again.value != 1 or len(added) != 1:
            said = ", ".join(f"{name} {answer}" for name, answer in answers.items())
            clause = "two concurrent calls with the same intent make one request"
            raise Violation(clause, f"{said}, a third later {again}, and the view has {describe(added)}")


def _more(probe: Probe, shown: Mapping[str, object]) -> bool:
    """Whether anything has come."""
    return len(shown.keys() - probe.found.keys()) > 0


async def check_cancelling_one_call_spares_the_others(harness: Harness) -> None:
    """Cancelling one call does not cancel a concurrent one."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        for name, call in probe.reads(instance).items():
            for number in range(1, MAX_AWAITS + 1):
                if not await _spared(harness, name, call, number):
                    break


async def _spared(harness: Harness, name: str, call: Call, number: int) -> bool:
    """Make a call twice, the first of which is cancelled at that await; returns whether that came so far."""
    came_so_far: list[bool] = []

    async def cancelled() -> None:
        answer = await answer_of(interrupted(call(), at=number))
        came_so_far.append(answer.value is not False)

    async def other() -> object:
        await anyio.lowlevel.checkpoint()  # so that the first call is under way
        return await call()

    answers = await answers_at_once({"cancelled": cancelled, "other": other}, harness.patience)
    answer = answers["other"]
    if answer is None or answer.error is not None:
        seen = f"of two calls of {name} the first was cancelled at its await {number}, and the other "
        raise Violation("cancelling a call does not affect the others", seen + str(answer or "did not end"))
    return came_so_far == [True]


async def check_shutdown_during_calls_ends(harness: Harness) -> None:
    """`shutdown` ends while other calls are running; so do they, and neither leaves anything behind."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        await harness.open_and_close()
        before = await settled(harness)
        group = harness.make()
        await group.init(evolve(harness.settings, observe_only=True))
        calls: Mapping[str, Call] = {
            "update": group.update,
            "connect_info": partial(group.connect_info, instance),
            "heartbeat": partial(group.heartbeat, instance),
            "shutdown": partial(_later, probe, group.shutdown),
        }
        slow = harness.trouble(Trouble.SLOW) if Trouble.SLOW in harness.troubles else None
        answers = await answers_at_once(calls, harness.patience, slow)
        clause = "shutdown and the calls under way end"
        if hung := [name for name, answer in answers.items() if answer is None]:
            raise Violation(clause, f"{harness.patience:g} s after they started, {', '.join(hung)} had not ended")
        ending = answers["shutdown"]
        if ending is not None and ending.error is not None:
            raise Violation(clause, f"shutdown {ending} while calls were under way") from ending.error
        del group, calls  # a call may still have used its client, whose connections go with it
        await released(harness, before, "shutdown during other calls releases what was taken", "they have ")


async def _later(probe: Probe, call: Callable[[], Awaitable[None]]) -> None:
    """Make a call once others are under way."""
    await anyio.lowlevel.checkpoint()
    await probe.rest(probe.harness.poll)
    await call()


async def _ended(calls: Mapping[str, Call], harness: Harness) -> Mapping[str, Answer]:
    """Make calls at once, which must all end."""
    answers = await answers_at_once(calls, harness.patience)
    if hung := [name for name, answer in answers.items() if answer is None]:
        others = len(calls) - len(hung)
        raise Violation(CLAUSE, f"after {harness.patience:g} s, {', '.join(hung)} had not ended; {others} others had")
    return {name: answer for name, answer in answers.items() if answer is not None}


def _expect(answers: Mapping[str, Answer], values: Mapping[str, object]) -> None:
    """Raise unless no call failed, and these returned that."""
    for name, answer in answers.items():
        if answer.error is not None or (name in values and answer.value != values[name]):
            beside = ", ".join(other for other in answers if other != name)
            raise Violation(CLAUSE, f"{name} {answer}, alongside {beside}") from answer.error


async def _running(probe: Probe, number: int) -> Mapping[str, Observed]:
    """Wait until so many that were asked for run."""
    shown = await probe.until(
        "update shows as many instances as increase accepted, and they start running",
        lambda shown: sum(each.state is State.RUNNING for each in without(shown, probe.found).values()) >= number,
    )
    await probe.rest(probe.harness.settle)
    return await probe.shown() or shown


def _gist(answer: Answer) -> object:
    """What two answers to the same question have in common: all but credentials that are made for the moment."""
    if answer.error is not None:
        return type(answer.error)
    if isinstance(answer.value, Observation):
        return answer.value.instances
    return answer.value and evolve(answer.value, password=None, key=None, expires_at=None)
