"""Cancels a call at a chosen await, whatever the backend; so that every one of them can be tried."""

from collections.abc import Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any

import anyio


async def interrupted(call: Coroutine[Any, Any, object], *, at: int) -> bool:
    """Run *call*, cancelling it when it waits for the *at*-th time, counted from 1.

    Returns:
        Whether it came that far. It may have ended well even so, if it shields what it does.
    """
    with anyio.CancelScope() as scope:
        await _stepped(call, scope, at)
    return scope.cancel_called


@coroutine
def _stepped(call: Coroutine[Any, Any, object], scope: anyio.CancelScope, at: int) -> Generator[Any, Any, None]:
    """Pass on what the call and the event loop say to each other, and count."""
    waits = 0
    resume = partial(call.send, None)
    while True:
        try:
            trap = resume()
        except StopIteration:
            return
        waits += 1
        if waits == at:
            scope.cancel()
        try:
            answer = yield trap
        except BaseException as error:  # noqa: BLE001  (whatever it is, it is the call's)
            resume = partial(call.throw, error)
        else:
            resume = partial(call.send, answer)
