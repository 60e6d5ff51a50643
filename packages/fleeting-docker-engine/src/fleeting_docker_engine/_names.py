"""Image references, as Docker reads them. Pure.

Source: the grammar and the rules of github.com/distribution/reference (``regexp.go``, ``normalize.go``).
"""

import re
from fnmatch import fnmatchcase

from attrs import frozen

DOCKER_HUB = "docker.io"

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[A-Fa-f0-9:]+\])(?::[0-9]+)?"
_WORD = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH = rf"{_WORD}(?:/{_WORD})*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"

_LONGEST = 512
"""Characters of a reference; its name may have 255."""

_ID = re.compile(r"sha256:[0-9a-f]+|[0-9a-f]{64}")
"""What the daemon takes for the id of an image that it has, or its beginning, wherever that image is from."""


@frozen(kw_only=True)
class Reference:
    """Where an image is, and which one of those that are there."""

    registry: str
    """``host`` or ``host:port``; Docker's own: `DOCKER_HUB`."""

    path: str
    """Such as ``library/python``."""

    tag: str = ""
    """Empty if there is none."""

    digest: str = ""
    """It decides: where there is one, Docker does not look at the tag."""

    @classmethod
    def parse(cls, image: str) -> "Reference":
        """Read a reference as Docker does; one with neither tag nor digest has the tag ``latest``.

        Raises:
            ValueError: It is none.
        """
        read = _split(image)
        parts = (_HOST, read.registry), (_PATH, read.path), (_TAG, read.tag or "-"), (_DIGEST, read.digest or "-")
        wrong = any(part != "-" and not re.fullmatch(pattern, part) for pattern, part in parts)
        if wrong or len(image) > _LONGEST or _ID.fullmatch(image):
            raise ValueError("not a reference to an image")
        return read if read.tag or read.digest else cls(registry=read.registry, path=read.path, tag="latest")


def is_allowed(image: str, pattern: str) -> bool:
    """Whether a pattern, in which ``*`` is any characters, allows an image.

    Registry, path and tag are matched each by itself, as parsed, so that nothing in one of them can pass for another.
    ``*`` allows everything. A pattern without a tag means ``latest``, as a reference does, unless it ends with ``*``:
    then any. A digest may be anything that the repository ever had, so it takes one in the pattern, or any tag.
    """
    if pattern == "*":
        return True
    try:
        found = Reference.parse(image)
    except ValueError:
        return False
    wanted = _split(pattern)
    version = wanted.digest or wanted.tag or ("*" if pattern.endswith("*") else "latest")
    names = _matches(found.registry, wanted.registry) and _matches(found.path, wanted.path)
    if found.digest:
        return names and (version == "*" or (bool(wanted.digest) and _matches(found.digest, wanted.digest)))
    return names and not wanted.digest and _matches(found.tag, version)


def registry_of(image: str) -> str:
    """Name the registry that an image comes from: ``host`` or ``host:port``."""
    return _split(image).registry


def canonical(image: str) -> str:
    """Give a reference its tag, if it has neither tag nor digest: without one, Docker pulls every tag."""
    if "@" in image or ":" in image.rpartition("/")[2]:
        return image
    return f"{image}:latest"


def _split(image: str) -> Reference:
    """Take a reference, or a pattern for some, apart; what its parts are is not looked at."""
    rest, _, digest = image.partition("@")
    first, slash, behind = rest.partition("/")
    is_host = slash and (any(mark in first for mark in ".:") or first == "localhost" or first != first.lower())
    registry, rest = (first, behind) if is_host else (DOCKER_HUB, rest)
    above, slash, last = rest.rpartition("/")
    name, _, tag = last.partition(":")
    path = f"{above}{slash}{name}"
    registry = DOCKER_HUB if registry == f"index.{DOCKER_HUB}" else registry
    path = f"library/{path}" if registry == DOCKER_HUB and "/" not in path else path
    return Reference(registry=registry, path=path, tag=tag, digest=digest)


def _matches(part: str, pattern: str) -> bool:
    return part == pattern or fnmatchcase(part, pattern)
