"""Arguments of programs: what is wrong with one is said where it is given, in the same words everywhere.

``ARGUMENT: expected EXPECTED, found FOUND``: a TypeError if the kind of the value is wrong, else a ValueError. For
functions, `check` takes the kind as an annotation has it; for attrs classes, `in_words` takes it from each field.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_type_hints

import attrs

from fleeting._durations import Duration
from fleeting._wording import Kind, origin, quoted

T = TypeVar("T")

_SCALARS: Mapping[Kind, str] = {
    int: "an integer",
    float: "a number",
    Duration: "a number of seconds",
    str: "a string",
    bool: "True or False",
}
_WHATEVER_IT_SAYS = (str, bool)
"""Kinds with no range."""

_IN_WORDS = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}
_LENGTH = re.compile("Length of '.*' must be (>=|<=) ([0-9]+): [0-9]+")
_PLURAL = {"character": "characters", "entry": "entries"}

_CONTAINERS = (tuple, list, Sequence, frozenset)
_UNIONS = (Union, UnionType)


def check(
    name: str,
    value: object,
    kind: Kind,
    *,
    least: float | None = None,
    above: float | None = None,
    endless: bool = False,
    secret: bool = False,
) -> None:
    """See that an argument is of a kind, and in its range.

    Args:
        name: The argument's.
        value: What was given.
        kind: As an annotation has it: a scalar, `Duration`, a class, what is optional, a sequence or a mapping of
            these. An integer will do for a number, but no boolean for either.
        least: The smallest number that is allowed.
        above: What a number has to be larger than.
        endless: Whether a number may be infinite: seconds to wait for ever.
        secret: Whether no message may show it.

    Raises:
        TypeError: It is of another kind.
        ValueError: It is no finite number, or out of range.
    """
    if kind in _WHATEVER_IT_SAYS and type(value) is kind:
        return  # as nearly always, and with each job
    _Look(endless=endless, secret=secret).at(name, value, kind)
    if value is None or not isinstance(value, int | float):
        return
    if least is not None and value < least:
        raise _wrong_value(name, f"at least {least:g}", value)
    if above is not None and value <= above:
        raise _wrong_value(name, f"more than {above:g}", value)


def all_are(kind: type[T], given: object, name: str) -> list[T]:
    """Take the argument *name*, which has to be a sequence of instances of a class.

    Raises:
        TypeError: It is something else, or something else is in it.
    """
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        raise TypeError(f"{name}: expected a sequence of {kind.__name__}, found {as_given(given)}")
    values = list(given)
    for index, value in enumerate(values):
        if not isinstance(value, kind):
            raise TypeError(f"{name}[{index}]: expected {_article(kind.__name__)}, found {as_given(value)}")
    return values


def as_given(value: object, *, secret: bool = False) -> str:
    """Show what was given, as Python writes it, on one line; of what is no scalar, or secret, only the type."""
    if isinstance(value, str) and not secret:
        return quoted(value)
    if value is None or (isinstance(value, bool | int | float) and not secret):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    name = type(value).__name__
    is_empty = isinstance(value, tuple | list | Mapping) and not value and not secret
    return f"an empty {name}" if is_empty else _article(name)


def in_words(_: type, fields: Sequence["attrs.Attribute[Any]"]) -> list["attrs.Attribute[Any]"]:
    """Check the fields of a class as arguments: attrs' `field_transformer`.

    The kind is the field's annotation. A validator need only say what may stand there, in a ValueError.
    """
    return [
        field
        if isinstance(field.validator, _Checked)  # inherited
        else field.evolve(validator=_Checked(field.validator))
        for field in fields
    ]


def allowed(
    error: ValueError, name: str, value: object, *, written: Callable[[str], str] = str
) -> tuple[str, object, str]:
    """Take apart what a validator says: what is allowed, what was found, what is to be added to that.

    Attrs' own ``'x' must be >= 0: -1`` becomes ``at least 0`` and -1.

    Args:
        error: The validator's.
        name: The field's.
        value: The field's.
        written: Writes a bound.
    """
    match error.args:
        case (str(), attrs.Attribute(), re.Pattern(pattern=pattern), _):  # attrs' own `matches_re`
            return f"text of the form {pattern}", value, ""
    subject = f"'{name}' must be "
    message, part, *added = (*error.args, value) if len(error.args) == 1 else error.args
    rule = str(message).removeprefix(subject).removesuffix(f": {value}")
    if found := _LENGTH.fullmatch(rule):
        unit = "character" if isinstance(value, str) else "entry"
        rule = f"{_IN_WORDS[found[1]]} {found[2]} {unit if found[2] == '1' else _PLURAL[unit]}"
    sign, _, bound = rule.partition(" ")
    if sign in _IN_WORDS:
        rule = f"{_IN_WORDS[sign]} {written(bound)}"
    return rule, part, "".join(map(str, added))


Validator = Callable[[Any, "attrs.Attribute[Any]", Any], Any]


def own_validator(field: "attrs.Attribute[Any]") -> Validator:
    """Return what a field's class itself says of its values, which expects them to be of the right kind."""
    validator = field.validator.validator if isinstance(field.validator, _Checked) else field.validator
    return validator or _accept


def _accept(*_: object) -> None:
    """Stand for the validator of a field that has none."""


@attrs.frozen
class _Checked:
    """A validator that sees to the kind first, and names the field."""

    validator: Validator | None

    def __call__(self, instance: Any, field: "attrs.Attribute[Any]", value: object) -> None:  # noqa: ANN401  (of any class)
        _Look(secret=field.repr is False).at(field.name, value, _kinds(instance.__class__)[field.name])
        if self.validator is None:
            return
        try:
            self.validator(instance, field, value)
        except ValueError as error:
            rule, part, added = allowed(error, field.name, value)
            found = as_given(part, secret=field.repr is False)
            raise ValueError(f"{field.name}: expected {rule}, found {found}{added}") from error


@cache
def _kinds(cls: type[Any]) -> Mapping[str, Kind]:
    return get_type_hints(cls, include_extras=True)


@attrs.frozen(kw_only=True)
class _Look:
    """A look at the kind of a value; of one that its class does not describe, nothing is known."""

    endless: bool = False
    secret: bool = False

    def at(self, name: str, value: object, kind: Kind) -> None:
        """See that a value is of a kind."""
        form = origin(kind)
        if kind in _SCALARS:
            self._at_scalar(name, value, kind)
        elif form is Annotated:
            self.at(name, value, get_args(kind)[0])
        elif form in _UNIONS:
            self._at_optional(name, value, get_args(kind))
        elif form in _CONTAINERS:
            self._at_sequence(name, value, get_args(kind)[0])
        elif isinstance(form, type) and issubclass(form, Mapping):
            self._at_mapping(name, value, *get_args(kind))
        elif form is Callable or _is_hook(kind):
            if not callable(value):
                raise self._wrong(name, "a function", value)
        elif isinstance(kind, type) and _is_plain(kind) and not isinstance(value, kind):
            raise self._wrong(name, _article(kind.__name__), value)

    def _at_scalar(self, name: str, value: object, kind: Kind) -> None:
        if not _is_scalar(value, kind):
            raise self._wrong(name, _SCALARS[kind], value)
        if isinstance(value, float) and not (math.isfinite(value) or (self.endless and value == math.inf)):
            words = _SCALARS[kind]
            raise _wrong_value(name, words if self.endless or math.isnan(value) else f"a finite {words[2:]}", value)

    def _at_optional(self, name: str, value: object, kinds: Sequence[Kind]) -> None:
        """Look at what may be one of several kinds: nearly always, None is one of two."""
        others = [kind for kind in kinds if kind is not type(None)]
        if len(others) > 1:
            self._at_several(name, value, kinds)
        elif value is not None:
            try:
                self.at(name, value, others[0])
            except TypeError as error:
                start, found, end = str(error).partition(", found ")
                whole = start.startswith(f"{name}: ") and len(others) < len(kinds)
                start = start.replace("True or False", "True, False")
                raise TypeError(f"{start} or None{found}{end}" if whole else str(error)) from None

    def _at_several(self, name: str, value: object, kinds: Sequence[Kind]) -> None:
        """Look at what may be a scalar of several kinds, or one of some words; of others nothing is known."""
        words = [_words(kind) for kind in kinds]
        if all(words) and not any(_is_one(value, kind) for kind in kinds):
            raise self._wrong(name, " or ".join(words), value)

    def _at_sequence(self, name: str, value: object, kind: Kind) -> None:
        if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
            raise self._wrong(name, f"a sequence{' of strings' if kind is str else ''}", value)
        for index, item in enumerate(value if isinstance(value, Sequence) else ()):
            self.at(f"{name}[{index}]", item, kind)

    def _at_mapping(self, name: str, value: object, key_kind: Kind, kind: Kind) -> None:
        if not isinstance(value, Mapping):
            raise self._wrong(name, "a mapping", value)
        for key, item in value.items():
            self.at(f"a key of {name}", key, key_kind)
            self.at(f"{name}[{as_given(key)}]", item, kind)

    def _wrong(self, name: str, expected: str, value: object) -> TypeError:
        return TypeError(f"{name}: expected {expected}, found {as_given(value, secret=self.secret)}")


def _words(kind: Kind) -> str:
    if origin(kind) is Literal:
        return " or ".join(map(as_given, get_args(kind)))
    return "None" if kind is type(None) else _SCALARS.get(kind, "")


def _is_one(value: object, kind: Kind) -> bool:
    if origin(kind) is Literal:
        return value in get_args(kind)
    return value is None if kind is type(None) else _is_scalar(value, kind)


def _is_scalar(value: object, kind: Kind) -> bool:
    if kind is str or kind is bool:
        return isinstance(value, kind)
    return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)


def _is_hook(kind: Kind) -> bool:
    """Whether a protocol describes what can be called."""
    return getattr(kind, "_is_protocol", False) and "__call__" in vars(kind)


def _is_plain(kind: type) -> bool:
    """Whether its class says what an instance is: not so with protocols, and with what they are like."""
    return kind is not object and not getattr(kind, "_is_protocol", False)


def _article(name: str) -> str:
    return f"an {name}" if name[:1].lower() in "aeio" else f"a {name}"


def _wrong_value(name: str, expected: str, value: object) -> ValueError:
    return ValueError(f"{name}: expected {expected}, found {as_given(value)}")


def path_like(name: str, value: object) -> None:
    """See that an argument is a path.

    Raises:
        TypeError: It is neither a string nor a path.
    """
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name}: expected a path, found {as_given(value)}")
