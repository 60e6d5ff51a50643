"""Pages of Markdown: their headings, as links name them, and their links."""

import re
from collections import Counter

_BLOCK = re.compile(r"^(```+|~~~+).*?^\1", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_TARGET = re.compile(r'<a id="([^"]+)">')
_LINK = re.compile(r"(?<!\\)\]\(<?([^)\s>]+)>?\)")


def prose(text: str) -> str:
    """A page without its blocks of code."""
    return _BLOCK.sub("", text)


def anchors(text: str) -> set[str]:
    """The names by which links find a page's headings, one that comes twice by a number, and what has an id."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in _HEADING.findall(prose(text)):
        name = slug(heading)
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found | set(_TARGET.findall(text))


def slug(heading: str) -> str:
    """A heading as a link names it: GitHub's rule, which the site follows."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")


def links(text: str) -> list[str]:
    """What a page links to, pictures too, in order."""
    return _LINK.findall(re.sub(r"`[^`\n]*`", "", prose(text)))
