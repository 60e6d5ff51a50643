"""Reads TOML files; whatever is no TOML is a `ConfigError`."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from fleeting import ConfigError, ConfigProblem, Mistake


def read_toml(path: Path) -> tuple[str, Mapping[str, object]]:
    """Read a file, and return its text and its top table.

    Raises:
        ConfigError: It is not TOML.
        OSError: It cannot be read.
    """
    text = _read(path)
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _no_toml(path, f"something else: {error}") from error
    except RecursionError:
        raise _no_toml(path, "brackets within brackets without end") from None
    except ValueError as error:  # Python's own limit for the length of a number
        raise _no_toml(path, "a number with thousands of digits") from error


def _read(path: Path) -> str:
    """Read the text; some editors put a mark of the byte order before it."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        found = f"the byte 0x{error.object[error.start]:02x} in line {line}"
        raise _no_toml(path, found, "TOML in UTF-8", "save it with that encoding") from error
    except OSError as error:
        error.filename = error.filename or str(path)  # reading, unlike opening, leaves it out
        raise


def _no_toml(path: Path, found: str, expected: str = "TOML", hint: str = "") -> ConfigError:
    problem = ConfigProblem(path="", found=found, expected=expected, hint=hint, mistake=Mistake.SYNTAX)
    return ConfigError([problem], source=str(path))
