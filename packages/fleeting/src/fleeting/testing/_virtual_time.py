"""Virtual time on both backends: whoever sleeps is woken at once, and the clock says that time has passed.

In a test module, or in ``conftest.py`` for many of them::

    from fleeting.testing import virtual_time

    anyio_backend = virtual_time

and every test there that carries ``pytest.mark.anyio`` runs on asyncio and on trio, each with a clock of
its own that starts at 0. Without pytest: ``anyio.run(main, **virtual_run("trio"))``.

Time passes only while nothing else can happen, so what a test sees is the same on every machine. Keep
threads, sockets and processes out of it: trio's clock does not wait for them. (asyncio's waits for anyio's
worker threads, and reports a deadlock; on trio a time limit of pytest's has to end it.)
"""

import asyncio  # noqa: TID251  (an event loop of asyncio cannot be made without it)
import math
import selectors
import threading
from typing import Any, Literal

from anyio._backends._asyncio import WorkerThread  # nothing public says which worker threads are busy

Backend = Literal["asyncio", "trio"]


class Deadlock(RuntimeError):
    """Every task waits, and nothing is left that could wake one."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop of asyncio that jumps to its next timer instead of waiting for it."""

    def __init__(self) -> None:
        """Start at 0, as trio's clock does."""
        self._now = 0.0
        super().__init__(_JumpingSelector(self))
        # A timer runs if it is due before the time plus this, which must therefore be large enough to
        # change the sum; asyncio's own nanosecond is lost after half a year.
        self._clock_resolution = math.ulp(1e9)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Let so much time pass."""
        self._now += seconds


class _JumpingSelector(selectors.DefaultSelector):
    """Waits only for what cannot be hurried: threads at work, files that are watched."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop
        self._bystanders = set(threading.enumerate())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Take what is ready; if nothing is, make the time of the next timer come."""
        if timeout == 0 and len(self.get_map()) == 1:  # no file is watched, and there is something else to do first
            return []
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self._thread_at_work():
            return super().select(timeout)
        if timeout is not None:
            self._loop.jump(timeout)
            return []
        if self._nothing_can_come():
            raise Deadlock(
                "deadlock: every task is waiting, but no timer is set, no thread is running and no file is watched"
            )
        return super().select(None)

    def _thread_at_work(self) -> bool:
        """Whether one of anyio's worker threads owes this loop a result."""
        return any(
            isinstance(thread, WorkerThread)
            and thread.loop is self._loop
            and not thread.stopping
            and thread not in thread.idle_workers
            for thread in threading.enumerate()
        )

    def _nothing_can_come(self) -> bool:
        """Whether only the loop's own wake-up pipe is watched, and no thread was started that may use it."""
        others = set(threading.enumerate()) - self._bystanders
        idle = {thread for thread in others if isinstance(thread, WorkerThread)}
        return len(self.get_map()) == 1 and others == idle


def virtual_backend(name: Backend) -> tuple[str, dict[str, Any]]:
    """Give the value of anyio's ``anyio_backend`` fixture: the backend and its options, made afresh."""
    if name == "asyncio":
        return name, {"loop_factory": VirtualTimeLoop}
    from trio.testing import MockClock

    return name, {"clock": MockClock(autojump_threshold=0)}


def virtual_run(name: Backend) -> dict[str, Any]:
    """Give the keyword arguments of `anyio.run` for one run in virtual time."""
    backend, options = virtual_backend(name)
    return {"backend": backend, "backend_options": options}
