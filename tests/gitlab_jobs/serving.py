"""A coordinator behind a real socket, for runners that are programs of their own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import create_server

import anyio
from anycorn import Config, serve

from gitlab_jobs.testing import FakeGitLab


@asynccontextmanager
async def served(gitlab: FakeGitLab) -> AsyncIterator[str]:
    """Listen on a port of this machine; gives the address for runners."""
    stop = anyio.Event()
    with create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        config = Config()
        config.bind = [f"fd://{listener.detach()}"]
        config.errorlog = None
        config.graceful_timeout = 1.0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: serve(gitlab.application(), config, shutdown_trigger=stop.wait))  # type: ignore[arg-type]
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                stop.set()
