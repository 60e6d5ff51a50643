"""Commands: started in sessions of their own, their output passed on as it comes, ended with all they have started."""

import fcntl
import os
import signal
import struct
import sys
import termios
from collections.abc import Awaitable, Callable, Mapping, Sequence
from subprocess import DEVNULL, Popen

import anyio
from anyio import to_thread
from attrs import define, field, frozen

from job_steps._errors import StepFailed
from job_steps._results import Resources

GRACE = 2.0
"""Seconds between asking a command to end and ending it."""

_CHUNK = 64 * 1024

_BLOCK = 512
"""Bytes in which what was read and written is counted."""

_MEMORY_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in which memory is counted."""

Sink = Callable[[bytes], Awaitable[None]]
"""Where output goes, in pieces of at most 64 KiB; the command waits while it does."""


@frozen
class Ended:
    """How a command ended."""

    code: int
    """Its exit status, or the signal that ended it as a negative number."""
    resources: Resources
    """What it has used, and all that it has waited for."""


async def run_command(command: Sequence[str], *, cwd: str, env: Mapping[str, str], sink: Sink) -> Ended:
    """Run a command until it ends.

    It reads nothing, and writes its output and errors to one pipe, in order. What it has left running in the
    background lives on when it ends by itself, but nobody reads its output any more. If the call is cancelled, the
    command and what it has started are told to end, and are killed after `GRACE`.

    Raises:
        StepFailed: It cannot be started.
        Exception: What *sink* raises; the command has been ended then.
    """
    reading, writing = os.pipe()
    try:
        os.set_blocking(reading, False)
        try:
            process = _start(command, cwd=cwd, env=env, output=writing)
        finally:
            os.close(writing)
        running = _Running(process)
        async with anyio.create_task_group() as tasks:
            output = _Output(reading, sink, tasks.cancel_scope)
            tasks.start_soon(running.wait)
            tasks.start_soon(output.pass_on)
            try:
                await running.over.wait()
                output.end()
            finally:
                await running.end()
    finally:
        os.close(reading)
    if output.error:
        raise output.error
    if running.ended is None:
        raise RuntimeError("a command that has not ended")
    return running.ended


def _start(command: Sequence[str], *, cwd: str, env: Mapping[str, str], output: int) -> "Popen[bytes]":
    program = command[0]
    try:
        return Popen(  # noqa: S603  (to run what a file says is what this is for; what may, `admit` decides)
            [*command], stdin=DEVNULL, stdout=output, stderr=output, cwd=cwd, env=dict(env), start_new_session=True
        )
    except FileNotFoundError as error:
        if error.filename == cwd:
            raise StepFailed(f"there is no directory `{cwd}` to run the command in") from error
        where = "" if "/" in program else " in PATH"
        raise StepFailed(f"there is no program `{program}`{where}") from error
    except NotADirectoryError as error:
        raise StepFailed(f"`{error.filename or cwd}` is not a directory; expected one to run the command in") from error
    except OSError as error:
        raise StepFailed(f"the program `{program}` cannot be started: {error.strerror or error}") from error
    except ValueError as error:  # half of a character, which no environment can have
        raise StepFailed(f"the program `{program}` cannot be started: {error}") from error


@define
class _Running:
    """A command that runs: a thread waits for it, because only who waits learns what it has used."""

    process: "Popen[bytes]"
    over: anyio.Event = field(factory=anyio.Event)
    ended: Ended | None = None

    async def wait(self) -> None:
        """Wait until it has ended, whatever is cancelled: `end` is what makes it."""
        with anyio.CancelScope(shield=True):
            self.ended = await to_thread.run_sync(self._wait, limiter=anyio.CapacityLimiter(1))
        self.over.set()

    async def end(self) -> None:
        """Tell it, and all of its session's group, to end; kill what does not. Nothing, if it has ended."""
        if self.over.is_set():
            return
        with anyio.CancelScope(shield=True):
            _signal(self.process.pid, signal.SIGTERM)
            with anyio.move_on_after(GRACE):
                await self.over.wait()
            _signal(self.process.pid, signal.SIGKILL)
            await self.over.wait()

    def _wait(self) -> Ended:
        _, status, used = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)  # or Popen would wait, too
        resources = Resources(
            cpu_seconds=used.ru_utime + used.ru_stime,
            peak_memory=used.ru_maxrss * _MEMORY_UNIT,
            read_bytes=used.ru_inblock * _BLOCK,
            written_bytes=used.ru_oublock * _BLOCK,
        )
        return Ended(self.process.returncode, resources)


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass  # all have ended
    except PermissionError:
        pass  # on macOS, of a group with nothing but a zombie


@define
class _Output:
    """The end of a pipe that a command writes to."""

    reading: int
    sink: Sink
    all: anyio.CancelScope
    """Around everything, for when the sink takes no more."""
    waiting: anyio.CancelScope = field(factory=anyio.CancelScope)
    """Around the wait for more."""
    left: int | None = None
    """Bytes that are still to be passed on, once the command has ended."""
    error: Exception | None = None
    """What the sink raised."""

    async def pass_on(self) -> None:
        """Read until nobody writes any more, or until what the command has written is read."""
        try:
            await self._pass_on()
        except Exception as error:  # noqa: BLE001  (raised again, outside of the group, which would wrap it)
            self.error = error
            self.all.cancel()

    async def _pass_on(self) -> None:
        while self.left is None:
            self.waiting = anyio.CancelScope()
            with self.waiting:
                await anyio.wait_readable(self.reading)
            if self.left is not None:
                break
            if await self._read(_CHUNK) == 0:
                return
        left = self.left
        while left:
            count = await self._read(min(_CHUNK, left))
            if count <= 0:
                return
            left -= count

    def end(self) -> None:
        """Have no more read than is in the pipe now: what comes later, others have written."""
        (count,) = struct.unpack("i", fcntl.ioctl(self.reading, termios.FIONREAD, b"\0" * 4))
        self.left = count
        self.waiting.cancel()

    async def _read(self, most: int) -> int:
        """Pass on what there is, up to that many bytes; returns how many: 0 at the end, -1 if there is nothing now."""
        try:
            data = os.read(self.reading, most)
        except BlockingIOError:
            return -1
        if data:
            await self.sink(data)
        return len(data)
