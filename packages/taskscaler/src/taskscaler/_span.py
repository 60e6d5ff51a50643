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

LONGEST: Final = 1024
"""Bytes of one value; longer ones are cut."""

_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE: Final = re.compile(r"[\x20-\x7e]*")
_USERINFO: Final = re.compile(r"(?<=//)[^/\s@]*@")
_CAUSE: Final = re.compile(r"(?: \(|: ).*", re.DOTALL)


def harmless(text: str) -> str:
    """Make a text that others have a hand in fit to be shown: one line, not too long, no password in an address.

    Nor halves of surrogate pairs, which JSON can have, and what is sent cannot.
    """
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
    state = (tracestate or "").strip()
    usable = len(state) <= LONGEST_STATE and _STATE.fullmatch(state)
    return SpanContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & 1), state if usable else "")


def context_in(env: Mapping[str, str]) -> SpanContext | None:
    """Find the context that variables bring, if they do."""
    return read_context(env.get("TRACEPARENT"), env.get("TRACESTATE"))


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
