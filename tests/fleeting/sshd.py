"""OpenSSH's own server for tests: on loopback, with keys, settings and a port of its own."""

import os
import secrets
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, field, frozen

from fleeting import ConnectInfo, Connection, ConnectorConfig
from fleeting.connectors.ssh import KeyPair, MemoryHostKeys, SshConnector, generate_key
from tests.fleeting.local_agents import children_of
from tests.needs import need
from tests.time_limits import NEVER_REACHED

SSHD = Path("/usr/sbin/sshd")

POLL = 0.005
"""Seconds between two reads of a server's log, which has no event for a new line."""

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may have namespaces of its own")

_SHELL_LEVEL = "SetEnv SHLVL=5"
"""Keeps bash from reading the user's ``.bashrc``, which it does for sshd, and which may take a while."""


@frozen(kw_only=True)
class Server:
    """An sshd that runs."""

    port: int
    process: subprocess.Popen[bytes]
    host_key: str
    user_key: KeyPair = field(repr=False)

    @property
    def info(self) -> ConnectInfo:
        """All that is needed to connect."""
        return ConnectInfo(
            id=f"host-{self.port}",
            internal_addr="127.0.0.1",
            port=self.port,
            user=getuser(),
            key=self.user_key.private,
            host_key=self.host_key,
        )

    @property
    def connections(self) -> list[int]:
        """Process ids of those who serve one connection each."""
        return children_of(self.process.pid)

    def signal(self, number: int) -> None:
        """Send a signal to all of those; they are in process groups of their own."""
        for pid in self.connections:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def lose(self) -> None:
        """Let the host be gone as if the power had failed: the server, its connections, and all that runs in them."""
        for pid in _stopped(self.process.pid):
            with suppress(ProcessLookupError):  # whose parent goes before it is woken by a hangup, and may be gone
                os.kill(pid, signal.SIGKILL)


def _stopped(pid: int) -> list[int]:
    """Stop a process and all below it, so that none can start another; returns them."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    return [pid, *(below for child in children_of(pid) for below in _stopped(child))]


@contextmanager
def sshd(
    directory: Path,
    *settings: str,
    port: int | None = None,
    host_key: KeyPair | None = None,
    user_key: KeyPair | None = None,
    by: Sequence[str] = (),
) -> Iterator[Server]:
    """Run a server; in the end it is killed, with all of its connections.

    Args:
        directory: For its files.
        settings: Lines of its configuration.
        port: None: a free one.
        host_key: Its own key; None: a new one, as with *user_key*.
        user_key: The key that may log in.
        by: A command that is put before the server's.
    """
    need("sshd", *by[:1])
    host_key, user_key, port = host_key or generate_key(), user_key or generate_key(), port or free_port()
    directory.mkdir(exist_ok=True)
    config = _configure(directory, port, host_key, user_key, settings)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd locks itself in before it knows who logs in
    with (directory / "log").open("ab") as log:
        earlier = log.tell()
        process = subprocess.Popen([*by, str(SSHD), "-D", "-e", "-f", str(config)], stderr=log)
    server = Server(port=port, process=process, host_key=host_key.public, user_key=user_key)
    try:
        _wait_until_listening(process, directory / "log", earlier)
        yield server
    finally:
        server.signal(signal.SIGKILL)
        process.kill()
        process.wait()


@asynccontextmanager
async def connected(directory: Path, *settings: str) -> AsyncIterator[Connection]:
    """Connect to a server of one's own."""
    with sshd(directory, *settings) as server:
        async with dialled(server.info) as connection:
            yield connection


@asynccontextmanager
async def dialled(
    info: ConnectInfo,
    connector: SshConnector | None = None,
    **config: Any,  # noqa: ANN401  (as `configured`)
) -> AsyncIterator[Connection]:
    """Connect, by a connector of one's own; by default one that knows no hosts."""
    connector = connector or SshConnector(MemoryHostKeys())
    async with connector.dial(info, configured(**config)) as connection:
        yield connection


def configured(**config: Any) -> ConnectorConfig:  # noqa: ANN401  (the settings know their types)
    """Settings for a host that answers, sooner or later."""
    return evolve(ConnectorConfig(timeout=NEVER_REACHED), **config)


def free_port() -> int:
    """Find a port that nobody listens on; it stays free, since no system gives these to whoever wants any port."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


def _wait_until_listening(process: "subprocess.Popen[bytes]", log: Path, start: int) -> None:
    """Read the server's log, from *start* on, until the server listens."""
    while b"Server listening on" not in (printed := log.read_bytes()[start:]):
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL)
            raise AssertionError(f"sshd exited: {printed.decode(errors='replace')}")


def private(path: Path, text: str) -> Path:
    """Write a file that only we can read."""
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _configure(directory: Path, port: int, host_key: KeyPair, user_key: KeyPair, settings: Sequence[str]) -> Path:
    """Write the configuration; nothing is said twice, for it depends which of the two holds."""
    said = {line.split()[0] for line in settings}
    defaults = [
        f"Port {port}",
        "ListenAddress 127.0.0.1",
        f"HostKey {private(directory / 'host_key', host_key.private)}",
        f"AuthorizedKeysFile {private(directory / 'authorized_keys', user_key.public)}",
        "PermitRootLogin yes",
        "StrictModes no",
        "UsePAM no",
        "PidFile none",
        "MaxSessions 1000",
        "MaxStartups 1000",
        _SHELL_LEVEL,
    ]
    lines = [*settings, *(line for line in defaults if line.split()[0] not in said - {"HostKey"})]
    return private(directory / "config", "\n".join(lines) + "\n")
