"""Commands: started in sessions of their own, their output passed on as it comes, ended with all they have started."""

import errno
import fcntl
import os
import signal
import struct
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from subprocess import DEVNULL, Popen

import anyio
from anyio import to_thread
from attrs import define, evolve, field, frozen

from job_steps._cgroups import Group, oom_kills
from job_steps._errors import StepFailed
from job_steps._keeping import Keeping
from job_steps._launching import launched
from job_steps._limits import has_no_network
from job_steps._results import OutOfMemory, Resources

_HINTS = {
    errno.EACCES: "; is it executable? (chmod +x)",
    errno.ENOEXEC: "; is there a first line such as #!/bin/sh in it?",
}
"""What whoever wrote a command has most likely forgotten."""

GRACE = 2.0
"""Seconds between asking a command to end and ending it."""

_CHUNK = 64 * 1024

_BLOCK = 512
"""Bytes in which what was read and written is counted."""

_MEMORY_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in which memory is counted."""

_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""How a command ends that is killed, or whose last process is."""

Sink = Callable[[bytes], Awaitable[None]]
"""Where output goes, in pieces of at most 64 KiB; the command waits while it does."""


@frozen
class Ended:
    """How a command ended."""

    code: int
    """Its exit status, or the signal that ended it as a negative number."""
    resources: Resources
    """What it has used, and all that it has waited for."""
    out_of_memory: OutOfMemory | None = None
    """If it, or what it had started, was killed because it needed more memory than there was for it."""


async def run_command(
    command: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    sink: Sink,
    keeping: Keeping | None = None,
) -> Ended:
    """Run a command until it ends.

    It reads nothing, and writes its output and errors to one pipe, in order. What it has left running in the
    background lives on when it ends by itself, but nobody reads its output any more. If the call is cancelled, the
    command and what it has started are told to end, and are killed after `GRACE`.

    Args:
        command: A program, and its arguments.
        cwd: Where it runs.
        env: Its whole environment.
        sink: Where its output goes.
        keeping: What it may have, and where it gets a control group; without that, the kernel's figures of processes
            have to do.

    Raises:
        StepFailed: It cannot be started.
        Exception: What *sink* raises; the command has been ended then.
    """
    keeping = keeping or Keeping()
    limits, cgroups = keeping.limits, keeping.cgroups
    reading, writing = os.pipe()
    group = None
    try:
        os.set_blocking(reading, False)
        kills = oom_kills()
        try:
            group = cgroups.make() if cgroups else None
            has_limit = group is not None and limits.memory is not None and group.limit_memory(limits.memory)
            network = limits.network if limits.network and not has_no_network() else None
            is_inside = group is not None and (has_limit or network is not None)
            if has_limit or network:
                place = group.processes if group else None
                start = partial(_launch, command, cwd=cwd, env=env, output=writing, group=place, network=network)
                process = await to_thread.run_sync(start)
            else:
                process = _start(command, cwd=cwd, env=env, output=writing)
        finally:
            os.close(writing)
        if limits.memory is not None and not has_limit:
            keeping.watch(process.pid, group)
        running = _Running(process, keeping, group, is_inside=is_inside, kills=kills)
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
        if cgroups and group:
            cgroups.release(group)
    if output.error:
        raise output.error
    if running.ended is None:
        raise RuntimeError("a command that has not ended")
    return running.ended


def _start(command: Sequence[str], *, cwd: str, env: Mapping[str, str], output: int) -> "Popen[bytes]":
    with _reported(command[0], cwd):
        return Popen(  # noqa: S603  (to run what a file says is what this is for; what may, `admit` decides)
            [*command], stdin=DEVNULL, stdout=output, stderr=output, cwd=cwd, env=dict(env), start_new_session=True
        )


def _launch(
    command: Sequence[str], *, cwd: str, env: Mapping[str, str], output: int, group: str | None, network: str | None
) -> "Popen[bytes]":
    """Start it where its limits hold from the first moment on."""
    with _reported(command[0], cwd):
        started = launched(command, cwd=cwd, env=env, output=output, group=group, network=network)
        if started.process is None:
            if started.error and started.error.filename is None:
                raise StepFailed(f"its limits cannot be kept: {started.error.strerror or started.error}")
            raise started.error or RuntimeError("neither a process nor an error")
        return started.process


@contextmanager
def _reported(program: str, cwd: str) -> Iterator[None]:
    """Say why a command cannot be started."""
    try:
        yield
    except FileNotFoundError as error:
        if error.filename == cwd:
            raise StepFailed(f"there is no directory `{cwd}` to run the command in") from error
        if "/" in program and os.path.exists(os.path.join(cwd, program)):  # noqa: PTH110, PTH118  (it may not be a path)
            raise StepFailed(f"`{program}` names an interpreter in its first line that is not there") from error
        where = "" if "/" in program else " in PATH"
        raise StepFailed(f"there is no program `{program}`{where}") from error
    except NotADirectoryError as error:
        raise StepFailed(f"`{error.filename or cwd}` is not a directory; expected one to run the command in") from error
    except OSError as error:
        hint = _HINTS.get(error.errno or 0, "")
        raise StepFailed(f"the program `{program}` cannot be started: {error.strerror or error}{hint}") from error
    except ValueError as error:  # half of a character, which no environment can have
        raise StepFailed(f"the program `{program}` cannot be started: {error}") from error


@define
class _Running:
    """A command that runs: a thread waits for it, because only who waits learns what it has used."""

    process: "Popen[bytes]"
    keeping: Keeping
    group: Group | None
    is_inside: bool
    """Whether it was in that group before it was the command."""
    kills: int | None
    """What `oom_kills` had counted before."""
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
            if self.group:
                self.group.kill()
            await self.over.wait()

    def _wait(self) -> Ended:
        is_measured = self.is_inside or (self.group is not None and self.group.take(self.process.pid))
        _, status, used = os.wait4(self.process.pid, 0)
        code = self.process.returncode = os.waitstatus_to_exitcode(status)  # or Popen would wait, too
        resources = Resources(
            cpu_seconds=used.ru_utime + used.ru_stime,
            peak_memory=used.ru_maxrss * _MEMORY_UNIT,
            read_bytes=used.ru_inblock * _BLOCK,
            written_bytes=used.ru_oublock * _BLOCK,
        )
        group = self.group if is_measured else None
        if group:
            resources = group.measured(resources, is_whole=self.is_inside)
        had = self.keeping.killed(self.process.pid)
        if had is not None:
            resources = evolve(resources, peak_memory=max(resources.peak_memory, had))
        return Ended(code, resources, self._out_of_memory(code, group, resources) if code else None)

    def _out_of_memory(self, code: int, group: Group | None, resources: Resources) -> OutOfMemory | None:
        """Whether it was killed for that: by what keeps the limit, by its group, or by a group that this one is in."""
        limit, peak = self.keeping.limits.memory, resources.peak_memory
        if (had := self.keeping.killed(self.process.pid)) is not None:
            return OutOfMemory(had=had, allowed=limit)
        if group and (oom := group.oom) is not None:
            return OutOfMemory(had=peak, allowed=limit if oom.is_limit else None) if oom.kills else None
        if code not in _KILLED or self.kills is None or (oom_kills() or 0) <= self.kills:
            return None
        return OutOfMemory(had=peak, allowed=limit if limit is not None and peak > limit else None)


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
