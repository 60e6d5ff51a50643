"""What the first minute of a batch would be: what the cores ask for, and how it is said."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import GroupInfo, ScaleThrottle
from taskscaler import Policy
from taskscaler._types import PoolSettings
from taskscaler.diagnose._first_minute import FirstMinute, first_minute

NOW = 1.7e9


def a_minute(jobs: int, *policies: Policy, info: GroupInfo | None = None, **settings: Any) -> FirstMinute:  # noqa: ANN401  (of a pool)
    """The first minute of a fleet of one pool."""
    infos = {} if info is None else {"default": info}
    return first_minute([PoolSettings(**settings)], policies, infos, jobs=jobs, now=NOW, price_per_hour=0.1)


def test_the_limit_that_holds_is_said_as_everywhere() -> None:
    """Here the decision is the core's own, with its words."""
    minute = a_minute(40, max_instances=4, capacity_per_instance=2)
    how_many, why, when, cost = minute.sentences()
    assert how_many == "4 instances are requested at once"
    assert why.endswith("needs 20 more, requests 4: max_instances")
    assert when.startswith("the first 8 jobs can begin as soon as these are ready")
    assert cost == "they cost 0.40 per hour"


def test_a_group_s_own_size_counts() -> None:
    """If the group has been asked."""
    info = GroupInfo(identity="x", max_size=2, max_size_is="the number of hosts")
    minute = a_minute(3, info=info, max_instances=9)
    assert (minute.at_once, minute.instances) == (2, 2)
    assert str(minute.decision).endswith("requests 2: the number of hosts")


def test_a_throttle_spreads_the_requests() -> None:
    """What comes later within the minute is told, and a policy's idle slots are counted in."""
    minute = a_minute(40, Policy(idle_count=3), capacity_per_instance=2, scale_throttle=ScaleThrottle(limit=1, burst=2))
    assert (minute.at_once, minute.instances) == (2, 22)
    assert next(iter(minute.sentences())) == "2 instances are requested at once, 20 more within the minute"


def test_pools_share_what_is_missing() -> None:
    """In order of preference, under the ceiling over all."""
    pools = [PoolSettings(name="spot", max_instances=2), PoolSettings(name="sure", capacity_per_instance=2)]
    minute = first_minute(pools, (), {}, jobs=9, now=NOW, max_instances=4)
    assert next(iter(minute.sentences())) == "4 instances are requested at once (2 of spot, 2 of sure)"
    assert minute.slots == 6


def test_nothing_may_be_asked_for() -> None:
    """Also that is said, with the reason."""
    (sentence,) = a_minute(3, info=GroupInfo(identity="x", max_size=0)).sentences()
    assert sentence.startswith("no instance is requested within a minute: ")
    assert a_minute(0).asked == []


@pytest.mark.parametrize("job", [1])
def test_one_is_one(job: int) -> None:
    """Numbers and verbs agree."""
    first, *_ = a_minute(job).sentences()
    assert first == "1 instance is requested at once"


@given(jobs=st.integers(0, 50), most=st.integers(0, 9), slots=st.integers(1, 4), idle=st.integers(0, 5))
def test_it_asks_for_what_is_needed_and_no_more_than_there_may_be(jobs: int, most: int, slots: int, idle: int) -> None:
    """Without a throttle to speak of, all of it in the first minute."""
    minute = a_minute(jobs, Policy(idle_count=idle), max_instances=most, capacity_per_instance=slots)
    needed = -(-(jobs + idle) // slots)
    assert minute.instances == (min(needed, most) if most else needed)
