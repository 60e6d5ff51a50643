"""What sidecars, and whoever else gets at their paths, may call: what goes on to GitLab, and what comes back."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import httpx
import pytest
from attrs import define, evolve, field

from gitlab_jobs import Dependency, Job, decode_job
from gitlab_jobs.client import GitLabClient
from gitlab_jobs.coordinator import Reply
from gitlab_jobs.testing import URL, Artifacts, FakeGitLab, Fault, State
from taskscaler import Lease
from taskscaler_gitlab._settings import OwnSettings
from taskscaler_gitlab.relay import Relays, RelayWork
from taskscaler_gitlab.relay._relay import Action, Standing, hashed
from taskscaler_gitlab.relay._routes import MOST_CALLS, application
from taskscaler_gitlab.relay._ways import Listening
from tests.taskscaler_gitlab.shops import ORIGIN, relays_of, shop_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:.*async_generator object .*:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator :ResourceWarning"),
]

SECRET, DELIVERY = "glrt-once", "d1"


@define
class Recorder(httpx.AsyncBaseTransport):
    """Sees what goes on to GitLab."""

    inner: httpx.AsyncBaseTransport
    seen: list[httpx.Request] = field(factory=list)
    answer: Callable[[], httpx.Response] | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass it on, or answer as the test says."""
        self.seen.append(request)
        return await self.inner.handle_async_request(request) if self.answer is None else self.answer()


@define
class Counter:
    """A sidecar's view."""

    gitlab: FakeGitLab
    recorder: Recorder
    relays: Relays
    work: RelayWork
    job: Job
    http: httpx.AsyncClient

    async def call(self, method: str, path: str, *, delivery: str = DELIVERY, **more: Any) -> httpx.Response:  # noqa: ANN401
        """Make a call as a sidecar does."""
        return await self.http.request(method, f"http://us/d/{delivery}/api/v4/{path}", **more)

    async def poll(self, secret: str = SECRET, *, delivery: str = DELIVERY, claims: bool = True) -> httpx.Response:
        """Ask for the job, as who begins with it only once it is claimed, or at once."""
        said = {"features": {"two_phase_job_commit": True} if claims else {}}
        return await self.call("POST", "jobs/request", delivery=delivery, json={"token": secret, "info": said})

    async def put(self, state: str, **more: Any) -> httpx.Response:  # noqa: ANN401
        """Say how the job stands, as runners up to 17 do: with the token in the body alone."""
        body = {"token": self.job.token, "state": state, **more}
        return await self.call("PUT", f"jobs/{self.job.id}", json=body)

    async def patch(self, body: bytes, **headers: str) -> httpx.Response:
        """Send a piece of the log."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"JOB-TOKEN": self.job.token, "Content-Range": f"0-{len(body) - 1}", **named}
        sent = {name: value for name, value in sent.items() if value}
        return await self.call("PATCH", f"jobs/{self.job.id}/trace?debug_trace=false", content=body, headers=sent)


@pytest.fixture
async def counter(tmp_path: Path) -> AsyncIterator[Counter]:
    """A job whose sidecar has just been started."""
    gitlab = FakeGitLab(tmp_path, long_poll=0.05, accepts=0)
    recorder = Recorder(gitlab.transport())
    relays = relays_of(gitlab, tmp_path / "state")
    async with GitLabClient(URL, transport=recorder) as client, anyio.create_task_group() as tasks:
        number = gitlab.enqueue(Job(id=0, token=""))
        gitlab.enqueue(Job(id=0, token=""), is_ready=False)
        archive = tmp_path / "left.zip"
        archive.write_bytes(b"x" * 100_000)
        gitlab.artifacts[2] = [Artifacts(path=archive, artifact_type="archive", artifact_format="zip")]
        gitlab.server.jobs[2].job = evolve(gitlab.server.jobs[2].job, token="glcbt-two")
        gitlab.server.jobs[2].has_runner = True
        stored = gitlab.server.jobs[number]
        stored.job = evolve(stored.job, dependencies=(Dependency(id=2, token="glcbt-two"),))
        asked = await client.ask(gitlab.runner_token, info=relays.about.as_info)
        assert asked.job is not None
        work = relays.take(shop_of(relays, client, {}), asked.job, "gitlab/0123456789ab", origin=ORIGIN, now=0.0)
        step = work.relay.got_slot().relay.starts(DELIVERY, hashed(SECRET), 4000)
        work.relay, work.lease = step.relay, cast("Lease", SimpleNamespace(instance="i-1", slot=3))
        relays.enter(DELIVERY, work)
        tasks.start_soon(work._claim_if_wanted)
        recorder.seen.clear()
        transport = httpx.ASGITransport(application(relays))
        async with httpx.AsyncClient(transport=transport) as http:
            yield Counter(gitlab, recorder, relays, work, asked.job, http)
        tasks.cancel_scope.cancel()


async def test_the_sidecar_gets_the_job_with_what_only_we_know(counter: Counter) -> None:
    """All that GitLab has said, its token too, and where it runs."""
    answer = await counter.poll()
    assert (answer.status_code, answer.headers["Content-Type"]) == (201, "application/json")
    job = decode_job(answer.content)
    assert evolve(job, variables=()) == evolve(counter.job, variables=())
    ours = {each.key: each.value for each in job.variables}
    assert ours == {"TASKSCALER_INSTANCE": "i-1", "TASKSCALER_SLOT": "3"}
    assert counter.recorder.seen == []


async def test_a_second_poll_gets_nothing(counter: Counter) -> None:
    """Whoever has learnt the token as well, and whether or not the first answer arrived."""
    assert (await counter.poll()).status_code == 201
    for claims in (True, False):
        again = await counter.poll(claims=claims)
        assert (again.status_code, again.content) == (204, b"")
    assert counter.recorder.seen == []


async def test_the_first_call_claims_the_job(counter: Counter) -> None:
    """A piece of the log from a runner that sends no claim: GitLab learns first that the job runs."""
    await counter.poll()
    assert counter.gitlab.server.jobs[counter.job.id].state is State.PENDING
    answer = await counter.patch(b"hello")
    assert (answer.status_code, answer.headers["Range"], answer.headers["Job-Status"]) == (202, "0-5", "running")
    assert [request.method for request in counter.recorder.seen] == ["PUT", "PATCH"]
    assert counter.gitlab.log(counter.job.id) == b"hello"
    assert (await counter.put("success")).status_code == 200
    assert counter.work.relay.record.standing is Standing.OVER
    assert (await counter.put("success")).status_code == 403


async def test_a_runner_that_sends_no_claim_gets_the_job_once_it_is_claimed(counter: Counter) -> None:
    """It begins at once: GitLab and our notes know that it is at work before it knows of the job."""
    counter.gitlab.faults = (Fault(call="update", after=counter.gitlab.calls["update"], times=1),)
    answer = await counter.poll(claims=False)
    assert answer.status_code == 201
    assert [request.method for request in counter.recorder.seen] == ["PUT", "PUT"]
    assert counter.gitlab.server.jobs[counter.job.id].state is State.RUNNING
    assert counter.work.directory.read().standing is Standing.AT_WORK
    assert (await counter.patch(b"hello")).status_code == 202
    assert (await counter.poll(claims=False)).status_code == 204


async def test_a_runner_that_sends_no_claim_comes_again_while_gitlab_is_away(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is given to it, and nobody else is let through; once GitLab answers, it gets the job."""
    monkeypatch.setattr("taskscaler_gitlab.relay._work.CLAIM_PATIENCE", 0.1)
    counter.gitlab.faults = (Fault(call="update", times=1000),)
    assert (await counter.poll(claims=False)).status_code == 502
    assert (await counter.patch(b"hello")).status_code == 403
    counter.gitlab.faults = ()
    monkeypatch.undo()
    assert (await counter.poll(claims=False)).status_code == 201


async def test_a_job_that_is_gitlabs_no_more_is_given_to_nobody(counter: Counter) -> None:
    """409 to the claim of a runner that begins at once: it gets no job, and is ended."""
    counter.gitlab.faults = (Fault(call="update", reply=Reply(status=409)),)
    assert (await counter.poll(claims=False)).status_code == 204
    assert counter.work.relay.record.standing is Standing.OVER


async def test_artifacts_go_both_ways(counter: Counter) -> None:
    """As they come, with what says what they are."""
    await counter.poll()
    files = {"file": ("a.zip", b"y" * 300_000)}
    path = f"jobs/{counter.job.id}/artifacts?artifact_format=zip&artifact_type=archive"
    answer = await counter.call("POST", path, files=files, headers={"JOB-TOKEN": counter.job.token})
    assert answer.status_code == 201, answer.text
    (kept,) = counter.gitlab.artifacts[counter.job.id]
    assert kept.path.stat().st_size == 300_000
    answer = await counter.call("GET", "jobs/2/artifacts?direct_download=true", headers={"JOB-TOKEN": "glcbt-two"})
    assert (answer.status_code, answer.content) == (200, b"x" * 100_000)


async def test_only_what_belongs_to_the_job_goes_on(counter: Counter) -> None:
    """No cookie, no other token, nothing about the sidecar's connection."""
    await counter.poll()
    await counter.patch(b"x", Private_Token="glrt-other", Cookie="a=b", X_Forwarded_For="10.0.0.1", Upgrade="h2c")
    names = {name.lower() for name in counter.recorder.seen[-1].headers}
    assert not names & {"private-token", "cookie", "x-forwarded-for", "upgrade"}
    assert counter.recorder.seen[-1].headers["JOB-TOKEN"] == counter.job.token


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("PATCH", "jobs/1/trace", {"JOB-TOKEN": "glcbt-other"}),
        ("PATCH", "jobs/1/trace", {}),
        ("PATCH", "jobs/2/trace", {"JOB-TOKEN": "{token}"}),
        ("PUT", "jobs/1", {"JOB-TOKEN": "glrt-once"}),
        ("GET", "jobs/1/artifacts", {"JOB-TOKEN": "glcbt-two"}),
        ("GET", "jobs/3/artifacts", {"JOB-TOKEN": "glcbt-two"}),
        ("POST", "jobs/2/artifacts", {"JOB-TOKEN": "glcbt-two"}),
        ("POST", "jobs/request", {"RUNNER-TOKEN": "{token}"}),
    ],
    ids=[
        "a foreign token",
        "no token",
        "the id of another job",
        "the token of the poll",
        "the token of a dependency",
        "an undeclared dependency",
        "an upload for a dependency",
        "a poll with the job's token",
    ],
)
@pytest.mark.parametrize("delivery", [DELIVERY, "d2", "..%2Fd1"])
async def test_strangers_are_refused_before_anything_is_sent_on(
    counter: Counter, method: str, path: str, headers: dict[str, str], delivery: str
) -> None:
    """Another token, another job, another path, what was not declared; GitLab never hears of it."""
    await counter.poll()
    headers = {name: value.format(token=counter.job.token) for name, value in headers.items()}
    content = b'{"state": "running"}' if method in ("PUT", "POST") else b""
    answer = await counter.call(method, path, delivery=delivery, headers=headers, content=content)
    assert answer.status_code in (403, 404)
    assert counter.recorder.seen == []
    assert counter.work.relay.record.standing is Standing.OFFERED


async def test_the_right_token_on_another_path_is_refused(counter: Counter) -> None:
    """A delivery's path and its job belong together."""
    await counter.poll()
    headers = {"JOB-TOKEN": counter.job.token}
    answer = await counter.call("PATCH", f"jobs/{counter.job.id}/trace", delivery="d2", headers=headers, content=b"x")
    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("PUT", "jobs/1", b'{"state": "pending"}', 400),
        ("PUT", "jobs/1", b'{"state": ["running"]}', 400),
        ("PUT", "jobs/1", b"[]", 400),
        ("PUT", "jobs/1", b"\xff", 400),
        ("PUT", "jobs/1", b"x" * ((1 << 20) + 1), 413),
        ("PATCH", "jobs/1/trace", b"x" * ((4 << 20) + 1), 413),
        ("POST", "jobs/request", b"nothing", 400),
        ("DELETE", "jobs/1", b"", 405),
        ("GET", "user", b"", 404),
        ("PATCH", "jobs/one/trace", b"", 404),
    ],
    ids=[
        "a state that is pending",
        "a state that is a list",
        "no object",
        "no text",
        "a large state",
        "a large patch",
        "no JSON",
        "another method",
        "another call of GitLab's",
        "no number",
    ],
)
async def test_what_is_no_call_is_refused_here(
    counter: Counter, method: str, path: str, content: bytes, status: int
) -> None:
    """With a status that says what is wrong; nothing of it goes on."""
    await counter.poll()
    answer = await counter.call(method, path, headers={"JOB-TOKEN": counter.job.token}, content=content)
    assert answer.status_code == status
    assert [request.method for request in counter.recorder.seen if request.method != "PUT"] == []


async def test_a_range_that_is_missing_or_lies_is_gitlabs_to_judge(counter: Counter) -> None:
    """It says what it has, and the sidecar goes on from there."""
    await counter.poll()
    await counter.patch(b"hello")
    assert (await counter.patch(b"hello", Content_Range="")).status_code == 400
    answer = await counter.patch(b"hello", Content_Range="100-104")
    assert (answer.status_code, answer.headers["Range"]) == (416, "0-5")
    assert counter.work.relay.record.standing is Standing.AT_WORK


async def test_the_call_is_the_one_that_was_routed(counter: Counter) -> None:
    """Whatever the Host header says: with the job's token, nothing else of GitLab's is called."""
    await counter.poll()
    assert (await counter.patch(b"hello", Host="us/api/v4/runners/all?x=")).status_code in (202, 400)
    paths = {request.url.path for request in counter.recorder.seen}
    assert paths <= {"/api/v4/jobs/1", "/api/v4/jobs/1/trace"}


async def test_a_redirect_takes_no_token_along(counter: Counter) -> None:
    """A call about the job is not followed anywhere; a file's address is for the sidecar to go to by itself."""
    await counter.poll()
    await counter.patch(b"x")
    counter.recorder.seen.clear()
    elsewhere = "https://elsewhere.example.com/x"
    counter.recorder.answer = lambda: httpx.Response(307, headers={"Location": elsewhere}, stream=httpx.ByteStream(b""))
    assert (await counter.put("running")).status_code == 502
    answer = await counter.call("GET", "jobs/2/artifacts", headers={"JOB-TOKEN": "glcbt-two"})
    assert (answer.status_code, answer.headers["Location"]) == (307, elsewhere)
    assert {request.url.host for request in counter.recorder.seen} == {"gitlab.test"}


async def test_a_gitlab_that_is_away_is_told_at_once(counter: Counter) -> None:
    """502, which runners take for a reason to come again; so is a page of whoever stands in front."""
    await counter.poll()
    await counter.patch(b"x")
    counter.gitlab.faults = (Fault(call="append", after=counter.gitlab.calls["append"]),)
    assert (await counter.patch(b"y")).status_code == 502
    counter.recorder.answer = lambda: httpx.Response(200, headers={"Content-Type": "text/html"}, content=b"<html>")
    assert (await counter.put("success")).status_code == 502
    assert counter.work.relay.record.standing is Standing.AT_WORK


async def test_a_claim_that_is_refused_ends_the_job(counter: Counter) -> None:
    """409: the sidecar is refused, and nothing of the job goes on."""
    await counter.poll()
    counter.gitlab.faults = (Fault(call="update", reply=Reply(status=409)),)
    assert (await counter.patch(b"x")).status_code == 403
    assert counter.gitlab.log(counter.job.id) == b""
    assert counter.work.relay.record.standing is Standing.OVER


async def test_what_another_job_has_left_claims_nothing_without_the_token(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart such a call may come first: it waits for one that brings the token, or is to come again."""
    await counter.poll()
    counter.work.job = evolve(counter.job, token="")  # what a restart knows of it
    headers = {"JOB-TOKEN": "glcbt-two"}
    monkeypatch.setattr("taskscaler_gitlab.relay._work.CLAIM_PATIENCE", 0.1)
    assert (await counter.call("GET", "jobs/2/artifacts", headers=headers)).status_code == 502
    assert (counter.recorder.seen, counter.work.relay.record.standing) == ([], Standing.AT_WORK)
    monkeypatch.undo()
    statuses: list[int] = []

    async def download() -> None:
        statuses.append((await counter.call("GET", "jobs/2/artifacts", headers=headers)).status_code)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(download)
        while not counter.work.calls:
            await anyio.lowlevel.checkpoint()
        assert (await counter.patch(b"x")).status_code == 202
    assert statuses == [200]
    assert counter.recorder.seen[0].headers["JOB-TOKEN"] == counter.job.token


async def test_a_cancellation_reaches_the_sidecar(counter: Counter) -> None:
    """GitLab's as it comes; one from here in the answers to what goes well."""
    await counter.poll()
    await counter.patch(b"x")
    assert Action.TELL in await counter.work._tell(lambda relay: relay.interrupted("here", is_hasty=False))
    counter.work.is_ending = True
    assert (await counter.put("running")).headers["Job-Status"] == "canceling"
    counter.work.is_ending = False
    counter.gitlab.server.jobs[counter.job.id].is_graceful = True
    counter.gitlab.cancel(counter.job.id)
    assert (await counter.put("running")).headers["Job-Status"] == "canceling"
    assert counter.work.relay.record.is_canceling


async def test_calls_at_a_time_are_bounded(counter: Counter) -> None:
    """So that no job of one tenant takes what others need."""
    await counter.poll()
    counter.work.calls = MOST_CALLS
    assert (await counter.patch(b"x")).status_code == 429
    counter.work.calls = 0
    assert (await counter.patch(b"x")).status_code == 202


@asynccontextmanager
async def tunnelled(counter: Counter) -> AsyncIterator[str]:
    """Listen, and have a socket lead where tunnels lead; gives its path."""
    with TemporaryDirectory() as place:
        path = str(Path(place, "relay"))
        async with (
            Listening(OwnSettings(run_with="sidecar")).serve(application(counter.relays)) as ways,
            await anyio.create_unix_listener(path) as listener,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(ways.tunnels.server.serve, listener)
            yield path
            tasks.cancel_scope.cancel()


async def test_who_speaks_no_http_ends_only_its_connection(counter: Counter) -> None:
    """An endless head, half a head, something else: over a real socket, beside a sidecar that goes on."""
    async with tunnelled(counter) as path:
        for head in (
            b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000,
            b"\x16\x03\x01\x00\xa5\x01",
        ):
            async with await anyio.connect_unix(path) as stream:
                with anyio.move_on_after(5):
                    await stream.send(head)
                    assert b" 101 " not in await stream.receive()
        async with await anyio.connect_unix(path) as slow:
            await slow.send(b"POST /d/d1/api/v4/jobs/request HTTP/1.1\r\nHost: us\r\n")
            transport = httpx.AsyncHTTPTransport(uds=path)
            async with httpx.AsyncClient(transport=transport) as http:
                body = {"token": SECRET}
                assert (await http.post(f"http://us/d/{DELIVERY}/api/v4/jobs/request", json=body)).status_code == 201
