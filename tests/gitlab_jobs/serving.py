"""A coordinator behind a real socket, for runners that are programs of their own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from socket import create_server

import anyio
from anycorn import Config, serve
from starlette.types import ASGIApp

from gitlab_jobs.testing import FakeGitLab


@asynccontextmanager
async def served(
    gitlab: FakeGitLab, application: ASGIApp | None = None, *, idle: float = 60.0, certificate: Path | None = None
) -> AsyncIterator[str]:
    """Listen on a port of this machine; gives the address for runners. Another *application* may stand before it.

    The head of a request has *idle* seconds to come. With a file that has a certificate and its key, it speaks TLS.
    """
    stop = anyio.Event()
    with create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        config = Config()
        config.bind = [f"fd://{listener.detach()}"]
        config.errorlog = None
        config.certfile = config.keyfile = None if certificate is None else str(certificate)
        config.graceful_timeout = 1.0
        config.keep_alive_timeout = idle
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: serve(application or gitlab.application(), config, shutdown_trigger=stop.wait))  # type: ignore[arg-type]
            try:
                yield f"{'https' if certificate else 'http'}://127.0.0.1:{port}"
            finally:
                stop.set()
