"""What becomes of a job that a sidecar runs, where the fleet or GitLab is not there: nothing is taken for done."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import anyio
import pytest
from attrs import define, evolve, field

from fleeting import Completed, ConnectError, Connection, Unreachable, Unsupported
from fleeting.connectors import Detached, RunsDetached
from fleeting.events import Loss
from gitlab_jobs import End
from gitlab_jobs.coordinator import Reply
from gitlab_jobs.testing import Fault
from taskscaler import Lease, Taskscaler
from taskscaler_gitlab._settings import OwnSettings, SidecarSettings
from taskscaler_gitlab.relay import Relays, RelayWork, _sidecar
from taskscaler_gitlab.relay._relay import How
from taskscaler_gitlab.relay._sidecar import Place, Sidecars, end_leftovers
from tests.taskscaler_gitlab.shops import ORIGIN
from tests.taskscaler_gitlab.test_relay_routes import DELIVERY, Counter, counter

__all__ = ["counter"]

pytestmark = pytest.mark.anyio


@define
class Slot:
    """A slot of an instance that cannot be reached."""

    instance: str = "i-1"
    slot: int = 3
    place: int = 0
    error: Exception = field(factory=lambda: Unreachable("nobody there"))
    loss: Loss | None = None
    suspected: list[str] = field(factory=list)
    is_released: bool = False

    @asynccontextmanager
    async def unless_lost(self) -> AsyncIterator[None]:
        """Do not lose it."""
        yield

    @asynccontextmanager
    async def dial(self) -> AsyncIterator[None]:
        """Find nobody there."""
        raise self.error
        yield

    def mark_suspect(self, why: str) -> None:
        """Take note."""
        self.suspected.append(why)

    def release(self) -> None:
        """Take it back."""
        self.is_released = True


@define
class Fleet:
    """One slot, for who takes it up again; no other."""

    left: Slot
    detached: list[Any] = field(factory=list)

    async def reattach(self, _: str) -> Slot:
        """Give it."""
        return self.left

    async def acquire_lease(self, *_: object, **__: object) -> Slot:
        """Wait for ever."""
        await anyio.sleep_forever()
        raise AssertionError

    def of(self, key: str) -> Taskscaler:
        """Have the slot wait for this key."""
        self.detached = [SimpleNamespace(key=key)]
        return cast("Taskscaler", self)


def next_one(counter: Counter, fleet: Fleet) -> RelayWork:
    """The job, as the next manager finds it."""
    record = counter.work.directory.read()
    shop = evolve(counter.work.shop, scaler=fleet.of(record.key))
    return counter.relays._work(shop, counter.work.directory, record)


async def test_without_its_token_a_job_on_an_instance_that_cannot_be_reached_is_not_reported(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is lost before anybody could look at its sidecar: whoever asks here learns that GitLab does not know."""
    monkeypatch.setattr("taskscaler_gitlab.relay._work.RECONNECT", 0.2)
    await counter.poll()
    await counter.patch(b"x")
    fleet = Fleet(Slot())
    work = next_one(counter, fleet)
    await work.see_through()
    assert (work.problem, work.record.how, work.end) == ("", How.UNREPORTED, End.GIVEN_UP)
    assert "GitLab does not know that it has failed" in work.untold
    assert fleet.left.is_released
    assert fleet.left.suspected


@pytest.mark.parametrize("error", [ConnectError("no login"), OSError("no file descriptor"), Unsupported("no tunnel")])
async def test_a_slot_in_which_a_sidecar_may_still_run_costs_its_instance(counter: Counter, error: Exception) -> None:
    """Whatever keeps us from ending it: the instance gets no new jobs, and is replaced."""
    await counter.poll()
    await counter.patch(b"x")
    fleet = Fleet(Slot(error=error))
    work = next_one(counter, fleet)
    await work.see_through()
    assert (work.problem, work.record.how) == ("", How.UNREPORTED)
    assert fleet.left.is_released
    assert fleet.left.suspected


async def test_who_calls_where_a_job_was_before_finds_nobody(counter: Counter) -> None:
    """A job that is placed again has a path of its own for each try; those before are forgotten."""
    await counter.work._tell(lambda relay: relay.slot_lost("vanished"))
    assert counter.relays.find(DELIVERY) is None
    assert (await counter.poll()).status_code == 403


async def test_an_end_whose_answer_was_lost_is_learnt_from_the_claim(counter: Counter) -> None:
    """After a restart the job is claimed again: a GitLab that has its end says so, and it is not called revoked."""
    await counter.poll()
    over = Reply(status=403, headers={"Job-Status": "success"}, body={})
    counter.gitlab.faults = (Fault(call="update", reply=over, times=1000),)
    assert (await counter.patch(b"x")).status_code == 403
    assert (counter.work.record.how, counter.work.record.is_success) == (How.REPORTED, True)


@define
class Mute:
    """A connection that dies with the first command."""

    async def run(self, *_: object, **__: object) -> None:
        """Die."""
        raise Unreachable("it died")


@define
class Flapping(Slot):
    """A slot of an instance that can be dialled, and no more."""

    @asynccontextmanager
    async def dial(self) -> AsyncIterator[Mute]:  # type: ignore[override]
        """Connect."""
        yield Mute()


async def test_connections_that_do_nothing_are_not_made_for_ever(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one that got as far as to the sidecar begins the time anew in which an instance is dialled again."""
    monkeypatch.setattr("taskscaler_gitlab.relay._work.RECONNECT", 0.2)
    monkeypatch.setattr("taskscaler_gitlab.relay._work._PAUSE", 0.05)
    await counter.poll()
    await counter.patch(b"x")
    fleet = Fleet(Flapping())
    work = next_one(counter, fleet)
    await work.see_through()
    assert (work.problem, work.record.how) == ("", How.UNREPORTED)
    assert fleet.left.suspected


@define
class Answering:
    """A connection on which a program says that it is one, and which counts how often it was asked."""

    asked: int = 0
    says: bytes = b"/home/us\n"

    async def run(self, command: Sequence[str], **_: object) -> Completed:
        """Say so."""
        self.asked += 1
        said = b"Version:      17.9.3\n" if command[-1] == "--version" else self.says
        return Completed(exit_status=0, stdout=said)


async def test_what_is_known_of_instances_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were needed last; of the others it is looked at once more whether the program is there."""
    monkeypatch.setattr(_sidecar, "MOST_KNOWN", 2)
    sidecars, connection = Sidecars(SidecarSettings()), Answering()
    for instance, asked in (("a", 2), ("b", 4), ("a", 4), ("c", 6), ("a", 6), ("b", 8)):
        await sidecars.prepare(cast("Connection", connection), instance, "o-1")
        assert connection.asked == asked
    assert len(sidecars._known) == 2


@define
class Commands:
    """Those of an instance that were started and not forgotten."""

    listed: list[Detached]
    ended: list[str] = field(factory=list)

    async def list_detached(self) -> list[Detached]:
        """List them."""
        return self.listed

    async def kill(self, name: str) -> None:
        """Take note."""
        self.ended.append(name)

    async def forget(self, _: str) -> None:
        """Do so."""


@pytest.mark.parametrize("lost", ["", "the instance has been restarted"])
async def test_what_had_to_be_killed_in_a_slot_is_said(lost: str) -> None:
    """What ran there for somebody else may have left processes; what had ended has not."""
    place = Place(program="", top="/home/us/sidecars", owner="0123456789ab-3")
    commands = Commands([Detached(name=place.name_of("d1"), lost=lost), Detached(name="gl-sidecar-other-3-d2")])
    assert await end_leftovers(cast("RunsDetached", commands), place) is not bool(lost)
    assert commands.ended == [place.name_of("d1")]


async def test_a_failure_that_gitlab_may_not_know_is_told_by_the_next_manager(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its instance cannot be reached any more."""
    monkeypatch.setattr("taskscaler_gitlab.relay._work.RECONNECT", 0.2)
    await counter.poll()
    await counter.patch(b"x")
    record = evolve(counter.work.record, token=counter.job.token)
    failed = evolve(counter.work.relay, record=record, has_token=True).sidecar_ended("it was killed").record
    assert failed is not None
    counter.work.directory.note(failed)
    work = next_one(counter, Fleet(Slot()))
    await work.see_through()
    assert (work.problem, work.record.how, work.end) == ("", How.FAILED, End.REPORTED)
    assert "it was killed" in counter.gitlab.log(counter.job.id).decode()
    assert not counter.work.directory.path.exists()


async def test_what_gitlab_was_not_told_stays_noted_down(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is cancelled here while GitLab is away: it is not called reported."""
    monkeypatch.setattr("gitlab_jobs._reporting.FAREWELL", 0.1)
    counter.gitlab.faults = (Fault(call="update", times=1000),)
    shop = evolve(counter.work.shop, scaler=Fleet(Slot()).of(""), outlives=False)
    record = counter.work.relay.found(counter.work.record, placements=3).record
    taken = evolve(record, standing=type(record.standing).TAKEN, delivery="", secret_hash="", port=0)
    work = counter.relays._work(shop, counter.work.directory, taken, counter.job)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work.see_through)
        work.interrupt("cancelled here")
    assert (work.problem, work.record.how, work.end) == ("", How.FAILED, End.GIVEN_UP)
    assert counter.work.directory.read().how is How.FAILED


@define
class Shellless(Slot):
    """A slot of an instance on which there is no /bin/sh, nor anything that outlives its connection."""

    @asynccontextmanager
    async def dial(self) -> AsyncIterator[Answering]:  # type: ignore[override]
        """Connect."""
        yield Answering(says=b"")


async def test_where_no_sidecar_can_be_a_stray_lease_costs_no_instance(counter: Counter) -> None:
    """Over WinRM, nothing outlives its connection: there is nothing to look for, with a shell or without."""
    slot = Shellless()
    await counter.relays.clear(cast("Lease", slot))
    assert slot.suspected == []


@pytest.mark.parametrize("now", ["own", "sidecar"])
@pytest.mark.parametrize("before", ["nothing", "said", "noted down"])
async def test_a_runner_that_never_had_sidecars_looks_for_none(
    counter: Counter, tmp_path: Path, now: Literal["own", "sidecar"], before: str
) -> None:
    """A stray lease of one that has or had them costs an instance on which nobody can look."""
    settings = evolve(counter.relays.settings, taskscaler=OwnSettings(run_with=now))
    relays = Relays(settings, tmp_path / "other", counter.relays.origins, is_kept=True)
    if before == "noted down":
        relays.directory_of(ORIGIN, 1, "gitlab/1").note(counter.work.record)
    elif before == "said":
        relays.directory.mkdir()
        relays.about.keep(b"{}")
    relays.load()
    slot = Slot()
    await relays.clear(cast("Lease", slot))
    assert bool(slot.suspected) is (now == "sidecar" or before != "nothing")
