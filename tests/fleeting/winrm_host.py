"""A host for the WinRM connector: the server of the tests, and certificates for it."""

import datetime as dt
import hashlib
import ipaddress
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
from attrs import asdict, define, evolve
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

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


@define
class Authority:
    """Makes certificates."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls) -> "Authority":
        """Found one that vouches for itself."""
        key = ec.generate_private_key(ec.SECP256R1())
        return cls(key, _certificate("an authority", key.public_key(), "an authority", key, is_authority=True))

    def write(self, directory: Path, *, host: str = "127.0.0.1") -> tuple[Path, str]:
        """Make a certificate for a host; returns the file for the server, and the certificate's fingerprint."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _certificate(host, key.public_key(), "an authority", self.key)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = directory / f"{hashlib.sha256(private).hexdigest()[:8]}.pem"
        path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
        return path, made.fingerprint(hashes.SHA256()).hex()

    def write_own(self, directory: Path) -> Path:
        """Write the certificate that one has to trust."""
        path = directory / "authority.pem"
        path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return path


def _certificate(
    subject: str,
    public: ec.EllipticCurvePublicKey,
    issuer: str,
    key: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool = False,
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    if not is_authority:
        names: Sequence[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(subject))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
