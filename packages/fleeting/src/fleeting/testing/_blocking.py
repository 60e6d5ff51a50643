"""Finds calls that hold up the event loop: those that wait without letting anybody else run."""

import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from threading import get_ident
from typing import Any

from attrs import define, field

from fleeting.testing._stepping import Resume, stepped

STALL = 0.25
"""Seconds that a step may wait in one go. Whoever waits for an endpoint with `Trouble.SLOW` waits longer."""


_TURNS = Path("/proc/thread-self/schedstat")
"""Where Linux counts how long this thread ran, and how long it could have run while others did."""


class _WouldBlock(OSError):
    """Ends a connection before it is made: to an endpoint on the same event loop it never would be."""


@define
class _Watch:
    """What is looked out for, in which thread."""

    thread: int | None = None
    """The thread that is in a step of a watched call; None: no step is under way."""

    call: list[str] = field(factory=list)
    """How that call has held up the event loop, or would have."""

    def notice(self, event: str, args: tuple[Any, ...]) -> None:
        """Look at what Python reports to its auditors before it happens."""
        if event == "socket.connect" and self.thread == get_ident() and args[0].gettimeout() != 0:
            self.call.append(f"it connects to {args[1]!r} with a blocking socket")
            raise _WouldBlock(self.call[-1])

    def step(self, seen: list[str], resume: Resume) -> object:
        """Perform a step of the call of which this was *seen*."""
        self.thread, self.call = get_ident(), seen
        waited = time.thread_time() + _others_turns() - time.perf_counter()
        try:
            return resume()
        finally:
            waited += time.perf_counter() - time.thread_time() - _others_turns()
            self.thread = None
            if waited > STALL:
                seen.append(f"between two awaits it waited {waited:.1f} s for something else")


def _others_turns() -> float:
    """Seconds for which this thread could have run while others had the processor; 0 where nobody counts them.

    Source: scheduler/sched-stats of the kernel's documentation; nanoseconds, the second number.
    """
    with suppress(OSError, ValueError, IndexError), _TURNS.open("rb") as file:
        return int(file.read(100).split()[1]) / 1e9
    return 0.0


async def held_up(call: Coroutine[Any, Any, object]) -> str:
    """Run *call*, whatever comes of it, and return how it held up the event loop; empty if it did not."""
    seen: list[str] = []
    with suppress(Exception):
        await stepped(call, step=partial(_watch().step, seen))
    return seen[0] if seen else ""


@cache
def _watch() -> _Watch:
    """The one watch: an auditor, once installed, stays."""
    watch = _Watch()
    sys.addaudithook(watch.notice)
    return watch
