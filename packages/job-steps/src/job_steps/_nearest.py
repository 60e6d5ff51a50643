"""What somebody may have meant who wrote a name that is not there."""

from collections.abc import Iterable
from itertools import islice

_LONGEST = 80
"""Characters of a name that is compared: how long that takes grows with their square, and names come from outside."""

_MOST = 1000
"""Names that are compared with."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the name among those that are known that is most like another one; empty if none is."""
    from difflib import get_close_matches

    if len(name) > _LONGEST:
        return ""
    near = get_close_matches(name, [each for each in islice(known, _MOST) if len(each) <= _LONGEST], n=1)
    return near[0] if near else ""
