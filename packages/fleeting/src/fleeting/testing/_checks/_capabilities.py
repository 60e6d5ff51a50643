"""What only some groups can do."""

from collections.abc import AsyncGenerator

import anyio

from fleeting._protocols import GivesNotice, Withdraws
from fleeting._types import Capability, Notice, State
from fleeting.testing._harness import Harness, Probe, Trouble, Violation, answer_of, describe, new_intent


async def check_withdraw_spares_instances(harness: Harness) -> None:
    """With `WITHDRAW`, taking requests back never touches an instance that exists."""
    async with harness.opened() as probe:
        probe.needs(Capability.WITHDRAW)
        (instance,) = await probe.grow(1)
        taken = await probe.group.withdraw(3) if isinstance(probe.group, Withdraws) else 0
        if taken != 0:
            raise Violation("withdraw returns how many were taken back", f"none was open, it returned {taken!r}")
        await probe.rest(harness.settle)
        shown = await probe.shown()
        if instance not in shown or shown[instance].state is not State.RUNNING:
            clause = "withdraw never touches an instance that exists"
            raise Violation(clause, f"{instance} was running; left are {describe(shown)}")


async def check_withdraw_takes_requests_back(harness: Harness) -> None:
    """With `WITHDRAW`, what was asked for and has not come can be taken back, and then does not come."""
    async with harness.opened() as probe:
        probe.needs(Capability.WITHDRAW)
        async with harness.trouble(Trouble.STOCK_OUT):
            asked = (await answer_of(probe.group.increase(2, intent=new_intent()))).value or 0
            taken = await probe.group.withdraw(2) if isinstance(probe.group, Withdraws) else 0
        await probe.rest(harness.settle)
        added = await probe.added()
        if len(added) > asked - taken:
            seen = f"of {asked} accepted, {taken} were taken back, and then came {describe(added)}"
            raise Violation("withdraw returns how many were taken back, and those do not come", seen)


async def check_notices_come(harness: Harness) -> None:
    """With `NOTICES`, an announcement of the cloud's is passed on, for its instance, with a deadline to come."""
    async with harness.opened() as probe:
        probe.needs(Capability.NOTICES)
        announce = harness.need(harness.notice, "notice", "makes the cloud announce that an instance will go")
        (instance,) = await probe.grow(1)
        announced = harness.settings.clock.now()
        await announce(instance)
        heard = await _first_notice(probe)
        if heard is None or heard.instance != instance or not heard.deadline > announced:
            clause = "notices passes on which instance goes, and when, in seconds since the epoch"
            raise Violation(clause, f"{instance} was announced at {announced:.0f}, heard was {heard}")


async def _first_notice(probe: Probe) -> Notice | None:
    """Listen for as long as a notice may take."""
    if not isinstance(probe.group, GivesNotice):
        return None
    notices = probe.group.notices()
    try:
        with anyio.move_on_after(probe.harness.deadline):
            return await anext(notices)
    finally:
        if isinstance(notices, AsyncGenerator):
            await notices.aclose()
    return None
