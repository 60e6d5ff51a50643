"""Which instances of a view have to be looked at."""

from typing import Any

import pytest
from attrs import evolve, fields_dict
from hypothesis import given
from hypothesis import strategies as st

from fleeting import Observed, State
from fleeting.core._last_view import LastView

ids = st.sampled_from(["a", "b", "c", "d"])
views = st.dictionaries(ids, st.sampled_from([State.CREATING, State.RUNNING]).map(lambda state: Observed(state=state)))


@given(st.lists(st.tuples(views, st.sets(ids), st.sets(ids), st.sets(ids), st.booleans())))
def test_all_that_differs_or_is_waited_for_is_looked_at_and_nothing_else(
    story: list[tuple[dict[str, Observed], set[str], set[str], set[str], bool]],
) -> None:
    """What the last view showed otherwise or not at all, what was asked for, what was forgotten and what is unknown.

    It is the same whether or not somebody says what has changed.
    """
    last_view, before, again = LastView(), dict[str, Observed](), set[str]()
    shown: dict[str, Observed] = {}
    for view, open_, forgotten, unknown, says_what_changed in story:
        changed = {each for each in shown.keys() | view.keys() if shown.get(each) != view.get(each)}
        differing, missing = last_view.compare(view, changed if says_what_changed else None)
        shown = view
        assert set(differing) == {each for each in view if view[each] != before.get(each) or each in again}
        assert set(missing) >= before.keys() - view.keys()
        assert set(missing) <= (before.keys() | again) - view.keys()
        assert len(set(differing)) == len(differing)
        last_view.unknown(sorted(unknown))
        for each in sorted(open_):
            last_view.look_at(each)
        for each in sorted(forgotten):
            last_view.forget(each)
        before = {each: observed for each, observed in view.items() if each not in forgotten}
        again = (open_ - forgotten) | unknown


def test_a_view_that_its_plugin_changes_afterwards_is_remembered_as_it_was() -> None:
    """A plugin may give the same mapping each time."""
    last_view, view = LastView(), {"a": Observed(state=State.CREATING)}
    last_view.compare(view)
    view["a"] = Observed(state=State.RUNNING)
    assert last_view.compare(view) == (["a"], [])


LOOKS = Observed(state=State.RUNNING, created_at=1.0, intent="one", offering="one")
OTHERS = Observed(state=State.FAILED, created_at=2.0, intent="another", offering="another")


@pytest.mark.parametrize("field", fields_dict(Observed))
def test_whatever_a_view_shows_otherwise_is_seen(field: str) -> None:
    """Also where it shows the same instances in the same order, of which each field is compared."""
    last_view = LastView()
    last_view.compare({"a": LOOKS, "b": LOOKS})
    differs: Any = {field: getattr(OTHERS, field)}
    assert last_view.compare({"a": evolve(LOOKS), "b": evolve(LOOKS, **differs)}) == (["b"], [])
