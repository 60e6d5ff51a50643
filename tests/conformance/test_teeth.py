"""The conformance suite bites: each check finds the faults that it is there for."""

import math
from collections.abc import AsyncIterator, Sequence
from itertools import count

import pytest
from attrs import evolve, frozen

from fleeting import (
    Capability,
    ConnectInfo,
    GroupInfo,
    InstanceNotFound,
    Notice,
    Observation,
    Observed,
    ProviderError,
    Settings,
    State,
)
from fleeting.testing import (
    CHECKS,
    Check,
    FakeCloud,
    FakeGroup,
    IncreaseFault,
    Violation,
    judge,
    name_of,
    virtual_time,
)
from tests.conformance.mutants import MUTANTS
from tests.conformance.test_fake import harness_for

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

# --- groups that are wrong, each in one way -------------------------------------------------------------


class _Nameless(FakeGroup):
    """Does not say which resource it manages."""

    async def init(self, settings: Settings) -> GroupInfo:
        return evolve(await super().init(settings), identity="")


class _Renamed(FakeGroup):
    """Is another resource each time it is opened."""

    _numbers = count()

    async def init(self, settings: Settings) -> GroupInfo:
        return evolve(await super().init(settings), identity=f"group-{next(self._numbers)}")


class _FromTheFuture(FakeGroup):
    """Was written for an interface that does not exist yet."""

    async def init(self, settings: Settings) -> GroupInfo:
        return evolve(await super().init(settings), interface_version=99)


class _BelowNothing(FakeGroup):
    """Has a ceiling that no group can keep."""

    async def init(self, settings: Settings) -> GroupInfo:
        return evolve(await super().init(settings), max_size=-1)


class _Limitless(FakeGroup):
    """Names a ceiling and does not keep to it."""

    async def init(self, settings: Settings) -> GroupInfo:
        return evolve(await super().init(settings), max_size=3)


class _Boastful(FakeGroup):
    """Claims to take requests back, and cannot."""

    withdraw = None  # type: ignore[assignment]


class _Sleepy(FakeGroup):
    """Shows nothing at first."""

    async def update(self) -> Observation:
        first = self._last_view is None
        view = await super().update()
        return Observation({}) if first else view


class _Nostalgic(FakeGroup):
    """Never stops showing what once ran."""

    async def update(self) -> Observation:
        await super().update()
        return Observation({machine: Observed(state=State.RUNNING) for machine in self.cloud.machines})


class _Forgetful(FakeGroup):
    """Takes every repeat for something new."""

    _numbers = count()

    async def increase(self, count: int, *, intent: str) -> int:
        return await super().increase(count, intent=f"{intent}-{next(self._numbers)}")


class _Leaky(FakeGroup):
    """Loses sight of what it was making when it is cancelled."""

    async def increase(self, count: int, *, intent: str) -> int:
        before = set(self.cloud.machines)
        try:
            return await super().increase(count, intent=intent)
        except BaseException:
            for instance in self.cloud.machines.keys() - before:
                self.cloud.machines[instance].shown_at = math.inf
            raise


class _Careless(FakeGroup):
    """Deletes an instance that was not named, too."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        bystanders = sorted(self.cloud.alive - set(instances))
        await super().decrease([*instances, *bystanders[:1]])
        return instances


class _Fussy(FakeGroup):
    """Will not delete what is gone."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        for instance in instances:
            if instance not in self.cloud.alive:
                raise InstanceNotFound(instance)
        return await super().decrease(instances)


class _Silent(FakeGroup):
    """Does not say that it has accepted the deletion of what is gone."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        alive = self.cloud.alive
        return [instance for instance in await super().decrease(instances) if instance in alive]


class _Homeless(FakeGroup):
    """Knows no address."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        return evolve(await super().connect_info(instance), internal_addr=None, external_addr=None)


class _Confused(FakeGroup):
    """Gives the details of another instance."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        return evolve(await super().connect_info(instance), id="another")


class _Indiscreet(FakeGroup):
    """Puts a secret where it can be seen."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        info = await super().connect_info(instance)
        return evolve(info, user=f"fake:{info.password}")


class _Gullible(FakeGroup):
    """Believes in any instance."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        return ConnectInfo(id=instance, internal_addr="nowhere")

    async def heartbeat(self, instance: str) -> None:
        pass


class _Trusting(FakeGroup):
    """Takes an instance that it once knew for healthy."""

    async def heartbeat(self, instance: str) -> None:
        if instance not in self.cloud.machines:
            raise InstanceNotFound(instance)


class _Anxious(FakeGroup):
    """Takes no instance for healthy."""

    async def heartbeat(self, instance: str) -> None:
        raise ProviderError("better safe than sorry")


class _Panicky(FakeGroup):
    """Loses everything when one instance dies."""

    async def update(self) -> Observation:
        if len(self.cloud.alive) < len(self.cloud.machines):
            for instance in self.cloud.alive:
                self.cloud.vanish(instance)
        return await super().update()


class _Thorough(FakeGroup):
    """Takes the instances with it when it is closed."""

    async def shutdown(self) -> None:
        for instance in self.cloud.alive:
            self.cloud.vanish(instance)


class _Greedy(FakeGroup):
    """Takes back more than requests."""

    async def withdraw(self, count: int) -> int:
        for instance in sorted(self.cloud.alive)[:count]:
            self.cloud.vanish(instance)
        return 0


class _Flattering(FakeGroup):
    """Claims to have taken back what it was asked to."""

    async def withdraw(self, count: int) -> int:
        return count


class _Meddling(FakeGroup):
    """Takes whoever only looks on for its manager."""

    async def init(self, settings: Settings) -> GroupInfo:
        return await super().init(evolve(settings, observe_only=False))


class _Exclusive(FakeGroup):
    """Tells an observer nothing."""

    async def update(self) -> Observation:
        return Observation({}) if self._observing else await super().update()


class _Possessive(FakeGroup):
    """Clears away what it finds, even if it was only to look."""

    async def shutdown(self) -> None:
        if self._observing:
            self.cloud.vanish(max(self.cloud.alive))


class _Hushed(FakeGroup):
    """Listens to notices, and keeps them to itself."""

    def notices(self) -> AsyncIterator[Notice]:
        cloud = FakeCloud()
        cloud.clock = self.cloud.clock
        return cloud.notices()


class _Belated(FakeGroup):
    """Gives the time that is left for the time at which it ends."""

    async def notices(self) -> AsyncIterator[Notice]:
        async for notice in super().notices():
            yield evolve(notice, deadline=notice.deadline - self.cloud.now)


class _Recycling(FakeCloud):
    """Gives an id again once its instance is gone."""

    def _new_id(self) -> str:
        return next(instance for instance in map("i-{}".format, count(1)) if instance not in self.alive)


# --- what finds them ------------------------------------------------------------------------------------


FAULTLESS = IncreaseFault()

CAPABILITIES = frozenset({Capability.NAMED_CREATE, Capability.WITHDRAW, Capability.NOTICES})

CHECK = {name_of(check): check for check in CHECKS}


@frozen
class Wrong:
    """One way of being wrong, the check that is to find it, and words of the clause that it breaks."""

    check: Check
    clause: str
    group: type[FakeGroup] = FakeGroup
    fault: IncreaseFault = FAULTLESS
    cloud: type[FakeCloud] = FakeCloud

    def __str__(self) -> str:
        """As the id of a test."""
        what = self.group.__name__ if self.group is not FakeGroup else self.cloud.__name__
        return f"{name_of(self.check)}-{what}-{self.clause}"


WRONG = [
    Wrong(CHECK["init_tells_what_the_group_is"], "identity is the cloud resource itself", _Nameless),
    Wrong(CHECK["init_tells_what_the_group_is"], "the interface version is 1", _FromTheFuture),
    Wrong(CHECK["init_tells_what_the_group_is"], "max_size is the cloud's own ceiling", _BelowNothing),
    Wrong(CHECK["claimed_capabilities_have_their_methods"], "methods of Withdraws", _Boastful),
    Wrong(CHECK["identity_is_the_resource"], "the same each time it is opened", _Renamed),
    Wrong(CHECK["first_view_is_complete"], "update shows every instance", _Sleepy),
    Wrong(
        CHECK["increase_brings_what_it_accepted"],
        "as many instances as increase accepted appear",
        fault=IncreaseFault(accept=1, overstate=1),
    ),
    Wrong(CHECK["increase_brings_what_it_accepted"], "0 to count", fault=IncreaseFault(overstate=1)),
    Wrong(CHECK["increase_brings_what_it_accepted"], "adds as many", fault=IncreaseFault(surplus=1)),
    Wrong(CHECK["increase_brings_what_it_accepted"], "comes to run", fault=IncreaseFault(hang=True)),
    Wrong(CHECK["increase_brings_what_it_accepted"], "room for three", fault=IncreaseFault(accept=1)),
    Wrong(CHECK["named_create_is_idempotent"], "a repeat with the same intent", _Forgetful),
    Wrong(CHECK["named_create_carries_the_intent"], "instances carry the intent", _Forgetful),
    Wrong(CHECK["increase_stops_at_max_size"], "increase beyond max_size 3", _Limitless),
    Wrong(CHECK["decrease_removes_only_those_named"], "and no others", _Careless),
    Wrong(CHECK["decrease_removes_only_those_named"], "leaves the view", _Nostalgic),
    Wrong(CHECK["decrease_accepts_what_is_gone"], "already gone", _Fussy),
    Wrong(CHECK["decrease_accepts_what_is_gone"], "already gone", _Silent),
    Wrong(CHECK["ids_are_never_reused"], "never reused", cloud=_Recycling),
    Wrong(CHECK["connect_info_is_complete"], "connect_info has a protocol, an address", _Homeless),
    Wrong(CHECK["connect_info_is_complete"], "of the instance asked about", _Confused),
    Wrong(CHECK["connect_info_hides_secrets"], "secrets stay out", _Indiscreet),
    Wrong(CHECK["connect_info_knows_what_is_gone"], "raises InstanceNotFound", _Gullible),
    Wrong(CHECK["heartbeat_tells_health"], "returns if the instance is healthy", _Anxious),
    Wrong(CHECK["heartbeat_tells_health"], "that is not there", _Gullible),
    Wrong(CHECK["heartbeat_notices_death"], "that is dead", _Trusting),
    Wrong(CHECK["update_notices_death"], "that died is deleted, failed or absent", _Nostalgic),
    Wrong(CHECK["update_notices_death"], "changes no other", _Panicky),
    Wrong(CHECK["cancelled_increase_leaves_no_trace"], "cancelling a call", _Leaky),
    Wrong(CHECK["cancelled_increase_leaves_no_trace"], "cancelling a call", fault=IncreaseFault(surplus=1)),
    Wrong(CHECK["shutdown_leaves_instances"], "instances stay after shutdown", _Thorough),
    Wrong(CHECK["withdraw_spares_instances"], "never touches an instance", _Greedy),
    Wrong(CHECK["withdraw_spares_instances"], "how many were taken back", _Flattering),
    Wrong(CHECK["notices_come"], "notices passes on", _Hushed),
    Wrong(CHECK["notices_come"], "notices passes on", _Belated),
    Wrong(CHECK["observing_changes_nothing"], "raises Unsupported", _Meddling),
    Wrong(CHECK["observing_changes_nothing"], "sees what the manager sees", _Exclusive),
    Wrong(CHECK["observing_changes_nothing"], "changes nothing", _Possessive),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
async def test_what_is_wrong_is_found(wrong: Wrong) -> None:
    """The check raises a violation that names the clause and says what was seen."""
    cloud = wrong.cloud(capabilities=CAPABILITIES)
    if wrong.check is CHECK["first_view_is_complete"]:
        cloud.launch(1)
    cloud.faults.increase.always(wrong.fault)
    with pytest.raises(Violation, match=r"^the contract says: .*; seen: .+; more: docs/reference/.+") as caught:
        await judge(wrong.check, harness_for(cloud, wrong.group))
    assert wrong.clause in caught.value.clause


def test_every_check_is_shown_to_bite() -> None:
    """No check is in the suite that was never seen to find anything."""
    assert {wrong.check for wrong in WRONG} | {mutant.check for mutant in MUTANTS} == set(CHECKS)
