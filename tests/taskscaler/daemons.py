"""A daemon in the same process, over a socket, on the fake cloud: what tests of its clients share."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import SocketAttribute, TaskGroup, TaskStatus
from attrs import define, field

from fleeting import Journal
from fleeting.testing import FakeCloud, FakeGroup
from taskscaler import ScalerEvent, ScalerObserver, remote
from taskscaler.serve._app import Api
from taskscaler.serve._holders import Holders
from taskscaler.serve._listen import listening
from taskscaler.serve._server import Server
from taskscaler.serve._tcp import MOST_CONNECTIONS, Entrance, Listen, listening_on_tcp
from tests.taskscaler.calling import Fleet, batches_of
from tests.taskscaler.scaling import scaling, virtual_clock


@asynccontextmanager
async def daemon(
    path: Path,
    cloud: FakeCloud,
    *,
    boot: str = "first",
    journal: Journal | None = None,
    tcp: Listen | None = None,
    most: int = MOST_CONNECTIONS,
    leases: Path | None = None,
    **settings: object,
) -> AsyncIterator[Fleet]:
    """Serve the cloud on a socket while the body runs, and over TCP, for so many connections, if that is asked for.

    Instances and leases stay if there is a journal. Leases that outlive their clients are written down in *leases*, if
    that is given: in threads, which trio's virtual time does not wait for.
    """
    apis: list[Api] = []
    clock = virtual_clock()
    observers: Sequence[ScalerObserver] = settings.pop("observers", ())  # type: ignore[assignment]

    def hear(event: ScalerEvent) -> None:
        for api in apis:
            api.hear(event)
            api.fleet.holders.keeper.hear(event)

    entrance = None if tcp is None else Entrance.of(tcp)
    async with (
        listening(path, None) as listener,
        listening_on_tcp(entrance) as others,
        scaling(cloud, journal=journal, observers=[*observers, hear], **settings) as scaler,  # type: ignore[arg-type]
        anyio.create_task_group() as tasks,
    ):
        fleet = Fleet(scaler, boot=boot)
        api = Api(fleet)
        apis.append(api)
        fleet.holders = Holders(scaler, clock.now, tasks.start_soon, api.notify, leases)
        fleet.batches = batches_of(scaler, path.with_suffix(".batches"), tasks.start_soon)
        app = api.app()
        servers = [Server(app), *(Server(entrance.guard(app), most, entrance.admit) for _ in others if entrance)]
        await fleet.holders.keeper.take_up()
        tasks.start_soon(fleet.holders.watch)
        for server, each in zip(servers, (listener, *others), strict=True):
            tasks.start_soon(server.serve, each)
        if entrance is not None:
            fleet.entrance, fleet.port = entrance, others[0].extra(SocketAttribute.local_port)
        try:
            yield fleet
        finally:
            with anyio.CancelScope(shield=True):
                for server in servers:
                    await server.close()
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def connected(path: Path, cloud: FakeCloud, **settings: object) -> AsyncIterator[remote.Taskscaler]:
    """A client of a daemon on the cloud, and the daemon with it."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(daemon(path, cloud, **settings))  # type: ignore[arg-type]
        yield await stack.enter_async_context(client(path, cloud))


def client(path: Path, cloud: FakeCloud, *, ttl: float = 30.0, patience: float = 300.0) -> remote.Taskscaler:
    """One that can dial into the cloud."""
    return remote.Taskscaler(path, ttl=ttl, patience=patience, dial=FakeGroup(cloud).dial)


@define
class Restarted:
    """A daemon that can be stopped and started, whoever uses it meanwhile."""

    start_it: Callable[..., AbstractAsyncContextManager[Fleet]]
    tasks: TaskGroup
    ending: anyio.Event = field(factory=anyio.Event)
    over: anyio.Event = field(factory=anyio.Event)

    async def start(self, boot: str = "first") -> Fleet:
        """Have it run."""
        self.ending, self.over = anyio.Event(), anyio.Event()

        async def run(*, task_status: TaskStatus[Fleet]) -> None:
            async with self.start_it(boot=boot) as fleet:
                task_status.started(fleet)
                await self.ending.wait()
            self.over.set()

        fleet: Fleet = await self.tasks.start(run)
        return fleet

    async def stop(self) -> None:
        """Have it end, with all its connections."""
        self.ending.set()
        await self.over.wait()


@asynccontextmanager
async def restarted(path: Path, cloud: FakeCloud, **settings: object) -> AsyncIterator[Restarted]:
    """One that is not running yet."""
    async with anyio.create_task_group() as tasks:
        service = Restarted(partial(daemon, path, cloud, **settings), tasks)  # type: ignore[arg-type]
        yield service
        await service.stop()
