"""What `decrease` deletes, and what it says that it deletes."""

from fleeting._errors import ProviderError
from fleeting._types import State
from fleeting.testing._harness import Harness, Trouble, Violation, answer_of, describe, without


async def check_decrease_removes_only_those_named(harness: Harness) -> None:
    """`decrease` deletes the given instances, and no others."""
    async with harness.opened() as probe:
        doomed, spared = await probe.grow(2)
        accepted = await probe.group.decrease([doomed])
        if not set(accepted) <= {doomed}:
            raise Violation("decrease returns those of its arguments that it accepted", f"{list(accepted)}")
        await probe.remove([doomed])
        await probe.rest(harness.settle)
        shown = await probe.shown()
        if {*probe.found, spared} - shown.keys() or shown[spared].state is not State.RUNNING:
            clause = "decrease deletes the named instances, and no others"
            raise Violation(clause, f"of {doomed} and {spared} the first was named; left are {describe(shown)}")


async def check_decrease_accepts_what_is_gone(harness: Harness) -> None:
    """`decrease` accepts ids that are gone or were never known: they do not exist, as requested."""
    async with harness.opened() as probe:
        (gone,) = await probe.grow(1)
        await probe.remove([gone])
        for instance in (gone, harness.unknown_id):
            clause = "decrease accepts an instance that is already gone"
            try:
                accepted = await probe.group.decrease([instance])
            except ProviderError as error:
                raise Violation(clause, f"decrease([{instance!r}]) raised {error!r}") from error
            if list(accepted) != [instance]:
                raise Violation(clause, f"decrease([{instance!r}]) returned {list(accepted)}")


async def check_decrease_goes_on_past_what_is_gone(harness: Harness) -> None:
    """If one of several instances is already gone, the others are still deleted."""
    async with harness.opened() as probe:
        gone, alive = await probe.grow(2)
        await probe.remove([gone])
        answer = await answer_of(probe.group.decrease([gone, alive]))
        clause = "decrease accepts an instance that is gone, and still deletes the others"
        if answer.error is not None or set(answer.value) != {gone, alive}:
            raise Violation(clause, f"{gone} was gone, and decrease([{gone!r}, {alive!r}]) {answer}") from answer.error
        await probe.until(clause, lambda shown: alive not in shown)


async def check_refused_deletion_is_reported(harness: Harness) -> None:
    """An instance that the cloud refuses to delete is not among those that `decrease` returns."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        async with harness.trouble(Trouble.PROTECTED):
            answer = await answer_of(probe.group.decrease([instance]))
        refused = isinstance(answer.error, ProviderError) or (answer.error is None and not list(answer.value))
        if not refused:
            clause = "decrease returns only those whose deletion the cloud accepted, or raises a ProviderError"
            raise Violation(clause, f"the cloud refused to delete {instance}, and decrease {answer}") from answer.error
        await probe.remove([instance])


async def check_decrease_removes_what_does_not_run(harness: Harness) -> None:
    """An instance that is still being created, or has failed, is deleted like any other."""
    async with harness.opened() as probe:
        await probe.increase(1)
        shown = await probe.until("a requested instance appears", lambda shown: shown.keys() > probe.found.keys())
        await probe.remove(list(without(shown, probe.found)))
        if harness.set_state is not None:
            for written in (
                written for written, meant in harness.states.items() if meant in {State.CREATING, State.FAILED}
            ):
                (instance,) = await probe.grow(1)
                await harness.set_state(instance, written)
                await probe.remove([instance])
