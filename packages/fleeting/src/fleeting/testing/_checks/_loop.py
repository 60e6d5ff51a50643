"""The event loop belongs to everybody: who waits lets the others run."""

from contextlib import AsyncExitStack
from functools import partial

from attrs import evolve

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
            await _judge("init and shutdown", partial(_open_and_close, harness))
        await probe.rest(harness.settle)  # so that all that comes is there to be deleted


async def _open_and_close(harness: Harness) -> None:
    """Do both, with an object of its own."""
    group = harness.make()
    await group.init(evolve(harness.settings, observe_only=True))
    await group.shutdown()


async def _judge(name: str, call: Call) -> None:
    """Raise if the call holds up the event loop, and not only once: a first call may import something."""
    if await held_up(call()) and (seen := await held_up(call())):
        raise Violation("no method blocks the event loop", f"in {name}, {seen}")
