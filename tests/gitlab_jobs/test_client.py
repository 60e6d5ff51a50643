"""A runner and a GitLab, without a socket between them: every call, and what goes wrong with it."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import httpx
import pytest
from attrs import evolve

from gitlab_jobs import (
    Answer,
    Artifact,
    Dependency,
    End,
    Features,
    GitLabJobsError,
    Job,
    JobInfo,
    NotKept,
    Outcome,
    Patch,
    Phase,
    Polling,
    Refused,
    Report,
    Step,
    Trace,
    Unreachable,
    Update,
    Variable,
)
from gitlab_jobs.client import GitLabClient, Runner, info, reporting
from gitlab_jobs.coordinator import Reply
from gitlab_jobs.testing import URL, FakeGitLab, Fault, State

pytestmark = [
    pytest.mark.anyio,
    # httpx leaves its own generators open when an answer is not read to its end, and trio tells of them
    pytest.mark.filterwarnings("ignore:.*async_generator object .*Stream:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
]

NO_ROOM = Path("/dev/full")
HTML = Reply(status=200, headers={"Content-Type": "text/html"}, body=b"<!DOCTYPE html><title>Sign in</title>")
BUSY = Reply(status=503, headers={"Retry-After": "0"})
FULL = info("two_phase_job_commit", "cancel_gracefully")


@pytest.fixture
def gitlab(tmp_path: Path) -> FakeGitLab:
    """One that answers at once."""
    return FakeGitLab(tmp_path, long_poll=0.05)


@pytest.fixture
async def client(gitlab: FakeGitLab) -> AsyncIterator[GitLabClient]:
    """Connected to it."""
    async with GitLabClient(URL, transport=gitlab.transport()) as opened:
        yield opened


def answering(*responses: httpx.Response | Exception) -> tuple[GitLabClient, list[httpx.Request]]:
    """A client of something that gives these answers, one after the other, and what it was asked."""
    left, seen = list(responses), list[httpx.Request]()

    async def answer(request: httpx.Request) -> httpx.Response:
        await request.aread()
        seen.append(request)
        given = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(given, Exception):
            raise given
        return httpx.Response(given.status_code, headers=given.headers, stream=httpx.ByteStream(given.content))

    return GitLabClient("https://gitlab.test/sub/", transport=httpx.MockTransport(answer)), seen


async def test_a_runners_life(client: GitLabClient, gitlab: FakeGitLab) -> None:
    """Registered, verified, reset, and gone; a token that is gone is refused."""
    registered = await client.register("GR1348941x", description="mine", tag_list="a,b")
    assert (await client.verify(registered.token)).id == registered.id
    fresh = await client.reset_token(registered.token)
    with pytest.raises(Refused, match=r"POST runners/verify: GitLab answered 403: 403 Forbidden") as error:
        await client.verify(registered.token)
    assert error.value.status == 403
    await client.unregister(fresh.token, system_id="s_1")
    with pytest.raises(Refused):
        await client.unregister(fresh.token)
    assert gitlab.calls["unregister"] == 2


async def test_a_job_from_its_request_to_its_end(client: GitLabClient, gitlab: FakeGitLab) -> None:
    """The log is as it was written but for what is secret, and GitLab has the final state."""
    secret = Variable(key="PASSWORD", value="hunter2!", masked=True)
    number = gitlab.enqueue(Job(id=0, token="", variables=(secret,), steps=(Step(name="script", script=("true",)),)))
    runner = Runner(client, gitlab.runner_token, info=FULL)
    job = await runner.ask()
    assert job
    assert job.steps[0].script == ("true",)
    async with reporting(client, job, info=FULL) as report:
        report.log(b"the password is hunt")
        assert await report.claim()
        assert gitlab.server.jobs[number].state is State.RUNNING
        report.log(b"er2!, or \xff glpat-x\n")
        end = await report.finish(Outcome(is_success=True))
    assert end is End.REPORTED
    stored = gitlab.server.jobs[number]
    assert stored.state is State.SUCCESS
    assert gitlab.log(number).decode() == "the password is [MASKED], or \N{REPLACEMENT CHARACTER} glpat-[MASKED]\n"
    assert await runner.ask() is None


async def test_tokens_are_in_header_and_body() -> None:
    """As runners from 16 to 19 have them, so that every GitLab and every router finds one; reset has the body alone."""
    client, seen = answering(httpx.Response(204))
    job = Job(id=7, token="glcbt-x")
    await client.ask("glrt-x", system_id="s_1", info=FULL, ticket="5")
    await client.send(job, Update(state="running"))
    await client.send(job, Patch(3, b"abc"), debug_trace=True)
    await client.unregister("glrt-x", system_id="s_1")
    with pytest.raises(Refused):
        await client.reset_token("glrt-x")
    ask, put, patch, gone, reset = seen
    assert (str(ask.url), ask.headers["RUNNER-TOKEN"]) == ("https://gitlab.test/sub/api/v4/jobs/request", "glrt-x")
    assert b'"token":"glrt-x"' in ask.content
    assert b'"last_update":"5"' in ask.content
    assert (put.method, put.headers["JOB-TOKEN"]) == ("PUT", "glcbt-x")
    assert b'"token":"glcbt-x"' in put.content
    assert (patch.headers["JOB-TOKEN"], patch.headers["Content-Range"], patch.content) == ("glcbt-x", "3-5", b"abc")
    assert (patch.url.path, patch.url.query) == ("/sub/api/v4/jobs/7/trace", b"debug_trace=true")
    assert gone.url.path.endswith("/runners/managers")
    assert ("RUNNER-TOKEN" in reset.headers, reset.content) == (False, b'{"token":"glrt-x"}')


async def test_a_request_is_held_until_there_is_something(client: GitLabClient, gitlab: FakeGitLab) -> None:
    """The runner shows what it has seen; a job that comes meanwhile is its answer."""
    gitlab.long_poll = 60
    runner = Runner(client, gitlab.runner_token, info=info())
    assert await runner.ask() is None  # without a ticket the answer comes at once
    jobs: list[Job | None] = []
    runner.polling._check_interval = runner.polling._next_at = 0.0
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            jobs.append(await runner.ask())

        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert (jobs, gitlab.calls["request"]) == ([], 2)
        gitlab.enqueue(Job(id=0, token=""))
    assert jobs[0]


async def test_a_token_that_is_replaced_while_gitlab_holds_a_request(client: GitLabClient, gitlab: FakeGitLab) -> None:
    """What is said of the old one afterwards silences nobody; the next request has the new one."""
    registered = await client.register("GR1348941x")
    gitlab.long_poll = 60
    runner = Runner(client, registered.token, info=info())
    assert await runner.ask() is None
    runner.polling._check_interval = runner.polling._next_at = 0.0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.ask)
        await anyio.wait_all_tasks_blocked()
        assert (await runner.reset_token()).token != registered.token
        gitlab.enqueue(Job(id=0, token=""))
    assert await runner.ask()
    assert runner.polling._refusals == 0


async def test_who_was_silenced_asks_at_once_with_another_token(client: GitLabClient, gitlab: FakeGitLab) -> None:
    """Three refusals silence a runner for an hour, but not the one that somebody has mended."""
    runner = Runner(client, "glrt-gone", info=info())
    gitlab.enqueue(Job(id=0, token=""))
    for _ in range(3):
        assert await runner.ask() is None
    assert runner.polling.is_silenced
    runner.use_token(gitlab.runner_token)
    assert await runner.ask()


async def test_a_request_that_is_cancelled_is_none(client: GitLabClient, gitlab: FakeGitLab) -> None:
    """The runner can ask again, and a job that comes later is for that."""
    gitlab.long_poll = 60
    runner = Runner(client, gitlab.runner_token, info=info())
    runner.polling.ticket = str(gitlab.server.version)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.ask)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    gitlab.enqueue(Job(id=0, token=""))
    assert await runner.ask()


async def test_a_cancelled_job_ends_as_such(client: GitLabClient, gitlab: FakeGitLab) -> None:
    """Whoever runs it learns of it, and what it says then is that it was cancelled."""
    number = gitlab.enqueue(Job(id=0, token="", features=Features(failure_reasons=("job_canceled",))))
    job = await Runner(client, gitlab.runner_token, info=FULL).ask()
    assert job
    async with reporting(client, job, info=FULL) as report:
        await report.claim()
        gitlab.cancel(number)
        report.log(b"a line\n")
        await report.canceling.wait()
        await report.finish(Outcome(is_success=True))
    stored = gitlab.server.jobs[number]
    assert (stored.state, stored.failure_reason) == (State.CANCELED, None)


async def test_a_job_that_is_taken_away_is_over(client: GitLabClient, gitlab: FakeGitLab) -> None:
    """Whoever runs it learns of it without asking."""
    number = gitlab.enqueue(Job(id=0, token=""))
    job = await Runner(client, gitlab.runner_token, info=info()).ask()
    assert job
    async with reporting(client, job, info=info()) as report:
        assert await report.claim()
        gitlab.cancel(number)
        report.log(b"a line\n")
        await report.over.wait()
        assert await report.finish(Outcome(is_success=True)) is End.REVOKED


async def test_a_job_whose_runner_breaks_off_is_reported(client: GitLabClient, gitlab: FakeGitLab) -> None:
    """By an exception, which stays what it was, or by a cancellation."""
    gitlab.accepts = 0
    for kind in ("error", "cancel"):
        number = gitlab.enqueue(Job(id=0, token=""))
        runner = Runner(client, gitlab.runner_token, info=info())
        job = await runner.ask()
        assert job
        with anyio.CancelScope() as scope:
            try:
                async with reporting(client, job, info=info()) as report:
                    await report.claim()
                    if kind == "error":
                        raise LookupError("no such thing")
                    scope.cancel()
                    await anyio.sleep_forever()
            except LookupError:
                assert kind == "error"
        stored = gitlab.server.jobs[number]
        assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")


async def test_a_job_that_was_never_claimed_is_left_to_others(client: GitLabClient, gitlab: FakeGitLab) -> None:
    """Nobody ran it, so that GitLab can give it to another runner."""
    number = gitlab.enqueue(Job(id=0, token=""))
    job = await Runner(client, gitlab.runner_token, info=FULL).ask()
    assert job
    async with reporting(client, job, info=FULL) as report:
        await anyio.wait_all_tasks_blocked()
    assert (report.report.end, gitlab.server.jobs[number].state) == (End.ABANDONED, State.PENDING)


@pytest.mark.parametrize(
    ("known", "is_canceling", "said"),
    [
        (("image_pull_failure",), False, "image_pull_failure"),
        ((), False, "runner_system_failure"),
        (("job_canceled",), True, "job_canceled"),
        ((), True, "unknown_failure"),
    ],
)
async def test_a_report_that_goes_on_after_a_restart_speaks_gitlabs_words(
    client: GitLabClient,
    gitlab: FakeGitLab,
    known: tuple[str, ...],
    is_canceling: bool,  # noqa: FBT001  (a parameter of pytest's)
    said: str,
) -> None:
    """What was written down was how the job ended; which reasons this GitLab knows, and a cancellation, still count."""
    number = gitlab.enqueue(Job(id=0, token="", features=Features(failure_reasons=known)))
    job = await Runner(client, gitlab.runner_token, info=info()).ask()
    assert job
    outcome = Outcome(is_success=False, failure_reason="image_pull_failure")

    def resume(trace: Trace, now: float) -> Report:
        return Report(trace, now, phase=Phase.FINISHING, outcome=outcome, is_canceling=is_canceling)

    async with reporting(client, job, info=info(), resume=resume) as report:
        assert await report.finish(outcome) is End.REPORTED
    assert (gitlab.server.jobs[number].state, gitlab.server.jobs[number].failure_reason) == (State.FAILED, said)


@pytest.mark.parametrize("call", ["update", "append"])
@pytest.mark.parametrize(
    "fault",
    [
        {},
        {"is_processed": True},
        {"reply": BUSY, "times": 7},
        {"reply": BUSY, "is_processed": True},
        {"reply": HTML},
        {"reply": HTML, "after": 1},
        {"reply": evolve(HTML, headers={"Content-Type": "application/xhtml+xml; charset=utf-8"}), "after": 1},
        {"reply": evolve(HTML, status=403)},
        {"reply": evolve(HTML, status=404), "after": 1},
        {"reply": Reply(status=400)},
        {"after": 1, "is_processed": True},
        {"after": 2, "reply": Reply(status=412)},
    ],
    ids=str,
)
async def test_a_fault_of_gitlab_costs_nothing(tmp_path: Path, call: str, fault: dict[str, object]) -> None:
    """Neither a job nor a byte of its log, whichever call it hits."""
    gitlab = FakeGitLab(tmp_path, faults=[Fault(call=call, **fault)], accepts=0)  # type: ignore[arg-type]
    number = gitlab.enqueue(Job(id=0, token=""))
    async with GitLabClient(URL, transport=gitlab.transport()) as client:
        job = await Runner(client, gitlab.runner_token, info=info()).ask()
        assert job
        async with reporting(client, job, info=info()) as report:
            assert await report.claim()
            report.log(b"one\n")
            assert await report.finish(Outcome(is_success=True)) is End.REPORTED
    stored = gitlab.server.jobs[number]
    assert (stored.state, bytes(stored.trace)) == (State.SUCCESS, b"one\n")


async def test_a_job_that_cannot_be_understood_is_failed_at_once(client: GitLabClient, gitlab: FakeGitLab) -> None:
    """With a line in its log: GitLab believes that it runs, and would wait for hours."""
    number = gitlab.enqueue(Job(id=0, token="", job_info=JobInfo(extra={"pipeline_id": "seven"})))
    runner = Runner(client, gitlab.runner_token, info=info())
    assert await runner.ask() is None
    stored = gitlab.server.jobs[number]
    assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")
    assert b"cannot understand the job: expected an integer of 64 bits, found a string" in gitlab.log(number)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (httpx.Response(201, content=b'{"id": 1, "tok'), "expected JSON, found 14 bytes (Unterminated string"),
        (httpx.Response(201, content=b"<html>"), "expected JSON, found '<html>'"),
        (httpx.Response(201), "expected JSON, found nothing"),
        (httpx.Response(200, content=b"<html>"), "POST jobs/request: GitLab answered 200"),
        (httpx.Response(403, json={"message": "403 Forbidden"}), "GitLab answered 403: 403 Forbidden"),
        (httpx.Response(409, json={"message": {"base": ["a\nb", "c"]}}), "GitLab answered 409: base a b, c"),
        (httpx.Response(500, headers={"Retry-After": "0"}, content=b"[" * 9999), "GitLab answered 500"),
        (httpx.Response(404, content=b"x" * (2 << 20)), "GitLab answered 404"),
        (
            httpx.Response(307, headers={"Location": "https://evil.test/"}),
            "redirects to https://evil.test, where our token",
        ),
        (
            httpx.Response(307, headers={"Location": "http://gitlab.test/"}),
            "redirects to http://gitlab.test, where our token",
        ),
        (
            httpx.Response(308, headers={"Location": "file:///etc/passwd"}),
            "redirects to an address that cannot be used",
        ),
        (httpx.Response(308), "GitLab answered 308"),
        (httpx.ConnectError("certificate verify failed"), "request: gitlab.test cannot be reached: certificate"),
        (httpx.RemoteProtocolError("illegal\nrequest line"), "POST jobs/request: illegal"),
    ],
    ids=lambda value: value[-40:] if isinstance(value, str) else None,
)
async def test_what_gitlab_answers_to_a_request_is_never_an_exception(
    answer: httpx.Response | Exception, problem: str
) -> None:
    """It is one line, and the next request is due as usual."""
    client, _ = answering(answer)
    asked = await client.ask("glrt-x")
    assert asked.job is None
    assert problem in str(asked.problem)
    assert "\n" not in str(asked.problem)
    assert "glrt-x" not in str(asked.problem)


async def test_a_job_without_a_type_is_a_job() -> None:
    """GitLab Runner would lose it."""
    client, _ = answering(
        httpx.Response(201, content=b'{"id": 1, "token": "t"}', headers={"X-GitLab-Last-Update": "9"})
    )
    asked = await client.ask("glrt-x")
    assert asked.job == Job(id=1, token="t")
    assert asked.polled.ticket == "9"


async def test_a_busy_gitlab_is_asked_again() -> None:
    """Five times at most; a job that came of it counts as late."""
    busy = httpx.Response(429, headers={"Retry-After": "0"})
    client, seen = answering(busy, busy, httpx.Response(201, content=b'{"id": 1, "token": "t"}'))
    asked = await client.ask("glrt-x")
    assert (len(seen), asked.polled.is_retried, asked.job is not None) == (3, True, True)
    client, seen = answering(busy)
    assert (await client.ask("glrt-x")).polled.status == 429
    assert len(seen) == 5


async def test_a_call_goes_on_where_gitlab_itself_redirects() -> None:
    """With its body and its token, as long as it is the same GitLab; and not for ever."""
    away = httpx.Response(307, headers={"Location": "/sub/api/v4/elsewhere"})
    client, seen = answering(away, httpx.Response(204))
    assert (await client.ask("glrt-x")).polled.status == 204
    assert (seen[1].url.path, seen[1].content, seen[1].headers["RUNNER-TOKEN"]) == (
        "/sub/api/v4/elsewhere",
        seen[0].content,
        "glrt-x",
    )
    client, seen = answering(away)
    assert (await client.ask("glrt-x")).polled.status == 307
    assert len(seen) == 4


async def test_calls_about_a_job_have_an_answer_whatever_happens() -> None:
    """None, if there was none."""
    for given in (httpx.ReadError("reset"), httpx.Response(200, content=b"x" * (2 << 20))):
        client, _ = answering(given)
        assert await client.send(Job(id=1, token="t"), Update(state="running")) == Answer(status=None)


@pytest.mark.parametrize(
    "url", ["", "gitlab.example.com", "ftp://h/", "http://", "https://u:p@h/", "http://[::1", "https://h:x/"]
)
async def test_an_address_that_is_none_is_refused(url: str) -> None:
    """In one line."""
    with pytest.raises(ValueError, match=r"expected (the|an) address"):
        GitLabClient(url)


async def test_a_token_that_no_header_can_have_is_a_refusal_that_does_not_show_it(tmp_path: Path) -> None:
    """Whoever made it: a user, or GitLab for a job that another one depends on. Nothing is sent."""
    client, seen = answering(httpx.Response(204))
    for token in ("glrt-S\n", "glrt-Sé", " glrt-S"):
        problem = (await client.ask(token)).problem
        assert str(problem) == "POST jobs/request: the token has a character that no header can have"
        with pytest.raises(Refused, match=r"GET jobs/3/artifacts: the token has a character that no header can have"):
            await client.download(Dependency(id=3, token=token), tmp_path / "in")
    assert not seen


async def test_a_reason_has_an_end() -> None:
    """Whatever is sent instead of an answer."""
    client, _ = answering(httpx.RemoteProtocolError(f"illegal status line: {'x' * 100_000}"))
    assert len(str((await client.ask("glrt-x")).problem)) < 400
    client, _ = answering(httpx.Response(307, headers={"Location": f"https://{'x.' * 9999}test/"}))
    assert len(str((await client.ask("glrt-x")).problem)) < 500


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b'{"id": 1, "token": "t\\n"}',
        b"[]",
        b'{"id": "1", "token": "t"}',
        b'{"id": 1.0}',
        b'{"token": "t"}',
    ],
)
async def test_an_answer_about_a_runner_is_checked(body: bytes) -> None:
    """What GitLab says of a runner that it registers has to be one."""
    client, _ = answering(httpx.Response(201, content=body))
    with pytest.raises(Refused, match="POST runners: expected"):
        await client.register("GR1348941x")


# --- artifacts ----------------------------------------------------------------------------------------------


async def handed_out(gitlab: FakeGitLab, client: GitLabClient, job: Job) -> Job:
    """A job that a runner has."""
    gitlab.enqueue(job)
    asked = await client.ask(gitlab.runner_token, info=info())
    assert asked.job
    return asked.job


async def test_artifacts_go_from_one_job_to_the_next(client: GitLabClient, gitlab: FakeGitLab, tmp_path: Path) -> None:
    """With the token of the job that left them, byte for byte."""
    content = bytes(range(256)) * 1000
    (tmp_path / "out").write_bytes(content)
    first = await handed_out(gitlab, client, Job(id=0, token=""))
    artifact = Artifact(artifact_type="archive", artifact_format="zip", expire_in="1 day")
    await client.upload(first, artifact, tmp_path / "out", filename='a"b\r\nc.zip')
    (kept,) = gitlab.artifacts[first.id]
    assert (kept.artifact_type, kept.artifact_format, kept.path.read_bytes()) == ("archive", "zip", content)
    dependency = Dependency(id=first.id, token=first.token)
    assert await client.download(dependency, tmp_path / "in") == len(content)
    assert (tmp_path / "in").read_bytes() == content
    with pytest.raises(Refused, match="the archive has more than 1000 bytes"):
        await client.download(dependency, tmp_path / "in", limit=1000)
    other = await handed_out(gitlab, client, Job(id=0, token=""))
    with pytest.raises(Refused, match=f"GET jobs/{first.id}/artifacts: GitLab answered 403"):
        await client.download(Dependency(id=first.id, token=other.token), tmp_path / "in")
    with pytest.raises(Refused, match=f"GET jobs/{other.id}/artifacts: GitLab answered 404"):
        await client.download(Dependency(id=other.id, token=other.token), tmp_path / "in")


async def test_an_upload_is_repeated(tmp_path: Path) -> None:
    """Unless GitLab will never take it."""
    faults = [Fault(call="upload", times=1), Fault(call="upload", after=1, reply=Reply(status=500))]
    gitlab = FakeGitLab(tmp_path, faults=faults)
    (tmp_path / "out").write_bytes(b"content")
    async with GitLabClient(URL, transport=gitlab.transport()) as client:
        job = await handed_out(gitlab, client, Job(id=0, token=""))
        await client.upload(job, Artifact(), tmp_path / "out", filename="a.zip")
        assert gitlab.calls["upload"] == 3
        gitlab.faults = [Fault(call="upload", after=3, reply=Reply(status=413, body={"message": "too large"}))]
        with pytest.raises(Refused, match=f"POST jobs/{job.id}/artifacts: GitLab answered 413: too large"):
            await client.upload(job, Artifact(), tmp_path / "out", filename="a.zip")
        assert gitlab.calls["upload"] == 4
        with pytest.raises(Refused, match="403"):
            await client.upload(Job(id=job.id, token="x"), Artifact(), tmp_path / "out", filename="a.zip")


async def test_what_cannot_be_kept_is_an_error_of_its_own(tmp_path: Path) -> None:
    """At either end: of what was fetched in part nothing stays, and GitLab's full disk is an answer."""
    client, _ = answering(httpx.Response(200, content=b"abc"))
    dependency = Dependency(id=3, token="t")
    with pytest.raises(NotKept, match=r"GET jobs/3/artifacts: .*/missing/in cannot be written: No such file"):
        await client.download(dependency, tmp_path / "missing" / "in")
    with pytest.raises(Refused, match="more than 2 bytes"):
        await client.download(dependency, tmp_path / "in", limit=2)
    assert not (tmp_path / "in").exists()
    with pytest.raises(NotKept, match="/dev/full cannot be written: No space left on device"):
        await client.download(dependency, NO_ROOM)
    assert NO_ROOM.is_char_device()  # noqa: ASYNC240
    gitlab = FakeGitLab(tmp_path / "gone")
    gitlab.enqueue(Job(id=0, token=""))
    (tmp_path / "out").write_bytes(b"abc")
    async with GitLabClient(URL, transport=gitlab.transport()) as desk:
        job = await Runner(desk, gitlab.runner_token, info=info()).ask()
        assert job
        with pytest.raises(Refused, match="GitLab answered 500: 500 Internal Server Error: No such file") as error:
            await desk.upload(job, Artifact(name="a"), tmp_path / "out", filename="a.zip")
        assert error.value.status == 500
        with pytest.raises(FileNotFoundError):
            await desk.upload(job, Artifact(name="a"), tmp_path / "nothing", filename="a.zip")
    assert not gitlab.artifacts


async def test_a_download_is_repeated(tmp_path: Path) -> None:
    """Two times, without the wish for a direct one."""
    client, seen = answering(httpx.ReadError("reset"), httpx.Response(500), httpx.Response(200, content=b"abc"))
    assert await client.download(Dependency(id=3, token="t"), tmp_path / "in") == 3
    assert [each.url.query for each in seen] == [b"direct_download=true", b"", b""]
    client, seen = answering(httpx.ReadError("reset"))
    with pytest.raises(Unreachable, match="GET jobs/3/artifacts: reset"):
        await client.download(Dependency(id=3, token="t"), tmp_path / "in")
    assert len(seen) == 3


async def test_our_token_goes_to_nobody_else(tmp_path: Path) -> None:
    """Where GitLab keeps archives, the address is permission enough; back at GitLab, the token is there again."""
    away = httpx.Response(302, headers={"Location": "https://bucket.test/x?X-Amz-Signature=y"})
    back = httpx.Response(307, headers={"Location": "https://gitlab.test/sub/api/v4/there"})
    client, seen = answering(away, back, httpx.Response(200, content=b"abc"))
    await client.download(Dependency(id=3, token="SECRET"), tmp_path / "in")
    assert [(each.url.host, "SECRET" in str(each.headers)) for each in seen] == [
        ("gitlab.test", True),
        ("bucket.test", False),
        ("gitlab.test", True),
    ]


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/xhtml+xml"])
async def test_a_page_is_no_archive(kind: str, tmp_path: Path) -> None:
    """What wants somebody to sign in is not unpacked, and not kept."""
    client, seen = answering(httpx.Response(200, headers={"Content-Type": kind}, content=b"<html>"))
    with pytest.raises(Refused, match="GET jobs/3/artifacts: found a page for a browser instead of an archive"):
        await client.download(Dependency(id=3, token="t"), tmp_path / "in")
    assert (len(seen), (tmp_path / "in").exists()) == (1, False)


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("http://bucket.test/", "redirects from https to http"),
        ("https://bucket.test/", "redirects more than 5 times"),
        ("file:///etc/passwd", "redirects to an address that cannot be used"),
        ("http://[::1", "Invalid URL in location header"),
        ("", "redirects more than 5 times"),
    ],
)
async def test_a_redirect_is_not_followed_anywhere(to: str, message: str, tmp_path: Path) -> None:
    """Nor for ever."""
    client, _ = answering(httpx.Response(302, headers={"Location": to}))
    with pytest.raises(GitLabJobsError, match=message):
        await client.download(Dependency(id=3, token="t"), tmp_path / "in")


async def test_an_unknown_feature_is_a_mistake() -> None:
    """GitLab would ignore it, and give the runner no job that needs it."""
    with pytest.raises(ValueError, match="unknown features: terminals"):
        info("terminals")
    assert len(info()["features"]) == 31


async def test_what_is_wrong_is_logged_once_and_so_is_its_end(
    gitlab: FakeGitLab, client: GitLabClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Not at each request: a GitLab that is away for a night would fill the log."""
    caplog.set_level("INFO", logger="gitlab_jobs")
    gitlab.faults = [Fault(call="request", reply=Reply(status=404), times=3)]
    runner = Runner(client, gitlab.runner_token, info=FULL, polling=Polling(anyio.current_time(), check_interval=0.0))
    for _ in range(5):
        await runner.ask()
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [("WARNING", "no_job"), ("INFO", "gitlab_answers_again")]
