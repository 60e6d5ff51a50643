"""Which idle instances are to spare: the quick choice, against the slow and obvious one."""

from typing import Any

from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from taskscaler.core._choices import _fitting


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
    chosen: Any = _fitting(streams, spare)
    assert [host.name for _, host in chosen] == slow
