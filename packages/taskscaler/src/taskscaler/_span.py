"""What a span is, what it is called by, and what may be shown in one. Pure."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from fleeting.plugins import one_line

Attributes = Mapping[str, str | int | float | bool]

CONTEXT: Final = ("TRACEPARENT", "TRACESTATE")
"""The variables that bring a context to a process."""

LONGEST_STATE: Final = 512
"""Characters of a ``tracestate``; longer ones are dropped, as W3C allows."""

MOST_MEMBERS: Final = 32
"""Members of a ``tracestate``; one with more is dropped, as W3C allows."""

LONGEST: Final = 1024
"""Bytes of one value; longer ones are cut."""

READ: Final = 4 * LONGEST
"""Characters of a text that are looked at, of which one value is made."""

_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MEMBER: Final = re.compile(
    r"([a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
"""What a ``tracestate`` consists of: the name of a system, and what it says."""

_USERINFO: Final = re.compile(r"(?<=//)[^/\s@]*@")
_UNFINISHED: Final = re.compile(r"(?<=//)[^/\s]*\Z")
_CAUSE: Final = re.compile(r"(?: \(|: ).*", re.DOTALL)


def harmless(text: str) -> str:
    """Make a text that others have a hand in fit to be shown: one line, not too long, no password in an address.

    Nor halves of surrogate pairs, which JSON can have, and what is sent cannot.
    """
    if len(text) > READ:  # what stands at the end may be half of a password
        text = f"{_UNFINISHED.sub('', text[:READ])}…"
    return one_line(_USERINFO.sub("", text).encode(errors="replace").decode(), LONGEST)


def kind(reason: str) -> str:
    """Give what a reason begins with, in words of ours; a cause in brackets or behind a colon is a cloud's to word."""
    return harmless(_CAUSE.sub("", reason))


class SpanContext(NamedTuple):
    """Names a span for those that are to be its children, or are linked to it."""

    trace_id: int
    span_id: int
    is_sampled: bool
    state: str = ""
    """What the systems on the way have added, ``tracestate``."""

    @property
    def traceparent(self) -> str:
        """As W3C has it."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{'01' if self.is_sampled else '00'}"

    @property
    def env(self) -> dict[str, str]:
        """The variables that bring it to a process, under OpenTelemetry's names."""
        carried = {"TRACEPARENT": self.traceparent}
        return {**carried, "TRACESTATE": self.state} if self.state else carried


def carried(env: Mapping[str, str]) -> dict[str, str]:
    """Give the headers that bring the context of an environment to a daemon; none if it has none."""
    context = context_in(env)
    return {} if context is None else {name.lower(): value for name, value in context.env.items()}


def read_context(traceparent: str | None, tracestate: str | None = "") -> SpanContext | None:
    """Read what W3C's headers, or the variables of those names, say; None: nothing that can be used."""
    found = _PARENT.fullmatch((traceparent or "").strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return SpanContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & 1), _state(tracestate or ""))


def _state(text: str) -> str:
    """Read a ``tracestate``: all of it, or, if anything of it is wrong, nothing, as W3C has it."""
    if len(text) > LONGEST_STATE:
        return ""
    members = [each for each in (member.strip(" \t") for member in text.split(",")) if each]
    found = [_MEMBER.fullmatch(each) for each in members]
    keys = {each[1] for each in found if each is not None}
    return ",".join(members) if len(keys) == len(members) <= MOST_MEMBERS else ""


def context_in(env: Mapping[str, str]) -> SpanContext | None:
    """Find the context that variables bring, if they do."""
    traceparent = env.get("TRACEPARENT")
    return read_context(traceparent, env.get("TRACESTATE")) if traceparent else None


class Span(NamedTuple):
    """Something that began and has ended. Times are seconds since the epoch."""

    name: str
    context: SpanContext
    parent: SpanContext | None
    began: float
    ended: float
    attributes: Attributes
    links: tuple[SpanContext, ...]
    error: str
    """The kind of error with which it ended; empty: it went well."""
