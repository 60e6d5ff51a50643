"""``taskscaler-gitlab run``, killed by itself as it notes something down of a job, before that is on disk or after.

One process imports everything, and forks for each service: what a test of many deaths costs is otherwise imports.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream
from attrs import define, field, frozen

from taskscaler_gitlab.relay._deliveries import DeliveryDirectory
from taskscaler_gitlab.relay._relay import Record, Standing

REMOVED = "removed"
ROOT, MODULE = Path(__file__).parents[2], "tests.taskscaler_gitlab.fused_service"
_MOST = 1 << 16
_DIE_WITH_PARENT = 1
"""``PR_SET_PDEATHSIG``."""


@frozen
class Fuse:
    """Where a service dies."""

    write: str
    """What it notes down; see `name_of`."""

    is_after: bool
    """Whether that is on disk then."""

    def __str__(self) -> str:
        """In words."""
        return f"{'after' if self.is_after else 'before'} {self.write}"


def name_of(before: Record | None, after: Record) -> str:
    """What is new in a record; of a later try, *again*."""
    again = " again" if after.tries > 1 else ""
    match before:
        case None:
            return "taken"
        case _ if after.standing is not before.standing:
            return f"{'placed' if after.standing is Standing.TAKEN else after.standing.value}{again}"
        case _ if after.is_two_phase is not before.is_two_phase:
            return f"kept{again}"
        case _ if after.is_canceling is not before.is_canceling:
            return f"canceling{again}"
    return f"{after.standing.value}, noted again"


@define
class Service:
    """One that runs, or has died."""

    pid: int
    over: anyio.Event = field(factory=anyio.Event, init=False)
    returncode: int | None = None

    def end(self, how: signal.Signals) -> None:
        """Ask it to end, or kill it."""
        if not self.over.is_set():
            with suppress(ProcessLookupError):
                os.kill(self.pid, how)


@define
class Services:
    """Starts them, one after the other."""

    here: Path
    """Where they run."""

    config: Path
    environment: Mapping[str, str]
    _process: Process = field(alias="process")
    _answers: BufferedByteReceiveStream = field(alias="answers")
    _tasks: TaskGroup = field(alias="tasks")

    @property
    def writes(self) -> Sequence[str]:
        """What the last one has noted down so far, in its order."""
        path = self.here / "writes"
        return path.read_text().splitlines() if path.exists() else ()

    @asynccontextmanager
    async def one(self, fuse: Fuse | None = None, *, ends: signal.Signals = signal.SIGKILL) -> AsyncIterator[Service]:
        """Run one, with a fuse or for good, until the body is over; then it is ended like this."""
        (self.here / "writes").unlink(missing_ok=True)
        wanted = {"config": str(self.config), "write": "", "is_after": False, "environment": self.environment}
        if fuse is not None:
            wanted |= {"write": fuse.write, "is_after": fuse.is_after}
        stdin = self._process.stdin
        assert stdin is not None
        await stdin.send(json.dumps(wanted).encode() + b"\n")
        service = Service(int(await self._answer()))
        self._tasks.start_soon(self._wait, service)
        try:
            yield service
        finally:
            service.end(ends)
            with anyio.move_on_after(60, shield=True):
                await service.over.wait()
            service.end(signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await service.over.wait()

    async def _wait(self, service: Service) -> None:
        service.returncode = int(await self._answer())
        service.over.set()

    async def _answer(self) -> bytes:
        return await self._answers.receive_until(b"\n", _MOST)


@asynccontextmanager
async def services(config: Path, runtime: Path) -> AsyncIterator[Services]:
    """Be ready to start services with a file, whose sockets are in a directory with a short path."""
    here = config.parent
    here.mkdir(mode=0o700)
    own = {"PATH": os.environ["PATH"], "HOME": str(here), "LC_ALL": "C.UTF-8", "XDG_RUNTIME_DIR": str(runtime)}
    with (here / "printed").open("ab") as printed:
        async with await anyio.open_process(
            [sys.executable, "-m", MODULE], stderr=printed, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=here
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            answers = BufferedByteReceiveStream(process.stdout)
            async with anyio.create_task_group() as tasks:
                yield Services(here, config, own, process, answers, tasks)
            await process.stdin.aclose()


def main() -> None:
    """Be a service for each line: its process id is one answer, and how it has ended the next one."""
    import taskscaler_gitlab.cli._run  # noqa: F401

    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            _be(json.loads(line))
        _answer(pid)
        _answer(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _answer(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _be(wanted: Mapping[str, Any]) -> None:
    from taskscaler_gitlab.cli import main as command

    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    plant(Fuse(wanted["write"], wanted["is_after"]))
    command(["run", wanted["config"]], prog_name="taskscaler-gitlab")


def plant(fuse: Fuse) -> None:
    """Have this process die there; until then, the file ``writes`` has what it notes down."""
    note, remove = DeliveryDirectory.note, DeliveryDirectory.remove

    def burn(write: str, *, is_after: bool) -> None:
        if (write, is_after) == (fuse.write, fuse.is_after):
            os.kill(os.getpid(), signal.SIGKILL)

    def noting(self: DeliveryDirectory, record: Record) -> None:
        write = name_of(_known(self), record)
        burn(write, is_after=False)
        note(self, record)
        _say(write)
        burn(write, is_after=True)

    def removing(self: DeliveryDirectory) -> None:
        burn(REMOVED, is_after=False)
        remove(self)
        _say(REMOVED)
        burn(REMOVED, is_after=True)

    DeliveryDirectory.note = noting  # type: ignore[method-assign]
    DeliveryDirectory.remove = removing  # type: ignore[method-assign]


def _known(directory: DeliveryDirectory) -> Record | None:
    try:
        return directory.read()
    except FileNotFoundError:
        return None


def _say(write: str) -> None:
    with Path("writes").open("a") as file:
        file.write(f"{write}\n")


if __name__ == "__main__":
    main()
