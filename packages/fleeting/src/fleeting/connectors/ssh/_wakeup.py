"""How a thread wakes tasks: the one bridge from paramiko's reading threads to the event loop, asyncio's or trio's."""

from collections.abc import Callable
from contextlib import suppress

import anyio
from anyio.lowlevel import checkpoint, current_token


class Wakeup:
    """Wakes whoever waits on it; may be called from any thread, and a loop that has ended is spared.

    It carries no news: who waits looks at what it waits for, then waits again. Calls that the loop has not heard
    yet are one, so a fast thread does not flood it.
    """

    def __init__(self) -> None:
        """Belong to the running event loop."""
        self._call_soon = _call_soon()
        self._woken = False
        self._heard: anyio.Event | None = None

    def wake(self) -> None:
        """Wake who waits."""
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop has ended, and nobody waits; trio's error is one too
                self._call_soon(self._wake)

    async def wait_for(self, condition: Callable[[], object]) -> None:
        """Return once *condition* holds; it is looked at again after each `wake`.

        Others run meanwhile, also if it holds at once: a host that sends faster than we take would else keep every
        loop that waits here going, and everything else waiting.
        """
        if condition():
            await checkpoint()
        while not condition():
            if self._heard is None or self._heard.is_set():
                self._heard = anyio.Event()
            await self._heard.wait()

    def _wake(self) -> None:
        self._woken = False
        if self._heard is not None:
            self._heard.set()


class Signal:
    """Stands where paramiko expects a `threading.Event`, and wakes whoever waits."""

    def __init__(self, wakeup: Wakeup) -> None:
        """Call *wakeup* when set."""
        self.is_set = False
        self._wakeup = wakeup

    def set(self) -> None:
        """Say that what was waited for has happened."""
        self.is_set = True
        self._wakeup.wake()


def _call_soon() -> Callable[[Callable[[], None]], object]:
    """The thread-safe way to have the running loop call something."""
    loop = current_token().native_token
    name = "call_soon_threadsafe" if hasattr(loop, "call_soon_threadsafe") else "run_sync_soon"
    call_soon: Callable[[Callable[[], None]], object] = getattr(loop, name)
    return call_soon
