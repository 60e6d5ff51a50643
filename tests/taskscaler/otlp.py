"""A receiver of OpenTelemetry's spans: a real HTTP server, which decodes what comes as protobuf."""

import gzip
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from attrs import define, field, frozen
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1 import trace_pb2

Value = str | int | float | bool


def _value(value: AnyValue) -> Value:
    kind = value.WhichOneof("value")
    assert kind in {"string_value", "int_value", "double_value", "bool_value"}, value
    found: Value = getattr(value, kind)
    return found


@frozen
class Received:
    """A span that came."""

    name: str
    trace: str
    id: str
    parent: str
    """Empty: it has none."""

    began: int
    ended: int
    """Nanoseconds since the epoch."""

    attributes: Mapping[str, Value]
    links: Sequence[tuple[str, str]]
    """Trace and span of each."""

    error: str
    """What its status says is wrong; empty: nothing."""

    resource: Mapping[str, Value]

    @classmethod
    def of(cls, span: trace_pb2.Span, resource: Mapping[str, Value]) -> "Received":
        """Read it."""
        failed = span.status.code == trace_pb2.Status.STATUS_CODE_ERROR
        return cls(
            name=span.name,
            trace=span.trace_id.hex(),
            id=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            began=span.start_time_unix_nano,
            ended=span.end_time_unix_nano,
            attributes={each.key: _value(each.value) for each in span.attributes},
            links=[(each.trace_id.hex(), each.span_id.hex()) for each in span.links],
            error=span.status.message if failed else "",
            resource=resource,
        )


@define
class Receiver:
    """What came."""

    url: str = ""
    """For ``OTEL_EXPORTER_OTLP_ENDPOINT``."""

    spans: list[Received] = field(factory=list)
    raw: list[bytes] = field(factory=list)
    """Bodies, as they came."""

    headers: list[Mapping[str, str]] = field(factory=list)
    wrong: list[str] = field(factory=list)
    """What could not be decoded."""

    came: threading.Event = field(factory=threading.Event)
    """Set with the first request."""

    def take(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Decode a request."""
        data = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        assert headers["content-type"] == "application/x-protobuf"
        assert "cookie" not in headers, "nothing is kept of what is answered"
        self.raw.append(data)
        self.headers.append(dict(headers))
        for group in ExportTraceServiceRequest.FromString(data).resource_spans:
            resource = {each.key: _value(each.value) for each in group.resource.attributes}
            self.spans += [Received.of(span, resource) for scope in group.scope_spans for span in scope.spans]

    def named(self, name: str) -> list[Received]:
        """Spans of a name, as they began."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.began)

    def below(self, parent: Received) -> list[Received]:
        """What a span consists of, as it began."""
        children = [span for span in self.spans if span.trace == parent.trace and span.parent == parent.id]
        return sorted(children, key=lambda span: (span.began, span.ended))


def inside(child: Received, parent: Received) -> bool:
    """Whether a span lies within another, of the same trace."""
    return child.trace == parent.trace and parent.began <= child.began <= child.ended <= parent.ended


def accept(handler: BaseHTTPRequestHandler) -> None:
    """Answer that all is well."""
    handler.send_response(200)
    handler.send_header("Content-Length", "0")
    handler.send_header("Set-Cookie", "sticky=1")
    handler.end_headers()


@contextmanager
def receiving(answer: Callable[[BaseHTTPRequestHandler], None] = accept) -> Iterator[Receiver]:
    """Receive spans while the body runs, and answer each request like that."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.take(self.rfile.read(int(headers["content-length"])), headers)
            receiver.came.set()
            answer(self)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def address_string(self) -> str:
            return "somebody"

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Keep what a test has to know of; whoever hung up is not missed."""
            if not isinstance(error := sys.exception(), ConnectionError):
                receiver.wrong.append(repr(error))

    with Server(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})  # noqa: TID251  (a server of the standard library, joined below)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
    assert not receiver.wrong
