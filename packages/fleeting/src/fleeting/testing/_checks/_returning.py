"""What changes, and changes back."""

from contextlib import suppress

from fleeting._errors import ProviderError
from fleeting._types import ProblemKind, State
from fleeting.testing._harness import Answer, Harness, NotApplicable, Probe, Trouble, Violation, answer_of, new_intent

LASTING = {State.DELETING, State.DELETED}
"""States from which no cloud returns an instance."""

KINDS = {Trouble.STOCK_OUT: ProblemKind.CAPACITY, Trouble.QUOTA: ProblemKind.QUOTA}
"""Troubles that may show as problems, and of which kind."""


async def check_states_change_back(harness: Harness) -> None:
    """An instance that recovers is shown as running, is healthy, and can be connected to."""
    set_state = harness.need(harness.set_state, "set_state", "makes the cloud show an instance in a state")
    states = harness.need(harness.states or None, "states", "names every state of the cloud's and what it means")
    running = next((written for written, meant in states.items() if meant is State.RUNNING), None)
    if running is None:
        raise NotApplicable("none of the cloud's states means that an instance runs")
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        for written in (written for written, meant in states.items() if meant not in LASTING):
            await set_state(instance, written)
            for call in probe.reads(instance).values():
                await answer_of(call())
            await set_state(instance, running)
            await _is_well_again(probe, instance, f"the cloud wrote {written!r}, then {running!r}")


async def _is_well_again(probe: Probe, instance: str, seen: str) -> None:
    """Raise unless every call finds the instance running."""
    clause = "an instance that runs again is shown and treated as running"
    for name, call in probe.reads(instance).items():
        answer = await answer_of(call())
        state = _state_in(answer, instance) if name == "update" else State.RUNNING
        if answer.error is not None or state is not State.RUNNING:
            came = f"{name} {answer}" if answer.error else f"update shows {instance} as {state}"
            raise Violation(clause, f"{seen}; {came}") from answer.error


def _state_in(answer: Answer, instance: str) -> State | None:
    """The state that a view shows."""
    shown = answer.value.instances.get(instance) if answer.error is None else None
    return shown.state if shown is not None else None


async def check_problems_end(harness: Harness) -> None:
    """A problem that is over leaves the view as soon as instances come again."""
    kinds = [kind for kind in KINDS if kind in harness.troubles]
    if not kinds:
        harness.trouble(Trouble.STOCK_OUT)
    for kind in kinds:
        async with harness.opened() as probe:
            async with harness.trouble(kind):
                answer = await answer_of(probe.group.increase(1, intent=new_intent()))
                with suppress(ProviderError):
                    await probe.group.update()
            if answer.error is None:  # it may come now
                await probe.rest(harness.settle)
                await probe.until("what was accepted comes once the trouble is over", lambda _: True)
            await probe.grow(1)
            await _no_problem(probe, kind)


async def _no_problem(probe: Probe, kind: Trouble) -> None:
    """Look until the view has no such problem, as long as the harness's deadline."""
    clock = probe.harness.settings.clock
    end = clock.now() + probe.harness.deadline
    while left := [each for each in (await probe.group.update()).problems if each.kind is KINDS[kind]]:
        if clock.now() >= end:
            clause = "a problem that is over no longer appears in update"
            seen = f"the cloud no longer {kind.value}, and an instance has appeared; "
            raise Violation(clause, f"{seen}after {probe.harness.deadline:g} s update still has {left[0]}")
        await probe.rest(probe.harness.poll)
