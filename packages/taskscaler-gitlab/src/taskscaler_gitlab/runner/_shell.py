"""Text for shells: whatever POSIX `sh` there is, dash, bash or busybox's: pure."""

import re
from shlex import quote

__all__ = ["NAME", "notice", "quote", "warning"]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
"""What a variable can be called in a shell."""

_GREEN, _YELLOW, _PLAIN = "\x1b[32;1m", "\x1b[0;33m", "\x1b[0;m"
_CONTROLS = re.compile(r"[\x00-\x1f\x7f\u0085\u2028\u2029]")


def notice(text: str) -> str:
    """A command that says what is done, in green, as GitLab Runner does."""
    return _says(_GREEN, text)


def warning(text: str) -> str:
    """A command that says what is not as expected, in yellow."""
    return _says(_YELLOW, text)


def one_line(text: str) -> str:
    """The text without what could end its line or move a terminal's cursor."""
    return _CONTROLS.sub(" ", text)


def _says(colour: str, text: str) -> str:
    return f"printf '%s\\n' {quote(f'{colour}{one_line(text)}{_PLAIN}')}"
