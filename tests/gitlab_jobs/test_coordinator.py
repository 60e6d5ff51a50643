"""GitLab's side over HTTP: what runners of all ages send, what nobody should, and a real server."""

from collections.abc import AsyncIterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anycorn import Config, serve
from anyio.lowlevel import checkpoint
from starlette.types import Message

from gitlab_jobs import End, Job, Outcome
from gitlab_jobs.client import GitLabClient, info, reporting
from gitlab_jobs.testing import URL, FakeGitLab, State

pytestmark = pytest.mark.anyio

API = f"{URL}/api/v4"
FORM = "multipart/form-data; boundary=x"
PART = b'--x\r\nContent-Disposition: form-data; name="file"%s\r\n\r\n'


@pytest.fixture
def gitlab(tmp_path: Path) -> FakeGitLab:
    """One that answers at once."""
    return FakeGitLab(tmp_path, long_poll=0.05, accepts=0)


@pytest.fixture
async def http(gitlab: FakeGitLab) -> AsyncIterator[httpx.AsyncClient]:
    """A plain client of it."""
    async with httpx.AsyncClient(transport=gitlab.transport()) as client:
        yield client


@pytest.mark.parametrize("place", ["body", "RUNNER-TOKEN", "Private-Token"])
async def test_runners_of_all_ages_get_jobs(http: httpx.AsyncClient, gitlab: FakeGitLab, place: str) -> None:
    """Up to 15 the token is in the body alone, then also in one header, then in another; a job's token likewise."""
    gitlab.enqueue(Job(id=0, token=""))
    body = {"info": {}, "token": gitlab.runner_token} if place == "body" else {}
    headers = {} if place == "body" else {place: gitlab.runner_token}
    got = await http.post(f"{API}/jobs/request", json=body, headers=headers)
    assert (got.status_code, got.headers["Content-Type"]) == (201, "application/json")
    job = got.json()
    headers = {"Job-Token": job["token"], "Content-Range": "0-2"}
    patch = await http.patch(f"{API}/jobs/{job['id']}/trace?debug_trace=false", content=b"abc", headers=headers)
    assert (patch.status_code, patch.headers["Range"], patch.headers["Job-Status"]) == (202, "0-3", "running")
    body = {"token": job["token"]} if place == "body" else {}
    final = await http.put(
        f"{API}/jobs/{job['id']}", json={"state": "success", **body}, headers={} if body else headers
    )
    assert (final.status_code, gitlab.server.jobs[job["id"]].state) == (200, State.SUCCESS)


async def test_a_job_is_written_as_go_reads_it(http: httpx.AsyncClient, gitlab: FakeGitLab) -> None:
    """Integers as such, every variable with every field, and no empty run, which newer runners refuse."""
    gitlab.enqueue(Job(id=0, token=""))
    got = await http.post(f"{API}/jobs/request", json={"token": gitlab.runner_token})
    assert b'"timeout":0' in got.content
    assert b'"run"' not in got.content


@pytest.mark.parametrize(
    ("call", "content", "status"),
    [
        ("POST jobs/request", b"", 400),
        ("POST jobs/request", b"[]", 400),
        ("POST jobs/request", b'{"token": 7}', 403),
        ("POST jobs/request", b'{"token": "x", "info": []}', 403),
        ("POST jobs/request", b"[" * 100_000, 400),
        ("POST jobs/request", b" " * ((1 << 20) + 1), 413),
        ("PATCH jobs/1/trace", b" " * ((4 << 20) + 1), 413),
        ("PUT jobs/1", b'{"state": NaN}', 400),
        ("PUT jobs/99999999999999999999999999", b"{}", 403),
        ("PUT jobs/x", b"{}", 404),
        ("PUT jobs/-1", b"{}", 404),
        ("GET jobs/request", b"", 405),
        ("POST jobs/1/artifacts", b"", 403),
        ("GET jobs/1/artifacts", b"", 403),
        ("GET ../../../etc/passwd", b"", 404),
    ],
)
async def test_a_strange_call_is_refused(
    http: httpx.AsyncClient, gitlab: FakeGitLab, call: str, content: bytes, status: int
) -> None:
    """With a status, and nothing else happens."""
    number = gitlab.enqueue(Job(id=0, token=""))
    method, _, path = call.partition(" ")
    got = await http.request(method, f"{API}/{path}", content=content)
    assert got.status_code == status
    assert gitlab.server.jobs[number].state is State.PENDING


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"", FORM, 400),
        (b"abc", "application/zip", 400),
        (PART % b"" + b"text\r\n--x--\r\n", FORM, 400),
        (b"--x\r\nno header", FORM, 400),
        (b"abc", "multipart/form-data", 400),
        (PART % b'; filename="a"' + b"y" * 2000 + b"\r\n--x--\r\n", FORM, 413),
    ],
    ids=["empty", "zip", "no file", "no header", "no boundary", "too large"],
)
async def test_a_strange_upload_is_refused(
    gitlab: FakeGitLab, monkeypatch: pytest.MonkeyPatch, content: bytes, kind: str, status: int
) -> None:
    """And nothing of it is kept."""
    monkeypatch.setattr("gitlab_jobs.coordinator.MAX_UPLOAD", 1000)
    gitlab.enqueue(Job(id=0, token=""))
    async with httpx.AsyncClient(transport=gitlab.transport()) as http:
        token = (await http.post(f"{API}/jobs/request", json={"token": gitlab.runner_token})).json()["token"]
        headers = {"JOB-TOKEN": token, "Content-Type": kind}
        got = await http.post(f"{API}/jobs/1/artifacts", content=content, headers=headers)
    assert (got.status_code, gitlab.artifacts) == (status, {})


@pytest.mark.parametrize("place", ["address", "form", "both"])
async def test_what_a_file_is_may_be_said_in_two_places(gitlab: FakeGitLab, place: str) -> None:
    """GitLab Runner says it in the address, others in the form; nothing said is an archive in a zip."""
    gitlab.enqueue(Job(id=0, token=""))
    said = {"artifact_type": "junit", "artifact_format": "gzip"}
    query = {"address": said, "both": said}.get(place, {})
    form = {"form": said, "both": {"artifact_type": "archive"}}.get(place, {})
    async with httpx.AsyncClient(transport=gitlab.transport()) as http:
        token = (await http.post(f"{API}/jobs/request", json={"token": gitlab.runner_token})).json()["token"]
        call: Any = {"url": f"{API}/jobs/1/artifacts", "headers": {"JOB-TOKEN": token}, "files": {"file": b"content"}}
        assert (await http.post(params=query, data=form, **call)).status_code == 201
        assert (await http.post(**call)).status_code == 201
    first, second = gitlab.artifacts[1]
    assert (first.artifact_type, first.artifact_format) == ("junit", "gzip")
    assert (second.artifact_type, second.artifact_format) == ("archive", "zip")


@pytest.mark.parametrize("call", ["PUT jobs/1", "PATCH jobs/1/trace", "POST jobs/1/artifacts"])
async def test_a_body_that_never_ends_is_given_up(
    gitlab: FakeGitLab, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Whoever sends a byte now and then holds nothing for long."""
    gitlab.enqueue(Job(id=0, token=""))
    async with httpx.AsyncClient(transport=gitlab.transport()) as http:
        token = (await http.post(f"{API}/jobs/request", json={"token": gitlab.runner_token})).json()["token"]
    monkeypatch.setattr("gitlab_jobs.coordinator.BODY_SECONDS", 0.2)
    monkeypatch.setattr("gitlab_jobs.coordinator.UPLOAD_SECONDS", 0.2)
    method, _, path = call.partition(" ")
    sent = list[Message]()
    pieces = chain([PART % b'; filename="a"'], repeat(b" "))

    async def receive() -> Message:
        await anyio.sleep(0.01)
        return {"type": "http.request", "body": next(pieces), "more_body": True}

    async def send(message: Message) -> None:
        await checkpoint()
        sent.append(message)

    headers = [(b"job-token", token.encode()), (b"content-type", FORM.encode())]
    scope = {"type": "http", "method": method, "path": f"/api/v4/{path}", "headers": headers, "query_string": b""}
    await gitlab.application()(scope, receive, send)
    assert sent[0]["status"] == 408


async def test_a_file_that_somebody_removed_is_gone(http: httpx.AsyncClient, gitlab: FakeGitLab) -> None:
    """404, as GitLab has it once artifacts have expired."""
    gitlab.enqueue(Job(id=0, token=""))
    token = (await http.post(f"{API}/jobs/request", json={"token": gitlab.runner_token})).json()["token"]
    call: Any = {"url": f"{API}/jobs/1/artifacts", "headers": {"JOB-TOKEN": token}}
    await http.post(files={"file": b"content"}, **call)
    assert (await http.get(**call)).content == b"content"
    gitlab.artifacts[1][0].path.unlink()
    assert (await http.get(**call)).status_code == 404


async def test_jobs_over_a_real_server(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """Twenty of them at a time, and a runner that hangs up while its request is held."""
    gitlab.long_poll = 60
    config = Config()
    config.bind = [f"unix:{tmp_path}/socket"]
    config.errorlog = None
    stop = anyio.Event()
    transport = httpx.AsyncHTTPTransport(uds=f"{tmp_path}/socket")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: serve(gitlab.application(prefix="/sub"), config, shutdown_trigger=stop.wait))  # type: ignore[arg-type]
        while not (tmp_path / "socket").exists():
            await anyio.wait_all_tasks_blocked()
        async with GitLabClient(f"{URL}/sub", transport=transport) as client:
            with anyio.move_on_after(0.5):  # long enough to arrive; where it does not, nothing is left to hang up
                asked = await client.ask(gitlab.runner_token, ticket=str(gitlab.server.version))
                pytest.fail(f"there was nothing to answer: {asked}")
            while gitlab.held:
                await checkpoint()
            numbers = [gitlab.enqueue(Job(id=0, token="")) for _ in range(20)]

            async def run() -> None:
                asked = await client.ask(gitlab.runner_token, info=info())
                assert asked.job, asked.problem
                async with reporting(client, asked.job, info=info()) as report:
                    report.log(b"x" * 100_000)
                    assert await report.claim()
                    assert await report.finish(Outcome(is_success=True)) is End.REPORTED

            async with anyio.create_task_group() as jobs:
                for _ in numbers:
                    jobs.start_soon(run)
        stop.set()
    assert {gitlab.server.jobs[number].state for number in numbers} == {State.SUCCESS}
    assert {len(gitlab.log(number)) for number in numbers} == {100_000}
