"""What comes from elsewhere, made fit for a terminal."""

import re

# An operating system command (title, clipboard, link) ends with BEL or ST; others are CSI or two characters long.
_ESCAPES = re.compile(
    r"""
    (?:\x1b\]|\x9d) [^\x07\x1b\x9c]* (?:\x07|\x1b\\|\x9c)?
    | (?:\x1b[PX^_]|[\x90\x98\x9e\x9f]) [^\x1b\x9c]* (?:\x1b\\|\x9c)?
    | (?:\x1b\[|\x9b) [0-?]* [ -/]* [@-~]?
    | \x1b [ -/]* [0-~]?
    """,
    re.VERBOSE,
)
_ERASES = ("\r\x1b[0K", "\r\x1b[K")
"""Before which nothing of a line is left: GitLab's logs hide the marks of their sections like this."""

_DIRECTION = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_CONTROLS = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_DIRECTION}]")


def harmless(text: str) -> str:
    """Take away whatever a terminal would obey: escape sequences, control characters, changes of direction.

    Line feeds and tabs stay. What a carriage return would have overwritten, or was erased behind one, is gone, as on a
    terminal.
    """
    if any(erase in text for erase in _ERASES):
        text = "\n".join(map(_unerased, text.split("\n")))
    lines = _ESCAPES.sub("", text).replace("\r\n", "\n").split("\n")
    return _CONTROLS.sub("", "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines))


def _unerased(line: str) -> str:
    for erase in _ERASES:
        line = line.rpartition(erase)[2]
    return line
