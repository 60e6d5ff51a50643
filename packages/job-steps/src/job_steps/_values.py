"""Values of inputs and outputs: what JSON has, with 64-bit numbers, and parts of it that nobody is to see.

A value that is sensitive, or was made of one that is, stands in a `Hidden`, which says what is shown in its place. So a
list may be half hidden, and a text that was put together shows what is not secret of it.
"""

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from json.encoder import encode_basestring
from typing import TypeAlias

from attrs import field, frozen

from job_steps._errors import StepFailed

MASKED = "[MASKED]"
"""Shown in place of what is sensitive."""

MAX_DEPTH = 64
"""Levels of lists and structs in one value; more than that is no data, but an attack."""

MAX_TEXT = 4 * 1024 * 1024
"""Characters of a text that expressions make."""

MAX_NODES = 100_000
"""Texts, numbers, lists and structs in one value."""

_CHARACTERS = 40
"""That are as much work as one node."""

_ESCAPED = {ord(each): f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"}
"""What Go's encoding/json does not leave in a string, so that steps see the same here and there."""

_HALF = re.compile("[\ud800-\udfff]")
"""Half of a character, which JSON can write and no encoding has."""

KINDS = ("string", "number", "boolean", "array", "struct")
"""The types that inputs and outputs may have, as files name them."""


@frozen
class Hidden:
    """A value that is passed on, but not shown."""

    value: "Value" = field(repr=False)
    """What it really is."""
    shown: "Value" = MASKED
    """What results have in its place."""


Value: TypeAlias = bool | int | float | str | Sequence["Value"] | Mapping[str, "Value"] | Hidden | None
"""What an input or an output may be."""


def kind_of(value: Value) -> str:
    """Name the type of a value as files do; `null` if it is none."""
    if isinstance(value, Hidden):
        return kind_of(value.value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "struct" if isinstance(value, Mapping) else "array"


def reveal(value: Value) -> Value:
    """Return the value with nothing hidden in it: for commands and files, never for people."""
    if isinstance(value, Hidden):
        return reveal(value.value)
    if isinstance(value, Mapping):
        return {key: reveal(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [reveal(each) for each in value]
    return value


def mask(value: Value) -> Value:
    """Return the value as people may see it."""
    if isinstance(value, Hidden):
        return mask(value.shown)
    if isinstance(value, Mapping):
        return {key: mask(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [mask(each) for each in value]
    return value


def hides(value: Value) -> bool:
    """Whether any part of the value is hidden."""
    if isinstance(value, Hidden):
        return True
    if isinstance(value, Mapping):
        return any(hides(each) for each in value.values())
    return isinstance(value, Sequence) and not isinstance(value, str) and any(hides(each) for each in value)


def text_of(value: Value) -> "str | Hidden":
    """Write a value into a text: strings as they are, everything else as JSON; hidden if any part of it is.

    Raises:
        StepFailed: The text would be too long.
    """
    if isinstance(value, str):
        return value
    bounded(value)
    text = _plain_text(reveal(value))
    return Hidden(text, _plain_text(mask(value))) if hides(value) else text


def join(parts: Sequence["str | Hidden"]) -> "str | Hidden":
    """Put texts together; what is hidden of them stays so.

    Raises:
        StepFailed: The text would be too long.
    """
    texts = [str(reveal(part)) for part in parts]
    if (length := sum(map(len, texts))) > MAX_TEXT:
        raise StepFailed(f"a text of {length} characters; at most {MAX_TEXT} are possible")
    text = "".join(texts)
    if any(isinstance(part, Hidden) for part in parts):
        return Hidden(text, "".join(str(mask(part)) for part in parts))
    return text


def bounded(value: Value) -> Value:
    """Return the value if it is not too big; lists in lists grow fast when each step doubles what it was given.

    Raises:
        StepFailed: It is.
    """
    weight_of(value)
    return value


def weight_of(value: Value) -> int:
    """Return how much work it is to go through a value, in its nodes, of which 40 characters count as one.

    Raises:
        StepFailed: It is too big.
    """
    left, characters = MAX_NODES, MAX_TEXT
    waiting = [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        left -= 1
        if isinstance(each, str):
            characters -= len(each)
        elif isinstance(each, Hidden):
            waiting.append((each.value, depth))
        elif isinstance(each, Mapping):
            characters -= sum(map(len, each))
            waiting += [(inner, depth + 1) for inner in each.values()]
        elif isinstance(each, Sequence):
            waiting += [(inner, depth + 1) for inner in each]
        if left < 0 or characters < 0 or depth > MAX_DEPTH or len(waiting) > MAX_NODES:
            most = f"{MAX_NODES} values, {MAX_TEXT} characters and {MAX_DEPTH} levels"
            raise StepFailed(f"a value that is too big; at most {most} are possible")
    return MAX_NODES - left + (MAX_TEXT - characters) // _CHARACTERS


def _plain_text(value: Value) -> str:
    return value if isinstance(value, str) else json_text(value)


def json_text(value: Value) -> str:
    """Write a value as JSON on one line, the keys of structs in order, so that equal values have equal texts.

    Source: Go's protojson, which GitLab's step runner writes values with.
    """
    pieces: list[str] = []
    _write(value, pieces)
    return "".join(pieces)


def shown_text(value: Value) -> str:
    """Write a value as JSON for people: with `&` and `<` as they are, which `json_text` writes as numbers."""
    return _FOR_HTML.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[0], json_text(value))


_FOR_HTML = re.compile(r"\\(?:u(0026|003c|003e)|.)")


def _write(value: Value, pieces: list[str]) -> None:
    if isinstance(value, Mapping):
        pieces.append("{")
        for number, key in enumerate(sorted(value)):
            pieces.append(f"{',' if number else ''}{_quoted(key)}:")
            _write(value[key], pieces)
        pieces.append("}")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        pieces.append("[")
        for number, each in enumerate(value):
            pieces.append("," if number else "")
            _write(each, pieces)
        pieces.append("]")
    elif isinstance(value, Hidden):
        _write(value.shown, pieces)
    elif isinstance(value, str):
        pieces.append(_quoted(value))
    elif value is None or isinstance(value, bool):
        pieces.append({None: "null", True: "true", False: "false"}[value])
    else:
        pieces.append(number_text(value))


def _quoted(text: str) -> str:
    return encode_basestring(text).translate(_ESCAPED)


def number_text(number: float) -> str:
    """Write a number as JSON has it: whole ones without a point, an exponent only where it is far away from 1."""
    if isinstance(number, int):
        return str(number)
    size = abs(number)
    if size and not 1e-6 <= size < 1e21:  # noqa: PLR2004  (where Go and JavaScript begin to write exponents)
        digits, _, exponent = repr(number).partition("e")
        if exponent:
            return f"{digits.removesuffix('.0')}e{exponent[0]}{exponent[1:].lstrip('0')}"
    return decimal_text(number)


def decimal_text(number: float) -> str:
    """Write a number without an exponent, however long it gets."""
    return format(Decimal(repr(number)), "f").removesuffix(".0")


def number_of(text: str) -> "int | float":
    """Read a number; one that is whole, and exact in 64 bits, becomes an integer.

    Raises:
        ValueError: It is no number, or not a finite one.
    """
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return whole(number)


def whole(number: float) -> "int | float":
    """Return an integer in place of a number that is whole, as far as those are exact."""
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def whole_text(text: str) -> str:
    """Return a text in which halves of characters are U+FFFD, as Go reads them: no command can be given any."""
    return text if text.isascii() else _HALF.sub("\ufffd", text)


def checked(value: object, *, depth: int = 0) -> Value:
    """Take data that came from outside, as JSON has it, for a value.

    Raises:
        ValueError: It is too deep, or has something that is no value.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} levels of lists and structs")
    if isinstance(value, str):
        return whole_text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        try:
            number = float(value)
        except OverflowError:
            raise ValueError("a number beyond what 64 bits hold") from None
        if not math.isfinite(number):
            raise ValueError(f"{value} as a number; expected a finite one")
        return whole(number)
    if isinstance(value, Mapping):
        return {whole_text(str(key)): checked(each, depth=depth + 1) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [checked(each, depth=depth + 1) for each in value]
    raise ValueError(f"{type(value).__name__} as a value; expected what JSON has")
