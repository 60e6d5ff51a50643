"""The language between `${{` and `}}`: what it stands for, what it refuses, and that it always ends."""

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from job_steps import StepFailed
from job_steps._expressions import Scope, compare, expand, expand_string, expand_text
from job_steps._grammar import MAX_LENGTH, parse_template
from job_steps._values import (
    Hidden,
    Value,
    bounded,
    checked,
    hides,
    json_text,
    kind_of,
    mask,
    number_text,
    reveal,
    shown_text,
)

SCOPE = Scope(
    {
        "inputs": {
            "name": "steppy",
            "age": 7,
            "half": 0.5,
            "hungry": True,
            "nothing": None,
            "likes": {"foods": ["hamburger", "fries"], "a-b": {"c": 1}},
            "list": [1, [2, 3]],
            "token": Hidden("hunter2"),
        },
        "env": {"HOME": "/home/steppy"},
        "steps": {"build": {"outputs": {"path": "out.tar", "secret": Hidden("sesame")}}},
        "type": "t",
    }
)

VALUES: list[tuple[str, Value]] = [
    ("text", "text"),
    ("${{ inputs.name }}", "steppy"),
    ("${{inputs.name}}", "steppy"),
    ("${{ inputs.age }}", 7),
    ("${{ inputs.hungry }}", True),
    ("${{ inputs.nothing }}", None),
    ("${{ inputs.likes.foods }}", ["hamburger", "fries"]),
    ("${{ inputs.likes.foods[1] }}", "fries"),
    ("${{ inputs.list[1][0] }}", 2),
    ('${{ inputs.likes["a-b"].c }}', 1),
    ("${{ inputs['name'] }}", "steppy"),
    ("${{ steps.build.outputs.path }}", "out.tar"),
    ("a ${{ inputs.name }} b ${{ inputs.age }}", "a steppy b 7"),
    ("is ${{ inputs.hungry }}", "is true"),
    ("is ${{ inputs.nothing }}", "is null"),
    (" ${{ inputs.age }}", " 7"),
    ("likes ${{ inputs.likes }}", 'likes {"a-b":{"c":1},"foods":["hamburger","fries"]}'),
    (r"use \${{ to start", "use ${{ to start"),
    (r"\${{ inputs.name }} is ${{ inputs.name }}", "${{ inputs.name }} is steppy"),
    ("no }} here", "no }} here"),
    ("{{ inputs.name }}", "{{ inputs.name }}"),
    ("${{ null }}", None),
    ("${{ true }}", True),
    ("${{ false }}", False),
    ("${{ 42 }}", 42),
    ("${{ 3.14 }}", 3.14),
    ("${{ 1.5e3 }}", 1500),
    ("${{ 2E-4 }}", 0.0002),
    ("${{ .5 }}", 0.5),
    (r'${{ "Hello\nWorld" }}', "Hello\nWorld"),
    (r'${{ "\\ \" \t \u00e4 \/" }}', '\\ " \t ä /'),
    ('${{ "I am ${{ inputs.name }}, ${{ inputs.age + 1 }}" }}', "I am steppy, 8"),
    (r'${{ "no \${{ here }}" }}', "no ${{ here }}"),
    (r"${{ 'It\'s a string' }}", "It's a string"),
    (r"${{ 'raw \n \\' }}", "raw \\n \\"),
    ("${{ 'Literal ${{ not evaluated }}' }}", "Literal ${{ not evaluated }}"),
    ('${{ "" }}', ""),
    ("${{ 2 + 3 }}", 5),
    ('${{ "a" + "b" }}', "ab"),
    ("${{ 10 - 4 }}", 6),
    ("${{ 3 * 4 }}", 12),
    ("${{ 10 / 4 }}", 2.5),
    ("${{ 10 % 3 }}", 1),
    ("${{ -7 % 3 }}", -1),
    ("${{ 1 + 2 * 3 }}", 7),
    ("${{ (1 + 2) * 3 }}", 9),
    ("${{ 10 - 4 - 3 }}", 3),
    ("${{ -inputs.age }}", -7),
    ("${{ +5 }}", 5),
    ("${{ 2--2 }}", 4),
    ("${{ !true }}", False),
    ("${{ !!inputs.name }}", True),
    ("${{ 1 == 1 }}", True),
    ('${{ 1 == "1" }}', False),
    ("${{ true == 1 }}", False),
    ("${{ 1 != 2 }}", True),
    ("${{ 1 < 2 }}", True),
    ("${{ 2 <= 2 }}", True),
    ("${{ 3 > 2 }}", True),
    ("${{ 3 >= 4 }}", False),
    ('${{ "a" < "b" }}', True),
    ("${{ false < true }}", True),
    ("${{ [1, 2] == [1, 2] }}", True),
    ("${{ [1, 2] < [1, 3] }}", True),
    ("${{ {a: 1, b: 2} == {b: 2, a: 1} }}", True),
    ("${{ {a: 9} < {a: 1, b: 2} }}", True),
    ("${{ null == null }}", True),
    ('${{ inputs.name || "default" }}', "steppy"),
    ('${{ "" || "default" }}', "default"),
    ("${{ inputs.nothing || [] }}", []),
    ('${{ inputs.age == 7 && "seven" || "other" }}', "seven"),
    ('${{ inputs.age == 8 && "eight" || "other" }}', "other"),
    ("${{ 0 && nothing.there }}", 0),
    ("${{ 1 || nothing.there }}", 1),
    ("${{ [] }}", []),
    ('${{ ["a", 1, true, null,] }}', ["a", 1, True, None]),
    ("${{ {} }}", {}),
    ('${{ {name: "runner", version: 1,} }}', {"name": "runner", "version": 1}),
    ('${{ {"string-key": true} }}', {"string-key": True}),
    ("${{ {(inputs.name): inputs.age} }}", {"steppy": 7}),
    ("${{ {a: {b: [{c: 1}]}} }}", {"a": {"b": [{"c": 1}]}}),
    ("${{ {a: {b: 1}}.a.b }}", 1),
    ("${{ str(42) }}", "42"),
    ("${{ str(true) }}", "true"),
    ("${{ str(null) }}", "<null>"),
    ('${{ num("42") }}', 42),
    ('${{ num("3.14") }}', 3.14),
    ('${{ bool("hello") }}', True),
    ('${{ bool("") }}', False),
    ("${{ bool(0) }}", False),
    ("${{ bool({}) }}", False),
    ('${{ str(inputs.age + 1) + ".0.0" }}', "8.0.0"),
    ("${{ inputs.likes.foods\n  [0] }}", "hamburger"),
]
"""Texts and what they stand for. Sources: docs.gitlab.com/ci/functions/moa, and what follows from its tables."""


@pytest.mark.parametrize(("text", "value"), VALUES, ids=[text for text, _ in VALUES])
def test_an_expression_stands_for_what_gitlab_says(text: str, value: Value) -> None:
    """Values, and their types: true is not 1."""
    found = expand_string(text, SCOPE)
    assert (json_text(found), kind_of(found)) == (json_text(value), kind_of(value))


MISTAKES = [
    ("${{ }}", "there is nothing between `${{` and `}}`, at character 1"),
    ("${{ inputs.name", "no `}}` follows; end the expression with it, at character 1"),
    ("a ${{", "no `}}` follows; end the expression with it, at character 3"),
    ("${{ inputs.nam }}", "there is no `nam` in `inputs`; did you mean `name`?"),
    ("${{ input.name }}", "there is no `input`; did you mean `inputs`?"),
    ("${{ inputs.name.first }}", "`inputs.name` is a string, which has no `first`"),
    ("${{ inputs.list[7] }}", "`inputs.list` has no item 7; it has 2, counted from 0"),
    ("${{ inputs.list[-1] }}", "`inputs.list` has no item -1; it has 2, counted from 0"),
    ('${{ inputs.list["a"] }}', "what is picked from `inputs.list` needs a number in brackets; found a string"),
    ("${{ inputs[0] }}", "what is picked from `inputs` needs a string in brackets; found a number"),
    ('${{ "hello" + 42 }}', "`+` needs two numbers or two strings; found a string and a number"),
    ('${{ "a" * 2 }}', "`*` needs two numbers; found a string and a number"),
    ("${{ 1 / 0 }}", "a number divided by 0"),
    ("${{ 1 % 0 }}", "a number taken modulo by 0"),
    ("${{ 1e308 * 10 }}", "the result of `*` is beyond what 64 bits hold"),
    ("${{ 1e999 }}", "the number `1e999` is too big; numbers have 64 bits, at character 5"),
    ('${{ -"a" }}', "`-` needs a number; found a string"),
    ("${{ upper(1) }}", "there is no function `upper`; there are `bool`, `num`, `str`"),
    ("${{ str() }}", "`str` takes one value; found 0"),
    ("${{ str(1, 2) }}", "`str` takes one value; found 2"),
    ('${{ num("x") }}', "`num` needs a string with a number in it; found a string: `x`"),
    ("${{ num(inputs.token) }}", "`num` needs a string with a number in it; found a string: `[MASKED]`"),
    ("${{ {(1): 2} }}", "a key of a struct is a string; found a number"),
    ("${{ 1 2 }}", "`2` where an operator or `}}` was expected, at character 7"),
    ("${{ 1 + }}", "`}` where a value was expected, at character 9"),
    ("${{ (1 }}", "`}` where `)` was expected, at character 8"),
    ("${{ [1 }}", "`}` where `]` was expected, at character 8"),
    ("${{ a. }}", "`}` where the name of a member behind `.` was expected, at character 8"),
    ("${{ a b }}", "`b` where an operator or `}}` was expected, at character 7"),
    ("${{ a = b }}", "`=` cannot be part of an expression, at character 7"),
    ("${{ 'open }}", "a string has no end, at character 5"),
    ('${{ "open }}', "a string has no end, at character 13"),
    (r'${{ "\x" }}', r"`\x` means nothing in a string; a backslash is written `\\`, at character 6"),
    (r'${{ "\ud800" }}', r"`\ud800` is half of a character, at character 6"),
    ("${{ for }}", "`for` is a reserved word, at character 5"),
    ("${{ ${{ inputs.name }} }}", "`$` cannot be part of an expression, at character 5"),
    (f"${{{{ {'(' * 100}1{')' * 100} }}}}", "more than 64 levels of operators and brackets, at character 69"),
    (f"${{{{ {'-' * 100}1 }}}}", "more than 64 levels of operators and brackets, at character 68"),
    (f"${{{{ 1{' + 1' * 100} }}}}", "more than 64 levels of operators and brackets, at character 261"),
    (f"${{{{ {' ' * MAX_LENGTH} 1 }}}}", f"no `}}}}` within {MAX_LENGTH} characters; end the expression with it"),
]


@pytest.mark.parametrize(("text", "error"), MISTAKES, ids=[text[:30] for text, _ in MISTAKES])
def test_a_mistake_is_named(text: str, error: str) -> None:
    """What is wrong, where, and what was expected."""
    with pytest.raises(StepFailed) as raised:
        expand_string(text, SCOPE)
    assert str(raised.value).startswith(error)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("${{ inputs.token }}", "[MASKED]"),
        ("Bearer ${{ inputs.token }}!", "Bearer [MASKED]!"),
        ('${{ "Bearer " + inputs.token }}', "Bearer [MASKED]"),
        ("${{ [1, inputs.token] }}", [1, "[MASKED]"]),
        ("${{ {a: inputs.token}.a }}", "[MASKED]"),
        ("${{ str(inputs.token) }}", "[MASKED]"),
        ('${{ inputs.token == "hunter2" }}', "[MASKED]"),
        ('${{ inputs.token && "--login" }}', "[MASKED]"),
        ("${{ inputs }}", {"token": "[MASKED]"}),
        ("${{ steps.build.outputs.secret }}", "[MASKED]"),
    ],
)
def test_what_is_made_of_something_sensitive_is_hidden(text: str, shown: Value) -> None:
    """The rest of a text stays readable, and what is passed on is whole."""
    found = expand_string(text, SCOPE)
    masked = mask(found)
    if isinstance(shown, dict):
        assert isinstance(masked, dict)
        masked = {key: masked[key] for key in shown}
    assert masked == shown
    assert hides(found)
    assert "hunter2" not in repr(found)


def test_a_value_that_each_step_doubles_ends_somewhere() -> None:
    """Lists in lists of what was there before grow fast, and cost nothing until somebody writes them out."""
    value: Value = "x" * 1000
    with pytest.raises(StepFailed, match="a value that is too big"):
        for _ in range(64):
            value = expand_string("${{ [v, v] }}", Scope({"v": value}))
    with pytest.raises(StepFailed, match="a text of 8000000 characters; at most 4194304 are possible"):
        expand_string("${{ v + v }}", Scope({"v": "x" * 4_000_000}))
    with pytest.raises(StepFailed, match="a value that is too big"):
        expand_text("all: ${{ [v, v, v] }}", Scope({"v": "x" * 2_000_000}))


@given(st.text(alphabet="${} \"'\\+-*/%!=<>&|()[].,:au1e\n", max_size=60))
def test_every_text_is_a_value_or_a_mistake(text: str) -> None:
    """Nothing else comes out, whatever stands between the braces."""
    for each in (text, f"${{{{{text}}}}}"):
        with suppress(StepFailed):
            assert bounded(expand_string(each, SCOPE)) is not each or "${{" not in each


class Counted(str):
    """A text that counts how many characters are looked at by searching it."""

    __slots__ = ("looked_at",)

    looked_at: int

    def find(self, sub: str, start: Any = None, end: Any = None) -> int:  # noqa: ANN401  (those of str)
        """Search, and count."""
        found = super().find(sub, start, end)
        self.looked_at += (found if found >= 0 else len(self)) - (start or 0) + 1
        return found


@pytest.mark.parametrize("piece", ["${{ 1 }}", r"\${{ ", "text }} ", "${{ 'a' }} text "])
def test_reading_a_text_costs_as_much_as_it_is_long(piece: str) -> None:
    """However many expressions it has: each character is looked at a few times, not once for each expression."""
    text = Counted(piece * 2000)
    text.looked_at = 0
    assert parse_template(text).parts
    assert text.looked_at < 3 * len(text)


values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(values.map(checked), values.map(checked))
def test_values_have_one_order(left: Value, right: Value) -> None:
    """Equal is what has the same JSON, and of two others one is before the other."""
    assert compare(left, right) == -compare(right, left)
    assert (compare(left, right) == 0) == (json_text(left) == json_text(right))


@given(values.map(checked))
def test_json_is_what_other_programs_read(value: Value) -> None:
    """Numbers keep their value; expressions leave what has none alone."""
    assert json_text(checked(json.loads(json_text(value)))) == json_text(value)
    assert expand(checked({"a": [value, "${{ 1 }}"]}), SCOPE) == {"a": [expand(value, SCOPE), 1]}
    assert reveal(Hidden(value)) == value


@given(values.map(checked))
def test_what_people_are_shown_is_the_same_value(value: Value) -> None:
    """As JSON, too, but with `&`, `<` and `>` as they are."""
    assert json.loads(shown_text(value)) == json.loads(json_text(value))
    assert shown_text("a && b > c \\u003e") == '"a && b > c \\\\u003e"'


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (5, "5"),
        (5.0, "5"),
        (-0.5, "-0.5"),
        (1e16, "10000000000000000"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.25e-9, "1.25e-9"),
        (math.pi, "3.141592653589793"),
    ],
)
def test_numbers_are_written_as_go_writes_them(number: float, text: str) -> None:
    """So that a step sees the same digits here and there. Source: encoding/json, as protojson uses it."""
    assert number_text(number) == text
