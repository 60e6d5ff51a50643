"""A group over the in-memory cloud: the reference for what a plugin does, and a cloud that fails on demand."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from fleeting._errors import InstanceNotFound, OutcomeUnknown, ProviderError, Unreachable, Unsupported
from fleeting._types import (
    Capability,
    ConnectInfo,
    ConnectorConfig,
    GroupInfo,
    Mark,
    Notice,
    Observation,
    Settings,
    State,
)
from fleeting.testing._cloud import FakeCloud
from fleeting.testing._connection import FakeConnection
from fleeting.testing._faults import Fault, Script
from fleeting.testing._machine import Call, Machine, Method

F = TypeVar("F", bound=Fault)


class FakeGroup:
    """An `InstanceGroup` whose cloud is an object in memory.

    How the cloud behaves is set on `FakeCloud`; what goes wrong with which call, on its ``faults``::

        cloud = FakeCloud(boot_time=30, appear_after=5)
        cloud.faults.increase.once(IncreaseFault(accept=1))
        cloud.faults.update.always(UpdateFault(slow=10))
        group = FakeGroup(cloud)

    Several groups may be opened on one cloud, one after the other, as managers come and go.
    """

    def __init__(self, cloud: FakeCloud | None = None) -> None:
        """Manage this cloud, or an empty one in which nothing takes time."""
        self.cloud = cloud if cloud is not None else FakeCloud()
        self._last_view: Observation | None = None
        self._observing = False
        self._owner = ""

    async def init(self, settings: Settings) -> GroupInfo:
        """Open the group; the cloud lives by the clock of the settings."""
        self.cloud.clock = settings.clock
        self._observing = settings.observe_only
        self._owner = settings.owner
        async with self._call("init", self.cloud.faults.init, owner=settings.owner):
            return GroupInfo(
                identity=self.cloud.identity,
                max_size=self.cloud.max_size,
                capabilities=self.cloud.capabilities,
                notice_probe=self.cloud.notice_probe,
            )

    async def update(self) -> Observation:
        """Give the cloud's view, or what the script makes of it."""
        async with self._call("update", self.cloud.faults.update) as fault:
            if self._last_view is None or not fault.stale:
                self._last_view = self.cloud.view(fault)
            return self._last_view

    async def increase(self, count: int, *, intent: str) -> int:
        """Order instances."""
        self._refuse_if_observing()
        async with self._call("increase", self.cloud.faults.increase, count=count, intent=intent) as fault:
            return self.cloud.create(count, intent, fault)

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        """Begin to delete instances."""
        self._refuse_if_observing()
        instances = tuple(instances)
        async with self._call("decrease", self.cloud.faults.decrease, instances=instances) as fault:
            return self.cloud.delete(instances, fault)

    async def connect_info(self, instance: str) -> ConnectInfo:
        """Give what `dial` takes."""
        async with self._call("connect_info", self.cloud.faults.connect_info, instance=instance):
            self._running(instance)
            return ConnectInfo(
                id=instance,
                protocol="fake",
                internal_addr=f"{instance}.internal.fake",
                external_addr=f"{instance}.fake",
                user="fake",
                password=f"secret-of-{instance}",
            )

    async def heartbeat(self, instance: str) -> None:
        """Pass for an instance that runs and is not sick."""
        async with self._call("heartbeat", self.cloud.faults.heartbeat, instance=instance):
            machine = self._running(instance)
            if machine.sickness:
                raise ProviderError(f"instance {instance} is not healthy: {machine.sickness}")

    async def shutdown(self) -> None:
        """Close the group; the cloud and its instances stay."""
        async with self._call("shutdown", self.cloud.faults.shutdown):
            pass

    async def withdraw(self, count: int) -> int:
        """Take back unfilled requests, if the cloud has `WITHDRAW`."""
        self._require(Capability.WITHDRAW)
        self._refuse_if_observing()
        async with self._call("withdraw", self.cloud.faults.withdraw, count=count):
            return self.cloud.withdraw(count)

    def notices(self) -> AsyncIterator[Notice]:
        """Yield the notices that are not past, and those to come, if the cloud has `NOTICES`."""
        self._require(Capability.NOTICES)
        return self.cloud.notices()

    async def suspend(self, instances: Sequence[str]) -> Sequence[str]:
        """Begin to suspend instances, if the cloud has `SUSPEND_RESUME`."""
        self._require(Capability.SUSPEND_RESUME)
        self._refuse_if_observing()
        instances = tuple(instances)
        async with self._call("suspend", self.cloud.faults.suspend, instances=instances) as fault:
            return self.cloud.suspend(instances, fault)

    async def resume(self, instances: Sequence[str]) -> Sequence[str]:
        """Begin to let suspended instances run again, if the cloud has `SUSPEND_RESUME`."""
        self._require(Capability.SUSPEND_RESUME)
        self._refuse_if_observing()
        instances = tuple(instances)
        async with self._call("resume", self.cloud.faults.resume, instances=instances) as fault:
            return self.cloud.resume(instances, fault)

    async def mark_owner(self, until: float | None) -> None:
        """Put the mark of the settings' owner on the cloud, if that has `OWNER_MARK`."""
        self._require(Capability.OWNER_MARK)
        self._refuse_if_observing()
        async with self._call("mark_owner", self.cloud.faults.mark_owner, until=until):
            self.cloud.mark(self._owner, until)

    async def read_marks(self) -> Sequence[Mark]:
        """Give the mark that is on the cloud, if that has `OWNER_MARK` and there is one."""
        self._require(Capability.OWNER_MARK)
        async with self._call("read_marks", self.cloud.faults.read_marks):
            return [self.cloud.owner_mark] if self.cloud.owner_mark is not None else []

    @asynccontextmanager
    async def dial(self, info: ConnectInfo, config: ConnectorConfig) -> AsyncIterator[FakeConnection]:  # noqa: ARG002  (a connector's signature)
        """Connect to an instance of the cloud: a connector's `dial` for the protocol ``fake``."""
        async with self._call("dial", self.cloud.faults.dial, instance=info.id):
            machine = self.cloud.find(info.id)
            if machine is None or machine.state(self.cloud.now) not in {State.RUNNING, State.DELETING}:
                raise Unreachable(f"instance {info.id} does not answer")
        connection = FakeConnection(self.cloud, machine)
        try:
            yield connection
        finally:
            connection.close()

    @asynccontextmanager
    async def _call(self, method: Method, script: Script[F], **arguments: object) -> AsyncIterator[F]:
        """Make a call: half of its time, then what it does, then the other half; or what the script says."""
        self.cloud.calls.append(Call(method, self.cloud.now, arguments))
        fault = script.take()
        half = (self.cloud.latency.get(method, 0.0) + fault.slow) / 2
        await self.cloud.sleep(half)
        if fault.refuse is not None:
            raise fault.refuse.with_traceback(None)  # it may have been raised before
        yield fault
        await self.cloud.sleep(half)
        if fault.lose:
            raise OutcomeUnknown(f"the answer to {method} was lost; it may have been carried out")

    def _running(self, instance: str) -> Machine:
        """The instance, if it runs."""
        machine = self.cloud.find(instance)
        if machine is None:
            raise InstanceNotFound(instance)
        state = machine.state(self.cloud.now)
        if state is not State.RUNNING:
            raise ProviderError(f"instance {instance} is not running" + (f": it is {state.value}" if state else ""))
        return machine

    def _refuse_if_observing(self) -> None:
        """Refuse whatever would change the cloud, in a group that was opened to observe only."""
        if self._observing:
            raise Unsupported("the fake group was opened to observe only; open it to manage it")

    def _require(self, capability: Capability) -> None:
        """Refuse what this cloud cannot do."""
        if capability not in self.cloud.capabilities:
            raise Unsupported(f"this fake cloud does not have {capability.value}; name it in its capabilities")
