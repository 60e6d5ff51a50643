"""A sorted sequence with snapshots."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from fleeting.core._blocks import Blocks

keys = st.tuples(st.sampled_from([0.0, 1.0, 2.5]), st.integers(0, 30))


@given(st.lists(keys, max_size=80), st.integers(2, 5))
def test_it_is_sorted_and_its_snapshots_stay_as_they_were(toggled: list[tuple[float, int]], most: int) -> None:
    """As a dict that is sorted each time shows, with values added and removed anywhere."""
    blocks: Blocks[str] = Blocks(most)
    model: dict[tuple[float, int], str] = {}
    taken = []
    for key in toggled:
        if key in model:
            del model[key]
            blocks.remove(key)
        else:
            model[key] = str(key)
            blocks.add(key, str(key))
        taken.append((blocks.snapshot(), [model[each] for each in sorted(model)]))
        assert blocks.first == min(model, default=None)
        assert all(0 < len(block) <= most for block in blocks.snapshot())
    for snapshot, expected in taken:
        assert [*chain(*snapshot)] == expected
