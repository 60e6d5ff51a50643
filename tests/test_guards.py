"""No invariant, check or mutant is lost by the way."""

import pytest

from tests.guards import LIST, found, listed


def test_all_kinds_of_guards_are_listed() -> None:
    """Else what follows would compare nothing with nothing."""
    assert list(listed()) == list(found())
    assert all(listed().values())


@pytest.mark.parametrize("kind", listed())
def test_every_guard_is_still_there(kind: str) -> None:
    """One that is gone is put back, or taken from the list on purpose; a new one is added to it."""
    has, should = set(found()[kind]), set(listed()[kind])
    changes = [*(f"- {name}" for name in sorted(should - has)), *(f"+ {name}" for name in sorted(has - should))]
    assert not changes, "\n".join([f"[{kind}] in {LIST} is no longer right:", *changes])
