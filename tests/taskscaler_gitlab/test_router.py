"""A router before cells: each call gets to the cell that it is for, and no other hears of it."""

import json
import ssl
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import trustme
from attrs import evolve

from gitlab_jobs import Artifact, ArtifactsFile, Dependency, Outcome, Refused
from gitlab_jobs.client import GitLabClient, reporting
from gitlab_jobs.coordinator import Reply
from gitlab_jobs.testing import Fault, State
from taskscaler_gitlab.cells import _held, _route
from taskscaler_gitlab.cells._proxy import MAX_ANSWER, MOST_SAID
from tests.taskscaler_gitlab.routers import ABOUT, a_job, cells, token_of
from tests.time_limits import NEVER_REACHED

pytestmark = [pytest.mark.anyio]


async def run(client: GitLabClient, token: str, *, ticket: str | None = None, log: bytes = b"said\n") -> int:
    """Be a runner that takes a job and ends it; its number."""
    asked = await client.ask(token, info=ABOUT, ticket=ticket)
    assert asked.job is not None, asked
    async with reporting(client, asked.job, info=ABOUT) as report:
        assert await report.claim()
        report.log(log)
        await report.finish(Outcome(is_success=True))
    return asked.job.id


async def ticket_of(client: GitLabClient, token: str) -> str:
    """Be a runner that has asked for the first time, for which there was nothing: with its ticket, it is held."""
    asked = await client.ask(token, info=ABOUT)
    assert (asked.polled.status, asked.job) == (204, None)
    assert asked.polled.ticket
    return asked.polled.ticket


async def test_a_token_that_names_its_cell_gets_there_alone(tmp_path: Path) -> None:
    """Verified, asked, run, reported: the other cell hears nothing."""
    async with cells(tmp_path) as at:
        token, gitlab = token_of(2), at.gitlabs["2"]
        gitlab.server.add_runner(token)
        number = gitlab.enqueue(a_job())
        async with at.routed() as serving, GitLabClient(serving.urls[0]) as client:
            assert (await client.verify(token, info=ABOUT)).token == token
            assert await run(client, token) == number
        assert gitlab.server.jobs[number].state is State.SUCCESS
        assert gitlab.log(number) == b"said\n"
        assert not at.gitlabs["1"].calls


async def test_a_runner_that_has_its_token_in_the_body_alone(tmp_path: Path) -> None:
    """As runners up to 15 do, and with a job's token in a header of a runner's, as those of 17 do."""
    async with cells(tmp_path) as at, httpx.AsyncClient() as http:
        token, gitlab = token_of(1), at.gitlabs["1"]
        gitlab.server.add_runner(token)
        number = gitlab.enqueue(a_job())
        async with at.routed() as serving:
            url = f"{serving.urls[0]}/api/v4"
            asked = await http.post(f"{url}/jobs/request", json={"token": token, "info": {}})
            assert asked.status_code == 201
            job = asked.json()
            log = {"Job-Token": job["token"], "Content-Range": "0-4"}
            assert (await http.patch(f"{url}/jobs/{number}/trace", content=b"said\n", headers=log)).status_code == 202
            done = {"token": job["token"], "state": "success"}
            headers = {"Private-Token": job["token"]}
            assert (await http.put(f"{url}/jobs/{number}", json=done, headers=headers)).status_code == 200
        assert gitlab.server.jobs[number].state is State.SUCCESS
        assert not at.gitlabs["2"].calls


async def test_a_runner_that_all_cells_know_gets_jobs_from_all(tmp_path: Path) -> None:
    """Jobs of one number at two cells are two jobs: each is reported where it is from."""
    async with cells(tmp_path) as at, at.routed() as serving, GitLabClient(serving.urls[0]) as client:
        at.add_everywhere("glrt-everywhere")
        for gitlab in at.gitlabs.values():
            for _ in range(3):
                gitlab.enqueue(a_job())
        for each in range(6):
            await run(client, "glrt-everywhere", log=b"%d\n" % each)
        for gitlab in at.gitlabs.values():
            assert {each.state for each in gitlab.server.jobs.values()} == {State.SUCCESS}
        logs = [gitlab.log(number) for gitlab in at.gitlabs.values() for number in gitlab.server.jobs]
        assert sorted(logs) == [b"%d\n" % each for each in range(6)]


async def test_a_held_request_is_answered_by_whichever_cell_has_a_job(tmp_path: Path) -> None:
    """All hold it at once."""
    async with cells(tmp_path) as at, at.routed() as serving, GitLabClient(serving.urls[0]) as client:
        at.add_everywhere("glrt-everywhere")
        ticket = await ticket_of(client, "glrt-everywhere")
        for chosen in ("1", "2"):
            numbers: list[int] = []

            async def ask(to: list[int]) -> None:
                to.append(await run(client, "glrt-everywhere", ticket=ticket))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, numbers)
                while [each.held for each in at.gitlabs.values()] != [1, 1]:  # noqa: ASYNC110  (nobody says)
                    await anyio.sleep(0.01)
                number = at.gitlabs[chosen].enqueue(a_job())
            assert numbers == [number]
            assert at.gitlabs[chosen].server.jobs[number].state is State.SUCCESS
            while any(each.held for each in at.gitlabs.values()):  # noqa: ASYNC110  (the other is hung up on)
                await anyio.sleep(0.01)


async def test_who_has_seen_nothing_yet_is_answered_at_once(tmp_path: Path) -> None:
    """As by GitLab: who asks so, wants to know whether there is a job now, and may have a slot reserved for it."""
    async with cells(tmp_path) as at, at.routed() as serving, GitLabClient(serving.urls[0]) as client:
        at.add_everywhere("glrt-everywhere")
        for _ in range(3):
            assert await ticket_of(client, "glrt-everywhere")
        assert at.calls("request") == [3, 3]
        number = at.gitlabs["2"].enqueue(a_job())
        assert await run(client, "glrt-everywhere") == number


@pytest.mark.parametrize("two_phase", [True, False])
async def test_jobs_that_two_cells_hand_out_in_the_same_instant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, two_phase: bool
) -> None:
    """One is given, the other kept for the runner's next request: none is lost, none is given twice."""
    monkeypatch.setattr(_route, "GRACE", NEVER_REACHED)  # the second cell may be that late here, on a busy machine
    about = {**ABOUT, "features": {**ABOUT["features"], "two_phase_job_commit": two_phase}}
    async with cells(tmp_path) as at, at.routed() as serving, GitLabClient(serving.urls[0]) as client:
        at.add_everywhere("glrt-everywhere")
        ticket = await ticket_of(client, "glrt-everywhere")
        got: list[str] = []

        async def ask() -> None:
            asked = await client.ask("glrt-everywhere", info=about, ticket=ticket)
            assert asked.job
            got.append(asked.job.token)

        for _ in range(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                while [each.held for each in at.gitlabs.values()] != [1, 1]:  # noqa: ASYNC110  (nobody says)
                    await anyio.sleep(0.01)
                for each in at.gitlabs.values():
                    each.enqueue(a_job())
            await ask()
        handed_out = [each.job.token for gitlab in at.gitlabs.values() for each in gitlab.server.jobs.values()]
        assert sorted(got) == sorted(handed_out)
        assert len(serving.router.polls.kept) == 0
        assert [*(tmp_path / "router" / "kept").glob("*")] == []


async def test_a_restarted_router_knows_from_the_ticket_which_cells_have_a_runner(tmp_path: Path) -> None:
    """The cell that has refused it is not asked again, and the other holds the request at once."""
    async with cells(tmp_path, long_poll=0.05, hold=0.3) as at:
        at.gitlabs["2"].server.add_runner("glrt-old")
        async with at.routed() as serving, GitLabClient(serving.urls[0]) as client:
            ticket = (await client.ask("glrt-old", info=ABOUT)).polled.ticket
            assert ticket is not None
            assert at.calls("request")[0] == 1
        asked = at.calls("request")
        async with at.routed() as serving, GitLabClient(serving.urls[0]) as client:
            again = await client.ask("glrt-old", info=ABOUT, ticket=ticket)
            assert (again.polled.status, again.polled.ticket) == (204, ticket)
        assert at.calls("request") == [asked[0], asked[1] + 1]
        async with at.routed(state="another") as serving, GitLabClient(serving.urls[0]) as client:
            assert (await client.ask("glrt-old", info=ABOUT, ticket=ticket)).polled.status == 204
        assert at.calls("request")[0] == asked[0] + 1


async def test_a_ticket_of_a_cell_that_is_gone_is_no_error(tmp_path: Path) -> None:
    """The cells that there are, are asked."""
    async with cells(tmp_path, long_poll=0.05, hold=0.3, count=3) as at:
        at.add_everywhere("glrt-everywhere")
        async with at.routed() as serving, GitLabClient(serving.urls[0]) as client:
            ticket = (await client.ask("glrt-everywhere", info=ABOUT)).polled.ticket
        at.urls = {each: url for each, url in at.urls.items() if each != "3"}
        before = at.calls("request")[2]
        number = at.gitlabs["2"].enqueue(a_job())
        async with at.routed() as serving, GitLabClient(serving.urls[0]) as client:
            assert await run(client, "glrt-everywhere", ticket=ticket) == number
        assert at.calls("request")[2] == before


async def test_after_a_restart_a_job_is_found_by_asking_the_cells(tmp_path: Path) -> None:
    """Its token says nothing; a log and a file, which cannot be sent twice, get to where they belong."""
    artifact = Artifact(paths=("out",), artifact_type="archive", artifact_format="zip")
    (tmp_path / "left.zip").write_bytes(bytes(range(256)) * 4_000)
    async with cells(tmp_path) as at:
        gitlab, token = at.gitlabs["2"], token_of(2)
        gitlab.server.add_runner(token)
        numbers = [gitlab.enqueue(a_job()) for _ in range(3)]
        other = at.gitlabs["1"].enqueue(a_job())  # of the same number
        async with at.routed() as serving, GitLabClient(serving.urls[0]) as client:
            jobs = [(await client.ask(token, info=ABOUT)).job for _ in numbers]
        async with at.routed() as serving, GitLabClient(serving.urls[0]) as client, httpx.AsyncClient() as http:
            first, second, third = (each for each in jobs if each)
            await client.upload(first, artifact, tmp_path / "left.zip", filename="left.zip")
            log = await http.patch(
                f"{serving.urls[0]}/api/v4/jobs/{second.id}/trace",
                content=b"x" * 300_000,
                headers={"JOB-TOKEN": second.token, "Content-Range": "0-299999"},
            )
            assert log.status_code == 202
        async with at.routed() as serving, GitLabClient(serving.urls[0]) as client:
            file = ArtifactsFile(filename="artifacts.zip", size=1)
            dependency = Dependency(id=first.id, token=first.token, name="first", artifacts_file=file)
            await client.download(dependency, tmp_path / "fetched.zip")
            async with reporting(client, third, info=ABOUT) as report:
                report.log(b"here\n")
                await report.finish(Outcome(is_success=True))
        assert (tmp_path / "fetched.zip").read_bytes() == (tmp_path / "left.zip").read_bytes()
        assert len(gitlab.log(second.id)) == 300_000
        assert gitlab.server.jobs[third.id].state is State.SUCCESS
        assert at.gitlabs["1"].server.jobs[other].state is State.PENDING


async def test_what_a_cell_answers_comes_back(tmp_path: Path) -> None:
    """A log that does not follow, a job that was canceled, a conflict, a refusal, and a busy cell."""
    async with cells(tmp_path) as at, httpx.AsyncClient() as http, at.routed() as serving:
        gitlab, token = at.gitlabs["1"], token_of(1)
        gitlab.server.add_runner(token)
        number = gitlab.enqueue(a_job())
        url = f"{serving.urls[0]}/api/v4"
        asked = await http.post(f"{url}/jobs/request", json={"token": token, "info": {}})
        job_token = asked.json()["token"]
        headers = {"JOB-TOKEN": job_token, "Content-Range": "7-8"}
        refused = await http.patch(f"{url}/jobs/{number}/trace", content=b"ab", headers=headers)
        assert (refused.status_code, refused.headers["Range"]) == (416, "0-0")
        gitlab.cancel(number)
        over = await http.put(f"{url}/jobs/{number}", json={"token": job_token, "state": "running"})
        assert (over.status_code, over.headers["Job-Status"]) == (403, "canceled")
        assert over.headers["X-GitLab-Trace-Update-Interval"] == "3"
        assert (await http.post(f"{url}/runners/verify", json={"token": "glrt-nobody"})).status_code == 403
        unknown = await http.post(f"{url}/jobs/request", json={"token": "glrt-nobody"})
        assert (unknown.status_code, unknown.json()) == (403, {"message": "403 Forbidden"})
        reply = Reply(status=503, headers={"Retry-After": "7"}, body={"message": "busy"})
        conflict = Reply(status=409, body={"message": "409 Conflict"})
        asked_so_far = gitlab.calls["request"]
        gitlab.faults = [
            Fault(call="request", reply=reply, after=asked_so_far),
            Fault(call="request", reply=conflict, after=asked_so_far + 1),
        ]
        busy = await http.post(f"{url}/jobs/request", json={"token": token})
        assert (busy.status_code, busy.headers["Retry-After"], busy.json()) == (503, "7", {"message": "busy"})
        assert (await http.post(f"{url}/jobs/request", json={"token": token})).status_code == 409


# httpx leaves its own generators open when an answer is not read to its end, and trio tells of them
@pytest.mark.filterwarnings("ignore:.*async_generator object .*:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:Async generator '(httpx|httpcore):ResourceWarning")
async def test_a_cell_that_says_too_much_is_at_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And not the runner, which asks again; the log says which cell it is. A job may be longer than other answers."""
    monkeypatch.setattr(_held, "MOST_ANSWER", MAX_ANSWER + 100_000)
    long, longer = ({"message": "x" * (MAX_ANSWER + more)} for more in (0, 100_000))
    async with cells(tmp_path, count=1) as at, httpx.AsyncClient() as http, at.routed() as serving:
        calls = {
            "request": ("POST", "jobs/request"),
            "verify": ("POST", "runners/verify"),
            "update": ("PUT", "jobs/1"),
            "append": ("PATCH", "jobs/1/trace"),
            "download": ("GET", "jobs/1/artifacts"),
        }
        at.gitlabs["1"].faults = [
            *(Fault(call=each, reply=Reply(status=403, body=long)) for each in calls),
            Fault(call="request", reply=Reply(status=403, body=longer), after=1),
        ]
        for call, (method, path) in (*calls.items(), ("request", calls["request"])):
            headers = {"JOB-TOKEN": token_of(1), "Content-Range": "0-1"}
            found = await http.request(method, f"{serving.urls[0]}/api/v4/{path}", headers=headers, content=b"{}")
            is_too_long = call != "request" or at.gitlabs["1"].calls["request"] > 1
            assert found.status_code == (502 if is_too_long else 403), call
        told = [vars(each)["cell"] for each in caplog.records if each.message == "cell_says_too_much"]
        assert told == ["1"] * 5


async def test_a_header_of_any_bytes_comes_back_as_it_was(tmp_path: Path) -> None:
    """Such as the name of a file: of an answer that is read whole, and of a file that passes through."""
    async with cells(tmp_path, count=1) as at, httpx.AsyncClient() as http, at.routed() as serving:
        name = 'attachment; filename="日本.zip"'.encode()
        reply = Reply(status=206, headers={"Content-Disposition": name.decode("latin-1")}, body={})
        at.gitlabs["1"].faults = [Fault(call=each, reply=reply) for each in ("verify", "download")]
        url = f"{serving.urls[0]}/api/v4"
        verified = await http.post(f"{url}/runners/verify", json={"token": "glrt-anybody"})
        fetched = await http.get(f"{url}/jobs/1/artifacts", headers={"JOB-TOKEN": "glcbt-anybody"})
        for each in (verified, fetched):
            assert each.status_code == 206
            assert dict(each.headers.raw)[b"content-disposition"] == name


async def test_a_cell_that_is_down_stops_nobody_else(tmp_path: Path) -> None:
    """Whom the others do not know is asked to come again, and not refused: it may be the missing cell's."""
    async with cells(tmp_path) as at, httpx.AsyncClient() as http:
        at.urls = {**at.urls, "3": "http://127.0.0.1:9"}
        at.gitlabs["2"].server.add_runner("glrt-second")
        number = at.gitlabs["2"].enqueue(a_job())
        async with at.routed() as serving, GitLabClient(serving.urls[0]) as client:
            assert await run(client, "glrt-second") == number
            url = f"{serving.urls[0]}/api/v4"
            for path, method in (("runners/verify", "POST"), ("jobs/request", "POST"), ("jobs/77", "PUT")):
                body = {"token": "glrt-third", "state": "running"}
                answer = await http.request(method, f"{url}/{path}", json=body)
                assert answer.status_code == 502, path
                assert answer.headers["Content-Type"] == "application/json"
            body = {"token": token_of(3)}
            assert (await http.post(f"{url}/jobs/request", json=body)).status_code == 502


async def test_runners_are_registered_reset_and_removed_where_they_belong(tmp_path: Path) -> None:
    """With a registration token, at the first cell that takes it; a router is no way round the cells' own rules."""
    async with cells(tmp_path) as at, at.routed() as serving, GitLabClient(serving.urls[0]) as client:
        at.gitlabs["1"].faults = [Fault(call="register", reply=Reply(status=403, body={"message": "403 Forbidden"}))]
        made = await client.register("glrtr-second", description="x")
        assert at.calls("register") == [1, 1]
        fresh = await client.reset_token(made.token)
        assert fresh.token != made.token
        with pytest.raises(Refused, match="403"):
            await client.verify(made.token)
        await client.unregister(fresh.token, system_id="r_0123456789ab")
        with pytest.raises(Refused, match="403"):
            await client.verify(fresh.token)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v4/runners/router/discovery", 501),
        ("GET", "/api/v4/projects", 404),
        ("GET", "/", 404),
        ("PUT", "/api/v4/jobs/12x", 404),
        ("PUT", "/api/v4/jobs/1/../../users", 404),
        ("POST", "/api/v4/runners/%2e%2e/users", 404),
        ("PUT", "/api/v4/jobs/" + "9" * 30, 404),
    ],
)
async def test_nothing_else_is_passed_on(tmp_path: Path, method: str, path: str, status: int) -> None:
    """Not what would lead runners past the router, and nothing that no runner needs."""
    async with cells(tmp_path, count=1) as at, at.routed() as serving, httpx.AsyncClient() as http:
        answer = await http.request(method, httpx.URL(serving.urls[0]).copy_with(raw_path=path.encode()))
        assert answer.status_code == status
        assert not at.gitlabs["1"].calls


@pytest.mark.parametrize(("method", "path"), [("PUT", "1"), ("PATCH", "1/trace"), ("GET", "1/artifacts")])
async def test_a_token_that_no_header_can_have_is_who_sent_its_fault(tmp_path: Path, method: str, path: str) -> None:
    """It is refused, and no cell counts as away because of it."""
    async with cells(tmp_path, count=2) as at, at.routed() as serving, httpx.AsyncClient() as http:
        headers = {b"JOB-TOKEN": b"glcbt-\xff", b"Content-Range": b"0-1"}
        answer = await http.request(method, f"{serving.urls[0]}/api/v4/jobs/{path}", headers=headers, content=b"{}")
        assert answer.status_code == 400
        assert "the token has a character that no header can have" in answer.json()["message"]
        assert not any(each.is_away for each in serving.router.cells.values())


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "jobs/1"), ("PATCH", "jobs/1/trace"), ("GET", "jobs/1/artifacts")]
)
async def test_an_address_that_none_can_be_is_who_sent_its_fault(tmp_path: Path, method: str, path: str) -> None:
    """HTTP/2 may have any byte in a query, and the address for a cell may not."""
    async with cells(tmp_path, count=1) as at, at.routed() as serving:
        sent: list[Any] = []

        async def send(message: Any) -> None:  # noqa: ANN401  (ASGI's)
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": f"/api/v4/{path}",
            "query_string": b"a=\x01",
            "headers": [(b"job-token", token_of(1).encode())],
        }
        bodies = [{"type": "http.request", "body": b"{}"}]

        async def receive() -> Any:  # noqa: ANN401  (ASGI's)
            if not bodies:
                await anyio.sleep_forever()
            return bodies.pop()

        await serving.router(scope, receive, send)
        assert sent[0]["status"] == 400
        assert not any(each.is_away for each in serving.router.cells.values())


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"token": 7}', b"null", b"\xff" * 100, b"[" * 60_000])
async def test_what_is_no_request_is_refused_on_one_line(tmp_path: Path, body: bytes) -> None:
    """Before any cell is asked, or by the cells."""
    async with cells(tmp_path, count=2, hold=0.3) as at, at.routed() as serving, httpx.AsyncClient() as http:
        answer = await http.post(f"{serving.urls[0]}/api/v4/jobs/request", content=body)
        assert answer.status_code in (400, 403)
        assert json.loads(answer.content)["message"]


@pytest.mark.parametrize("path", ["jobs/request", "runners", "runners/verify"])
async def test_what_a_runner_says_is_bounded_whoever_it_is(tmp_path: Path, path: str) -> None:
    """A megabyte of JSON is twenty of objects, for as long as a cell takes to answer; anybody may send it."""
    async with cells(tmp_path) as at, at.routed() as serving, httpx.AsyncClient() as http:
        said = {"token": "glrt-anybody", "info": {"features": [{}] * (MOST_SAID // 3)}}
        found = await http.post(f"{serving.urls[0]}/api/v4/{path}", json=said)
        assert found.status_code == 413
        assert not any(each.calls for each in at.gitlabs.values())


async def test_one_address_takes_no_more_than_its_share_of_connections(tmp_path: Path) -> None:
    """It is answered so, as GitLab would; others come in, and so does this one once it has hung up."""
    async with cells(tmp_path, count=1) as at, httpx.AsyncClient() as http, AsyncExitStack() as stack:
        at.settings = evolve(at.settings, connections_per_client=2)
        serving = await stack.enter_async_context(at.routed())
        url = f"{serving.urls[0]}/api/v4/projects"
        elsewhere = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        other = await stack.enter_async_context(httpx.AsyncClient(transport=elsewhere))
        port = int(serving.urls[0].rpartition(":")[2])
        taken = [await anyio.connect_tcp("127.0.0.1", port) for _ in range(2)]
        refused = await http.get(url)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        said = "429 Too Many Requests - 127.0.0.1 has 2 connections, as many as one client may; wait"
        assert refused.json() == {"message": said}
        assert (await other.get(url)).status_code == 404
        for each in taken:
            await each.aclose()
        while (await http.get(url)).status_code != 404:  # noqa: ASYNC110  (nobody says)
            await anyio.sleep(0.01)


async def test_a_router_that_ends_answers_those_who_wait(tmp_path: Path) -> None:
    """There is no job for them, which is nothing that a runner minds; no cell hands one out to nobody."""
    async with cells(tmp_path) as at, at.routed() as serving, httpx.AsyncClient(timeout=NEVER_REACHED) as http:
        at.add_everywhere("glrt-everywhere")
        at.gitlabs["1"].server.add_runner(token_of(1))
        answers: list[httpx.Response] = []

        async def ask(token: str, ticket: str) -> None:
            body = {"token": token, "info": {}, "last_update": ticket}
            answers.append(await http.post(f"{serving.urls[0]}/api/v4/jobs/request", json=body))

        tokens = ("glrt-everywhere", token_of(1))
        first = [await http.post(f"{serving.urls[0]}/api/v4/jobs/request", json={"token": each}) for each in tokens]
        async with anyio.create_task_group() as tasks:
            for token, asked in zip(tokens, first, strict=True):
                tasks.start_soon(ask, token, asked.headers["X-GitLab-Last-Update"])
            while [each.held for each in at.gitlabs.values()] != [2, 1]:  # noqa: ASYNC110  (nobody says)
                await anyio.sleep(0.01)
            await serving.stop(NEVER_REACHED)
        assert [each.status_code for each in answers] == [204, 204]
        assert serving.router.polls.open == 0


async def test_tls_on_both_sides(tmp_path: Path) -> None:
    """Cells with a private authority, and a router with a certificate of its own."""
    authority = trustme.CA()
    certificate, chain = tmp_path / "certificate.pem", tmp_path / "authority.pem"
    issued = authority.issue_cert("127.0.0.1")
    certificate.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    authority.cert_pem.write_to_path(chain)
    trusting = ssl.create_default_context(cafile=str(chain))
    async with cells(tmp_path, certificate=certificate) as at:
        at.tls_ca_file = str(chain)
        at.settings = evolve(at.settings, tls_cert_file=str(certificate))
        at.add_everywhere("glrt-everywhere")
        number = at.gitlabs["2"].enqueue(a_job())
        async with at.routed() as serving, GitLabClient(serving.urls[0], tls=trusting) as client:
            assert serving.urls[0].startswith("https://127.0.0.1:")
            assert await run(client, "glrt-everywhere") == number
        assert at.gitlabs["2"].server.jobs[number].state is State.SUCCESS
