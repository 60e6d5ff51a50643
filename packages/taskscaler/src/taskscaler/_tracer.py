"""What happened to each job, as spans: who waited for what, where it ran, and what that was a part of. Pure.

A scaler has a tracer only if one of its observers is `Traced`. A span is given away when it has ended, so that what is
kept of a job is what is under way with it, however long it runs: its trace, its last try, and one phase. Of a trace
that is not sampled nothing is kept but its name, which the job is given all the same. Time never goes back within a
trace, so that whatever a clock does, a child lies within its parent.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from hashlib import sha256
from random import Random
from typing import Final, NamedTuple, Protocol, runtime_checkable

from fleeting.runtime import CloudCall
from taskscaler._parts import Part, derived, first_of, spans_of
from taskscaler._span import Attributes, Span, SpanContext

MOST_OPEN: Final = 100_000
"""Traces under way at a time; those beyond are not sampled."""

MOST_DECISIONS: Final = 64
"""That are remembered, so that what they have led to can be linked to them."""

UNFINISHED: Final = "unfinished"
"""The error of what was still under way when nobody was left to follow it."""

_WITH_PARTS: Final = frozenset({"run", "collect"})
"""Phases that others may be a part of: if an earlier process began one, the next one enters it, too."""

_NONE: Final[Attributes] = {}


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

    __slots__ = (
        "attributes",
        "began",
        "context",
        "parted",
        "phase",
        "phase_began",
        "phase_context",
        "ran",
        "run",
        "run_number",
        "runs",
        "runs_since",
        "told",
    )

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
        self.parted = 0
        """The id of what has run whose parts were given away."""

        self.run_number = 0
        """Of what runs, or is to run next, among what runs one after the other in this try."""

        self.runs = 0
        """How many phases ``run`` have begun that have this number."""

        self.told: tuple[Sequence[Part], float | None] | None = None
        """What is known of what has run, if nobody comes to know more."""

        self.runs_since: float | None = None
        """Since when that runs which is said to run next; None: from then on."""

        self.ran: Span | None = None
        """Its last phase ``run``, once that is over, until it is known how it went."""


class Trace:
    """What is under way of one job, or of one lease that no job of ours has: a span, and those within it."""

    __slots__ = (
        "_attributes",
        "_before",
        "_began",
        "_is_named",
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
        is_named: bool = False,
    ) -> None:
        """Begin. With *is_named*, tries and what runs have ids by their numbers, as in every process that names it."""
        self._tracer = tracer
        self._is_named = is_named
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

    def begin_try(self, at: float, attributes: Attributes = _NONE, *, number: int | None = None) -> None:
        """Somebody tries to run it, and wants a slot first; a try that was under way has ended.

        Args:
            at: When.
            attributes: What is known of it.
            number: Which try it is, from 1; None: the next one. One that an earlier process began has its number.
        """
        self.tries = self.tries + 1 if number is None else number
        if not self.is_followed:
            return
        self.end_try(at, UNFINISHED)
        at = self._at(at)
        numbered: dict[str, str | int] = {"taskscaler.try": self.tries}
        context = self._named(self.context, f"try {self.tries}")
        self._try = _Try(context, self._named(context, "run 0.0"), at, numbered)
        self._try.attributes.update(attributes)

    def expect_run(self, number: int = 0, since: float | None = None) -> None:
        """Say which it is that runs next, if a try runs one thing after the other, or goes on with one.

        Args:
            number: From 0. It decides on the id, so that one that an earlier process began has the same.
            since: When an earlier process began it, or earlier; None: none did.
        """
        tried = self._try
        if tried is not None:
            tried.runs = tried.runs if tried.run_number == number else 0
            tried.run_number, tried.runs_since = number, since

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
        if tried is not None and not error and tried.phase is None and not tried.runs:
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
        if phase == "run":
            self._begin_run(tried, at)
        else:
            which = f"{phase} {tried.run_number}.{tried.runs}"
            tried.phase, tried.phase_began, tried.phase_context = phase, at, self._named(tried.context, which)

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
        if tried.told is not None:
            parts, since = tried.told
            self.add_parts(parts, at, since=since)
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

    @property
    def has_been_tried(self) -> bool:
        """Whether a try is over, here."""
        return self._before is not None

    def leave_try(self) -> None:
        """Somebody else goes on with the try, who gives it its number: its span is theirs to give away."""
        self._try = None

    def leave(self) -> None:
        """Somebody else goes on with it, who begins it again with the same seed: its span is theirs to give away."""
        if not self.has_ended:
            self.leave_try()
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

    def add_parts(self, parts: Sequence[Part], at: float, *, since: float | None = None) -> Sequence[Span]:
        """What has run, or runs, consisted of these, all of them; returns their spans.

        Args:
            parts: As the clock knows them of where they ran; see `spans_of`.
            at: Now.
            since: That it ran is heard later than it begins: when that may have been at the earliest. None: it is not.
        """
        tried = self._try
        if not self.is_followed or tried is None:
            return ()
        at, ran = self._at(at), tried.ran
        if tried.phase == "run" or ran is None:
            self._have_run(tried, at)
            ran = Span("run", tried.phase_context, tried.context, tried.phase_began, at, _NONE, (), "")
        if tried.parted == ran.context.span_id:
            return ()
        tried.parted = ran.context.span_id
        if since is not None and (first := first_of(parts)) is not None:
            ran = ran._replace(began=max(tried.began, min(ran.began, max(since, first))))
        if tried.phase == "run":
            tried.phase_began = ran.began
        else:
            tried.ran = ran
        return self.add_below(ran, parts)

    def tell_parts(self, parts: Sequence[Part], *, since: float | None = None) -> None:
        """Have these be the parts of what ran, as `add_parts`, if the try ends, and nobody goes on with it."""
        if self._try is not None:
            self._try.told = (parts, since)

    def add_below(self, whole: Span, parts: Sequence[Part], offset: float | None = None) -> Sequence[Span]:
        """Something that was given away, perhaps by an earlier process, consisted of these; see `spans_of`."""
        if not self.is_followed:
            return ()
        spans = spans_of(parts, whole, offset)
        for span in spans:
            self._at(span.ended)
            self._tracer.emit(span)
        return spans

    def end_run(self, at: float, error: str = "") -> None:
        """What ran is over, and all that was done with what it left, and it is known how it went."""
        tried = self._try
        if self.is_followed and tried is not None:
            self._end_phase(tried, self._at(at), "run")
            self._end_run(tried, error)

    # --- inside ------------------------------------------------------------------------------------------

    def _named(self, parent: SpanContext, what: str) -> SpanContext:
        return derived(parent, what) if self._is_named else self._tracer.child(parent)

    def _have_run(self, tried: _Try, at: float) -> None:
        """Know that it runs, though nobody has said so."""
        if tried.phase == "run":
            return
        since = at if tried.phase else tried.phase_began
        if tried.phase:
            self._end_phase(tried, at, "run")
        self._begin_run(tried, since if tried.phase is not None else at)

    def _begin_run(self, tried: _Try, at: float) -> None:
        since = at if tried.runs_since is None else min(at, max(tried.runs_since, tried.began))
        tried.phase, tried.phase_began, tried.runs_since = "run", since, None
        is_told = not (tried.run_number or tried.runs)  # to what runs, before it ran
        which = f"run {tried.run_number}.{tried.runs}"
        tried.phase_context = tried.run if is_told else self._named(tried.context, which)
        tried.runs += 1

    def _at(self, at: float) -> float:
        """Now, which is never earlier than what was."""
        self._latest = max(self._latest, at)
        return self._latest

    def _end_phase(self, tried: _Try, at: float, otherwise: str, error: str = "") -> None:
        """End what is under way; if nobody has said what that is, it is *otherwise*."""
        if tried.phase is None:
            return
        if not tried.phase:
            if otherwise == "run":
                self._begin_run(tried, tried.phase_began)
            else:
                tried.phase, tried.phase_context = otherwise, self._tracer.child(tried.context)
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
        elif tried.phase in _WITH_PARTS:
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


def is_followed() -> bool:
    """Whether anything of the job that this task is at is given away."""
    trace = _CURRENT.get()
    return isinstance(trace, Trace) and trace.is_followed and trace.is_tried


def add_parts(parts: Sequence[Part]) -> None:
    """Note of what an executor has run for the job that this task is at what that consisted of; once for each run."""
    trace = _CURRENT.get()
    if isinstance(trace, Trace) and trace.is_followed:
        trace.add_parts(parts, trace._tracer.now())  # noqa: SLF001  (this module's own)


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

        self.follows_alone = True
        """Whether anything may be followed that is a part of nothing; if not, no sampler is asked about it."""

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
        if parent is None and not self.follows_alone:
            context = SpanContext(self._bits(128) or 1, self._bits(64) or 1, is_sampled=False)
            return Trace(self, name, context, 0.0)
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
        trace = Trace(self, name, context, began, parent=parent, attributes=known, links=links, is_named=bool(seed))
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
