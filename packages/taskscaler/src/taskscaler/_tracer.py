"""What happened to each job, as spans: who waited for what, where it ran, and what that was a part of. Pure.

A scaler has a tracer only if one of its observers is `Traced`. A span is given away when it has ended, so that what is
kept of a job is what is under way with it, however long it runs: its trace, its last try, and one phase. Of a trace
that is not sampled nothing is kept but its name, which the job is given all the same. Time never goes back within a
trace, so that whatever a clock does, a child lies within its parent.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from hashlib import sha256
from random import Random
from typing import Final, NamedTuple, Protocol, runtime_checkable

from fleeting.plugins import one_line
from fleeting.runtime import CloudCall

Attributes = Mapping[str, str | int | float | bool]

MOST_OPEN: Final = 100_000
"""Traces under way at a time; those beyond are not sampled."""

MOST_DECISIONS: Final = 64
"""That are remembered, so that what they have led to can be linked to them."""

UNFINISHED: Final = "unfinished"
"""The error of what was still under way when nobody was left to follow it."""

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
_NONE: Final[Attributes] = {}


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


class Sampling(NamedTuple):
    """Whether a trace is followed, as a sampler has it."""

    is_sampled: bool
    state: str = ""
    attributes: Attributes = _NONE


Sampler = Callable[[int, SpanContext | None, str], Sampling]
"""Decides on a trace by its id, the parent of its first span here, and that one's name."""


class Place(Protocol):
    """A slot."""

    @property
    def pool(self) -> str:
        """Name of the instance's pool."""
        ...

    @property
    def instance(self) -> str:
        """The instance's id."""
        ...

    @property
    def slot(self) -> int:
        """The number of the slot, from 0."""
        ...


class _Try:
    """One try at a job, on one slot: under way."""

    __slots__ = ("attributes", "began", "context", "has_run", "phase", "phase_began", "phase_context", "ran", "run")

    def __init__(self, context: SpanContext, run: SpanContext, began: float, attributes: dict[str, str | int]) -> None:
        self.context = context
        self.run = run
        """What its phase ``run`` is to be called: known before, because the job is told."""

        self.began = began
        self.attributes: dict[str, str | int | float | bool] = {**attributes}
        self.phase: str | None = None
        """The one that is under way; empty: nobody has said yet which it is; None: none is."""

        self.phase_began = began
        self.phase_context = context
        self.has_run = False
        self.ran: Span | None = None
        """Its last phase ``run``, once that is over, until it is known how it went."""


class Trace:
    """What is under way of one job, or of one lease that no job of ours has: a span, and those within it."""

    __slots__ = (
        "_attributes",
        "_before",
        "_began",
        "_latest",
        "_links",
        "_name",
        "_parent",
        "_tracer",
        "_try",
        "context",
        "has_ended",
        "is_followed",
        "tries",
    )

    def __init__(
        self,
        tracer: "Tracer",
        name: str,
        context: SpanContext,
        began: float,
        *,
        parent: SpanContext | None = None,
        attributes: Attributes = _NONE,
        links: tuple[SpanContext, ...] = (),
    ) -> None:
        """Begin."""
        self._tracer = tracer
        self._name = name
        self.context = context
        """Of the whole."""

        self._parent = parent
        self._began = self._latest = began
        self._attributes = attributes
        self._try: _Try | None = None
        self._before: SpanContext | None = None
        self._links = links
        self.tries = 0
        self.has_ended = False
        self.is_followed = context.is_sampled
        """Whether anything of it is given away; whoever has nothing else to do with it need not even read the clock."""

    @property
    def inner(self) -> SpanContext:
        """Of what runs in its slot: what that does is a part of it."""
        return self.context if self._try is None else self._try.run

    @property
    def env(self) -> dict[str, str]:
        """The variables with which what runs in its slot joins the trace."""
        return self.inner.env

    @property
    def is_tried(self) -> bool:
        """Whether a try is under way: a slot that comes is for that one."""
        return self._try is not None

    def note(self, attributes: Attributes) -> None:
        """Add to the attributes of the whole."""
        if self.is_followed:
            self._attributes = {**self._attributes, **attributes}

    # --- what happens to it ------------------------------------------------------------------------------

    def begin_try(self, at: float, attributes: Attributes = _NONE) -> None:
        """Somebody tries to run it, and wants a slot first; a try that was under way has ended."""
        self.tries += 1
        if not self.is_followed:
            return
        self.end_try(at, UNFINISHED)
        at = self._at(at)
        numbered: dict[str, str | int] = {"taskscaler.try": self.tries}
        self._try = _Try(self._tracer.child(self.context), self._tracer.child(self.context), at, numbered)
        self._try.attributes.update(attributes)

    def waited(self, since: float, at: float, error: str) -> None:
        """Nobody has given it a slot."""
        if self.is_followed:
            self._child("wait", since, at, error=error)

    def acquired(self, asked_at: float, since: float, at: float, place: Place) -> None:
        """It has a slot: since when it has wanted one, had one, and may use it, because that is durable."""
        if not self.is_followed:
            return
        where: Attributes = {"host.id": place.instance, "taskscaler.pool": place.pool, "taskscaler.slot": place.slot}
        self._child("wait", asked_at, since)
        self._child("acquire", since, at, where)
        if self._try is None:
            self._attributes = {**self._attributes, **where}
        else:
            self._try.attributes.update(where)

    def dialled(self, since: float, at: float, error: str = "") -> None:
        """Somebody has connected to its instance, or has failed to."""
        if not self.is_followed:
            return
        self._child("dial", since, at, error=error)
        tried = self._try
        if tried is not None and not error and tried.phase is None and not tried.has_run:
            tried.phase, tried.phase_began = "", self._at(at)

    def enter(self, phase: str, at: float) -> None:
        """Its executor says what it does with it from now on: ``ready``, ``run`` or ``collect``."""
        tried = self._try
        if not self.is_followed or tried is None or tried.phase == phase:
            return
        at = self._at(at)
        if phase == "ready" and tried.phase == "":
            at = tried.phase_began
        else:
            self._end_phase(tried, at, "ready")
        is_first = phase == "run" and not tried.has_run
        tried.phase, tried.phase_began = phase, at
        tried.phase_context = tried.run if is_first else self._tracer.child(tried.context)
        tried.has_run = tried.has_run or is_first

    def end_try(
        self, at: float, error: str = "", attributes: Attributes = _NONE, *, has_run_badly: bool = False
    ) -> None:
        """The try is over, and with it what it was at; nothing happens if none was under way.

        Args:
            at: When.
            error: How it failed; empty: it did not.
            attributes: What is known of it.
            has_run_badly: Whether it is what ran that failed, whatever was done since.
        """
        tried = self._try
        if tried is None or self.has_ended:
            return
        at = self._at(at)
        if has_run_badly and tried.ran is not None:
            self._end_run(tried, error)
            self._end_phase(tried, at, "run")
        else:
            self._end_phase(tried, at, "run", error)
        self._end_run(tried)
        self._try = None
        links = () if self._before is None else (self._before,)
        known = {**tried.attributes, **attributes}
        self._tracer.emit(Span("try", tried.context, self.context, tried.began, at, known, links, error))
        self._before = tried.context

    def end(self, at: float, error: str = "", attributes: Attributes = _NONE) -> None:
        """It is over; nothing happens if it was."""
        if self.has_ended:
            return
        if self.context.is_sampled:
            self.end_try(at, error)
            known = {**self._attributes, **attributes}
            at = self._at(at)
            self._tracer.emit(Span(self._name, self.context, self._parent, self._began, at, known, self._links, error))
            self._tracer.forget(self)
        self.has_ended, self.is_followed = True, False

    def leave(self, at: float) -> None:
        """Somebody else goes on with it, who begins it again with the same seed: its span is theirs to give away."""
        if not self.has_ended:
            self.end_try(at, "", {"taskscaler.left": True})
            self._tracer.forget(self)
        self.has_ended, self.is_followed = True, False

    def add(self, name: str, since: float, at: float, attributes: Attributes = _NONE, error: str = "") -> None:
        """Something that is over, within what is under way."""
        if self.is_followed:
            self._child(name, since, at, attributes, error)

    def add_first(self, name: str, at: float) -> None:
        """What it was at before anything else, until then."""
        if self.is_followed:
            at = min(max(at, self._began), self._latest)
            self._tracer.emit(
                Span(name, self._tracer.child(self.context), self.context, self._began, at, _NONE, (), "")
            )

    def add_to_run(self, name: str, since: float, at: float, attributes: Attributes = _NONE, error: str = "") -> None:
        """The same of what has run, also if it is learned of only when that is over."""
        ran = None if self._try is None or self._try.phase == "run" else self._try.ran
        if not self.is_followed or ran is None:
            self.add(name, since, at, attributes, error)
            return
        at = min(max(at, ran.began), ran.ended)
        since = min(max(since, ran.began), at)
        self._tracer.emit(Span(name, self._tracer.child(ran.context), ran.context, since, at, attributes, (), error))

    # --- inside ------------------------------------------------------------------------------------------

    def _at(self, at: float) -> float:
        """Now, which is never earlier than what was."""
        self._latest = max(self._latest, at)
        return self._latest

    def _end_phase(self, tried: _Try, at: float, otherwise: str, error: str = "") -> None:
        """End what is under way; if nobody has said what that is, it is *otherwise*."""
        if tried.phase is None:
            return
        if not tried.phase:
            tried.phase = otherwise
            tried.phase_context = tried.run if otherwise == "run" else self._tracer.child(tried.context)
        span = Span(tried.phase, tried.phase_context, tried.context, tried.phase_began, at, _NONE, (), error)
        if tried.phase == "run" and not error:
            self._end_run(tried)
            tried.ran = span
        else:
            self._tracer.emit(span)
        tried.phase = None

    def _end_run(self, tried: _Try, error: str = "") -> None:
        """Give away what ran, now that it is known how that went."""
        if tried.ran is not None:
            self._tracer.emit(tried.ran._replace(error=error) if error else tried.ran)
            tried.ran = None

    def _child(self, name: str, since: float, at: float, attributes: Attributes = _NONE, error: str = "") -> None:
        """Something that is over already, within what is under way."""
        tried = self._try
        if tried is None:
            parent, first = self.context, self._began
        elif tried.phase:
            parent, first = tried.phase_context, tried.phase_began
        else:
            parent, first = tried.context, tried.began
        at = self._at(at)
        since = min(max(since, first), at)
        self._tracer.emit(Span(name, self._tracer.child(parent), parent, since, at, attributes, (), error))


_CURRENT: Final[ContextVar[Trace | SpanContext | None]] = ContextVar("taskscaler_trace", default=None)
"""What the task that asks is a part of: a job of ours, or something elsewhere that has sent its context along."""


class within:  # noqa: N801  (a context manager; a generator costs a microsecond more)
    """Have what the body asks for be a part of a trace."""

    __slots__ = ("_token", "_trace")

    def __init__(self, trace: Trace | SpanContext | None) -> None:
        """Of this one."""
        self._trace = trace

    def __enter__(self) -> None:
        """Begin."""
        self._token = _CURRENT.set(self._trace)

    def __exit__(self, *_: object) -> None:
        """Be what was before."""
        _CURRENT.reset(self._token)


def current() -> Trace | SpanContext | None:
    """Give what this task is a part of."""
    return _CURRENT.get()


def enter_phase(phase: str) -> None:
    """Note what an executor does from now on with the job that this task is at; nothing happens without tracing."""
    trace = _CURRENT.get()
    if isinstance(trace, Trace) and trace.is_followed and trace.is_tried:
        trace.enter(phase, trace._tracer.now())  # noqa: SLF001  (this module's own)


def _ids(seed: str) -> tuple[int, int]:
    """The ids of a trace and of its first span, neither of them 0."""
    made = sha256(seed.encode()).digest()
    return int.from_bytes(made[:16]) or 1, int.from_bytes(made[16:24]) or 1


class Tracer:
    """Begins traces, and gives away spans that have ended."""

    def __init__(
        self,
        emit: Callable[[Span], None],
        sample: Sampler,
        *,
        random: Random | None = None,
        most_open: int = MOST_OPEN,
    ) -> None:
        """Begin with nothing.

        Args:
            emit: Takes each span that has ended; must be quick.
            sample: Decides which traces are followed.
            random: Where ids come from; None: from a generator of its own.
            most_open: Traces under way at a time; those beyond are not sampled.
        """
        self.emit = emit
        self.sample = sample
        self.now: Callable[[], float] = lambda: 0.0
        """Seconds since the epoch; the scaler's, once it has one."""

        self.surroundings: Callable[[], SpanContext | None] = lambda: None
        """What the program that asks is at, if it follows that itself."""

        self._decided: deque[tuple[float, SpanContext]] = deque(maxlen=MOST_DECISIONS)
        """The last scaling decisions, and when they were made."""

        self.left_out = 0
        """Traces that were not followed, because too many were under way."""

        self._bits = (Random() if random is None else random).getrandbits  # noqa: S311  (ids are no secrets)
        self._most_open = most_open
        self._open: dict[Trace, None] = {}

    @property
    def open(self) -> int:
        """Traces under way."""
        return len(self._open)

    def begin(
        self,
        name: str,
        at: float | None = None,
        attributes: Attributes = _NONE,
        *,
        parent: SpanContext | None = None,
        links: tuple[SpanContext, ...] = (),
        seed: str = "",
    ) -> Trace:
        """Begin a trace, or what we have of that which its parent is in; by default now.

        Args:
            name: Of its span.
            at: When, in seconds since the epoch.
            attributes: What is known of it.
            parent: What it is a part of.
            links: What it has to do with.
            seed: What its ids are made of, for whoever goes on with it in another process; names it among all.
        """
        trace_id, span_id = _ids(seed) if seed else (self._bits(128) or 1, self._bits(64) or 1)
        trace_id = trace_id if parent is None else parent.trace_id
        sampling = self.sample(trace_id, parent, name)
        is_sampled = sampling.is_sampled
        if is_sampled and len(self._open) >= self._most_open:
            self.left_out += 1
            is_sampled = False
        context = SpanContext(trace_id, span_id, is_sampled, sampling.state)
        if not is_sampled:
            return Trace(self, name, context, 0.0)
        known = {**attributes, **sampling.attributes} if sampling.attributes else attributes
        began = self.now() if at is None else at
        trace = Trace(self, name, context, began, parent=parent, attributes=known, links=links)
        self._open[trace] = None
        return trace

    def begin_lease(self, key: str) -> Trace:
        """Begin with a lease that no job of ours has: a part of what asks for it, if that is known."""
        asks = _CURRENT.get()
        parent = asks.inner if isinstance(asks, Trace) else asks or self.surroundings()
        return self.begin("lease", attributes={"taskscaler.key": key}, parent=parent)

    def job(self) -> Trace | None:
        """Give the job that this task wants a slot for; None: it is at none of this tracer's."""
        trace = _CURRENT.get()
        if isinstance(trace, Trace) and trace._tracer is self and not trace.has_ended:  # noqa: SLF001  (this module's)
            return trace
        return None

    def single(
        self,
        name: str,
        began: float,
        ended: float,
        attributes: Callable[[], Attributes],
        *,
        links: tuple[SpanContext, ...] = (),
        error: str = "",
    ) -> SpanContext | None:
        """Give away something that is a trace by itself, if it is to be followed."""
        trace_id = self._bits(128) or 1
        sampling = self.sample(trace_id, None, name)
        if not sampling.is_sampled:
            return None
        context = SpanContext(trace_id, self._bits(64) or 1, is_sampled=True, state=sampling.state)
        known = {**attributes(), **sampling.attributes}
        self.emit(Span(name, context, None, began, max(began, ended), known, links, error))
        return context

    def decided(self, at: float, context: SpanContext | None) -> None:
        """A scaling decision is a span, if it is one."""
        if context is not None:
            self._decided.append((at, context))

    def decision_before(self, at: float) -> tuple[SpanContext, ...]:
        """Give the last decision before a time; none: it was not followed, or is forgotten."""
        return next(((context,) for when, context in reversed(self._decided) if when <= at), ())

    def child(self, parent: SpanContext) -> SpanContext:
        """Name what is a part of it."""
        return SpanContext(parent.trace_id, self._bits(64) or 1, parent.is_sampled, parent.state)

    def forget(self, trace: Trace) -> None:
        """It is over."""
        self._open.pop(trace, None)

    def end_all(self, at: float) -> None:
        """Give away what is under way, as it stands: nobody follows it any more."""
        for trace in [*self._open]:
            trace.end(at, UNFINISHED)


@runtime_checkable
class Traced(Protocol):
    """An observer that follows jobs."""

    @property
    def tracer(self) -> Tracer:
        """Where the scaler notes what happens."""
        ...

    def called(self, call: CloudCall) -> None:
        """A call to a group, or to one of its instances, has ended."""
        ...
