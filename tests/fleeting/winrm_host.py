"""A host for the WinRM connector: the server of the tests, and certificates for it."""

import hashlib
import json
import secrets
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import trustme
from attrs import asdict, define, evolve, field, frozen

from fleeting import ConnectInfo
from tests.fleeting.winrm_server import Options

ROOT = Path(__file__).parents[2]


@define(eq=False)
class Host:
    """A server that runs."""

    port: int
    process: subprocess.Popen[bytes]
    options: Options

    @property
    def info(self) -> ConnectInfo:
        """All that is needed to connect."""
        return ConnectInfo(
            id=f"host-{self.port}",
            os="windows",
            protocol="winrm" if self.options.certificate is None else "winrm+https",
            internal_addr="127.0.0.1",
            port=self.port,
            user=self.options.user,
            password=self.options.password,
        )

    async def control(self, *troubles: dict[str, Any], **wish: Any) -> dict[str, Any]:  # noqa: ANN401
        """Make trouble, if any is given, and learn what the server has seen. Over HTTP only."""
        body = json.dumps({**wish, **({"troubles": troubles} if troubles else {})}).encode()
        async with await anyio.connect_tcp("127.0.0.1", self.port) as stream:
            await stream.send(b"POST /control HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            answer = b""
            while not answer.endswith(b"}"):
                answer += await stream.receive()
        told: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
        return told


@contextmanager
def winrm_host(directory: Path, **options: Any) -> Iterator[Host]:  # noqa: ANN401  (those of `Options`)
    """Run a server; its commands end with it."""
    chosen = Options(**options)
    command = [
        sys.executable,
        "-m",
        "tests.fleeting.winrm_server",
        json.dumps(asdict(chosen)),
        str(directory / "users"),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            yield Host(port, process, evolve(chosen, port=port))
        finally:
            process.kill() if process.stdin is None else process.stdin.close()


@frozen
class Authority:
    """Makes certificates."""

    _ca: trustme.CA = field(factory=trustme.CA)

    def write(self, directory: Path, *, host: str = "127.0.0.1") -> tuple[Path, str]:
        """Make a certificate for a host; returns the file for the server, and the certificate's fingerprint."""
        made = self._ca.issue_cert(host)
        path = directory / f"{secrets.token_hex(4)}.pem"
        made.private_key_and_cert_chain_pem.write_to_path(str(path))
        shown = ssl.PEM_cert_to_DER_cert(made.cert_chain_pems[0].bytes().decode())
        return path, hashlib.sha256(shown).hexdigest()

    def write_own(self, directory: Path) -> Path:
        """Write the certificate that one has to trust."""
        path = directory / "authority.pem"
        self._ca.cert_pem.write_to_path(str(path))
        return path
