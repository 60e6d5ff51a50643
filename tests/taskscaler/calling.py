"""The daemon's API without a socket: requests as values, in virtual time."""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from attrs import asdict, define, evolve, field, frozen

from fleeting import Clock, ConnectorConfig, Journal
from fleeting.testing import FakeCloud, FakeGroup
from taskscaler import Pool, ScalerEvent, ScalerObserver, Taskscaler
from taskscaler._errors import DaemonRefused
from taskscaler._jobsfile import Retention
from taskscaler.config import Autoscaler
from taskscaler.executors import Executor
from taskscaler.serve._app import Api
from taskscaler.serve._batches import Batches
from taskscaler.serve._holders import Holders
from taskscaler.serve._owners import Owners
from taskscaler.serve._peers import Peer
from taskscaler.serve._tcp import Entrance
from tests.taskscaler.scaling import virtual_clock

OWNER, MEMBER, STRANGER = Peer(0, 1), Peer(4001, 2), Peer(4002, 3)


@frozen
class Answer:
    """What came back."""

    status: int
    data: Any

    @property
    def why(self) -> str:
        """The message of a refusal."""
        return str(self.data["error"]["message"])


@frozen
class Caller:
    """Somebody who asks; as one client if it has an id."""

    app: Any
    peer: Peer = OWNER
    client: str = ""

    def called(self, number: int, peer: Peer | None = None) -> "Caller":
        """Be another client, maybe of another user."""
        return evolve(self, client=f"{number:032x}", peer=peer or self.peer)

    async def __call__(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
        version: str = "1.1",
    ) -> Answer:
        """Ask, and wait for the whole answer."""
        status, answer = await self.read(method, path, body, headers=headers, raw=raw, version=version)
        return Answer(status, json.loads(answer or b"null"))

    async def read(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
        version: str = "1.1",
    ) -> tuple[int, bytes]:
        """Ask, and wait for the whole answer, whatever it is made of."""
        sent: list[Any] = []
        content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        coming = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive() -> Mapping[str, object]:
            if coming:
                return coming.pop()
            await anyio.sleep_forever()
            raise AssertionError("for ever")

        async def send(message: Mapping[str, object]) -> None:
            sent.append(message)

        await self.app(self._scope(method, path, headers or {}, version), receive, send)
        return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:])

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator["Heard"]:
        """Listen to a stream while the body runs, then hang up."""
        give, take = anyio.create_memory_object_stream[bytes](inf)
        gone = anyio.Event()

        async def receive() -> Mapping[str, object]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.body":
                give.send_nowait(message["body"])

        async with give, take, anyio.create_task_group() as tasks:
            tasks.start_soon(self.app, self._scope("GET", path, {}, "1.1"), receive, send)
            yield Heard(take)
            gone.set()

    @asynccontextmanager
    async def hung_up(self, path: str, body: object) -> AsyncIterator[None]:
        """Ask, and hang up after the body without having waited for the answer."""
        gone, asked = anyio.Event(), [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

        async def receive() -> Mapping[str, object]:
            if asked:
                return asked.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(_: Mapping[str, object]) -> None:
            """Nobody reads it."""

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.app, self._scope("POST", path, {}, "1.1"), receive, send)
            await anyio.wait_all_tasks_blocked()
            yield
            gone.set()

    def _scope(self, method: str, path: str, headers: Mapping[str, str], version: str) -> dict[str, object]:
        named = {"host": "localhost", **({"taskscaler-client": self.client} if self.client else {}), **headers}
        bare, _, query = path.partition("?")
        return {
            "type": "http",
            "http_version": version,
            "method": method,
            "path": f"/v1{bare}",
            "raw_path": f"/v1{bare}".encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
            "client": None,
            "server": None,
            "state": {"peer": self.peer},
            "extensions": {},
        }


@define
class Heard:
    """What a stream says."""

    _take: MemoryObjectReceiveStream[bytes]

    async def next(self) -> Mapping[str, Any]:
        """Wait for the next event; comments are none."""
        while True:
            text = (await self._take.receive()).decode()
            if data := [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]:
                found: Mapping[str, Any] = json.loads(data[0])
                return found


@define
class Fleet:
    """What the API needs of the daemon, without one."""

    scaler: Taskscaler
    holders: Holders = field(init=False)
    batches: Batches = field(init=False)
    owners: Owners = field(factory=lambda: Owners((), print), init=False)
    boot: str = "the first"
    drained: list[tuple[float | None, bool]] = field(factory=list)
    draining: bool = False
    entrance: Entrance | None = None
    """Over TCP."""

    port: int = 0

    @property
    def url(self) -> str:
        """Where it is reached over TCP."""
        assert self.entrance is not None
        return self.entrance.url(self.port)

    async def status(self) -> dict[str, object]:
        """Say what clients read of it."""
        explanation = await self.scaler.explain()
        return {
            "fleet": "fleet.toml",
            "state": "draining" if self.draining else "serving",
            "answer": explanation.answer,
            "capacity": asdict(explanation.capacity),
            "pools": {pool.name: pool.counts() for pool in explanation.pools},
            "clients": len(self.holders.clients),
        }

    def connector_of(self, _: str) -> ConnectorConfig:
        """Give the defaults."""
        return ConnectorConfig()

    async def drain(self, timeout: float | None, *, delete: bool) -> bool:
        """Take note."""
        self.drained.append((timeout, delete))
        return True

    def link(self, *, changes: bool) -> dict[str, object]:
        """There is no page."""
        raise DaemonRefused("the daemon shows no status page; start it with --http HOST:PORT", status=404)

    async def reload(self) -> dict[str, object]:
        """Do nothing."""
        return {"policies": 0, "pending": [], "notes": []}


def batches_of(
    scaler: Taskscaler,
    directory: Path,
    start_soon: Callable[..., object],
    *,
    clock: Clock | None = None,
    say: Callable[[str], object] = lambda _: None,
    retention: Retention | None = None,
    executors: Mapping[str, Executor] | None = None,
) -> Batches:
    """Batches in a directory."""
    limits, clock = retention or Retention(), clock or virtual_clock()
    return Batches(directory, scaler, clock, start_soon, Autoscaler(plugin="fake"), executors or {}, limits, say)


@asynccontextmanager
async def called(
    cloud: FakeCloud,
    *,
    directory: Path | None = None,
    executors: Mapping[str, Executor] | None = None,
    retention: Retention | None = None,
    journal: Journal | None = None,
    leases: Path | None = None,
    observers: Sequence[ScalerObserver] = (),
    **settings: object,
) -> AsyncIterator[tuple[Caller, Fleet]]:
    """The API over a scaler on the cloud, and somebody to ask it.

    Batches, if there are any, are in the directory; leases that outlive their clients are written down in *leases*.
    """
    apis: list[Api] = []

    def hear(event: ScalerEvent) -> None:
        for api in apis:
            api.hear(event)
            api.fleet.batches.hear(event)
            api.fleet.holders.keeper.hear(event)

    group, clock = FakeGroup(cloud), virtual_clock()
    pool = Pool(group, **{"dial": group.dial, **settings})  # type: ignore[arg-type]
    scaler = Taskscaler(
        pool,
        clock=clock,
        journal=journal,
        delete_instances_on_shutdown=False,
        observers=[hear, *observers],
    )
    async with scaler, anyio.create_task_group() as tasks:
        fleet = Fleet(scaler)
        api = Api(fleet)
        apis.append(api)
        fleet.holders = Holders(scaler, clock.now, tasks.start_soon, api.notify, leases)
        place = directory or Path("nowhere")
        fleet.batches = batches_of(scaler, place, tasks.start_soon, executors=executors, retention=retention)
        await fleet.holders.keeper.take_up()
        if directory is not None:
            await fleet.batches.take_up()
        tasks.start_soon(fleet.holders.watch)
        yield Caller(api.app()), fleet
        tasks.cancel_scope.cancel()
