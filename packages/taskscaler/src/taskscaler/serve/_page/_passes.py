"""Who may see the page, and who may change something: links that are good once, and what they are traded for. Pure.

Of what is secret, only digests are kept: whoever reads this process's memory by a mistake of ours finds nothing to use,
and how long a look-up takes says nothing about what would have been right.
"""

from collections.abc import Callable
from hashlib import sha256
from secrets import compare_digest, token_urlsafe
from typing import TypeVar

from attrs import define, field, frozen

T = TypeVar("T")

LINK_LASTS = 300.0
"""Seconds for which a link is good."""

PASS_LASTS = 12 * 3600.0
"""Seconds after which whoever looks at the page needs another link."""

MOST_LINKS, MOST_PASSES = 64, 64
"""At a time; the oldest gives way."""

LONGEST_SECRET = 128
"""Characters of what is shown as a secret; ours have 43."""


@frozen(kw_only=True)
class Pass:
    """What a browser has that came by a link."""

    name: str
    """That of its link, which tells passes apart in the log, and opens nothing."""

    changes: bool
    """Whether it may cordon, retain and drain; else it only looks."""

    until: float
    """Seconds since the epoch."""

    _csrf: bytes = field(repr=False)
    """The digest of what a change has to bring along."""

    def permits(self, csrf: str) -> bool:
        """Whether a change that brings this along is asked for by the page that the link has opened."""
        return self.changes and len(csrf) <= LONGEST_SECRET and compare_digest(_digest(csrf), self._csrf)


@frozen(kw_only=True)
class Traded:
    """What is given for a link, once: nothing tells the secrets again."""

    found: Pass

    secret: str = field(repr=False)
    """Whose browser it is; for its cookie, which goes to all ports of the host."""

    csrf: str = field(repr=False)
    """What a change has to bring along; for the page, which keeps it from all other ports."""


@frozen
class _Link:
    changes: bool
    until: float


@define
class Passes:
    """All links and passes of a daemon; none of them outlives it."""

    _secret: Callable[[], str] = lambda: token_urlsafe(32)
    """Makes what nobody guesses."""

    _links: dict[bytes, _Link] = field(factory=dict, init=False, repr=False)
    _passes: dict[bytes, Pass] = field(factory=dict, init=False, repr=False)

    def link(self, now: float, *, changes: bool) -> str:
        """Make the secret of a link, for somebody who may only look, or may change something, too."""
        secret = self._secret()
        _put(self._links, _digest(secret), _Link(changes, now + LINK_LASTS), MOST_LINKS)
        return secret

    def trade(self, secret: str, now: float) -> Traded | None:
        """Take a link's secret, which is good no more, and give a pass with secrets of its own.

        Returns:
            None if the link is not good: nobody made it, it was used, or it is too old.
        """
        link = self._links.pop(_digest(secret), None) if len(secret) <= LONGEST_SECRET else None
        if link is None or now >= link.until:
            return None
        own, csrf = self._secret(), self._secret()
        given = Pass(name=name_of(secret), changes=link.changes, until=now + PASS_LASTS, csrf=_digest(csrf))
        _put(self._passes, _digest(own), given, MOST_PASSES)
        return Traded(found=given, secret=own, csrf=csrf)

    def find(self, secret: str, now: float) -> Pass | None:
        """Whose secret it is; None: nobody's, or not any more."""
        if len(secret) > LONGEST_SECRET:
            return None
        found = self._passes.get(key := _digest(secret))
        if found is not None and now >= found.until:
            del self._passes[key]
            return None
        return found

    def end(self, secret: str) -> None:
        """Forget a pass."""
        if len(secret) <= LONGEST_SECRET:
            self._passes.pop(_digest(secret), None)


def name_of(secret: str) -> str:
    """Name a link: 8 characters of its digest, of which nobody makes the link."""
    return _digest(secret).hex()[:8]


def _put(kept: dict[bytes, T], key: bytes, value: T, most: int) -> None:
    while len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value


def _digest(secret: str) -> bytes:
    return sha256(secret.encode(errors="replace")).digest()
