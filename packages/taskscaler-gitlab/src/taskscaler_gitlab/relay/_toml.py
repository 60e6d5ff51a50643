"""Settings as TOML, for a sidecar to read. Pure."""

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time


def written(settings: Mapping[str, object]) -> str:
    """Write a table at the top of a file: a key a line."""
    return "".join(f"{_string(key)} = {_value(value)}\n" for key, value in settings.items())


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _string(value)
        case datetime() | date() | time():
            return value.isoformat()
        case Mapping():
            return "{" + ", ".join(f"{_string(str(key))} = {_value(each)}" for key, each in value.items()) + "}"
        case Sequence():
            return "[" + ", ".join(map(_value, value)) + "]"
    raise TypeError(f"expected a value that TOML has, found {type(value).__name__}")


def _string(text: str) -> str:
    """Write a string: TOML's are JSON's, but for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
