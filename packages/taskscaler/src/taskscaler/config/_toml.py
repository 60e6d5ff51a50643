"""Reads TOML files; whatever is no TOML is a `ConfigError`."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from fleeting import ConfigError, ConfigProblem


def read_toml(path: Path) -> tuple[str, Mapping[str, object]]:
    """Read a file, and return its text and its top table.

    Raises:
        ConfigError: It is not TOML.
        OSError: It cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        problem = ConfigProblem(path="", found=f"something else: {error}", expected="TOML")
        raise ConfigError([problem], source=str(path)) from error
