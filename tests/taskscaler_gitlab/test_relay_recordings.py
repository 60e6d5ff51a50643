"""What real runners have said to a GitLab is said again to the relay, as a sidecar's: each answer is what it was."""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import httpx
import pytest
from anyio.abc import TaskGroup
from attrs import define, evolve, field

from gitlab_jobs import decode_job
from gitlab_jobs.client import GitLabClient
from gitlab_jobs.testing import URL
from taskscaler import Lease
from taskscaler_gitlab._work import Shop
from taskscaler_gitlab.relay import Relays, RelayWork
from taskscaler_gitlab.relay._relay import Standing, hashed
from taskscaler_gitlab.relay._routes import application
from tests.recordings import HERE, Event, job_of, read
from tests.recordings.replay import Replay
from tests.taskscaler_gitlab.shops import ORIGIN, relays_of, shop_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:.*async_generator object .*:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator :ResourceWarning"),
]

OURS = {"TASKSCALER_INSTANCE", "TASKSCALER_SLOT"}
"""Variables that a sidecar gets beyond what GitLab has said."""

RECORDINGS = [path for path in sorted(HERE.glob("*.jsonl")) if not path.stem.endswith("registered")]
"""Those in which jobs are handed out."""


@define
class Relayed(Replay):
    """The same conversation, in which a relay asks for each job, and hands it to who once asked by itself."""

    relays: Relays = field(init=False)
    shop: Shop = field(init=False)
    tasks: TaskGroup = field(init=False)
    sidecar: httpx.AsyncClient = field(init=False)
    works: dict[int, RelayWork] = field(factory=dict, init=False)
    passed: int = 0
    """Calls that went through the relay."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Put the relay between."""
        self.relays = relays_of(self.gitlab, self.directory / "state")
        self.gitlab.faults = tuple(  # the relay claims each job by itself before the runner says anything
            evolve(each, after=each.after + 1) if each.call == "update" else each for each in self.gitlab.faults
        )
        transport = httpx.ASGITransport(application(self.relays))
        async with (
            GitLabClient(URL, transport=self.gitlab.transport()) as client,
            httpx.AsyncClient(transport=transport, base_url="http://us") as self.sidecar,
            anyio.create_task_group() as self.tasks,
        ):
            self.shop = shop_of(self.relays, client, self.relays.about.as_info)
            yield
            self.tasks.cancel_scope.cancel()

    async def _send(self, client: httpx.AsyncClient, event: Event) -> httpx.Response:
        number = job_of(event["path"])
        if number is not None and self.works:  # who calls is the runner of the last job, also for another one's files
            self.passed += 1
            moved = {**event, "path": f"/d/d{max(self.works)}{event['path']}"}
            return await super()._send(self.sidecar, moved)
        answer = await super()._send(client, event)
        return await self._handed_over(event, answer) if answer.status_code == 201 and number is None else answer

    async def _handed_over(self, event: Event, answer: httpx.Response) -> httpx.Response:
        """Give the job to the sidecar, which asks for it as it once asked GitLab."""
        if not event["path"].endswith("/jobs/request"):
            return answer
        job = decode_job(answer.content)
        work = self.relays.take(self.shop, job, f"gitlab/{job.id:012}", origin=ORIGIN, now=0.0)
        name, secret = f"d{job.id}", f"glrt-once-{job.id}"
        work.relay = work.relay.got_slot().relay.starts(name, hashed(secret), 4000).relay
        work.lease = cast("Lease", SimpleNamespace(instance="i-1", slot=0))
        self.relays.enter(name, work)
        self.works[job.id] = work
        self.tasks.start_soon(work._claim_if_wanted)
        body = self._names.fill(event["json"]) | {"token": secret}
        given = await self.sidecar.post(f"/d/{name}/api/v4/jobs/request", json=body, headers={"Private-Token": secret})
        self.passed += 1
        found: dict[str, Any] = given.json() if given.status_code == 201 else {}
        found["variables"] = [each for each in found.get("variables", ()) if each["key"] not in OURS]
        kept = {name: answer.headers[name] for name in ("x-gitlab-last-update",) if name in answer.headers}
        return httpx.Response(given.status_code, json=found, headers=kept)

    def _compare(self, call: Event, event: Event, answer: httpx.Response) -> None:
        work = self.works.get(max(self.works, default=0))
        is_about_it = work is not None and job_of(call["path"]) is not None
        if (
            work is not None
            and is_about_it
            and work.relay.record.standing is Standing.OVER
            and answer.status_code == 403
        ):
            if event["status"] != 403:  # it is refused here, and GitLab is asked no more
                self.differences.append(f"{call['call']}: was {event['status']}, is refused by the relay")
            return
        super()._compare(call, event, answer)


def told(events: Sequence[Event]) -> int:
    """How many calls were about jobs, or were answered with one."""
    jobs = [each for each in events if "call" in each and job_of(each["path"]) is not None]
    handed_out = [each for each in events if each.get("status") == 201 and "id" in each.get("json", {})]
    return len(jobs) + len(handed_out)


@pytest.mark.parametrize("path", RECORDINGS, ids=[path.stem for path in RECORDINGS])
async def test_a_real_runner_gets_the_same_answers_through_the_relay(path: Path, tmp_path: Path) -> None:
    """Of every version, with files, cancellations and a GitLab in trouble; each call goes through."""
    about, events = read(path)
    replay = Relayed(about, events, tmp_path)
    async with replay.open():
        assert await replay.run() == []
    assert replay.passed >= told(events) > 0
    assert math.isinf(replay.gitlab.long_poll)
    assert {work.relay.record.standing for work in replay.works.values()} == {Standing.OVER}
