"""The provisioner and the shells below it, over the fake cloud, in virtual time."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf, nan
from random import Random

import anyio
import pytest
from attrs import evolve

from fleeting import (
    Capability,
    ConnectorConfig,
    GroupInfo,
    MemoryJournal,
    PlanConfig,
    ProviderError,
    Provisioner,
    RateLimited,
    Settings,
    dial,
)
from fleeting.core import Stage, messages
from fleeting.errors import InterfaceMismatch
from fleeting.journal import Recovered
from fleeting.runtime._outcomes import LONGEST_WAIT
from fleeting.testing import DecreaseFault, FakeCloud, FakeGroup, Fault, IncreaseFault, UpdateFault, virtual_time

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


class Log:
    """The events that a provisioner told, and what could be read of an instance each time."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.provisioner: Provisioner
        self._lives: dict[str, list[str]] = {}

    def note(self, event: messages.Event) -> None:
        """What has changed is read at once."""
        if isinstance(event, messages.Changed):
            known = self.provisioner.instances.get(event.instance)
            news = known.availability.access.value if known is not None else ""
        else:
            news = type(event).__name__
        life = self._lives.setdefault(getattr(event, "instance", ""), [])
        if news and life[-1:] != [news]:
            life.append(news)

    def of(self, instance: str) -> list[str]:
        """What became of one instance."""
        return self._lives[instance]


@asynccontextmanager
async def provisioning(
    cloud: FakeCloud, log: Log, config: PlanConfig | None = None, journal: MemoryJournal | None = None
) -> AsyncIterator[Provisioner]:
    """A provisioner over the cloud."""
    group = FakeGroup(cloud)
    log.provisioner = Provisioner(
        group, config, dial=group.dial, on_event=log.note, journal=journal, random=Random(1).random
    )
    async with log.provisioner as provisioner:
        yield provisioner


async def test_what_needs_an_open_group_says_so_before() -> None:
    """Whatever is called first, the error is the same, and says what to do."""
    group = FakeGroup(FakeCloud())
    provisioner = Provisioner(group, dial=group.dial, on_event=lambda _: None)
    with pytest.raises(RuntimeError, match="the provisioner is not open yet; enter it with `async with` first"):
        await provisioner.connect_info("i-1")
    with pytest.raises(RuntimeError, match="not open yet"):
        provisioner.request(1)
    with pytest.raises(RuntimeError, match="not open yet"):
        provisioner.remove(["i-1"], "not needed")


async def test_a_ceiling_that_is_changed_at_the_cloud_is_noticed() -> None:
    """Whoever raises the group's maximum need not restart the manager; a lower one holds for the next request."""
    cloud, log = FakeCloud(max_size=2), Log()
    async with provisioning(cloud, log, PlanConfig(max_instances=5)) as provisioner:
        for ceiling, comes in [(2, 2), (4, 4), (9, 5), (3, 5)]:
            cloud.max_size = ceiling
            await anyio.sleep(100)
            provisioner.request(9)
            await anyio.sleep(100)
            assert (provisioner.plan.ceiling, len(provisioner.instances)) == (min(ceiling, 5), comes)


async def test_requested_instances_become_ready_and_removed_ones_go() -> None:
    """The whole way of an instance, told by events."""
    cloud, log = FakeCloud(boot_time=20, delete_time=5), Log()
    async with provisioning(cloud, log) as provisioner:
        provisioner.request(3)
        await anyio.sleep(30)
        assert {each.stage for each in provisioner.instances.values()} == {Stage.READY}
        provisioner.remove(["i-2"], "not needed")
        await anyio.sleep(10)
        assert cloud.alive == {"i-1", "i-3"}
        assert log.of("i-2") == ["coming", "available", "Gone", "leaving", "Ended"]
        assert log.of("i-1") == ["coming", "available"]


async def test_deletions_without_effect_are_asked_for_again() -> None:
    """A cloud that says yes and does nothing is asked again after the interval."""
    cloud, log = FakeCloud(), Log()
    cloud.faults.decrease.once(DecreaseFault(ignore=True), times=2)
    async with provisioning(cloud, log, PlanConfig(deletion_retry_interval=30)) as provisioner:
        provisioner.request(1)
        await anyio.sleep(5)
        provisioner.remove(["i-1"], "not needed")
        await anyio.sleep(50)
        assert cloud.alive
        await anyio.sleep(30)
        assert not cloud.alive


async def test_the_clouds_advice_on_when_to_come_back_is_taken() -> None:
    """After RateLimited nothing is asked for until then, and then it is."""
    cloud, log = FakeCloud(), Log()
    cloud.faults.increase.once(IncreaseFault(refuse=RateLimited("slow down", retry_after=120)))
    async with provisioning(cloud, log) as provisioner:
        provisioner.request(1)
        await anyio.sleep(1)
        assert provisioner.plan.limits(provisioner.now()).allowed(1) == 0
        await anyio.sleep(118)
        assert provisioner.plan.limits(provisioner.now()).allowed(1) == 0
        await anyio.sleep(2)
        assert provisioner.plan.limits(provisioner.now()).allowed(1) == 1


async def test_a_change_under_way_is_seen_through_when_its_manager_is_cancelled() -> None:
    """What an increase that takes its time brought about still reaches the journal."""
    cloud, log, journal = FakeCloud(latency={"increase": 20}), Log(), MemoryJournal()
    with anyio.CancelScope() as scope:
        async with provisioning(cloud, log, journal=journal) as provisioner:
            provisioner.request(2)
            await anyio.sleep(1)
            scope.cancel()
            await anyio.sleep_forever()
    assert set(journal.records["instance"]) == {"default/i-1", "default/i-2"}
    assert anyio.current_time() >= 20


async def test_the_bodys_own_error_comes_out_as_it_is() -> None:
    """Not wrapped into a group, which nobody would catch."""
    with pytest.raises(LookupError, match="mine"):
        async with provisioning(FakeCloud(), Log()):
            raise LookupError("mine")


async def test_a_defect_of_a_plugin_ends_the_manager() -> None:
    """An error that the protocol does not name is not survived, and the group is closed all the same."""
    cloud, log = FakeCloud(), Log()
    with pytest.raises(ExceptionGroup) as caught:
        async with provisioning(cloud, log, PlanConfig(update_interval=10)):
            cloud.faults.update.always(evolve(cloud.faults.update.take(), refuse=KeyError("InstanceId")))
            await anyio.sleep(60)
    assert caught.group_contains(KeyError)
    assert cloud.calls[-1].method == "shutdown"


async def test_failing_views_are_survived() -> None:
    """Errors that the protocol names are waited out; nothing is lost meanwhile."""
    cloud, log = FakeCloud(), Log()
    async with provisioning(cloud, log, PlanConfig(update_interval=10)) as provisioner:
        provisioner.request(1)
        await anyio.sleep(5)
        cloud.faults.update.always(evolve(cloud.faults.update.take(), refuse=ProviderError("502")))
        await anyio.sleep(300)
        cloud.faults.clear()
        await anyio.sleep(20)
        assert log.of("i-1") == ["coming", "available"]


async def test_heartbeats_that_fail_in_a_row_make_an_instance_unhealthy() -> None:
    """Two failures are forgiven, three are not."""
    cloud, log = FakeCloud(), Log()
    config = PlanConfig(heartbeat_interval=10, failure_threshold=3)
    async with provisioning(cloud, log, config) as provisioner:
        provisioner.request(1)
        await anyio.sleep(5)
        cloud.faults.heartbeat.once(Fault(refuse=ProviderError("no answer")), times=2)
        await anyio.sleep(100)
        assert log.of("i-1") == ["coming", "available"]
        cloud.faults.heartbeat.always(Fault(slow=3600))
        await anyio.sleep(100)
        assert log.of("i-1") == ["coming", "available", "closing"]


async def test_notices_reach_the_events() -> None:
    """What the cloud announces is told, with its deadline."""
    cloud, log = FakeCloud(capabilities=frozenset({Capability.NOTICES})), Log()
    async with provisioning(cloud, log) as provisioner:
        provisioner.request(1)
        await anyio.sleep(5)
        cloud.notice("i-1", in_seconds=120)
        await anyio.sleep(1)
        assert log.of("i-1") == ["coming", "available", "closing"]


async def test_connection_details_are_kept_until_they_expire_and_can_be_overridden() -> None:
    """One call serves many connections; the user's own settings win."""
    cloud = FakeCloud()
    group = FakeGroup(cloud)
    connector = ConnectorConfig(username="me", protocol_port=2222)
    async with Provisioner(group, dial=group.dial, on_event=lambda _: None, connector=connector) as provisioner:
        provisioner.request(1)
        await anyio.sleep(5)
        info = await provisioner.connect_info("i-1")
        assert (info.user, info.port) == ("me", 2222)
        await provisioner.connect_info("i-1")
        assert sum(call.method == "connect_info" for call in cloud.calls) == 1


class Outdated(FakeGroup):
    """A group that was written for another interface."""

    async def init(self, settings: Settings) -> GroupInfo:
        """Say so."""
        return evolve(await super().init(settings), interface_version=99)


async def test_a_group_for_another_interface_is_refused_and_closed() -> None:
    """Also one that was not loaded by name."""
    group = Outdated(FakeCloud())
    with pytest.raises(InterfaceMismatch, match="install a newer fleeting"):
        async with Provisioner(group, dial=group.dial, on_event=lambda _: None):
            pass
    assert group.cloud.calls[-1].method == "shutdown"


@pytest.mark.parametrize("at", [0.0, 0.5, 1.5, 2.5, 3.5, 4.5])
async def test_opening_can_be_cancelled_at_any_moment(at: float) -> None:
    """During init, the journal, the start or the first view: what was opened is closed, and nothing hangs."""
    cloud, journal = FakeCloud(latency={"init": 1, "update": 3, "shutdown": 1}), SlowToOpen()
    with anyio.fail_after(60):
        with anyio.move_on_after(at):
            async with provisioning(cloud, Log(), journal=journal):
                pytest.fail("it took longer than that to open")
        methods = [call.method for call in cloud.calls]
        assert methods.count("shutdown") == ("update" in methods or at > 1)
        await journal.open(["fake/group"], "the next", {})


class SlowToOpen(MemoryJournal):
    """A journal that takes a second to open."""

    async def open(self, identities: Sequence[str], owner: str, kinds: Mapping[str, type]) -> Recovered:
        """Wait, then open."""
        await anyio.sleep(1)
        return await super().open(identities, owner, kinds)


class Unheeding(FakeGroup):
    """A group whose init returns although it was cancelled, as one that waited for a thread does."""

    async def init(self, settings: Settings) -> GroupInfo:
        """Cancel whoever opens us, and return as if nothing had happened."""
        info = await super().init(settings)
        self.scope.cancel()
        return info

    scope: anyio.CancelScope


async def test_a_cancellation_that_arrives_late_while_opening_is_heeded() -> None:
    """It is seen at the next wait, and everything is closed again."""
    group = Unheeding(FakeCloud())
    with anyio.fail_after(60):
        with anyio.CancelScope() as group.scope:
            async with Provisioner(group, dial=group.dial, on_event=lambda _: None):
                pytest.fail("it was cancelled before")
    assert group.cloud.calls[-1].method == "shutdown"


async def test_no_cloud_is_left_alone_for_years() -> None:
    """Advice that is nonsense is not taken: growth and views go on, after an hour at the most."""
    for advice in (1e12, inf, nan, -1.0):
        cloud = FakeCloud()
        async with provisioning(cloud, Log()) as provisioner:
            refusal = RateLimited("slow down", retry_after=advice)
            cloud.faults.increase.once(IncreaseFault(refuse=refusal))
            cloud.faults.update.once(UpdateFault(refuse=refusal))
            provisioner.request(1)
            await anyio.sleep(LONGEST_WAIT + 60)
            provisioner.request(1)
            await anyio.sleep(60)
            assert cloud.alive


async def test_reads_wait_as_long_as_the_cloud_wants() -> None:
    """A rate limit on views thins them out, though a change is expected."""
    cloud = FakeCloud(boot_time=300)
    async with provisioning(cloud, Log(), PlanConfig(update_interval_when_expecting=2)) as provisioner:
        provisioner.request(1)
        await anyio.sleep(5)
        cloud.faults.update.always(UpdateFault(refuse=RateLimited("slow down", retry_after=60)))
        before = len(cloud.calls)
        await anyio.sleep(120)
        assert 1 <= sum(call.method == "update" for call in cloud.calls[before:]) <= 3


async def test_a_missing_connector_is_a_reason_not_a_defect() -> None:
    """A ready command over a protocol that nobody speaks replaces the instance and says why."""
    group = FakeGroup(FakeCloud())
    async with Provisioner(group, dial=dial, on_event=lambda _: None, ready_command="true") as provisioner:
        provisioner.request(1)
        await anyio.sleep(10)
        assert "no plugin 'fake'" in provisioner.plan.limits(provisioner.now()).blocked_why
