"""Named points in time, against a plain dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from fleeting.core._timers import Timers

KEYS = st.integers(0, 5)
TIMES = st.integers(0, 20).map(float)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, TIMES),
        st.tuples(st.just("cancel"), KEYS, TIMES),
        st.tuples(st.just("due"), KEYS, TIMES),
    ),
    max_size=60,
)


@given(CALLS)
def test_timers_are_a_dictionary_of_times(calls: list[tuple[str, int, float]]) -> None:
    """At any moment the earliest time is known, and `due` takes out all that are due, earliest first."""
    timers: Timers[int] = Timers()
    model: dict[int, float] = {}
    for call, key, at in calls:
        match call:
            case "set":
                timers.set(key, at)
                model[key] = at
            case "cancel":
                timers.cancel(key)
                model.pop(key, None)
            case _:
                due = list(timers.due(at))
                assert sorted(due) == sorted(each for each, when in model.items() if when <= at)
                assert [model[each] for each in due] == sorted(model[each] for each in due)
                model = {each: when for each, when in model.items() if when > at}
        assert timers.next == min(model.values(), default=None)
        assert all((each in timers) == (each in model) for each in range(6))


def test_moving_a_time_often_leaves_nothing_behind() -> None:
    """A heartbeat moved a thousand times keeps no thousand entries."""
    timers: Timers[str] = Timers()
    timers.set("first", 0.0)
    for at in range(1000):
        timers.set("heartbeat", float(at))
    assert len(timers.heap) <= 65
    assert list(timers.due(1000.0)) == ["first", "heartbeat"]
    assert timers.next is None


def test_setting_the_same_time_again_and_again_leaves_nothing_behind() -> None:
    """Nor does a heartbeat that is cancelled and set to the same time a thousand times."""
    timers: Timers[str] = Timers()
    for _ in range(1000):
        timers.set("heartbeat", 1.0)
        timers.cancel("heartbeat")
    timers.set("heartbeat", 1.0)
    assert len(timers.heap) <= 65
    assert list(timers.due(1.0)) == ["heartbeat"]
    assert timers.next is None
