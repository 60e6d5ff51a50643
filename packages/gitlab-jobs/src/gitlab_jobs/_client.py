"""The calls of GitLab's job protocol, one method each."""

import json
import logging
import ssl
from collections.abc import AsyncIterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from attrs import evolve, field, frozen

from gitlab_jobs import _transfers
from gitlab_jobs._errors import GitLabJobsError, PayloadInvalid, Refused
from gitlab_jobs._http import Call, Http, Received
from gitlab_jobs._job import NO_ANSWER, Answer, Request, Update
from gitlab_jobs._json import MAX_PAYLOAD, decode_job, decode_object, is_token
from gitlab_jobs._passing import Passing, passing
from gitlab_jobs._payload import Artifact, Dependency, Job
from gitlab_jobs._polling import Polled, is_retried, seconds_to_wait
from gitlab_jobs._trace import Patch

LONG_POLL = 100.0
"""Seconds that a request for a job may take: GitLab holds it for 50 by default."""

SHORT_POLL = 30.0
"""Seconds that one may take which GitLab does not hold."""

LONGEST_WAIT = 60.0
"""Seconds that a busy GitLab is left alone for at most, if the request is not repeated."""

FEATURES = (
    "variables",
    "image",
    "services",
    "artifacts",
    "cache",
    "fallback_cache_keys",
    "shared",
    "upload_multiple_artifacts",
    "upload_raw_artifacts",
    "session",
    "terminal",
    "refspecs",
    "masking",
    "proxy",
    "raw_variables",
    "artifacts_exclude",
    "multi_build_steps",
    "trace_reset",
    "trace_checksum",
    "trace_size",
    "vault_secrets",
    "cancelable",
    "return_exit_code",
    "service_variables",
    "service_multiple_aliases",
    "image_executor_opts",
    "service_executor_opts",
    "cancel_gracefully",
    "native_steps_integration",
    "two_phase_job_commit",
    "job_inputs",
)
"""What a runner may be able to do, in GitLab's words."""

_OURS = {"trace_reset", "trace_checksum", "trace_size", "cancelable"}
"""What this package does, whoever runs the jobs."""

_MAX_EXPIRY = 40

_log = logging.getLogger("gitlab_jobs")


@frozen(kw_only=True)
class Registered:
    """A runner, as GitLab knows it."""

    id: int
    """Its number."""

    token: str = field(repr=False)
    """What it asks for jobs with."""

    token_expires_at: str | None = None
    """When the token ends, if it does; as GitLab writes it."""


@frozen(kw_only=True)
class Asked:
    """What came of a request for a job."""

    polled: Polled
    """What matters for the next request."""

    job: Job | None = None
    """The job, if there was one."""

    problem: GitLabJobsError | None = None
    """Why there is none, if it is not that there was nothing to do."""


def info(*features: str, name: str = "gitlab-jobs", executor: str = "custom", shell: str = "bash") -> dict[str, Any]:
    """What a runner says about itself: the features that it has, beside those of this package.

    GitLab takes silence for the absence of a feature, and gives a job to runners that have what it needs.
    """
    if unknown := set(features) - set(FEATURES):
        raise ValueError(f"unknown features: {', '.join(sorted(unknown))}")
    has = _OURS | set(features)
    return {
        "name": name,
        "version": version("gitlab-jobs"),
        "executor": executor,
        "shell": shell,
        "features": {each: each in has for each in FEATURES},
    }


class GitLabClient:
    """Calls to one GitLab; an async context manager."""

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
        user_agent: str | None = None,
    ) -> None:
        """Talk to the GitLab at this address.

        Args:
            url: Where GitLab is, with its path if it has one.
            tls: What certificates to trust and to show; by default those of the system.
            transport: What to send requests with instead of a connection, for tests.
            user_agent: What to call the runner.
        """
        try:
            base = httpx.URL(url.rstrip("/").removesuffix("/ci") + "/api/v4/")
        except httpx.InvalidURL as error:
            raise ValueError(f"expected the address of a GitLab, found {url!r} ({error})") from None
        if base.scheme not in ("http", "https") or not base.host or base.userinfo:
            raise ValueError(f"expected an address such as https://gitlab.example.com, found {url!r}")
        agent = user_agent or f"gitlab-jobs {version('gitlab-jobs')}"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._client = httpx.AsyncClient(
            verify=tls, transport=transport, headers={"User-Agent": agent}, limits=limits, trust_env=transport is None
        )
        self.http = Http(base, self._client)

    async def __aenter__(self) -> Self:
        """Open it."""
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close its connections."""
        await self._client.__aexit__(kind, error, traceback)

    async def verify(self, token: str, *, system_id: str = "", info: Mapping[str, Any] | None = None) -> Registered:
        """Ask whether a runner's token is good.

        Raises:
            Refused: It is not (403), or GitLab says something else.
            Unreachable: GitLab does not answer.
        """
        body = {"token": token, "system_id": system_id, "info": info or {}}
        return self._registered(
            await self._ask("POST", "runners/verify", token, body), 200, "POST runners/verify", token
        )

    async def register(self, registration_token: str, **settings: object) -> Registered:
        """Register a runner with a registration token, as older GitLabs have it; *settings* as GitLab names them."""
        body = {**settings, "token": registration_token}
        received = await self._ask("POST", "runners", registration_token, body)
        return self._registered(received, 201, "POST runners", "")

    async def unregister(self, token: str, *, system_id: str = "") -> None:
        """Take a runner off GitLab; of one that was created there, only this manager of it."""
        path = "runners/managers" if token.startswith("glrt-") and system_id else "runners"
        received = await self._ask("DELETE", path, token, {"token": token, "system_id": system_id})
        if received.status != HTTPStatus.NO_CONTENT:
            raise received.refused(f"DELETE {path}")

    async def reset_token(self, token: str) -> Registered:
        """Replace a runner's token: the old one is good for nothing afterwards."""
        path = "runners/reset_authentication_token"
        received = await self.http.call(
            Call(
                method="POST", path=path, headers={"Content-Type": "application/json"}, content=_json({"token": token})
            )
        )
        return self._registered(received, 201, f"POST {path}", "", number=0)

    async def ask(
        self,
        token: str,
        *,
        system_id: str = "",
        info: Mapping[str, Any] | None = None,
        ticket: str | None = None,
        is_repeated: bool = True,
    ) -> Asked:
        """Ask for a job, once; GitLab may hold the request for a minute if it has a *ticket*.

        Whatever comes of it is in the answer: nothing that GitLab says is an exception.

        Args:
            token: The runner's.
            system_id: Which of its managers this is.
            info: What it says about itself.
            ticket: What the last answer said of the queue.
            is_repeated: Whether the request is made again if GitLab is busy; else the answer says for how long it is.
        """
        body: dict[str, Any] = {"info": info or {}, "token": token, "system_id": system_id}
        if ticket:
            body["last_update"] = ticket
        more: dict[str, Any] = {"seconds": LONG_POLL} if is_repeated or ticket else {"seconds": SHORT_POLL}
        more |= {} if is_repeated else {"attempts": 1}
        try:
            received = await self._ask("POST", "jobs/request", token, body, most=MAX_PAYLOAD, **more)
        except GitLabJobsError as error:
            return Asked(polled=Polled(status=None), problem=error)
        found = Polled(
            status=received.status,
            ticket=received.headers.get("X-GitLab-Last-Update"),
            is_retried=received.is_retried,
            wait=0.0 if is_repeated else _busy_for(received),
        )
        if received.status == HTTPStatus.NO_CONTENT:
            return Asked(polled=found)
        if received.status != HTTPStatus.CREATED:
            return Asked(polled=found, problem=received.refused("POST jobs/request"))
        try:
            return Asked(polled=found, job=decode_job(received.body))
        except PayloadInvalid as error:
            return Asked(polled=evolve(found, status=None), problem=error)

    async def send(
        self, job: Job, request: Request, *, info: Mapping[str, Any] | None = None, debug_trace: bool = False
    ) -> Answer:
        """Make a call about a job; no answer is an answer too."""
        headers = {"JOB-TOKEN": job.token}
        if isinstance(request, Patch):
            call = Call(
                method="PATCH",
                path=f"jobs/{job.id}/trace?debug_trace={'true' if debug_trace else 'false'}",
                headers={**headers, "Content-Type": "text/plain", "Content-Range": request.content_range},
                content=request.body,
            )
        else:
            call = Call(
                method="PUT",
                path=f"jobs/{job.id}",
                headers={**headers, "Content-Type": "application/json"},
                content=_json(_update(job, request, info or {})),
            )
        try:
            received = await self.http.call(call)
        except GitLabJobsError as error:
            _log.debug("no_answer", extra={"job": job.id, "reason": str(error)})
            return NO_ANSWER
        return Answer.of(received.status, received.headers)

    async def upload(self, job: Job, artifact: Artifact, file: Path, *, filename: str) -> None:
        """Send a file that the job leaves behind.

        Raises:
            Refused: GitLab does not want it (too large: 413), or not after several tries.
            Unreachable: GitLab does not answer, after several tries.
            OSError: The file cannot be read.
        """
        await _transfers.upload(self.http, job, artifact, file, filename=filename)

    async def download(self, dependency: Dependency, to: Path, *, limit: int = _transfers.MAX_ARTIFACTS) -> int:
        """Fetch what another job left, into a new file of at most *limit* bytes; returns its size.

        Raises:
            Refused: There is nothing, or it is too large.
            NotKept: The file cannot be written.
            Unreachable: GitLab, or where it sends us to, does not answer.
        """
        return await _transfers.download(self.http, dependency, to, limit=limit)

    def pass_on(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        content: bytes | AsyncIterable[bytes] | None = None,
        seconds: float,
    ) -> AbstractAsyncContextManager[Passing]:
        """Make a call for somebody else, once, and have its answer as it comes while the context is open.

        Nothing is repeated, and no redirect is followed: that is for who asked to decide.

        Args:
            method: Of HTTP.
            path: Below ``/api/v4/``, with its query.
            headers: With the token, which goes to this GitLab alone.
            content: The body, which may come piece by piece.
            seconds: How long all of it may take.

        Raises:
            Unreachable: There was no answer, or a page for a browser instead of one.
            Refused: A header cannot be sent.
        """
        return passing(self.http, method, path, headers, content, seconds=seconds)

    async def _ask(self, method: str, path: str, token: str, body: Mapping[str, Any], **more: Any) -> Received:  # noqa: ANN401  (a call's)
        headers = {"RUNNER-TOKEN": token, "Content-Type": "application/json", "Accept": "application/json"}
        return await self.http.call(Call(method=method, path=path, headers=headers, content=_json(body), **more))

    def _registered(
        self, received: Received, status: int, call: str, token: str, *, number: int | None = None
    ) -> Registered:
        """What an answer says about a runner; of a token that is reset, GitLab need not repeat the number."""
        if received.status != status:
            raise received.refused(call)
        try:
            found = decode_object(received.body)
        except PayloadInvalid as error:
            raise Refused(f"{call}: {error}", status=received.status) from None
        runner, given, expiry = found.get("id", number), found.get("token") or token, found.get("token_expires_at")
        if type(runner) is not int or not is_token(given):
            raise Refused(f"{call}: expected an id and a token in the answer", status=received.status)
        is_time = isinstance(expiry, str) and len(expiry) <= _MAX_EXPIRY
        return Registered(id=runner, token=given, token_expires_at=expiry if is_time else None)


def _busy_for(received: Received) -> float:
    """For how many seconds a GitLab is to be left alone that was asked once; 0: it is not busy."""
    if not is_retried(received.status):
        return 0.0
    wall = datetime.now(tz=UTC).timestamp()
    return min(seconds_to_wait(1, received.headers, wall=wall, random=1.0), LONGEST_WAIT)


def _update(job: Job, update: Update, info: Mapping[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {"info": info, "token": job.token, "state": update.state}
    if update.checksum is not None:
        body |= {"checksum": update.checksum, "output": {"checksum": update.checksum, "bytesize": update.size}}
    if update.failure_reason is not None:
        body["failure_reason"] = update.failure_reason
    if update.exit_code is not None:
        body["exit_code"] = update.exit_code
    return body


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
