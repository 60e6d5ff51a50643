"""The README's policy permits what the group asks AWS for, and nothing else."""

from pathlib import Path

import anyio
import pytest

from fleeting import ConnectorConfig, State
from tests.fleeting_aws.clouds import Cloud
from tests.fleeting_aws.policy import README, in_words, permitted, policy_for
from tests.fleeting_aws.test_group import Clock, grown, is_in, opened, seen, windows_key

pytestmark = pytest.mark.anyio


async def do_everything(cloud: Cloud, directory: Path) -> None:
    """Let the group do all that it can."""
    clock = Clock()
    async with opened(cloud.group(), clock=clock) as group:
        sleeper, other = await grown(group, 2)
        await group.suspend([sleeper])
        await seen(group, is_in(sleeper, State.SUSPENDED))
        await group.resume([sleeper])
        await seen(group, is_in(sleeper, State.RUNNING))
        await group.connect_info(other)
        await group.mark_owner(clock.now() + 60)
        await group.mark_owner(None)
        await group.decrease([other])
        await cloud.ado("set", offers_launch=False, refusal=["InsufficientInstanceCapacity", "no capacity"])
        await group.increase(1, intent="x")
        await group.update()
        await group.withdraw(1)
    path, data = windows_key(directory)
    await cloud.ado("set", platform="windows", password=data, refusal=None)
    async with opened(cloud.group(), connector=ConnectorConfig(key_path=str(path))) as group:
        (instance,) = await grown(group, 1)
        await group.connect_info(instance)


async def test_the_readme_has_the_smallest_policy(cloud: Cloud, tmp_path: Path) -> None:
    """Neither more nor less than what was recorded while the group did all that it can."""
    before = cloud.calls()
    await do_everything(cloud, tmp_path)
    await anyio.lowlevel.checkpoint()
    asked = {name for name, number in cloud.calls().items() if number > before.get(name, 0)}
    assert in_words(policy_for(asked)) in README.read_text()


def test_a_call_that_nobody_permits_would_be_seen() -> None:
    """The comparison is by IAM's own names, so it can fail; see `moto_port` for that with all other tests' calls."""
    assert permitted() >= {"autoscaling:LaunchInstances", "ec2:DescribeInstances"}
    assert "ec2:RunInstances" not in permitted()
