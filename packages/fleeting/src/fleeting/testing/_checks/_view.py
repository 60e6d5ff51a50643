"""The cloud's view: whole, true, and in the suite's words."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fleeting._errors import ProviderError
from fleeting._types import Observed, State
from fleeting.testing._harness import (
    Answer,
    Harness,
    NotApplicable,
    Trouble,
    Violation,
    answer_during,
    answer_of,
    describe,
)

CLOCK_SKEW = 600.0
"""Seconds by which the cloud's clock may be wrong."""

UNHEARD_OF = "CONFORMANCE-UNHEARD-OF"
"""A state that no cloud has."""


async def check_first_view_is_complete(harness: Harness) -> None:
    """Right after `init`, the view is complete: nothing that existed then appears only in a later view."""
    clause = "update shows every instance of the group, whatever its state and no matter who created it"
    async with harness.opened() as probe:
        first = probe.found
        if harness.alive is not None and (unseen := set(await harness.alive()) - first.keys()):
            raise Violation(clause, f"the first view lacks {sorted(unseen)}")
        await probe.rest(harness.settle)
        later = await probe.shown()
        if first.keys() != later.keys():
            raise Violation(clause, f"first {describe(first)}; later, with nothing asked, {describe(later)}")


async def check_update_notices_death(harness: Harness) -> None:
    """An instance that has died is soon shown as deleted or failed, or not at all; others stay as they are."""
    async with harness.opened() as probe:
        victim, survivor = await probe.grow(2)
        await harness.end(victim)
        shown = await probe.until(
            "an instance that died is deleted, failed or absent in update",
            lambda shown: victim not in shown or shown[victim].state is State.FAILED,
        )
        if survivor not in shown or shown[survivor].state is not State.RUNNING:
            raise Violation("the death of one instance changes no other", f"left are {describe(shown)}")


async def check_view_has_every_page(harness: Harness) -> None:
    """`update` shows all instances, however many there are and no matter who created them."""
    launch = harness.need(harness.launch, "launch", "adds instances to the group without its knowledge")
    async with harness.opened() as probe:
        await launch(harness.crowd)
        billed = set(await harness.billed())
        await probe.until(
            f"update shows every page of the cloud's listing, here of {len(billed)} instances",
            lambda shown: billed <= shown.keys(),
        )


async def check_view_is_whole_or_an_error(harness: Harness) -> None:
    """If a page of the listing cannot be fetched, `update` raises: missing instances would count as lost."""
    trouble = harness.trouble(Trouble.BROKEN_PAGE)
    launch = harness.need(harness.launch, "launch", "adds instances to the group without its knowledge")
    async with harness.opened() as probe:
        await launch(harness.crowd)
        async with trouble:
            answer = await answer_of(probe.group.update())
        if not isinstance(answer.error, ProviderError):
            clause = "a view that cannot be fetched completely raises ProviderError instead of returning a part"
            raise Violation(clause, f"the second page failed, and update {answer}") from answer.error


async def check_pages_that_loop_are_an_error(harness: Harness) -> None:
    """If the pages of a listing lead back to the first one, `update` raises instead of looping for ever."""
    harness.trouble(Trouble.PAGE_LOOP)  # without which nothing needs to be launched
    launch = harness.need(harness.launch, "launch", "adds instances to the group without its knowledge")
    async with harness.opened() as probe:
        await launch(harness.crowd)
        answer = await answer_during(harness, Trouble.PAGE_LOOP, probe.group.update)
        if answer is None or not isinstance(answer.error, ProviderError):
            clause = "update raises ProviderError if the pages of a listing lead back to an earlier one"
            came = f"update {answer}" if answer else f"after {harness.patience:g} s update has not ended"
            cause = None if answer is None else answer.error
            raise Violation(clause, f"every page said that the first comes next, and {came}") from cause


async def check_failed_update_is_an_error(harness: Harness) -> None:
    """If the cloud does not answer properly, `update` raises: it returns neither an old view nor an empty one."""
    async with harness.opened() as probe:
        await probe.grow(1)
        async with harness.trouble(Trouble.ERROR):
            answer = await answer_of(probe.group.update())
        if not isinstance(answer.error, ProviderError):
            clause = "update raises ProviderError if the cloud fails"
            raise Violation(clause, f"the cloud failed, and update {answer}") from answer.error


async def check_view_is_stable(harness: Harness) -> None:
    """While nothing happens, every view is the same for every reader: states, times, intents and offerings."""
    async with harness.opened() as probe:
        await probe.grow(2)
        await probe.rest(harness.settle)
        first = (await probe.group.update()).instances
        _compare(first, (await probe.group.update()).instances)
        async with harness.opened(keep=True, observe_only=True) as observer:
            _compare(first, (await observer.group.update()).instances)


def _compare(first: Mapping[str, Observed], later: Mapping[str, Observed]) -> None:
    """Raise if they differ."""
    if changed := [each for each in {**first, **later} if first.get(each) != later.get(each)]:
        seen = f"{changed[0]} was {first.get(changed[0])}, then {later.get(changed[0])}"
        raise Violation("two views with nothing happening between them are the same", seen)


async def check_creation_time_is_in_seconds(harness: Harness) -> None:
    """`created_at` is in seconds since the epoch, whatever the cloud writes."""
    clock = harness.settings.clock
    async with harness.opened() as probe:
        begun = clock.now()
        (instance,) = await probe.grow(1)
        with far_from_greenwich():
            created = (await probe.shown())[instance].created_at
        if created is None:
            raise NotApplicable("the cloud does not say when an instance was created")
        if not begun - CLOCK_SKEW <= created <= clock.now() + CLOCK_SKEW:
            clause = "created_at is when the cloud created the instance, in seconds since the epoch (UTC)"
            raise Violation(clause, f"created at {begun:.0f} or soon after, {instance} has {created!r}")


@contextmanager
def far_from_greenwich() -> Iterator[None]:
    """Have a local time that is not UTC, as many a machine has and no machine that runs tests."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "XYZ-5:45"
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
        time.tzset()


async def check_every_vendor_state_is_mapped(harness: Harness) -> None:
    """Each state that the cloud has for an instance is shown as the `State` that it means."""
    set_state = harness.need(harness.set_state, "set_state", "makes the cloud show an instance in a state")
    states = harness.need(harness.states or None, "states", "names every state of the cloud's and what it means")
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        for written, meant in states.items():
            await set_state(instance, written)
            answer = await answer_of(probe.group.update())
            state = _state_in(answer, instance)
            if state is not meant and not (meant is State.DELETED and answer.error is None and state is None):
                shown = f"update {answer}" if answer.error else f"it is shown as {state}"
                raise Violation(f"the cloud's {written!r} is shown as {meant}", shown) from answer.error


async def check_unknown_state_is_not_swallowed(harness: Harness) -> None:
    """A state that the plugin does not know neither hides an instance nor counts as running."""
    set_state = harness.need(harness.set_state, "set_state", "makes the cloud show an instance in a state")
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        await set_state(instance, UNHEARD_OF)
        answer = await answer_of(probe.group.update())
        state = _state_in(answer, instance)
        known = isinstance(answer.error, ProviderError) or state not in {None, State.RUNNING, State.DELETED}
        if not known:
            clause = (
                "an instance in a state that the plugin does not know is shown, as neither running nor deleted, "
                "or update raises ProviderError"
            )
            came = f"update {answer}" if answer.error else f"it is shown as {state}"
            raise Violation(clause, f"the cloud reported {UNHEARD_OF!r}: {came}") from answer.error


def _state_in(answer: Answer, instance: str) -> State | None:
    """The state that a view shows; None: no view, or not in it."""
    shown: Observed | None = answer.value.instances.get(instance) if answer.error is None else None
    return shown.state if shown is not None else None
