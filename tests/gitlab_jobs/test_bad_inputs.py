"""What GitLab, a runner, or something between them sends that it should not: one line each, and nothing hangs.

Everything here is in virtual time, so that what lasts for hours is counted in them; what needs a file is in
``test_bad_archives.py``, and what needs a real socket in ``test_bad_sockets.py``. The lines are in ``tests/golden``.
"""

import errno
import gzip
import json
from collections import Counter
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from fleeting.testing import virtual_time
from gitlab_jobs import (
    GitLabJobsError,
    Job,
    Outcome,
    PayloadInvalid,
    Polling,
    Trace,
    decode_job,
    encode_job,
)
from gitlab_jobs.client import GitLabClient, Runner, info, reporting
from gitlab_jobs.testing import URL, FakeGitLab, Fault
from tests.gitlab_jobs.scripted import (
    HTML,
    RESET,
    SECRET,
    Case,
    Given,
    Stream,
    away,
    flood,
    one_line,
    scripted,
    slow,
    text,
)
from tests.golden import Golden

anyio_backend = virtual_time
pytestmark = [
    pytest.mark.anyio,
    # httpx leaves its own generators open when an answer is not read to its end, and trio tells of them
    pytest.mark.filterwarnings("ignore:.*async_generator object .*Stream:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
]

LONGEST = 24 * 3600.0
"""Seconds within which everything here is over."""


@pytest.fixture(autouse=True)
def no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waits that are drawn be the longest."""
    monkeypatch.setattr("gitlab_jobs._http.random.random", lambda: 1.0)


# --- payloads -------------------------------------------------------------------------------------------------


def payload(raw: bytes, show: Callable[[Job], object] | None = None) -> Case:
    """A description of a job: why it is refused, or what of it is taken; which comes out as it was."""

    async def case(_: Path) -> str:
        try:
            job = decode_job(raw)
        except PayloadInvalid as error:
            known = " (it can be reported as failed)" if error.job_id is not None else ""
            return f"{error}{known}"
        assert show, "it should have been refused"
        assert decode_job(encode_job(job)) == job
        return f"accepted: {show(job)}"

    return case


def a_job(**more: object) -> bytes:
    """A job with these keys."""
    return json.dumps({"id": 7, "token": f"glcbt-{SECRET}", **more}).encode()


PAYLOADS = {
    "nothing": payload(b""),
    "cut off": payload(a_job()[:30]),
    "cut off in a list": payload(a_job(variables=[{"key": "A"}])[:-4]),
    "page": payload(b"<!DOCTYPE html><title>502 Bad Gateway</title>"),
    "list": payload(b"[]"),
    "text": payload(b"no healthy upstream"),
    "NaN": payload(b'{"id": NaN}'),
    "infinite number": payload(b'{"id": 1, "x": -1e999}'),
    "integer of 5000 digits": payload(b'{"id": 1' + b"0" * 5000 + b"}"),
    "nested too deeply": payload(b'{"a":' * 100_000),
    "no UTF-8": payload(b'{"id": "\xff\xfe"}'),
    "too large": payload(b" " * ((64 << 20) + 1)),
    "id as a string": payload(a_job(id="7")),
    "id as a float": payload(a_job(id=7.0)),
    "id as true": payload(a_job(id=True)),
    "id of 64 bits and one": payload(a_job(id=1 << 63)),
    "no id": payload(b'{"token": "t"}'),
    "no token": payload(b'{"id": 7}'),
    "empty token": payload(a_job(token="")),
    "token with a line feed": payload(a_job(token=f"{SECRET}\nX: y")),
    "token with a letter of another alphabet": payload(a_job(token=f"{SECRET}é")),
    "time limit as a float": payload(a_job(runner_info={"timeout": 3600.0})),
    "variables as an object": payload(a_job(variables={"A": SECRET})),
    "value as a number": payload(a_job(variables=[{"key": "A", "value": 1}])),
    "masked as a word": payload(a_job(variables=[{"key": "A", "value": SECRET, "masked": "yes"}])),
    "script as a string": payload(a_job(steps=[{"script": SECRET}])),
    "step as a string": payload(a_job(steps=[SECRET])),
    "steps to run as a list": payload(a_job(run=[{"name": SECRET}])),
    "secrets as a list": payload(a_job(secrets=[SECRET])),
    "secret with a long name": payload(a_job(secrets={"x" * 1_000_000: 3})),
    "dependency with an id as a string": payload(a_job(dependencies=[{"id": "1", "token": SECRET}])),
    "paths as an object": payload(a_job(artifacts=[{"paths": {}}])),
    "options of an executor as a list": payload(a_job(image={"executor_opts": []})),
    "10,000 wrong variables": payload(a_job(variables=[{"key": SECRET, "value": 3}] * 10_000)),
    "10,000 variables": payload(
        a_job(variables=[{"key": f"V{number}", "value": SECRET} for number in range(10_000)]),
        lambda job: f"{len(job.variables)} variables",
    ),
    "variable named A;B": payload(a_job(variables=[{"key": "A;B"}]), lambda job: job.variables[0].key),
    "NUL in a value": payload(
        a_job(variables=[{"key": "A", "value": "a\0b"}]), lambda job: ascii(job.variables[0].value)
    ),
    "half of a character in a value": payload(
        a_job(variables=[{"key": "A", "value": "\ud800"}]), lambda job: ascii(job.variables[0].value)
    ),
    "script of 20 MiB": payload(
        a_job(steps=[{"name": "script", "script": ["x" * (20 << 20)]}]),
        lambda job: f"{len(job.steps[0].script[0])} characters of script",
    ),
    "unknown keys": payload(a_job(new={"a": [1, None]}, image={"new": 1}), lambda job: [job.extra, job.image.extra]),
}


# --- answers to a runner --------------------------------------------------------------------------------------


def asked(*answers: Given) -> Case:
    """A request for a job: what came of it."""

    async def case(_: Path) -> str:
        gitlab = scripted(*answers)
        came = await gitlab.client().ask(f"glrt-{SECRET}")
        return f"job {came.job.id}" if came.job else str(came.problem)

    return case


def when_asked(requests: int, *answers: Given) -> Case:
    """When a runner asks, if these are the answers."""

    async def case(_: Path) -> str:
        gitlab = scripted(*answers)
        runner = Runner(gitlab.client(), f"glrt-{SECRET}", info=info())
        with anyio.move_on_after(LONGEST):
            while len(gitlab.seen) < requests:
                await runner.ask()
        return f"asked at {gitlab.times()} s"

    return case


def called(method: str, *answers: Given, token: str = f"glrt-{SECRET}") -> Case:
    """A call about a runner: why it is refused."""

    async def case(_: Path) -> str:
        gitlab = scripted(*answers)
        try:
            await getattr(gitlab.client(), method)(token)
        except GitLabJobsError as error:
            return f"{type(error).__name__}: {error}"
        raise AssertionError("it should have been refused")

    return case


async def reset_under_way(_: Path) -> str:
    """The token is replaced while a request with the old one is held, which GitLab then refuses."""
    held = anyio.Event()
    seen = list[str]()

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("reset_authentication_token"):
            return text(201, '{"token": "glrt-new"}')
        token = request.headers["RUNNER-TOKEN"]
        seen.append(f"{token[5:].lower()} at {anyio.current_time() - start:g}")
        if token != "glrt-new":
            await held.wait()
            return text(403)
        return text(204)

    start = anyio.current_time()
    client = GitLabClient("https://gitlab.test", transport=httpx.MockTransport(answer))
    polling = Polling(start, request_concurrency=1)
    runner = Runner(client, "glrt-old", info=info(), polling=polling)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.ask)
        await anyio.sleep(10)
        await runner.reset_token()
        held.set()
    await runner.ask()
    assert not polling.is_silenced
    return f"asked with {', '.join(seen)} s"


BUSY = {
    "Retry-After of 10^9 s": {"Retry_After": "1000000000"},
    "Retry-After of 10^30 s": {"Retry_After": "1" + "0" * 30},
    "Retry-After below 0": {"Retry_After": "-5"},
    "Retry-After as a date": {"Retry_After": "Mon, 23 Nov 2026 03:00:40 GMT"},
    "Retry-After as a word": {"Retry_After": "soon"},
    "RateLimit-ResetTime long ago": {"RateLimit_ResetTime": "Thu, 01 Jan 1970 00:00:00 GMT"},
    "RateLimit-ResetTime in another age": {"RateLimit_ResetTime": "Fri, 31 Dec 9999 23:59:59 GMT"},
    "RateLimit-ResetTime by a clock that is years off": {
        "RateLimit_ResetTime": "Sat, 01 Jan 2000 00:00:20 GMT",
        "Date": "Sat, 01 Jan 2000 00:00:00 GMT",
    },
    "RateLimit-ResetTime as a word": {"RateLimit_ResetTime": "soon", "Retry_After": "7"},
}

ANSWERS = {
    "request: page with 200": asked(HTML),
    "request: page with 201": asked(text(201, "<html>", Content_Type="text/html")),
    "request: 201 without a type": asked(text(201, '{"id": 7, "token": "t"}')),
    "request: 201 with nothing": asked(text(201)),
    "request: 201 with a job of strings": asked(text(201, '{"id": "7", "token": "SECRET"}')),
    "request: 201 in gzip, as nobody asked for": asked(
        text(201, gzip.compress(a_job(), mtime=0), Content_Encoding="gzip")
    ),
    "request: gzip bomb": asked(
        text(201, gzip.compress(bytes(100 << 20), 1, mtime=0), Content_Encoding="gzip", Content_Type="application/json")
    ),
    "request: 401": asked(text(401, '{"message": "401 Unauthorized"}')),
    "request: 403 with a page": asked(text(403, "<html>", Content_Type="text/html")),
    "request: 404": asked(text(404)),
    "request: 409 with fields": asked(text(409, '{"message": {"base": ["a\\nb", "c"], "runner": "busy"}}')),
    "request: 418 with a message of a mebibyte": asked(text(418, json.dumps({"message": "x" * 1_000_000}))),
    "request: 500 with nested JSON": asked(text(500, b"[" * 99_999)),
    "request: answer without end": asked(flood(201)),
    "request: refusal without end": asked(flood(404)),
    "request: answer that trickles": asked(slow(201)),
    "request: connection reset": asked(RESET),
    "request: reason of 100 kB": asked(httpx.RemoteProtocolError("x" * 100_000 + "\nsecond line")),
    "request: redirect to another host": asked(away("https://evil.test/api/v4/jobs/request")),
    "request: redirect to another port": asked(away("https://gitlab.test:8443/")),
    "request: redirect without TLS": asked(away("http://gitlab.test/api/v4/jobs/request")),
    "request: redirect to a file": asked(away("file:///etc/passwd")),
    "request: redirect to nowhere": asked(away("http://[::1")),
    "request: redirect to a very long name": asked(away(f"https://{'x.' * 9999}test/")),
    "request: redirect in circles": asked(away("/api/v4/jobs/request")),
    "request: redirect as GET": asked(away("https://gitlab.test/", 302)),
    "403 thrice": when_asked(5, text(403)),
    "403 twice, then 400, then 403 thrice": when_asked(7, text(403), text(403), text(400), text(403)),
    "503 for ever": when_asked(11, text(503)),
    "204 at once, for ever": when_asked(4, text(204)),
    **{f"429 with {name}": when_asked(6, text(429, **headers)) for name, headers in BUSY.items()},
    "token reset under way": reset_under_way,
    "verify: page": called("verify", HTML),
    "verify: id as a string": called("verify", text(200, '{"id": "7"}')),
    "verify: 403": called("verify", text(403, '{"message": "403 Forbidden"}')),
    "verify: answer that trickles": called("verify", slow()),
    "verify: token with a line feed": called("verify", HTML, token=f"glrt-{SECRET}\n"),
    "verify: token with a letter of another alphabet": called("register", HTML, token=f"glrt-{SECRET}é"),
    "register: no token": called("register", text(201, '{"id": 7}')),
    "register: 200 instead of 201": called("register", text(200, '{"id": 7, "token": "t"}')),
    "unregister: 200": called("unregister", HTML),
    "reset: token that no header can have": called("reset_token", text(201, '{"token": "SECRET\\n"}')),
    "reset: 403": called("reset_token", text(403)),
}


# --- answers about a job --------------------------------------------------------------------------------------


def kind_of(request: httpx.Request) -> str:
    """Which call it is."""
    if request.method == "PATCH":
        return "patch"
    state = json.loads(request.content)["state"]
    return "final" if state in ("success", "failed") else str(state)


def reported(
    *, log: bytes = b"0123456789", runs: float = 0.5, spool: Callable[[], BytesIO] | None = None, **answers: list[Given]
) -> Case:
    """A job that runs so long, with these answers instead of good ones: how its report ends, when, and after what."""

    async def case(_: Path) -> str:
        left = {kind: list(given) for kind, given in answers.items()}
        calls, sizes = Counter[str](), list[int]()

        async def answer(request: httpx.Request) -> httpx.Response:
            kind = kind_of(request)
            calls[kind] += 1
            sizes.append(len(request.content) if kind == "patch" else 0)
            given = left.get(kind, [text(202 if kind == "patch" else 200)])
            found = given.pop(0) if len(given) > 1 else given[0]
            if isinstance(found, Exception):
                raise found
            assert isinstance(found.stream, Stream)
            return httpx.Response(found.status_code, headers=found.headers, stream=found.stream)

        start, trace = anyio.current_time(), Trace(spool=spool()) if spool else Trace()
        client = GitLabClient(URL, transport=httpx.MockTransport(answer))
        async with reporting(client, Job(id=7, token="t"), info=info("cancel_gracefully"), trace=trace) as report:
            if await report.claim():
                report.log(log)
                with anyio.move_on_after(runs):
                    await report.over.wait()
                await report.finish(Outcome(is_success=True))
        end = report.report.end
        took = anyio.current_time() - start
        told = ", ".join(f"{number} {kind}" for kind, number in sorted(calls.items()))
        return f"{end.value if end else None} after {took:.0f} s: {told}; {sum(sizes)} bytes of log"

    return case


class FullDisk(BytesIO):
    """A file on a disk with room for four bytes."""

    def write(self, data: Any, /) -> int:  # noqa: ANN401  (what can be written)
        """Write what there is room for."""
        if self.tell() >= 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data[: 4 - self.tell()])


def held(*numbers: str) -> list[Given]:
    """Refusals of a patch with these ranges."""
    return [text(416, Range=each) for each in numbers]


async def full_disk_of_gitlab(directory: Path) -> str:
    """GitLab cannot keep the log."""
    gitlab = FakeGitLab(directory, faults=[Fault(call="append", times=9)])
    gitlab.enqueue(Job(id=0, token=""))
    async with GitLabClient(URL, transport=gitlab.transport()) as client:
        job = await Runner(client, gitlab.runner_token, info=info()).ask()
        assert job
        gitlab.server.jobs[job.id].trace._spool = FullDisk()
        async with reporting(client, job, info=info()) as report:
            await report.claim()
            report.log(b"0123456789")
            end = await report.finish(Outcome(is_success=True))
    stored = gitlab.server.jobs[job.id]
    return f"{end.value}; {len(stored.trace)} bytes are kept, and the job is {stored.state.value}"


JOBS = {
    "claim: 403": reported(running=[text(403)]),
    "claim: 404": reported(running=[text(404)]),
    "claim: 409": reported(running=[text(409)]),
    "claim: page with 200 for ever": reported(running=[HTML]),
    "claim: 202 for ever": reported(running=[text(202)]),
    "claim: answer that trickles": reported(running=[slow()]),
    "claim: no answer, then a good one": reported(running=[RESET, text(200)]),
    "claim: cancelled before": reported(running=[text(200, Job_Status="canceled")]),
    "patch: page with 202, once": reported(patch=[text(202, "<html>", Content_Type="text/html"), text(202)]),
    "patch: page with 403 for ever": reported(patch=[text(403, "<html>", Content_Type="text/html")]),
    "patch: 403": reported(patch=[text(403)], runs=50),
    "patch: 401 for ever": reported(patch=[text(401)], runs=50),
    "patch: 404 for ever": reported(patch=[text(404)], runs=50),
    "patch: 413 for ever": reported(patch=[text(413)], runs=50, log=b"x" * 100_000),
    "patch: 400 while the job runs": reported(patch=[text(400), text(400), text(202)], runs=50),
    "patch: 416 with more than we have": reported(patch=held("0-99999"), runs=50),
    "patch: 416 with what we have not sent": reported(patch=[*held("0-5"), text(202)], runs=50),
    "patch: 416 with something else each time": reported(patch=held("0-1", "0-2", "0-3", "0-1") * 999, runs=50),
    "patch: 416 below 0": reported(patch=held("0--1"), runs=50),
    "patch: 416 with units": reported(patch=held("bytes 0-5/9"), runs=50),
    "patch: 416 of 5000 digits": reported(patch=held("0-" + "9" * 5000), runs=50),
    "patch: 416 without a range": reported(patch=[text(416)], runs=50),
    "patch: interval of 10^9 s": reported(
        patch=[text(202, X_GitLab_Trace_Update_Interval="1000000000")], log=b"x" * (3 << 20), runs=3590
    ),
    "patch: interval of 0 s": reported(
        patch=[text(202, X_GitLab_Trace_Update_Interval="0")], log=b"x" * (3 << 20), runs=50
    ),
    "patch: interval with a fraction": reported(
        patch=[text(202, X_GitLab_Trace_Update_Interval="0.5")], log=b"x" * (3 << 20), runs=50
    ),
    "patch: interval below 0": reported(
        patch=[text(202, X_GitLab_Trace_Update_Interval="-9")], log=b"x" * (3 << 20), runs=50
    ),
    "patch: state that nobody knows": reported(patch=[text(202, Job_Status="wedged")], runs=50),
    "patch: cancelled": reported(patch=[text(202, Job_Status="canceled")], runs=50),
    "patch: redirect to another host": reported(patch=[away("https://evil.test/")], runs=50),
    "final: page with 200 for ever": reported(final=[HTML]),
    "final: page with 200, once": reported(final=[HTML, text(200)]),
    "final: 202 for ever": reported(final=[text(202)]),
    "final: 202 with an interval of 10^9 s": reported(final=[text(202, X_GitLab_Trace_Update_Interval="1000000000")]),
    "final: 412 for ever": reported(final=[text(412)]),
    "final: 404": reported(final=[text(404)]),
    "final: 403 of another state": reported(final=[text(403, Job_Status="failed")]),
    "final: 403 of our state": reported(final=[RESET, text(403, Job_Status="success")]),
    "final: 500 for ever": reported(final=[text(500)]),
    "final: answer without end": reported(final=[flood()]),
    "disk full here": reported(spool=FullDisk),
    "disk full at GitLab": full_disk_of_gitlab,
}


# --- calls of a runner ----------------------------------------------------------------------------------------


def refused(call: str, content: bytes = b"", **headers: str) -> Case:
    """What our end answers to a call of a runner that has job 1."""

    async def case(directory: Path) -> str:
        gitlab = FakeGitLab(directory, long_poll=0.0)
        gitlab.enqueue(Job(id=0, token=""))
        async with httpx.AsyncClient(transport=gitlab.transport(), base_url=f"{URL}/api/v4/") as http:
            body = {"token": gitlab.runner_token}
            token = (await http.post("jobs/request", json=body)).json()["token"]
            named = {key.replace("_", "-"): value for key, value in headers.items()}
            method, _, path = call.partition(" ")
            sent = content.replace(b"RUNNER", gitlab.runner_token.encode()).replace(b"JOB", token.encode())
            got = await http.request(method, path, content=sent, headers={"JOB-TOKEN": token, **named})
        job = gitlab.server.jobs[1]
        found = got.json()["message"] if got.content else ""
        return f"{got.status_code} {found}; the job is {job.state.value}, with {len(job.trace)} bytes of log"

    return case


FORM: Mapping[str, str] = {"Content_Type": "multipart/form-data; boundary=x"}

CALLS = {
    "runner: request that is cut off": refused("POST jobs/request", b'{"token": "RUN'),
    "runner: token as a number": refused("POST jobs/request", b'{"token": 7}'),
    "runner: features as a list": refused("POST jobs/request", b'{"token": "RUNNER", "info": {"features": []}}'),
    "runner: request of more than a mebibyte": refused("POST jobs/request", b" " * ((1 << 20) + 1)),
    "runner: patch of more than four mebibytes": refused("PATCH jobs/1/trace", b" " * ((4 << 20) + 1)),
    "runner: patch without a range": refused("PATCH jobs/1/trace", b"abc"),
    "runner: patch with a range of words": refused("PATCH jobs/1/trace", b"abc", Content_Range="a-b"),
    "runner: patch that begins too late": refused("PATCH jobs/1/trace", b"abc", Content_Range="5-7"),
    "runner: patch whose end is a lie": refused("PATCH jobs/1/trace", b"abc", Content_Range="0-999"),
    "runner: patch with the token of nobody": refused("PATCH jobs/1/trace", b"abc", JOB_TOKEN="x"),
    "runner: state that nobody knows": refused("PUT jobs/1", b'{"token": "JOB", "state": "wedged"}'),
    "runner: state as a list": refused("PUT jobs/1", b'{"token": "JOB", "state": ["success"]}'),
    "runner: final with another checksum": refused(
        "PUT jobs/1", b'{"state": "success", "output": {"checksum": "crc32:ffffffff", "bytesize": 3}}'
    ),
    "runner: final with NaN": refused("PUT jobs/1", b'{"state": NaN}'),
    "runner: job of 26 digits": refused("PUT jobs/99999999999999999999999999", b"{}"),
    "runner: upload that is no form": refused("POST jobs/1/artifacts", b"abc", Content_Type="application/zip"),
    "runner: upload without a file": refused(
        "POST jobs/1/artifacts", b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--x--\r\n', **FORM
    ),
    "runner: upload without headers": refused("POST jobs/1/artifacts", b"--x\r\nno header", **FORM),
    "runner: download of another job": refused("GET jobs/2/artifacts"),
    "runner: download of nothing": refused("GET jobs/1/artifacts"),
}

CASES: Mapping[str, Case] = {
    **{f"payload: {name}": case for name, case in PAYLOADS.items()},
    **ANSWERS,
    **JOBS,
    **CALLS,
}


@pytest.mark.parametrize("name", CASES)
async def test_bad_input_is_one_line(name: str, tmp_path: Path, golden: Golden) -> None:
    """It says what was found; it is over in time, however long somebody would go on; nothing secret is in it."""
    with anyio.fail_after(LONGEST):
        line = one_line(await CASES[name](tmp_path))
    golden(f"gitlab_jobs/{name}", line)


def test_the_cases_differ(golden: Golden) -> None:
    """There are as many as were asked for, and nothing else is kept for them."""
    golden.has_only("gitlab_jobs/", CASES)
    assert len({golden.text(f"gitlab_jobs/{name}") for name in CASES}) > 100
