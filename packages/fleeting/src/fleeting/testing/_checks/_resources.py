"""What a group takes on this machine, and how much of it: counted after every call, and after failed ones."""

import locale
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from http.client import HTTPConnection

from attrs import evolve

from fleeting.testing._harness import Call, Harness, Probe, Trouble, Violation, answer_of, new_intent
from fleeting.testing._holdings import released, settled

TIMES = 5
"""How often each call is repeated: what is left by each of them is left as often."""

FEW = 2
"""How often it is repeated at first, which is enough to see whether it is worth a closer look."""

OPENINGS = 3
"""How often a group is opened in a row, of which none may leave anything."""

QUICK = (Trouble.ERROR, Trouble.GARBAGE, Trouble.AUTH, Trouble.UNREACHABLE)
"""Troubles that end a call at once, in different places."""


async def check_calls_release_what_they_took(harness: Harness) -> None:
    """A call, successful or not, leaves no connection, file, task, thread or process behind."""
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        await _repeated(harness, _repeatable(probe, instance))
        for kind in (kind for kind in QUICK if kind in harness.troubles):
            await _repeated(harness, {**probe.calls(instance), "init": partial(_failing_init, harness, [])}, kind)


def _repeatable(probe: Probe, instance: str) -> Mapping[str, Call]:
    """The calls that can be made any number of times with the same outcome."""
    calls: dict[str, Call] = {**probe.reads(instance)}
    calls["decrease"] = partial(probe.group.decrease, [probe.harness.unknown_id])
    return calls


async def _repeated(harness: Harness, calls: Mapping[str, Call], kind: Trouble | None = None) -> None:
    """Make each call a few times, and look at each by itself if more is held after all of them than after the first."""
    await _during(harness, kind, calls.values())
    before = await settled(harness, pooled=True)
    await _during(harness, kind, [call for call in calls.values() for _ in range(FEW)])
    if (await settled(harness, pooled=True)).more_than(before, FEW - 1):
        for name, call in calls.items():
            await _repeated_alone(harness, name, call, kind)


async def _repeated_alone(harness: Harness, name: str, call: Call, kind: Trouble | None) -> None:
    """Make a call several times, after which not one thing more for each call may be held than after the first."""
    await _during(harness, kind, [call])
    before = await settled(harness, pooled=True)
    await _during(harness, kind, [call] * TIMES)
    seen = f"{TIMES} calls of {name}{_while(kind)} have "
    clause = "a call leaves no connection, file, task, thread or process behind"
    await released(harness, before, clause, seen, allowed=TIMES - 1, pooled=True)


async def _during(harness: Harness, kind: Trouble | None, calls: Iterable[Call]) -> None:
    """Make calls, in a trouble if there is to be one."""
    with _unheard():
        async with nullcontext() if kind is None else harness.trouble(kind):
            for call in calls:
                await answer_of(call())


@contextmanager
def _unheard() -> Iterator[None]:
    """Log nothing: test runners keep what is logged, and with it errors, their tracebacks and open connections."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _while(kind: Trouble | None) -> str:
    """The trouble, in words."""
    return "" if kind is None else f" while the cloud {kind.value}"


async def check_openings_add_nothing_up(harness: Harness) -> None:
    """However often a group is opened and closed, or fails to open, it holds no more than before."""
    async with harness.opened():
        pass  # what is made once per process, such as an import's, is made now
    before = await settled(harness)
    for _ in range(OPENINGS):
        await harness.open_and_close()
    await released(harness, before, "what init took, shutdown releases", f"{OPENINGS} groups that were closed have ")
    failed: list[object] = []  # kept, because the garbage collector hides what they leave
    for kind in (kind for kind in QUICK if kind in harness.troubles):
        async with harness.trouble(kind):
            with _unheard():
                for _ in range(OPENINGS):
                    await _failing_init(harness, failed)
        seen = f"{OPENINGS} calls of init{_while(kind)} have "
        await released(harness, before, "an init that fails releases what it took; nobody will call shutdown", seen)


async def _failing_init(harness: Harness, failed: list[object]) -> None:
    """Open a group while that fails; close it if it does not."""
    group = harness.make()
    failed.append(group)
    if (await answer_of(group.init(evolve(harness.settings, observe_only=True)))).error is None:
        await group.shutdown()


async def check_process_is_left_as_it_was(harness: Harness) -> None:
    """A group changes nothing that belongs to the whole process: environment, logging, library defaults."""
    before = _process()
    async with harness.opened() as probe:
        (instance,) = await probe.grow(1)
        for call in probe.reads(instance).values():
            await answer_of(call())
        await answer_of(probe.group.increase(1, intent=new_intent()))
        open_now = _process()
        await probe.rest(harness.settle)  # so that all that comes is there to be deleted
    for when, now in {"while the group is open": open_now, "after shutdown": _process()}.items():
        if changed := [name for name, value in before.items() if now[name] != value]:
            clause = "a group does not change the state of the whole process"
            raise Violation(clause, f"{when}, {changed[0]} had changed")


def _process() -> Mapping[str, object]:
    """What belongs to all code in this process."""
    root = logging.getLogger()
    return {
        "the environment": dict(os.environ),
        "the working directory": os.getcwd(),  # noqa: PTH109  (Path.cwd is the same call, and pyfakefs is not here)
        "the default time-out of sockets": socket.getdefaulttimeout(),
        "a handler of the root logger": list(root.handlers),
        "the level of the root logger": root.level,
        "the level below which nothing is logged": root.manager.disable,
        "a handler of a signal": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "sys.excepthook": sys.excepthook,
        "threading.excepthook": threading.excepthook,
        "the recursion limit": sys.getrecursionlimit(),
        "the locale": locale.setlocale(locale.LC_ALL),
        "the debug level of http.client": HTTPConnection.debuglevel,
        "the functions that look up names": (socket.getaddrinfo, socket.create_connection),
    }
