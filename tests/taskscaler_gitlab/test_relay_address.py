"""Sidecars that report to an address, found after a restart with other settings: heard, or ended, and GitLab told."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import anyio
import pytest
from attrs import evolve

from gitlab_jobs import End
from gitlab_jobs.testing import State
from taskscaler_gitlab._settings import OwnSettings
from taskscaler_gitlab.relay import RelayWork
from taskscaler_gitlab.relay._relay import How
from taskscaler_gitlab.relay._routes import application
from taskscaler_gitlab.relay._ways import Listening
from tests.taskscaler_gitlab.test_relay_last_words import Host
from tests.taskscaler_gitlab.test_relay_routes import Counter, counter
from tests.taskscaler_gitlab.test_relay_work import Fleet, next_one

__all__ = ["counter"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:.*async_generator object .*:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator :ResourceWarning"),
]


@pytest.fixture
def host() -> Host:
    """Where a sidecar runs, which does not end when it is asked to."""
    return Host()


@pytest.fixture
def taken() -> Iterator[str]:
    """An address at which somebody else listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@asynccontextmanager
async def found(
    counter: Counter, host: Host, listen: str, own: str = "", *, keeps_token: bool = False, has_called: bool = False
) -> AsyncIterator[RelayWork]:
    """A job at work whose sidecar reports to an address, taken up by a service that listens at its own."""
    await counter.poll()
    await counter.patch(b"x")
    token = counter.job.token if keeps_token else ""
    counter.work.directory.note(evolve(counter.work.record, port=0, listen=listen, token=token))
    work = next_one(counter, Fleet(host))
    settings = OwnSettings(run_with="sidecar", listen=own)
    others = {listen: work.over.wait} if listen else {}
    async with (
        Listening(settings, others).serve(application(counter.relays)) as counter.relays.ways,
        anyio.create_task_group() as tasks,
    ):
        if has_called:
            assert (await counter.put("none that we know")).status_code == 400
        tasks.start_soon(work.see_through)
        yield work
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("keeps_token", [False, True])
async def test_a_sidecar_that_nobody_can_hear_is_ended(
    counter: Counter, host: Host, taken: str, monkeypatch: pytest.MonkeyPatch, *, keeps_token: bool
) -> None:
    """With the job's token, its log says why; by default there is none, so an explanation says what GitLab cannot."""
    monkeypatch.setattr("taskscaler_gitlab.relay._sidecar.FAREWELL", 0.1)
    async with found(counter, host, taken, keeps_token=keeps_token) as work:
        await work.over.wait()
    assert host.beside.gone.is_set()
    assert (host.is_released, bool(host.suspected), work.problem) == (True, True, "")
    stored, log = counter.gitlab.server.jobs[counter.job.id], counter.gitlab.log(counter.job.id).decode()
    why = f"its sidecar reports to {taken}, where this program cannot listen any more"
    if keeps_token:
        assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")
        assert why in log
        assert work.untold == ""
    else:
        assert (stored.state, log) == (State.RUNNING, "x")
        assert (work.record.how, work.end) == (How.UNREPORTED, End.GIVEN_UP)
        assert "GitLab does not know that it has failed" in work.untold
        assert why in work.untold
        assert "see keep_job_tokens; GitLab fails it when its time is over" in work.untold


async def test_a_sidecar_that_may_report_elsewhere_has_to_call(
    counter: Counter, host: Host, free_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier release has not noted down where; after a while it is ended, and neither job nor slot stays."""
    monkeypatch.setattr("taskscaler_gitlab.relay._sidecar.FAREWELL", 0.1)
    monkeypatch.setattr("taskscaler_gitlab.relay._work.FIRST_CALL", 0.2)
    async with found(counter, host, "", f"127.0.0.1:{free_tcp_port}", keeps_token=True) as work:
        await work.over.wait()
    assert (host.beside.gone.is_set(), host.is_released, work.problem) == (True, True, "")
    assert counter.gitlab.server.jobs[counter.job.id].state is State.FAILED
    assert "has not called for 0 min; it may report to an address" in counter.gitlab.log(counter.job.id).decode()


async def test_a_sidecar_that_calls_is_heard_to_its_end(
    counter: Counter, host: Host, free_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it does: one call is enough, and how long it is silent then does not matter."""
    monkeypatch.setattr("taskscaler_gitlab.relay._work.FIRST_CALL", 0.0)
    async with found(counter, host, "", f"127.0.0.1:{free_tcp_port}", has_called=True) as work:
        assert (await counter.put("success")).status_code == 200
        host.beside.gone.set()
        await work.over.wait()
    assert (work.record.how, host.suspected) == (How.REPORTED, [])
    assert counter.gitlab.server.jobs[counter.job.id].state is State.SUCCESS
