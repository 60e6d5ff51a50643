"""A group that is opened to be looked at."""

from contextlib import suppress
from functools import partial

from fleeting._errors import Unsupported
from fleeting._types import State
from fleeting.testing._harness import Call, Harness, Violation, describe, new_intent


async def check_observing_changes_nothing(harness: Harness) -> None:
    """Opened only to observe, a group sees what its manager sees, at the same time, and refuses every change."""
    async with harness.opened() as probe:
        new = await probe.grow(1)
        async with harness.opened(keep=True, observe_only=True) as observer:
            if observer.found.keys() != (shown := await probe.shown()).keys():
                seen = f"the manager sees {describe(shown)}, the observer {describe(observer.found)}"
                raise Violation("an observer sees what the manager sees", seen)
            group = observer.group
            changes: dict[str, Call] = {
                "increase": partial(group.increase, 1, intent=new_intent()),
                "decrease": partial(group.decrease, new),
                **observer.extras(new[0]),
            }
            for name, change in changes.items():
                with suppress(Unsupported):
                    answer = await change()
                    clause = (
                        "in a group that is opened to observe only, methods that change something raise Unsupported"
                    )
                    raise Violation(clause, f"{name} returned {answer!r}")
        await probe.rest(harness.settle)
        added = await probe.added()
        if list(added) != new or added[new[0]].state is not State.RUNNING:
            raise Violation("an observer changes nothing", f"{new[0]} was running; left are {describe(added)}")


async def check_observing_sends_no_change(harness: Harness) -> None:
    """Opened only to observe, a group requests no change from the cloud, from `init` to `shutdown`."""
    writes = harness.need(harness.writes, "writes", "counts the requests that would change something at the cloud")
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        before = writes()
        async with harness.opened(keep=True, observe_only=True) as observer:
            await observer.group.connect_info(instance)
            await observer.group.heartbeat(instance)
            await observer.group.update()
        if sent := writes() - before:
            clause = "a group that is opened to observe only requests no change from the cloud"
            raise Violation(clause, f"it sent {sent} such requests")
