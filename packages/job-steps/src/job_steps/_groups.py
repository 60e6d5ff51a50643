"""A task group around one piece of work: what runs beside that ends with it, and its error comes out as it is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def beside() -> AsyncIterator[TaskGroup]:
    """Have tasks beside the body, which are cancelled when it ends; its error is not put into a group."""
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except Exception as error:  # noqa: BLE001  (raised again below, outside of the group, which would wrap it)
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
