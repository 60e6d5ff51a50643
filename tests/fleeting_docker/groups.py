"""Groups of containers for tests, and a relay to their daemon that has trouble on demand."""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

import anyio
from anyio.abc import ByteStream, TaskGroup
from attrs import define, field

from fleeting import State
from fleeting.testing import Harness, Trouble
from fleeting_docker import DockerGroup, DockerGroupConfig
from fleeting_docker._container import GROUP, HOST_KEY, OWNER
from fleeting_docker._marks import Marks
from fleeting_docker_engine import EngineRefused
from fleeting_docker_engine._wire import receive_from
from tests.conformance.harnesses import LONG
from tests.fleeting_docker_engine.daemons import IMAGE, Daemon

STATES = {
    "created": State.CREATING,
    "running": State.RUNNING,
    "restarting": State.RUNNING,
    "paused": State.SUSPENDED,
    "removing": State.DELETING,
    "exited": State.FAILED,
    "dead": State.FAILED,
}

_ERROR = b'HTTP/1.1 500 Internal Server Error\r\nContent-Length: 30\r\n\r\n{"message": "something broke"}\n'
_GARBAGE = b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: 20\r\n\r\n<html><body><h1>Sorr"
_READING = (b"GET ", b"HEAD ")


@define(eq=False)
class Relay:
    """A socket that leads to the daemon's, unless there is trouble."""

    socket: str
    daemon: str
    trouble: Trouble | None = None
    writes: int = 0
    _over: anyio.Event = field(factory=anyio.Event)

    @asynccontextmanager
    async def having(self, trouble: Trouble) -> AsyncIterator[None]:
        """Have trouble, from entering to leaving."""
        self.trouble, self._over = trouble, anyio.Event()
        try:
            yield
        finally:
            self.trouble = None
            self._over.set()

    async def serve(self, client: ByteStream) -> None:
        """Pass on what goes to and fro."""
        async with client, await anyio.connect_unix(self.daemon) as daemon, anyio.create_task_group() as tasks:
            tasks.start_soon(self._up, client, daemon, tasks)
            await self._down(client, daemon)
            tasks.cancel_scope.cancel()

    async def _up(self, client: ByteStream, daemon: ByteStream, tasks: TaskGroup) -> None:
        try:
            while True:
                data = await receive_from(client)
                begins = data.split(b" ", 1)[0] in {b"GET", b"POST", b"PUT", b"DELETE", b"HEAD"}
                self.writes += begins and not data.startswith(_READING)
                if await self._answers_itself(client, data):
                    break
                await daemon.send(data)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        tasks.cancel_scope.cancel()

    async def _answers_itself(self, client: ByteStream, data: bytes) -> bool:
        match self.trouble:
            case Trouble.ERROR:
                await client.send(_ERROR)
                return True
            case Trouble.GARBAGE:
                await client.send(_GARBAGE)
                return True
            case Trouble.SILENCE:
                await self._over.wait()
                return True
            case Trouble.SLOW:
                await anyio.sleep(0.5 if data.startswith(b"GET /v") else 0)
        return False

    async def _down(self, client: ByteStream, daemon: ByteStream) -> None:
        try:
            while True:
                data = await receive_from(daemon)
                if self.trouble is Trouble.LOST_ANSWER and b"Api-Version" in data and b" 201 " in data[:20]:
                    return
                await client.send(data)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass


@asynccontextmanager
async def relay_to(docker: Daemon, directory: Path) -> AsyncIterator[Relay]:
    """Relay to the daemon while the body runs."""
    async with await anyio.create_unix_listener(directory / "relay") as listener, anyio.create_task_group() as tasks:
        relay = Relay(str(directory / "relay"), docker.socket)
        tasks.start_soon(listener.serve, relay.serve)
        yield relay
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def harness(docker: Daemon, directory: Path, timeout: float = 30.0) -> AsyncIterator[Harness]:
    """What the conformance suite may do; in the end no container of the group may be left."""
    name = f"test-{uuid4().hex[:8]}"
    async with relay_to(docker, directory) as relay:
        config = DockerGroupConfig(name=name, socket=relay.socket, max_size=12, timeout=timeout, owner_mark=True)

        async def alive() -> Sequence[str]:
            return await containers(docker, name, "running")

        async def kill(instance: str) -> None:
            async with docker.engine() as engine:
                await engine.ask("POST", f"/containers/{instance}/kill")

        numbers = itertools.count()

        async def launch(count: int) -> None:
            async with docker.engine() as engine:
                for number in itertools.islice(numbers, count):
                    labels = {GROUP: name, OWNER: "another", HOST_KEY: "ssh-ed25519 AAAA"}
                    body = {"Image": IMAGE, "Cmd": ["sleep", "1000"], "Labels": labels}
                    body["HostConfig"] = {"NetworkMode": "none"}
                    other = f"{name}-{number + 1:012x}"
                    await engine.ask("POST", "/containers/create", query={"name": other}, json=body)
                    await engine.ask("POST", f"/containers/{other}/start")

        kinds = (Trouble.ERROR, Trouble.GARBAGE, Trouble.LOST_ANSWER, Trouble.SILENCE, Trouble.SLOW)
        try:
            yield Harness(
                make=lambda: DockerGroup(config),
                kill=kill,
                alive=alive,
                launch=launch,
                troubles={kind: partial(relay.having, kind) for kind in kinds},
                writes=lambda: relay.writes,
                deadline=LONG,
                patience=40,
                settle=0.5,
                poll=0.05,
                crowd=2,
                unknown_id=f"{name}-000000000000",
                cannot=dict.fromkeys(
                    ("troubles", "set_state", "secrets", "trouble_after", "requests", "room", "respelled", "elsewhere"),
                    "a daemon has no such trouble, no state by request, and the settings no secrets",
                ),
            )
        finally:
            with anyio.CancelScope(shield=True):
                await clear_away(docker, name)


async def clear_away(docker: Daemon, group: str) -> None:
    """Remove all containers of a group. The daemon may be removing some already, and refuses to be asked again."""
    async with docker.engine() as engine:
        while left := await containers(docker, group):
            for name in left:
                with suppress(EngineRefused):
                    await engine.ask("DELETE", f"/containers/{name}", query={"force": True})
        for volume in await Marks(engine, group)._volumes():
            with suppress(EngineRefused):
                await engine.ask("DELETE", f"/volumes/{volume[0]}")


async def containers(docker: Daemon, group: str, state: str = "") -> Sequence[str]:
    """Names of a group's containers, not by way of the group."""
    async with docker.engine() as engine:
        query = {"all": True, "filters": {"label": [f"{GROUP}={group}"]}}
        listed = await engine.ask("GET", "/containers/json", query=query)
    return [each["Names"][0].removeprefix("/") for each in listed if state in ("", each["State"])]
