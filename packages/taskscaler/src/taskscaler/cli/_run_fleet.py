"""Where the jobs of `taskscaler run` get their slots from: a fleet of their own, or that of a daemon."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from attrs import define, evolve, field

from fleeting import Clock
from fleeting.errors import WrongArguments
from taskscaler._cost import Spending
from taskscaler._errors import NoDaemon
from taskscaler._fleet_log import FleetLog
from taskscaler._jobsfile import JobsFile, Runnable, Source, read_guest_file, read_jobs_file
from taskscaler._observe import ScalerObserver
from taskscaler._open_files import allow_open_files
from taskscaler._scaler import Taskscaler
from taskscaler._socket import check_ours
from taskscaler.batch import EventLog, JobChanged, PoolFacts
from taskscaler.batch._runner import Scaler
from taskscaler.batch._share import RunShare
from taskscaler.batch._used import UsedInstances
from taskscaler.cli._ask import check_installed
from taskscaler.diagnose._explain import InstanceView
from taskscaler.observers._finding import with_metrics, with_traces

if TYPE_CHECKING:
    from taskscaler import remote
    from taskscaler.observers.metrics import Metrics
    from taskscaler.observers.traces import Traces

MOST_CONNECTIONS = 1_000
"""On which jobs of one batch wait for a daemon's slots; its fleet grows by as many at a time."""

_NOT_FOLLOWED = (
    "--traces cannot be used with --daemon: the daemon follows its leases itself, if it was started with"
    " taskscaler serve --traces; leave --traces out, or use taskscaler submit, and it follows whole jobs"
)
_NOT_OURS = "--metrics shows a run's own fleet, and this one is a daemon's; give taskscaler serve --metrics"

LOOK_INTERVAL = 1.0
"""Seconds between two looks at a daemon's fleet, which may be large, and has others to answer."""

LOOK_TIMEOUT = 2.0
"""Seconds that a daemon may take for an answer before it is said that there is none."""


@define(eq=False, kw_only=True)
class RunFleet(ABC):
    """Gives a batch its slots, and shows what there is of the fleet."""

    socket: Path | None = None
    """Of the daemon that has it; None: it is the run's own."""

    pools: tuple[PoolFacts, ...] = ()
    """How it is set, as far as that is known here."""

    patience: float = inf
    """Seconds for which nothing may run while jobs wait: of a daemon, others may have the slots for as long as they
    like."""

    log_internal_ip: bool = False
    log_external_ip: bool = False
    most_waiting: int | None = None
    """Jobs that wait for slots at once; None: as many as a scaler here has to do with."""

    metrics: "Metrics | None" = None
    """What shows it to Prometheus, if anything does."""

    traces: "Traces | None" = None
    """What follows its jobs, if anything does."""

    @abstractmethod
    def show(self, listen: str | None, *, traces: bool = False) -> None:
        """Have metrics shown on an address, and jobs followed, as a command line wants it; else as the file has it.

        Raises:
            WrongArguments: They cannot be.
            ConfigError: The environment asks for something that cannot be had.
        """

    @abstractmethod
    def prepare(self, events: EventLog, clock: Clock) -> Scaler:
        """Make the scaler of a batch; nothing is opened yet."""

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[object]:
        """Have the fleet while the body runs; what is still held at its end goes back."""

    @abstractmethod
    def changed(self, change: JobChanged) -> None:
        """Learn that a job of the batch has changed."""

    @abstractmethod
    async def instances(self) -> Sequence[InstanceView]:
        """Give the instances that are to be shown."""

    @property
    @abstractmethod
    def ceiling(self) -> int:
        """Instances that there may be; 0: any number, or not known here."""

    @abstractmethod
    async def why(self) -> str:
        """Why jobs wait for slots; empty if none does."""

    @abstractmethod
    async def reload(self, later: "RunFleet") -> str:
        """Take over the policies of the same file as it is now; returns what has become of that."""


@define(eq=False, kw_only=True)
class OwnFleet(RunFleet):
    """The one that the jobs file describes."""

    file: JobsFile
    observers: Sequence[ScalerObserver] = ()
    scaler: Taskscaler = field(init=False)

    @classmethod
    def of(cls, file: JobsFile) -> "OwnFleet":
        """Take what the file says."""
        return cls(
            file=file,
            observers=file.observers,
            pools=PoolFacts.of(file.autoscaler),
            patience=file.autoscaler.instance_acquire_timeout,
            log_internal_ip=file.autoscaler.log_internal_ip,
            log_external_ip=file.autoscaler.log_external_ip,
        )

    def show(self, listen: str | None, *, traces: bool = False) -> None:
        """See above."""
        self.observers, self.metrics = with_metrics(self.observers, listen)
        self.observers, self.traces = with_traces(self.observers, wanted=traces)

    def prepare(self, events: EventLog, clock: Clock) -> Scaler:
        """Make it, with the log among its observers."""
        observers: list[ScalerObserver] = [events, FleetLog(), *self.observers]
        if self.metrics is not None:
            from taskscaler.observers._costs import OfCosts  # the client library need not be there

            spending = Spending.at({pool.name: pool.tariff for pool in self.file.autoscaler.all_pools})
            observers.append(spending.hear)
            costs = OfCosts(self.metrics.families, lambda: spending.so_far(clock.now()))
            self.metrics.registry.register(costs)
        self.scaler = self.file.autoscaler.scaler(self.file.groups, clock=clock, observers=observers)
        return self.scaler

    def opened(self) -> AbstractAsyncContextManager[object]:
        """Open the groups."""
        return self.scaler

    def changed(self, change: JobChanged) -> None:
        """Learn nothing: the log hears of every instance from the scaler."""

    async def instances(self) -> Sequence[InstanceView]:
        """Give all of them."""
        return await self.scaler.instances()

    @property
    def ceiling(self) -> int:
        """As the file and the groups have it."""
        return self.file.autoscaler.ceiling_with(self.scaler.groups)

    async def why(self) -> str:
        """Looked at several times a second, so nothing is explained while no job waits."""
        return (await self.scaler.explain()).answer if (await self.scaler.capacity()).pending else ""

    async def reload(self, later: RunFleet) -> str:
        """Take them over."""
        if not isinstance(later, OwnFleet):
            raise TypeError(f"later: expected a fleet of a file, found {later!r}")
        policies = later.file.autoscaler.policy
        await self.scaler.configure(policies=policies)
        return f"the policies were reloaded ({len(policies)} in all)"


@define(eq=False, kw_only=True)
class DaemonFleet(RunFleet):
    """That of a daemon, with others."""

    place: Path
    """Of its socket."""

    scaler: "remote.Taskscaler" = field(init=False)
    _share: RunShare = field(init=False)
    _used: UsedInstances = field(init=False)
    _seen: Sequence[InstanceView] = field(default=(), init=False)
    _why: str = field(default="", init=False)
    _look_at: float = field(default=0.0, init=False)
    """When to look at the daemon's fleet again, by the event loop's clock."""

    @classmethod
    def of(cls, place: Path) -> "DaemonFleet":
        """Take that of the daemon whose socket is there; nothing is asked yet.

        Whoever waits has a connection open, here and at the daemon.
        """
        return cls(place=place, socket=place, most_waiting=max(1, min(MOST_CONNECTIONS, allow_open_files() // 4)))

    def show(self, listen: str | None, *, traces: bool = False) -> None:
        """Refuse: the fleet is the daemon's, which shows it itself, and follows its leases."""
        if listen is not None:
            raise WrongArguments(_NOT_OURS)
        if traces:
            raise WrongArguments(_NOT_FOLLOWED)

    def prepare(self, events: EventLog, clock: Clock) -> Scaler:
        """Make this batch's share of it. A command that was killed is succeeded by the one that resumes its batch."""
        check_installed()
        from taskscaler import remote

        del clock  # the daemon has its own
        name = sha256(f"taskscaler run {events.id}".encode()).hexdigest()[:32]
        self._used = UsedInstances(events)
        self.scaler = remote.Taskscaler(self.place, observers=[self._used.hear], client=name)
        self._share = RunShare.of(self.scaler, events.id)
        return self._share

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Reach the daemon.

        Raises:
            NoDaemon: It does not answer.
            DaemonRefused: It is another user's, and would not let us connect to its instances.
        """
        check_ours(self.place, "have it run the jobs itself, with taskscaler submit")
        async with self.scaler:
            yield

    def changed(self, change: JobChanged) -> None:
        """Have the log name the instance where the job runs."""
        self._used.changed(change)

    async def instances(self) -> Sequence[InstanceView]:
        """Give all of them, those with jobs of this batch first, under the jobs' names."""
        await self._look()
        return self._seen

    @property
    def ceiling(self) -> int:
        """Not known here."""
        return 0

    async def why(self) -> str:
        """As the daemon has it."""
        await self._look()
        return self._why

    async def reload(self, later: RunFleet) -> str:
        """Do not: they are everybody's."""
        del later
        return "the policies are the daemon's; change them in its file, and run taskscaler reload"

    async def _look(self) -> None:
        """Look now and then; a daemon that is away is no reason to end."""
        if anyio.current_time() < self._look_at:
            return
        self._look_at = anyio.current_time() + LOOK_INTERVAL
        try:
            with anyio.fail_after(LOOK_TIMEOUT):
                views = [self._as_ours(view) for view in await self.scaler.instances()]
                self._why = (await self.scaler.explain()).answer if self._share.waiting else ""
        except (NoDaemon, TimeoutError):
            self._why = f"the daemon at {self.place} does not answer; waiting for it"
        else:
            self._seen = [view for _, view in sorted(views, key=lambda each: not each[0])]

    def _as_ours(self, view: InstanceView) -> tuple[bool, InstanceView]:
        """Name the slots of this batch as its jobs are named; says whether there are any."""
        prefix = self._share.prefix
        ours = any(key is not None and key.startswith(prefix) for key in view.slots)
        return ours, evolve(view, slots=tuple(key and key.removeprefix(prefix) for key in view.slots))


def read_for(path: Path, socket: Path | None, source: Source | None = None) -> tuple[Runnable, RunFleet]:
    """Read a jobs file, and find the fleet for it: its own, or that of the daemon with a socket.

    The other arguments, and errors, are those of `read_jobs_file`.
    """
    if socket is not None:
        return read_guest_file(path, source), DaemonFleet.of(socket)
    file = read_jobs_file(path, source)
    return file, OwnFleet.of(file)
