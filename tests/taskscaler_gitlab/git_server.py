"""A git server for tests: ``git http-backend`` behind a login with a token, in a process of its own.

Given a file with a certificate and its key beside the directory, it speaks TLS. It prints its port, and ends when its
standard input does. Beside the repositories are files: `tokens`, one good token a line; `requests`, a line for each;
and if it is there, `seen`, the arguments of all processes of this machine while it answers one, which is while some git
waits for it.
"""

import base64
import os
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

_DIRECTORY = subprocess.run(["git", "--exec-path"], capture_output=True, check=True, text=True).stdout.strip()  # noqa: S607
BACKEND = f"{_DIRECTORY}/git-http-backend"
"""What `git http-backend` would run, in one process less."""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    root: ClassVar[Path]
    lock: ClassVar = threading.Lock()

    def do_GET(self) -> None:
        """Answer what has no body."""
        self._answer(b"")

    def do_POST(self) -> None:
        """Answer what has one, in pieces or whole."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the name that it has there)
        """Be silent."""

    def _answer(self, body: bytes) -> None:
        tokens = (self.root / "tokens").read_text().splitlines()
        wanted = {base64.b64encode(f"gitlab-ci-token:{token}".encode()).decode() for token in tokens}
        is_known = self.headers.get("Authorization", "").removeprefix("Basic ") in wanted
        with self.lock:
            self._note("known" if is_known else "unknown")
        if not is_known:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="GitLab"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        head, _, rest = self._run(body).partition(b"\r\n\r\n")
        headers = [line.partition(": ") for line in head.decode().splitlines()]
        status = next((value.split()[0] for name, _, value in headers if name == "Status"), "200")
        self.send_response(int(status))
        for name, _, value in headers:
            if name != "Status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest)

    def _note(self, who: str) -> None:
        with (self.root / "requests").open("a") as file:
            file.write(f"{self.command} {self.path} {who} {self.headers.get('User-Agent')}\n")
        if not (self.root / "seen").exists():
            return
        with (self.root / "seen").open("ab") as file:
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    file.write(process.read_bytes() + b"\n")
                except OSError:
                    continue

    def _run(self, body: bytes) -> bytes:
        split = urlsplit(self.path)
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "PATH_INFO": unquote(split.path),
            "QUERY_STRING": split.query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }
        done = subprocess.run([BACKEND], input=body, env=environment, capture_output=True, check=False)
        return done.stdout or b"Status: 500\r\n\r\n"


if __name__ == "__main__":
    Handler.root = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    for certificate in sys.argv[2:]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_address[1], flush=True)  # noqa: T201  (whoever started it waits for this)
    serving = threading.Thread(target=server.serve_forever, daemon=True)  # noqa: TID251  (in a process of its own)
    serving.start()
    sys.stdin.read()
