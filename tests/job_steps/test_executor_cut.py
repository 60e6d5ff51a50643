"""The *steps* executor over a connection that is cut after every piece: one at a time, then it holds.

Pieces are what goes either way on a stream, commands, and the answers to them.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import anyio
import pytest
from anyio.abc import ByteStream
from attrs import define

from fleeting import Completed, ConnectError, Connection, Unreachable
from job_steps import StepResult
from job_steps.executor import StepsConfig, StepsExecutor, StepsOptions
from taskscaler.batch import Job
from taskscaler.batch._addresses import Addresses
from taskscaler.batch._log import JobLog
from taskscaler.batch._outliving import Outliving
from taskscaler.executors import JobSpec, Verdict
from taskscaler.executors.runs import Runs
from tests.fleeting.sshd import dialled as dialled_over_ssh
from tests.fleeting.sshd import sshd
from tests.job_steps.agents import end_agents
from tests.job_steps.test_executor import BATCH
from tests.taskscaler.leased import Slot
from tests.taskscaler.test_instance_executor import names_in

pytestmark = pytest.mark.anyio

Dial: TypeAlias = Callable[[], AbstractAsyncContextManager[Connection]]

STEPS = (
    {"name": "a", "script": "echo ran >> ran; echo one"},
    {"name": "b", "script": "echo two"},
)
LOG = b'Running step "a"\none\nRunning step "b"\ntwo\n'


@define
class _Line:
    """What all connections of a manager share: so many pieces pass, then the one is cut on which the next would."""

    left: float
    was_cut: bool = False


@define
class _Link:
    """One connection."""

    line: _Line
    is_dead: bool = False

    def pass_on(self) -> None:
        """Let a piece pass: a part of a stream, a command on its way, or the answer to one."""
        if self.line.left <= 0 and not self.line.was_cut:
            self.is_dead = self.line.was_cut = True
        if self.is_dead:
            raise anyio.BrokenResourceError
        self.line.left -= 1


@define(eq=False)
class _Stream(ByteStream):
    """A stream of a connection that may be cut."""

    link: _Link
    inner: ByteStream

    async def send(self, item: bytes) -> None:
        await self._pass_on()
        await self.inner.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await self.inner.receive(max_bytes)
        await self._pass_on()
        return data

    async def _pass_on(self) -> None:
        try:
            self.link.pass_on()
        except anyio.BrokenResourceError:
            await self.inner.aclose()
            raise

    async def send_eof(self) -> None:
        await self.inner.send_eof()

    async def aclose(self) -> None:
        await self.inner.aclose()


def _cut(dial: Dial, line: _Line) -> Dial:
    """Reach an instance through connections that may be cut."""

    @asynccontextmanager
    async def connected() -> AsyncIterator[Connection]:
        async with dial() as connection:
            link, really = _Link(line), connection.open_unix

            async def open_unix(_: Connection, path: str) -> ByteStream:
                return _Stream(link, await really(path))

            kind = type(connection)  # of which this one alone is of a kind of its own
            changed = {
                "open_unix": open_unix,
                "perform": _both_ways(link, kind.perform),  # type: ignore[attr-defined]
                "launch": _both_ways(link, kind.launch),  # type: ignore[attr-defined]
            }
            connection.__class__ = type(kind.__name__, (kind,), {"__slots__": (), **changed})
            yield connection

    return connected


def _both_ways(link: _Link, command: Callable[..., Awaitable[Completed]]) -> Callable[..., Awaitable[Completed]]:
    """A command that may be cut off before it is begun, and before anybody hears how it has ended."""

    async def cut(*arguments: object) -> Completed:
        try:
            link.pass_on()
            completed = await command(*arguments)
            link.pass_on()
        except anyio.BrokenResourceError as error:
            raise Unreachable("the connection is cut") from error
        return completed

    return cut


async def _see_through(directory: Path, instance: str, dial: Dial, cut: int) -> bool:
    """Run a job over a connection that is cut after so many pieces; returns whether it was."""
    line, place = _Line(cut), directory / str(cut)
    place.mkdir()
    steps: list[dict[str, object]] = [
        {**each, "script": each["script"].replace(">> ran", f">> {place}/ran")} for each in STEPS
    ]
    executor = StepsExecutor(StepsConfig(base=str(directory / "base")), Runs("steps", directory / "runs"))
    job = Job(spec=JobSpec(name="job", script="", options=StepsOptions(steps=tuple(steps))))
    outliving = Outliving(executor, Slot(instance, _cut(dial, line)), job, f"{BATCH}-{cut}", place / "artifacts")
    async with JobLog.open(place / "log", job.log_limit, Addresses()) as output:
        outcome = None
        while outcome is None:
            try:
                outcome = await outliving.run(output, output.total)
            except ConnectError:  # before it had begun: who runs jobs tries again
                assert line.was_cut
        assert outcome.verdict is Verdict.SUCCEEDED
        await outliving.end()
        if line.was_cut:  # perhaps just then: what is left is for whoever gets the slot, or ends it again
            await outliving.end()
    assert (place / "log").read_bytes() == LOG
    assert (place / "ran").read_text() == "ran\n"
    result = StepResult.from_dict(json.loads((place / "artifacts" / "step-results.json").read_text()))
    assert [(each.name, each.status.value) for each in result.steps] == [("a", "success"), ("b", "success")]
    assert names_in(directory / "base") == []
    return line.was_cut


async def test_a_connection_over_ssh_may_be_cut_after_every_piece(tmp_path: Path) -> None:
    """The job runs once, its log has each byte once, its tree is whole, and nothing is left."""
    home = tmp_path / "home"
    home.mkdir()
    with sshd(tmp_path / "sshd", f"SetEnv HOME={home}") as server:
        cut = 0
        while await _see_through(tmp_path, "host", lambda: dialled_over_ssh(server.info), cut):
            cut += 1
        async with dialled_over_ssh(server.info) as connection:
            await end_agents(connection)
    assert cut > 30
