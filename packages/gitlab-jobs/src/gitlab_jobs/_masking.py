"""What must not be in a log: masked values, tokens, parameters of URLs; replaced wherever pieces end: pure.

Each stage takes bytes and gives bytes, and its output is the same however the input is cut into pieces. What might be
the beginning of a secret is held back until more is there, or the log ends. The stages come one after the other, as
GitLab Runner has them: values, parameters of URLs, tokens.

Speed comes from one regular expression per stage that looks for the byte of each secret that is rarest in logs, and
only there at the whole: looking for twenty values one after the other reads every log twenty times.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
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
        for known in _anchored(self._phrases, ignore_case=ignore_case):
            alternatives = (_alternative(anchor, places) for anchor, places in known.items())
            self._patterns.append((re.compile(b"|".join(alternatives), flags), known))

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
        for phrase in self._phrases:
            at = tail.find(phrase[:1], max(0, len(tail) - len(phrase) + 1), first)
            while at >= 0 and not phrase.startswith(tail[at:]):
                at = tail.find(phrase[:1], at + 1, first)
            first = at if at >= 0 else first
        return window + first


def _anchored(phrases: Iterable[bytes], *, ignore_case: bool) -> Iterator[_Anchored]:
    """What to look for: the beginning that many phrases share, by itself; and for the others, the rarest byte."""
    families: dict[bytes, list[bytes]] = {}
    for phrase in phrases:
        families.setdefault(phrase[:_SHARED], []).append(phrase)
    rest: _Anchored = {}
    for beginning, family in families.items():
        if len(family) >= _MANY and len(beginning) == _SHARED:
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
        b"(?=%s)(?<=%s)" % (re.escape(phrase[at + len(anchor) :]), re.escape(phrase[: at + len(anchor)]))
        for at, phrase in places
    )
    return b"%s(?:%s)" % (re.escape(anchor), around)


class _Values:
    """Hides phrases; those that overlap are hidden as one."""

    def __init__(self, phrases: Iterable[bytes]) -> None:
        self._finder = _Finder(phrases)
        self._held = b""
        self._hidden = 0  # so many of the held bytes are hidden already, and come back only as part of another phrase

    def feed(self, data: bytes) -> bytes:
        data, at = self._held + data, self._hidden
        shown = bytearray()
        for start, end in sorted(self._finder.find(data)):
            if start >= at:
                shown += data[at:start] + MASK
            at = max(at, end)
        hold = self._finder.might_begin(data)
        shown += data[at:hold]
        self._held, self._hidden = data[hold:], max(0, at - hold)
        return bytes(shown)

    def end(self) -> bytes:
        rest, self._held, self._hidden = self._held[self._hidden :], b"", 0
        return rest


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
