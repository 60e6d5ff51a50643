"""Ends a command that runs here if this process is killed, so that it does not work on without its slot.

Nothing runs in a process that is killed, so another one has to: a shell that waits at a pipe, whose other end only
this process has. The kernel closes that end with the process, however it dies, on every system that has pipes. Which
process to end is in a file, into which the command itself writes it before it begins: so none is missed.
"""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from subprocess import DEVNULL
from tempfile import TemporaryDirectory
from typing import Final

import anyio

_WATCH: Final = """
! read -r _ || exit 0
left=$1
until read -r target < "$2/process"; do
    [ "$left" -gt 0 ] || break
    left=$((left - 1))
    sleep 0.1 2>/dev/null || sleep 1
done 2>/dev/null
rm -rf -- "$2"
[ "$target" ] && kill -TERM "$target" 2>/dev/null || exit 0
left=$1
while [ "$left" -gt 0 ]; do
    sleep 0.1 2>/dev/null || sleep 1
    kill -0 "$target" 2>/dev/null || exit 0
    left=$((left - 1))
done
kill -KILL "$target"
"""
"""A line on its standard input says that all is well."""

_BEGIN: Final = 'echo "$1$$" > "$2/process"; shift 2; exec "$@"'
"""A process group begins with a hyphen."""

_POLLS_PER_SECOND: Final = 10


@asynccontextmanager
async def ended_with_us(grace: float, *, group: bool) -> AsyncIterator[Callable[[Sequence[str]], Sequence[str]]]:
    """Have somebody watch while the body runs; gives a function that makes of a command one that is watched, once.

    Args:
        grace: Seconds between SIGTERM and SIGKILL.
        group: Whether the command leads a process group, all of which is ended; else it alone is.
    """
    with TemporaryDirectory(prefix="taskscaler-lease-", ignore_cleanup_errors=True) as directory:
        async with _watching(grace, directory):
            yield lambda command: ("/bin/sh", "-c", _BEGIN, "sh", "-" if group else "", directory, *command)


@asynccontextmanager
async def _watching(grace: float, directory: str) -> AsyncIterator[None]:
    reading, writing = os.pipe()
    try:
        watcher = await anyio.open_process(
            ("/bin/sh", "-c", _WATCH, "sh", str(round(grace * _POLLS_PER_SECOND)), directory),
            stdin=reading,
            stdout=DEVNULL,
            stderr=DEVNULL,
            start_new_session=True,  # what ends our process group, such as Ctrl-C, is not for it
        )
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):  # somebody has killed it
            os.write(writing, b"well\n")
        os.close(writing)
        with anyio.CancelScope(shield=True):
            await watcher.aclose()
