"""The observer ``traces``: sends what happens to each job to OpenTelemetry, as spans.

The standard environment variables say where to, what is sampled, and how much may wait to be sent; see
``docs/reference/traces.md`` for the spans. Nothing waits for a receiver: a thread sends what has ended, spans that find
the queue full are lost, and the end takes a few seconds at the most. The log has a line when spans begin to be lost and
one when that is over. The variables may hold secrets, and are never shown.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import SplitResult, urlsplit

from anyio import CancelScope, to_thread
from attrs import Attribute, define, field, frozen

from fleeting import ConfigError
from fleeting.config import quoted
from fleeting.errors import ConfigProblem
from fleeting.plugins import one_line
from fleeting.runtime import CloudCall
from taskscaler._observe import DecisionEvent, ScalerEvent
from taskscaler._span import Span, SpanContext, context_in, harmless
from taskscaler._tracer import Sampling, Tracer
from taskscaler.observers._hooks import ObserverPlugin, hookimpl
from taskscaler.observers._spans import note_call, note_decision

try:
    from opentelemetry import trace as api
    from opentelemetry.context import Context
    from opentelemetry.sdk.environment_variables import (
        OTEL_BSP_EXPORT_TIMEOUT,
        OTEL_BSP_MAX_EXPORT_BATCH_SIZE,
        OTEL_BSP_MAX_QUEUE_SIZE,
        OTEL_BSP_SCHEDULE_DELAY,
        OTEL_EXPORTER_OTLP_ENDPOINT,
        OTEL_EXPORTER_OTLP_HEADERS,
        OTEL_EXPORTER_OTLP_PROTOCOL,
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
        OTEL_EXPORTER_OTLP_TRACES_HEADERS,
        OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
        OTEL_SDK_DISABLED,
        OTEL_SERVICE_NAME,
    )
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, DEFAULT_OFF
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace.status import Status, StatusCode

    from taskscaler.observers._otlp import are_headers, exporter, silent
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: pip install 'taskscaler[traces]'") from error

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler as SdkSampler

FAREWELL: Final = 5.0
"""Seconds that are left at the end to send what happened last."""

FAREWELL_IN_TROUBLE: Final = 1.0
"""Seconds that are left if the receiver fails: nobody is to wait for it."""

USUAL_QUEUE: Final = 2048
"""Spans that may wait to be sent, unless ``OTEL_BSP_MAX_QUEUE_SIZE`` says otherwise."""

USUAL_BATCH: Final = 512
"""Spans that are sent at a time, at most, unless ``OTEL_BSP_MAX_EXPORT_BATCH_SIZE`` says otherwise."""

USUAL_DELAY: Final = 5_000
"""Milliseconds after which fewer are sent, unless ``OTEL_BSP_SCHEDULE_DELAY`` says otherwise."""

USUAL_TIMEOUT: Final = 30_000
"""``OTEL_BSP_EXPORT_TIMEOUT``, of which the library makes no use."""

LARGEST: Final = 10**9
"""Each of these at the most: threads cannot wait, nor lists be bounded, by just any number."""

MOST_ATTRIBUTES: Final = 50
"""In the settings."""

OTEL_TRACES_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
PROTOCOL: Final = "http/protobuf"
A_URL: Final = "a url that begins with http:// or https:// and names a server"

log = logging.getLogger("taskscaler.traces")

_UNSET = Status(StatusCode.UNSET)
_NO_PARENT = Context()
_NOT_SAMPLED = Sampling(is_sampled=False)


def _check_attributes(_: object, __: "Attribute[Mapping[str, str]]", value: Mapping[str, str]) -> None:
    if len(value) > MOST_ATTRIBUTES:
        raise ValueError(f"at most {MOST_ATTRIBUTES} attributes")


@frozen(kw_only=True)
class TracesConfig:
    """``[autoscaler.observers.traces]``."""

    endpoint: str | None = field(default=None, repr=False)
    """Where the receiver is, such as ``http://127.0.0.1:4318``; spans go to ``/v1/traces`` below it. None: where
    ``OTEL_EXPORTER_OTLP_ENDPOINT`` says, or there."""

    service_name: str | None = None
    """What the fleet is called. None: what ``OTEL_SERVICE_NAME`` says, or ``taskscaler``."""

    attributes: dict[str, str] = field(factory=dict, validator=_check_attributes)
    """Added to all spans, as ``OTEL_RESOURCE_ATTRIBUTES`` are."""

    def __attrs_post_init__(self) -> None:
        """What a validator says of something that may be a secret would not be shown."""
        if self.endpoint is None:
            return
        place = _parts(self.endpoint)
        if place is None:
            raise ValueError(f"endpoint: {A_URL}")
        if "@" in place.netloc:
            raise ValueError("endpoint: a url without a password; OTEL_EXPORTER_OTLP_HEADERS is for credentials")


def _parts(url: str) -> SplitResult | None:
    """Take apart where a receiver is; None: it is nowhere."""
    try:
        place = urlsplit(url)
        is_good = place.port != 0 and place.scheme in {"http", "https"} and bool(place.hostname)
    except ValueError:
        return None
    return place if is_good else None


@define
class _Health:
    """Whether spans arrive: each change of that is logged, not each try. Two threads call this."""

    lost: int = 0
    """Spans, in all."""

    why: str = ""
    """Why they do not arrive; empty: they do."""

    first: str = ""
    """Why the first ones did not; empty: all did."""

    _since: int = 0
    _lock: "threading.Lock" = field(factory=threading.Lock, init=False)

    def fail(self, why: str, lost: int) -> None:
        """Some are lost."""
        with self._lock:
            self.lost += lost
            self._since += lost
            is_news, self.why = not self.why, self.why or why
            self.first = self.first or why
        if is_news:
            log.warning("traces_fail", extra={"why": why})

    def recover(self) -> None:
        """Some have arrived."""
        with self._lock:
            is_news, since = bool(self.why), self._since
            self.why, self._since = "", 0
        if is_news:
            log.warning("traces_recovered", extra={"spans_lost": since})

    def end(self) -> None:
        """Nothing more is sent."""
        if self.why and self._since:
            log.warning("traces_lost", extra={"spans_lost": self._since, "why": self.why})


class _Counting(SpanExporter):
    """Passes batches on, and knows how many spans have left the queue, and what became of them."""

    def __init__(self, inner: SpanExporter, health: _Health) -> None:
        self._inner = inner
        self._health = health
        self.taken = 0
        self.settled = 0
        """Of those, how many have arrived, or are known to be lost."""

        self._is_over = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send them, or say once that they are lost."""
        self.taken += len(spans)
        if self._is_over:
            return SpanExportResult.FAILURE
        why = ""
        with silent() as said:
            try:
                result = self._inner.export(spans)
            except Exception as error:  # noqa: BLE001  (somebody else's code; logged)
                result, why = SpanExportResult.FAILURE, type(error).__name__
        if self._is_over:  # nobody knows, and it was counted
            return result
        self.settled += len(spans)
        if result is SpanExportResult.SUCCESS:
            self._health.recover()
        else:
            self._health.fail(why or said.why or "the receiver did not accept them", len(spans))
        return result

    def hasten(self) -> None:
        """Send no more, and give up what is under way as soon as that can be."""
        self._is_over = True
        with silent():
            self._inner.shutdown()

    def shutdown(self) -> None:
        """Let go of the receiver."""
        if not self._is_over:
            self.hasten()


class Traces:
    """Follows the jobs of one scaler. An async context manager; the scaler enters it, and its spans are lost before."""

    def __init__(
        self, config: TracesConfig | None = None, *, make_exporter: Callable[[], SpanExporter] | None = None
    ) -> None:
        """Prepare; nothing is sent before it is entered.

        Args:
            config: The settings. None: the environment's alone.
            make_exporter: Makes what sends spans. None: OTLP over HTTP, as the environment says.

        Raises:
            ConfigError: The environment asks for something that cannot be had.
        """
        self.config = config or TracesConfig()
        self.inherits = True
        """Whether the process itself is a part of a trace, as its environment says; what a daemon does is not."""

        self.endpoint = ""
        """Where spans are sent, without what may be a secret; empty: nowhere."""

        self._make_exporter = make_exporter or self._choose_exporter()
        self._provider = TracerProvider(resource=self._resource(), shutdown_on_exit=False)
        self._sampler: SdkSampler = self._provider.sampler
        self._follows_alone = self._sampler not in (ALWAYS_OFF, DEFAULT_OFF)
        """Whether anything may be followed that is a part of nothing, such as each decision: asking takes its time."""

        self._scope = InstrumentationScope("taskscaler", version("taskscaler"))
        self._inherited = context_in(os.environ)
        self.tracer = Tracer(self._emit, self._sample)
        """Where the scaler notes what happens."""

        self.tracer.surroundings = self._surroundings
        self.tracer.follows_alone = self._follows_alone
        self._health = _Health()
        self._processor: BatchSpanProcessor | None = None
        self._counting: _Counting | None = None
        self._handed = 0
        self._room = _number(OTEL_BSP_MAX_QUEUE_SIZE, USUAL_QUEUE)
        self._batch = min(self._room, _number(OTEL_BSP_MAX_EXPORT_BATCH_SIZE, USUAL_BATCH))
        self._delay = _number(OTEL_BSP_SCHEDULE_DELAY, USUAL_DELAY)
        self._timeout = _number(OTEL_BSP_EXPORT_TIMEOUT, USUAL_TIMEOUT)

    def __repr__(self) -> str:
        """Show nothing of the settings."""
        return "<Traces>"

    @property
    def hears(self) -> bool:
        """Whether events and calls are of any use to it; if not, nobody need note them."""
        return self._follows_alone

    @property
    def lost(self) -> int:
        """Spans that were lost so far, because nobody took them in time."""
        return self._health.lost

    @property
    def trouble(self) -> str:
        """What was lost so far, and why it began, for people; empty: nothing."""
        lost, why = self._health.lost, self._health.first
        return f"{lost} span{'s were' if lost != 1 else ' was'} lost: {why}" if lost else ""

    @property
    def parent(self) -> SpanContext | None:
        """What the process is a part of, if it is."""
        return self._inherited if self.inherits else None

    # --- what happens ------------------------------------------------------------------------------------

    def __call__(self, event: ScalerEvent) -> None:
        """Hear of a decision; jobs, leases and calls are noted where they happen."""
        if self._follows_alone and isinstance(event, DecisionEvent):
            note_decision(self.tracer, event.at, event.decision)

    def called(self, call: CloudCall) -> None:
        """Hear of a call to a group."""
        note_call(self.tracer, call)

    def _surroundings(self) -> SpanContext | None:
        """What the program that asks for a lease is at: a span of its own, or what the process is a part of."""
        own = api.get_current_span().get_span_context()
        if own.is_valid:
            return SpanContext(own.trace_id, own.span_id, own.trace_flags.sampled, own.trace_state.to_header())
        return self.parent

    def _sample(self, trace_id: int, parent: SpanContext | None, name: str) -> Sampling:
        """Ask the sampler that the environment names."""
        if parent is None and not self._follows_alone:
            return _NOT_SAMPLED
        context = _NO_PARENT
        if parent is not None:
            context = api.set_span_in_context(api.NonRecordingSpan(_context(parent, is_remote=True)))
        result = self._sampler.should_sample(context, trace_id, name)
        state = parent.state if parent is not None else ""
        if not result.decision.is_sampled():  # type: ignore[no-untyped-call]
            return Sampling(is_sampled=False, state=state) if state else _NOT_SAMPLED
        if result.trace_state:
            state = result.trace_state.to_header()
        attributes = result.attributes
        return Sampling(True, state, {**attributes} if attributes else {})

    # --- what is sent ------------------------------------------------------------------------------------

    def _emit(self, span: Span) -> None:
        """Queue a span, if there is room."""
        processor, counting = self._processor, self._counting
        if processor is None or counting is None:
            return
        if self._handed - counting.taken >= self._room:
            self._health.fail("the queue was full", 1)
            return
        self._handed += 1
        attributes, status = span.attributes, _UNSET
        if span.error:
            attributes, status = {**attributes, "error.type": span.error}, Status(StatusCode.ERROR, span.error)
        processor.on_end(
            ReadableSpan(
                name=span.name,
                context=_context(span.context),
                parent=None if span.parent is None else _context(span.parent),
                resource=self._provider.resource,
                attributes=attributes,
                links=[api.Link(_context(each)) for each in span.links] if span.links else (),
                status=status,
                start_time=round(span.began * 1e9),
                end_time=round(span.ended * 1e9),
                instrumentation_scope=self._scope,
            )
        )

    def _resource(self) -> Resource:
        """What all spans are of; what the settings say wins over the environment."""
        given: dict[str, str] = {SERVICE_VERSION: version("taskscaler"), **self.config.attributes}
        from_env = Resource.create({}).attributes
        unnamed = str(from_env.get(SERVICE_NAME, "")).startswith("unknown_service")
        if self.config.service_name is not None:
            given[SERVICE_NAME] = self.config.service_name
        elif unnamed and not os.environ.get(OTEL_SERVICE_NAME) and SERVICE_NAME not in given:
            given[SERVICE_NAME] = "taskscaler"
        return Resource.create(given)

    def _choose_exporter(self) -> Callable[[], SpanExporter]:
        """Find what sends spans, as the environment has it.

        Raises:
            ConfigError: It asks for something that cannot be had.
        """
        if os.environ.get(OTEL_SDK_DISABLED, "").strip().lower() == "true":
            return _Nowhere
        match (os.environ.get(OTEL_TRACES_EXPORTER) or "otlp").strip().lower():
            case "otlp":
                pass
            case "none":
                return _Nowhere
            case other:
                raise _wrong(OTEL_TRACES_EXPORTER, other, "otlp or none", "taskscaler sends OTLP over HTTP itself")
        protocol = os.environ.get(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL) or os.environ.get(OTEL_EXPORTER_OTLP_PROTOCOL)
        if protocol and protocol.strip().lower() != PROTOCOL:
            hint = f"set {OTEL_EXPORTER_OTLP_TRACES_PROTOCOL}={PROTOCOL}, and that port of the receiver, usually 4318"
            raise _wrong(OTEL_EXPORTER_OTLP_PROTOCOL, protocol, PROTOCOL, hint)
        _check_headers()
        if self.config.endpoint is None:
            _check_endpoint()
        endpoint = None if self.config.endpoint is None else f"{self.config.endpoint.rstrip('/')}/v1/traces"
        return partial(exporter, endpoint)

    # --- its life ----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Begin to send."""
        self._counting = _Counting(self._make_exporter(), self._health)
        self.endpoint = harmless(getattr(self._counting._inner, "place", ""))  # noqa: SLF001  (this module's own)
        self._processor = BatchSpanProcessor(
            self._counting,
            max_queue_size=self._room,
            schedule_delay_millis=self._delay,
            max_export_batch_size=self._batch,
            export_timeout_millis=self._timeout,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what is under way, send what is left within a bound, and end."""
        self.tracer.end_all(self.tracer.now())
        processor, counting, self._processor = self._processor, self._counting, None
        if processor is None or counting is None:
            return
        done = threading.Event()

        def shut_down() -> None:
            processor.shutdown()  # type: ignore[no-untyped-call]
            done.set()

        # Not one of anyio's threads: the interpreter would wait for it at its end, for as long as a receiver is silent.
        threading.Thread(target=shut_down, name="traces", daemon=True).start()  # noqa: TID251
        with CancelScope(shield=True):
            await to_thread.run_sync(self._say_goodbye, done, counting)
        self._health.end()

    def _say_goodbye(self, done: threading.Event, counting: _Counting) -> None:
        """Wait until all is sent, or for as long as that is worth it. Blocks."""
        if done.wait(FAREWELL_IN_TROUBLE if self._health.why else FAREWELL):
            return
        counting.hasten()
        self._health.fail("there was no time left to send the last spans", self._handed - counting.settled)


class _Nowhere(SpanExporter):
    """What is there if nothing is to be sent."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Do nothing."""
        del spans
        return SpanExportResult.SUCCESS


def _context(own: SpanContext, *, is_remote: bool = False) -> api.SpanContext:
    """Name a span as OpenTelemetry's library does."""
    flags = api.TraceFlags(api.TraceFlags.SAMPLED if own.is_sampled else api.TraceFlags.DEFAULT)
    state = api.TraceState.from_header([own.state]) if own.state else None
    return api.SpanContext(own.trace_id, own.span_id, is_remote, flags, state)


def _number(variable: str, usual: int) -> int:
    """Read a positive number from the environment; an empty one is none."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return usual
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST)) and 1 <= int(text) <= LARGEST):
        raise _wrong(variable, text, f"a whole number from 1 to {LARGEST}", f"leave it out for {usual}")
    return int(text)


def _given(*variables: str) -> tuple[str, str]:
    """Find the first of them that says something, and what that is; it may be a secret."""
    return next(((name, text) for name in variables if (text := os.environ.get(name))), (variables[-1], ""))


def _check_endpoint() -> None:
    """See that the receiver which the environment names can be one."""
    variable, url = _given(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT)
    if url and _parts(url) is None:
        raise _wrong_secret(variable, A_URL, "such as http://127.0.0.1:4318")


def _check_headers() -> None:
    """See that what is to be shown to a receiver can be read."""
    variable, headers = _given(OTEL_EXPORTER_OTLP_TRACES_HEADERS, OTEL_EXPORTER_OTLP_HEADERS)
    if not are_headers(headers):
        raise _wrong_secret(variable, "name=value, comma-separated", "write %20, %22, %2C and %3B in a value")


def _wrong_secret(variable: str, expected: str, hint: str) -> ConfigError:
    """Say what is wrong with a variable whose value is not shown."""
    problem = ConfigProblem(path=variable, found="something else, which is not shown", expected=expected, hint=hint)
    return ConfigError([problem], source="the environment")


def _wrong(variable: str, found: str, expected: str, hint: str) -> ConfigError:
    """Say what is wrong with a variable."""
    problem = ConfigProblem(path=variable, found=quoted(one_line(found)), expected=expected, hint=hint)
    return ConfigError([problem], source="the environment")


@hookimpl
def taskscaler_observer() -> ObserverPlugin:
    """Describe the observer."""
    return ObserverPlugin(config=TracesConfig, observer=Traces)
