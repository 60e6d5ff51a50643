"""Holds a conversation that was written down again, and says where the answers differ."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx
from anyio.abc import TaskGroup
from attrs import define, field

from gitlab_jobs._json import decode_job
from gitlab_jobs.testing import URL, FakeGitLab
from tests.recordings import ANSWER_HEADERS, LOG, Event, Names, Sent, digest, job_of, stand_in
from tests.recordings.recorder import faulty


@define
class Held:
    """A request for a job whose answer comes later."""

    scope: anyio.CancelScope = field(factory=anyio.CancelScope)
    done: anyio.Event = field(factory=anyio.Event)
    answer: httpx.Response | None = None


@define
class Replay:
    """A conversation with a GitLab that nobody has spoken to."""

    about: Event
    events: Sequence[Event]
    directory: Path
    differences: list[str] = field(factory=list, init=False)
    gitlab: FakeGitLab = field(init=False)
    _names: Names = field(init=False)
    _sent: Sent = field(factory=Sent, init=False)
    _files: dict[str, bytes] = field(factory=dict, init=False)
    _held: dict[int, Held] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        """Make the GitLab as it was."""
        faults = [
            faulty(each["call"], each["status"], after=each["after"], times=each["times"])
            for each in self.about["faults"]
        ]
        accepts = self.about["accepts"]
        self.gitlab = FakeGitLab(self.directory, faults=faults, long_poll=math.inf, accepts=accepts)
        self._names = Names(self.gitlab)

    async def run(self) -> list[str]:
        """Say all that was said; returns how the answers differ."""
        base = httpx.AsyncClient(transport=self.gitlab.transport(), base_url=URL)
        async with base as client, anyio.create_task_group() as tasks:
            for at, event in enumerate(self.events):
                if "do" in event:
                    self._do(event)
                elif "call" in event:
                    await self._call(client, event, self.events[at + 1 : at + 2], tasks)
                else:
                    await self._settle(client, event)
        return self.differences

    def _do(self, event: Event) -> None:
        """Be the operator."""
        match event["do"]:
            case "enqueue":
                self.gitlab.enqueue(decode_job(json.dumps(self._names.fill(event["job"])).encode()))
            case "cancel":
                self.gitlab.cancel(event["number"])
            case "lose":
                self.gitlab.server.jobs[event["number"]].trace.cut(event["size"])
                self._sent.cut(event["number"], event["size"])

    async def _call(self, client: httpx.AsyncClient, event: Event, after: Sequence[Event], tasks: TaskGroup) -> None:
        is_held = event["path"].endswith("/jobs/request") and not any(
            each.get("answer") == event["call"] for each in after
        )
        held = self._held[event["call"]] = Held()
        if is_held:
            tasks.start_soon(self._hold, client, event, held)
            await anyio.wait_all_tasks_blocked()
        else:
            held.answer = await self._send(client, event)

    async def _hold(self, client: httpx.AsyncClient, event: Event, held: Held) -> None:
        with held.scope:
            held.answer = await self._send(client, event)
            held.done.set()

    async def _settle(self, client: httpx.AsyncClient, event: Event) -> None:
        """Compare an answer, or hang up."""
        if "hung_up" in event:
            self._held.pop(event["hung_up"]).scope.cancel()
            await anyio.wait_all_tasks_blocked()
            return
        held = self._held.pop(event["answer"])
        call = next(each for each in self.events if each.get("call") == event["answer"])
        if held.answer is None and event["status"] == 204:  # its time was up, which none of us waits for
            held.scope.cancel()
            self.gitlab.long_poll = 0
            held.answer = await self._send(client, call)
            self.gitlab.long_poll = math.inf
        if held.answer is None:
            await held.done.wait()
        assert held.answer is not None
        self._compare(call, event, held.answer)

    async def _send(self, client: httpx.AsyncClient, event: Event) -> httpx.Response:
        headers = {name: value for name, value in self._names.fill(event["headers"]).items() if name != "content-type"}
        kind = event["headers"].get("content-type")
        number = job_of(event["path"])
        given: dict[str, Any] = {"headers": headers}
        content = b""
        if "form" in event:
            given |= self._form(event["form"])
        elif "json" in event:
            body = self._names.fill(event["json"])
            content = json.dumps(self._with_log(number, body)).encode()
        elif "body" in event:
            content = stand_in(event["body"])
        if "form" not in event:
            given["content"] = content
            headers |= {"content-type": kind} if kind else {}
        answer = await client.request(event["method"], event["path"], **given)
        if event["method"] == "PATCH" and answer.status_code == 202 and number is not None:
            self._sent.take(number, headers["content-range"], content)
        return answer

    def _form(self, form: Event) -> Event:
        files = []
        for each in form["files"]:
            content = stand_in(each)
            self._files[each["sha256"]] = content
            files.append((each["field"], (each["filename"], content)))
        return {"files": files, "data": form["fields"]}

    def _with_log(self, number: int | None, body: Any) -> Any:  # noqa: ANN401  (any JSON)
        """Put the checksum of what was sent where it belongs."""
        if number is None:
            return body
        text = json.dumps(body).replace(json.dumps(LOG), json.dumps(self._sent.checksum(number)))
        return json.loads(text)

    def _compare(self, call: Event, event: Event, answer: httpx.Response) -> None:
        found: Event = {"answer": event["answer"], "status": answer.status_code}
        found["headers"] = {name: answer.headers[name] for name in ANSWER_HEADERS if name in answer.headers}
        if found["headers"].get("content-type") == "application/json":
            found["json"] = answer.json()
        elif answer.content:
            found["body"] = digest(answer.content)
        found, expected = self._names.hide(found), self._expected(event)
        if found != expected:
            where = f"{call['call']} {call['method']} {call['path']}"
            for name in sorted({*expected, *found}):
                was, now = expected.get(name), found.get(name)
                if was != now:
                    self.differences.append(f"{where}: {name} was {_short(was)}, is {_short(now)}")

    def _expected(self, event: Event) -> Mapping[str, Any]:
        """A file that was downloaded is what stands for the one that was uploaded."""
        if "body" in event and (uploaded := self._files.get(event["body"]["sha256"])) is not None:
            return {**event, "body": digest(uploaded)}
        return event


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
