"""Parts of what ran elsewhere as spans: whatever their clock and whoever wrote them down says."""

from collections.abc import Sequence
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskscaler._parts import MOST_PARTS, OFFSET, Part, moved_by, offset_of, spans_of
from taskscaler._span import Span, SpanContext

CONTEXT = SpanContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, is_sampled=True, state="vendor=1")


def whole(began: float, ended: float) -> Span:
    """What they are parts of."""
    return Span("run", CONTEXT, None, began, ended, {}, (), "")


def times(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """When they began and ended."""
    return [(each.began, each.ended) for each in spans]


def test_times_are_as_they_were_seen_where_the_clocks_agree() -> None:
    """To the last digit, and nothing says that they were moved."""
    parts = [Part("build", 10.123456, 19.5), Part("lint", 11.0, 12.000001, 0), Part("test", 19.5, 19.75)]
    spans = spans_of(parts, whole(10, 20))
    assert times(spans) == [(10.123456, 19.5), (11.0, 12.000001), (19.5, 19.75)]
    assert [each.parent for each in spans] == [CONTEXT, spans[0].context, CONTEXT]
    assert not any(OFFSET in each.attributes for each in spans)


@pytest.mark.parametrize(
    ("began", "ended", "offset"),
    [
        (10, 20, 0),
        (3, 9, 7),  # the other clock is behind
        (1014, 1024, -1004),  # ahead
        (15, 21, -1),  # by a little
        (9, 25, 1),  # it was set meanwhile: as it began, and what is too much is cut
        (-1e11, 20, 1e11 + 10),
    ],
)
def test_what_another_clock_saw_is_moved_as_little_as_will_do(began: float, ended: float, offset: float) -> None:
    """All of it alike, so that it still took as long; the outermost say by how much."""
    parts = [Part("build", began, ended), Part("lint", began + 1, began + 2, 0)]
    assert offset_of(parts, 10, 20) == pytest.approx(offset)
    build, lint = spans_of(parts, whole(10, 20))
    assert times([build])[0] == pytest.approx((max(10.0, began + offset), min(20.0, ended + offset)))
    assert times([lint])[0] == pytest.approx((build.began + 1, build.began + 2))
    assert (OFFSET in build.attributes, OFFSET in lint.attributes) == (offset != 0, False)
    assert moved_by([build]) == pytest.approx(offset)


def test_what_is_known_of_the_clock_is_used() -> None:
    """Of parts of a part, nothing is guessed anew."""
    assert times(spans_of([Part("lint", 3, 4)], whole(10, 20), 9.5)) == [(12.5, 13.5)]


@pytest.mark.parametrize("absurd", [nan, inf, -inf, 1e300, -1e300, None])
def test_a_time_that_is_none_is_that_of_the_whole(absurd: float | None) -> None:
    """It says nothing about the clock, either."""
    parts = [Part("build", 11, 12), Part("lint", absurd, absurd, 0), Part("test", absurd, 19), Part("last", 19, absurd)]
    assert times(spans_of(parts, whole(10, 20))) == [(11, 12), (11, 12), (10, 19), (19, 20)]


def test_there_are_not_more_than_so_many() -> None:
    """Others have to have room in the queue."""
    parts = [Part("a", 1, 9), *(Part(str(number), 2, 3, 0) for number in range(100_000))]
    assert len(spans_of(parts, whole(0, 10))) == MOST_PARTS


TIMES = st.none() | st.floats() | st.floats(0, 100)
PARTS = st.lists(st.builds(Part, st.text(max_size=3), TIMES, TIMES, st.integers(-3, 12)), max_size=12)


@given(PARTS, st.floats(0, 100), st.floats(0, 100))
def test_whatever_parts_there_are_they_are_one_tree(parts: list[Part], one: float, other: float) -> None:
    """Each with an id of its own, that it has each time, within its parent, which is there."""
    over = whole(min(one, other), max(one, other))
    spans = spans_of(parts, over)
    assert spans == spans_of(parts, over)
    known = {CONTEXT.span_id: over}
    for part, span in zip(parts, spans, strict=True):
        assert span.context.span_id not in known
        assert span.parent is not None
        parent = known[span.parent.span_id]
        assert parent.began <= span.began <= span.ended <= parent.ended
        assert (span.name, span.context.trace_id, span.context.state) == (part.name, CONTEXT.trace_id, "vendor=1")
        known[span.context.span_id] = span
    later = spans_of(parts, whole(over.began + 5, over.ended + 5))
    assert [each.context for each in later] == [each.context for each in spans], "ids depend on no clock"
