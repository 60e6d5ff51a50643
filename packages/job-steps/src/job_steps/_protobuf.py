"""Protocol Buffers' wire format, for messages that are attrs classes whose fields know their numbers.

Written here because the agent has 300 ms to answer its first call, and Google's library without its compiled half takes
110 ms of that to be imported. Tests compare with that library. As there, fields that nobody knows are passed over, a
field that comes twice counts as its last, or is merged if it is a message, and what is zero or empty is not sent.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from attrs import Attribute, field, fields, frozen

_M = TypeVar("_M")

_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
"""How what follows a tag is written, and how long it is."""

_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_DOUBLE: Final = struct.Struct("<d")
_LONGEST_VARINT: Final = 10  # bytes
_HIGHEST_FIELD: Final = (1 << 29) - 1
MOST_FIELDS: Final = 200_000
"""In one message with all that is in it, those that nobody knows included: each costs more here than on its way."""

_DEEPEST: Final = 100
"""Messages within messages, as in other implementations."""


class MalformedMessage(ValueError):
    """Bytes that are no message of the kind that was expected."""


@frozen
class _Kind:
    """How one field is written."""

    wire: int
    encode: Callable[[Any], bytes]
    """What follows the tag, without a length."""

    decode: "Callable[[Any, _Place], Any]"
    """Of a number or of bytes, and where that is."""

    is_many: bool = False
    """Whether it can come several times, each another value."""

    is_message: bool = False
    """Whether several are merged into one."""


def text(number: int) -> Any:
    """Declare a string."""
    return _field(number, _Kind(_BYTES, _text, _as_text), "")


def blob(number: int) -> Any:
    """Declare bytes."""
    return field(default=b"", repr=False, metadata=_metadata(number, _Kind(_BYTES, bytes, _as_bytes)))


def integer(number: int) -> Any:
    """Declare an int64, an int32 or an enumeration whose values may be ones that nobody knows yet."""
    return _field(number, _Kind(_VARINT, _varint, _as_integer), 0)


def flag(number: int) -> Any:
    """Declare a bool."""
    return _field(number, _Kind(_VARINT, _varint, _as_flag), default=False)


def double(number: int) -> Any:
    """Declare a double."""
    return _field(number, _Kind(_FIXED64, _DOUBLE.pack, _as_double), 0.0)


def one_message(number: int, kind: type) -> Any:
    """Declare a message, or None."""
    return _field(number, _Kind(_BYTES, encode, _as_message(kind), is_message=True), None)


def many_messages(number: int, kind: type) -> Any:
    """Declare any number of messages, as a sequence."""
    return _field(number, _Kind(_BYTES, encode, _as_message(kind), is_many=True), ())


def many_texts(number: int) -> Any:
    """Declare any number of strings, as a sequence."""
    return _field(number, _Kind(_BYTES, str.encode, _as_text, is_many=True), ())


def text_map(number: int) -> Any:
    """Declare a mapping from strings to strings; no `repr` shows it, since it may be an environment."""
    kind = _Kind(_BYTES, lambda entry: encode(_Entry(*entry)), _as_message(_Entry), is_many=True)
    return field(factory=dict, repr=False, metadata=_metadata(number, kind))


def encode(value: Any) -> bytes:
    """Write a message."""
    written = bytearray()
    for number, (attribute, kind) in _layout(type(value)).items():
        given = getattr(value, attribute)
        if kind.is_many:
            for one in given.items() if isinstance(given, Mapping) else given:
                _write(written, number, kind, one)
        elif given or (kind.is_message and given is not None):
            _write(written, number, kind, given)
    return bytes(written)


def decode(kind: type[_M], data: bytes | memoryview) -> _M:
    """Read a message.

    Raises:
        MalformedMessage: It is none.
    """
    return _decode(kind, memoryview(data), _Place([0], 0))


@frozen
class _Place:
    """Where in a message something is read."""

    fields: list[int]
    """How many have been read so far, of all of it."""

    depth: int

    def below(self) -> "_Place":
        """The place of a message in it."""
        return _Place(self.fields, self.depth + 1)

    def count(self) -> None:
        """Take note of a field."""
        self.fields[0] += 1
        if self.fields[0] > MOST_FIELDS:
            raise MalformedMessage(f"more than {MOST_FIELDS} fields")


def _decode(kind: type[_M], data: memoryview, place: _Place) -> _M:
    if place.depth > _DEEPEST:
        raise MalformedMessage(f"more than {_DEEPEST} messages within messages")
    layout = _layout(kind)
    found: dict[str, Any] = {}
    parts: dict[str, list[memoryview]] = {}
    for number, wire, value in _fields_in(data):
        place.count()
        attribute, how = layout.get(number, ("", None))
        if how is None or how.wire != wire:
            continue
        if how.is_message:
            parts.setdefault(attribute, []).append(value)
            found[attribute] = how
        elif how.is_many:
            found.setdefault(attribute, []).append(how.decode(value, place))
        else:
            found[attribute] = how.decode(value, place)
    for attribute, several in parts.items():
        found[attribute] = found[attribute].decode(memoryview(b"".join(several)), place)
    return kind(**{attribute: _gathered(value) for attribute, value in found.items()})


def _gathered(value: Any) -> Any:
    """What came several times: entries as a mapping, whose last ones count, other messages as a sequence."""
    if not isinstance(value, list):
        return value
    return {entry.key: entry.value for entry in value} if isinstance(value[0], _Entry) else tuple(value)


def _fields_in(data: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Each field's number, its wire type, and a number or bytes; groups, which nobody writes, are left out."""
    at, end, groups = 0, len(data), _Groups()
    while at < end:
        tag, at = _read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not 0 < number <= _HIGHEST_FIELD:
            raise MalformedMessage(f"no field can have the number {number}")
        if wire in (_GROUP, _GROUP_END):
            groups.take(number, is_end=wire == _GROUP_END)
            continue
        value: Any = None
        if wire == _VARINT:
            value, at = _read_varint(data, at)
        else:
            length, at = _length(data, at, wire)
            if at + length > end:
                raise MalformedMessage("it ends within a field")
            value, at = data[at : at + length], at + length
        if not groups.open:
            yield number, wire, value
    if groups.open:
        raise MalformedMessage("it ends within a group")


def _length(data: memoryview, at: int, wire: int) -> tuple[int, int]:
    """How many bytes a field has, and where they begin."""
    if wire == _BYTES:
        return _read_varint(data, at)
    if wire not in _FIXED:
        raise MalformedMessage(f"there is no wire type {wire}")
    return _FIXED[wire], at


class _Groups:
    """The groups that have begun: an old way to have messages within messages."""

    def __init__(self) -> None:
        self.open: list[int] = []

    def take(self, number: int, *, is_end: bool) -> None:
        if not is_end:
            self.open.append(number)
        elif not self.open or self.open.pop() != number:
            raise MalformedMessage("a group ends that did not begin")
        if len(self.open) > _DEEPEST:
            raise MalformedMessage(f"more than {_DEEPEST} groups within groups")


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:  # noqa: PLR2004  (the last one has no such bit)
            return value & (1 << 64) - 1, at + index + 1
    raise MalformedMessage("a number has no end, or more than ten bytes")


def _varint(value: int) -> bytes:
    """Write an int64; one below zero has ten bytes."""
    rest, written = int(value) & (1 << 64) - 1, bytearray()
    while rest >= 0x80:  # noqa: PLR2004  (as above)
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
    return bytes(written)


def _write(written: bytearray, number: int, kind: _Kind, value: Any) -> None:
    encoded = kind.encode(value)
    written += _varint(number << 3 | kind.wire)
    if kind.wire == _BYTES:
        written += _varint(len(encoded))
    written += encoded


def _text(value: str) -> bytes:
    """Write a string; what no string may have, such as half of a character, is lost, and the message is not."""
    return value.encode(errors="replace")


def _as_text(data: memoryview, _: _Place) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"a string is not UTF-8: {error.reason}") from error


def _as_bytes(data: memoryview, _: _Place) -> bytes:
    return bytes(data)


def _as_integer(value: int, _: _Place) -> int:
    return value - (1 << 64) if value >> 63 else value


def _as_flag(value: int, _: _Place) -> bool:
    return value != 0


def _as_double(data: memoryview, _: _Place) -> float:
    number: float = _DOUBLE.unpack(data)[0]
    return number


def _as_message(kind: type) -> Callable[[memoryview, _Place], Any]:
    return lambda data, place: _decode(kind, data, place.below())


def _metadata(number: int, kind: _Kind) -> Mapping[str, Any]:
    return {__name__: (number, kind)}


def _field(number: int, kind: _Kind, default: object) -> Any:
    return field(default=default, metadata=_metadata(number, kind))


_LAYOUTS: Final[dict[type, Mapping[int, tuple[str, _Kind]]]] = {}


def _layout(kind: type) -> Mapping[int, tuple[str, _Kind]]:
    """Each field's attribute and how it is written, by its number, in that order."""
    if kind not in _LAYOUTS:
        declared: Sequence[Attribute[Any]] = fields(kind)
        numbered = [(*one.metadata[__name__], one.name) for one in declared]
        _LAYOUTS[kind] = {number: (name, how) for number, how, name in sorted(numbered, key=lambda one: one[0])}
    return _LAYOUTS[kind]


@frozen
class _Entry:
    """One of a mapping's."""

    key: str = text(1)
    value: str = text(2)
