"""Commands of the WinRM server of the tests: processes of this host, as WinRM's shells run theirs.

There is no cmd.exe here. A line for it is run by ``/bin/sh``; a program that is started without it gets its arguments
as Microsoft's C runtime takes a command line apart. What `programs` has comes first on the path: the tests put a
``powershell.exe`` there that they have written.
"""

import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import anyio
from anyio.abc import ByteReceiveStream, Process, TaskGroup
from attrs import define, field

AHEAD = 384 << 10
"""Bytes of output that are held for who asks for it; then the command waits."""

ANSWER = 96 << 10
"""Bytes of output in one answer: in base64, below the 150 KiB that clients take."""

LEFTOVER_PATIENCE = 0.5
"""Seconds after its end for which a command's outputs may be held open by what it left behind."""


@define(eq=False)
class Command:
    """A command that runs, or has ended."""

    process: Process
    held: dict[str, bytearray] = field(factory=lambda: {"stdout": bytearray(), "stderr": bytearray()})
    status: int | None = None
    """Set once it has ended, and all of its output is held."""

    is_terminated: bool = False
    is_feeding: bool = False
    changed: anyio.Event = field(factory=anyio.Event)

    @classmethod
    async def start(cls, argv: list[str], env: Mapping[str, str], cwd: str | None, tasks: TaskGroup) -> "Command":
        """Start it, in a process group of its own; raises what `subprocess` would."""
        command = cls(await anyio.open_process(argv, env=env, cwd=cwd, start_new_session=True))
        tasks.start_soon(command._attend)
        return command

    async def receive(self, patience: float) -> tuple[list[tuple[str, bytes]], int | None] | None:
        """Take what it has written, waiting for something to tell; None if nothing comes in time."""
        with anyio.move_on_after(patience):
            while not (any(self.held.values()) or self.status is not None or self.is_terminated):
                await self.changed.wait()
        if not (any(self.held.values()) or self.status is not None):
            return None
        room, taken = ANSWER, []
        for name, data in self.held.items():
            if part := bytes(data[:room]):
                del data[: len(part)]
                room -= len(part)
                taken.append((name, part))
        self._tell()
        return taken, None if any(self.held.values()) else self.status

    async def feed(self, data: bytes, *, end: bool, patience: float, tasks: TaskGroup) -> bool:
        """Give it input; False if it has not taken it in time, and goes on being given it."""
        self.is_feeding = True
        tasks.start_soon(self._feed, data, end)
        with anyio.move_on_after(patience):
            while self.is_feeding:
                await self.changed.wait()
        return not self.is_feeding

    @property
    def takes_input(self) -> bool:
        """Whether it might read any more."""
        return self.process.returncode is None

    def terminate(self) -> None:
        """End it, with all of its process group."""
        self.is_terminated = True
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._tell()

    async def _attend(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        async with anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as pumps:
                pumps.start_soon(self._pump, "stdout", self.process.stdout)
                pumps.start_soon(self._pump, "stderr", self.process.stderr)
                tasks.start_soon(self._end_leftovers, pumps)
            status = await self.process.wait()
            tasks.cancel_scope.cancel()
        await self.process.aclose()
        self.status = status if status >= 0 else 128 - status
        self.is_feeding = False
        self._tell()

    async def _end_leftovers(self, pumps: TaskGroup) -> None:
        await self.process.wait()
        await anyio.sleep(LEFTOVER_PATIENCE)
        while sum(map(len, self.held.values())) > AHEAD // 2:  # nobody has asked for it yet
            await self.changed.wait()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def _pump(self, name: str, source: ByteReceiveStream) -> None:
        held = self.held[name]
        with suppress(anyio.EndOfStream, anyio.ClosedResourceError):
            while True:
                while len(held) > AHEAD and not self.is_terminated:
                    await self.changed.wait()
                held += await source.receive()
                self._tell()

    async def _feed(self, data: bytes, end: bool) -> None:  # noqa: FBT001  (a task's arguments have no names)
        stdin = self.process.stdin
        assert stdin is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            if data:
                await stdin.send(data)
            if end:
                await stdin.aclose()
        self.is_feeding = False
        self._tell()

    def _tell(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


def environment(own: Mapping[str, str], programs: str | None) -> dict[str, str]:
    """What a command sees: this process's variables, and the shell's."""
    path = os.environ.get("PATH", "")
    return {**os.environ, "PATH": f"{programs}:{path}" if programs else path, **own}


def argv(program: str, arguments: str, env: Mapping[str, str], cwd: str | None) -> list[str]:
    """Take a command line apart, and find its program.

    Raises:
        FileNotFoundError: There is no such program.
    """
    found = list(split(f"{program} {arguments}" if arguments else program))
    name = found[0]
    if "/" in name:
        return [str(Path(cwd or ".", name)), *found[1:]]
    for directory in env["PATH"].split(":"):
        if os.access(Path(directory, name), os.X_OK):
            return [str(Path(directory, name)), *found[1:]]
    raise FileNotFoundError(name)


def split(line: str) -> Iterator[str]:
    """Take a command line apart as Microsoft documents it for the C runtime.

    Backslashes mean themselves unless a quote follows: then two are one, and an odd one makes the quote mean itself.
    """
    word, quoted, is_word = "", False, False
    for backslashes, quote, space, other in re.findall(r'(\\*)(?:(")|([ \t]+)|([^\\" \t]))|(?:\\+$)', line + "\0"):
        if other == "\0":
            word += backslashes
            is_word = is_word or bool(backslashes)
            break
        if quote:
            word += "\\" * (len(backslashes) // 2)
            is_word = True
            if len(backslashes) % 2:
                word += '"'
            else:
                quoted = not quoted
            continue
        word += backslashes
        is_word = is_word or bool(backslashes)
        if space and not quoted:
            if is_word:
                yield word
            word, is_word = "", False
        else:
            word += space or other
            is_word = True
    if is_word:
        yield word
