"""One instance: how to connect to it, whether it is well."""

from fleeting._errors import InstanceNotFound, ProviderError
from fleeting._types import ConnectInfo, State
from fleeting.testing._harness import Harness, NotApplicable, Violation, answer_of, fails


async def check_connect_info_is_complete(harness: Harness) -> None:
    """`connect_info` returns all that a connector needs; if an instance has no address yet, it raises."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        _look_through(instance, await probe.group.connect_info(instance))
        if harness.set_state is not None:
            for written in (written for written, meant in harness.states.items() if meant is State.CREATING):
                await harness.set_state(instance, written)
                answer = await answer_of(probe.group.connect_info(instance))
                if answer.error is None:
                    _look_through(instance, answer.value)
                elif not isinstance(answer.error, ProviderError) or isinstance(answer.error, InstanceNotFound):
                    clause = (
                        "connect_info raises ProviderError, not InstanceNotFound, for an instance that is not ready"
                    )
                    raise Violation(clause, f"the cloud reported {written!r}, and connect_info {answer}")


def _look_through(instance: str, info: ConnectInfo) -> None:
    """Raise unless all is there."""
    if info.id != instance:
        raise Violation("connect_info is about the requested instance", f"asked {instance}, got {info.id}")
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
        await probe.rest(harness.settle)
        for instance in (gone, harness.unknown_id):
            answer = await answer_of(probe.group.connect_info(instance))
            if not isinstance(answer.error, InstanceNotFound):
                clause = "connect_info raises InstanceNotFound for an instance that is gone"
                raise Violation(clause, f"connect_info({instance!r}) {answer}") from answer.error


async def check_heartbeat_reports_health(harness: Harness) -> None:
    """`heartbeat` passes for a running instance, and raises for an unknown one."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        if error := await fails(probe.group.heartbeat(instance)):
            raise Violation(
                "heartbeat returns if the instance is healthy", f"{instance} is running, but heartbeat raised {error!r}"
            )
        if not await fails(probe.group.heartbeat(harness.unknown_id)):
            clause = "heartbeat raises ProviderError for an instance that does not exist"
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
                raise Violation(clause, f"{harness.deadline:g} s after the instance ended, it still returns")
            await probe.rest(harness.poll)


async def check_heartbeat_notices_failure(harness: Harness) -> None:
    """`heartbeat` raises for an instance whose state at the cloud means that it has failed."""
    set_state = harness.need(harness.set_state, "set_state", "makes the cloud show an instance in a state")
    states = harness.need(harness.states or None, "states", "names every state of the cloud's and what it means")
    failed = [written for written, meant in states.items() if meant is State.FAILED]
    if not failed:
        raise NotApplicable("none of the cloud's states means that an instance has failed")
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        for written in failed:
            await set_state(instance, written)
            if not await fails(probe.group.heartbeat(instance)):
                clause = "heartbeat raises for an instance that has failed"
                raise Violation(clause, f"the cloud reported {written!r}, and heartbeat returned")
