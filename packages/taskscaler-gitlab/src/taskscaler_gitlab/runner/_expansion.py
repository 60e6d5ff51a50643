"""References to variables in the values of others, as GitLab Runner expands them: pure.

GitLab Runner expands with Go's ``os.Expand``, once and not by shell rules: ``$name``, ``${name}``, and one character of
``*#$@!?-`` or a digit; ``$$`` is a dollar, the others are nothing; what is unknown is nothing. ``${name:-default}`` is
the variable of that whole name, so nothing too. A dollar before anything else stays. ``${}`` goes away, and so do the
two characters of a ``${`` that nothing closes.

What a reference stands for is not expanded in turn: GitLab itself has expanded those that its variables have to one
another before it sends them, and two that name each other cannot go round in circles.

Source: ``common/spec/variables.go`` of gitlab-runner, and ``os.Expand``.
"""

import re
from collections.abc import Callable, Iterator

from attrs import define

from taskscaler_gitlab.runner._errors import JobInvalid

MAX_EXPANDED = 64_000_000
"""Characters of all variables together, or of all other texts: a few kilobytes of references could stand for
gigabytes."""

_WORK = 64
"""Characters that a reference counts for beside what it stands for: a million of them takes a second."""

_BARE = r"(?P<nothing>\{\}?)|(?P<name>[*#$@!?\-0-9]|[A-Za-z_][A-Za-z0-9_]*)"
_CLOSED = re.compile(rf"\$(?:\{{(?P<braced>[^}}]+)\}}|{_BARE})")
_UNCLOSED = re.compile(rf"\$(?:{_BARE})")
_SPECIAL = dict.fromkeys("*#@!?0123456789", "") | {"$": "$"}
"""What a shell would have its own values for, and GitLab Runner has none."""


def expand(text: str, value: Callable[[str], str], *, limit: int = MAX_EXPANDED) -> str:
    """The text with what its references stand for.

    Args:
        text: What has references in it.
        value: A variable's value, empty if there is none.
        limit: Characters that the result may have.

    Raises:
        JobInvalid: It would be longer.
    """
    if "$" not in text:
        return text
    pieces, length = [], 0
    for piece in _pieces(text, value):
        length += len(piece) + _WORK
        if length > limit:
            raise JobInvalid(
                f"the job's variables, or its other texts, grow beyond {MAX_EXPANDED} characters when references in"
                " them are replaced, or there are too many references; refer to long values less often, or make those"
                " variables raw"
            )
        pieces.append(piece)
    return "".join(pieces)


@define
class Budget:
    """What several texts may grow to together."""

    left: int = MAX_EXPANDED
    """Characters."""

    def expand(self, text: str, value: Callable[[str], str]) -> str:
        """See `expand`."""
        expanded = expand(text, value, limit=self.left)
        self.left -= len(expanded) + _WORK * text.count("$") if "$" in text else 0
        return expanded


def _pieces(text: str, value: Callable[[str], str]) -> Iterator[str]:
    end = text.rfind("}") + 1  # behind it nothing is closed: looking for that at each `${` would take for ever
    for pattern, part in ((_CLOSED, text[:end]), (_UNCLOSED, text[end:])):
        at = 0
        for found in pattern.finditer(part):
            yield part[at : found.start()]
            if found.lastgroup and found.lastgroup != "nothing":
                name = found[found.lastgroup]
                yield _SPECIAL[name] if name in _SPECIAL else value(name)
            at = found.end()
        yield part[at:]
