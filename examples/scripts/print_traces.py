"""A receiver of traces without a web page: it prints each job's spans as a tree. `pip install 'taskscaler[traces]'`.

python print_traces.py [PORT]
"""

import gzip
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

below: dict[bytes, list[Span]] = defaultdict(list)
"""Spans by what they are a part of. A span is sent when it has ended, so a job comes after all that it consists of."""


def tree(span: Span, depth: int = 0) -> Iterator[str]:
    """A line for a span, and those of what it consists of."""
    known = {each.key: each.value.string_value for each in span.attributes}
    name = known.get("cicd.pipeline.task.name", "")
    seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    words = f"{span.name} {name}".rstrip(), f"{seconds:.3f} s", known.get("error.type", "")
    yield "  " * depth + "  ".join(filter(None, words))
    for each in sorted(below.pop(span.span_id, []), key=lambda each: each.start_time_unix_nano):
        yield from tree(each, depth + 1)


class Receiver(BaseHTTPRequestHandler):
    """Takes spans as OTLP over HTTP brings them."""

    def do_POST(self) -> None:
        """Print what is complete, and keep the rest."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            for span in (each for scope in group.scope_spans for each in scope.spans):
                if span.name in {"job", "lease"}:
                    print(*tree(span), sep="\n", flush=True)
                elif span.parent_span_id:
                    below[span.parent_span_id].append(span)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print no line for each request."""


with (
    HTTPServer(("127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 4318), Receiver) as server,
    suppress(KeyboardInterrupt),
):
    print(f"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
