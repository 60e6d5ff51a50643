"""References to variables are replaced as Go's `os.Expand` does it, which is what GitLab Runner has."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taskscaler_gitlab.runner._errors import JobInvalid
from taskscaler_gitlab.runner._expansion import MAX_EXPANDED, expand

KNOWN = {"key": "value", "b": "$key", "odd-name": "odd", "key:-x": "whole", "é": "accent"}
NOTHING = frozenset("*#@!?0123456789")
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"


def value(name: str) -> str:
    """What a name stands for, by GitLab Runner's rules."""
    return "$" if name == "$" else "" if name in NOTHING else KNOWN.get(name, "")


def by_letters(text: str) -> str:
    """The same by another way, letter by letter, as Go's function reads."""
    result, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            result += text[at]
            at += 1
            continue
        rest = text[at + 1 :]
        if rest[0] == "{":
            end = rest.find("}", 1)
            name, width = ("", 1) if end < 0 else ("", 2) if end == 1 else (rest[1:end], end + 1)
        elif rest[0] in "*#$@!?-0123456789":
            name, width = rest[0], 1
        else:
            width = next((place for place, letter in enumerate(rest) if letter not in LETTERS), len(rest))
            name = rest[:width]
        result += value(name) if name else "" if width else "$"
        at += 1 + width
    return result


@given(st.lists(st.sampled_from([*"$${}{}ab 1-?@é\n", "key", "b", "odd-name", ":-x", "${key}", "$b"])).map("".join))
@example("value_of_$key ${key}")
@example("${")
@example("${}x}")
@example("a${b")
@example("$")
def test_references_are_those_of_go(text: str) -> None:
    """As a plain reading of its rules has it, whatever the text."""
    assert expand(text, lambda name: KNOWN.get(name, "")) == by_letters(text)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$$", "$"),
        ("$$key", "$key"),
        ("$/dsa", "$/dsa"),
        ("aa$@bb", "aabb"),
        ("aa${@}bb", "aabb"),
        ("value_of_$undefined", "value_of_"),
        ("${key:-x}", "whole"),
        ("$b", "$key"),
        ("$1key", "key"),
        ("100%$", "100%$"),
    ],
)
def test_examples(text: str, expanded: str) -> None:
    """What jobs really have, with what GitLab Runner makes of it."""
    assert expand(text, lambda name: KNOWN.get(name, "")) == expanded


@pytest.mark.parametrize("text", ["$a" * 100, "${a}" * 100])
def test_few_letters_do_not_become_gigabytes(text: str) -> None:
    """A job whose values would fill the memory of the manager is refused."""
    with pytest.raises(JobInvalid, match="refer to long values less often"):
        expand(text, lambda _: "x" * (MAX_EXPANDED // 50))


def test_half_a_million_braces_that_nothing_closes() -> None:
    """They are read once, not again for each of them."""
    assert expand("${" * 500_000, lambda _: "") == ""
