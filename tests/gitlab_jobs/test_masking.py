"""Nothing secret is shown, wherever pieces of output end."""

import random
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gitlab_jobs import Masker
from gitlab_jobs._masking import MASK, _Finder, _Places

FEW = st.text("ab", min_size=1, max_size=4)
PIECES = st.lists(st.text("ab ", max_size=6), max_size=8)


def shown(masker: Masker, pieces: list[bytes]) -> bytes:
    """All that comes out."""
    return b"".join([*map(masker.feed, pieces), masker.end()])


def hidden(text: str, values: list[str]) -> str:
    """The same by another way: every place of every value is hidden, those that overlap as one."""
    spans = sorted(
        (found.start(), found.start() + len(value))
        for value in set(values)
        for found in re.finditer(f"(?={value})", text)
    )
    result, at = "", 0
    for start, end in spans:
        if start >= at:
            result += text[at:start] + MASK.decode()
        at = max(at, end)
    return result + text[at:]


@given(values=st.lists(FEW, max_size=8), pieces=PIECES)
@example(values=["abab"], pieces=["ab", "ab", "ab", "a"])
@example(values=["aaa"], pieces=["a"] * 7)
@example(values=["b", "aba"], pieces=["a", "b", "a"])
@example(values=["b", "aba"], pieces=["ab", " "])
@example(values=["bbba", "bbb", "bbbbb", "bbbaa"], pieces=["bbbbabaab"])
def test_values_are_hidden_over_borders(values: list[str], pieces: list[str]) -> None:
    """As if everything had come at once, and as a plain search would do it."""
    assert shown(Masker(values), [each.encode() for each in pieces]).decode() == hidden("".join(pieces), values)


@given(values=st.lists(FEW, max_size=8), text=st.text("ab ", max_size=30))
def test_looking_up_each_place_finds_the_same(values: list[str], text: str) -> None:
    """Values that are many or much alike are hidden as if they were few."""
    phrases, data = [each.encode() for each in values], text.encode()
    spans = _Finder(phrases).find(data), _Places(phrases).find(data)
    first, second = ({place for start, end in each for place in range(start, end)} for each in spans)
    assert first == second


@pytest.mark.parametrize("piece", [1, 7, 4096, 1 << 20])
@pytest.mark.parametrize("length", [96, 97, 128, 5_000])
def test_long_values_are_hidden_as_one(length: int, piece: int) -> None:
    """And so are parts of them, for little of a log is held back for their end."""
    value = "".join(random.Random(length).choices("abcdefgh", k=length))
    log = f"x {value} y {value[:-1]} z".encode()
    seen = shown(Masker([value]), [log[at : at + piece] for at in range(0, len(log), piece)])
    assert seen.startswith(b"x [MASKED] y ")
    assert len(seen) <= 2 * (96 + 20)
    assert b"z" in Masker([value]).feed(b"z" * 1000)


@pytest.mark.parametrize(
    ("values", "log"),
    [
        (["a" * length for length in range(1, 200)], "a" * (1 << 16)),
        (["ab" * 50_000], "ab" * 100_000),
        (["a" * 95 + chr(65 + number) for number in range(26)], "a" * (1 << 14)),
        ([f"{'x' * (number % 90)}{number}" for number in range(20_000)], "x1" * (1 << 13)),
    ],
    ids=["nested", "long and periodic", "alike", "many"],
)
def test_hostile_values_take_no_more_than_a_moment(values: list[str], log: str) -> None:
    """Whatever a job masks, and whatever it prints, others are not kept waiting for it."""
    seen = shown(Masker(values), [log[at : at + (1 << 15)].encode() for at in range(0, len(log), 1 << 15)])
    assert len(seen) <= len(log) * len(MASK)


@given(
    text=st.lists(
        st.sampled_from(
            ["glpat-", "gl", "pat-", "x", " ", "?private_token=", "&RSS_Token=", "&", "=", "?", "a b", "mine-"]
        )
    ),
    cuts=st.lists(st.integers(1, 4), min_size=1),
)
def test_tokens_and_parameters_are_hidden_over_borders(text: list[str], cuts: list[int]) -> None:
    """The same output for whatever pieces."""
    whole = "".join(text).encode()
    pieces, at, turn = [], 0, 0
    while at < len(whole):
        step = cuts[turn % len(cuts)]
        pieces.append(whole[at : at + step])
        at, turn = at + step, turn + 1
    prefixes = ["mine-", "a b"]
    assert shown(Masker(["x x"], prefixes=prefixes), pieces) == shown(Masker(["x x"], prefixes=prefixes), [whole])


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a hunter2! b", "a [MASKED] b"),
        ("hunter2!hunter2!", "[MASKED][MASKED]"),
        ("hunter2", "hunter2"),
        ("token glpat-ABC_123.x, done", "token glpat-[MASKED], done"),
        ("glpat-", "glpat-"),
        ("acme-secret", "acme-[MASKED]"),
        ("https://h/?a=1&private_token=xyz&b=2", "https://h/?a=1&private_token=[MASKED]&b=2"),
        ("https://h/?X-Amz-Signature=ab%2Fcd#e", "https://h/?X-Amz-Signature=[MASKED]#e"),
        ("my_private_token=xyz", "my_private_token=xyz"),
        ("https://h/?private_token=hunter2!", "https://h/?private_token=[MASKED]"),
        ("glcbt-64_a glrt-t2_b.01.c", "glcbt-[MASKED] glrt-[MASKED]"),
    ],
)
def test_what_is_hidden(text: str, seen: str) -> None:
    """Values wholly, of tokens and parameters what comes after their beginning."""
    masker = Masker(["hunter2!"], prefixes=["acme-"])
    assert shown(masker, [text.encode()]).decode() == seen
    one_by_one = [bytes([each]) for each in text.encode()]
    assert shown(Masker(["hunter2!"], prefixes=["acme-"]), one_by_one).decode() == seen


def test_only_what_might_be_secret_waits() -> None:
    """A line is shown at once, though a value is longer than it."""
    masker = Masker(["secret value"])
    assert masker.feed(b"done: sec") == b"done: "
    assert masker.feed(b"onds\n") == b"seconds\n"


@pytest.mark.parametrize("values", [[], [""], ["", b""]])
def test_no_value_hides_nothing(values: list[str | bytes]) -> None:
    """An empty variable is no secret."""
    assert shown(Masker(values), [b"abc"]) == b"abc"


def test_values_are_bytes_and_patterns_nowhere() -> None:
    """What a regular expression would read otherwise, a newline, and what is no UTF-8."""
    assert shown(Masker([".*", b"\xff\xfe", "a\nb"]), [b"x .* \xff\xfe a\nb"]) == b"x [MASKED] [MASKED] [MASKED]"


@pytest.mark.parametrize(
    "printed",
    [b"se\xef\xbf\xbdcret", b"se\xed\xa0\x80cret", b"se?cret", b"se" + b"\xef\xbf\xbd" * 3 + b"cret"],
    ids=["replaced", "as it is", "question mark", "each byte replaced"],
)
def test_a_value_with_half_of_a_character_is_hidden(printed: bytes) -> None:
    """JSON may have one, no text has: each program writes it in its own way, and none of them shows it."""
    assert shown(Masker(["se\ud800cret"]), [b"x ", printed, b" y"]) == b"x [MASKED] y"


def test_a_secret_without_end_takes_no_memory() -> None:
    """A token of many mebibytes is one mask, and nothing of it is kept."""
    masker = Masker(["x" * 100])
    assert masker.feed(b"glpat-") + masker.feed(b"a" * 10) == b"glpat-[MASKED]"
    for _ in range(50):
        assert masker.feed(b"a" * (1 << 16)) == b""
    assert masker.feed(b" done") == b" done"


def test_many_values_are_masked() -> None:
    """Ten thousand variables may be masked; each is found."""
    values = [f"value-{number:05}-{number * 7919 % 99991}" for number in range(10_000)]
    masker = Masker(values)
    assert shown(masker, ["\n".join(values[::1000]).encode()]) == b"\n".join([MASK] * 10)
