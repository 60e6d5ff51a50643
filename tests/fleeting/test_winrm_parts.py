"""The parts of the `winrm` connector by themselves, and what it leans on in pywinrm, requests and urllib3."""

import base64
import socket
import ssl
import subprocess
from importlib.metadata import version
from typing import Any
from xml.etree import ElementTree as ET

import anyio
import pytest
import requests
from anyio import to_thread
from hypothesis import example, given
from hypothesis import strategies as st
from requests.exceptions import ReadTimeout, SSLError
from urllib3.exceptions import MaxRetryError
from winrm.exceptions import InvalidCredentialsError, WinRMOperationTimeoutError, WinRMTransportError, WSManFaultError
from winrm.protocol import Protocol

from fleeting import ConnectError, HostKeyMismatch, LoginRejected, Unreachable
from fleeting._wording import ONE_LINE
from fleeting.connectors.powershell import PREFACE, encode, powershell, quote
from fleeting.connectors.winrm import _calls, _wire
from fleeting.connectors.winrm._calls import Calls
from fleeting.connectors.winrm._command import (
    BOOTSTRAP,
    LONGEST_LINE,
    LONGEST_PROGRAM,
    LONGEST_VARIABLE,
    SCRIPT_VARIABLE,
    Place,
    compose,
    display,
)
from fleeting.connectors.winrm._faults import SHELL_QUOTA, Fault, OperationTimeout, refused, translated
from fleeting.connectors.winrm._wire import (
    LONGEST_ANSWER,
    Line,
    NoEnvelope,
    RequestSettings,
    TooMuch,
    Wire,
    refuse_entities,
)
from tests.fleeting.winrm_commands import split
from tests.fleeting.winrm_server import R, S
from tests.taskscaler.fake_windows import decoded, read_literal

ANY = st.text()
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SENDABLE = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff") | st.sampled_from("\t\r\n")
)

SETTINGS = RequestSettings(
    endpoint="http://127.0.0.1:9/wsman",
    user="me",
    password="hunter2",
    ca_file=None,
    fingerprint=None,
    operation_timeout=1.0,
    patience=0.5,
)


# --- PowerShell ------------------------------------------------------------------------------------------


@given(TEXT, TEXT)
@example("it's \u2018so\u2019 \u201a and \u201b", "'")
def test_a_quoted_text_is_read_as_it_was(text: str, after: str) -> None:
    """PowerShell takes five characters for a quote; whatever follows a literal is none of it."""
    rest = f" {after}"
    assert read_literal(quote(text) + rest) == (text, rest)


@given(ANY)
def test_an_encoded_script_is_read_as_it_was(script: str) -> None:
    """Any text at all, halves of characters among it; and nothing in it is anything to a shell."""
    encoded = encode(script)
    assert decoded(encoded) == script
    assert not set(encoded) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")


@given(TEXT)
def test_a_script_s_command_is_a_program_with_the_script(script: str) -> None:
    """Nothing of the user's profile, no prompt, and the script as it is, behind what makes output UTF-8."""
    program, *options, encoded = powershell(script, program="pwsh.exe")
    assert program == "pwsh.exe"
    assert {"-NoProfile", "-NonInteractive", "-EncodedCommand"} <= set(options)
    assert decoded(encoded) == PREFACE + script


@given(
    TEXT.map(lambda text: text * 4000)
    .filter(lambda text: len(text) > 20_000)
    .filter(lambda t: len(t.encode()) < 250_000)
)
@example("ä'\n" * 10_000)
def test_a_long_script_goes_through_the_environment(script: str) -> None:
    """In variables that Windows takes, in order; PowerShell is given what puts them together."""
    line = compose(powershell(script), env={"A": "1"}, cwd="C:\\x")
    own, *parts = line.place.env
    assert own == ("A", "1")
    assert [name for name, _ in parts] == [f"{SCRIPT_VARIABLE}{number}" for number in range(len(parts))]
    assert max(len(value) for _, value in parts) <= LONGEST_VARIABLE
    assert base64.b64decode("".join(value for _, value in parts)).decode() == PREFACE + script
    assert decoded(line.arguments.split()[-1]) == BOOTSTRAP
    assert len(line.arguments) < LONGEST_LINE


# --- commands --------------------------------------------------------------------------------------------


@given(st.lists(SENDABLE, min_size=1, max_size=6).filter(lambda command: command[0]))
@example(["a\\", '"', "\\\\", 'x\\"y', "", "a b\\", "\t", "\\\\srv\\a b"])
def test_a_list_is_taken_apart_as_it_was(command: list[str]) -> None:
    """By the rules that Microsoft documents for the C runtime."""
    command[0] = command[0].replace('"', "")
    if not command[0]:
        return
    line = compose(command, env={}, cwd=None)
    assert list(split(f"{line.command} {line.arguments}" if len(command) > 1 else line.command)) == command
    assert not line.by_shell


@pytest.mark.parametrize("part", ["command", "argument", "name", "value", "cwd"])
@pytest.mark.parametrize("character", ["\0", "\x1b", "\ud800", "\uffff"])
def test_what_xml_cannot_write_is_refused(part: str, character: str) -> None:
    """With the character's number, and no word of a variable's value."""
    text = f"secret{character}"
    given: dict[str, Any] = {"env": {}, "cwd": None, "command": ["a"]}
    match part:
        case "command" | "argument":
            given["command"] = text if part == "command" else ["a", text]
        case "name" | "value":
            given["env"] = {text: "x"} if part == "name" else {"x": text}
        case "cwd":
            given["cwd"] = text
    with pytest.raises(ConnectError, match=rf"cannot send the character U\+{ord(character):04X}") as error:
        compose(given["command"], env=given["env"], cwd=given["cwd"])
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("command", "env", "message"),
    [
        (
            "x" * (LONGEST_LINE + 1),
            {},
            "has 8001 characters, more than the 8000 of cmd.exe; use fleeting.connectors.powershell",
        ),
        ("a\nb", {}, "cmd.exe accepts one line"),
        (["a", "x" * LONGEST_PROGRAM], {}, "more than the 32000 of Windows; pass data on stdin"),
        ([], {}, "needs a program"),
        ([""], {}, "needs a program"),
        ("a", {"": "x"}, "'' cannot be a variable of Windows"),
        ("a", {"A=B": "x"}, "'A=B' cannot be a variable of Windows"),
    ],
)
def test_what_windows_cannot_run_is_refused(command: str | list[str], env: dict[str, str], message: str) -> None:
    """Each error says what to do, if there is something."""
    with pytest.raises(ConnectError, match=message):
        compose(command, env=env, cwd=None)


def test_secrets_stay_out_of_reprs() -> None:
    """What is sent may have tokens in it."""
    line = compose(["a", "hunter2"], env={"TOKEN": "hunter2"}, cwd=None)
    assert "hunter2" not in f"{line!r} {SETTINGS!r} {Wire.to(SETTINGS, 'basic')!r}"


def test_a_command_is_shown_as_one_line() -> None:
    """As one would type it, without a script that nobody can read."""
    assert (display("a  b"), display(["a", "b c"])) == ("a  b", 'a "b c"')
    assert display(powershell("exit 3")).endswith("-EncodedCommand …")


@given(SENDABLE, SENDABLE)
@example("\r\n\t<>&\"']]>", "\r")
def test_what_is_sent_is_read_as_it_was(line: str, value: str) -> None:
    """XML's readers take carriage returns for line ends, unless they are written out."""
    sent: list[bytes] = []
    wire = Wire.to(SETTINGS, "basic")

    def answer(session: requests.Session, prepared_request: requests.PreparedRequest) -> requests.Response:
        assert isinstance(prepared_request.body, bytes)
        assert not session.trust_env
        sent.append(prepared_request.body)
        return _answer()

    wire.protocol.transport._send_message_request = answer  # type: ignore[method-assign]
    wire.protocol.open_shell(env_vars={"A": value})
    wire.protocol.run_command("shell", line)
    wire.close()
    shell, command = map(ET.fromstring, sent)
    assert (shell.findtext(f".//{{{R}}}Variable") or "") == value
    assert (command.findtext(f".//{{{R}}}Command") or "") == line


def _answer() -> requests.Response:
    response = requests.Response()
    response._content = (
        f'<s:Envelope xmlns:s="{S}"><a><b Name="ShellId">1</b><CommandId>2</CommandId></a></s:Envelope>'.encode()
    )
    return response


def test_places_are_told_apart() -> None:
    """A shell is kept by its environment and directory, in whatever order variables were given to it."""
    assert compose("a", env={"A": "1"}, cwd=None).place == compose(["b"], env={"A": "1"}, cwd=None).place
    assert len({Place(), Place(cwd="/"), Place(env=(("A", "1"),)), Place(env=(("A", "2"),))}) == 4


# --- errors ----------------------------------------------------------------------------------------------


def fault(code: int | None) -> WSManFaultError:
    """Make pywinrm's error for a number of Windows's."""
    return WSManFaultError(500, "", "", "It is\n so.", wsman_fault_code=code)


TLS = SSLError(MaxRetryError(None, "/", ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")))  # type: ignore[arg-type]
UNTRUSTED = SSLError(MaxRetryError(None, "/", ssl.SSLError(1, "certificate verify failed: self-signed")))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ReadTimeout(), Unreachable, "h does not answer"),
        (
            requests.exceptions.ConnectionError("a", OSError(111, "refused")),
            Unreachable,
            "h cannot be reached: refused",
        ),
        (TLS, Unreachable, "h has a TLS problem"),
        (UNTRUSTED, HostKeyMismatch, "certificate that is not trusted: .*self-signed; set ca_file or certificate"),
        (InvalidCredentialsError("x"), LoginRejected, "refuses the user or the password"),
        (PermissionError("x"), LoginRejected, "refuses the user or the password"),
        (WinRMTransportError("http", 503, ""), Unreachable, "is not available"),
        (WinRMTransportError("http", 404, ""), Unreachable, "answers with HTTP status 404"),
        (TooMuch("it sends"), Unreachable, "cannot be understood: it sends"),
        (StopIteration(), Unreachable, r"gives an answer that is not WinRM \(StopIteration\)"),
        (LoginRejected("ours"), LoginRejected, "ours"),
        (WinRMOperationTimeoutError(), OperationTimeout, "^$"),
        (fault(SHELL_QUOTA), Fault, "It is so"),
    ],
)
def test_every_failure_becomes_one_of_ours(error: Exception, kind: type[Exception], message: str) -> None:
    """Whatever pywinrm, requests and urllib3 raise."""
    with pytest.raises(kind, match=message):
        raise translated(error, "h")


@pytest.mark.parametrize(
    ("code", "status"),
    [(2, 127), (0x80070002, 127), (267, 127), (5, 126), (0x80070005, 126), (SHELL_QUOTA, None), (None, None)],
)
def test_a_program_that_cannot_be_started_has_a_status(code: int | None, status: int | None) -> None:
    """As a shell would give it; what has nothing to do with the program has none, and is told in the host's words."""
    found = translated(fault(code), "h")
    assert isinstance(found, Fault)
    assert (found.exit_status, found.reason) == (status, "It is so.")
    assert isinstance(refused(found, "h"), LoginRejected) == (status == 126)
    assert "It is so." in str(refused(found, "h"))


# --- what it leans on ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("package", "major"), [("pywinrm", "0.5"), ("urllib3", "2"), ("requests", "2")])
def test_the_releases_are_those_that_were_looked_at(package: str, major: str) -> None:
    """Another one may have changed what follows."""
    assert version(package).startswith(f"{major}.")


@pytest.mark.anyio
async def test_a_cut_line_wakes_who_waits_for_it() -> None:
    """`HTTPConnection._new_conn` gives the socket; shutting that down ends the wait of the thread."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = _to(server.getsockname()[1])
        line = Line()
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                with pytest.raises(requests.exceptions.ConnectionError):
                    await to_thread.run_sync(_wire.ask_for_schemes, settings, line)

            tasks.start_soon(ask)
            client, _ = await to_thread.run_sync(server.accept)
            client.recv(1 << 16)
            line.cut()
        client.close()
        line.close()


def test_a_line_that_was_cut_before_it_was_there_is_cut() -> None:
    """Whoever is cancelled while a connection is made need not wait for an answer either."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = Line()
        line.cut()
        with pytest.raises(requests.exceptions.ConnectionError):
            _wire.ask_for_schemes(_to(server.getsockname()[1], patience=60.0), line)
        line.close()


def test_pywinrm_waits_as_long_as_it_is_told_to() -> None:
    """`Transport.read_timeout_sec` and the operation's own time-out come from the settings."""
    wire = Wire.to(SETTINGS, "ntlm")
    assert wire.protocol.transport.read_timeout_sec == 2
    assert wire.protocol.build_wsman_header("a", "r")["env:Header"]["w:OperationTimeout"] == "PT1S"
    assert isinstance(wire.protocol, Protocol)


def test_an_answer_is_bounded() -> None:
    """Whatever its length is said to be."""
    assert sum(map(len, _wire._bounded(iter([bytes(LONGEST_ANSWER)])))) == LONGEST_ANSWER
    with pytest.raises(TooMuch):
        list(_wire._bounded(iter([bytes(LONGEST_ANSWER), b"x"])))


@pytest.mark.anyio
async def test_connections_that_were_idle_for_long_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service may have closed them, and is just about to."""
    calls = Calls("h", SETTINGS)
    first = await calls(lambda protocol: protocol)
    assert await calls(lambda protocol: protocol) is first
    monkeypatch.setattr(_calls, "FRESH", -1.0)
    assert await calls(lambda protocol: protocol) is not first


def _to(port: int, *, patience: float = 30.0) -> RequestSettings:
    return RequestSettings(
        endpoint=f"http://127.0.0.1:{port}/wsman",
        user="me",
        password="pw",
        ca_file=None,
        fingerprint=None,
        operation_timeout=20.0,
        patience=patience,
    )


# --- the server's own parser -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('"a b c" d e', ["a b c", "d", "e"]),
        (r'"ab\"c" "\\" d', ['ab"c', "\\", "d"]),
        (r'a\\\b d"e f"g h', [r"a\\\b", "de fg", "h"]),
        (r"a\\\"b c d", [r"a\"b", "c", "d"]),
        (r'a\\\\"b c" d e', [r"a\\b c", "d", "e"]),
    ],
)
def test_command_lines_are_taken_apart_as_microsoft_says(line: str, words: list[str]) -> None:
    """The examples of the documentation of the C runtime."""
    assert list(split(line)) == words
    assert list(split(subprocess.list2cmdline(words))) == words


@pytest.mark.parametrize("encoding", [None, "utf-8", "utf-16", "utf-16-le", "utf-16-be"])
def test_an_answer_declares_no_names(encoding: str | None) -> None:
    """A few lines of XML could stand for a hundred megabytes; SOAP has no use for them. UTF-16 hides none."""

    def written(text: str) -> str | bytes:
        return text.encode(encoding) if encoding else text

    bomb = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa">]><Envelope>&a;</Envelope>'
    assert ET.fromstring(written(bomb)).text == "aaaa"  # noqa: S314  (so pywinrm reads it)
    with pytest.raises(NoEnvelope):
        refuse_entities(written(bomb))
    refuse_entities(written("<Envelope/>"))


def test_a_reason_is_one_line_however_much_a_host_says() -> None:
    """A fault of a megabyte is an error of a kibibyte."""
    found = translated(WSManFaultError(500, "", "", "no\n\x1b[31m" * 99_999, wsman_fault_code=1), "h")
    assert isinstance(found, Fault)
    assert len(found.reason.encode()) <= ONE_LINE
    assert found.reason.isprintable()
