"""Many instances, many pages, call after call."""

from collections.abc import Mapping, Sequence

from fleeting._errors import InstanceNotFound, ProviderError
from fleeting._types import Observed, State
from fleeting.testing._harness import (
    Harness,
    Probe,
    Trouble,
    Violation,
    answer_of,
    describe,
    without,
)

MANY = 100
"""How many instances to ask for at once, if there is room."""

SEVERAL = 3
"""More than this is a size."""


async def check_large_numbers_are_handled(harness: Harness) -> None:
    """A hundred instances are requested, shown, described and deleted just as one is."""
    number = min(MANY, harness.room)
    if number <= SEVERAL:
        raise harness.lack("room", f"room for more than {SEVERAL} instances")
    async with harness.opened() as probe:
        accepted = await probe.increase(number)
        if accepted != number:
            clause = "increase handles a large number like a small one"
            raise Violation(clause, f"there is room for {number}, and increase({number}) returned {accepted}")
        clause = "update shows as many instances as increase accepted, and they start running"
        shown = await probe.until(
            clause,
            lambda shown: sum(each.state is State.RUNNING for each in without(shown, probe.found).values()) >= number,
        )
        await probe.rest(harness.settle)
        added = list(without(await probe.shown(), probe.found))
        if len(added) != number:
            raise Violation(clause, f"increase({number}) brought {len(added)}, after {len(shown)} were shown")
        await _are_all_known(probe, [added[0], added[number // 2], added[-1]])
        await _go_at_once(probe, added)


async def check_every_page_is_known_to_every_call(harness: Harness) -> None:
    """Instances on the last page of a listing are described, checked and deleted like those on the first."""
    launch = harness.need(harness.launch, "launch", "adds instances to the group without its knowledge")
    async with harness.opened() as probe:
        before = await probe.shown()
        await launch(harness.crowd)
        shown = await _until_there(probe, len(before) + harness.crowd)
        crowd = list(without(shown, before))
        await _are_all_known(probe, crowd)
        await _go_at_once(probe, crowd)
        probe.found = dict(before)


async def check_view_follows_a_changing_crowd(harness: Harness) -> None:
    """`update` shows what exists now, however often it is called and whatever came and went before."""
    launch = harness.need(harness.launch, "launch", "adds instances to the group without its knowledge")
    async with harness.opened() as probe:
        number = len(probe.found)
        for _ in range(2):
            await launch(harness.crowd)
            number += harness.crowd
            await _until_there(probe, number)
        shown = list(await probe.shown())
        doomed = shown[1 : 1 + harness.crowd]  # from the first pages, so that those behind move up
        for instance in doomed:
            await harness.end(instance)
        clause = "every call of update shows all pages as they are now"
        left = set(shown) - set(doomed)
        for _ in range(2):
            seen = await probe.until(
                clause, lambda now: not any(_lives(each.state) for name, each in now.items() if name in doomed)
            )
            if lost := left - seen.keys():
                raise Violation(clause, f"{len(doomed)} of {len(shown)} died, and {sorted(lost)} were missing too")


def _lives(state: State) -> bool:
    """Whether it is not on its way out."""
    return state not in {State.FAILED, State.DELETING, State.DELETED}


async def check_empty_page_is_not_the_last(harness: Harness) -> None:
    """A page without instances does not end a listing that has more pages."""
    await _pages_are_read(harness, Trouble.EMPTY_PAGE)


async def check_instance_on_two_pages_is_one(harness: Harness) -> None:
    """An instance that appears on two pages, because the list changed in between, is one instance."""
    await _pages_are_read(harness, Trouble.SHIFTED_PAGE)


async def _pages_are_read(harness: Harness, kind: Trouble) -> None:
    """Compare the view during a trouble that changes the pages, and not what is on them."""
    harness.trouble(kind)  # without which nothing needs to be launched
    launch = harness.need(harness.launch, "launch", "adds instances to the group without its knowledge")
    async with harness.opened() as probe:
        await launch(harness.crowd)
        expected = await _until_there(probe, len(probe.found) + harness.crowd)
        async with harness.trouble(kind):
            answer = await answer_of(probe.shown())
        if answer.error is not None or answer.value != expected:
            clause = "update shows every instance once, however the cloud splits the pages"
            came = f"update {answer}" if answer.error else f"of {describe(expected)} it showed {describe(answer.value)}"
            raise Violation(clause, f"the cloud {kind.value}, and {came}") from answer.error


async def _until_there(probe: Probe, number: int) -> Mapping[str, Observed]:
    """Wait until so many are shown, and return them; more is wrong too."""
    clause = "update shows every instance, however many there are"
    await probe.until(clause, lambda shown: len(shown) >= number)
    shown = await probe.until(
        "instances that somebody else created are shown as running once they run",
        lambda shown: all(each.state is State.RUNNING for each in shown.values()),
    )
    if len(shown) != number:
        raise Violation(clause, f"there are {number}, and it shows {describe(shown)}")
    return shown


async def _are_all_known(probe: Probe, instances: Sequence[str]) -> None:
    """Ask for each instance alone."""
    for instance in instances:
        for name, call in probe.reads(instance).items():
            answer = await answer_of(call())
            if isinstance(answer.error, ProviderError) and not isinstance(answer.error, InstanceNotFound):
                continue  # what somebody else made may lack what it takes to connect, but it is known
            if answer.error is not None or (name == "connect_info" and answer.value.id != instance):
                clause = "every call knows every instance that update shows"
                raise Violation(clause, f"{name} of {instance}, one of {len(instances)}, {answer}") from answer.error


async def _go_at_once(probe: Probe, instances: Sequence[str]) -> None:
    """Delete all of them in one call, and nothing else."""
    others = without(await probe.shown(), instances)
    answer = await answer_of(probe.group.decrease(instances))
    clause = "decrease handles a long list like a short one, and deletes those that it accepted"
    if answer.error is not None or not set(answer.value) <= set(instances):
        raise Violation(clause, f"decrease of {len(instances)} {answer}") from answer.error
    accepted = set(answer.value)
    await probe.until(f"{clause}, here {len(accepted)} of {len(instances)}", lambda shown: not shown.keys() & accepted)
    await probe.remove(list(instances))
    left = await probe.shown()
    if left.keys() != others.keys():
        raise Violation(clause, f"{len(instances)} were named; of {describe(others)}, left are {describe(left)}")
