"""What stays when a group is closed, and what must not."""

import anyio

from fleeting._types import State
from fleeting.testing._harness import Harness, NotOpened, Trouble, Violation, answer_of, describe
from fleeting.testing._holdings import Holdings, released, settled
from fleeting.testing._interrupt import MAX_AWAITS, interrupted


async def check_shutdown_leaves_instances(harness: Harness) -> None:
    """`shutdown` closes only this side; the instances stay, and the next opening of the group shows them."""
    async with harness.opened(keep=True) as first:
        (instance,) = await first.grow(1)
    async with harness.opened() as second:
        shown = second.found.copy()
        second.found.pop(instance, None)  # so that it is deleted in the end
        if instance not in shown or shown[instance].state is not State.RUNNING:
            clause = "instances stay after shutdown, and another object for the group sees them"
            raise Violation(clause, f"{instance} was running; left are {describe(shown)}")


async def check_cancelled_init_takes_nothing(harness: Harness) -> None:
    """If `init` is cancelled anywhere, or fails, nothing stays open or locked, and it can be called again."""
    async with harness.opened():
        pass  # what is made once per process, such as an import's, is made now
    before = await settled(harness)
    for number in range(1, MAX_AWAITS + 1):
        came_so_far = await _cancelled_opening(harness, number)
        clause = "a cancelled init releases what it acquired, because nobody will call shutdown"
        try:
            async with harness.opened():
                pass
        except NotOpened as error:
            seen = f"after a cancellation at await {number}, another object's {error.seen}"
            raise Violation(clause, seen) from error.__cause__
        await released(harness, before, clause)
        if not came_so_far:
            break
    if Trouble.ERROR in harness.troubles:
        await _failing_opening(harness, before)


async def _failing_opening(harness: Harness, before: Holdings) -> None:
    """Open a group while the cloud fails, and look at what it holds as long as it lives: the collector hides leaks."""
    group = harness.make()
    async with harness.trouble(Trouble.ERROR):
        answer = await answer_of(group.init(harness.settings))
    if answer.error is None:
        await group.shutdown()
    await released(harness, before, "an init that fails releases what it took; nobody will call shutdown")


async def _cancelled_opening(harness: Harness, number: int) -> bool:
    """Cancel an init at that await, and close the group if it ended well even so; returns whether it came so far."""
    group = harness.make()

    async def open_and_close() -> None:
        await group.init(harness.settings)
        with anyio.CancelScope(shield=True):
            await group.shutdown()

    return await interrupted(open_and_close(), at=number)


async def check_shutdown_releases_what_was_taken(harness: Harness) -> None:
    """`shutdown` ends, and after it no connection, file, task or thread of the group is left."""
    async with harness.opened():
        pass  # what is made once per process, such as an import's, is made now
    before = await settled(harness)
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        await probe.group.connect_info(instance)
        await probe.group.heartbeat(instance)
    clause = "shutdown releases what init and later calls acquired in this process"
    await released(harness, before, clause, spared=("child process",))  # an instance may be one, and outlives the group
