"""Which idle instances are to spare: the quick choice, against the slow and obvious one."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from taskscaler.core._choices import _going


@frozen
class Idle:
    """What of a host the choice is made by."""

    name: int
    usable: int


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 4)), unique_by=lambda each: each[0], max_size=12),
    st.integers(0, 12),
)
def test_the_longest_idle_go_that_leave_enough(hosts: list[tuple[int, int]], spare: int) -> None:
    """One that is not to be spared keeps no other from going that has fewer usable slots."""
    slow, left = [], spare
    for due, usable in sorted(hosts):
        if usable <= left:
            left -= usable
            slow.append(due)
    streams: Any = [
        iter([(float(due), Idle(due, usable)) for due, usable in sorted(hosts) if usable == amount])
        for amount in range(1, 5)
    ]
    chosen: Any = _going(streams, spare, lambda _: 0.0, 0.0)
    assert [host.name for _, host in chosen] == slow


Pools = Sequence[Sequence[tuple[float, Idle]]]
"""Hosts, and when each has been idle for long enough, in that order; those of a pool have as many usable slots."""


def decided(pools: Pools, spare: int, may_go: Callable[[int], float], now: float) -> list[Idle]:
    """Which go now, as a decision has it: of what is due by now, the first pool's go first."""
    gone: list[Idle] = []
    hosts = [
        (max(due, now), pool, number, host)
        for pool, of_pool in enumerate(pools)
        for number, (due, host) in enumerate(of_pool)
    ]
    slots = 0
    for due, _, _, host in sorted(hosts, key=lambda each: each[:3]):
        if slots + host.usable <= spare:
            slots += host.usable
            if max(due, may_go(slots)) > now:
                break
            gone.append(host)
    return gone


@given(
    st.lists(st.tuples(st.integers(1, 4), st.lists(st.integers(0, 20), max_size=5)), min_size=1, max_size=3),
    st.lists(st.integers(0, 25), min_size=13, max_size=13),
    st.integers(0, 12),
)
def test_what_is_foreseen_to_go_is_what_decisions_have_go(
    hosts: list[tuple[int, list[int]]], waits: list[int], spare: int
) -> None:
    """Which goes first is settled when it goes: meanwhile, one of another pool may have been idle for long enough."""
    name = count()
    pools: Pools = [[(float(due), Idle(next(name), usable)) for due in sorted(dues)] for usable, dues in hosts]
    until = [float(each) for each in sorted(waits)]
    streams: Any = map(iter, pools)
    foreseen: Any = _going(streams, spare, until.__getitem__, 0.0)
    slow: list[tuple[float, int]] = []
    slots = 0
    for now in map(float, range(26)):
        gone = decided(pools, spare - slots, until[slots:].__getitem__, now)
        slow += [(now, host.name) for host in gone]
        slots += sum(host.usable for host in gone)
        pools = [[each for each in pool if each[1] not in gone] for pool in pools]
    assert [(at, host.name) for at, host in foreseen] == slow
