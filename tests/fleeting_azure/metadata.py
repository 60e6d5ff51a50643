"""The metadata service that a machine on Azure asks about itself, on a port of this machine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from fleeting_azure._arm import NOTICE_PROBE


def event(kind: str, not_before: str, *resources: str) -> dict[str, object]:
    """An event as the service writes it."""
    return {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventStatus": "Scheduled",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": [*resources],
        "NotBefore": not_before,
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }


@asynccontextmanager
async def metadata(answer: str, name: str = "runners_1") -> AsyncIterator[str]:
    """Run the service; gives the probe, which asks it instead of Azure's."""

    async def serve(stream: SocketStream) -> None:
        async with stream:
            head = (await BufferedByteReceiveStream(stream).receive_until(b"\r\n\r\n", 65536)).decode()
            said = name if "/metadata/instance/compute/name?" in head else answer
            known = "metadata:true" in head.lower().replace(" ", "")
            status = "200 OK" if known else "400 Bad Request"
            await stream.send(f"HTTP/1.1 {status}\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode())

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        port = listener.extra(SocketAttribute.local_port)
        yield NOTICE_PROBE.replace("169.254.169.254", f"127.0.0.1:{port}")
        tasks.cancel_scope.cancel()
