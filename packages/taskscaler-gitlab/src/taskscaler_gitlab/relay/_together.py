"""Several things at a time, of which one ends the others, and what goes wrong is raised as it is, in no group."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


async def alongside(main: Callable[[], Awaitable[T]], *others: Callable[[], Awaitable[object]]) -> T:
    """Do one thing while others run, which end with it; what goes wrong with any of them ends all."""
    results: list[T] = []
    failures: list[Exception] = []
    async with anyio.create_task_group() as tasks:

        async def do(other: Callable[[], Awaitable[object]]) -> None:
            try:
                await other()
            except Exception as error:  # noqa: BLE001  (raised again below, by itself)
                failures.append(error)
                tasks.cancel_scope.cancel()

        for each in others:
            tasks.start_soon(do, each)
        try:
            results.append(await main())
        except Exception as error:  # noqa: BLE001  (the same)
            failures.append(error)
        tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]
    return results[0]


async def first(*waits: Callable[[], Awaitable[object]]) -> None:
    """Wait for one of several things."""
    failures: list[Exception] = []
    async with anyio.create_task_group() as tasks:

        async def wait(each: Callable[[], Awaitable[object]]) -> None:
            try:
                await each()
            except Exception as error:  # noqa: BLE001  (raised again below, by itself)
                failures.append(error)
            tasks.cancel_scope.cancel()

        for each in waits:
            tasks.start_soon(wait, each)
    if failures:
        raise failures[0]
