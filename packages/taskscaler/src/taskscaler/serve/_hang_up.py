"""Who asks may hang up before the answer is there."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from starlette.types import Receive

T = TypeVar("T")


class Gone(Exception):
    """Who has asked hung up."""


async def unless_gone(receive: Receive, answer: Callable[[], Awaitable[T]]) -> T:
    """Answer, unless who has asked hangs up before.

    Raises:
        Gone: They did; what was under way was cancelled.
    """
    results: list[T] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            results.append(await answer())
        except Exception as error:  # noqa: BLE001  (raised below: the group would wrap it)
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not results:
        raise Gone
    return results[0]
