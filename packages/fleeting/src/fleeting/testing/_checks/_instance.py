"""One instance: how to connect to it, whether it is well."""

from fleeting._errors import InstanceNotFound
from fleeting.testing._harness import Harness, Violation, answer_of, fails


async def check_connect_info_is_complete(harness: Harness) -> None:
    """`connect_info` of a running instance tells all that a connector needs."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        info = await probe.group.connect_info(instance)
        if info.id != instance:
            raise Violation("connect_info is of the instance asked about", f"asked {instance}, got {info.id}")
        parts = {
            "a protocol": info.protocol,
            "an address": info.internal_addr or info.external_addr,
            "an os": info.os,
            "an arch": info.arch,
        }
        if missing := [part for part, value in parts.items() if not value]:
            raise Violation(f"connect_info has {', '.join(parts)}", f"it lacks {', '.join(missing)}: {info!r}")


async def check_connect_info_knows_what_is_gone(harness: Harness) -> None:
    """`connect_info` raises `InstanceNotFound` for an instance that is gone or was never known."""
    async with harness.opened() as probe:
        (gone,) = await probe.grow(1)
        await probe.remove([gone])
        for instance in (gone, harness.unknown_id):
            answer = await answer_of(probe.group.connect_info(instance))
            if not isinstance(answer.error, InstanceNotFound):
                clause = "connect_info raises InstanceNotFound for an instance that is gone"
                raise Violation(clause, f"connect_info({instance!r}) {answer}")


async def check_heartbeat_tells_health(harness: Harness) -> None:
    """`heartbeat` passes for a running instance, and raises for an unknown one."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        if error := await fails(probe.group.heartbeat(instance)):
            raise Violation("heartbeat returns if the instance is healthy", f"{instance} runs, yet {error!r}")
        if not await fails(probe.group.heartbeat(harness.unknown_id)):
            clause = "heartbeat raises a ProviderError for an instance that is not there"
            raise Violation(clause, f"heartbeat({harness.unknown_id!r}) returned")


async def check_heartbeat_notices_death(harness: Harness) -> None:
    """`heartbeat` raises for an instance that has died."""
    async with harness.opened() as probe:
        clock = harness.settings.clock
        (instance,) = await probe.grow(1)
        await harness.end(instance)
        end = clock.now() + harness.deadline
        while not await fails(probe.group.heartbeat(instance)):
            if clock.now() >= end:
                clause = "heartbeat raises for an instance that is dead"
                raise Violation(clause, f"{harness.deadline:g} s after its end it still returns")
            await probe.rest(harness.poll)
