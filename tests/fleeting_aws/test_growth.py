"""Growing: each launch is paid for once, whatever AWS answers; a group that it does not launch into grows as well."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from fleeting import (
    AuthFailed,
    CapacityUnavailable,
    ConnectInfo,
    Connection,
    ConnectorConfig,
    GroupRefused,
    LoopClock,
    OutcomeUnknown,
    PlanConfig,
    ProviderError,
    Provisioner,
    RateLimited,
    Settings,
    Unreachable,
)
from fleeting_aws._launch import BATCH, PAUSES, Launcher
from fleeting_aws._translate import Json, Launching, NotPermitted
from tests.fleeting_aws.clouds import Cloud, new_cloud
from tests.fleeting_aws.test_group import Clock, opened

pytestmark = pytest.mark.anyio

LAUNCH = "autoscaling:LaunchInstances"
ZONES = ["eu-west-1a", "eu-west-1b", "eu-west-1c"]


# --- one answer, one launch ------------------------------------------------------------------------------


async def test_a_launch_that_takes_long_is_asked_for_under_the_same_token(cloud: Cloud) -> None:
    """AWS answers with the token only, and when that comes again, with what it has launched: once, in one zone."""
    new_cloud(cloud.port, group={"availability_zones": ZONES}, token_only=3)
    before = cloud.calls().get(LAUNCH, 0)
    async with opened(cloud.group(), clock=Clock()) as group:
        assert await group.increase(5, intent="x") == 5
    assert await cloud.ado("group") == {"desired": 5, "there": 5}
    assert cloud.calls()[LAUNCH] == before + 4


async def test_a_launch_that_never_tells_what_it_did_is_of_unknown_outcome(cloud: Cloud) -> None:
    """No other zone is asked: the five are on their way, and that all tries were one shows in AWS's own record."""
    new_cloud(cloud.port, group={"availability_zones": ZONES}, token_only=99)
    before = cloud.calls().get(LAUNCH, 0)
    async with opened(cloud.group(), clock=Clock()) as group:
        with pytest.raises(OutcomeUnknown, match="0 of 5"):
            await group.increase(5, intent="x")
    assert await cloud.ado("group") == {"desired": 5, "there": 5}
    assert cloud.calls()[LAUNCH] == before + 1 + len(PAUSES)


async def test_ids_that_are_missing_without_an_error_may_be_there(cloud: Cloud) -> None:
    """Fewer than were asked for and no reason: whoever asks for the rest elsewhere may get it twice."""
    new_cloud(cloud.port, group={"availability_zones": ZONES}, short_by=2)
    async with opened(cloud.group(), clock=Clock()) as group:
        with pytest.raises(OutcomeUnknown, match="3 of 5"):
            await group.increase(5, intent="x")
    assert (await cloud.ado("group"))["there"] == 5


async def test_a_launch_in_progress_is_waited_for_under_its_token(cloud: Cloud) -> None:
    """AWS answers the repetition with an error of HTTP status 500, which does not mean that nobody knows."""
    new_cloud(cloud.port, group={"availability_zones": ZONES}, token_only=1, in_progress=2)
    async with opened(cloud.group(), clock=Clock()) as group:
        assert await group.increase(5, intent="x") == 5
    assert (await cloud.ado("group"))["there"] == 5


async def test_what_is_refused_after_it_was_begun_is_still_of_unknown_outcome(cloud: Cloud) -> None:
    """That AWS is too busy to tell takes nothing back."""
    new_cloud(cloud.port, group={"availability_zones": ZONES}, token_only=1)
    async with opened(cloud.group(), clock=Clock()) as group:
        fault = {"operation": "LaunchInstances", "after": 1, "times": 99, "status": 400, "code": "Throttling"}
        await cloud.ado("set", faults=[fault])
        with pytest.raises(OutcomeUnknown):
            await group.increase(5, intent="x")
    assert (await cloud.ado("group"))["there"] == 5


@pytest.mark.parametrize("life", [{"token_only": 99}, {"short_by": 5}, {"token_only": 2}])
async def test_a_manager_gets_as_many_as_it_wants_whatever_aws_answers(cloud: Cloud, life: dict[str, int]) -> None:
    """Nor does it ask again while it does not know: as many as it asked for are launched, and all are its own."""
    new_cloud(cloud.port, group={"availability_zones": ZONES, "max_size": 100})
    await cloud.ado("set", **life)
    config = PlanConfig(max_instances=50, update_interval=0.2, update_interval_when_expecting=0.05)
    async with Provisioner(
        cloud.group(), config, dial=unreachable, on_event=lambda _: None, clock=Hasty(), random=Random(1).random
    ) as manager:
        manager.request(5)
        while len(manager.instances) < 5 or manager.plan.coming > len(manager.instances):
            manager.request(5 - manager.plan.total)
            await anyio.sleep(0.05)
        assert {each.intent for each in manager.instances.values()} != {None}
    assert (await cloud.ado("group"))["there"] == 5


@asynccontextmanager
async def unreachable(info: ConnectInfo, config: ConnectorConfig) -> AsyncIterator[Connection]:
    """Find nobody there: moto's instances have addresses and nothing else."""
    await anyio.lowlevel.checkpoint()
    raise Unreachable(f"{info.id} of {config.timeout}")
    yield  # what makes this a generator


class Hasty(LoopClock):
    """The loop's own clock, but for waits of whole seconds, which are those between a launch's tries."""

    async def sleep_until(self, at: float) -> None:
        """Wait as long as the manager's own intervals are."""
        await super().sleep_until(min(at, self.now() + 0.05))


# --- many --------------------------------------------------------------------------------------------


async def test_more_than_a_hundred_are_several_requests(cloud: Cloud) -> None:
    """AWS launches a hundred at once; each request has a token of its own, or the second one would launch nothing."""
    new_cloud(cloud.port, group={"availability_zones": ZONES, "max_size": 300})
    before = cloud.calls().get(LAUNCH, 0)
    async with opened(cloud.group(timeout=60.0)) as group:
        assert await group.increase(250, intent="x") == 250
        offerings = Counter(each.offering for each in (await group.update()).instances.values())
    assert await cloud.ado("group") == {"desired": 250, "there": 250}
    assert cloud.calls()[LAUNCH] == before + 3
    assert sorted(offerings.values()) == [50, 100, 100]


@define
class Zones:
    """As much of LaunchInstances as is needed to count: what is free in each zone, and what was launched by token."""

    free: dict[str, int]
    tokens: dict[str, tuple[str, int]]

    async def ask(self, **how: Any) -> Json:  # noqa: ANN401  (as AWS's parameters are)
        """Launch."""
        await anyio.lowlevel.checkpoint()
        (zone,), count, token = how["AvailabilityZones"], how["RequestedCapacity"], how["ClientToken"]
        assert 0 < count <= BATCH
        assert token not in self.tokens
        launched = min(count, self.free[zone])
        self.free[zone] -= launched
        self.tokens[token] = zone, launched
        ids = [f"{token}-{number}" for number in range(launched)]
        full = {"AvailabilityZone": zone, "ErrorCode": "InsufficientInstanceCapacity", "ErrorMessage": "full"}
        return {"Instances": [{"InstanceIds": ids}], "Errors": [full] if launched < count else []}


@given(
    count=st.integers(1, 450),
    free=st.lists(st.integers(0, 250), min_size=1, max_size=3),
    room=st.integers(0, 500),
)
def test_as_many_are_launched_as_there_is_room_for_and_never_more(count: int, free: list[int], room: int) -> None:
    """Wherever there is capacity, by as few requests as full batches and full zones allow."""
    zones = Zones(dict(zip(ZONES, free, strict=False)), {})
    group = {"AvailabilityZones": list(zones.free), "Instances": [], "MaxSize": room, "DesiredCapacity": 0}
    launcher = Launcher("fleet", Clock(), zones.ask)
    fit = min(count, sum(free), room)
    if fit or not room:
        assert anyio.run(launcher.launch, count, "x", group) == fit
    else:
        with pytest.raises(CapacityUnavailable):
            anyio.run(launcher.launch, count, "x", group)
    assert sum(launched for _, launched in zones.tokens.values()) == fit
    assert len(zones.tokens) <= fit // BATCH + 1 + len(free) * 2


FULL = {"ErrorCode": "InsufficientInstanceCapacity", "ErrorMessage": "full"}


@define
class Moody:
    """LaunchInstances that answers each try as it is drawn, but launches once for each token."""

    moods: list[tuple[str, int]]
    tokens: dict[str, int] = field(factory=dict)

    async def ask(self, **how: Any) -> Json:  # noqa: ANN401  (as AWS's parameters are)
        """Launch, unless this is refused."""
        await anyio.lowlevel.checkpoint()
        mood, number = self.moods.pop() if self.moods else ("whole", 0)
        token, asked = how["ClientToken"], how["RequestedCapacity"]
        if mood in {"busy", "denied"}:
            raise RateLimited("Throttling") if mood == "busy" else NotPermitted("AccessDenied")
        fit = self.tokens.setdefault(token, min(number, asked) if mood == "full" else asked)
        if mood in {"lost", "in progress"}:
            raise OutcomeUnknown("no answer") if mood == "lost" else Launching("IdempotentCallInProgress")
        shown = {"token": 0, "short": max(0, fit - 1 - number)}.get(mood, fit)
        ids = [f"{token}-{each}" for each in range(shown)]
        return {"Instances": [{"InstanceIds": ids}], "Errors": [FULL] if shown == fit < asked else []}

    @property
    def launched(self) -> int:
        """How many there are."""
        return sum(self.tokens.values())


MOODS = st.sampled_from(["whole", "full", "token", "short", "in progress", "busy", "denied", "lost"])


@given(count=st.integers(1, 250), moods=st.lists(st.tuples(MOODS, st.integers(0, 250)), max_size=12))
def test_whatever_aws_answers_no_more_are_launched_than_asked_for(count: int, moods: list[tuple[str, int]]) -> None:
    """And what is told of them is true, or that it is not known."""
    moody = Moody(moods)
    group = {"AvailabilityZones": ZONES, "Instances": [], "MaxSize": 1000, "DesiredCapacity": 0}
    try:
        told = anyio.run(Launcher("fleet", Clock(), moody.ask).launch, count, "x", group)
    except OutcomeUnknown:
        assert moody.launched <= count
    except ProviderError:
        assert moody.launched == 0
    else:
        assert told == moody.launched <= count


# --- groups that AWS does not launch into ----------------------------------------------------------------

MIXED = {"InstancesDistribution": {"OnDemandBaseCapacity": 1, "OnDemandPercentageAboveBaseCapacity": 0}}


@pytest.mark.parametrize(
    ("group", "word"),
    [
        ({"launch_configuration_name": "old"}, "launch configuration"),
        ({"mixed_instances_policy": MIXED}, "mixes On-Demand and Spot"),
        (None, "warm pool"),
    ],
)
async def test_a_group_that_is_not_launched_into_grows_by_its_capacity(
    cloud: Cloud, group: Mapping[str, object] | None, word: str
) -> None:
    """Its own description says so, so that nothing has to fail first: a warm pool's would launch before it fails."""
    await (cloud.ado("group", **group) if group else cloud.ado("warm_pool"))
    before = cloud.calls().get(LAUNCH, 0)
    opening = cloud.group()
    info = await opening.init(Settings(owner="a", clock=LoopClock()))
    assert await opening.increase(3, intent="x") == 3
    await opening.shutdown()
    assert (await cloud.ado("group"))["there"] == 3
    assert cloud.calls().get(LAUNCH, 0) == before
    assert any(word in each and "LaunchInstances" in each for each in info.advice)


async def test_a_warm_pool_that_is_new_costs_no_instance_twice(cloud: Cloud) -> None:
    """AWS launches, and then says that it cannot: what is asked for after that, the capacity brings."""
    async with opened(cloud.group()) as group:
        await cloud.ado("warm_pool")
        with pytest.raises(OutcomeUnknown, match="may have launched"):
            await group.increase(2, intent="x")
        assert len((await group.update()).instances) == 2
        assert await group.increase(1, intent="y") == 1
    assert await cloud.ado("group") == {"desired": 3, "there": 3}


@pytest.mark.parametrize(
    "how",
    [
        {"offers_launch": False},
        {"denied": [LAUNCH]},
        {"denied": ["ec2:CreateFleet"]},
        {"denied": ["ec2:DescribeLaunchTemplateVersions"]},
        {"refusal": ["UnauthorizedOperation", "You are not authorized to perform this operation."]},
    ],
    ids=lambda how: str(next(iter(how.values()))),
)
async def test_where_launching_is_refused_the_capacity_is_raised(
    cloud: Cloud, how: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """An older region, or permissions as for GitLab's plugin: tried again every quarter of an hour, not each time."""
    new_cloud(cloud.port, group={"max_size": 4})
    await cloud.ado("set", **how)
    before, clock = cloud.calls().get(LAUNCH, 0), Clock()
    async with opened(cloud.group(), clock=clock) as group:
        assert await group.increase(2, intent="x") == 2
        assert await group.increase(1, intent="y") == 1
        assert await group.increase(50, intent="too many") == 1
        assert cloud.calls()[LAUNCH] == before + 1
        (told,) = [vars(record)["error"] for record in caplog.records if record.message == "launch_refused"]
        if "denied" in how:
            assert all(each in told for each in (LAUNCH, "ec2:CreateFleet", "ec2:DescribeLaunchTemplateVersions"))
        await cloud.ado("set", offers_launch=True, denied=[], refusal=None)
        await cloud.ado("group", max_size=5)
        clock.at += 901
        assert await group.increase(1, intent="z") == 1
        assert cloud.calls()[LAUNCH] == before + 2


async def test_credentials_that_have_expired_once_do_not_change_how_it_grows(cloud: Cloud) -> None:
    """A manager's role is renewed by the hour; that it was late once is told, and the next request is a launch."""
    fault = {"operation": "LaunchInstances", "times": 1, "status": 403, "code": "ExpiredToken"}
    async with opened(cloud.group()) as group:
        await cloud.ado("set", faults=[fault])
        with pytest.raises(AuthFailed):
            await group.increase(1, intent="x")
        before = cloud.calls()[LAUNCH]
        assert await group.increase(1, intent="y") == 1
    assert cloud.calls()[LAUNCH] == before + 1
    assert (await cloud.ado("group"))["there"] == 1


async def test_a_group_that_is_busy_is_asked_later(cloud: Cloud) -> None:
    """AWS sends it with HTTP status 500, but has done nothing: nothing is counted, and no other zone is asked."""
    fault = {"operation": "LaunchInstances", "times": 1, "status": 500, "code": "ResourceContention"}
    async with opened(cloud.group()) as group:
        await cloud.ado("set", faults=[fault])
        with pytest.raises(RateLimited, match="ResourceContention"):
            await group.increase(1, intent="x")
    assert (await cloud.ado("group"))["there"] == 0


async def test_a_refusal_after_a_try_without_an_answer_is_of_unknown_outcome(cloud: Cloud) -> None:
    """boto3 tries by itself, and tells of the last try only: the one before it may have been carried out."""
    lost = {"operation": "SetDesiredCapacity", "times": 1, "status": 500, "code": "InternalFailure"}
    late = {"operation": "SetDesiredCapacity", "times": 9, "status": 400, "code": "Throttling"}
    new_cloud(cloud.port, offers_launch=False)
    async with opened(cloud.group(attempts=2)) as group:
        await cloud.ado("set", faults=[late])
        with pytest.raises(RateLimited):
            await group.increase(1, intent="x")
        await cloud.ado("set", faults=[lost, late])
        with pytest.raises(OutcomeUnknown, match="earlier attempt"):
            await group.increase(1, intent="y")


async def test_a_maximum_that_is_raised_is_noticed(cloud: Cloud) -> None:
    """Whoever does that at AWS need not restart the manager."""
    new_cloud(cloud.port, group={"max_size": 2})
    async with opened(cloud.group()) as group:
        assert (await group.update()).max_size == 2
        await cloud.ado("group", max_size=3)
        assert (await group.update()).max_size == 3
        assert await group.increase(4, intent="x") == 3


# --- groups that must not be managed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"suspended_processes": []}, "AZRebalance"),
        ({"warm_pool": {"ReuseOnScaleIn": True}}, "ReuseOnScaleIn"),
        ({"status": "Delete in progress"}, "Delete in progress"),
        ({"operator": {"Principal": "ecs.amazonaws.com"}}, "only ecs.amazonaws.com"),
    ],
)
async def test_a_group_that_is_fatal_to_jobs_is_refused_and_may_be_looked_at(
    cloud: Cloud, change: dict[str, Any], word: str
) -> None:
    """It is said before anything is launched, with what to change; a mere look tells the same as advice."""
    if "warm_pool" in change:
        await cloud.ado("warm_pool", reuse=True)
    else:
        await cloud.ado("group", **change)
    with pytest.raises(GroupRefused, match=word):
        await cloud.group().init(Settings(owner="a", clock=LoopClock()))
    looking = cloud.group()
    info = await looking.init(Settings(owner="a", clock=LoopClock(), observe_only=True))
    await looking.shutdown()
    assert any("would refuse it" in each and word in each for each in info.advice)


async def test_in_one_zone_nothing_is_rebalanced(cloud: Cloud) -> None:
    """So the process need not be suspended."""
    new_cloud(cloud.port, group={"availability_zones": ZONES[:1]}, suspended=())
    async with opened(cloud.group()) as group:
        assert await group.increase(1, intent="x") == 1
