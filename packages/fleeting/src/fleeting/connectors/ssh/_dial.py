"""From an address to a connection that is logged in: connecting, shaking hands, proving who is who, and trying again.

A booting host refuses, drops or ignores who comes too early, and a busy sshd drops some of those who knock
(MaxStartups): all of these are tried again until the time is up. A wrong host key never is. A key that is refused is
tried again for a little while: sshd may be up before cloud-init has put the key in its place.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from socket import socket
from typing import Any
from weakref import WeakValueDictionary

import anyio
import paramiko
from anyio import to_thread
from anyio.lowlevel import RunVar
from attrs import define, field, frozen
from paramiko.auth_handler import AuthHandler

from fleeting._errors import ConnectError, LoginRejected, Unreachable
from fleeting._types import ConnectInfo, ConnectorConfig
from fleeting._wording import one_line
from fleeting.connectors.ssh._host_keys import Expected, HostKeys, expected, fingerprint, pin_name
from fleeting.connectors.ssh._keys import load_key
from fleeting.connectors.ssh._transport import SshTransport
from fleeting.connectors.ssh._wakeup import Signal

DIALS_PER_HOST = 8
"""Dials at once to one host: from 10 unauthenticated connections on, sshd begins to drop some (MaxStartups)."""

LOGIN_TIMEOUT = 30.0
"""Seconds for the handshake and the login of one attempt."""

KEY_PATIENCE = 20.0
"""Seconds for which a refused key is tried again."""

LONGEST_AGENT_ANSWER = 1 << 18
"""Bytes of what an agent says in one answer: OpenSSH's own limit."""

_LONGEST_LIST = 200
"""Bytes of a host's list of the ways to log in that an error shows."""

FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.2, 5.0, 1.6
"""Seconds between attempts, and the factor by which they grow; each is shortened by up to a half, at random."""

Connect = Callable[[str, int], Awaitable[socket]]
"""Opens a socket to a host and port; raises OSError or Unreachable."""


@frozen(kw_only=True)
class Target:
    """Where to dial, and as whom."""

    info: ConnectInfo
    config: ConnectorConfig
    host: str
    port: int
    user: str

    @classmethod
    def of(cls, info: ConnectInfo, config: ConnectorConfig) -> "Target":
        """Decide on address, port and user.

        Raises:
            Unreachable, LoginRejected: One of them is missing.
        """
        inside, outside = info.internal_addr, info.external_addr
        host = (outside or inside) if config.use_external_addr else (inside or outside)
        if not host:
            raise Unreachable(f"{info.id} has no address; the group's connect_info must return one")
        if not info.user:
            raise LoginRejected(f"there is no user name for {info.id}; set username")
        return cls(info=info, config=config, host=host, port=info.port or 22, user=info.user)

    def __str__(self) -> str:
        """Name it for errors."""
        return f"{self.info.id} ({self.host} port {self.port})"


async def dial(target: Target, store: HostKeys, connect: Connect, *, linger: float) -> SshTransport:
    """Connect and log in, trying again until ``config.timeout`` seconds are over.

    Raises:
        Unreachable: It did not work in time; says what happened last.
        HostKeyMismatch: Somebody else answers.
        LoginRejected: The credentials are missing, cannot be used, or are refused, and were to the last.
    """
    dialling = _Dialling(target, store, connect, linger)
    timeout = target.config.timeout
    try:
        with anyio.fail_after(timeout):
            return await dialling.until_connected()
    except TimeoutError:
        if dialling.refusal is not None:
            raise dialling.refusal from None
        raise Unreachable(f"{target} could not be reached within {timeout:g} s: {dialling.last}") from None


class _TryAgain(Exception):
    """This attempt came to nothing; says why."""


@define
class _Dialling:
    """The attempts of one dial."""

    _target: Target
    _store: HostKeys
    _connect: Connect
    _linger: float
    last: str = field(default="nothing answers", init=False)
    refusal: LoginRejected | None = field(default=None, init=False)
    """What the last attempt ended with, if it was that."""

    _refused_at: float | None = field(default=None, init=False)
    """When the key was first refused."""

    async def until_connected(self) -> SshTransport:
        pause = FIRST_PAUSE
        async with _credentials(self._target) as credentials:
            while (transport := await self._try(credentials)) is None:
                await anyio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  (spreads attempts, keeps no secret)
                pause = min(pause * GROWTH, LONGEST_PAUSE)
        return transport

    async def _try(self, credentials: "Sequence[_Credential]") -> SshTransport | None:
        """Make an attempt; None if it may be worth another."""
        try:
            async with _turns(self._target):
                return await self._attempt(credentials)
        except (_TryAgain, OSError, Unreachable, paramiko.SSHException, EOFError) as error:
            self.last, self.refusal = one_line(_in_words(error)) or "it hung up", None
        except LoginRejected as error:
            if not self._may_be_early():
                raise
            self.refusal = error
        return None

    def _may_be_early(self) -> bool:
        """Whether a refusal may be due to a key that is not in its place yet."""
        now = anyio.current_time()
        self._refused_at = self._refused_at or now
        return self._target.info.key is not None and now < self._refused_at + KEY_PATIENCE

    async def _attempt(self, credentials: "Sequence[_Credential]") -> SshTransport:
        target = self._target
        config = target.config
        known = await expected(target.info, (target.host, target.port), config.known_hosts, self._store)
        transport = SshTransport(await self._connect(target.host, target.port), linger=self._linger)
        try:
            with anyio.fail_after(LOGIN_TIMEOUT):
                shown = await _shake_hands(transport, target, known)
                may_send = bool(known.keys) or config.allow_password_to_unknown_host
                await _log_in(transport, target, credentials, shown=shown, may_send_password=may_send)
            await self._pin(known, shown)
        except BaseException as error:
            transport.give_up("the dialling failed")
            if isinstance(error, TimeoutError):
                raise _TryAgain(f"it took more than {LOGIN_TIMEOUT:g} s to log in") from None
            raise
        transport.supervise(config.keepalive, config.keepalive_misses)
        return transport

    async def _pin(self, known: Expected, shown: str) -> None:
        """Remember a host that was seen for the first time and lets us in; somebody may have been faster."""
        if not known.keys:
            pinned = await self._store.pin(pin_name(self._target.info), shown)
            Expected(frozenset({pinned}), known.source).check(self._target.info.id, shown)


def _in_words(error: BaseException) -> str:
    """Say what happened, as people do: without the number that Python puts before it."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


async def _shake_hands(transport: SshTransport, target: Target, known: Expected) -> str:
    """Exchange keys, and make sure who answers; returns the host's key."""
    options = transport.get_security_options()
    options.key_types = tuple(sorted(options.key_types, key=lambda kind: _base(kind) not in known.types))
    await _phase(transport, lambda done: transport.start_client(event=done))
    if not transport.active:
        if isinstance(transport.saved_exception, paramiko.ssh_exception.IncompatiblePeer):
            raise ConnectError(f"{target} and this client support no common encryption: {transport.why_closed}")
        raise _TryAgain(f"it hung up during the handshake: {transport.why_closed}")
    key = transport.get_remote_server_key()
    shown = f"{key.get_name()} {key.get_base64()}"
    known.check(target.info.id, shown)
    return shown


def _base(algorithm: str) -> str:
    """The type of key that an algorithm signs with."""
    return "ssh-rsa" if algorithm.startswith("rsa-") else algorithm


async def _phase(transport: SshTransport, start: Callable[[Any], object]) -> None:
    """Start something in paramiko, and wait until it is over, one way or another."""
    done = Signal(transport.wakeup)
    start(done)
    await transport.wakeup.wait_for(lambda: done.is_set or not transport.active)


# --- logging in ------------------------------------------------------------------------------------------


@frozen
class _Credential:
    """Something to log in with."""

    name: str
    start: Callable[[SshTransport, str, Any], object]
    """Begins the login of a user; the last argument is to be set when it is over."""

    is_password: bool = False
    """Whether the host learns the secret itself."""

    is_stopgap: bool = False
    """Whether it is the same as the one before it, for hosts that have that way of logging in switched off."""


async def _log_in(
    transport: SshTransport, target: Target, credentials: Sequence[_Credential], *, shown: str, may_send_password: bool
) -> None:
    """Try one credential after another; the password only where it may be sent.

    Raises:
        LoginRejected: None is accepted.
    """
    sent = [credential for credential in credentials if may_send_password or not credential.is_password]
    withheld = "" if len(sent) == len(credentials) else _withheld(shown)
    if not sent:
        raise LoginRejected(f"{target}: {withheld}")
    refused, refusal = False, None
    for credential in sent:
        if credential.is_stopgap and not isinstance(refusal, paramiko.BadAuthenticationType):
            continue
        await _phase(transport, partial(credential.start, transport, target.user))
        if transport.is_authenticated():
            return
        if not transport.active:
            break
        refused, refusal = True, transport.get_exception()  # None where the way was right and the secret wrong
    if not refused:
        raise _TryAgain(f"it hung up during the login: {transport.why_closed}")
    tried = " and ".join(credential.name for credential in sent if not credential.is_stopgap)
    accepted = one_line(" or ".join(getattr(refusal, "allowed_types", ())), _LONGEST_LIST)
    tail = (f"; it accepts {accepted}" if accepted else "") + (f"; {withheld}" if withheld else "")
    raise LoginRejected(f"{target} refuses the login of {target.user} with {tried}{tail}")


def _withheld(shown: str) -> str:
    """Why the password was not sent, and what to do."""
    return (
        f"the password is not sent to a host whose key is unknown (it shows {fingerprint(shown)}); "
        "set known_hosts, or allow_password_to_unknown_host if you trust the network"
    )


@asynccontextmanager
async def _credentials(target: Target) -> AsyncIterator[Sequence[_Credential]]:
    """Gather what there is to log in with, in the order in which it is tried.

    Raises:
        LoginRejected: There is nothing, or it cannot be used.
    """
    info = target.info
    with ExitStack() as stack:
        found = []
        if info.key is not None:
            found.append(_key(await to_thread.run_sync(load_key, info.key, info.id), "the key"))
        if target.config.use_agent:
            agent = await _ask_agent()
            stack.callback(agent.close)
            found += [_key(key, "a key of the agent's") for key in agent.get_keys()]
        if info.password is not None:
            found += _password(info.password)
        if not found:
            raise LoginRejected(f"there is neither a key nor a password for {info.id}; set key_path or password")
        yield found


class _Agent(paramiko.Agent):
    """An agent that may be stuck: one that was forwarded over a connection that is dead, for example."""

    def _connect(self, conn: socket) -> None:
        conn.settimeout(LOGIN_TIMEOUT)
        try:
            super()._connect(conn)  # type: ignore[misc]  # missing from paramiko's stubs
        except BaseException:
            conn.close()
            raise

    def _read_all(self, wanted: int) -> bytes:
        if wanted > LONGEST_AGENT_ANSWER:  # paramiko believes any length, and would keep that much
            raise paramiko.SSHException(f"it announced an answer of {wanted} bytes")
        return bytes(super()._read_all(wanted))  # type: ignore[misc]  # missing from paramiko's stubs


async def _ask_agent() -> _Agent:
    """Find the agent, and learn what keys it has.

    Raises:
        LoginRejected: It does not answer as an agent does.
    """
    try:
        return await to_thread.run_sync(_Agent, abandon_on_cancel=True)
    except (OSError, paramiko.SSHException) as error:
        raise LoginRejected(f"the SSH agent does not list its keys ({error}); restart it or unset use_agent") from error


def _key(key: Any, name: str) -> _Credential:  # noqa: ANN401  (an agent's keys are not of paramiko's class for keys)
    return _Credential(name, lambda transport, user, done: transport.auth_publickey(user, key, event=done))


def _password(password: str) -> list[_Credential]:
    """As a password, and where that is switched off, as the answer to the one question that PAM asks."""

    def answer(transport: SshTransport, user: str, done: Any) -> None:  # noqa: ANN401  (as `_Credential.start`)
        transport.auth_handler = AuthHandler(transport)
        transport.auth_handler.auth_interactive(user, lambda _title, _text, asked: [password] * len(asked), done)

    def send(transport: SshTransport, user: str, done: Any) -> None:  # noqa: ANN401  (as `_Credential.start`)
        transport.auth_password(user, password, event=done)

    return [
        _Credential("the password", send, is_password=True),
        _Credential("", answer, is_password=True, is_stopgap=True),
    ]


# --- at most so many at once -----------------------------------------------------------------------------

_TURNS: RunVar["WeakValueDictionary[tuple[str, int], anyio.Semaphore]"] = RunVar("dials per host")


def _turns(target: Target) -> anyio.Semaphore:
    """What to hold while dialling a host."""
    try:
        turns = _TURNS.get()
    except LookupError:
        _TURNS.set(turns := WeakValueDictionary())
    address = target.host, target.port
    return turns.setdefault(address, anyio.Semaphore(DIALS_PER_HOST))
