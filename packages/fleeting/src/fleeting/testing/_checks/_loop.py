"""The event loop belongs to everybody: who waits lets the others run."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial

import anyio
from attrs import evolve

from fleeting.testing._blocking import held_up
from fleeting.testing._harness import Call, Harness, Trouble, Violation, new_intent

IN_TURN = ("suspend", "resume")
"""Calls after which others would find less to do."""


async def check_nothing_blocks_the_event_loop(harness: Harness) -> None:
    """No method blocks: a blocking SDK goes through `Offload`."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        group, extras = probe.group, probe.extras(instance)
        in_turn: dict[str, Call] = {name: extras[name] for name in IN_TURN if name in extras}
        in_turn["decrease"] = partial(group.decrease, [instance])
        at_once: dict[str, Call] = {
            **probe.reads(instance),
            **{name: call for name, call in extras.items() if name not in in_turn},
            "increase": lambda: group.increase(1, intent=new_intent()),
            "init and shutdown": partial(_open_and_close, harness),
        }
        async with AsyncExitStack() as slow:
            if Trouble.SLOW in harness.troubles:
                await slow.enter_async_context(harness.trouble(Trouble.SLOW))
            await _judge(at_once)
            for name, call in in_turn.items():
                await _judge({name: call})
        await probe.rest(harness.settle)  # so that all that comes is there to be deleted


async def _open_and_close(harness: Harness) -> None:
    """Do both, with an object of its own."""
    group = harness.make()
    await group.init(evolve(harness.settings, observe_only=True))
    await group.shutdown()


async def _judge(calls: Mapping[str, Call]) -> None:
    """Raise if a call holds up the event loop, beside the others and then alone: a first call may import something."""
    suspects: list[str] = []

    async def watch(name: str, call: Call) -> None:
        if await held_up(call()):
            suspects.append(name)

    async with anyio.create_task_group() as tasks:
        for name, call in calls.items():
            tasks.start_soon(watch, name, call)
    for name in suspects:
        if seen := await held_up(calls[name]()):
            raise Violation("no method blocks the event loop", f"in {name}, {seen}")
