"""Writes down what a runner and a GitLab say to each other."""

import json
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from attrs import define, field
from python_multipart import parse_form
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gitlab_jobs import Job
from gitlab_jobs._json import encode_job
from gitlab_jobs.coordinator import Reply
from gitlab_jobs.testing import FakeGitLab, Fault
from tests.recordings import ANSWER_HEADERS, LOG, REQUEST_HEADERS, Event, Names, Sent, digest, job_of


@define
class Recorder:
    """Stands between a runner and a GitLab, and beside its operator."""

    gitlab: FakeGitLab
    events: list[Event] = field(factory=list, init=False)
    _names: Names = field(init=False)
    _sent: Sent = field(factory=Sent, init=False)
    _calls: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin with nothing."""
        self._names = Names(self.gitlab)

    def about(self, runner: str, version: str) -> Event:
        """The first line of the recording."""
        faults = [
            {"call": each.call, "status": each.reply.status, "after": each.after, "times": each.times}
            for each in self.gitlab.faults
            if each.reply is not None
        ]
        return {"runner": runner, "version": version, "accepts": self.gitlab.accepts, "faults": faults}

    # what an operator does

    def enqueue(self, job: Job) -> int:
        """Let runners have a job."""
        self._note(do="enqueue", job=json.loads(encode_job(job)))
        return self.gitlab.enqueue(job)

    def cancel(self, number: int) -> None:
        """Cancel it."""
        self._note(do="cancel", number=number)
        self.gitlab.cancel(number)

    def lose(self, number: int, size: int) -> None:
        """Lose its log but for so many bytes."""
        self._note(do="lose", number=number, size=size)
        self.gitlab.server.jobs[number].trace.cut(size)
        self._sent.cut(number, size)

    # what a runner does

    def application(self) -> ASGIApp:
        """The GitLab's, with a pen."""
        inner = self.gitlab.application()

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                plain = {**scope, "extensions": {}}  # so that a file comes as its bytes
                await _Call(self, plain, receive, send).run(inner)
            else:
                await inner(scope, receive, send)

        return application

    def _note(self, **event: Any) -> None:  # noqa: ANN401  (an event's)
        self.events.append(self._names.hide(event))

    def called(self, scope: Scope, headers: dict[str, str], body: bytes) -> int:
        """A call has come."""
        self._calls += 1
        path = scope["path"] + (f"?{scope['query_string'].decode()}" if scope["query_string"] else "")
        said = {name: headers[name] for name in REQUEST_HEADERS if name in headers}
        event: Event = {"call": self._calls, "method": scope["method"], "path": path, "headers": said}
        kind = headers.get("content-type", "")
        if kind.startswith("multipart/"):
            said["content-type"] = "multipart/form-data"
            event["form"] = _form(kind, body)
        elif kind.startswith("application/json"):
            event["json"] = self._with_log(path, json.loads(body))
        elif body:
            event["body"] = digest(body)
        self._note(**event)
        return self._calls

    def answered(self, call: int, scope: Scope, message: Message, headers: dict[str, str], body: bytes) -> None:
        """It was answered."""
        del scope
        said = {name: headers[name] for name in ANSWER_HEADERS if name in headers}
        event: Event = {"answer": call, "status": message["status"], "headers": said}
        if said.get("content-type") == "application/json":
            event["json"] = json.loads(body)
        elif body:
            event["body"] = digest(body)
        self._note(**event)

    def took(self, scope: Scope, headers: dict[str, str], body: bytes) -> None:
        """A patch was accepted."""
        number = job_of(scope["path"])
        assert number is not None
        self._sent.take(number, headers["content-range"], body)

    def hung_up(self, call: int) -> None:
        """The runner waits no longer."""
        self._note(hung_up=call)

    def _with_log(self, path: str, body: Any) -> Any:  # noqa: ANN401  (any JSON)
        """Have a checksum that is right be no number."""
        number = job_of(path)
        if number is not None:
            right = self._sent.checksum(number)
            if isinstance(body.get("output"), dict) and body["output"].get("checksum") == right:
                body["output"] = {**body["output"], "checksum": LOG}
            if body.get("checksum") == right:
                body["checksum"] = LOG
        return body


@define
class _Call:
    """One call."""

    recorder: Recorder
    scope: Scope
    _receive: Receive
    _send: Send
    _body: bytearray = field(factory=bytearray, init=False)
    _number: int | None = field(default=None, init=False)
    _start: Message | None = field(default=None, init=False)
    _answer: bytearray = field(factory=bytearray, init=False)
    _is_over: bool = field(default=False, init=False)
    _has_hung_up: bool = field(default=False, init=False)

    async def run(self, inner: ASGIApp) -> None:
        await inner(self.scope, self._take, self._give)
        if self._number is not None and not self._is_over:
            self.recorder.hung_up(self._number)

    async def _take(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                self._called()
        elif message["type"] == "http.disconnect" and self._start is None:
            self._has_hung_up = True
        return message

    async def _give(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            if self._number is None:  # it was answered before all of it was here
                self._called()
        elif message["type"] == "http.response.body":
            self._answer += message.get("body", b"")
            if not message.get("more_body") and not self._has_hung_up:
                self._answered()
        await self._send(message)

    def _called(self) -> None:
        self._number = self.recorder.called(self.scope, self._headers, bytes(self._body))

    def _answered(self) -> None:
        assert self._start
        assert self._number
        headers = _decoded(self._start["headers"])
        self._is_over = True
        if self.scope["method"] == "PATCH" and self._start["status"] == 202:
            self.recorder.took(self.scope, self._headers, bytes(self._body))
        self.recorder.answered(self._number, self.scope, self._start, headers, bytes(self._answer))

    @property
    def _headers(self) -> dict[str, str]:
        return _decoded(self.scope["headers"])


def _decoded(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode().lower(): value.decode() for name, value in headers}


def _form(kind: str, body: bytes) -> Event:
    """The file of a form, and its other fields."""
    fields: dict[str, str] = {}
    files: list[Event] = []

    def on_field(each: Any) -> None:  # noqa: ANN401  (python_multipart's)
        fields[each.field_name.decode()] = each.value.decode()

    def on_file(each: Any) -> None:  # noqa: ANN401  (python_multipart's)
        each.file_object.seek(0)
        content = each.file_object.read()
        files.append({"field": each.field_name.decode(), "filename": each.file_name.decode(), **digest(content)})

    parse_form({"Content-Type": kind.encode()}, BytesIO(body), on_field, on_file)
    return {"fields": fields, "files": files}


def faulty(call: str, status: int, *, after: int = 0, times: int = 1) -> Fault:
    """A fault that a recording can have."""
    return Fault(call=call, reply=Reply(status=status, body={"message": str(status)}), after=after, times=times)
