"""A connection that is cut, wherever that is: each job runs once, its log arrives whole and once, and it is closed."""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskGroup
from attrs import define, field

from job_steps._agent._running import Rules
from job_steps._agent._service import Service
from job_steps._call_status import CallStatus, Code
from job_steps._grpc import Callee, CallEnded, Caller, CallReceived, ConnectionEnded, GrpcEvent, MessageReceived
from job_steps.client import ConnectionLost, JobStatus, RunRequest, RunState, StepRunnerClient, step_runner
from tests.job_steps.agents import MemoryStream

# --- without I/O: after every byte ---------------------------------------------------------------------------


def _conversation() -> tuple[bytes, bytes]:
    """All that a caller and a callee say in two calls."""
    caller, callee = Caller(), Callee()
    said = [bytearray(), bytearray()]
    for step in range(4):
        if step == 1:
            caller.call("/a.B/C", b"request")
            caller.call("/a.B/Log", b"", timeout=3)
        there = caller.to_send()
        events = callee.receive(there)
        for event in events:
            assert isinstance(event, CallReceived)
            for piece in (b"one", b"two"):
                callee.respond(event.call, piece)
            callee.finish(event.call, CallStatus(Code.OK))
        back = callee.to_send()
        caller.receive(back)
        said[0] += there
        said[1] += back
    return bytes(said[0]), bytes(said[1])


def _heard(data: bytes, *, by_caller: bool) -> Sequence[GrpcEvent]:
    """What one end makes of so many bytes of the other, and their end."""
    ours = Caller() if by_caller else Callee()
    if isinstance(ours, Caller):
        ours.call("/a.B/C", b"request")
        ours.call("/a.B/Log", b"", timeout=3)
        ours.to_send()
    return [*ours.receive(data), *ours.ended_by_peer("cut")]


@pytest.mark.parametrize("by_caller", [True, False], ids=["the caller", "the callee"])
def test_each_end_makes_the_same_of_what_it_has_heard_wherever_it_ends(*, by_caller: bool) -> None:
    """After every byte: what was whole by then, then the end, and nothing else."""
    data = _conversation()[by_caller]
    whole = _heard(data, by_caller=by_caller)[:-1]
    kinds = (MessageReceived, CallEnded) if by_caller else (CallReceived,)
    assert {type(event) for event in whole} == set(kinds)
    seen = 0
    for size in range(len(data) + 1):
        *events, end = _heard(data[:size], by_caller=by_caller)
        assert end == ConnectionEnded("cut")
        assert events == list(whole[: len(events)])
        assert len(events) >= seen
        seen = len(events)
    assert seen == len(whole)


# --- with the agent's service: after every piece that is sent -----------------------------------------------


@define
class _Line:
    """What two streams share: after so many pieces, it is cut."""

    left: float


@define(eq=False)
class _Stream(MemoryStream):
    """One end of a connection in memory, on such a line."""

    line: _Line

    async def send(self, item: bytes) -> None:
        if self.line.left <= 0:
            self.outgoing.close()
            raise anyio.BrokenResourceError
        self.line.left -= 1
        await super().send(item)


@define
class _Manager:
    """Does with one job all that there is to do, and begins again where the connection was cut."""

    service: Service
    tasks: TaskGroup
    line: _Line
    log: bytearray = field(factory=bytearray)
    connections: int = 0

    async def see_through(self, request: RunRequest) -> JobStatus:
        """Run a job, follow it, ask for its end, and close it; returns how it ended."""
        status: JobStatus | None = None
        while True:
            try:
                async with self._connected() as client:
                    if status is None:
                        await client.run(request)
                        async for piece in client.follow_logs(request.id, len(self.log)):
                            self.log += piece
                        results = await client.results(request.id)
                        assert results is not None
                        assert results.is_final
                        status = await client.status(request.id)
                    await client.close(request.id)
                    return status
            except ConnectionLost:
                self.line = _Line(math.inf)  # the next one holds

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[StepRunnerClient]:
        self.connections += 1
        to_service, from_manager = anyio.create_memory_object_stream[bytes](100)
        to_manager, from_service = anyio.create_memory_object_stream[bytes](100)
        self.tasks.start_soon(self.service.serve, _Stream(from_manager, to_manager, self.line))
        async with step_runner(_Stream(from_service, to_service, self.line)) as client:
            yield client


@pytest.mark.anyio
async def test_a_connection_may_be_cut_after_every_piece_that_is_sent(tmp_path: Path) -> None:
    """Nothing runs twice, nothing of the log is lost or comes twice, and nothing is left."""
    (tmp_path / "jobs").mkdir()
    cuts = 0
    async with anyio.create_task_group() as tasks:
        service = Service(tmp_path / "jobs", tasks, Rules())
        while True:
            work = tmp_path / str(cuts)
            steps = "- {name: a, script: 'echo once >> ran; echo one'}\n- {name: b, script: echo two}\n"
            manager = _Manager(service, tasks, _Line(cuts))
            status = await manager.see_through(RunRequest(id=f"job {cuts}", steps=steps, work_dir=str(work)))
            assert status.state is RunState.SUCCESS
            assert bytes(manager.log) == b'Running step "a"\none\nRunning step "b"\ntwo\n'
            assert _text(work / "ran") == "once\n"
            if manager.connections == 1:
                break
            assert manager.connections == 2
            cuts += 1
        tasks.cancel_scope.cancel()
    assert cuts > 12
    assert list((tmp_path / "jobs").iterdir()) == []


def _text(path: Path) -> str:
    return path.read_text()
