"""Runs a coroutine one step at a time, from one await to the next; whatever the backend."""

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Resume = Callable[[], Any]
"""Lets the call run to its next wait, and returns what it passes to the event loop there."""


class GiveUp(BaseException):
    """Ends a call that nothing else ends."""


@coroutine
def stepped(
    call: Coroutine[Any, Any, T],
    *,
    step: Callable[[Resume], Any] = lambda resume: resume(),
    on_wait: Callable[[], None] = lambda: None,
) -> Generator[Any, Any, T]:
    """Pass on what the call and the event loop say to each other.

    Args:
        call: What to run.
        step: Performs each step.
        on_wait: Called when the call waits for the event loop, before that learns of it. A `GiveUp` that it raises is
            thrown into the call; all else is raised at once.

    Returns:
        What the call returns.
    """
    resume: Resume = partial(call.send, None)
    while True:
        try:
            trap = step(resume)
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            on_wait()
        except GiveUp as error:
            resume = partial(call.throw, error)
            continue
        try:
            answer = yield trap
        except BaseException as error:  # noqa: BLE001  (whatever it is, it is the call's)
            resume = partial(call.throw, error)
        else:
            resume = partial(call.send, answer)
