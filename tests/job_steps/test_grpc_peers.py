"""Our ends of gRPC beside Google's own: our client calls a server of grpcio, and its client calls our server."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest
from anyio import to_thread
from anyio.abc import ByteStream

from job_steps._call_errors import CallFailed, ConnectionLost
from job_steps._call_status import Code
from job_steps._grpc_client import GrpcClient, Responses, connect
from job_steps._grpc_server import Handler, Respond, serve
from tests.time_limits import NEVER_REACHED, longer_and_longer

pytestmark = pytest.mark.anyio

LARGE = 3 << 20


class _Theirs(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A service of grpcio's that does what its path says."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Find what does it."""
        one = {"/t.T/Echo": self._echo, "/t.T/Fail": self._fail, "/t.T/Hang": self._hang}
        many = {"/t.T/Count": self._count}
        if details.method in one:
            return grpc.unary_unary_rpc_method_handler(one[details.method])
        return grpc.unary_stream_rpc_method_handler(many[details.method]) if details.method in many else None

    def _echo(self, request: bytes, _: grpc.ServicerContext) -> bytes:
        return request

    def _fail(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not\nyet: 100 % ü")
        return request

    def _hang(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        while context.is_active():
            context.set_trailing_metadata(())
        return request

    def _count(self, request: bytes, _: grpc.ServicerContext) -> Iterator[bytes]:
        for number in range(int(request)):
            yield str(number).encode()


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[str]:
    """A socket where grpcio serves."""
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers((_Theirs(),))
    path = str(tmp_path / "s")
    server.add_insecure_port(f"unix:{path}")
    server.start()
    yield path
    server.stop(None).wait()


@asynccontextmanager
async def _client(path: str) -> AsyncIterator[GrpcClient]:
    async with connect(await anyio.connect_unix(path)) as client:
        yield client


async def test_our_client_calls_googles_server(theirs: str) -> None:
    """Messages small, empty and large; errors with all that is said in them; streams; and all of it at one time."""
    async with _client(theirs) as client:
        for request in (b"", b"x", bytes(LARGE)):
            assert await client.call("/t.T/Echo", request, timeout=NEVER_REACHED) == request
        with pytest.raises(CallFailed) as failed:
            await client.call("/t.T/Fail", b"", timeout=NEVER_REACHED)
        assert (failed.value.code, str(failed.value)) == (Code.FAILED_PRECONDITION, "not\nyet: 100 % ü")
        with pytest.raises(CallFailed) as failed:
            await client.call("/t.T/None", b"", timeout=NEVER_REACHED)
        assert failed.value.code is Code.UNIMPLEMENTED
        counted = [int(one) async for one in Responses(client, "/t.T/Count", b"3000", bytes)]
        assert counted == list(range(3000))
        answers: list[bytes] = []

        async def echo(request: bytes) -> None:
            answers.append(await client.call("/t.T/Echo", request, timeout=NEVER_REACHED))

        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(echo, bytes([number]) * 10_000)
        assert {answer[0] for answer in answers} == set(range(30))


async def test_a_call_that_takes_too_long_ends_and_the_connection_goes_on(theirs: str) -> None:
    """The service is told to stop, and answers the next call."""
    async with _client(theirs) as client:
        with pytest.raises(CallFailed) as failed:
            await client.call("/t.T/Hang", b"", timeout=0.05)
        assert failed.value.code is Code.DEADLINE_EXCEEDED
        async for _ in Responses(client, "/t.T/Count", b"1000000", bytes):
            break
        assert await client.call("/t.T/Echo", b"on", timeout=NEVER_REACHED) == b"on"


@asynccontextmanager
async def _ours(path: str, handlers: Mapping[str, Handler]) -> AsyncIterator[None]:
    """Serve at a socket."""
    listener = await anyio.create_unix_listener(path)
    async with listener, anyio.create_task_group() as tasks:

        async def answer(stream: ByteStream) -> None:
            await serve(stream, handlers)

        tasks.start_soon(listener.serve, answer)
        yield
        tasks.cancel_scope.cancel()


async def _ask(path: str, call: Callable[[grpc.Channel], object]) -> object:
    """Do something with a channel of grpcio's, in a thread."""

    def do() -> object:
        with grpc.insecure_channel(f"unix:{path}", options=[("grpc.max_receive_message_length", -1)]) as channel:
            return call(channel)

    return await to_thread.run_sync(do)


async def test_googles_client_calls_our_server(tmp_path: Path) -> None:
    """As the other way round."""
    path = str(tmp_path / "s")

    async def echo(request: bytes, respond: Respond) -> None:
        await respond(request)

    async def fail(*_: object) -> None:
        raise CallFailed(Code.NOT_FOUND, "not\nhere: 100 % ü")

    async def breaks(*_: object) -> None:
        raise LookupError("a secret")

    async def count(request: bytes, respond: Respond) -> None:
        for number in range(int(request)):
            await respond(str(number).encode())

    handlers: dict[str, Handler] = {"/t.T/Echo": echo, "/t.T/Fail": fail, "/t.T/Breaks": breaks, "/t.T/Count": count}

    def call(channel: grpc.Channel) -> object:
        for request in (b"", b"x", bytes(LARGE)):
            assert channel.unary_unary("/t.T/Echo")(request, timeout=NEVER_REACHED) == request
        said = []
        for method in ("Fail", "Breaks", "None"):
            with pytest.raises(grpc.RpcError) as failed:
                channel.unary_unary(f"/t.T/{method}")(b"", timeout=NEVER_REACHED)
            error: Any = failed.value
            said.append((error.code(), error.details()))
        assert len(list(channel.unary_stream("/t.T/Count")(b"5000"))) == 5000
        return said

    async with _ours(path, handlers):
        said = await _ask(path, call)
    assert said == [
        (grpc.StatusCode.NOT_FOUND, "not\nhere: 100 % ü"),
        (grpc.StatusCode.INTERNAL, "the service has an error of its own; see what it logs"),
        (grpc.StatusCode.UNIMPLEMENTED, "there is no /t.T/None here"),
    ]


async def test_a_caller_of_googles_that_gives_up_ends_what_we_do_for_it(tmp_path: Path) -> None:
    """By its deadline, of which our end learns, and by breaking off."""
    path, begun, ended = str(tmp_path / "s"), anyio.Event(), [anyio.Event(), anyio.Event()]

    async def hang(request: bytes, respond: Respond) -> None:
        try:
            await respond(b"begun")
            begun.set()
            await anyio.sleep_forever()
        finally:
            ended[int(request)].set()

    def by_deadline(channel: grpc.Channel) -> object:
        limits = longer_and_longer(0.2)
        while True:
            limit = next(limits)
            with pytest.raises(grpc.RpcError) as failed:
                list(channel.unary_stream("/t.T/Hang")(b"0", timeout=limit))
            if begun.is_set():
                break
        error: Any = failed.value
        return error.code()

    def by_hand(channel: grpc.Channel) -> None:
        call = channel.unary_stream("/t.T/Hang")(b"1")
        next(call)
        call.cancel()

    async with _ours(path, {"/t.T/Hang": hang}):
        assert await _ask(path, by_deadline) is grpc.StatusCode.DEADLINE_EXCEEDED
        await _ask(path, by_hand)
        await ended[0].wait()
        await ended[1].wait()


async def test_a_service_that_ends_within_a_call_is_a_connection_lost(tmp_path: Path) -> None:
    """The call that is under way hears it, and every later one."""
    path, begun = str(tmp_path / "s"), anyio.Event()

    async def hang(*_: object) -> None:
        begun.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks, _ours(path, {"/t.T/Hang": hang}):

        async def call() -> None:
            async with _client(path) as client:
                for _ in range(2):
                    with pytest.raises(ConnectionLost, match="the connection to the service has ended"):
                        await client.call("/t.T/Hang", b"", timeout=NEVER_REACHED)

        tasks.start_soon(call)
        await begun.wait()
