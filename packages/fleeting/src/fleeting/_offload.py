"""What most plugins need: the one place where blocking SDK calls leave the event loop, and a way back."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import ParamSpec, TypeVar

import anyio

P = ParamSpec("P")
T = TypeVar("T")


class Offload:
    """Runs blocking calls in worker threads, at most *limit* at once.

    A call is never abandoned: a cancelled caller gets its cancellation only after the thread has
    returned, so a change at a cloud is always known to be done or not done. The caller sets the SDK's own
    time-outs; they bound the wait. After a call that created something, record its result before the next
    ``await``: the result survives a cancellation, the next checkpoint does not.
    """

    def __init__(self, limit: int = 8) -> None:
        """Have threads of its own, so that one slow group starves no other."""
        self._limit = limit
        self._limiter: anyio.CapacityLimiter | None = None

    async def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run *call* in a thread and return what it returns, or raise what it raises."""
        from anyio import to_thread  # dear to import, and a bare ``import fleeting`` needs no threads

        if self._limiter is None:  # a limiter belongs to the event loop it is made in
            self._limiter = anyio.CapacityLimiter(self._limit)
        return await to_thread.run_sync(partial(call, *args, **kwargs), limiter=self._limiter)


@asynccontextmanager
async def undone_on_failure(undo: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Undo what was begun in here if it fails or is cancelled; what is undone is not cut off.

    For `InstanceGroup.init`, which gives back what it took if it raises: ``shutdown`` is not called then.
    """
    try:
        yield
    except BaseException:
        with anyio.CancelScope(shield=True):
            await undo()
        raise
