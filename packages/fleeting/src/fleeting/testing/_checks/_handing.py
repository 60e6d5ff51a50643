"""What is handed in and out belongs to the caller, whatever is done to it later."""

from collections.abc import MutableMapping, MutableSequence

from fleeting._types import Observation, Problem, ProblemKind, State
from fleeting.testing._harness import Harness, Probe, Violation, answer_of, describe


async def check_views_do_not_change_later(harness: Harness) -> None:
    """A view never changes after it was returned, whatever is asked, created or deleted later."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        view = await probe.group.update()
        as_given = dict(view.instances)
        await probe.group.connect_info(instance)
        (later,) = await probe.grow(1)
        await probe.remove([instance])
        await probe.group.update()
        if dict(view.instances) != as_given:
            clause = "a returned view no longer changes"
            seen = f"after {later} came and {instance} went, an earlier view has {describe(view.instances)}"
            raise Violation(clause, f"{seen}, no longer {describe(as_given)}")


async def check_returned_values_are_the_callers(harness: Harness) -> None:
    """A caller may change a mapping or list that it was given; no later answer changes with it."""
    async with harness.opened() as probe:
        doomed, spared = await probe.grow(2)
        before = await probe.group.update()
        as_given = dict(before.instances)
        _spoil(before)
        after = await probe.group.update()
        if after.instances.keys() != as_given.keys() or _MARK in after.problems:
            clause = "changing a view does not change later views"
            raise Violation(
                clause, f"{describe(as_given)} was emptied, and the next view has {describe(after.instances)}"
            )
        accepted = await probe.group.decrease([doomed])
        if isinstance(accepted, MutableSequence):
            accepted.append(spared)
        await _spares(probe, doomed, spared, "the list that decrease had returned")


async def check_arguments_are_left_alone(harness: Harness) -> None:
    """A sequence argument may be a tuple; it is not changed, and not read after the call."""
    async with harness.opened() as probe:
        doomed, spared = await probe.grow(2)
        gone = (harness.unknown_id, harness.unknown_id[:-1] + "9")
        answer = await answer_of(probe.group.decrease(gone))
        if answer.error is not None or set(answer.value) != set(gone):
            clause = "decrease takes any sequence, and accepts instances that are gone"
            raise Violation(clause, f"decrease({gone!r}) {answer}") from answer.error
        named = [harness.unknown_id, doomed, gone[1]]
        names = list(named)
        await probe.group.decrease(names)
        if names != named:
            raise Violation("a call does not change its arguments", f"decrease left its list as {names}")
        names[:] = [spared]
        await _spares(probe, doomed, spared, "the list that decrease had been given")


async def _spares(probe: Probe, doomed: str, spared: str, what: str) -> None:
    """Look whether an instance that was put into a list after the call is left alone."""
    for _ in range(2):
        await answer_of(probe.group.update())
        await probe.group.decrease([probe.harness.unknown_id])
        await probe.rest(probe.harness.settle)
    shown = await probe.shown()
    if spared not in shown or shown[spared].state is not State.RUNNING:
        clause = "a list belongs to the caller once the call has returned"
        raise Violation(clause, f"{spared} was put into {what}, with {doomed}; left are {describe(shown)}")


_MARK = Problem(kind=ProblemKind.OTHER, message="put there by a caller")


def _spoil(view: Observation) -> None:
    """Do to a view what a careless caller does, as far as it can be done."""
    if isinstance(view.instances, MutableMapping):
        view.instances.clear()
    if isinstance(view.problems, MutableSequence):
        view.problems.append(_MARK)
