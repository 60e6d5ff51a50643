"""Dialling over WinRM: who answers, how one logs in, what is tried again, and what is refused."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import evolve

import fleeting
from fleeting import ConnectInfo, ConnectorConfig, HostKeyMismatch, LoginRejected, Unreachable, Unsupported
from fleeting.connectors import overridden
from fleeting.connectors.winrm import WinrmConnector
from fleeting.connectors.winrm._dial import Target
from fleeting.errors import PluginBroken
from fleeting.plugins import load_connector
from tests.fleeting.winrm_host import Authority, Host, winrm_host

pytestmark = pytest.mark.anyio

QUICK = ConnectorConfig(timeout=20.0)


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Run a server as Windows is set up by default, with basic authentication switched on."""
    with winrm_host(tmp_path_factory.mktemp("host")) as found:
        yield found


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Run a server that knows nothing but basic authentication, over HTTP."""
    with winrm_host(tmp_path_factory.mktemp("plain"), auth=["Basic"]) as found:
        yield found


@pytest.fixture(scope="session")
def authority() -> Authority:
    """Found an authority."""
    return Authority()


async def echo(info: ConnectInfo, config: ConnectorConfig = QUICK) -> bytes:
    """Dial, and have something said."""
    async with WinrmConnector().dial(info, config) as connection:
        return (await connection.run("echo hi", check=True)).stdout


# --- logging in ------------------------------------------------------------------------------------------


async def test_over_http_every_message_is_encrypted(host: Host) -> None:
    """NTLM logs in, and seals all that follows: as Windows has it by default."""
    before = (await host.control())["seen"]
    assert await echo(host.info) == b"hi\n"
    seen = {key: value - before.get(key, 0) for key, value in (await host.control())["seen"].items()}
    verbs = ("Create", "Command", "Send", "Receive", "Signal", "Delete")
    assert seen["encrypted"] == sum(seen[verb] for verb in verbs)
    assert not seen.get("basic")


async def test_plain_text_is_refused_unless_allowed(plain: Host) -> None:
    """A host that wants the password in plain text gets it only if its user has said so."""
    before = (await plain.control())["seen"].get("basic", 0)
    with pytest.raises(LoginRejected, match=r"exposes the password .* use winrm\+https, or set allow_plaintext"):
        await echo(plain.info)
    assert (await plain.control())["seen"].get("basic", 0) == before
    assert await echo(plain.info, evolve(QUICK, allow_plaintext=True)) == b"hi\n"


@pytest.mark.parametrize("auth", ["Negotiate", "Basic"])
async def test_over_https_both_ways_are_open(tmp_path: Path, authority: Authority, auth: str) -> None:
    """TLS hides everything, so basic authentication needs no leave there."""
    certificate, _ = authority.write(tmp_path)
    config = evolve(QUICK, ca_file=str(authority.write_own(tmp_path)))
    with winrm_host(tmp_path, auth=[auth], certificate=str(certificate)) as host:
        assert await echo(host.info, config) == b"hi\n"


@pytest.mark.parametrize("allowed", [False, True])
async def test_a_wrong_password_is_refused_at_once(host: Host, *, allowed: bool) -> None:
    """It is not tried again, for accounts get locked; the error does not tell it."""
    wrong = evolve(host.info, password="hunter2")
    with pytest.raises(LoginRejected, match="refuses the user or the password") as refusal:
        await echo(wrong, evolve(QUICK, timeout=600.0, allow_plaintext=allowed))
    assert "hunter2" not in f"{refusal.value!r} {refusal.value.__cause__!r} {refusal.value.__context__!r}"


async def test_a_user_who_may_not_is_told_so(tmp_path: Path) -> None:
    """Windows lets administrators in, and tells others by a fault."""
    with winrm_host(tmp_path) as host:
        await host.control({"verb": "Create", "kind": "fault", "code": 5, "body": "Access is denied."})
        with pytest.raises(LoginRejected, match=r"denies access .* Administrators"):
            await echo(host.info)


async def test_a_host_without_a_way_that_we_know(tmp_path: Path) -> None:
    """Kerberos alone is none of ours."""
    offers = "offers neither NTLM nor basic"
    with winrm_host(tmp_path, auth=["Kerberos"]) as host, pytest.raises(LoginRejected, match=offers):
        await echo(host.info)


# --- who answers -----------------------------------------------------------------------------------------


async def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path, authority: Authority) -> None:
    """At once, and before anything is sent."""
    certificate, _ = authority.write(tmp_path)
    with winrm_host(tmp_path, certificate=str(certificate)) as host:
        with pytest.raises(HostKeyMismatch, match=r"not trusted: .*; set ca_file or certificate"):
            await echo(host.info, evolve(QUICK, timeout=600.0))
        other = Authority().write_own(tmp_path)
        with pytest.raises(HostKeyMismatch, match="not trusted"):
            await echo(host.info, evolve(QUICK, timeout=600.0, ca_file=str(other)))


async def test_a_certificate_of_another_host_is_refused(tmp_path: Path, authority: Authority) -> None:
    """That an authority vouches for it is not enough."""
    certificate, _ = authority.write(tmp_path, host="127.0.0.9")
    config = evolve(QUICK, timeout=600.0, ca_file=str(authority.write_own(tmp_path)))
    with (
        winrm_host(tmp_path, certificate=str(certificate)) as host,
        pytest.raises(HostKeyMismatch, match="not trusted"),
    ):
        await echo(host.info, config)


async def test_a_pinned_certificate_is_the_only_one(tmp_path: Path, authority: Authority) -> None:
    """No authority is asked then; letters may be large, and have colons between them."""
    certificate, pin = authority.write(tmp_path, host="127.0.0.9")
    _, other = authority.write(tmp_path)
    spelt = ":".join(pin[i : i + 2] for i in range(0, len(pin), 2)).upper()
    with winrm_host(tmp_path, certificate=str(certificate)) as host:
        assert await echo(host.info, evolve(QUICK, certificate=spelt)) == b"hi\n"
        with pytest.raises(HostKeyMismatch, match="not trusted"):
            await echo(host.info, evolve(QUICK, timeout=600.0, certificate=other))


@pytest.mark.parametrize("text", [None, "no certificate"])
async def test_a_file_of_authorities_that_cannot_be_used(host: Host, tmp_path: Path, text: str | None) -> None:
    """It is named."""
    path = tmp_path / "such.pem"
    if text:
        path.write_text(text)
    with pytest.raises(fleeting.ConfigError, match=rf"ca_file: expected a file of certificates, found {path}"):
        await echo(evolve(host.info, protocol="winrm+https"), evolve(QUICK, ca_file=str(path)))


@pytest.mark.parametrize("text", ["", "ab", "0" * 63, "g" * 64, "00:" * 32])
def test_what_is_no_fingerprint_is_refused(text: str) -> None:
    """SHA-256 has 64 digits."""
    with pytest.raises(ValueError, match="certificate"):
        ConnectorConfig(certificate=text)


# --- trying again ----------------------------------------------------------------------------------------


async def test_a_host_that_boots_is_waited_for(tmp_path: Path) -> None:
    """It refuses, then its service is not there yet."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    info = ConnectInfo(id="late", protocol="winrm", internal_addr="127.0.0.1", port=port, user="tester", password="pw")
    heard: list[bytes] = []
    async with anyio.create_task_group() as tasks:

        async def dial() -> None:
            heard.append(await echo(info))
            tasks.cancel_scope.cancel()

        tasks.start_soon(dial)
        await anyio.wait_all_tasks_blocked()
        with winrm_host(tmp_path, port=port, password="pw") as host:
            await host.control({"verb": "Probe", "kind": "body", "status": 503, "times": 2})
            await anyio.sleep_forever()
    assert heard == [b"hi\n"]


async def test_a_host_that_never_answers_is_given_up_in_time(tmp_path: Path) -> None:
    """The error says what happened last."""
    with winrm_host(tmp_path) as host:
        await host.control({"verb": "Probe", "kind": "body", "status": 404})
        with pytest.raises(Unreachable, match=r"could not be reached within 1s: .* HTTP status 404"):
            await echo(host.info, evolve(QUICK, timeout=1.0))


async def test_tls_where_there_is_none(host: Host) -> None:
    """Who is not understood and says nothing is tried until the time is up."""
    with pytest.raises(Unreachable, match="within 1s: nothing answers"):
        await echo(evolve(host.info, protocol="winrm+https"), evolve(QUICK, timeout=1.0))


async def test_the_environment_of_the_process_is_not_asked(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy or authorities that are set for something else change nothing."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/no/such.pem")
    assert await echo(host.info) == b"hi\n"


# --- where to, as whom -----------------------------------------------------------------------------------


def target(config: ConnectorConfig = QUICK, **info: Any) -> Target:  # noqa: ANN401  (those of `ConnectInfo`)
    """Decide where to dial."""
    known = {"id": "i", "protocol": "winrm", "internal_addr": "10.0.0.5", "password": "pw", **info}
    return Target.of(ConnectInfo(**known), config, operation_timeout=20.0, patience=15.0)


def test_ports_and_users_have_defaults() -> None:
    """5985 and 5986, and the account whose password clouds hand out."""
    assert (target().settings.endpoint, target().settings.user) == ("http://10.0.0.5:5985/wsman", "Administrator")
    assert target(protocol="winrm+https").settings.endpoint == "https://10.0.0.5:5986/wsman"
    assert target(port=80, user="me", internal_addr="fe80::1").settings.endpoint == "http://[fe80::1]:80/wsman"
    assert target(evolve(QUICK, use_external_addr=True), external_addr="1.2.3.4").host == "1.2.3.4"
    assert target(evolve(QUICK, use_external_addr=True)).host == "10.0.0.5"


@pytest.mark.parametrize(
    ("info", "error", "message"),
    [
        ({"internal_addr": None}, Unreachable, "has no address"),
        ({"password": None}, LoginRejected, "no password for i; set password"),
        ({"protocol": "winrm+carrier"}, Unsupported, r"write winrm or winrm\+https"),
    ],
)
def test_what_is_missing_is_told(info: dict[str, Any], error: type[Exception], message: str) -> None:
    """Before anything is dialled."""
    with pytest.raises(error, match=message):
        target(**info)


def test_no_secret_is_shown() -> None:
    """Neither by what is dialled nor by who dials."""
    assert "hunter2" not in f"{target(password='hunter2')!r} {WinrmConnector()!r}"


@pytest.mark.parametrize(
    ("info", "config", "protocol"),
    [
        ({}, {"os": "windows"}, "winrm"),
        ({}, {"os": "windows", "protocol": "ssh"}, "ssh"),
        ({"os": "windows", "protocol": "winrm+https"}, {"os": "windows"}, "winrm+https"),
        ({"os": "windows"}, {"os": "windows"}, "ssh"),
        ({"protocol": "local"}, {"os": "windows"}, "local"),
        ({}, {}, "ssh"),
    ],
)
async def test_windows_speaks_winrm_unless_somebody_says_otherwise(
    info: dict[str, str], config: dict[str, str], protocol: str
) -> None:
    """Who configures no more than the system gets its protocol; a group that knows the system is believed."""
    known = ConnectInfo(id="i", **info)  # type: ignore[arg-type]
    assert (await overridden(known, ConnectorConfig(**config))).protocol == protocol  # type: ignore[arg-type]


# --- loading ---------------------------------------------------------------------------------------------


async def test_it_is_found_by_the_protocol(host: Host) -> None:
    """Like anybody else's connector."""
    async with fleeting.dial(host.info, QUICK) as connection:
        assert isinstance(connection, fleeting.connectors.ReportsSystem)
        assert connection.os == "windows"


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pywinrm the user learns what to install."""
    monkeypatch.setitem(__import__("sys").modules, "winrm", None)
    load_connector.cache_clear()
    try:
        with pytest.raises(PluginBroken, match=r"pip install 'fleeting\[winrm\]'"):
            load_connector("winrm")
    finally:
        load_connector.cache_clear()
