"""Jobs that somebody else brings to a daemon's fleet: the same requests answer about them as about batches."""

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import pytest
from attrs import define, field

from fleeting import Clock
from fleeting.testing import FakeCloud, virtual_time
from taskscaler import Taskscaler
from taskscaler._batch_id import directory_of
from taskscaler.serve._owners import Canary, Intake, Owners
from tests.taskscaler.calling import MEMBER, called

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


@define(eq=False)
class OneJob:
    """A job whose end is in the test's hands."""

    log: Path | None
    id: str = "desk-17"
    name: str = "build linux"
    ended: anyio.Event = field(factory=anyio.Event)
    cancelled: bool = False
    left: bool = False

    @property
    def over(self) -> bool:
        """Whether it ended."""
        return self.ended.is_set()

    def as_data(self) -> Mapping[str, object]:
        """As a batch."""
        return {"batch": self.id, "name": self.name, "state": "succeeded" if self.over else "running"}

    def record(self) -> Mapping[str, object]:
        """As a job."""
        return {"name": self.name, "state": "succeeded" if self.over else "running"}

    async def wait(self) -> None:
        """Wait for its end."""
        await self.ended.wait()

    def cancel(self) -> None:
        """Take note."""
        self.cancelled = True


@define(eq=False)
class Owner:
    """Somebody with one job, which has a slot under a key of its own."""

    jobs: Sequence[OneJob]
    name: str = "desk"
    running: int = 1
    settled: anyio.Event = field(factory=anyio.Event)
    fails: bool = False
    paused: bool = False
    canary: Canary = field(factory=lambda: Canary(passed=True, says="it ran"))

    async def take_up(self, scaler: Taskscaler, clock: Clock) -> int:
        """Find the job."""
        return len(self.jobs)

    async def run(self) -> None:
        """Do nothing, or fail."""
        if self.fails:
            raise RuntimeError("no more")

    async def pause(self) -> None:
        """Be paused."""
        self.paused = True

    async def unpause(self) -> None:
        """Be paused no more."""
        self.paused = False

    @property
    def intake(self) -> Intake:
        """One request, unless it is paused."""
        return Intake(jobs=self.running, requests=int(not self.paused), paused=self.paused, answered=True)

    async def fly_canary(self) -> Canary:
        """Give what the test wants."""
        return self.canary

    def drain(self, *, for_good: bool = False) -> None:
        """Do nothing."""

    async def settle(self) -> None:
        """Wait to be told."""
        await self.settled.wait()

    async def leave(self) -> None:
        """Do nothing."""

    def status(self) -> str:
        """Say something."""
        return "1 of at most 1 jobs"

    def key_of(self, job: str) -> str | None:
        """Its slot's key."""
        return "desk/abc" if job == "desk-17" and not self.jobs[0].over else None

    def explain(self, job: str) -> Sequence[str]:
        """Say where it stands."""
        return ("desk-17 stands here", "and there") if job == "desk-17" else ()

    async def reload(self) -> Sequence[str]:
        """Change nothing."""
        return ("desk.x changed",)


async def test_its_jobs_stand_among_the_batches(tmp_path: Path) -> None:
    """They are listed, described, waited for and cancelled; other users see nothing of them."""
    job = OneJob(None)
    async with called(FakeCloud(), directory=tmp_path) as (ask, fleet):
        fleet.owners = Owners([Owner([job])], print)
        assert [each["batch"] for each in (await ask("GET", "/batches")).data["batches"]] == ["desk-17"]
        described = (await ask("GET", "/batch?batch=desk-17")).data
        assert (described["total"], described["results"]) == (1, None)
        assert [each["name"] for each in described["list"]] == ["build linux"]
        assert (await ask("POST", "/batch/cancel", {"batch": "desk-17"})).status == 200
        assert job.cancelled
        assert (await ask("GET", "/batch/results?batch=desk-17")).status == 409
        job.ended.set()
        assert (await ask("GET", "/batch/wait?batch=desk-17")).data["state"] == "succeeded"
        member = ask.called(2, MEMBER)
        assert (await member("GET", "/batches")).data["batches"] == []
        assert (await member("GET", "/batch?batch=desk-17")).status == 404


async def test_a_job_is_explained_with_its_slot(tmp_path: Path) -> None:
    """By the name that it is known by, with what its owner says; once it is over, with that alone."""
    job = OneJob(None)
    async with called(FakeCloud(), directory=tmp_path) as (ask, fleet):
        fleet.owners = Owners([Owner([job])], print)
        async with fleet.scaler.acquire("desk/abc"):
            answer = (await ask("GET", "/explain?key=desk-17")).data
        assert answer["answer"].startswith("desk-17 has held slot 0")
        assert answer["details"][:2] == ["desk-17 stands here", "and there"]
        job.ended.set()
        answer = (await ask("GET", "/explain?key=desk-17")).data
        assert (answer["answer"], answer["details"]) == ("desk-17 stands here", ["and there"])


async def test_its_log_is_read_and_followed(tmp_path: Path) -> None:
    """Its only job need not be named; a log that is not kept is refused, and so is another job's name.

    Who follows it learns at the end whether the next daemon goes on with it.
    """
    log = tmp_path / "trace"
    log.write_text("one\ntwo\n")
    job = OneJob(log)
    async with called(FakeCloud(), directory=tmp_path / "batches") as (ask, fleet):
        fleet.owners = Owners([Owner([job])], print)
        assert await ask.read("GET", "/batch/log?batch=desk-17&lines=1") == (200, b"two\n")
        assert (await ask("GET", "/batch/log?batch=desk-17&job=other")).status == 400
        job.ended.set()
        assert await ask.read("GET", "/batch/log?batch=desk-17&follow=true") == (200, b"one\ntwo\n")
        places = "/batch/log?batch=desk-17&follow=true&places=true&after=4"
        for left in (False, True):
            job.left = left
            status, said = await ask.read("GET", places)
            piece, end = map(json.loads, said.splitlines())
            assert (status, b64decode(piece["data"]), piece["next"], end) == (200, b"two\n", 8, {"over": not left})
        job.log = None
        assert (await ask("GET", "/batch/log?batch=desk-17")).status == 404


async def test_of_two_jobs_with_one_id_the_last_is_meant() -> None:
    """A job that nobody acknowledged in time may be handed out again, to the same runner."""
    jobs = [OneJob(None, name="first"), OneJob(None, name="again")]
    found = Owners([Owner(jobs)], print).find("desk-17")
    assert found is jobs[1]


async def test_an_operator_pauses_all_of_them() -> None:
    """The answer says how all of them stand together; a daemon without any has nothing to pause."""
    async with called(FakeCloud()) as (ask, fleet):
        for verb in ("pause", "unpause", "canary"):
            refused = await ask("POST", f"/{verb}", {})
            assert (refused.status, "gets no jobs from elsewhere" in refused.why) == (409, True)
        owners = [Owner([]), Owner([], running=2)]
        fleet.owners = Owners(owners, print)
        paused = (await ask("POST", "/pause", {})).data
        assert paused == {"intake": {"jobs": 3, "requests": 0, "paused": True, "answered": True}}
        assert (await ask("POST", "/unpause", {})).data["intake"]["requests"] == 2
        owners[1].paused = True
        assert fleet.owners.intake == Intake(jobs=3, requests=1, paused=False, answered=True)


async def test_a_canary_of_each_has_to_pass() -> None:
    """The first that does not says why, with the end of its log."""
    failed = Canary(passed=False, says="it failed", log=("one", "two"))
    async with called(FakeCloud()) as (ask, fleet):
        owners = [Owner([]), Owner([])]
        fleet.owners = Owners(owners, print)
        assert (await ask("POST", "/canary", {})).data == {"passed": True, "says": "it ran; it ran", "log": []}
        owners[0].canary = failed
        assert (await ask("POST", "/canary", {})).data == {"passed": False, "says": "it failed", "log": ["one", "two"]}


async def test_an_owner_that_fails_ends_nothing_but_itself() -> None:
    """The daemon says so, and goes on."""
    said: list[str] = []
    owners = Owners([Owner([], fails=True)], said.append)
    await owners.run()
    assert said == ["warning: no more jobs come from one of their owners: no more"]


async def test_what_does_not_settle_is_left_to_the_next_daemon() -> None:
    """A job that nobody takes the end of does not keep a daemon that is to end."""
    owners = Owners([Owner([])], print)
    began = anyio.current_time()
    await owners.settle()
    assert anyio.current_time() - began == 30


@pytest.mark.parametrize(
    ("given", "is_path"), [("desk-17", False), ("01234567", False), ("desk-x", True), ("a/b-1", True)]
)
def test_an_id_is_no_directory(given: str, *, is_path: bool) -> None:
    """A word, a hyphen and a number is a job of the daemon's; a directory of that name goes first."""
    assert (directory_of(given) is not None) == is_path


def test_a_directory_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is called."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "desk-17").mkdir()
    assert directory_of("desk-17") == Path("desk-17")
