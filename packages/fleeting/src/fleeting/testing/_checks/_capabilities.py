"""What only some groups can do."""

import re
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable

import anyio

from fleeting._protocols import GivesNotice, Withdraws
from fleeting._types import Capability, Completed, Notice, NoticeKind, State
from fleeting.testing._harness import (
    Harness,
    NotApplicable,
    Probe,
    Trouble,
    Violation,
    answer_of,
    describe,
    new_intent,
)

NOTICE = re.compile(rf"({'|'.join(kind.value for kind in NoticeKind)}) \d+(\.\d+)?")
"""A line of a probe's."""

PROBE_TIME = 5.0
"""Seconds within which a probe ends."""


async def check_withdraw_spares_instances(harness: Harness) -> None:
    """With `WITHDRAW`, withdrawing requests never touches an existing instance."""
    async with harness.opened() as probe:
        probe.needs(Capability.WITHDRAW)
        (instance,) = await probe.grow(1)
        taken = await probe.group.withdraw(3) if isinstance(probe.group, Withdraws) else 0
        if taken != 0:
            raise Violation(
                "withdraw returns how many requests it withdrew", f"no request was open, and it returned {taken!r}"
            )
        await probe.rest(harness.settle)
        shown = await probe.shown()
        if instance not in shown or shown[instance].state is not State.RUNNING:
            clause = "withdraw never touches an instance that exists"
            raise Violation(clause, f"{instance} was running; left are {describe(shown)}")


async def check_withdraw_takes_requests_back(harness: Harness) -> None:
    """With `WITHDRAW`, unfilled requests can be withdrawn, and are then never filled."""
    async with harness.opened() as probe:
        probe.needs(Capability.WITHDRAW)
        async with harness.trouble(Trouble.STOCK_OUT):
            asked = (await answer_of(probe.group.increase(2, intent=new_intent()))).value or 0
            taken = await probe.group.withdraw(2) if isinstance(probe.group, Withdraws) else 0
        await probe.rest(harness.settle)
        added = await probe.added()
        if len(added) > asked - taken:
            seen = f"of {asked} accepted, {taken} were withdrawn, and then {describe(added)} appeared"
            raise Violation("withdraw returns how many requests it withdrew, and those instances do not appear", seen)


async def check_notices_come(harness: Harness) -> None:
    """With `NOTICES`, the cloud's announcements are passed on, with their instance and a future deadline."""
    async with harness.opened() as probe:
        probe.needs(Capability.NOTICES)
        if not isinstance(probe.group, GivesNotice):
            raise NotApplicable("the group's notices come from the instance")
        announce = harness.need(harness.notice, "notice", "makes the cloud announce that an instance will go")
        notices = probe.group.notices()
        try:
            for instance in await probe.grow(2):
                announced = harness.settings.clock.now()
                await announce(instance)
                heard = await _next_notice(notices, harness.deadline)
                if heard is None or heard.instance != instance or not heard.deadline > announced:
                    clause = "notices yields which instance goes and when, in seconds since the epoch, and continues"
                    raise Violation(
                        clause, f"{instance} was announced for {announced:.0f}, and notices yielded {heard}"
                    )
        finally:
            if isinstance(notices, AsyncGenerator):
                await notices.aclose()


async def check_notice_probe_is_a_command(harness: Harness) -> None:
    """A `notice_probe` is a command line for a POSIX shell, of a group that claims `NOTICES`."""
    async with harness.opened() as probe:
        command = _probe_of(probe)
    if Capability.NOTICES not in probe.info.capabilities:
        raise Violation(
            "a group with a notice_probe claims NOTICES; otherwise the probe never runs", "it does not claim it"
        )
    if not command.strip() or "\0" in command:
        raise Violation("notice_probe is a shell command, or None", f"it is {command!r}")
    if complaint := _complaint_about(command):
        raise Violation("notice_probe is a command line for a POSIX shell", f"the shell says: {complaint}")


async def check_notice_probe_prints_notices(harness: Harness) -> None:
    """A `notice_probe` prints announcements as lines such as ``preemption 112``, and otherwise nothing."""
    async with harness.opened() as probe:
        _probe_of(probe)
        announce = harness.need(harness.notice, "notice", "makes the cloud announce that an instance will go")
        probed = harness.need(harness.probed, "probed", "runs the group's notice_probe as on an instance")
        (instance,) = await probe.grow(1)
        clause = "notice_probe prints a line KIND SECONDS for each notice, and nothing else"
        if lines := await _printed(probed(instance)):
            raise Violation(clause, f"nothing was announced, and it printed {lines}")
        await announce(instance)
        if not (lines := await _printed(probed(instance))) or not all(map(NOTICE.fullmatch, lines)):
            raise Violation(clause, f"the end of {instance} was announced, and it printed {lines}")


def _complaint_about(command: str) -> str:
    """What a shell says that reads the command and does not run it; empty if it understands."""
    read = subprocess.run(["/bin/sh", "-n"], input=command.encode(), capture_output=True, check=False)
    return read.stderr.decode(errors="replace").strip() if read.returncode else ""


def _probe_of(probe: Probe) -> str:
    """The command; ends the check if there is none."""
    if probe.info.notice_probe is None:
        raise NotApplicable("the group has no notice_probe")
    return probe.info.notice_probe


async def _printed(probed: Awaitable[Completed]) -> list[str]:
    """The lines that the probe prints."""
    printed = None
    with anyio.move_on_after(PROBE_TIME):
        printed = await probed
    if printed is None or not printed.ok:
        clause = f"notice_probe exits with 0 within {PROBE_TIME:g} s, whether or not anything is announced"
        raise Violation(clause, "it did not end in time" if printed is None else f"it {printed.outcome}")
    return printed.stdout.decode(errors="replace").splitlines()


async def _next_notice(notices: AsyncIterator[Notice], patience: float) -> Notice | None:
    """Listen for as long as a notice may take."""
    with anyio.move_on_after(patience):
        return await anext(notices, None)
    return None
