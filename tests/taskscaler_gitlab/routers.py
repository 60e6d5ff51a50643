"""Cells, each a GitLab behind a socket, and a router before them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from attrs import define, evolve, field

from gitlab_jobs import Job, JobInfo, mint_routable
from gitlab_jobs.client import info
from gitlab_jobs.testing import FakeGitLab, State, Stored
from taskscaler_gitlab.cells._serve import Serving, routing
from taskscaler_gitlab.cells._settings import CellSettings, RegistrationSettings, RouterFile, RouterSettings
from tests.gitlab_jobs.serving import served

ABOUT = info("refspecs", "artifacts", "cancel_gracefully")


def token_of(cell: int, number: int = 0) -> str:
    """A runner's token that names its cell."""
    return mint_routable("glrt-t2_", {"c": cell, "o": 1}, number.to_bytes(16, "big"))


def a_job(name: str = "a job") -> Job:
    """One that does nothing."""
    return Job(id=0, token="", job_info=JobInfo(name=name))


@define
class Cells:
    """GitLabs by their IDs, and where they are."""

    gitlabs: Mapping[str, FakeGitLab]
    urls: Mapping[str, str]
    here: Path
    hold: float = 50.0
    tls_ca_file: str = ""
    registration: RegistrationSettings | None = None
    registration_token: str = ""
    token: str = ""
    """Of the runner whose jobs runners get that register with the router."""

    settings: RouterSettings = field(init=False)

    def __attrs_post_init__(self) -> None:
        """The router's settings."""
        self.settings = RouterSettings(listen="127.0.0.1:0", hold=self.hold)

    @property
    def file(self) -> RouterFile:
        """What a file would say."""
        return RouterFile(
            cells={each: CellSettings(url=url, tls_ca_file=self.tls_ca_file) for each, url in self.urls.items()},
            router=self.settings,
            registration=self.registration,
            tokens=dict.fromkeys(self.urls, self.token) if self.token else {},
            registration_token=self.registration_token,
        )

    @asynccontextmanager
    async def routed(self, *, state: str = "router") -> AsyncIterator[Serving]:
        """A router before them, whose state is in a directory of that name."""
        async with routing(self.file, self.here / state) as serving:
            yield serving

    def add_everywhere(self, token: str) -> None:
        """Have all cells know a runner."""
        for each in self.gitlabs.values():
            each.server.add_runner(token)

    def number_apart(self) -> None:
        """Have each cell number its jobs from elsewhere, as GitLab's cells do; a runner may keep jobs by numbers."""
        for name, gitlab in self.gitlabs.items():
            first = int(name) * 1_000
            gitlab.server.jobs[first] = Stored(job=evolve(a_job(), id=first), state=State.SKIPPED)

    def calls(self, name: str) -> Sequence[int]:
        """How often each cell has heard a call."""
        return [each.calls[name] for each in self.gitlabs.values()]


@asynccontextmanager
async def cells(
    here: Path, *, count: int = 2, long_poll: float = 50.0, hold: float = 50.0, certificate: Path | None = None
) -> AsyncIterator[Cells]:
    """So many of them."""
    async with AsyncExitStack() as stack:
        gitlabs, urls = {}, {}
        for number in range(1, count + 1):
            (here / f"cell-{number}").mkdir()
            made = FakeGitLab(here / f"cell-{number}", long_poll=long_poll, accepts=0)
            gitlabs[str(number)] = made
            urls[str(number)] = await stack.enter_async_context(served(made, certificate=certificate))
        yield Cells(gitlabs, urls, here, hold)
