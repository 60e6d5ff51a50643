"""Several GitLabs in memory: what a runner's file says of each, and what may be wrong with the way there."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import httpx
from attrs import define, field

from gitlab_jobs.coordinator import Reply
from gitlab_jobs.testing import FakeGitLab, State


@define
class Way(httpx.AsyncBaseTransport):
    """The way to a GitLab, which may take time, or be cut."""

    inner: httpx.AsyncBaseTransport
    latency: float = 0.0
    is_cut: bool = False
    refused: int = field(default=0, init=False)
    """Calls about jobs that the GitLab had not given away, or had taken back."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass a request on, or not."""
        await anyio.sleep(self.latency)
        if self.is_cut:
            raise httpx.ConnectError("nobody listens there", request=request)
        response = await self.inner.handle_async_request(request)
        if self.is_cut:
            raise httpx.ReadError("the connection ended", request=request)
        self.refused += response.status_code in (403, 404)
        return response


@define
class CellHere:
    """A GitLab among others."""

    name: str
    gitlab: FakeGitLab
    latency: float = 0.0
    weight: float = 1.0
    way: Way = field(init=False)

    @way.default
    def _way(self) -> Way:
        return Way(self.gitlab.transport(), self.latency)

    @property
    def url(self) -> str:
        """Where it is; no name is looked up."""
        return f"http://{self.name}.test"

    def table(self, here: Path) -> str:
        """What the file says of it, whose token is in a file beside that."""
        token = here / f"{self.name}.token"
        if not token.exists():
            token.write_text(f"{self.gitlab.runner_token}\n")
        return (
            f'\n[[runners.taskscaler.upstreams]]\ncell = "{self.name}"\nurl = "{self.url}"\n'
            f'token_file = "{token.name}"\nweight = {self.weight}\n'
        )

    @property
    def states(self) -> Counter[State]:
        """How many of its jobs are in which state."""
        return Counter(each.state for each in self.gitlab.server.jobs.values())

    @property
    def is_done(self) -> bool:
        """Whether all its jobs have succeeded, none of them as another one."""
        return set(self.states) <= {State.SUCCESS}


@define
class OnePhase(FakeGitLab):
    """A GitLab that knows no two phases: a job is its runner's as soon as it has it."""

    async def request(self, token: str, body: Mapping[str, Any]) -> Reply:
        """See `FakeGitLab`."""
        info = dict(body["info"])
        info["features"] = {**info["features"], "two_phase_job_commit": False}
        return await super().request(token, {**body, "info": info})


def cell(here: Path, name: str, *, two_phase: bool = True, latency: float = 0.0, **more: Any) -> CellHere:  # noqa: ANN401
    """One that holds requests for as long as a test may take."""
    directory = here / name
    directory.mkdir()
    made = (FakeGitLab if two_phase else OnePhase)(directory, long_poll=50.0, accepts=0, **more)
    return CellHere(name, made, latency)


__all__ = ["CellHere", "OnePhase", "Way", "cell"]
