"""The group against moto's server, in the situations that operators of such groups report."""

import base64
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import define
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from fleeting import (
    AuthFailed,
    CapacityUnavailable,
    ConnectorConfig,
    GroupRefused,
    LoginRejected,
    LoopClock,
    Notice,
    Observation,
    Observed,
    OutcomeUnknown,
    ProblemKind,
    ProviderError,
    RateLimited,
    Settings,
    State,
    Unsupported,
    load,
)
from fleeting.connectors.ssh import generate_key
from fleeting.plugins import Mark
from fleeting_aws import AwsConfig, AwsGroup
from taskscaler.config import load as load_runner
from tests.fleeting_aws.clouds import Cloud, new_cloud, other_client
from tests.reaping import HOUR, reap, removed

pytestmark = pytest.mark.anyio

LOOKS = 12
"""Views within which whatever was asked for is done: every request to the cloud brings it a step further."""


@define
class Clock:
    """A clock that is set by hand."""

    at: float = 1_000_000.0

    def now(self) -> float:
        """The time."""
        return self.at

    async def sleep_until(self, at: float) -> None:
        """Let time pass at once."""
        await anyio.lowlevel.checkpoint()
        self.at = max(self.at, at)


@asynccontextmanager
async def opened(group: AwsGroup, owner: str = "a", **settings: Any) -> AsyncIterator[AwsGroup]:  # noqa: ANN401  (the settings know their types)
    """Open a group, and close it in the end."""
    await group.init(Settings(**{"owner": owner, "clock": LoopClock(), **settings}))
    try:
        yield group
    finally:
        with anyio.CancelScope(shield=True):
            await group.shutdown()


async def seen(group: AwsGroup, met: Callable[[Mapping[str, Observed]], bool]) -> Observation:
    """Look until the view is like that."""
    view = await group.update()
    for _ in range(LOOKS):
        if met(view.instances):
            return view
        view = await group.update()
    raise AssertionError(f"after {LOOKS} looks the view is {view}")


async def grown(group: AwsGroup, count: int) -> list[str]:
    """Launch, and wait until they run."""
    before = set((await group.update()).instances)
    assert await group.increase(count, intent="grown") == count
    view = await seen(group, lambda shown: len(running(shown)) >= count)
    return [each for each in view.instances if each not in before]


def heard(group: AwsGroup) -> AsyncGenerator[Notice, None]:
    """Listen; to be closed in the end."""
    notices = group.notices()
    assert isinstance(notices, AsyncGenerator)
    return notices


def running(shown: Mapping[str, Observed]) -> list[str]:
    """Those that run."""
    return [each for each, observed in shown.items() if observed.state is State.RUNNING]


def is_in(instance: str, state: State) -> Callable[[Mapping[str, Observed]], bool]:
    """Whether an instance is shown in a state."""
    return lambda shown: instance in shown and shown[instance].state is state


# --- opening ---------------------------------------------------------------------------------------------


async def test_it_says_what_it_is_and_what_to_change(cloud: Cloud) -> None:
    """The identity is the resource itself; what others have set up gets a piece of advice each."""
    new_cloud(cloud.port, group={"max_size": 7, "new_instances_protected_from_scale_in": False, "min_size": 1})
    group = cloud.group()
    info = await group.init(Settings(owner="a", clock=LoopClock()))
    await group.shutdown()
    assert info.identity.startswith("arn:aws:autoscaling:eu-west-1:123456789012:autoScalingGroup:")
    assert info.max_size == 7
    words = " ".join(info.advice)
    assert all(each in words for each in ("scale-in", "minimum size is 1", "cooldown is 300 s"))
    assert len(info.advice) == 3
    assert info.notice_probe is not None


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"name": "nobody"}, "no Auto Scaling group nobody"),
        ({"profile": "nobody"}, "nobody"),
        ({"endpoint_url": "not a url"}, "not a url"),
    ],
)
async def test_what_is_not_there_is_named(cloud: Cloud, settings: dict[str, str], word: str) -> None:
    """A name that is wrong in the settings is in the error, with where to correct it."""
    with pytest.raises(GroupRefused, match=word):
        await cloud.group(**settings).init(Settings(owner="a", clock=LoopClock()))


async def test_without_a_region_nobody_is_asked(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no region that could be guessed."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(GroupRefused, match="region"):
        await cloud.group(region=None).init(Settings(owner="a", clock=LoopClock()))


async def test_without_credentials_it_says_so(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 has looked everywhere; what is missing is told in its words."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AuthFailed, match="credentials"):
        await cloud.group().init(Settings(owner="a", clock=LoopClock()))


async def test_a_profile_in_files_may_assume_a_role(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GitLab's keys for files and profile are obeyed; the role is assumed with the credentials of its source."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{cloud.port}")
    role = "role_arn = arn:aws:iam::123456789012:role/ci"
    (tmp_path / "config").write_text(f"[profile ci]\n{role}\nsource_profile = base\nregion = eu-west-1\n")
    (tmp_path / "credentials").write_text("[base]\naws_access_key_id = AKIABASE\naws_secret_access_key = x\n")
    before = cloud.calls().get("sts:AssumeRole", 0)
    files = {"config_file": str(tmp_path / "config"), "credentials_file": str(tmp_path / "credentials")}
    async with opened(cloud.group(profile="ci", region=None, **files)) as group:
        assert (await group.update()).instances == {}
    assert cloud.calls()["sts:AssumeRole"] == before + 1


async def test_what_is_not_permitted_is_done_without(cloud: Cloud) -> None:
    """The permissions of GitLab's plugin are enough; what is not looked at is said."""
    await cloud.ado("set", denied=["autoscaling:DescribePolicies", "autoscaling:DescribeLifecycleHooks"])
    group = cloud.group()
    info = await group.init(Settings(owner="a", clock=LoopClock()))
    await group.shutdown()
    assert sum("some settings could not be checked" in each for each in info.advice) == 2


async def test_credentials_that_have_expired_are_not_taken_for_a_lack_of_permission(cloud: Cloud) -> None:
    """Else one moment decided for good how long instances have to end, and that a host's key is not looked for."""
    expired = {"times": 1, "status": 403, "code": "ExpiredToken"}
    await cloud.ado("set", console=CONSOLE, faults=[{"operation": "DescribeLifecycleHooks", **expired}])
    with pytest.raises(AuthFailed):
        await cloud.group().init(Settings(owner="a", clock=LoopClock()))
    async with opened(cloud.group()) as group:
        (instance,) = await grown(group, 1)
        await cloud.ado("set", faults=[{"operation": "GetConsoleOutput", **expired}])
        with pytest.raises(AuthFailed):
            await group.connect_info(instance)
        assert (await group.connect_info(instance)).host_key == HOST_KEY


# --- growing ---------------------------------------------------------------------------------------------


async def test_launches_are_spread_over_zones(cloud: Cloud) -> None:
    """Each request goes to the zone with the fewest instances."""
    async with opened(cloud.group()) as group:
        await grown(group, 1)
        await grown(group, 1)
        offerings = {each.offering for each in (await group.update()).instances.values()}
    assert offerings == {"eu-west-1a/m5.large", "eu-west-1b/m5.large"}


STOCK_OUT = ["InsufficientInstanceCapacity", "We do not have sufficient m5.large capacity (eu-west-1a)."]


async def test_a_zone_without_stock_is_passed_over(cloud: Cloud) -> None:
    """What one zone does not give, the next one does."""
    await cloud.ado("set", refusal=STOCK_OUT, full_zones=["eu-west-1a"])
    async with opened(cloud.group()) as group:
        await grown(group, 2)
        assert {each.offering for each in (await group.update()).instances.values()} == {"eu-west-1b/m5.large"}


async def test_no_stock_anywhere_is_told_with_zone_and_type(cloud: Cloud) -> None:
    """The error names what was tried last, and nothing is left to come later."""
    await cloud.ado("set", refusal=STOCK_OUT)
    async with opened(cloud.group()) as group:
        with pytest.raises(CapacityUnavailable, match=r"eu-west-1b/m5\.large: We do not have sufficient"):
            await group.increase(2, intent="x")
    assert await cloud.ado("group") == {"desired": 0, "there": 0}


async def test_an_unknown_outcome_in_the_second_zone_stays_unknown(cloud: Cloud) -> None:
    """Part of the request was carried out for certain, the rest perhaps: all of it counts until it shows."""
    fault = {"operation": "LaunchInstances", "times": 1, "status": 500, "code": "InternalFailure"}
    async with opened(cloud.group()) as group:
        await cloud.ado("set", faults=[fault])
        with pytest.raises(OutcomeUnknown):
            await group.increase(2, intent="x")


async def test_a_stock_out_behind_the_capacity_is_a_problem_and_can_be_withdrawn(cloud: Cloud) -> None:
    """Auto Scaling tries for ever; why nothing comes stands in its activities, and the rest is taken back."""
    await cloud.ado("set", offers_launch=False)
    async with opened(cloud.group()) as group:
        (instance,) = await grown(group, 1)
        await cloud.ado("set", refusal=STOCK_OUT)
        assert await group.increase(2, intent="x") == 2
        (first,) = (await group.update()).problems
        await group.increase(1, intent="y")
        (later,) = (await group.update()).problems
        assert first == later
        assert (first.kind, first.offering) == (ProblemKind.CAPACITY, "eu-west-1a/m5.large")
        assert await group.withdraw(5) == 3
        await cloud.ado("set", refusal=None)
        assert list((await seen(group, is_in(instance, State.RUNNING))).instances) == [instance]


async def test_nothing_is_taken_back_where_that_may_cost_an_instance(cloud: Cloud) -> None:
    """What is not protected from scale-in is ended if it comes just when the capacity is lowered."""
    new_cloud(
        cloud.port, offers_launch=False, refusal=STOCK_OUT, group={"new_instances_protected_from_scale_in": False}
    )
    async with opened(cloud.group()) as group:
        assert await group.increase(2, intent="x") == 2
        assert await group.withdraw(2) == 0


async def test_a_problem_keeps_its_time_though_its_first_failures_are_forgotten(cloud: Cloud) -> None:
    """Only so many activities are read, and a new time would be a new failure to the manager, which then waits on."""
    await cloud.ado("set", offers_launch=False, refusal=STOCK_OUT)
    async with opened(cloud.group()) as group:
        await group.increase(1, intent="x")
        (first,) = (await group.update()).problems
        for _ in range(100):
            await cloud.ado("activity", zone="eu-west-1a", status="Failed", message=STOCK_OUT[1])
        (later,) = (await group.update()).problems
    assert later == first


async def test_somebody_who_lowers_the_capacity_at_the_same_time_is_noticed(cloud: Cloud) -> None:
    """What was accepted is what the group wants afterwards, not what we have asked for."""
    await cloud.ado("set", offers_launch=False, race=1)
    async with opened(cloud.group()) as group:
        assert await group.increase(3, intent="x") == 1


async def test_what_was_set_counts_though_it_could_not_be_looked_at(cloud: Cloud) -> None:
    """The look is for others who set the capacity too; that it is refused takes nothing back."""
    await cloud.ado("set", offers_launch=False)
    async with opened(cloud.group()) as group:
        assert await group.increase(1, intent="x") == 1
        fault = {"operation": "DescribeAutoScalingGroups", "after": 1, "times": 1, "status": 400, "code": "Throttling"}
        await cloud.ado("set", faults=[fault])
        assert await group.increase(2, intent="y") == 2
    assert (await cloud.ado("group"))["desired"] == 3


async def test_our_own_changes_of_the_capacity_do_not_overwrite_each_other(cloud: Cloud) -> None:
    """A manager that replaces an ill instance ends one and asks for another at the same time."""
    await cloud.ado("set", offers_launch=False)
    async with opened(cloud.group()) as group:
        ill = await grown(group, 3)

        async def replace(instance: str) -> None:
            await group.decrease([instance])

        async def ask() -> None:
            assert await group.increase(1, intent="x") == 1

        async with anyio.create_task_group() as tasks:
            for instance in ill:
                tasks.start_soon(replace, instance)
                tasks.start_soon(ask)
    assert (await cloud.ado("group"))["desired"] == 3


async def test_a_subnet_without_addresses_is_passed_over(cloud: Cloud) -> None:
    """The next zone has another subnet."""
    refusal = ["InsufficientFreeAddressesInSubnet", "There are not enough free addresses in subnet 'subnet-1'."]
    await cloud.ado("set", refusal=refusal, full_zones=["eu-west-1a"])
    async with opened(cloud.group()) as group:
        assert len(await grown(group, 1)) == 1


async def test_two_who_launch_at_once_both_get_theirs(cloud: Cloud) -> None:
    """A launch adds; whoever writes a capacity overwrites."""

    async def ask(group: AwsGroup) -> None:
        for number in range(3):
            assert await group.increase(1, intent=f"{id(group)}-{number}") == 1

    async with opened(cloud.group()) as one, opened(cloud.group()) as other:
        await both(ask, one, other)
    assert (await cloud.ado("group"))["desired"] == 6


async def test_throttled_requests_are_sent_again(cloud: Cloud) -> None:
    """Twice too many is no error; the SDK waits and tries again, up to the attempts that are allowed."""
    async with opened(cloud.group(attempts=3)) as group:
        fault = {"operation": "DescribeAutoScalingGroups", "times": 2, "status": 400, "code": "Throttling"}
        await cloud.ado("set", faults=[fault])
        assert (await group.update()).instances == {}
        await cloud.ado("set", faults=[{**fault, "times": 3}])
        with pytest.raises(RateLimited):
            await group.update()


# --- shrinking -------------------------------------------------------------------------------------------


async def test_nothing_is_removed_below_the_minimum(cloud: Cloud) -> None:
    """Where others want one instance to stay, one stays; which one is not accepted is told."""
    async with opened(cloud.group()) as group:
        instances = await grown(group, 3)
        await cloud.ado("group", min_size=1)
        accepted = await group.decrease(instances)
        assert len(accepted) == 2
        with pytest.raises(ProviderError, match="group's min size"):
            await group.decrease([*{*instances} - {*accepted}])
    assert (await cloud.ado("group"))["desired"] == 1


async def test_what_the_group_has_too_many_of_is_removed_all_the_same(cloud: Cloud) -> None:
    """Somebody has lowered the capacity, and protected instances stayed: there is nothing left to lower by them."""
    async with opened(cloud.group()) as group:
        instances = await grown(group, 3)
        await cloud.ado("group", desired_capacity=1)
        assert list(await group.decrease(instances)) == instances
        assert not (await seen(group, lambda shown: not shown)).instances
    assert await cloud.ado("group") == {"desired": 0, "there": 0}


async def test_one_that_is_gone_between_the_look_and_the_request_is_gone_as_asked(cloud: Cloud) -> None:
    """Auto Scaling refuses the batch because of it; the others go, and it is accepted."""
    async with opened(cloud.group()) as group:
        instances = await grown(group, 2)
        message = f"Instance Id not found - No managed instance found for instance ID: {instances[0]}"
        fault = {"operation": "TerminateInstanceInAutoScalingGroup", "status": 400, "code": "ValidationError"}
        await cloud.ado("set", faults=[{**fault, "times": 2, "message": message}])
        assert list(await group.decrease(instances)) == instances
    assert (await cloud.ado("group"))["there"] == 1


async def test_many_are_removed_in_batches(cloud: Cloud) -> None:
    """120 instances are two requests to end and one to describe the group."""
    new_cloud(cloud.port, group={"max_size": 200})
    async with opened(cloud.group(timeout=20.0)) as group:
        await cloud.ado("launch", count=120)
        instances = list((await group.update()).instances)
        before = cloud.calls()
        assert list(await group.decrease(instances)) == instances
    sent = {name: number - before.get(name, 0) for name, number in cloud.calls().items()}
    terminate, describe = "TerminateInstanceInAutoScalingGroup", "DescribeAutoScalingGroups"
    assert (sent[f"autoscaling:{terminate}"], sent[f"autoscaling:{describe}"]) == (2, 1)


# --- what others do --------------------------------------------------------------------------------------


async def test_an_instance_that_somebody_terminates_is_gone_at_once(cloud: Cloud) -> None:
    """EC2 knows before Auto Scaling does; what comes in its place is another instance."""
    async with opened(cloud.group()) as group:
        (victim,) = await grown(group, 1)
        await cloud.ado("set", replace_delay=3600.0)
        await cloud.ado("kill", instance=victim)
        assert (await group.update()).instances[victim].state is State.DELETED
    new_cloud(cloud.port)
    async with opened(cloud.group()) as group:
        (victim,) = await grown(group, 1)
        await cloud.ado("kill", instance=victim)
        await seen(group, lambda shown: victim not in shown and len(running(shown)) == 1)


async def test_a_zone_that_is_rebalanced_ends_an_instance_with_notice(cloud: Cloud) -> None:
    """Its work goes on until it is gone, its replacement is somebody else's, and the notice says how long it has."""
    new_cloud(cloud.port, terminate_delay=3600.0)
    async with opened(cloud.group()) as group:
        (instance,) = await grown(group, 1)
        await cloud.ado("rebalance", instance=instance, zone="eu-west-1b")
        begun = LoopClock().now()
        async with aclosing(heard(group)) as notices:
            notice = await anext(notices)
        assert notice.instance == instance
        assert notice.deadline > begun
        view = (await group.update()).instances
        assert view[instance].state is State.DELETING
        assert {each.offering for each in view.values()} == {"eu-west-1a/m5.large", "eu-west-1b/m5.large"}


async def test_each_end_is_told_once_and_when_it_comes(cloud: Cloud) -> None:
    """As long as the slowest hook may take; where the hooks are over, at once. Whose wish it was, the manager knows."""
    new_cloud(cloud.port, terminate_delay=3600.0)
    await cloud.ado("hook", seconds=600)
    clock = Clock()
    async with opened(cloud.group(), clock=clock) as group, aclosing(heard(group)) as notices:
        waiting, over, late = await grown(group, 3)
        await cloud.ado("state", instance=waiting, written="Terminating:Wait/running")
        await cloud.ado("state", instance=over, written="Terminating:Proceed/running")
        begun = clock.now()
        first = [await anext(notices), await anext(notices)]
        assert {notice.instance: notice.deadline - begun for notice in first} == {waiting: 600.0, over: 30.0}
        await cloud.ado("state", instance=late, written="Terminating/running")
        assert (await anext(notices)).instance == late


async def test_a_state_that_nobody_knows_is_a_problem_that_stays_the_same(cloud: Cloud) -> None:
    """It is reported once, with the words of both services."""
    async with opened(cloud.group()) as group:
        (instance,) = await grown(group, 1)
        await cloud.ado("state", instance=instance, written="Daydreaming/running")
        (first,) = (await group.update()).problems
        (later,) = (await group.update()).problems
        assert "Daydreaming" in first.message
        assert first == later


async def test_what_auto_scaling_takes_for_ill_is_not_healthy(cloud: Cloud) -> None:
    """Its own checks count, too; a dozen who ask at once cost two looks, for the second begins after all of them."""
    async with opened(cloud.group()) as group:
        (instance,) = await grown(group, 1)
        before = cloud.calls()["autoscaling:DescribeAutoScalingGroups"]
        async with anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(group.heartbeat, instance)
        assert cloud.calls()["autoscaling:DescribeAutoScalingGroups"] - before <= 2
        await cloud.ado("health", instance=instance, status="Unhealthy")
        with pytest.raises(ProviderError, match="unhealthy"):
            await group.heartbeat(instance)


# --- suspending ------------------------------------------------------------------------------------------


async def test_an_instance_sleeps_and_wakes(cloud: Cloud) -> None:
    """Out of service before it stops, running before it returns; meanwhile it is not the group's, but takes room."""
    new_cloud(cloud.port, group={"max_size": 2})
    async with opened(cloud.group()) as group:
        (instance,) = await grown(group, 1)
        assert list(await group.suspend([instance])) == [instance]
        await seen(group, is_in(instance, State.SUSPENDED))
        assert (await cloud.ado("group"))["desired"] == 0
        assert list(await group.suspend([instance])) == [instance], "it is suspended already"
        assert await group.increase(2, intent="fits once") == 1
        assert list(await group.resume([instance])) == [instance]
        states = set()

        def wakes(shown: Mapping[str, Observed]) -> bool:
            states.add(shown[instance].state)
            return shown[instance].state is State.RUNNING

        await seen(group, wakes)
        assert states == {State.RESUMING, State.RUNNING}
        assert (await cloud.ado("group"))["desired"] == 2


async def test_another_manager_goes_on_where_one_was_killed(cloud: Cloud) -> None:
    """Asked again, whoever comes next completes the half of it that is missing."""
    async with opened(cloud.group()) as first:
        (instance,) = await grown(first, 1)
        await first.suspend([instance])
    async with opened(cloud.group()) as second:
        assert (await second.update()).instances[instance].state is State.SUSPENDING
        assert list(await second.suspend([instance])) == [instance]
        await seen(second, is_in(instance, State.SUSPENDED))


async def test_what_sleeps_can_be_removed(cloud: Cloud) -> None:
    """The desired capacity does not count it, so it is not lowered."""
    async with opened(cloud.group()) as group:
        sleeper, other = await grown(group, 2)
        await group.suspend([sleeper])
        await seen(group, is_in(sleeper, State.SUSPENDED))
        await group.decrease([sleeper])
        assert list((await seen(group, lambda shown: sleeper not in shown)).instances) == [other]
    assert await cloud.ado("group") == {"desired": 1, "there": 1}


async def test_nothing_sleeps_below_the_minimum(cloud: Cloud) -> None:
    """AWS refuses, and the instance goes on running."""
    new_cloud(cloud.port, group={"min_size": 1, "desired_capacity": 1})
    async with opened(cloud.group()) as group:
        (instance,) = (await seen(group, lambda shown: len(running(shown)) == 1)).instances
        with pytest.raises(ProviderError, match="min size"):
            await group.suspend([instance])
        assert (await group.update()).instances[instance].state is State.RUNNING


async def test_as_many_sleep_as_the_minimum_lets(cloud: Cloud) -> None:
    """A batch that is refused because of one does not keep the others awake."""
    new_cloud(cloud.port, group={"min_size": 1, "desired_capacity": 1})
    async with opened(cloud.group()) as group:
        await grown(group, 2)
        instances = running((await group.update()).instances)
        assert len(await group.suspend(instances)) == 2


async def test_what_there_is_no_room_for_sleeps_on(cloud: Cloud) -> None:
    """A zone may have no capacity left when an instance is to start again."""
    async with opened(cloud.group()) as group:
        (instance,) = await grown(group, 1)
        await group.suspend([instance])
        await seen(group, is_in(instance, State.SUSPENDED))
        await cloud.ado("set", refusal=STOCK_OUT)
        with pytest.raises(CapacityUnavailable):
            await group.resume([instance])
        assert (await group.update()).instances[instance].state is State.SUSPENDED


async def test_a_spot_instance_does_not_sleep(cloud: Cloud) -> None:
    """A group's spot instances cannot be stopped: half-way, one would be out of service for ever."""
    await cloud.ado("set", spot=True)
    async with opened(cloud.group()) as group:
        (instance,) = await grown(group, 1)
        assert list(await group.suspend([instance])) == []
        observed = (await group.update()).instances[instance]
    assert (observed.state, observed.offering) == (State.RUNNING, "eu-west-1a/m5.large/spot")


async def test_only_what_lives_sleeps(cloud: Cloud) -> None:
    """What is gone or leaving is not accepted."""
    new_cloud(cloud.port, terminate_delay=3600.0)
    async with opened(cloud.group()) as group:
        (instance,) = await grown(group, 1)
        await group.decrease([instance])
        assert list(await group.suspend([instance, "i-00000000000000000"])) == []


async def both(call: Callable[[AwsGroup], Coroutine[Any, Any, None]], one: AwsGroup, other: AwsGroup) -> None:
    """Call it for both at once."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, one)
        tasks.start_soon(call, other)


# --- the owner's mark ------------------------------------------------------------------------------------


async def test_a_second_manager_is_refused_and_told_whose_it_is(cloud: Cloud) -> None:
    """Until the mark expires, or is taken away; renewing it is no offence."""
    clock = Clock()
    async with opened(cloud.group(), "a", clock=clock) as a, opened(cloud.group(), "b", clock=clock) as b:
        await a.mark_owner(clock.now() + 60)
        with pytest.raises(GroupRefused, match=r"managed by a; .*1970-01-12T13:47:40"):
            await b.mark_owner(clock.now() + 60)
        await a.mark_owner(clock.now() + 120)
        await a.mark_owner(None)
        await a.mark_owner(None)
        await b.mark_owner(clock.now() + 60)
        with pytest.raises(GroupRefused, match="managed by b"):
            await a.mark_owner(clock.now() + 60)


async def test_a_mark_that_has_expired_is_cleared_away(cloud: Cloud) -> None:
    """Managers that were killed leave theirs, and a group has room for fifty tags."""
    clock = Clock()
    async with opened(cloud.group(), "a", clock=clock) as a, opened(cloud.group(), "b", clock=clock) as b:
        await a.mark_owner(clock.now() + 60)
        clock.at += 61
        await b.mark_owner(clock.now() + 60)
        clock.at -= 61
        await a.mark_owner(None)
        clock.at += 30
        with pytest.raises(GroupRefused, match="managed by b"):
            await a.mark_owner(clock.now() + 1)


async def test_a_mark_that_cannot_be_read_keeps_nobody_out_and_proves_nobodys_death(cloud: Cloud) -> None:
    """A manager may take the group; who cleans up behind dead ones is not shown one that has expired."""
    clock = Clock()
    tag = {"ResourceId": "fleet", "ResourceType": "auto-scaling-group", "PropagateAtLaunch": False}
    tags = [{**tag, "Key": "fleeting:owner:a", "Value": "tomorrow"}, {**tag, "Key": "team", "Value": "ours"}]
    other_client(cloud.port, "autoscaling").create_or_update_tags(Tags=tags)
    async with opened(cloud.group(), "b", clock=clock) as b:
        assert await b.read_marks() == [Mark(owner="a", until=inf)]
        await b.mark_owner(clock.now() + 60)
        assert await b.read_marks() == [Mark(owner="b", until=clock.now() + 60)]


async def test_of_two_who_mark_at_once_at_most_one_gets_it(cloud: Cloud) -> None:
    """Each writes and then looks, so that whoever is later sees the other."""
    clock = Clock()
    marked = []

    async def mark(group: AwsGroup) -> None:
        with suppress(GroupRefused):
            await group.mark_owner(clock.now() + 60)
            marked.append(group)

    async with opened(cloud.group(), "a", clock=clock) as a, opened(cloud.group(), "b", clock=clock) as b:
        await both(mark, a, b)
    assert len(marked) <= 1


async def test_what_a_dead_manager_has_left_is_removed_and_a_living_ones_is_not(cloud: Cloud) -> None:
    """By the mark: while it is renewed nothing goes, and an hour after it has expired everything does."""
    clock = Clock()
    async with opened(cloud.group(), "dead", clock=clock) as group:
        await group.mark_owner(clock.now() + 300)
        there = await grown(group, 2)
        assert await reap(cloud.group, clock) == []
        clock.at += 150
        await group.mark_owner(clock.now() + 300)
        clock.at += 300 + HOUR - 1
        assert await reap(cloud.group, clock) == []
        clock.at += 1
        assert removed(await reap(cloud.group, clock)) == set(there)
        await seen(group, lambda shown: not running(shown))
        (mark,) = await group.read_marks()
        assert mark.owner.startswith("reap-after-dead-by-")
        assert mark.until == clock.now() - HOUR


async def test_who_only_looks_marks_nothing(cloud: Cloud) -> None:
    """Nor suspends anything, nor gives instances keys."""
    async with opened(cloud.group()) as group:
        (instance,) = await grown(group, 1)
        async with opened(cloud.group(), observe_only=True) as observer:
            before = cloud.writes()
            for change in (observer.mark_owner(1.0), observer.suspend([instance]), observer.withdraw(1)):
                with pytest.raises(Unsupported):
                    await change
            assert (await observer.connect_info(instance)).key is None
            assert cloud.writes() == before


# --- connecting ------------------------------------------------------------------------------------------

HOST_KEY = generate_key().public
CONSOLE = f"-----BEGIN SSH HOST KEY KEYS-----\n{HOST_KEY} root@ip\n-----END SSH HOST KEY KEYS-----\n"


async def test_an_instance_takes_a_key_for_a_minute(cloud: Cloud, tmp_path: Path) -> None:
    """Each time another key, made for this, with when it ends; the host is known from its console."""
    await cloud.ado("set", keys=str(tmp_path / "keys"), console=CONSOLE)
    clock = Clock()
    async with opened(cloud.group(), clock=clock) as group:
        (instance,) = await grown(group, 1)
        info = await group.connect_info(instance)
        again = await group.connect_info(instance)
    assert (info.user, info.os, info.arch, info.protocol) == ("ec2-user", "linux", "amd64", "ssh")
    assert info.internal_addr is not None
    assert (info.host_key, info.pin_host_key) == (HOST_KEY, True)
    assert info.expires_at == clock.now() + 50
    assert info.key is not None
    assert info.key != again.key
    assert info.key not in repr(info)
    assert len((tmp_path / "keys").read_text().splitlines()) == 2


async def test_the_users_own_key_is_given_if_there_is_one(cloud: Cloud, tmp_path: Path) -> None:
    """As GitLab's plugin does it: ``key_path`` is made known to the instance, whose image need not have it."""
    pair = generate_key()
    (tmp_path / "key").write_text(pair.private)
    await cloud.ado("set", keys=str(tmp_path / "keys"))
    connector = ConnectorConfig(key_path=str(tmp_path / "key"), username="admin")
    async with opened(cloud.group(), connector=connector) as group:
        (instance,) = await grown(group, 1)
        info = await group.connect_info(instance)
    assert (info.user, info.key) == ("admin", pair.private)
    assert (tmp_path / "keys").read_text().split()[:2] == pair.public.split()[:2]


@pytest.mark.parametrize("connector", [ConnectorConfig(use_static_credentials=True), ConnectorConfig(password="x")])
async def test_static_credentials_need_no_key(cloud: Cloud, connector: ConnectorConfig) -> None:
    """What the image knows already is used, and nothing is sent; the host key is not there yet."""
    before = cloud.writes()
    async with opened(cloud.group(), connector=connector) as group:
        (instance,) = await grown(group, 1)
        info = await group.connect_info(instance)
    assert (info.key, info.expires_at, info.host_key) == (None, None, None)
    assert cloud.writes() == before + 1


async def test_a_console_that_may_not_be_read_is_done_without(cloud: Cloud) -> None:
    """Then the host's key is pinned when it is first seen."""
    await cloud.ado("set", console=CONSOLE, denied=["ec2:GetConsoleOutput"])
    async with opened(cloud.group()) as group:
        (instance,) = await grown(group, 1)
        assert (await group.connect_info(instance)).host_key is None


async def test_an_older_type_has_no_current_console(cloud: Cloud) -> None:
    """What was written some minutes ago is asked for then."""
    fault = {"operation": "GetConsoleOutput", "times": 1, "status": 400, "code": "UnsupportedOperation"}
    await cloud.ado("set", console=CONSOLE, faults=[fault])
    async with opened(cloud.group()) as group:
        (instance,) = await grown(group, 1)
        assert (await group.connect_info(instance)).host_key == HOST_KEY


@pytest.mark.parametrize(("name", "content"), [("missing", None), ("binary", b"\x30\x82\xff"), ("no key", b"hello")])
async def test_a_key_that_cannot_be_read_is_told(
    cloud: Cloud, tmp_path: Path, name: str, content: bytes | None
) -> None:
    """It is a mistake in the settings, not in the plugin, and its text is not repeated."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    async with opened(cloud.group(), connector=ConnectorConfig(key_path=str(tmp_path / name))) as group:
        (instance,) = await grown(group, 1)
        with pytest.raises(LoginRejected) as failure:
            await group.connect_info(instance)
    assert "hello" not in str(failure.value)


def windows_key(directory: Path) -> tuple[Path, str]:
    """A key pair's private half in a file, and a password encrypted for it."""
    key = rsa.generate_private_key(65537, 2048)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    (directory / "pair.pem").write_bytes(key.private_bytes(*form))
    data = base64.b64encode(key.public_key().encrypt(b"pa$$word", padding.PKCS1v15())).decode()
    return directory / "pair.pem", data


async def test_windows_tells_its_password_once_it_has_one(cloud: Cloud, tmp_path: Path) -> None:
    """It is decrypted with the key pair, and shown to nobody."""
    path, data = windows_key(tmp_path)
    await cloud.ado("set", platform="windows")
    async with opened(cloud.group(), connector=ConnectorConfig(key_path=str(path))) as group:
        (instance,) = await grown(group, 1)
        with pytest.raises(ProviderError, match="yet"):
            await group.connect_info(instance)
        await cloud.ado("set", password=data)
        info = await group.connect_info(instance)
        assert info.password == "pa$$word"
        assert "pa$$word" not in repr(group)
    assert (info.os, info.protocol, info.user, info.password) == (
        "windows",
        "winrm",
        "Administrator",
        "pa$$word",
    )


async def test_a_password_without_its_key_is_of_no_use(cloud: Cloud, tmp_path: Path) -> None:
    """Both that the key is missing and that it is the wrong one are told, with what to set."""
    _, data = windows_key(tmp_path)
    wrong = tmp_path / "wrong.pem"
    wrong.write_text(generate_key().private)
    await cloud.ado("set", platform="windows", password=data)
    for connector, word in ((ConnectorConfig(), "set key_path"), (ConnectorConfig(key_path=str(wrong)), "key pair")):
        async with opened(cloud.group(), connector=connector) as group:
            instance = next(iter((await group.update()).instances), None) or (await grown(group, 1))[0]
            with pytest.raises(LoginRejected, match=word):
                await group.connect_info(instance)


# --- being a plugin --------------------------------------------------------------------------------------


def test_importing_it_imports_no_sdk() -> None:
    """Whoever has it installed beside other plugins pays for it only when a group of it is opened."""
    program = "import sys, fleeting; fleeting.load('aws', {'name': 'x'}); print({'boto3', 'botocore'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("name", ["aws", "aws:latest", "fleeting-plugin-aws"])
def test_gitlabs_names_and_keys_are_understood(name: str) -> None:
    """An older key gets a note."""
    notes: list[str] = []
    table = {"name": "fleet", "credentials_profile": "ci", "config_file": "/c", "credentials_file": "/d"}
    group = load(name, table, notes=notes)
    assert isinstance(group, AwsGroup)
    assert group._config == AwsConfig(name="fleet", profile="ci", config_file="/c", credentials_file="/d")
    assert notes == ["plugin_config.credentials_profile is an older name; use profile"]


def test_a_gitlab_file_loads_as_it_is(tmp_path: Path) -> None:
    """As in GitLab's documentation of the plugin."""
    (tmp_path / "config.toml").write_text("""
[[runners]]
executor = "docker-autoscaler"
[runners.autoscaler]
plugin = "fleeting-plugin-aws"
max_instances = 20
[runners.autoscaler.plugin_config]
name = "my-asg"
profile = "default"
config_file = "/home/user/.aws/config"
credentials_file = "/home/user/.aws/credentials"
[runners.autoscaler.connector_config]
username = "ubuntu"
""")
    assert isinstance(load_runner(tmp_path / "config.toml").groups()[0], AwsGroup)
