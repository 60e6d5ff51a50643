"""A job runs at most once, in whatever order requests arrive, connections are lost and agents are killed."""

import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from itertools import product
from pathlib import Path
from threading import Event

import anyio
import pytest
from anyio.abc import TaskGroup
from attrs import define, field
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from job_steps import _messages as says
from job_steps._agent._closed import MOST_REMEMBERED, Closed
from job_steps._agent._running import Rules
from job_steps._agent._service import Service
from job_steps._grpc_server import Handler
from job_steps._messages import Cause, RunState
from job_steps._protobuf import decode, encode
from job_steps.client import CallFailed, Code

JOB = "the-job"


@define
class Connection:
    """Somebody who is connected to an agent."""

    handlers: Mapping[str, Handler]

    async def ask(self, path: str, request: object) -> bytes:
        """Call."""
        answers = []

        async def respond(data: bytes) -> None:
            answers.append(data)

        await self.handlers[path](encode(request), respond)
        return answers[0]

    async def run(self, directory: Path, script: str) -> bool:
        """Have a request to run the job arrive; returns whether it is accepted."""
        steps = f"- {{name: it, script: '{script}'}}"
        try:
            await self.ask(says.RUN, says.RunMessage(id=JOB, work_dir=str(directory), steps=steps))
        except CallFailed as failed:
            if failed.code is not Code.FAILED_PRECONDITION:
                raise
            return False
        return True

    async def close(self) -> None:
        """Have a request to end the job arrive."""
        await self.ask(says.CLOSE, says.ById(id=JOB))

    async def status(self) -> says.StatusMessage | None:
        """How the agent says that the job is."""
        try:
            answer = await self.ask(says.STATUS, says.ById(id=JOB))
        except CallFailed as failed:
            if failed.code is not Code.NOT_FOUND:
                raise
            return None
        return decode(says.StatusesMessage, answer).jobs[0]


@define
class Host:
    """A machine, whose agent may be killed: the next one finds what is on the disk."""

    directory: Path
    tasks: TaskGroup
    rules: Rules
    agents: int = 0
    service: Service = field(init=False)
    connections: ExitStack = field(init=False)
    running: TaskGroup = field(init=False)

    async def begin(self) -> None:
        """Start the first agent."""
        (self.directory / "jobs-0").mkdir(parents=True)
        await self._serve()

    def connect(self) -> Connection:
        """Connect to the agent, for as long as it lives."""
        return Connection(self.connections.enter_context(self.service.connected()))

    async def kill(self) -> None:
        """Kill the agent, and start the next one, with what the disk had when the first one died."""
        before = self.directory / f"jobs-{self.agents}"
        self.agents += 1
        ignore = shutil.ignore_patterns("files")  # a job's own, which come and go meanwhile, and go with the agent
        shutil.copytree(before, self.directory / f"jobs-{self.agents}", ignore=ignore)
        self.running.cancel_scope.cancel()
        await self._serve()

    async def _serve(self) -> None:
        ready = anyio.Event()

        async def live() -> None:
            with ExitStack() as connections:
                async with anyio.create_task_group() as running:
                    self.running, self.connections = running, connections
                    self.service = Service(self.directory / f"jobs-{self.agents}", running, self.rules)
                    await self.service.take_over()
                    ready.set()
                    await anyio.sleep_forever()

        self.tasks.start_soon(live)
        await ready.wait()


@asynccontextmanager
async def host(directory: Path, rules: Rules | None = None) -> AsyncIterator[Host]:
    """A machine with an agent."""
    async with anyio.create_task_group() as tasks:
        made = Host(directory, tasks, rules or Rules())
        await made.begin()
        yield made
        tasks.cancel_scope.cancel()


RUN, LATE, CLOSE, KILL = "a request to run it", "one that was sent at the beginning", "its end", "a killed agent"


@pytest.mark.parametrize("script", ["true", "exec sleep 1000"])
@pytest.mark.anyio
async def test_a_job_runs_once_in_every_order(tmp_path: Path, script: str) -> None:
    """Each request starts it or does not, as by a model; and what was not to be started leaves no trace."""
    for number, story in enumerate(product((RUN, LATE, CLOSE, KILL), repeat=4)):
        async with host(tmp_path / str(number)) as machine:
            early, ran = machine.connect(), machine.directory / "ran"
            is_known = is_closed = is_lost = False
            may_have_run = set[str]()
            for event, name in zip(story, "abcd", strict=True):
                if event in {RUN, LATE}:
                    connection = early if event == LATE else machine.connect()
                    is_accepted = await connection.run(machine.directory, f"echo {name} >> {ran}; {script}")
                    assert is_accepted is (event == RUN or is_known or not is_closed), story
                    if is_accepted and not is_known:
                        is_known, is_lost = True, False
                        may_have_run.add(name)
                elif event == CLOSE:
                    await machine.connect().close()
                    is_known, is_closed = False, True
                else:
                    found = await early.status()
                    is_lost |= found is not None and not RunState(found.status).is_over
                    await machine.kill()
                    early, is_closed = machine.connect(), False  # what was connected to the first one is not any more
                found = await machine.connect().status()
                assert (found is not None) is is_known, story
                assert found is None or (found.cause == Cause.LOST) is is_lost, story
            marks = ran.read_text().split() if ran.exists() else []
            assert len(marks) == len(set(marks)), story
            assert set(marks) <= may_have_run, story


@pytest.mark.anyio
async def test_a_job_that_is_closed_while_it_is_looked_at_does_not_start(tmp_path: Path) -> None:
    """Whoever closes it, and through whichever connection; one that waits for that is not started either."""
    looked_at, go = Event(), Event()

    class Slow(Rules):
        def admitted(self, steps: str) -> str:
            looked_at.set()
            go.wait()
            return steps

    refused = []
    async with host(tmp_path / "host", rules=Slow()) as machine:
        first, second = machine.connect(), machine.connect()

        async def run(connection: Connection) -> None:
            refused.append(not await connection.run(machine.directory, f"echo ran >> {tmp_path}/ran"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, first)
            await anyio.to_thread.run_sync(looked_at.wait)
            tasks.start_soon(run, second)
            await anyio.wait_all_tasks_blocked()
            await first.close()
            go.set()
        assert refused == [True, True]
        assert await first.status() is None
        assert not (tmp_path / "ran").exists()


class Connections(RuleBasedStateMachine):
    """Any number of connections, and of jobs that are closed through them: compared with all that has happened."""

    def __init__(self) -> None:
        """Begin with nobody."""
        super().__init__()
        self.closed = Closed()
        self.open: list[int] = []
        self.happened: list[tuple[str, int]] = []
        """What is opened, or closed, and through which connection, in order."""

    @rule()
    def connect(self) -> None:
        """Somebody connects."""
        self.open.append(self.closed.connect())
        self.happened.append(("", self.open[-1]))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        """Somebody leaves."""
        self.open.remove(connection := data.draw(st.sampled_from(self.open)))
        self.closed.disconnect(connection)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), job=st.sampled_from("ab"))
    def close(self, data: st.DataObject, job: str) -> None:
        """Somebody closes a job."""
        connection, before = data.draw(st.sampled_from(self.open)), self.closed.last(job)
        self.closed.close(job, connection)
        self.happened.append((job, connection))
        assert self.closed.last(job) > before

    @rule(job=st.sampled_from("abc"))
    def compare(self, job: str) -> None:
        """Late is what comes through a connection that was there when another one closed the job last."""
        closes = [at for at, (what, _) in enumerate(self.happened) if what == job]
        last = max(closes, default=0)
        for connection in self.open:
            was_there = ("", connection) in self.happened[:last]
            is_late = bool(closes) and was_there and self.happened[last][1] != connection
            assert self.closed.is_late(job, connection) is is_late

    def teardown(self) -> None:
        """Nothing is remembered that nobody can be late for."""
        for connection in self.open:
            self.closed.disconnect(connection)
        assert [self.closed.last(job) for job in "ab"] == [0, 0]


test_connections = Connections.TestCase


def test_only_so_many_are_remembered() -> None:
    """Whoever closes any number of jobs that never were costs the agent no more than that."""
    found = Closed()
    late, other = found.connect(), found.connect()
    for number in range(MOST_REMEMBERED + 2):
        found.close(str(number), other)
    assert [found.is_late(str(number), late) for number in (0, 1, 2, MOST_REMEMBERED + 1)] == [False, False, True, True]
