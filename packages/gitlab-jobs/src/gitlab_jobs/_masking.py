"""What must not be in a log: masked values, tokens, parameters of URLs; replaced wherever pieces end: pure.

Each stage takes bytes and gives bytes, and its output is the same however the input is cut into pieces. What might be
the beginning of a secret is held back until more is there, or the log ends. The stages come one after the other, as
GitLab Runner has them: values, parameters of URLs, tokens.

Speed comes from one regular expression per stage that looks for the byte of each secret that is rarest in logs, and
only there at the whole: looking for twenty values one after the other reads every log twenty times. Values that are too
many for that, or so much alike that they are found everywhere, are looked up in a set at each place: slower, but as
slow for whatever values and logs a job may have. Of long values, parts are hidden too, wherever they are: what is
looked for is never longer than `LONG`, so that little is held back and no comparison takes long.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

MASK = b"[MASKED]"

TOKEN_PREFIXES = (
    "glpat-",
    "gloas-",
    "gldt-",
    "glrt-",
    "glrtr-",
    "glcbt-",
    "glptt-",
    "glft-",
    "glimt-",
    "glagent-",
    "glwt-",
    "glsoat-",
    "glffct-",
    "_gitlab_session=",
)
"""What tokens of GitLab begin with."""

URL_PARAMETERS = (
    "private_token",
    "authenticity_token",
    "rss_token",
    "x-amz-signature",
    "x-amz-credential",
    "x-amz-security-token",
)
"""Parameters of URLs that are secrets, in any case."""

_COMMON = b" etaoinsrlhdcumpfg0123456789./-_:()[]\n\x1bbywvkxjqz,;?&='\"ETAOINSRLHDCUMPFGBYWVKXJQZ"
"""What logs are made of, the most frequent first; what is not here is rarer still."""

_HALF = re.compile("[\ud800-\udfff]")
_OF_TOKEN = re.compile(rb"[A-Za-z0-9_.=-]*")
_OF_PARAMETER = re.compile(rb"[^\s&#\"'<>]*")


LONG = 96
"""Bytes of the longest value that is looked for as a whole; of a longer one, blocks that overlap."""

_BLOCK = 64
"""Bytes of those blocks; each has the last byte of the one before it, so that all of them are hidden as one."""

_AROUND = 16
"""Bytes on either side of the rarest one that a pattern compares; the rest is compared where those are right."""

_CROWD = 64
"""Phrases that may be looked for by the same bytes without a thought of how often those are there."""

_MOST = 2000
"""Phrases that patterns are made of, at most: more of them take longer than looking up each place."""

_WORTH = 2
"""Comparisons by a pattern that take as long as looking up one place."""

_FEW = 32
"""Phrases that are compared one after the other with the end of a piece; else they are looked up."""

_SHARED, _MANY = 2, 4
"""Bytes that phrases share and are found by if so many do: the prefixes of tokens. Python looks for one piece of text
several times as fast as for one of several bytes."""

_Anchored: TypeAlias = dict[bytes, list[tuple[int, bytes]]]
"""By the bytes that are looked for: the phrases that have them, and where in them."""


class Masker:
    """Hides secrets in the output of a job."""

    def __init__(self, values: Iterable[str | bytes], *, prefixes: Iterable[str] = ()) -> None:
        """Hide these values, and tokens with these prefixes beside those of GitLab's own."""
        phrases = [each for value in values for each in ([value] if isinstance(value, bytes) else _spellings(value))]
        openers = [f"{mark}{name}=".encode() for name in URL_PARAMETERS for mark in "?&"]
        tokens = [each.encode(errors="replace") for each in (*TOKEN_PREFIXES, *prefixes)]
        self._stages: Sequence[_Values | _Openers] = (
            _Values(phrases),
            _Openers(openers, _OF_PARAMETER, ignore_case=True),
            _Openers(tokens, _OF_TOKEN),
        )

    def feed(self, data: bytes) -> bytes:
        """Take a piece; returns what can be shown by now."""
        for stage in self._stages:
            data = stage.feed(data)
        return data

    def end(self) -> bytes:
        """The rest, once nothing more comes."""
        rest = b""
        for stage in self._stages:
            rest = stage.feed(rest) + stage.end()
        return rest


def _spellings(value: str) -> set[bytes]:
    """The bytes that programs print a value as: JSON may have half of a character in it, which each writes its way."""
    try:
        return {value.encode()}
    except UnicodeEncodeError:
        replaced = _HALF.sub("\N{REPLACEMENT CHARACTER}", value).encode()
        each_byte = _HALF.sub("\N{REPLACEMENT CHARACTER}" * 3, value).encode()
        return {replaced, each_byte, value.encode(errors="surrogatepass"), value.encode(errors="replace")}


class _Finder:
    """All places where any of several phrases is, overlapping ones too, and where one might begin at the end."""

    def __init__(self, phrases: Iterable[bytes], *, ignore_case: bool = False) -> None:
        fold = bytes.lower if ignore_case else bytes
        self._fold = fold
        self._phrases = sorted({fold(each) for each in phrases if each})
        self._longest = max(map(len, self._phrases), default=0)
        flags = re.IGNORECASE if ignore_case else re.NOFLAG
        self._patterns: list[tuple[re.Pattern[bytes], _Anchored]] = []
        self._is_full = len(self._phrases) > _MOST
        for known in () if self._is_full else _anchored(self._phrases, ignore_case=ignore_case):
            alternatives = (_alternative(anchor, places) for anchor, places in known.items())
            self._patterns.append((re.compile(b"|".join(alternatives), flags), known))
        counted = ((anchor, len(places)) for _, known in self._patterns for anchor, places in known.items())
        self._crowds = [(anchor, crowd) for anchor, crowd in counted if crowd > _CROWD]

    def is_slow(self, data: bytes) -> bool:
        """Whether looking up each place of the data takes less time than `find`."""
        compared = sum(data.count(anchor) * crowd for anchor, crowd in self._crowds)
        return self._is_full or compared > _WORTH * len(data)

    def find(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Where phrases are: start and end, in no order."""
        folded = self._fold(data)
        for pattern, known in self._patterns:
            for found in pattern.finditer(data):
                for at, phrase in known[folded[found.start() : found.end()]]:
                    start = found.start() - at
                    if start >= 0 and folded.startswith(phrase, start):
                        yield start, start + len(phrase)

    def might_begin(self, data: bytes) -> int:
        """Where the longest end of the data is that a phrase begins with, short of a whole one; else its length."""
        window = max(0, len(data) - self._longest + 1)
        tail = self._fold(data[window:])
        first = len(tail)
        if len(self._phrases) > _FEW:
            return window + next(filter(lambda at: self._begins(tail[at:]), range(first)), first)
        for phrase in self._phrases:
            at = tail.find(phrase[:1], max(0, len(tail) - len(phrase) + 1), first)
            while at >= 0 and not phrase.startswith(tail[at:]):
                at = tail.find(phrase[:1], at + 1, first)
            first = at if at >= 0 else first
        return window + first

    def _begins(self, text: bytes) -> bool:
        """Whether a longer phrase begins with this."""
        at = bisect_right(self._phrases, text)
        return at < len(self._phrases) and self._phrases[at].startswith(text)


def _anchored(phrases: Iterable[bytes], *, ignore_case: bool) -> Iterator[_Anchored]:
    """What to look for: the beginning that many phrases share, by itself; and for the others, the rarest byte.

    Not if the beginning is a byte twice, since places that overlap would be passed over.
    """
    families: dict[bytes, list[bytes]] = {}
    for phrase in phrases:
        families.setdefault(phrase[:_SHARED], []).append(phrase)
    rest: _Anchored = {}
    for beginning, family in families.items():
        if len(family) >= _MANY and len(set(beginning)) == _SHARED:
            yield {beginning: [(0, phrase) for phrase in family]}
            continue
        for phrase in family:
            _, at = max((_rarity(byte, ignore_case=ignore_case), at) for at, byte in enumerate(phrase))
            rest.setdefault(phrase[at : at + 1], []).append((at, phrase))
    if rest:
        yield rest


def _rarity(byte: int, *, ignore_case: bool) -> int:
    """How rarely a byte is met; letters whose case does not matter are two bytes, and never chosen if avoidable."""
    place = _COMMON.find(byte)
    return -1 if ignore_case and bytes([byte]).isalpha() else place if place >= 0 else len(_COMMON)


def _alternative(anchor: bytes, places: Iterable[tuple[int, bytes]]) -> bytes:
    """A pattern that is the anchor alone, where a phrase is around it."""
    around = b"|".join(
        b"(?=%s)(?<=%s)" % (re.escape(phrase[end : end + _AROUND]), re.escape(phrase[max(0, end - _AROUND) : end]))
        for end, phrase in ((at + len(anchor), phrase) for at, phrase in places)
    )
    return b"%s(?:%s)" % (re.escape(anchor), around)


class _Places:
    """All places where any of many phrases is: the longest at each, looked up place by place."""

    def __init__(self, phrases: Iterable[bytes]) -> None:
        self._phrases = frozenset(phrases)
        self._lengths = sorted({len(each) for each in self._phrases}, reverse=True)
        self._head = min(self._lengths, default=1)
        self._heads = frozenset(each[: self._head] for each in self._phrases)

    def find(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Where phrases are: start and end, by their starts."""
        heads, head = self._heads, self._head
        for start in [at for at in range(len(data) - head + 1) if data[at : at + head] in heads]:
            for length in self._lengths:
                if (found := data[start : start + length]) in self._phrases:
                    yield start, start + len(found)
                    break


def _blocks(phrase: bytes) -> Iterator[bytes]:
    """A phrase, or what is looked for instead of a long one: all of it is in blocks that overlap."""
    if len(phrase) <= LONG:
        yield phrase
    else:
        yield from (phrase[at : at + _BLOCK] for at in range(0, len(phrase) - _BLOCK, _BLOCK - 1))
        yield phrase[-_BLOCK:]


class _Values:
    """Hides phrases; those that overlap are hidden as one."""

    def __init__(self, phrases: Iterable[bytes]) -> None:
        blocks = {block for phrase in phrases if phrase for block in _blocks(phrase)}
        self._finder = _Finder(blocks)
        self._places = _Places(blocks)
        self._held = b""
        self._hidden = 0  # so many of the held bytes are hidden already, and come back only as part of another phrase

    def feed(self, data: bytes) -> bytes:
        data = self._held + data
        return self._show(data, self._finder.might_begin(data))

    def end(self) -> bytes:
        return self._show(self._held, len(self._held))

    def _show(self, data: bytes, hold: int) -> bytes:
        """What is before a place; a phrase that begins behind it may be a part of a longer one that begins there."""
        shown, at = bytearray(), self._hidden
        for start, end in self._found(data):
            if start >= hold:
                break
            if start >= at:
                shown += data[at:start] + MASK
            at = max(at, end)
        shown += data[at:hold]
        self._held, self._hidden = data[hold:], max(0, at - hold)
        return bytes(shown)

    def _found(self, data: bytes) -> Iterable[tuple[int, int]]:
        """Where phrases are, by their starts."""
        most = 0 if self._finder.is_slow(data) else len(data) // 4 + 1
        found = list(islice(self._finder.find(data), most))
        return sorted(found) if len(found) < most else self._places.find(data)


class _Openers:
    """Hides what comes after something, such as the prefix of a token, as long as it may be part of the secret."""

    def __init__(self, openers: Iterable[bytes], secret: re.Pattern[bytes], *, ignore_case: bool = False) -> None:
        self._finder = _Finder(openers, ignore_case=ignore_case)
        self._secret = secret
        self._held = b""
        self._done = 0  # so many of the held bytes are dealt with already
        self._is_open = False  # a secret may go on where the next piece begins
        self._is_masked = False  # and its mask is written

    def feed(self, data: bytes) -> bytes:
        data, at = self._held + data, self._done
        shown = bytearray()
        if self._is_open:
            at = self._hide(data, at, shown)
        for _, end in sorted(self._finder.find(data), key=lambda span: span[1]):
            if end > at:
                shown += data[at:end]
                self._is_masked = False
                at = self._hide(data, end, shown)
        hold = self._finder.might_begin(data)
        shown += data[at:hold]
        self._held, self._done = data[hold:], max(0, at - hold)
        return bytes(shown)

    def end(self) -> bytes:
        rest, self._held, self._done, self._is_open = self._held[self._done :], b"", 0, False
        return rest

    def _hide(self, data: bytes, at: int, shown: bytearray) -> int:
        """Hide the secret that begins here; returns where it ends."""
        found = self._secret.match(data, at)
        end = found.end() if found else at
        if end > at and not self._is_masked:
            shown += MASK
            self._is_masked = True
        self._is_open = end == len(data)
        return end
