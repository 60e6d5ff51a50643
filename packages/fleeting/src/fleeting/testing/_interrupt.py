"""Cancels a call at a chosen await, so that every one of them can be tried."""

from collections.abc import Coroutine
from typing import Any

import anyio

from fleeting.testing._harness import Violation
from fleeting.testing._stepping import GiveUp, stepped

MAX_AWAITS = 20
"""How many awaits of one call are worth trying."""

LAST_WORDS = 200
"""How often a call may wait after it was cancelled, to clear up; one that goes on for ever would never end."""


async def interrupted(call: Coroutine[Any, Any, object], *, at: int) -> bool:
    """Run *call*, cancelling it when it waits for the *at*-th time, counted from 1.

    Returns:
        Whether it came that far. It may have ended well even so, if it shields what it does.

    Raises:
        Violation: It goes on as if nothing were.
    """
    waits = 0
    deaf = Violation("a call that is cancelled ends", f"after {LAST_WORDS} more awaits, it had not ended")
    with anyio.CancelScope() as scope:

        def cancel_in_time() -> None:
            nonlocal waits
            waits += 1
            if waits == at:
                scope.cancel()
            if waits > at + 2 * LAST_WORDS:
                raise deaf
            if waits > at + LAST_WORDS:
                raise GiveUp

        try:
            await stepped(call, on_wait=cancel_in_time)
        finally:
            if waits > at + LAST_WORDS:  # whatever became of the `GiveUp`: task groups wrap it
                raise deaf from None
    return scope.cancel_called
