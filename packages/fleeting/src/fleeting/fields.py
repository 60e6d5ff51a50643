"""Fields of settings, whose wrong values are told about as well in a program as in a file."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from fleeting._durations import Duration
from fleeting.wording import describe


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


@attrs.frozen
class _Telling:
    """A validator that says what it is about."""

    validator: Callable[[Any, "attrs.Attribute[Any]", Any], Any]

    def __call__(self, instance: object, field: "attrs.Attribute[Any]", value: object) -> None:
        subject = f"'{field.name}' must be "
        try:
            self.validator(instance, field, value)
        except TypeError as error:
            kind = "float seconds" if field.type is Duration else "a number"
            raise TypeError(f"{subject}{kind}: {describe(value)}") from error
        except ValueError as error:
            rule = str(error)
            raise ValueError(rule if rule.startswith(subject) else f"{subject}{rule}: {value}") from error
