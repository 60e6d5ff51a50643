"""What ``taskscaler doctor`` says of a group, its quotas and its instances, over a cloud in memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import evolve

from fleeting import (
    AuthFailed,
    FleetingError,
    GroupInfo,
    GroupRefused,
    HostKeyMismatch,
    LoginRejected,
    LoopClock,
    Observation,
    Problem,
    ProblemKind,
    ProviderError,
    QuotaExceeded,
    Settings,
    SqliteJournal,
    Unreachable,
)
from fleeting.testing import FakeCloud, FakeGroup, Fault, UpdateFault, virtual_time
from taskscaler.cli._doctor._finding import Finding, Grade, Veil
from taskscaler.cli._doctor._pool import FEW, PoolLook
from taskscaler.config import Autoscaler

pytestmark = pytest.mark.anyio

anyio_backend = virtual_time


async def look(group: FakeGroup, *, state: Path | None = None, **settings: Any) -> list[Finding]:  # noqa: ANN401  (an `Autoscaler`'s)
    """Look at a group; what is not as it should be."""
    found: list[Finding] = []
    pool = Autoscaler(**{"plugin": "fake", **settings})
    await PoolLook(pool=pool, group=group, state=state, dial=group.dial).look(found.append)
    assert all(each.do for each in found if each.grade is not Grade.OK), "each has something to do"
    return [each for each in found if each.grade is not Grade.OK]


def cloud_with(instances: int, **settings: Any) -> FakeCloud:  # noqa: ANN401  (a `FakeCloud`'s)
    """A cloud in which somebody else has made instances."""
    cloud = FakeCloud(**settings)
    cloud.launch(instances)
    return cloud


async def test_a_group_in_order_is_looked_at_and_not_touched() -> None:
    """Nothing to report, and no call that changes anything."""
    cloud = cloud_with(3, max_size=20)
    before = cloud.alive
    assert await look(FakeGroup(cloud), max_instances=20) == []
    assert cloud.alive == before
    assert {call.method for call in cloud.calls} <= {"init", "update", "connect_info", "dial", "shutdown"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AuthFailed("the access key is wrong"), "FL304"),
        (GroupRefused("the group scales by itself; turn that off"), "FL201"),
        (ProviderError("the endpoint is down"), "FL300"),
        (QuotaExceeded("no more API calls today"), "FL302"),
    ],
)
async def test_a_group_that_is_not_opened(error: FleetingError, code: str) -> None:
    """The error as commands show it, with its code; the remedy of the catalogue if it has none of its own."""
    cloud = FakeCloud()
    cloud.faults.init.once(Fault(refuse=error))
    (finding,) = await look(FakeGroup(cloud))
    assert (finding.check, finding.grade, finding.code) == ("group", Grade.PROBLEM, code)
    assert finding.found == str(error).partition("; ")[0]


async def test_a_token_that_has_expired_meanwhile() -> None:
    """The group was opened, and cannot be read."""
    cloud = FakeCloud()
    cloud.faults.update.always(UpdateFault(refuse=AuthFailed("the token has expired")))
    (finding,) = await look(FakeGroup(cloud))
    assert (finding.found, finding.code) == ("the token has expired", "FL304")
    assert finding.do.startswith("correct the credentials")
    assert cloud.calls[-1].method == "shutdown"


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "Connection refused"), OSError()])
async def test_a_cloud_that_is_not_reached(error: OSError) -> None:
    """Is no matter of a disk, which is what the system's errors are about elsewhere."""
    cloud = FakeCloud()
    cloud.faults.update.always(UpdateFault(refuse=error))
    (finding,) = await look(FakeGroup(cloud))
    assert finding.code == "FL300"
    assert "proxy" in finding.do


class Sleeper(FakeGroup):
    """A group whose cloud does not answer a call."""

    call = "init"

    async def init(self, settings: Settings) -> GroupInfo:
        """Open it, or never."""
        if self.call == "init":
            await anyio.sleep_forever()
        return await super().init(settings)

    async def update(self) -> Observation:
        """Show it, or never."""
        if self.call == "update":
            await anyio.sleep_forever()
        return await super().update()


@pytest.mark.parametrize("call", ["init", "update"])
async def test_a_call_that_hangs_is_named(call: str) -> None:
    """Which one it was."""
    group = Sleeper(FakeCloud())
    group.call = call
    (finding,) = await look(group)
    what = {"init": "opening the group", "update": "listing the instances"}[call]
    assert finding.found == f"{what} took longer than 30s"


async def test_a_ceiling_below_ours() -> None:
    """What the cloud does not let the group have never comes."""
    assert await look(FakeGroup(FakeCloud(max_size=20)), max_instances=20) == []
    (finding,) = await look(FakeGroup(FakeCloud(max_size=20)), max_instances=21)
    assert (finding.check, finding.grade) == ("quota", Grade.WARNING)
    assert "20" in finding.found
    assert "lower max_instances" in finding.do


async def test_a_group_over_its_size() -> None:
    """More instances than the file allows, and than the group does."""
    (finding,) = await look(FakeGroup(cloud_with(5)), max_instances=4)
    assert finding.found == "there are 5 instances, and max_instances is 4"
    cloud = cloud_with(5)
    cloud.max_size = 4
    assert [each.check for each in await look(FakeGroup(cloud))] == ["quota"]


PROBLEMS: Mapping[ProblemKind, tuple[str, Grade, str]] = {
    ProblemKind.CAPACITY: ("quota", Grade.WARNING, "FL301"),
    ProblemKind.QUOTA: ("quota", Grade.PROBLEM, "FL302"),
    ProblemKind.IMAGE: ("group", Grade.PROBLEM, "FL300"),
    ProblemKind.AUTHORISATION: ("group", Grade.PROBLEM, "FL304"),
    ProblemKind.OTHER: ("group", Grade.PROBLEM, "FL300"),
}


@pytest.mark.parametrize("kind", ProblemKind)
async def test_problems_of_the_cloud(kind: ProblemKind) -> None:
    """In its own words; only a lack of capacity may pass by itself."""
    cloud = FakeCloud()
    cloud.problems.append(Problem(kind=kind, message="no m5.large in zone a"))
    (finding,) = await look(FakeGroup(cloud))
    assert (finding.check, finding.grade, finding.code) == PROBLEMS[kind]
    assert finding.found == "the cloud reports: no m5.large in zone a"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unreachable("nothing answers at 10.0.0.1:22"), "FL401"),
        (HostKeyMismatch("it shows another key"), "FL402"),
        (LoginRejected("no such user"), "FL403"),
        (ConnectionResetError(104, "Connection reset by peer"), "FL300"),
        (RuntimeError("a defect"), ""),
    ],
)
async def test_an_instance_that_is_not_reached(error: Exception, code: str) -> None:
    """Each by its own line; the others are dialled all the same."""
    cloud = cloud_with(3)
    cloud.faults.dial.once(Fault(refuse=error))
    (finding,) = await look(FakeGroup(cloud))
    assert (finding.check, finding.code) == ("connection", code)
    assert " cannot be dialled: " in finding.found


async def test_an_instance_that_does_not_answer() -> None:
    """It is named before the time for all of the group is over."""
    cloud = cloud_with(1)
    cloud.faults.dial.always(Fault(slow=60))
    (finding,) = await look(FakeGroup(cloud))
    (instance,) = cloud.alive
    assert finding.found == f"{instance} cannot be dialled within 30s"


async def test_an_error_that_names_the_instance_does_so_once() -> None:
    """SSH's do."""
    cloud = cloud_with(1)
    (instance,) = cloud.alive
    cloud.faults.dial.once(Fault(refuse=Unreachable(f"{instance} (10.0.0.1 port 22) is unreachable")))
    (finding,) = await look(FakeGroup(cloud))
    assert finding.found == f"{instance} (10.0.0.1 port 22) is unreachable"


async def test_of_many_instances_a_few_are_dialled() -> None:
    """A fleet of thousands is not logged into."""
    cloud = cloud_with(FEW + 5)
    assert await look(FakeGroup(cloud)) == []
    assert sum(call.method == "dial" for call in cloud.calls) == FEW


async def test_a_second_manager(tmp_path: Path) -> None:
    """Who has the group is named, and what a second one would meet."""
    cloud = FakeCloud()
    journal = SqliteJournal(tmp_path / "x.sqlite", locks=tmp_path)
    await journal.open([cloud.identity], "build-7", {})
    (finding,) = await look(FakeGroup(cloud), state=tmp_path)
    assert finding.found.startswith(f"{cloud.identity} is managed by build-7 (process ")
    assert "stop that manager" in finding.do
    await journal.close()
    assert await look(FakeGroup(cloud), state=tmp_path) == []


class FromTheFuture(FakeGroup):
    """A group whose cloud has another time."""

    async def update(self) -> Observation:
        """Show it."""
        view = await super().update()
        later = LoopClock().now() + 600
        return evolve(view, instances={id_: evolve(seen, created_at=later) for id_, seen in view.instances.items()})


async def test_a_clock_that_is_behind_the_clouds() -> None:
    """Instances are made in the future."""
    (finding,) = await look(FromTheFuture(cloud_with(1)))
    assert (finding.check, finding.grade) == ("clock", Grade.PROBLEM)


class Advising(FakeGroup):
    """A group that found something to be changed."""

    async def init(self, settings: Settings) -> GroupInfo:
        """Open it."""
        return evolve(await super().init(settings), advice=("the group scales in by itself; turn protection on",))


async def test_advice_is_passed_on() -> None:
    """Cause and cure apart."""
    (finding,) = await look(Advising(FakeCloud()))
    assert (finding.found, finding.do) == ("the group scales in by itself", "turn protection on")


class Unprintable(Exception):
    """An error that cannot be printed."""

    def __str__(self) -> str:
        """Fail."""
        raise ValueError


@pytest.mark.parametrize("error", [Unprintable(), KeyError("x"), ExceptionGroup("", [OSError(), Unprintable()])])
async def test_whatever_a_plugin_raises_is_a_line(error: Exception) -> None:
    """Also what cannot be printed."""
    cloud = FakeCloud()
    cloud.faults.init.once(Fault(refuse=error))
    findings = await look(FakeGroup(cloud))
    assert {each.check for each in findings} == {"group"}


def test_secrets_are_taken_out() -> None:
    """Of the file, under whatever table, and of the environment; names of files and short words stay."""
    file = {
        "autoscaler": {
            "plugin_config": {"api_token": "tok-123", "pin": "9876", "env": {"A": "hush-hush"}, "name": "lab"},
            "connector_config": {"password": "one\ntwo-lines", "key_path": "/home/me/id"},
        }
    }
    veil = Veil.over(file, {"AWS_SECRET_ACCESS_KEY": "abcdefgh", "HOME": "/home/me", "MY_TOKEN": "x"}, {"pin"})
    text = "tok-123 9876 hush-hush lab two-lines /home/me/id abcdefgh x https://u:p@host/"
    shown = veil(Finding(check="group", grade=Grade.PROBLEM, found=text, do=text, pool=text))
    left = "(hidden) (hidden) (hidden) lab (hidden) /home/me/id (hidden) x https://(hidden)@host/"
    assert [shown.found, shown.do, shown.pool] == [left] * 3
    assert "tok" not in repr(veil)


def test_what_comes_from_outside_is_one_line() -> None:
    """Whatever a plugin quotes."""
    finding = Veil()(Finding(check="group", grade=Grade.PROBLEM, found="a\nb\x1b[2J" + "x" * 10_000))
    assert str(finding).startswith("problem  group: a b")
    assert len(str(finding).splitlines()) == 1
    assert len(str(finding)) < 2000
