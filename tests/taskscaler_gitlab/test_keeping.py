"""What is kept of logs and caches, and what goes: the limits hold, and nothing goes without need."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from taskscaler_gitlab._keeping import Kept, Limits, outdated

NOW = 1000.0


@st.composite
def anything(draw: st.DrawFn) -> Sequence[Kept]:
    """Things that are kept, each with a name of its own."""
    several = st.lists(st.tuples(st.floats(0, NOW), st.integers(0, 50), st.booleans()), max_size=12)
    return [
        Kept(name=str(number), used=used, size=size, in_use=in_use)
        for number, (used, size, in_use) in enumerate(draw(several))
    ]


LIMITS = st.builds(
    Limits, age=st.floats(1, 2 * NOW), size=st.integers(0, 200), most=st.none() | st.integers(0, 8)
)  # fmt: skip


@given(anything(), LIMITS)
def test_the_limits_hold_and_nothing_goes_without_need(kept: Sequence[Kept], limits: Limits) -> None:
    """What is in use stays; of the rest, what goes is too old, or was used before all that stays and does not fit."""
    chosen = outdated(kept, limits, NOW)
    by_name = {each.name: each for each in kept}
    gone = [by_name[name] for name in chosen]
    stays = [each for each in kept if each.name not in chosen]
    free = [each for each in stays if not each.in_use]
    assert len(set(chosen)) == len(chosen)
    assert not any(each.in_use for each in gone)
    assert all(NOW - each.used < limits.age for each in free)
    if free:
        assert sum(each.size for each in stays) <= limits.size
        assert limits.most is None or len(stays) <= limits.most
    for each in gone:
        if NOW - each.used < limits.age:
            assert all(other.used >= each.used for other in free)
            least = min(
                (other for other in gone if NOW - other.used < limits.age), key=lambda other: (-other.used, other.name)
            )
            fits = sum(other.size for other in stays) + least.size <= limits.size
            assert not (fits and (limits.most is None or len(stays) < limits.most))
    assert [each.used for each in gone] == sorted(each.used for each in gone), "the least recently used goes first"


def test_what_is_in_use_takes_the_place_of_others() -> None:
    """It is counted, though it is old."""
    kept = [
        Kept(name="a", used=0, size=80, in_use=True),
        Kept(name="b", used=9, size=30),
        Kept(name="c", used=8, size=1),
    ]
    assert outdated(kept, Limits(age=5, size=100), 10) == ["c", "b"]
    assert outdated(kept, Limits(age=5, size=110), 10) == ["c"]
    assert outdated(kept, Limits(age=5, size=111), 10) == []
