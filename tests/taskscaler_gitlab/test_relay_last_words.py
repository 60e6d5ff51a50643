"""What a sidecar has said before it was gone: it is with us, needs nobody but GitLab, and counts."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import httpx
import pytest
from attrs import define, evolve, field

from fleeting import Completed, ConnectError, Unreachable
from fleeting.connectors import Detached, PortListener
from fleeting.connectors._listening_here import listening_here
from fleeting.events import Loss, LossKind
from gitlab_jobs.testing import State
from taskscaler import LeaseLost
from taskscaler_gitlab._settings import OwnSettings
from taskscaler_gitlab.relay import RelayWork
from taskscaler_gitlab.relay._relay import How
from taskscaler_gitlab.relay._routes import application
from taskscaler_gitlab.relay._ways import Listening
from tests.taskscaler_gitlab.test_relay_routes import DELIVERY, Counter, counter
from tests.taskscaler_gitlab.test_relay_work import Fleet, Slot, next_one
from tests.time_limits import NEVER_REACHED

__all__ = ["counter"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:.*async_generator object .*:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator :ResourceWarning"),
]


@define(eq=False)
class Busy(httpx.AsyncBaseTransport):
    """A GitLab that answers to the end of a job when it gets round to it."""

    inner: httpx.AsyncBaseTransport
    has_it: anyio.Event = field(factory=anyio.Event)
    answers: anyio.Event = field(factory=anyio.Event)
    ends: int = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Wait with that, and with nothing else."""
        if request.method == "PUT" and json.loads(await request.aread())["state"] != "running":
            self.ends += 1
            self.has_it.set()
            await self.answers.wait()
        return await self.inner.handle_async_request(request)


@define(eq=False)
class Beside:
    """An instance on which one sidecar runs, and a connection to it, with real ports."""

    gone: anyio.Event = field(factory=anyio.Event)
    """Set once the sidecar has ended."""

    dead: anyio.Event = field(factory=anyio.Event)
    """Set once the connection has."""

    async def run(self, *_: object, **__: object) -> Completed:
        """Say where commands start."""
        return Completed(exit_status=0, stdout=b"/home/us\n")

    async def attach(self, *_: object, **__: object) -> Completed:
        """Wait for the sidecar, or the end of the connection."""
        async with anyio.create_task_group() as tasks:
            for each in (self.gone, self.dead):
                tasks.start_soon(self._wait, each, tasks.cancel_scope)
        if not self.gone.is_set():
            raise Unreachable("the connection broke")
        return Completed(exit_status=None, signal="SIGKILL")

    async def _wait(self, event: anyio.Event, scope: anyio.CancelScope) -> None:
        await event.wait()
        scope.cancel()

    async def list_detached(self) -> list[Detached]:
        """Show it."""
        return [Detached(name=f"gl-sidecar-0123456789ab-3-{DELIVERY}")]

    async def start(self, *_: object, **__: object) -> None:
        """Start nothing: it runs."""

    async def kill(self, _: str) -> None:
        """End it."""
        self.gone.set()

    async def forget(self, _: str) -> None:
        """Do so."""

    async def wait_closed(self) -> str:
        """Wait for the end of the connection."""
        await self.dead.wait()
        return "it broke"

    def listen_tcp(self, host: str, port: int) -> AbstractAsyncContextManager[PortListener]:
        """Listen here: the instance is this machine."""
        return listening_here("i-1", host, port, self.wait_closed)


@define(eq=False)
class Host(Slot):
    """A slot there, to which connections may break."""

    beside: Beside = field(factory=Beside)
    dials: int = 0
    is_there: bool = True
    body: anyio.CancelScope = field(factory=anyio.CancelScope)
    """Cut short once it is lost."""

    @asynccontextmanager
    async def dial(self) -> AsyncIterator[Beside]:  # type: ignore[override]
        """Connect, if it is there."""
        if not self.is_there:
            raise self.error
        self.dials += 1
        self.beside.dead = anyio.Event()
        yield self.beside

    @asynccontextmanager
    async def unless_lost(self) -> AsyncIterator[None]:
        """Cut the body short once it is lost."""
        with self.body:
            yield
        if self.loss is not None:
            raise LeaseLost("key", self.instance, self.loss)


@define
class Story:
    """A job at work on that instance, taken up again by a service that listens."""

    counter: Counter
    gitlab: Busy
    host: Host
    work: RelayWork
    url: str

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait until something is so; looks again and again."""
        while not is_so():
            assert self.work.problem == ""
            await anyio.sleep(0.02)

    async def say_the_end(self) -> None:
        """Say how the job ended, as its sidecar does; it may be gone before it hears the answer."""
        body = {"token": self.counter.job.token, "state": "success"}
        async with httpx.AsyncClient(timeout=NEVER_REACHED) as http:
            try:
                await http.put(f"{self.url}/d/{DELIVERY}/api/v4/jobs/{self.counter.job.id}", json=body)
            except httpx.TransportError:
                return

    @property
    def waits_for_gitlab(self) -> bool:
        """Whether that is all that is left to do for it, and an explanation says so."""
        return any("GitLab has not answered yet" in line for line in self.work.account)


@asynccontextmanager
async def told_of(counter: Counter, port: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Story]:
    """Its sidecar has called before, has just said how the job ended, and waits for the answer."""
    monkeypatch.setattr("taskscaler_gitlab.relay._work.RECONNECT", 0.5)
    monkeypatch.setattr("taskscaler_gitlab.relay._work._PAUSE", 0.05)
    counter.recorder.inner = gitlab = Busy(counter.recorder.inner)
    await counter.poll()
    await counter.patch(b"x")
    counter.work.directory.note(evolve(counter.work.record, port=port))
    host = Host()
    work = next_one(counter, Fleet(host))
    told = Story(counter, gitlab, host, work, f"http://127.0.0.1:{port}")
    async with (
        Listening(OwnSettings(run_with="sidecar")).serve(application(counter.relays)) as counter.relays.ways,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(work.see_through)
        await told.until(lambda: work._is_attended)
        tasks.start_soon(told.say_the_end)
        await gitlab.has_it.wait()
        yield told
        tasks.cancel_scope.cancel()


async def is_success(story: Story) -> None:
    """See that the job ended as its sidecar has said, once, and that its slot is back."""
    await story.work.over.wait()
    assert (story.work.problem, story.work.record.how) == ("", How.REPORTED)
    stored = story.counter.gitlab.server.jobs[story.counter.job.id]
    assert (stored.state, story.gitlab.ends) == (State.SUCCESS, 1)
    assert b"Job failed" not in story.counter.gitlab.log(story.counter.job.id)
    assert story.host.is_released
    assert not story.work.directory.path.exists()


def killed(host: Host) -> None:
    """Kill the sidecar."""
    host.beside.gone.set()


def cut_off(host: Host) -> None:
    """Lose the connection for good."""
    host.is_there = False
    host.beside.dead.set()


def refused(host: Host) -> None:
    """Lose the connection, and the right to make another."""
    host.error = ConnectError("no login")
    cut_off(host)


def lost(host: Host) -> None:
    """Lose the instance."""
    host.loss = Loss(LossKind.PREEMPTED)
    host.body.cancel()


@pytest.mark.parametrize("lose", [killed, cut_off, refused, lost])
async def test_a_job_whose_end_gitlab_has_not_taken_yet_has_not_failed(
    counter: Counter, free_tcp_port: int, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Host], None]
) -> None:
    """The sidecar is gone, or its connection, or all of the instance: what it has said is waited for."""
    async with told_of(counter, free_tcp_port, monkeypatch) as story:
        lose(story.host)
        await story.until(lambda: story.waits_for_gitlab)
        assert not story.work.over.is_set()
        story.gitlab.answers.set()
        await is_success(story)


async def test_a_connection_that_is_made_again_cuts_no_call_short(
    counter: Counter, free_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came through the one before is answered by GitLab, and counts; the sidecar is found at the same port."""
    async with told_of(counter, free_tcp_port, monkeypatch) as story:
        story.host.beside.dead.set()
        await story.until(lambda: story.host.dials > 1 and story.work._is_attended)
        story.gitlab.answers.set()
        await story.until(lambda: story.work.record.how is How.REPORTED)
        story.host.beside.gone.set()
        await is_success(story)


async def test_gitlab_is_not_waited_for_for_ever(
    counter: Counter, free_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while the job has failed, and its log says why; what is answered later changes nothing."""
    monkeypatch.setattr("taskscaler_gitlab.relay._work.SETTLE", 0.2)
    async with told_of(counter, free_tcp_port, monkeypatch) as story:
        killed(story.host)
        await story.until(lambda: story.work.record.how is How.FAILED)
        story.gitlab.answers.set()
        await story.work.over.wait()
        assert story.work.problem == ""
        assert story.host.suspected
