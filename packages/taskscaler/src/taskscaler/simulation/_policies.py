"""Policies as they are written on a command line: ``idle_count=5,idle_time=20m``. Pure."""

from collections.abc import Mapping
from typing import Any

from attrs import fields_dict

from fleeting import ConfigError
from fleeting.config import parse_duration
from fleeting.plugins import format_duration
from taskscaler._types import Policy

KEYS = ("idle_count", "idle_time", "scale_factor", "scale_factor_limit", "mode")
"""What a policy may say here; when it holds is no matter."""


def parse_policy(text: str) -> Policy:
    """Read one. Raises ValueError with a sentence that says what is wrong."""
    given: dict[str, Any] = {}
    for part in text.split(","):
        key, _, value = (each.strip() for each in part.partition("="))
        if key not in KEYS or not value:
            raise ValueError(f"expected a policy such as idle_count=5,idle_time=20m, found {part.strip()!r}")
        if key in given:
            raise ValueError(f"{key} is given twice in {text!r}")
        given[key] = _value(key, value)
    try:
        return Policy(**given)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{error}, in the policy {text!r}") from error


def _value(key: str, text: str) -> float | str:
    if key == "mode":
        return text
    try:
        if key == "idle_time":
            return parse_duration(text)
        return float(text) if key == "scale_factor" else int(text)
    except (ConfigError, ValueError) as error:
        expected = {"idle_time": "a duration such as 20m", "scale_factor": "a number"}.get(key, "a whole number")
        raise ValueError(f"{key}: expected {expected}, found {text!r}") from error


def write_policy(policy: Policy) -> str:
    """Write one as it is read: what differs from the default, at least the first two."""
    settings: Mapping[str, Any] = {key: getattr(policy, key) for key in KEYS}
    defaults = {key: fields_dict(Policy)[key].default for key in KEYS}
    some = {key: value for key, value in settings.items() if key in KEYS[:2] or value != defaults[key]}
    return ",".join(f"{key}={_written(key, value)}" for key, value in some.items())


def _written(key: str, value: Any) -> str:  # noqa: ANN401  (as policies have it)
    if key == "idle_time":
        return format_duration(value)
    return value if isinstance(value, str) else f"{value:g}"
