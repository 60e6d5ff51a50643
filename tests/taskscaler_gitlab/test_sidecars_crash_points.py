"""Services that die before and after each thing that they note down of a job that a sidecar runs.

What becomes of the job then follows from what is on disk, from whether its sidecar has lived on, from what GitLab
knows, and from whether its token was kept: `Case.right_end` says how, as the restart table of the design does.
"""

import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from enum import Enum
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import httpx
import pytest
from attrs import define, evolve, field, frozen

from gitlab_jobs.coordinator import Reply
from gitlab_jobs.testing import FakeGitLab, State, Stored
from tests.gitlab_jobs.serving import served
from tests.peers import REAL_RUNNER
from tests.peers.pipeline import job
from tests.peers.real import RealRunner
from tests.peers.sidecars import write_config
from tests.taskscaler_gitlab import stand_in
from tests.taskscaler_gitlab.fused_service import REMOVED, Fuse, Service, Services, services

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(900)]

RUNNING = "running"
"""Nothing is noted down: its script runs, and somebody kills the service."""


class Act(Enum):
    """What happens once the script has begun."""

    END = "it is to end"
    CANCEL = "GitLab cancels it"
    LOSE = "its sidecar is killed"


class Fate(Enum):
    """What becomes of the sidecar between two services."""

    LIVES = "lives"
    DIES = "dies"
    DIES_UNREPORTED = "dies, and nobody has the token"


class Ending(Enum):
    """What becomes of the job."""

    SUCCESS = "success"
    FAILED = "failed, with the reason in its log"
    CANCELED = "canceled"
    UNREPORTED = "nobody can tell GitLab, and this is said"
    UNKNOWN = "GitLab has handed it out, and that is all that anybody knows"


@frozen(kw_only=True)
class Story:
    """What happens to a job if nobody dies."""

    writes: Sequence[str]
    """What is noted down of it, in its order."""

    points: Sequence[str] = ()
    """Those of interest, if not all are."""

    part: Sequence[str]
    """The cases that the suite has, in words."""

    act: Act = Act.END
    claims: bool = True
    """Whether its sidecar begins only once it is claimed."""

    is_two_phase: bool = True
    """Whether GitLab keeps it for us until it is claimed."""

    is_placed_again: bool = False
    """Whether its first sidecar ends at once."""

    dies_again: bool = False
    """Whether the second service dies, too, as it notes down the end, and a third one has to come."""

    @property
    def end(self) -> Ending:
        """How it ends."""
        return {Act.END: Ending.SUCCESS, Act.CANCEL: Ending.CANCELED, Act.LOSE: Ending.FAILED}[self.act]

    @property
    def cases(self) -> Iterator["Case"]:
        """All deaths."""
        for write in self.points or (*self.writes, RUNNING):
            for is_after in (False, True) if write != RUNNING else (True,):
                for fate in Fate if self.has_sidecar(write, is_after=is_after) else (Fate.LIVES,):
                    case = Case(self, Fuse(write, is_after), fate)
                    yield from (evolve(case, again=each) for each in ENDINGS) if self.dies_again else (case,)

    def has_sidecar(self, write: str, *, is_after: bool) -> bool:
        """Whether there may be one then."""
        return self.noted(write, is_after=is_after) not in ("", "taken", "kept", "placed again", "over", REMOVED)

    def noted(self, write: str, *, is_after: bool) -> str:
        """What is on disk when it dies there."""
        if write == RUNNING:
            return "at work again" if self.is_placed_again else "at work"
        at = self.writes.index(write)
        return write if is_after else self.writes[at - 1] if at else ""


ENDINGS = [Fuse(write, is_after) for write in ("over", REMOVED) for is_after in (False, True)]
BEGINS = ("taken", "kept", "starting", "offered", "at work")
STORIES = {
    "whose sidecar claims": Story(
        writes=(*BEGINS, "over", REMOVED),
        part=(
            "after starting, its sidecar lives",
            "after at work, its sidecar lives",
            "after running, its sidecar dies",
        ),
    ),
    "whose sidecar claims nothing": Story(
        claims=False,
        writes=("taken", "kept", "starting", "at work", "over", REMOVED),
        part=("before at work, its sidecar dies", "after running, its sidecar lives"),
    ),
    "of a GitLab that does not wait": Story(
        is_two_phase=False,
        writes=("taken", "starting", "offered", "at work", "over", REMOVED),
        part=("before at work, its sidecar lives", "after offered, its sidecar dies, and nobody has the token"),
    ),
    "that is placed again": Story(
        is_placed_again=True,
        writes=(*BEGINS[:3], "placed again", "starting again", "offered again", "at work again", "over again", REMOVED),
        points=("placed again", "starting again", "offered again"),
        part=("after placed again, its sidecar lives",),
    ),
    "that is cancelled": Story(
        act=Act.CANCEL,
        writes=(*BEGINS, "canceling", "over", REMOVED),
        points=("canceling", "over", REMOVED),
        part=("after canceling, its sidecar lives",),
    ),
    "whose second service dies, too": Story(
        dies_again=True,
        writes=(*BEGINS, "over", REMOVED),
        points=("kept", RUNNING),
        part=("after running, its sidecar dies, and the next service after over",),
    ),
    "that loses its sidecar": Story(
        act=Act.LOSE,
        writes=(*BEGINS, "over", REMOVED),
        points=("over", REMOVED),
        part=("before over, its sidecar lives",),
    ),
}


@frozen
class Case:
    """One death."""

    story: Story
    fuse: Fuse
    fate: Fate
    again: Fuse | None = None
    """Where the second service dies."""

    def __str__(self) -> str:
        """In words."""
        again = f", and the next service {self.again}" if self.again else ""
        return f"{self.fuse}, its sidecar {self.fate.value}{again}"

    @property
    def noted(self) -> str:
        """The last that is on disk."""
        return self.story.noted(self.fuse.write, is_after=self.fuse.is_after)

    @property
    def right_end(self) -> Ending:
        """What has to become of the job."""
        told = Ending.UNREPORTED if self.fate is Fate.DIES_UNREPORTED else Ending.FAILED
        if not self.noted and not self.story.is_two_phase:
            return Ending.UNKNOWN
        if self.is_over:  # GitLab knows it, hears it again from a sidecar that lives, or from the next service
            return told if self.story.act is Act.LOSE else self.story.end
        if self.is_followed:
            return self.story.end
        if self.story.is_two_phase and self.is_left_to_lapse:
            return Ending.SUCCESS  # with another number
        return Ending.CANCELED if self.story.act is Act.CANCEL and told is Ending.FAILED else told

    @property
    def is_over(self) -> bool:
        """Whether it had come to its end."""
        return self.fuse.write.startswith("over") or self.noted.startswith(("over", REMOVED))

    @property
    def is_followed(self) -> bool:
        """Whether there is a sidecar that has the job, and goes on."""
        has_it = self.noted.startswith(("at work", "offered", "canceling")) and self.fuse.write != "offered"
        return has_it and self.fate is Fate.LIVES

    @property
    def is_left_to_lapse(self) -> bool:
        """Whether GitLab has not heard that it runs, and it was noted down, if at all, that it may go to others."""
        if self.noted.startswith("at work") and self.fate is Fate.DIES_UNREPORTED:
            return False  # for all that anybody knows, it runs
        return self.fuse.write != RUNNING and not self.fuse.write.startswith(("canceling", "over"))


class HastyGitLab(FakeGitLab):
    """One of the time before jobs could be left with their runners: who gets one has it."""

    async def request(self, token: str, body: Mapping[str, object]) -> Reply:
        """See `FakeGitLab.request`."""
        return await super().request(token, {**body, "info": {}})


@define
class Scene:
    """A runner's directory, and the services that die there."""

    here: Path
    gitlab: FakeGitLab
    url: str
    program: Path
    services: Services
    runtime: Path
    story: Story
    count: int = field(default=0, init=False)

    @property
    def ran(self) -> str:
        """A line for each time that the script of the last job has begun."""
        path = self.here / f"ran-{self.count}"
        return path.read_text() if path.exists() else ""

    @property
    def go(self) -> Path:
        """The last job ends once this is there."""
        return self.here / f"go-{self.count}"

    @property
    def noted(self) -> list[Path]:
        """What is noted down of jobs."""
        return self._found("taskscaler/**/deliveries/*/delivery.json")

    @property
    def sidecars(self) -> list[int]:
        """The processes of those that run."""
        return [*filter(None, map(_sidecar_of, self._found("fleeting/**/sidecars/*/pid")))]

    def _found(self, pattern: str) -> list[Path]:
        """Of what services and instances have, which may vanish meanwhile."""
        root = self.services.here / ".local" / "state"
        return [root / each for each in glob(pattern, root_dir=root, recursive=True, include_hidden=True)]  # noqa: PTH207  (Path's fails then)

    def configure(self, *, keeps_token: bool) -> None:
        """Write the file that services read."""
        own, sidecar = f"keep_job_tokens = {str(keeps_token).lower()}", f'binary = "{self.program}"'
        write_config(self.here / "r", self.url, self.gitlab.runner_token, sidecar=sidecar, own=own, at_once=1)

    def enqueue(self) -> int:
        """Have another job."""
        self.count += 1
        begins = f"echo ran >> {self.here}/ran-{self.count}; echo tick"
        loop = f"until [ -e {self.go} ]; do sleep 0.1; {'echo' if self.story.act is Act.CANCEL else ':'}; done"
        if self.story.is_placed_again:
            (self.here / "ends").touch()
        return self.gitlab.enqueue(job(f"job {self.count}", begins, loop, "echo end"))

    async def until_begun(self) -> None:
        """Wait until the script runs."""
        while not self.ran:  # noqa: ASYNC110  (only looking tells)
            await anyio.sleep(0.02)

    async def play(self, number: int, service: Service, fuse: Fuse | None) -> None:
        """Do what the story wants; then wait until nothing is noted down any more, or the service has died."""
        async with anyio.create_task_group() as tasks:

            async def act() -> None:
                await self.until_begun()
                if fuse is not None and fuse.write == RUNNING:
                    service.end(signal.SIGKILL)
                    return
                match self.story.act:
                    case Act.END:
                        self.go.touch()
                    case Act.CANCEL:
                        self.gitlab.cancel(number)
                    case Act.LOSE:
                        self.kill_sidecars()
                while REMOVED not in self.services.writes:  # noqa: ASYNC110  (only looking tells)
                    await anyio.sleep(0.02)
                if fuse is None:
                    tasks.cancel_scope.cancel()

            tasks.start_soon(act)
            await service.over.wait()
            tasks.cancel_scope.cancel()

    def kill_sidecars(self) -> None:
        """Kill all that run."""
        for pid in self.sidecars:
            os.kill(pid, signal.SIGKILL)

    async def unharmed(self) -> None:
        """Have a job whose service does not die."""
        number = self.enqueue()
        async with self.services.one() as service:
            await self.play(number, service, None)
            assert [*self.services.writes] == [*self.story.writes]
            await self.check(number, self.story.end)

    async def survive(self, case: Case) -> None:
        """Have a service die, and see what the next one makes of the job."""
        number = self.enqueue()
        self.configure(keeps_token=case.fate is not Fate.DIES_UNREPORTED)
        async with self.services.one(case.fuse) as service:
            await self.play(number, service, case.fuse)
        if case.fate is not Fate.LIVES:
            self.kill_sidecars()
        if self.story.act is not Act.CANCEL:
            self.go.touch()
        if case.again is not None:
            async with self.services.one(case.again) as service:
                await service.over.wait()
        handed_out = self.gitlab.server.latest(number)
        async with self.services.one():
            await self.listening()
            await self.check(number, case.right_end, handed_out)

    async def listening(self) -> None:
        """Wait until the service answers."""
        while await self.leases() is None:  # noqa: ASYNC110  (only looking tells)
            await anyio.sleep(0.05)

    async def leases(self) -> Sequence[object] | None:
        """The slots that are held, as the service says; None: it does not."""
        socket = str(self.runtime / "taskscaler" / "config.sock")
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=socket, verify=False)) as client:
            try:
                found: Sequence[object] = (await client.get("http://localhost/v1/leases")).json()["leases"]
            except httpx.HTTPError:
                return None
        return found

    async def check(self, number: int, right: Ending, handed_out: Stored | None = None) -> None:
        """Wait for the end, and compare; then nothing is left of it here."""
        while (found := self.ending(number, handed_out)) is None:
            with anyio.move_on_after(0.1):
                await self.gitlab.next_change().wait()
        while self.noted or self.sidecars or await self.leases():  # noqa: ASYNC110  (likewise)
            await anyio.sleep(0.05)
        stored = self.gitlab.server.latest(number)
        log = bytes(stored.trace).decode()
        assert found is right, (found, log)
        assert self.ran in (("ran\n",) if found is Ending.SUCCESS else ("", "ran\n"))
        if found is Ending.SUCCESS:
            assert log.replace("\r", "").count("tick\nend\n") == 1  # a real one says more

    def ending(self, number: int, handed_out: Stored | None) -> Ending | None:
        """What has become of it; None: nothing yet."""
        stored = self.gitlab.server.latest(number)
        match stored.state:
            case State.SUCCESS:
                return Ending.SUCCESS
            case State.CANCELED:
                return Ending.CANCELED
            case State.FAILED:
                assert stored.failure_reason == "runner_system_failure"
                assert bytes(stored.trace).count(b"Job failed (system failure): ") == 1
                return Ending.FAILED
        if f"job_unreported job={stored.job.id} " in (self.services.here / "printed").read_text():
            return Ending.UNREPORTED
        if stored is handed_out and stored.has_runner and not self.noted:
            if stored.acknowledge_by is None:
                return Ending.UNKNOWN
            stored.acknowledge_by = 0.0  # nobody claims it: its time is over
            self.gitlab.notify()
        return None


def _sidecar_of(path: Path) -> int:
    """The process whose number is in a file, if it runs and is no other one that has the number by now; else 0."""
    try:
        pid = int(path.read_text())
        is_it = f"{path.parent}/config.toml".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return 0
    return pid if is_it else 0


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: what differs is programs of their own."""
    return "asyncio"


@pytest.fixture(params=[*STORIES])
def story(request: pytest.FixtureRequest) -> Story:
    """What happens."""
    return STORIES[request.param]


@pytest.fixture
def program(tmp_path: Path, story: Story, *, full: bool) -> Path:
    """The sidecar's: in full the real one, if there is one that does as the story wants."""
    real = full and REAL_RUNNER.is_there and RealRunner(tmp_path).claims is story.claims
    return stand_in.made(tmp_path, claims=story.claims, stands_for=REAL_RUNNER.programs[0] if real else None)


@pytest.fixture
async def scene(tmp_path: Path, story: Story, program: Path) -> AsyncIterator[Scene]:
    """Nobody has died yet."""
    (tmp_path / "gitlab").mkdir()
    gitlab = (FakeGitLab if story.is_two_phase else HastyGitLab)(tmp_path / "gitlab", accepts=0, acknowledgement=1e6)
    async with served(gitlab) as url:
        with TemporaryDirectory() as short:  # a socket's path has 107 bytes
            async with services(tmp_path / "r" / "config.toml", Path(short)) as fused:
                made = Scene(tmp_path, gitlab, url, program, fused, Path(short), story)
                made.configure(keeps_token=True)
                yield made
                async with fused.one(ends=signal.SIGTERM):  # which removes the instance
                    pass


async def test_a_service_dies_at_each_write(scene: Scene, story: Story, *, full: bool) -> None:
    """The script runs at most once, GitLab knows its end or a person is told, and nothing is left here."""
    wrong: dict[str, str] = {}
    if full:
        await scene.unharmed()
    cases = [case for case in story.cases if full or str(case) in story.part]
    assert len(cases) >= len(story.part)
    for case in cases:
        try:
            await scene.survive(case)
        except AssertionError as error:
            wrong[str(case)] = str(error)
    assert wrong == {}
