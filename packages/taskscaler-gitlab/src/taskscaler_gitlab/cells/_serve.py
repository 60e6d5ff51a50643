"""A router in this process, until it is stopped."""

import json
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import anyio
from anyio import to_thread
from anyio.abc import SocketAttribute, TaskStatus
from attrs import define, field

from fleeting.plugins import place_to_listen
from taskscaler.serve import Entrance, Listen, Server, allow_open_files, listening_on_tcp
from taskscaler_gitlab.cells._cells import open_cells
from taskscaler_gitlab.cells._kept import Kept
from taskscaler_gitlab.cells._polls import Polls
from taskscaler_gitlab.cells._proxy import MOST_REMEMBERED, Router
from taskscaler_gitlab.cells._registered import RegisteredRunners
from taskscaler_gitlab.cells._registry_file import RegistryFile
from taskscaler_gitlab.cells._route import PARTING, Memory
from taskscaler_gitlab.cells._settings import RouterFile, RouterSettings
from taskscaler_gitlab.cells._tickets import Tickets, key_in

MOST_CONNECTIONS = 16_384
"""At a time: each runner that asks for jobs holds one."""

RETRY = 5
"""Seconds after which who was not let in is asked to come again."""

_LOOK = 0.05


def connections_of(open_files: int) -> int:
    """Say how many connections there may be, of the files that may be open: each needs one to a cell, too.

    A quarter is left for what is kept on the disk, and for requests that several cells hold.
    """
    return max(1, min(MOST_CONNECTIONS, open_files * 3 // 4 // 2))


def refusal(status: int, why: str) -> bytes:
    """Write what runners are answered who are not let in, as GitLab writes it."""
    body = json.dumps({"message": f"{status} {HTTPStatus(status).phrase} - {why}"}).encode()
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return f"{head}Retry-After: {RETRY}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@define(eq=False)
class Serving:
    """A router that answers."""

    urls: Sequence[str]
    """Where."""

    router: Router
    _server: Server
    _is_ending: anyio.Event = field(factory=anyio.Event, init=False)

    async def stop(self, seconds: float) -> None:
        """Answer those who wait for jobs that there are none, and let the rest come to its end, within the time."""
        self.router.polls.close()
        with anyio.move_on_after(seconds):
            while self.router.active:  # noqa: ASYNC110  (calls end by themselves)
                await anyio.sleep(_LOOK)
        with anyio.move_on_after(PARTING):
            while self.router.polls.open:  # noqa: ASYNC110  (the same)
                await anyio.sleep(_LOOK)
        with anyio.move_on_after(seconds):
            await self.router.polls.give_up_all()


@asynccontextmanager
async def routing(file: RouterFile, directory: Path, *, open_files: int = 1 << 16) -> AsyncIterator[Serving]:
    """Answer while the context is open; what is kept is in the directory, and so many files may be open.

    Raises:
        ConfigError: A certificate of a cell cannot be used.
        OSError: The directory cannot be used.
        SocketRefused: It cannot listen where it should.
    """
    entrance = await to_thread.run_sync(Entrance.of, _where(file.router))
    tickets = Tickets(await to_thread.run_sync(key_in, directory))
    jobs = Memory[bytes, str](MOST_REMEMBERED)
    async with (
        listening_on_tcp(entrance) as listeners,
        open_cells(file.cells) as cells,
        anyio.create_task_group() as tasks,
    ):
        polls = Polls(cells, Kept(directory / "kept"), jobs, file.router.hold, tasks)
        router = Router(cells, tickets, polls, jobs, Memory(MOST_REMEMBERED), registered_with(file, directory))
        most = connections_of(open_files)
        most_of_one = file.router.connections_per_client or max(1, most // 2)
        server = Server(router, most=most, admit=entrance.admit, most_per_client=most_of_one, refusal=refusal)
        tasks.start_soon(polls.look_after_kept)
        for listener in listeners:
            tasks.start_soon(server.serve, listener)
        ports = [listener.extra(SocketAttribute.local_port) for listener in listeners]
        try:
            yield Serving([entrance.url(port) for port in dict.fromkeys(ports)], router, server)
        finally:
            with anyio.CancelScope(shield=True):
                await server.close()
            tasks.cancel_scope.cancel()


def registry_of(file: RouterFile, directory: Path) -> RegistryFile:
    """Where a router keeps the runners that have registered with it."""
    life = None if file.registration is None else file.registration.token_expires_after
    return RegistryFile(directory, None if life is None else int(life))


def registered_with(file: RouterFile, directory: Path) -> RegisteredRunners | None:
    """Those runners; None: they cannot register."""
    if file.registration is None:
        return None
    return RegisteredRunners(registry_of(file, directory), file.registration_token, file.tokens)


async def run_router(file: RouterFile, directory: Path, say: Callable[[str], object]) -> int:
    """Answer until a signal comes; returns the exit status. Raises as `routing`."""
    async with anyio.create_task_group() as tasks:
        ended = _Ended()
        await tasks.start(ended.heed)
        async with routing(file, directory, open_files=allow_open_files()) as serving:
            names = ", ".join(file.cells)
            for url in serving.urls:
                say(f"routing {url} to the cells {names}")
            await ended.once.wait()
            say(f"ending: what is under way has {file.router.shutdown_timeout:g} s")
            with anyio.CancelScope() as scope:
                ended.scope = scope
                await serving.stop(file.router.shutdown_timeout)
        tasks.cancel_scope.cancel()
    return ended.status


@define
class _Ended:
    """How often it was asked to end."""

    once: anyio.Event = field(factory=anyio.Event, init=False)
    scope: anyio.CancelScope | None = field(default=None, init=False)
    status: int = field(default=0, init=False)

    async def heed(self, *, task_status: TaskStatus[None]) -> None:
        """End gently at the first signal, at once at the second."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
            task_status.started()
            async for number in received:
                if self.once.is_set():
                    self.status = 128 + number
                    if self.scope is not None:
                        self.scope.cancel()
                self.once.set()


def _where(settings: RouterSettings) -> Listen:
    host, port = place_to_listen(settings.listen)
    certificate = Path(settings.tls_cert_file) if settings.tls_cert_file else None
    key = Path(settings.tls_key_file) if settings.tls_key_file else None
    return Listen(
        host=host,
        port=port,
        certificate=certificate,
        key=key,
        option="`listen`",
        certificate_option="`tls_cert_file`",
        called="the router",
        plaintext=settings.plaintext,
    )
