"""From an address to a host that lets us in: asking, logging in, and trying again.

A host that boots refuses, does not answer, or has no service yet: all of these are tried again until the time is up. A
certificate that is not trusted and a refused password are not: accounts get locked.
"""

import os
import random
import ssl
from collections.abc import Sequence

import anyio
from anyio import to_thread
from attrs import frozen

from fleeting._durations import format_duration
from fleeting._errors import ConfigError, ConfigProblem, LoginRejected, Unreachable, Unsupported
from fleeting._types import ConnectInfo, ConnectorConfig
from fleeting.connectors.winrm._calls import Calls
from fleeting.connectors.winrm._shells import Shells
from fleeting.connectors.winrm._wire import Auth, RequestSettings

FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.2, 5.0, 1.6
"""Seconds between attempts, and the factor by which they grow; each is shortened by up to a half, at random."""

USER = "Administrator"
"""Who logs in where nothing else is said: the account whose password clouds hand out."""

_PORTS = {"http": 5985, "https": 5986}
_SCHEMES = {"winrm": "http", "winrm+http": "http", "winrm+https": "https"}


@frozen(kw_only=True)
class Target:
    """Where to dial, and as whom."""

    info: ConnectInfo
    config: ConnectorConfig
    host: str
    port: int
    settings: RequestSettings

    @classmethod
    def of(cls, info: ConnectInfo, config: ConnectorConfig, *, operation_timeout: float, patience: float) -> "Target":
        """Decide on address, port and user.

        Raises:
            Unreachable, LoginRejected: One of them is missing.
            Unsupported: There is no such protocol.
        """
        if info.protocol not in _SCHEMES:
            raise Unsupported(f"{info.id} has the unknown protocol {info.protocol!r}; write winrm or winrm+https")
        inside, outside = info.internal_addr, info.external_addr
        host = (outside or inside) if config.use_external_addr else (inside or outside)
        if not host:
            raise Unreachable(f"{info.id} has no address; the group's connect_info must return one")
        if info.password is None:
            raise LoginRejected(f"there is no password for {info.id}; set password")
        scheme = _SCHEMES[info.protocol]
        port = info.port or _PORTS[scheme]
        settings = RequestSettings(
            endpoint=f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/wsman",
            user=info.user or USER,
            password=info.password,
            ca_file=config.ca_file and os.path.expanduser(config.ca_file),  # noqa: PTH111  (as text)
            fingerprint=config.certificate and config.certificate.replace(":", "").lower(),
            operation_timeout=operation_timeout,
            patience=patience,
        )
        return cls(info=info, config=config, host=host, port=port, settings=settings)

    def __str__(self) -> str:
        """Name it for errors."""
        return f"{self.info.id} ({self.host} port {self.port})"


async def dial(target: Target, shells: int) -> Shells:
    """Log in, trying again until ``config.timeout`` seconds are over; returns the shells, one of which is ready.

    Raises:
        Unreachable: It did not work in time; says what happened last.
        HostKeyMismatch: Somebody else answers.
        LoginRejected: The credentials are refused, or would have to be shown to everybody.
        ConnectError: The host refuses for another reason.
        ConfigError: The file of authorities cannot be used.
    """
    if target.settings.ca_file is not None:
        await to_thread.run_sync(_check_authorities, target.settings.ca_file)
    pause, last, timeout = FIRST_PAUSE, "nothing answers", target.config.timeout
    with anyio.move_on_after(timeout):
        while True:
            try:
                return await _attempt(target, shells)
            except Unreachable as error:
                last = str(error)
            await anyio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  (spreads attempts, keeps no secret)
            pause = min(pause * GROWTH, LONGEST_PAUSE)
    raise Unreachable(f"{target} could not be reached within {format_duration(timeout)}: {last}")


def _check_authorities(path: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError as error:
        problem = ConfigProblem(path="ca_file", found=f"{path} ({error.strerror})", expected="a file of certificates")
        raise ConfigError([problem]) from error


async def _attempt(target: Target, limit: int) -> Shells:
    offered = await Calls(str(target), target.settings).ask_for_schemes()
    refusal: LoginRejected | None = None
    for auth in _acceptable(target, offered):
        shells = Shells(Calls(str(target), target.settings, auth), limit)
        try:
            await shells.warm_up()
        except LoginRejected as error:
            refusal = error
        else:
            return shells
    raise refusal or LoginRejected(f"{target} offers no way to log in")


def _acceptable(target: Target, offered: str) -> Sequence[Auth]:
    """Choose from what the host offers; a password is shown only to whom it belongs.

    Raises:
        LoginRejected: There is nothing to choose from.
    """
    found: list[Auth] = ["ntlm"] if "negotiate" in offered or "ntlm" in offered else []
    if "basic" in offered:
        if target.settings.is_encrypted or target.config.allow_plaintext:
            found.append("basic")
        elif not found:
            raise LoginRejected(
                f"{target} offers nothing but basic authentication over HTTP, which exposes the password and all data "
                "to everyone on the network; use winrm+https, or set allow_plaintext"
            )
    if not found:
        raise LoginRejected(f"{target} offers neither NTLM nor basic authentication; enable one of them")
    return found
