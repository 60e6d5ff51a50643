"""The contract of an instance group, as checks that anybody's group can be put through.

Each check is a function that takes a `Harness` of its own and returns, raises `Violation`, or raises
`NotApplicable`. They need three instances at once, or as many as a small group can hold, and delete what they made.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from fleeting._errors import InstanceNotFound, ProviderError, Unsupported
from fleeting._protocols import GivesNotice, Withdraws
from fleeting._types import SUPPORTED_INTERFACE_VERSIONS, Capability, State
from fleeting.testing._harness import Harness, NotApplicable, Violation, describe, fails, new_intent, without
from fleeting.testing._interrupt import interrupted

Check = Callable[[Harness], Awaitable[None]]

MAX_SIZE = 8
"""The largest group that is filled up to see what it does when it is full."""

MAX_AWAITS = 20
"""How many awaits of one `increase` are tried with a cancellation."""


async def check_init_tells_what_the_group_is(harness: Harness) -> None:
    """`init` names the cloud resource and an interface version that is supported."""
    async with harness.opened() as probe:
        info = probe.info
    if not info.identity:
        raise Violation("identity is the cloud resource itself", f"identity {info.identity!r}")
    if info.interface_version not in SUPPORTED_INTERFACE_VERSIONS:
        versions = " or ".join(map(str, SUPPORTED_INTERFACE_VERSIONS))
        raise Violation(f"the interface version is {versions}", f"interface_version {info.interface_version!r}")
    if info.max_size is not None and info.max_size < 0:
        raise Violation("max_size is the cloud's own ceiling, or None", f"max_size {info.max_size!r}")


async def check_claimed_capabilities_have_their_methods(harness: Harness) -> None:
    """Who claims a capability has the methods that it stands for."""
    async with harness.opened() as probe:
        for capability, methods in ((Capability.WITHDRAW, Withdraws), (Capability.NOTICES, GivesNotice)):
            if capability in probe.info.capabilities and not isinstance(probe.group, methods):
                clause = f"a group that claims {capability.name} has the methods of {methods.__name__}"
                raise Violation(clause, f"{type(probe.group).__name__} lacks them")


async def check_identity_is_the_resource(harness: Harness) -> None:
    """A second object for the same resource has the same identity, on which the manager's lock is taken."""
    async with harness.opened() as one:
        pass
    async with harness.opened() as other:
        pass
    if one.info.identity != other.info.identity:
        seen = f"{one.info.identity!r}, then {other.info.identity!r}"
        raise Violation("identity is the cloud resource itself, the same each time it is opened", seen)


async def check_first_view_is_complete(harness: Harness) -> None:
    """Right after `init` the view is whole: nothing is missing from it that a later one shows."""
    clause = "update shows every instance of the group, whatever its state and whoever made it"
    async with harness.opened() as probe:
        first = probe.found
        if harness.alive is not None and (unseen := set(await harness.alive()) - first.keys()):
            raise Violation(clause, f"the first view lacks {sorted(unseen)}")
        await probe.rest(harness.settle)
        later = await probe.shown()
        if first.keys() != later.keys():
            raise Violation(clause, f"first {describe(first)}; later, with nothing asked, {describe(later)}")


async def check_increase_brings_what_it_accepted(harness: Harness) -> None:
    """What `increase` accepted appears, is of a known state, comes to run, and there is no more of it."""
    async with harness.opened() as probe:
        new = await probe.grow(2)
        await probe.rest(harness.settle)
        added = await probe.added()
        if len(added) != len(new) or len(new) != 2:  # noqa: PLR2004  (asked for above)
            raise Violation("increase adds as many instances as it accepted", f"accepted 2, got {describe(added)}")
        if strange := [each.state for each in added.values() if each.state not in set(State)]:
            raise Violation("the state of an instance is a State", f"{strange[0]!r}")


async def check_named_create_is_idempotent(harness: Harness) -> None:
    """With `NAMED_CREATE`, asking again under the same intent brings nothing new."""
    async with harness.opened() as probe:
        probe.needs(Capability.NAMED_CREATE)
        intent = new_intent()
        await probe.grow(1, intent)
        again = await probe.group.increase(1, intent=intent)
        await probe.rest(harness.settle)
        added = await probe.added()
        if again != 1 or len(added) != 1:
            clause = "a repeat with the same intent asks for nothing new, and is answered as the first was"
            raise Violation(clause, f"the repeat returned {again}, the view has {describe(added)}")


async def check_named_create_carries_the_intent(harness: Harness) -> None:
    """With `NAMED_CREATE`, every instance carries the intent that asked for it."""
    async with harness.opened() as probe:
        probe.needs(Capability.NAMED_CREATE)
        for intent in (new_intent(), new_intent()):
            (instance,) = await probe.grow(1, intent)
            carried = (await probe.shown())[instance].intent
            if carried != intent:
                raise Violation("instances carry the intent", f"asked under {intent}, {instance} carries {carried}")


async def check_increase_stops_at_max_size(harness: Harness) -> None:
    """Beyond the cloud's ceiling, `increase` accepts a part."""
    async with harness.opened() as probe:
        limit = probe.info.max_size
        if limit is None or limit > MAX_SIZE:
            raise NotApplicable(f"the group has no max_size of at most {MAX_SIZE}")
        room = limit - len(probe.found)
        accepted = await probe.increase(room + 1)
        await probe.rest(harness.settle)
        shown = await probe.shown()
        if accepted != room or len(shown) > limit:
            clause = f"increase beyond max_size {limit} accepts what there is room for"
            raise Violation(clause, f"room for {room}, accepted {accepted}, the view has {describe(shown)}")


async def check_decrease_removes_only_those_named(harness: Harness) -> None:
    """`decrease` deletes the instances that it is given, and leaves all others alone."""
    async with harness.opened() as probe:
        doomed, spared = await probe.grow(2)
        accepted = await probe.group.decrease([doomed])
        if not set(accepted) <= {doomed}:
            raise Violation("decrease returns those of its arguments that it accepted", f"{list(accepted)}")
        await probe.remove([doomed])
        await probe.rest(harness.settle)
        shown = await probe.shown()
        if {*probe.found, spared} - shown.keys() or shown[spared].state is not State.RUNNING:
            clause = "decrease deletes these, and no others"
            raise Violation(clause, f"of {doomed} and {spared} the first was named; left are {describe(shown)}")


async def check_decrease_accepts_what_is_gone(harness: Harness) -> None:
    """`decrease` accepts ids that are gone or were never known: they are not there, as asked."""
    async with harness.opened() as probe:
        (gone,) = await probe.grow(1)
        await probe.remove([gone])
        for instance in (gone, harness.unknown_id):
            clause = "decrease accepts an instance that is already gone"
            try:
                accepted = await probe.group.decrease([instance])
            except ProviderError as error:
                raise Violation(clause, f"decrease([{instance!r}]) raised {error!r}") from error
            if list(accepted) != [instance]:
                raise Violation(clause, f"decrease([{instance!r}]) returned {list(accepted)}")


async def check_ids_are_never_reused(harness: Harness) -> None:
    """An id stands for one instance, for ever."""
    async with harness.opened() as probe:
        used = set(probe.found)
        for _ in range(3):
            new = await probe.grow(1)
            if reused := used & set(new):
                raise Violation("instance ids are never reused", f"{sorted(reused)} came back for a new instance")
            used |= set(new)
            await probe.remove(new)


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


async def check_connect_info_hides_secrets(harness: Harness) -> None:
    """Nothing secret is in the `repr` of connection details, which find their way into logs."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        info = await probe.group.connect_info(instance)
        secrets = {"password": info.password, "key": info.key}
        if shown := [name for name, secret in secrets.items() if secret and secret in repr(info)]:
            raise Violation("secrets stay out of the repr of ConnectInfo", f"its repr shows the {shown[0]}")


async def check_connect_info_knows_what_is_gone(harness: Harness) -> None:
    """`connect_info` raises `InstanceNotFound` for an instance that is gone or was never known."""
    async with harness.opened() as probe:
        (gone,) = await probe.grow(1)
        await probe.remove([gone])
        for instance in (gone, harness.unknown_id):
            error = await fails(probe.group.connect_info(instance))
            if not isinstance(error, InstanceNotFound):
                clause = "connect_info raises InstanceNotFound for an instance that is gone"
                raise Violation(clause, f"connect_info({instance!r}) raised {error!r}")


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
        instance = await _killed(harness, *await probe.grow(1))
        end = clock.now() + harness.deadline
        while not await fails(probe.group.heartbeat(instance)):
            if clock.now() >= end:
                clause = "heartbeat raises for an instance that is dead"
                raise Violation(clause, f"{harness.deadline:g} s after its end it still returns")
            await probe.rest(harness.poll)


async def check_update_notices_death(harness: Harness) -> None:
    """An instance that has died is soon shown as deleted or failed, or not at all; others are untouched."""
    async with harness.opened() as probe:
        victim, survivor = await probe.grow(2)
        await _killed(harness, victim)
        shown = await probe.until(
            "an instance that died is deleted, failed or absent in update",
            lambda shown: victim not in shown or shown[victim].state is State.FAILED,
        )
        if survivor not in shown or shown[survivor].state is not State.RUNNING:
            raise Violation("the death of one instance changes no other", f"left are {describe(shown)}")


async def check_cancelled_increase_leaves_no_trace(harness: Harness) -> None:
    """Wherever `increase` is cancelled, `update` shows what came of it."""
    clause = "cancelling a call leaves nothing that update would not show"
    async with harness.opened() as probe:
        for number in range(1, MAX_AWAITS + 1):
            before = await probe.added()
            came_so_far = True
            with suppress(ProviderError):
                came_so_far = await interrupted(probe.group.increase(1, intent=new_intent()), at=number)
            await probe.rest(harness.settle)
            added = await probe.added()
            if len(without(added, before)) > 1:
                raise Violation(clause, f"one was asked for and cancelled, then came {describe(added)}")
            if harness.alive is not None and (unseen := set(await harness.alive()) - {*added, *probe.found}):
                raise Violation(clause, f"cancelled at its await {number}, it left {sorted(unseen)} behind")
            await probe.remove(list(added))
            if not came_so_far:
                break


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


async def check_observing_changes_nothing(harness: Harness) -> None:
    """Opened to observe only, a group sees what its manager sees, at the same time, and refuses every change."""
    async with harness.opened() as probe:
        new = await probe.grow(1)
        async with harness.opened(keep=True, observe_only=True) as observer:
            if observer.found.keys() != (shown := await probe.shown()).keys():
                seen = f"the manager sees {describe(shown)}, the observer {describe(observer.found)}"
                raise Violation("who observes sees what the manager sees", seen)
            group = observer.group
            for change in (partial(group.increase, 1, intent=new_intent()), partial(group.decrease, new)):
                with suppress(Unsupported):
                    answer = await change()
                    clause = "what asks for a change raises Unsupported in a group that is opened to observe only"
                    raise Violation(clause, f"a change was asked for, and answered with {answer!r}")
        await probe.rest(harness.settle)
        added = await probe.added()
        if list(added) != new or added[new[0]].state is not State.RUNNING:
            raise Violation("who observes changes nothing", f"{new[0]} was running; left are {describe(added)}")


async def _killed(harness: Harness, instance: str) -> str:
    """Kill the instance, if the harness can."""
    if harness.kill is None:
        raise NotApplicable("the harness has no kill")
    await harness.kill(instance)
    return instance


CHECKS: tuple[Check, ...] = (
    check_init_tells_what_the_group_is,
    check_claimed_capabilities_have_their_methods,
    check_identity_is_the_resource,
    check_first_view_is_complete,
    check_increase_brings_what_it_accepted,
    check_named_create_is_idempotent,
    check_named_create_carries_the_intent,
    check_increase_stops_at_max_size,
    check_decrease_removes_only_those_named,
    check_decrease_accepts_what_is_gone,
    check_ids_are_never_reused,
    check_connect_info_is_complete,
    check_connect_info_hides_secrets,
    check_connect_info_knows_what_is_gone,
    check_heartbeat_tells_health,
    check_heartbeat_notices_death,
    check_update_notices_death,
    check_cancelled_increase_leaves_no_trace,
    check_shutdown_leaves_instances,
    check_withdraw_spares_instances,
    check_observing_changes_nothing,
)
"""Every check, in the order in which a new group is best made to pass them."""
