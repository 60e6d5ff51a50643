"""Commands: started in sessions of their own, their output passed on as it comes, ended with all they have started."""

import fcntl
import os
import signal
import struct
import termios
from collections.abc import Awaitable, Callable, Mapping, Sequence
from subprocess import DEVNULL

import anyio
from anyio.abc import Process
from attrs import define, field

from job_steps._errors import StepFailed

GRACE = 2.0
"""Seconds between asking a command to end and ending it."""

_CHUNK = 64 * 1024

Sink = Callable[[bytes], Awaitable[None]]
"""Where output goes, in pieces of at most 64 KiB; the command waits while it does."""


async def run_command(command: Sequence[str], *, cwd: str, env: Mapping[str, str], sink: Sink) -> int:
    """Run a command until it ends; returns its exit code, or the signal that ended it as a negative number.

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
            process = await _start(command, cwd=cwd, env=env, output=writing)
        finally:
            os.close(writing)
        try:
            async with anyio.create_task_group() as tasks:
                output = _Output(reading, sink, tasks.cancel_scope)
                tasks.start_soon(output.pass_on)
                await process.wait()
                output.end()
        finally:
            if process.returncode is None:
                await _end(process)
    finally:
        os.close(reading)
    if output.error:
        raise output.error
    return process.returncode if process.returncode is not None else 1


async def _start(command: Sequence[str], *, cwd: str, env: Mapping[str, str], output: int) -> Process:
    program = command[0]
    try:
        return await anyio.open_process(
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


async def _end(process: Process) -> None:
    """Tell a command and all of its session's group to end; kill what does not."""
    with anyio.CancelScope(shield=True):
        _signal(process.pid, signal.SIGTERM)
        with anyio.move_on_after(GRACE):
            await process.wait()
        _signal(process.pid, signal.SIGKILL)
        await process.wait()


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
