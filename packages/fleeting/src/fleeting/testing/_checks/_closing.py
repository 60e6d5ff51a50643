"""What stays when a group is closed, and what must not."""

from pathlib import Path

import anyio

from fleeting._types import State
from fleeting.testing._harness import Harness, Violation, describe


async def check_shutdown_leaves_instances(harness: Harness) -> None:
    """`shutdown` closes this side; the instances stay, and whoever opens the group next sees them."""
    async with harness.opened(keep=True) as first:
        (instance,) = await first.grow(1)
    async with harness.opened() as second:
        shown = second.found.copy()
        second.found.pop(instance, None)  # so that it is deleted in the end
        if instance not in shown or shown[instance].state is not State.RUNNING:
            clause = "instances stay after shutdown, and another object for the group sees them"
            raise Violation(clause, f"{instance} was running; left are {describe(shown)}")


async def check_shutdown_releases_what_was_taken(harness: Harness) -> None:
    """After `shutdown`, no connection, file or task of the group's is left open."""
    async with harness.opened():
        pass  # what is made once per process, such as an import's, is made now
    before = _held()
    clock = harness.settings.clock
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        await probe.group.connect_info(instance)
        await probe.group.heartbeat(instance)
    end = clock.now() + harness.deadline
    while left := _held() - before:
        if clock.now() >= end:
            clause = "shutdown releases what init and later calls took on this side"
            raise Violation(clause, f"left open: {', '.join(sorted(left))}")
        await probe.rest(harness.poll)


def _held() -> set[str]:
    """What this process holds open, as far as the system tells, and the tasks of the event loop."""
    tasks = {f"task {task.name or task.id}" for task in anyio.get_running_tasks()}
    return tasks | {f"file {target}" for entry in Path("/proc/self/fd").glob("*") if (target := _target(entry))}


def _target(entry: Path) -> str:
    """What a descriptor stands for; empty for the one with which we look."""
    try:
        return str(entry.readlink())
    except OSError:
        return ""
