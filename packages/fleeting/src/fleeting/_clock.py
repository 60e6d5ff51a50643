"""The clock of production: the event loop's own time, anchored once to the calendar."""

import time
from collections.abc import Callable

import anyio
from anyio.lowlevel import current_token


class LoopClock:
    """The event loop's monotonic time, in seconds since the epoch.

    Anchored when it is made, inside a running event loop, and never after: durations stay right when
    the system's clock is stepped, and under a virtual loop time it is virtual too.
    """

    def __init__(self, epoch: float | None = None) -> None:
        """Anchor the loop's current time at *epoch*, or at the system's clock if it is None."""
        start = time.time() if epoch is None else epoch  # noqa: TID251  (the one place that reads it)
        token = current_token()
        # Looked up once: anyio would ask at each call which loop runs. Of trio there is no object with a time.
        self._time: Callable[[], float] = getattr(token.native_token, "time", token.backend_class.current_time)
        self._offset = start - self._time()

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._time() + self._offset

    async def sleep_until(self, at: float) -> None:
        """Return once `now` is *at* or later."""
        await anyio.sleep_until(at - self._offset)
