"""Real agents for tests: start them, watch processes end, and leave none behind."""

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from io import FileIO
from pathlib import Path

import anyio
from anyio.abc import UNIXSocketStream

from fleeting import Connection, InstanceGroup, LoopClock, Observed, Settings, State, dial
from fleeting.groups.local import LocalConfig, LocalGroup

POLL = 0.01
"""Seconds between two looks at a group; without, the one who looks takes the core that the agents need."""

DETACHED = "(setsid sh -c 'echo $$; exec sleep 1000' </dev/null &); "
"""Shell text that starts a process which has left its session and its parent, and tells its process id."""


@asynccontextmanager
async def opened(
    directory: Path,
    *,
    name: str = "test",
    boot_time: float = 0.0,
    orphan_ttl: float = 300.0,
    max_size: int | None = None,
) -> AsyncIterator[LocalGroup]:
    """Open a group in *directory*; in the end, kill its agents and close it."""
    group = LocalGroup(
        LocalConfig(directory=str(directory), name=name, boot_time=boot_time, orphan_ttl=orphan_ttl, max_size=max_size)
    )
    await group.init(Settings(owner="test", clock=LoopClock()))
    try:
        yield group
    finally:
        with anyio.CancelScope(shield=True):
            while left := list((await group.update()).instances):
                await group.decrease(left)
                await anyio.sleep(POLL)
            await group.shutdown()


async def seen(group: LocalGroup, condition: Callable[[dict[str, Observed]], bool]) -> dict[str, Observed]:
    """Look until what the group shows is as wanted."""
    while not condition(view := dict((await group.update()).instances)):  # noqa: ASYNC110  (only views tell)
        await anyio.sleep(POLL)
    return view


async def started(group: LocalGroup, count: int = 1, *, intent: str = "intent") -> list[str]:
    """Start instances, and return their ids once they all run."""
    before = (await group.update()).instances
    accepted = await group.increase(count, intent=intent)
    view = await seen(group, lambda view: _running(view) - before.keys() == view.keys() - before.keys() != set())
    new = sorted(view.keys() - before.keys())
    assert len(new) == accepted == count
    return new


@asynccontextmanager
async def connected(directory: Path) -> AsyncIterator[Connection]:
    """Connect to the one instance of a group of its own."""
    async with opened(directory) as group:
        (instance,) = await started(group)
        async with dialled(group, instance) as connection:
            yield connection


@asynccontextmanager
async def dialled(group: InstanceGroup, instance: str) -> AsyncIterator[Connection]:
    """Connect to an instance of a group."""
    async with dial(await group.connect_info(instance)) as connection:
        yield connection


async def settled(stream: UNIXSocketStream) -> None:
    """Wait until the agent at the other end has dealt with all that others sent it before.

    It may answer before it turns to whoever else is ready in the same round of its loop: with the second answer it has
    accepted those who came before, with the third it has read what they sent.
    """
    for _ in range(3):
        await stream.send(b'{"op": "ping"}\n')
        assert await stream.receive() == b'{"ok": true}\n'


def agent_of(directory: Path, instance: str) -> int:
    """Process id of a running instance's agent."""
    return int((directory / instance / "agent.pid").read_text())


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal."""
    os.kill(pid, number)


def is_there(pid: int) -> bool:
    """Whether a process exists."""
    return Path(f"/proc/{pid}").exists()


def content(path: Path) -> str | None:
    """Read a file; None if there is none."""
    return path.read_text() if path.exists() else None


def names(directory: Path) -> list[str]:
    """Names of what is in a directory, hidden things too."""
    return sorted(entry.name for entry in directory.iterdir())


@contextmanager
def pipe() -> Iterator[tuple[FileIO, FileIO]]:
    """Open a pipe: its reading end and its writing end."""
    reader, writer = os.pipe()
    with FileIO(reader, "r") as read, FileIO(writer, "w") as write:
        yield read, write


def children_of(pid: int) -> list[int]:
    """Process ids of the children that it has now; of one that has ended, none."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def open_descriptors(pid: int | str = "self") -> int:
    """Count the descriptors that a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


class Watched:
    """A process that exists, to be waited for without being its parent."""

    def __init__(self, descriptor: int) -> None:
        """Take its pidfd."""
        self._descriptor = descriptor

    async def ended(self) -> None:
        """Return once the process has ended."""
        await anyio.wait_readable(self._descriptor)


@contextmanager
def watched(*pids: int) -> Iterator[list[Watched]]:
    """Get hold of processes, all of which must still be there."""
    descriptors = [os.pidfd_open(pid) for pid in pids]
    try:
        yield [Watched(descriptor) for descriptor in descriptors]
    finally:
        for descriptor in descriptors:
            with suppress(OSError):
                os.close(descriptor)


class Heard:
    """A sink that keeps what it hears, and can be waited on."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.data = b""
        self._more = anyio.Event()

    async def __call__(self, chunk: bytes) -> None:
        """Hear a chunk."""
        self.data += chunk
        self._more.set()
        self._more = anyio.Event()

    async def lines(self, count: int) -> list[bytes]:
        """Wait for so many whole lines, and return all that were heard."""
        while self.data.count(b"\n") < count:
            await self._more.wait()
        return self.data.splitlines()

    async def pids(self, count: int) -> list[int]:
        """Wait for so many lines, each a process id."""
        return [int(line) for line in await self.lines(count)]


def _running(view: dict[str, Observed]) -> set[str]:
    return {instance for instance, each in view.items() if each.state is State.RUNNING}
