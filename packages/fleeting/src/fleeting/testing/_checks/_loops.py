"""Event loops come and go: a program may run one after the other, or two at once in two threads."""

from functools import partial

import anyio
from anyio import to_thread
from attrs import evolve

from fleeting._clock import LoopClock
from fleeting._protocols import InstanceGroup
from fleeting.testing._harness import Answer, Harness, Violation, answer_of, answers_at_once


async def check_groups_work_in_any_event_loop(harness: Harness) -> None:
    """A group can be created without an event loop and opened in any: it shares nothing tied to the first one."""
    loops = harness.need(harness.loops or None, "loops", "names the backends on which a second event loop can run")
    async with harness.opened() as probe:
        await probe.shown()
        for backend in (*loops, *loops[:1]):
            answer: Answer = await to_thread.run_sync(partial(_in_another, harness, backend))
            if answer.error is not None:
                clause = "a group works in any event loop that opens it, one after another"
                seen = f"in another event loop, on {backend}, it {answer}"
                raise Violation(clause, seen) from answer.error
        after = await answers_at_once({"update": probe.group.update}, harness.patience)
        if (answer_here := after["update"]) is None or answer_here.error is not None:
            clause = "a group works while others open in other event loops"
            seen = (
                f"after others opened, update {answer_here}"
                if answer_here
                else "after others opened, update did not end"
            )
            raise Violation(clause, seen)


def _in_another(harness: Harness, backend: str) -> Answer:
    """Make a group, here where no event loop runs, and open it in one of its own."""
    try:
        group = harness.make()
        return anyio.run(_use, harness, group, backend=backend)
    except Exception as error:  # noqa: BLE001  (what a plugin may raise is what is being checked)
        return Answer(error=error)


async def _use(harness: Harness, group: InstanceGroup) -> Answer:
    """Open a group, ask it twice at once, and close it."""
    opened = await answer_of(group.init(evolve(harness.settings, clock=LoopClock(), observe_only=True)))
    if opened.error is not None:
        return opened
    try:
        answers = await answers_at_once({"update": group.update, "update again": group.update}, harness.patience)
    finally:
        closed = await answer_of(group.shutdown())
    for answer in (*answers.values(), closed):
        if answer is None:
            return Answer(error=TimeoutError(f"update had not ended after {harness.patience:g} s"))
        if answer.error is not None:
            return answer
    return Answer()
