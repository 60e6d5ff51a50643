"""Cancels a call at a chosen await, so that every one of them can be tried."""

from collections.abc import Coroutine
from itertools import count
from typing import Any

import anyio

from fleeting.testing._stepping import stepped

MAX_AWAITS = 20
"""How many awaits of one call are worth trying."""


async def interrupted(call: Coroutine[Any, Any, object], *, at: int) -> bool:
    """Run *call*, cancelling it when it waits for the *at*-th time, counted from 1.

    Returns:
        Whether it came that far. It may have ended well even so, if it shields what it does.
    """
    waits = count(1)
    with anyio.CancelScope() as scope:

        def cancel_in_time() -> None:
            if next(waits) == at:
                scope.cancel()

        await stepped(call, on_wait=cancel_in_time)
    return scope.cancel_called
