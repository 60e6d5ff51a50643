"""Seeds are drawn from a tree, and read from the list of those that failed once."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.seeds import (
    BEYOND,
    FIRST,
    NO_TREE,
    REGRESSIONS,
    parse_regressions,
    read_commit,
    read_tree,
    regressions,
    seeds_of_tree,
)


@given(st.text(max_size=40), st.integers(0, 50), st.integers(0, 50))
def test_the_seeds_of_a_tree(tree: str, few: int, more: int) -> None:
    """They are different ones, away from those that people count, and more of them begin with the fewer."""
    few, more = sorted((few, more))
    seeds = seeds_of_tree(tree, more)
    assert len(set(seeds)) == len(seeds) == more
    assert all(FIRST <= seed < BEYOND for seed in seeds)
    assert seeds[:few] == seeds_of_tree(tree, few)


def test_seeds_are_the_same_everywhere() -> None:
    """A story that failed in one place is found again from the commit in another; other trees have other stories."""
    assert seeds_of_tree("4b825dc642cb6eb9a060e54bf8d69288fbee4904", 2) == [1763505069, 367874469]
    assert not set(seeds_of_tree("a", 100)) & set(seeds_of_tree("b", 100))


def test_the_tree_is_that_of_the_last_commit(tmp_path: Path) -> None:
    """And has one fixed name where there is no repository, or nothing in it."""
    assert (read_tree(tmp_path), read_commit(tmp_path)) == (NO_TREE, "")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert read_tree(tmp_path) == NO_TREE
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "empty"], check=True)
    assert read_tree(tmp_path) == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    assert read_commit(tmp_path) not in {"", read_tree(tmp_path)}


def test_the_list_can_be_read() -> None:
    """Each entry says what was wrong, and where."""
    entries = parse_regressions(REGRESSIONS.read_text())
    assert regressions() == [entry.seed for entry in entries]
    assert all(entry.why for entry in entries)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("12 abcdef0", "line 1 is '12 abcdef0', not SEED COMMIT WHY; correct it"),
        ("# old\n\ntwelve abcdef0 why", "line 3 is 'twelve abcdef0 why', not SEED COMMIT WHY; correct it"),
        ("1 abcdef0 a\n1 abcdef0 b", "line 2 lists seed 1 again; say all about it on one line"),
    ],
)
def test_a_list_that_cannot_be_read(text: str, said: str) -> None:
    """The line is named, so that no seed is passed over in silence."""
    with pytest.raises(ValueError, match="line") as caught:
        parse_regressions(text)
    assert str(caught.value) == said
