"""For those that run jobs in slots, and follow them as traces: a job is a span, with its tries and phases below it.

A scaler has a tracer if one of its observers follows jobs, see `taskscaler.observers.traces`. A lease that a task asks
for `within` a trace is a part of that one. May change with any minor version.
"""

from taskscaler._tracer import (
    CONTEXT,
    UNFINISHED,
    Attributes,
    SpanContext,
    Trace,
    Tracer,
    context_in,
    current,
    harmless,
    read_context,
    within,
)

__all__ = [
    "CONTEXT",
    "UNFINISHED",
    "Attributes",
    "SpanContext",
    "Trace",
    "Tracer",
    "context_in",
    "current",
    "harmless",
    "read_context",
    "within",
]
