"""A server on a Unix socket that is no daemon of ours: it refuses whatever comes, and does not say why."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path


class _Refuses(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(418)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def address_string(self) -> str:
        return "somebody"


@contextmanager
def strange_server(path: Path) -> Iterator[None]:
    """Run one while the body runs."""
    with socketserver.UnixStreamServer(str(path), _Refuses) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})  # noqa: TID251  (a server of the standard library, joined below)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
