"""Fields of settings: wrong values are reported as clearly in a program as in a file."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import attrs

from fleeting._durations import Duration
from fleeting._wording import describe

T = TypeVar("T")


def in_words(_: type, fields: Sequence["attrs.Attribute[Any]"]) -> list["attrs.Attribute[Any]"]:
    """Have validators name the field and the value that they refuse, as attrs' own do; attrs' `field_transformer`.

    A validator need only say what may stand there. What it cannot even compare, such as ``"5m"`` where float
    seconds belong, is a `TypeError` that says so.
    """
    return [
        field
        if field.validator is None or isinstance(field.validator, _Telling)  # the latter: inherited
        else field.evolve(validator=_Telling(field.validator))
        for field in fields
    ]


def is_a(kind: type) -> Callable[[object, "attrs.Attribute[Any]", object], None]:
    """Make a validator that refuses all but instances of a class, and does not show what may hold a secret."""

    def check(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
        if not isinstance(value, kind):
            raise TypeError(f"'{field.name}' must be a {kind.__name__}, not {type(value).__name__}")

    return check


def all_are(kind: type[T], given: object, name: str) -> list[T]:
    """Take the argument *name*, which has to be a sequence.

    Raises:
        TypeError: It is something else, or something else is in it.
    """
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise TypeError(f"{name}: expected a sequence of {kind.__name__}, found {type(given).__name__}")
    values = list(given)
    if not all(isinstance(value, kind) for value in values):
        raise TypeError(f"{name}: expected a sequence of {kind.__name__}, found a sequence that holds something else")
    return values


@attrs.frozen
class _Telling:
    """A validator that says what it is about."""

    validator: Callable[[Any, "attrs.Attribute[Any]", Any], Any]

    def __call__(self, instance: object, field: "attrs.Attribute[Any]", value: object) -> None:
        subject = f"'{field.name}' must be "
        try:
            self.validator(instance, field, value)
        except TypeError as error:
            if str(error).startswith(subject):
                raise
            kind = "float seconds" if field.type is Duration else "a number"
            raise TypeError(f"{subject}{kind}: {describe(value)}") from error
        except ValueError as error:
            rule, found = str(error.args[0]), "".join(map(str, error.args[1:])) or value
            raise ValueError(rule if rule.startswith(subject) else f"{subject}{rule}: {found}") from error
