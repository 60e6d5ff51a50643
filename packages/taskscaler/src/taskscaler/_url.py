"""A daemon that is reached over TCP, and what its clients need for that."""

import os
import re
import ssl
from ipaddress import ip_address
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from attrs import frozen

from fleeting.errors import WrongArguments

TOKEN_FILE = "TASKSCALER_TOKEN_FILE"  # noqa: S105  (a name)
"""The variable that names the file with the token, for those who name none otherwise."""

LONGEST_TOKEN_FILE = 4096
"""Bytes that are read of it."""

_PORTS = {"http": 80, "https": 443}


@frozen(repr=False)
class DaemonUrl:
    """A daemon that listens on TCP."""

    url: str
    """Scheme, host and port."""

    token_file: Path
    """Has the token, which is read whenever it is sent: it may be exchanged while a client runs."""

    @classmethod
    def of(cls, given: str, token_file: str | os.PathLike[str] | None = None) -> Self:
        """Read an address such as ``https://build.example:8443``.

        Args:
            given: The address.
            token_file: The file with the token. None: the one that `TOKEN_FILE` names.

        Raises:
            WrongArguments: It is none, or would send the token for all to read, or no file has a token.
        """
        try:
            parts = urlsplit(given)
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError as error:
            raise WrongArguments(
                f"{given!r} is not the address of a daemon ({error}); use https://HOST:PORT"
            ) from error
        if parts.username is not None or parts.password is not None:  # not repeated: it may be a secret
            raise WrongArguments(f"an address has no user and no password; put the token into a file, see {TOKEN_FILE}")
        if not parts.hostname or parts.scheme not in _PORTS or parts.path.strip("/") or parts.query or parts.fragment:
            raise WrongArguments(f"{given!r} is not the address of a daemon; use https://HOST:PORT")
        if parts.scheme == "http" and not _is_own(parts.hostname):
            raise WrongArguments(f"{given} would send the token unencrypted; use https://")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        named = token_file or os.environ.get(TOKEN_FILE)
        if not named:
            raise WrongArguments(f"a daemon over TCP wants a token; name the file that has it with {TOKEN_FILE}")
        return cls(f"{parts.scheme}://{host}:{port}", Path(named))

    def __str__(self) -> str:
        """The address."""
        return self.url

    def __repr__(self) -> str:
        """The address, and where the token is."""
        return f"DaemonUrl({self.url!r}, token_file={str(self.token_file)!r})"

    def absolute(self) -> Self:
        """Give itself: as a path does, it means the same wherever one is then."""
        return self

    def headers(self) -> dict[str, str]:
        """Make the headers that let a request in.

        Raises:
            WrongArguments: There is no token.
        """
        try:
            with self.token_file.open("rb") as file:
                token = file.read(LONGEST_TOKEN_FILE).strip()
        except OSError as error:
            why = f"the token cannot be read from {self.token_file} ({error.strerror})"
            raise WrongArguments(f"{why}; name another file with {TOKEN_FILE}") from error
        if not re.fullmatch(rb"[!-~]+", token):
            raise WrongArguments(f"{self.token_file} has no token, which is one word; copy the daemon's into it")
        return {"authorization": f"Bearer {token.decode()}"}

    def context(self) -> ssl.SSLContext | bool:
        """Say whom to trust: whom the system does, or SSL_CERT_FILE names. False: the way is not encrypted."""
        return ssl.create_default_context() if self.url.startswith("https:") else False


def trusting_nobody() -> ssl.SSLContext:
    """Make what verifies nothing successfully, for sockets of this host: nothing is encrypted on the way there.

    A client would otherwise read all authorities that the system trusts, which takes 20 ms.
    """
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def is_url(given: str) -> bool:
    """Whether a daemon that is named like this is reached over TCP."""
    return given.lower().startswith(("http://", "https://"))


def _is_own(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
