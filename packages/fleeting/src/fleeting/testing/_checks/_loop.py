"""The event loop belongs to everybody: who waits lets the others run."""

from contextlib import AsyncExitStack
from functools import partial

from fleeting.testing._blocking import held_up
from fleeting.testing._harness import Call, Harness, Trouble, Violation, new_intent


async def check_nothing_blocks_the_event_loop(harness: Harness) -> None:
    """No method waits for anything but with `await`: a blocking SDK goes through `Offload`."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        group = probe.group
        calls: dict[str, Call] = {
            "update": group.update,
            "connect_info": partial(group.connect_info, instance),
            "heartbeat": partial(group.heartbeat, instance),
            **probe.extras(instance),
            "increase": lambda: group.increase(1, intent=new_intent()),
            "decrease": partial(group.decrease, [instance]),
        }
        async with AsyncExitStack() as slow:
            if Trouble.SLOW in harness.troubles:
                await slow.enter_async_context(harness.trouble(Trouble.SLOW))
            for name, call in calls.items():
                await _judge(name, call)
        await probe.rest(harness.settle)  # so that all that comes is there to be deleted
    other = harness.make()
    await _judge("init", partial(other.init, harness.settings))
    await _judge("shutdown", other.shutdown)


async def _judge(name: str, call: Call) -> None:
    """Raise if the call holds up the event loop, and not only once: a first call may import something."""
    twice = name not in {"init", "shutdown"}
    if (seen := await held_up(call())) and (not twice or (seen := await held_up(call()))):
        raise Violation("no method blocks the event loop", f"in {name}, {seen}")
