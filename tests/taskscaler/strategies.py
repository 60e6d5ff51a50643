"""Pools, policies and counters to choose from, shared by the property tests of the scaler's core."""

from hypothesis import strategies as st

from fleeting import Preexisting
from fleeting.core import Limits
from taskscaler._types import Policy, PoolSettings
from taskscaler.core._decide import Supply
from tests.strategies import NO_THROTTLE

policies = st.builds(
    lambda idles, **settings: Policy(idle_time=idles[0], mode=idles[1], **settings),
    st.sampled_from([(0.0, "static"), (5.0, "static"), (30.0, "static"), (5.0, "adaptive"), (30.0, "adaptive")]),
    idle_count=st.integers(0, 4),
    scale_factor=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    scale_factor_limit=st.sampled_from([0, 2, 5]),
    preemptive_mode=st.sampled_from([None, True, False]),
)


@st.composite
def pool_settings(draw: st.DrawFn) -> list[PoolSettings]:
    """One to three pools, with intervals short enough for a test to live through all of them."""
    return [
        PoolSettings(
            name=name,
            capacity_per_instance=draw(st.integers(1, 4)),
            max_use_count=draw(st.integers(0, 3)),
            max_instances=draw(st.integers(0, 6)),
            preexisting=draw(st.sampled_from([Preexisting.REMOVE, Preexisting.ADOPT])),
            unhealthy_breaks_jobs=draw(st.booleans()),
            instance_cleanup_command=draw(st.sampled_from([None, "clean up"])),
            suspended_count=draw(st.sampled_from([0, 0, 1, 3])),
            suspended_time=draw(st.sampled_from([25.0, 1e5])),
            max_instance_age=draw(st.sampled_from([0.0, 0.0, 15.0])),
            scale_throttle=NO_THROTTLE,
            failure_threshold=2,
            heartbeat_interval=20.0,
            heartbeat_on_acquire=draw(st.booleans()),
            update_interval=30.0,
            update_interval_when_expecting=5.0,
            deletion_retry_interval=20.0,
            intent_timeout=60.0,
            instance_ready_timeout=60.0,
            backoff_cap=20.0,
        )
        for name in draw(st.sampled_from([["a"], ["a", "b"], ["a", "b", "c"]]))
    ]


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    """Any combination of ceiling, throttle and backoff."""
    tokens = draw(st.none() | st.integers(0, 10))
    return Limits(
        room=draw(st.none() | st.integers(0, 10)),
        tokens=tokens,
        tokens_at=None if tokens is None else 101.0,
        blocked_until=draw(st.none() | st.just(107.0)),
        blocked_why="no capacity",
    )


@st.composite
def supplies(draw: st.DrawFn) -> Supply:
    """Counters of one pool that could be: usable slots and those in use make up what is kept."""
    slots, kept = draw(st.integers(1, 4)), draw(st.integers(0, 6))
    usable = draw(st.integers(0, slots * kept))
    coming, held_back = draw(st.integers(0, 5)), draw(limits())
    return Supply(
        pool="pool",
        slots=slots,
        kept=kept,
        coming=coming,
        stranded=0 if held_back.blocked_until is None else draw(st.integers(0, coming)),
        usable=usable,
        in_use=slots * kept - usable,
        excess=draw(st.integers(0, 3)),
        limits=held_back,
    )
