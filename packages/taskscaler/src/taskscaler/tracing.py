"""For those that run jobs in slots, and follow them as traces: a job is a span, with its tries and phases below it.

A scaler has a tracer if one of its observers follows jobs, see `taskscaler.observers.traces`. A lease that a task asks
for `within` a trace is a part of that one. May change with any minor version.
"""

from taskscaler._parts import MOST_PARTS, Part, moved_by
from taskscaler._span import CONTEXT, Attributes, Span, SpanContext, context_in, harmless, read_context
from taskscaler._tracer import UNFINISHED, Trace, Tracer, add_parts, current, is_followed, within

__all__ = [
    "CONTEXT",
    "MOST_PARTS",
    "UNFINISHED",
    "Attributes",
    "Part",
    "Span",
    "SpanContext",
    "Trace",
    "Tracer",
    "add_parts",
    "context_in",
    "current",
    "harmless",
    "is_followed",
    "moved_by",
    "read_context",
    "within",
]
