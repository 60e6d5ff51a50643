"""Instances that are gone are remembered for an hour, and forgotten together."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fleeting import PlanConfig
from fleeting.core._context import REMEMBER_LOST, Context
from fleeting.core._departed import FORGET_EVERY, Departed
from fleeting.core._due import RETURNED
from fleeting.core._last_view import LastView
from fleeting.core._table import InstanceTable
from fleeting.core._timers import Timers
from fleeting.core._turn import Turn

EPOCH = 1_700_000_000.0


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0.0, 500.0)), min_size=1, max_size=40))
def test_each_is_remembered_for_an_hour_and_hardly_longer(gone: list[tuple[int, float]]) -> None:
    """Also one that comes back and goes again; and nobody looks for them more than once a minute."""
    context = Context(config=PlanConfig(), table=InstanceTable(LastView()), timers=Timers(), turn=Turn())
    departed, now, last, looks = Departed(context), EPOCH, dict[str, float](), list[float]()

    def wait_until(then: float) -> None:
        while (at := context.timers.next) is not None and at <= then:
            assert [*context.timers.due(at)] == [RETURNED]
            departed.forget(at)
            looks.append(at)
            assert {f"i-{number}" for number in range(6) if f"i-{number}" in departed} == {
                instance for instance, went_at in last.items() if went_at + REMEMBER_LOST > at
            }

    for number, after in gone:
        now += after
        wait_until(now)
        departed.add(f"i-{number}", "not needed", now)
        last[f"i-{number}"] = now
        how = departed.how(f"i-{number}")
        assert how is not None
        assert how.at == now
    wait_until(now + REMEMBER_LOST + FORGET_EVERY)
    assert not any(f"i-{number}" in departed for number in range(6))
    assert context.timers.next is None
    assert all(later - earlier >= FORGET_EVERY for earlier, later in pairwise(looks))
