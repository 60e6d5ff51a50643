"""Dialling over SSH, on OpenSSH's own server: who answers, who we are, and what is tried again."""

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.abc import ByteStream, SocketAttribute
from anyio.lowlevel import checkpoint
from attrs import evolve
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from fleeting import (
    ConfigError,
    ConnectError,
    ConnectInfo,
    ConnectorConfig,
    HostKeyMismatch,
    LoginRejected,
    Unreachable,
)
from fleeting.connectors import overridden
from fleeting.connectors.ssh import FileHostKeys, KeyPair, MemoryHostKeys, SshConnector, _dial, generate_key
from fleeting.connectors.ssh._transport import SshTransport
from tests.fleeting.sshd import Server, dialled, free_port, only_root, private, sshd
from tests.needs import need
from tests.time_limits import NEVER_REACHED, longer_and_longer

pytestmark = pytest.mark.anyio


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused key is refused at once."""
    monkeypatch.setattr(_dial, "KEY_PATIENCE", 0.0)


def tool(name: str, *arguments: str) -> str:
    """Run one of the tools that come with OpenSSH and OpenSSL."""
    need(name)
    done = subprocess.run([name, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


async def works(info: ConnectInfo, connector: SshConnector | None = None, **config: Any) -> bool:  # noqa: ANN401  (as `configured`)
    """Dial, and run a command."""
    async with dialled(info, connector, **config) as connection:
        return (await connection.run("true")).ok


# --- who answers -----------------------------------------------------------------------------------------


async def test_a_host_that_is_not_the_one_reported_is_refused(tmp_path: Path) -> None:
    """The key that the group reports is the one that counts, with or without a comment; a comment is no key."""
    other = generate_key().public
    with sshd(tmp_path) as server:
        assert await works(evolve(server.info, host_key=f"{server.host_key} root@host"))
        with pytest.raises(HostKeyMismatch, match=r"shows the host key .* SHA256:.* its group has ssh-"):
            await works(evolve(server.info, host_key=other))
        with pytest.raises(ConnectError, match="is not one line with type and base64"):
            await works(evolve(server.info, host_key="nonsense"))
        with pytest.raises(HostKeyMismatch, match="its group has ssh-ed25519 that is not base64"):
            await works(evolve(server.info, host_key="ssh-ed25519 AAA"))
        assert "Accepted" in (tmp_path / "log").read_text()


async def test_nobody_logs_in_before_the_host_is_known(tmp_path: Path) -> None:
    """A wrong host gets no credentials, not even the user's name."""
    with sshd(tmp_path, "LogLevel DEBUG3") as server, pytest.raises(HostKeyMismatch):
        await works(evolve(server.info, host_key=generate_key().public, password="secret"))
    assert "userauth-request" not in (tmp_path / "log").read_text()


async def test_a_key_that_changes_between_dials_is_refused(tmp_path: Path) -> None:
    """What a host showed when it was first seen is pinned, over restarts; another key is somebody else's."""
    pins = FileHostKeys(tmp_path / "state" / "pins")
    port, user_key = free_port(), generate_key()
    with sshd(tmp_path, port=port, user_key=user_key) as server:
        info = evolve(server.info, host_key=None)
        assert await works(info, SshConnector(pins))
        assert await pins.get(info.id) == server.host_key
    with sshd(tmp_path, port=port, user_key=user_key):
        with pytest.raises(HostKeyMismatch, match=r"the record of when it was first seen, /.*\.key, has"):
            await works(info, SshConnector(FileHostKeys(tmp_path / "state" / "pins")))
        assert await works(evolve(info, id="another"), SshConnector(pins))


async def test_a_host_that_changes_its_key_while_it_is_connected_is_refused_too(tmp_path: Path) -> None:
    """A shared connection that died is dialled anew with the same care."""
    connector, port, user_key = SshConnector(MemoryHostKeys()), free_port(), generate_key()
    async with AsyncExitStack() as held:
        with sshd(tmp_path, port=port, user_key=user_key) as server:
            info = evolve(server.info, host_key=None)
            connection = await held.enter_async_context(dialled(info, connector))
        await connection.wait_closed()  # until its death is noticed, others are given it
    with sshd(tmp_path, port=port, user_key=user_key), pytest.raises(HostKeyMismatch):
        await works(info, connector)


async def test_the_first_report_of_a_console_counts(tmp_path: Path) -> None:
    """Who works on the instance can print another block later, and a console keeps only its end."""
    pins = FileHostKeys(tmp_path / "pins")
    with sshd(tmp_path) as server:
        info = evolve(server.info, pin_host_key=True)
        assert await works(info, SshConnector(pins))
        forged = evolve(info, host_key=generate_key().public)
        with pytest.raises(
            HostKeyMismatch, match=r"the group of .* reports the host key .*, but the first .*\.key, is"
        ):
            await works(forged, SshConnector(pins))
        assert await works(info, SshConnector(pins))
        assert await works(evolve(info, host_key=None), SshConnector(pins))


async def test_a_report_that_comes_after_the_first_connection_must_agree_with_it(tmp_path: Path) -> None:
    """Else somebody may have answered in the place of the instance before its console was there to be read."""
    pins = MemoryHostKeys()
    with sshd(tmp_path) as server:
        assert await works(evolve(server.info, host_key=None), SshConnector(pins))
        assert await works(evolve(server.info, pin_host_key=True), SshConnector(pins))
        with pytest.raises(HostKeyMismatch, match="one of them is forged, so remove the instance"):
            await works(evolve(server.info, host_key=generate_key().public, pin_host_key=True), SshConnector(pins))


async def test_a_key_is_pinned_for_the_host_where_that_outlives_its_instances(tmp_path: Path) -> None:
    """And kept, however seldom the host is used; ids that look like such a host's name are no problem."""
    pins = FileHostKeys(tmp_path / "pins")
    port, user_key = free_port(), generate_key()
    with sshd(tmp_path / "one", port=port, user_key=user_key) as server:
        info = evolve(server.info, host_key=None, host_key_alias="here:22")
        assert await works(evolve(info, id="one"), SshConnector(pins))
    with sshd(tmp_path / "two", port=port, user_key=user_key):
        with pytest.raises(HostKeyMismatch, match="when it was first seen"):
            await works(evolve(info, id="two"), SshConnector(pins))
        assert await works(evolve(info, host_key_alias="there:22"), SshConnector(pins))


@pytest.mark.usefixtures("impatient")
async def test_a_host_that_lets_us_not_in_is_not_pinned(tmp_path: Path) -> None:
    """Whoever answers first at an address that was just given to an instance may still be its former owner."""
    pins = MemoryHostKeys()
    with sshd(tmp_path) as server:
        info = evolve(server.info, host_key=None, key=generate_key().private)
        with pytest.raises(LoginRejected):
            await works(info, SshConnector(pins))
        assert await pins.get(info.id) is None


@pytest.mark.parametrize("line", ["{name} {key}", "other,[127.0.0.*]:* {key} comment", "{hashed} {key}"])
async def test_a_file_of_known_hosts_decides(tmp_path: Path, line: str) -> None:
    """A host that is in the user's file is accepted if its key is; one that is not in there is not."""
    with sshd(tmp_path) as server:
        name = f"[127.0.0.1]:{server.port}"
        known = private(tmp_path / "known", line.format(name=name, key=server.host_key, hashed=hashed(tmp_path, name)))
        info = evolve(server.info, host_key=None)
        assert await works(info, known_hosts=str(known))
        known.write_text(f"# nobody\n{name} {generate_key().public}\n")
        with pytest.raises(HostKeyMismatch, match="somebody else answers"):
            await works(info, known_hosts=str(known))
        known.write_text(f"elsewhere {server.host_key}\n")
        with pytest.raises(HostKeyMismatch, match="has no key of"):
            await works(info, known_hosts=str(known))
        known.write_text(f"{name} {server.host_key}\n@revoked * {server.host_key}\n")
        with pytest.raises(HostKeyMismatch, match="is revoked"):
            await works(info, known_hosts=str(known))
        with pytest.raises(ConfigError, match=r"known_hosts: expected a readable file, found .*/none"):
            await works(info, known_hosts=str(tmp_path / "none"))


def hashed(directory: Path, name: str) -> str:
    """Hash a name as OpenSSH does."""
    file = private(directory / "to_hash", f"{name} {generate_key().public}\n")
    tool("ssh-keygen", "-q", "-H", "-f", str(file))
    return file.read_text().split()[0]


async def test_a_host_with_several_keys_is_asked_for_the_one_that_is_known(tmp_path: Path) -> None:
    """A pinned RSA key is compared with the host's RSA key, though it prefers another."""
    tool("ssh-keygen", "-qt", "rsa", "-N", "", "-f", str(tmp_path / "rsa"))
    with sshd(tmp_path, f"HostKey {tmp_path / 'rsa'}") as server:
        assert await works(evolve(server.info, host_key=(tmp_path / "rsa.pub").read_text()))
        assert await works(server.info)


# --- who we are ------------------------------------------------------------------------------------------

PEM, OPENSSH = serialization.Encoding.PEM, serialization.Encoding.OpenSSH
TRADITIONAL, PKCS8 = serialization.PrivateFormat.TraditionalOpenSSL, serialization.PrivateFormat.PKCS8

BITCOIN = ec.generate_private_key(ec.SECP256K1()).private_bytes(PEM, PKCS8, serialization.NoEncryption()).decode()
"""A key on a curve that SSH does not know."""


def made(kind: str, form: serialization.PrivateFormat, *, passphrase: bytes = b"") -> KeyPair:
    """Make a key in some form."""
    key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
    if kind == "ed25519":
        key = ed25519.Ed25519PrivateKey.generate()
    elif kind == "rsa":
        key = rsa.generate_private_key(65537, 2048)
    else:
        key = ec.generate_private_key(ec.SECP384R1())
    secrecy = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    public = key.public_key().public_bytes(OPENSSH, serialization.PublicFormat.OpenSSH)
    return KeyPair(private=key.private_bytes(PEM, form, secrecy).decode(), public=public.decode())


@pytest.mark.parametrize("form", [serialization.PrivateFormat.OpenSSH, TRADITIONAL, PKCS8], ids=str)
@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
async def test_every_kind_of_key_logs_in(tmp_path: Path, kind: str, form: serialization.PrivateFormat) -> None:
    """Ed25519, ECDSA and RSA keys are read in whatever form a cloud hands them out."""
    if (kind, form) == ("ed25519", TRADITIONAL):
        return  # there is no such form
    key = made(kind, form)
    with sshd(tmp_path, user_key=key) as server:
        assert await works(evolve(server.info, key=f"\n{key.private}\n"))


async def test_keys_that_cannot_be_used() -> None:
    """A key with a passphrase, or what is none, is refused before anybody is dialled, and is not shown."""
    info = ConnectInfo(id="i-1", internal_addr="127.0.0.1", port=1, user="nobody")
    for form in (serialization.PrivateFormat.OpenSSH, PKCS8):
        with pytest.raises(LoginRejected, match="the private key for i-1 has a passphrase"):
            await works(evolve(info, key=made("ecdsa", form, passphrase=b"hush").private))
    with pytest.raises(LoginRejected, match="the private key for i-1 cannot be read") as caught:
        await works(evolve(info, key="-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n"))
    assert "secret" not in str(caught.value)
    with pytest.raises(LoginRejected, match="the private key for i-1 cannot be read: Unsupported curve"):
        await works(evolve(info, key=BITCOIN))
    with pytest.raises(LoginRejected, match="neither a key nor a password for i-1"):
        await works(info)
    with pytest.raises(LoginRejected, match="set username"):
        await works(evolve(info, user=None))
    with pytest.raises(Unreachable, match="i-1 has no address"):
        await works(evolve(info, internal_addr=None))


@pytest.mark.usefixtures("impatient")
async def test_a_refusal_is_an_error_that_says_what_is_accepted(tmp_path: Path) -> None:
    """Who is refused learns as whom, with what, and what the host would take if that is something else."""
    with sshd(tmp_path, "PasswordAuthentication no", "KbdInteractiveAuthentication no") as server:
        with pytest.raises(LoginRejected, match=r"refuses the login of \w+ with the key$"):
            await works(evolve(server.info, key=generate_key().private))
        with pytest.raises(LoginRejected, match=r"with the password; it accepts publickey$"):
            await works(evolve(server.info, key=None, password="wrong"))


async def test_a_refusal_is_one_also_when_the_time_is_up(tmp_path: Path) -> None:
    """Who gave less time than a key has is told of the key, and not to look at the network."""
    with sshd(tmp_path) as server:
        limits = longer_and_longer(1.0)
        while True:
            limit = next(limits)
            with pytest.raises(ConnectError) as error:
                await works(evolve(server.info, key=generate_key().private), timeout=limit)
            if not isinstance(error.value, Unreachable):  # it was reached in time
                break
    assert error.type is LoginRejected
    assert error.match(r"refuses the login of \w+ with the key$")


async def test_a_key_that_is_not_in_its_place_yet_is_tried_again(tmp_path: Path) -> None:
    """A server may be up before cloud-init has written the authorized keys."""
    key = generate_key()
    with sshd(tmp_path, "LogLevel VERBOSE") as server:

        async def authorise() -> None:
            while "Failed publickey" not in (tmp_path / "log").read_text():
                await checkpoint()
            (tmp_path / "authorized_keys").write_text(key.public)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(authorise)
            assert await works(evolve(server.info, key=key.private))


@pytest.fixture
def by_password(tmp_path: Path) -> Iterator[Server]:
    """A server on which root has a password, in a file of passwords that only it sees."""
    secret = tool("openssl", "passwd", "-6", "open sesame")
    shadow = private(tmp_path / "shadow", f"root:{secret}:19000:0:99999:7:::\n")
    by = ["unshare", "-m", "sh", "-c", f'mount --bind {shadow} /etc/shadow && exec "$@"', "sh"]
    with sshd(tmp_path, "PasswordAuthentication yes", "PubkeyAuthentication no", by=by) as server:
        yield server


@only_root
@pytest.mark.usefixtures("impatient")
async def test_a_password_is_not_sent_to_a_host_that_nobody_knows(tmp_path: Path, by_password: Server) -> None:
    """Whoever answers there first would have it; a key shows nothing, and a host that was pinned is known."""
    pins = MemoryHostKeys()
    info = evolve(by_password.info, host_key=None, key=None, password="open sesame")
    told = r"the password is not sent to a host whose key is unknown \(it shows ssh-ed25519 .*\); set known_hosts, or"
    with pytest.raises(LoginRejected, match=told) as caught:
        await works(info, SshConnector(pins))
    assert "open sesame" not in str(caught.value)
    with pytest.raises(LoginRejected, match=rf"with the key; it accepts .*; {told}"):
        await works(evolve(info, key=generate_key().private), SshConnector(pins))
    assert "Failed password" not in (tmp_path / "log").read_text()
    assert await pins.get(info.id) is None
    assert await works(info, SshConnector(pins), allow_password_to_unknown_host=True)
    assert await works(info, SshConnector(pins))


@only_root
async def test_a_password_logs_in(by_password: Server) -> None:
    """A password is enough; a wrong one is refused at once, and not shown."""
    info = evolve(by_password.info, key=None, password="open sesame")
    assert await works(info)
    with pytest.raises(LoginRejected, match=r"refuses the login of \w+ with the password$") as caught:
        await works(evolve(info, password="guesswork"))
    assert "guesswork" not in str(caught.value) + repr(info)


@pytest.mark.usefixtures("impatient")
async def test_agents_are_asked_only_if_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's keys stay out of it unless the configuration says otherwise."""
    key = generate_key()
    path = str(tmp_path / "agent")
    monkeypatch.setenv("SSH_AUTH_SOCK", path)
    pid = int(tool("ssh-agent", "-s", "-a", path).split("SSH_AGENT_PID=")[1].split(";")[0])
    try:
        tool("ssh-add", "-q", str(private(tmp_path / "key", key.private)))
        with sshd(tmp_path, user_key=key) as server:
            info = evolve(server.info, key=None, password="wrong")
            with pytest.raises(LoginRejected):
                await works(info)
            assert await works(info, use_agent=True)
    finally:
        os.kill(pid, signal.SIGTERM)


async def test_a_key_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    """DER, for example."""
    (tmp_path / "key").write_bytes(b"0\x82\x04\xa4\xff")
    info = ConnectInfo(id="i-1", internal_addr="127.0.0.1", user="me")
    with pytest.raises(LoginRejected, match=r"the private key in .*/key is not text; convert it"):
        await overridden(info, ConnectorConfig(key_path=str(tmp_path / "key")))


async def test_a_key_may_be_named_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a shell, and as the guides have it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key").write_text("the key")
    info = ConnectInfo(id="i-1", internal_addr="127.0.0.1", user="me")
    assert (await overridden(info, ConnectorConfig(key_path="~/key"))).key == "the key"


@pytest.mark.parametrize("answer", ["none", "nonsense"])
async def test_an_agent_that_is_stuck_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """`paramiko.Agent._connect` gets the socket; a forwarded agent whose connection is dead never answers."""
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    monkeypatch.setattr(_dial, "LOGIN_TIMEOUT", 0.1 if answer == "none" else NEVER_REACHED)
    info = ConnectInfo(id="i-1", internal_addr="127.0.0.1", port=1, user="me")

    async def give(stream: ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"\0\0\0\1\5") if answer == "nonsense" else await anyio.sleep_forever()

    async with await anyio.create_unix_listener(tmp_path / "agent") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, give)
        with pytest.raises(LoginRejected, match=r"the SSH agent does not list its keys \(.+\); restart it"):
            await works(info, use_agent=True)
        monkeypatch.setattr(_dial, "LOGIN_TIMEOUT", NEVER_REACHED)
        if answer == "none":
            with pytest.raises(Unreachable, match="within"):
                await works(info, use_agent=True, timeout=0.1)
        tasks.cancel_scope.cancel()


def test_a_key_pair_shows_its_public_half_only() -> None:
    """A generated key is new each time, and its secret stays out of its `repr`."""
    one, other = generate_key(), generate_key()
    assert one.private != other.private
    assert one.public in repr(one)
    assert "PRIVATE" not in repr(one)


# --- what is tried again ---------------------------------------------------------------------------------


async def test_a_booting_host_is_waited_for(tmp_path: Path) -> None:
    """A host that refuses, hangs up, or sends what is no SSH is tried until it is ready."""
    port, user_key, host_key = free_port(), generate_key(), generate_key()
    knocked = 0
    with socket.create_server(("127.0.0.1", port)) as early:

        def turn_away() -> None:
            nonlocal knocked
            for answer in (b"", b"booting\r\n", b"SSH-2.0-early\r\n"):
                knock, _ = early.accept()
                with knock:
                    knock.sendall(answer)
                knocked += 1

        async with anyio.create_task_group() as tasks:
            info = ConnectInfo(id="i-1", internal_addr="127.0.0.1", port=port, user="root", key=user_key.private)
            info = evolve(info, host_key=host_key.public)
            connected = anyio.Event()

            async def dial() -> None:
                assert await works(info)
                connected.set()

            tasks.start_soon(dial)
            await anyio.to_thread.run_sync(turn_away)
            early.close()
            with sshd(tmp_path, port=port, user_key=user_key, host_key=host_key):
                await connected.wait()
    assert knocked == 3


async def why_not(info: ConnectInfo) -> str:
    """What is said of a host that was tried until the time was up, once that is long enough for a try."""
    limits = longer_and_longer(0.1)
    while True:
        limit = next(limits)
        with pytest.raises(Unreachable) as error:
            await works(info, timeout=limit)
        what, why = str(error.value).split(f" could not be reached within {limit:g} s: ")
        if why != "nothing answers":
            break
    return f"{what}: {why}"


async def test_what_never_answers_is_given_up() -> None:
    """When the time is up, the error says what happened last."""
    info = ConnectInfo(id="i-1", internal_addr="127.0.0.1", port=free_port(), user="me", key=generate_key().private)
    assert await why_not(info) == f"i-1 (127.0.0.1 port {info.port}): Connection refused"
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Unreachable, match="within"):
        await works(evolve(info, port=silent.getsockname()[1]), timeout=0.1)


async def test_a_name_that_no_host_has_is_told() -> None:
    """An address may come from a file that somebody has written by hand."""
    info = ConnectInfo(id="i-1", internal_addr="ü..x", user="me", key=generate_key().private)
    assert (await why_not(info)).endswith(": 'ü..x' is not a host name")


async def test_no_encryption_in_common_is_final(tmp_path: Path) -> None:
    """A server so old or strict that nothing fits is not tried again."""
    ours_not = "Ciphers chacha20-poly1305@openssh.com"
    with sshd(tmp_path, ours_not) as server, pytest.raises(ConnectError, match="support no common encryption"):
        await works(server.info)


async def test_forty_dials_pass_a_server_that_drops_some(tmp_path: Path) -> None:
    """With stock MaxStartups, and a part of it taken by others, all get in, at most eight at a time."""
    connector = SshConnector(MemoryHostKeys())
    with sshd(tmp_path, "MaxStartups 10:30:100", "LogLevel VERBOSE") as server:
        assert await works(server.info, connector)
        knockers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(9)]
        try:
            async with anyio.create_task_group() as tasks:
                for number in range(40):
                    tasks.start_soon(works, evolve(server.info, id=f"i-{number}"), connector)
        finally:
            for knocker in knockers:
                knocker.close()
    assert "MaxStartups throttling" in (tmp_path / "log").read_text()


async def test_no_more_than_eight_knock_at_once() -> None:
    """However many are to be dialled at one address, sshd is spared; who waits does so until its turn comes."""
    at_the_door, eight = 0, anyio.Event()

    async def keep_waiting(stream: ByteStream) -> None:
        nonlocal at_the_door
        at_the_door += 1
        if at_the_door == _dial.DIALS_PER_HOST:
            eight.set()
        async with stream:
            await anyio.sleep_forever()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    info = ConnectInfo(id="", internal_addr="127.0.0.1", port=port, user="me", key=generate_key().private)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, keep_waiting)
        for number in range(20):
            tasks.start_soon(works, evolve(info, id=f"i-{number}"))
        await eight.wait()
        await wait_all_tasks_blocked()
        assert at_the_door == _dial.DIALS_PER_HOST == 8
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("heard", [0, 30, 1100, 1500], ids=["connected", "greeted", "exchanging keys", "logging in"])
async def test_a_host_that_falls_silent_is_given_up_in_time(tmp_path: Path, heard: int) -> None:
    """Wherever in the dialling its network goes away; and no thread is left of it."""
    with sshd(tmp_path) as server:

        async def lead(stream: ByteStream) -> None:
            """Pass on what is said, and of the answers so many bytes."""
            left = heard
            async with (
                stream,
                await anyio.connect_tcp("127.0.0.1", server.port) as host,
                anyio.create_task_group() as moving,
            ):
                moving.start_soon(pass_on, stream, host)
                while left:
                    answer = await host.receive(left)
                    left -= len(answer)
                    await stream.send(answer)

        assert await works(server.info)  # it listens
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        info = evolve(server.info, port=listener.extra(SocketAttribute.local_port))
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, lead)
            with pytest.raises(Unreachable, match=r"could not be reached within 0\.5 s"):
                await works(info, timeout=0.5)
            tasks.cancel_scope.cancel()
    for thread in threading.enumerate():
        if isinstance(thread, SshTransport):
            await anyio.to_thread.run_sync(thread.join)


async def pass_on(source: ByteStream, target: ByteStream) -> None:
    """Move what comes until nothing more does."""
    with suppress(anyio.BrokenResourceError):
        async for chunk in source:
            await target.send(chunk)


async def test_a_cancelled_dial_leaves_nothing(tmp_path: Path) -> None:
    """Neither a thread nor a connection is left of a dial that was called off."""
    with sshd(tmp_path) as server:
        info = server.info
        server.process.send_signal(signal.SIGSTOP)
        with anyio.move_on_after(0.2):
            await works(info)
        server.process.send_signal(signal.SIGCONT)
        assert await works(info)
        assert len(server.connections) == 1
