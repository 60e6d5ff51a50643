"""Counts what this process holds: open files, sockets, threads, tasks, child processes."""

import gc
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import anyio
from attrs import frozen

from fleeting.testing._harness import Harness, Violation

POOLED = ("AnyIO worker thread", "Trio thread ", "asyncio_")
"""How the threads are called in which anyio, trio and asyncio run what is offloaded, and which they keep."""

WAITING = {"anyio", "asyncio", "concurrent", "outcome", "queue", "threading", "trio"}
"""The packages whose code runs in such a thread while it has nothing to do."""

PLURALS = {
    "task": "tasks",
    "thread": "threads",
    "socket": "sockets",
    "open file": "open files",
    "child process": "child processes",
}
"""The kinds of things that are counted, one and many."""

STEADY = 3
"""After so many equal counts in a row, what was on its way out is out."""

LOOKS = 100
"""How often to count at most, before something is done."""

_FROZEN: ContextVar[list[int]] = ContextVar("_FROZEN")
"""How many objects were frozen before the check of this context froze any; empty until it does."""


@frozen
class Holdings:
    """What is held at one moment: names by kind, each as often as it is there."""

    names: Mapping[str, Counter[str]]

    def more_than(self, before: "Holdings", allowed: int = 0, spared: Collection[str] = ()) -> Sequence[str]:
        """Describe the kinds of which there are more than *allowed* more than *before*, with what is new.

        Args:
            before: What was held then.
            allowed: How many more of each kind are no matter.
            spared: Kinds that are no matter at all.
        """
        kinds = (self.names.keys() | before.names.keys()) - set(spared)
        none: Counter[str] = Counter()
        more = {
            kind: (
                self.names.get(kind, none).total() - before.names.get(kind, none).total(),
                self.names.get(kind, none) - before.names.get(kind, none),
            )
            for kind in sorted(kinds)
        }
        return [
            f"{number} more {kind if number == 1 else PLURALS[kind]} ({', '.join(sorted(new)[:3])})"
            for kind, (number, new) in more.items()
            if number > allowed
        ]


def held(*, pooled: bool = False) -> Holdings:
    """Count: by number, because two sockets or two threads can have the same name.

    Args:
        pooled: Whether threads of a pool that wait for work count too. Calls one after the other share one.
    """
    threads = [each for each in threading.enumerate() if pooled or not _is_idle(each)]
    files = list(_files())
    return Holdings(
        {
            "task": Counter(task.name or str(task.id) for task in anyio.get_running_tasks()),
            "thread": Counter(each.name for each in threads),
            "socket": Counter(each for each in files if each.startswith("socket:")),
            "open file": Counter(each for each in files if not each.startswith("socket:")),
            "child process": Counter(_children()),
        }
    )


async def settled(harness: Harness, *, pooled: bool = False) -> Holdings:
    """Count once the number has stopped falling: the other end of a connection may take a moment.

    What is there now is frozen until the check ends (`thawed_after`): looking for the garbage of later calls need not
    go through hundreds of thousands of objects of an SDK again.
    """
    clock = harness.settings.clock
    gc.collect()
    _freeze()
    last, steady = held(pooled=pooled), 0
    for _ in range(LOOKS):
        await clock.sleep_until(clock.now() + harness.poll)
        now = held(pooled=pooled)
        steady = 0 if last.more_than(now) else steady + 1
        last = now
        if steady == STEADY:
            break
    return last


async def released(
    harness: Harness,
    before: Holdings,
    clause: str,
    after: str = "",
    *,
    allowed: int = 0,
    spared: Collection[str] = (),
    pooled: bool = False,
) -> None:
    """Wait until no more is held than *before*, but for *allowed* things of each kind, and of the kinds *spared*.

    Raises:
        Violation: More is held after the harness's deadline.
    """
    clock = harness.settings.clock
    end = clock.now() + harness.deadline
    gc.collect()  # errors and their tracebacks, which hold on to answers and their connections, may refer to each other
    looks = 0
    while left := held(pooled=pooled).more_than(before, allowed, spared):
        if clock.now() >= end:
            raise Violation(clause, f"{after}left open: {', '.join(left)}")
        looks += 1
        if looks == STEADY:  # it may be what was there before, and has become garbage since
            gc.unfreeze()
            gc.collect()
            _freeze()
        await clock.sleep_until(clock.now() + harness.poll)


def _freeze() -> None:
    """Spare the collector all that is there now. The first time in a check, see what was frozen: that takes a while."""
    found = _FROZEN.get()
    if not found:
        found.append(gc.get_freeze_count())
    gc.freeze()


@contextmanager
def thawed_after() -> Iterator[None]:
    """Let the collector see again what a check freezes, unless something was frozen before: then it stays so."""
    found: list[int] = []
    token = _FROZEN.set(found)
    try:
        yield
    finally:
        _FROZEN.reset(token)
        if found == [0]:
            gc.unfreeze()


def _is_idle(thread: threading.Thread) -> bool:  # noqa: TID251  (only looked at)
    """Whether it is one of a pool that waits for work."""
    if not thread.name.startswith(POOLED):
        return False
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001  (the only way to see what a thread does)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in WAITING:
            return False
        frame = frame.f_back
    return True


def _files() -> Sequence[str]:
    """What each descriptor stands for, as far as the system says; not the one with which we look."""
    directory = Path("/proc/self/fd" if Path("/proc/self/fd").is_dir() else "/dev/fd")
    return [target for entry in directory.glob("*") if (target := _target(entry))]


def _target(entry: Path) -> str:
    """What a descriptor stands for; empty if it is closed already."""
    try:
        return str(entry.readlink())
    except FileNotFoundError:
        return ""
    except OSError:  # a system that does not say
        return f"descriptor {entry.name}"


def _children() -> Sequence[str]:
    """The ids of child processes, ended ones that nobody waited for included, if the system lists them."""
    lists = Path("/proc/self/task").glob("*/children")
    return [child for each in lists for child in _read(each).split()]


def _read(path: Path) -> str:
    """What a file says; nothing if its thread has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""
