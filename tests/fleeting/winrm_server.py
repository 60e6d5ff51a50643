"""A WS-Management server for shells, which the real pywinrm talks to; a process of its own.

HTTP or HTTPS; basic authentication, and NTLM with pyspnego on the server's side: with message encryption over HTTP, as
Windows asks for by default. It answers as Windows documents it, and does wrong where it is told to: see `Trouble`.
``POST /control`` takes new troubles, and tells what the server has seen.
"""

import base64
import json
import os
import re
import ssl
import struct
import sys
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

import anyio
import spnego
import spnego.exceptions
from anyio.abc import ByteStream, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.tls import TLSListener
from attrs import define, field, frozen

from tests.fleeting.winrm_commands import Command, argv, environment

S = "http://www.w3.org/2003/05/soap-envelope"
A = "http://schemas.xmlsoap.org/ws/2004/08/addressing"
W = "http://schemas.dmtf.org/wbem/wsman/1/wsman.xsd"
R = "http://schemas.microsoft.com/wbem/wsman/1/windows/shell"
X = "http://schemas.xmlsoap.org/ws/2004/09/transfer"
F = "http://schemas.microsoft.com/wbem/wsman/1/wsmanfault"

TIMED_OUT = 0x80338029
NO_SHELL = 0x8033805B
SHELL_QUOTA = 0x803381A5
OPERATION_QUOTA = 0x803381A6
NO_FILE, NO_DIRECTORY, DENIED, BAD_FORMAT, BROKEN_PIPE, BUSY, ABORTED = 2, 267, 5, 193, 109, 170, 995

ENCRYPTED = 'multipart/encrypted;protocol="application/HTTP-SPNEGO-session-encrypted";boundary="Encrypted Boundary"'


@frozen(kw_only=True)
class Options:
    """How the server is set up."""

    user: str = "tester"
    password: str = "let me in"
    auth: tuple[str, ...] = ("Negotiate", "Basic")
    certificate: str | None = None
    """PEM file with key and certificate; None: HTTP."""

    port: int = 0
    max_shells: int = 30
    max_operations: int = 1500
    """Commands in all shells that are there, ended or not."""

    programs: str | None = None
    """Directory that comes first on the path of commands."""

    home: str | None = None
    """Where commands start; None: where the server was started."""


@frozen(kw_only=True)
class Trouble:
    """Something that goes wrong."""

    verb: str
    """Of the request: the last part of its action; ``Probe`` for one that proves nothing."""

    kind: str
    """``late``, ``stall``, ``hang up``, ``drip``, ``flood``, ``body`` or ``fault``."""

    times: int = 1_000_000
    body: str = ""
    status: int = 200
    code: int = 0
    headers: Mapping[str, str] = field(factory=dict)


class Fault(Exception):
    """What a request is answered with when the service refuses it."""

    def __init__(self, code: int, reason: str, subcode: str = "w:InternalError") -> None:
        """Take Windows's number, its words, and the protocol's."""
        super().__init__(reason)
        self.code, self.reason, self.subcode = code, reason, subcode


class HungUp(Exception):
    """The connection is to be closed without an answer."""


@define(eq=False)
class Shell:
    """A shell with its commands."""

    env: Mapping[str, str]
    cwd: str | None
    codepage: str
    commands: dict[str, Command] = field(factory=dict)
    started: int = 0


@frozen
class Request:
    """What came, taken apart."""

    headers: Mapping[str, str]
    body: bytes


@define(eq=False)
class Service:
    """The service behind all connections."""

    options: Options
    tasks: TaskGroup
    shells: dict[str, Shell] = field(factory=dict)
    troubles: list[list[Any]] = field(factory=list)
    """Each with how many times are left."""

    seen: Counter[str] = field(factory=Counter)
    most_shells: int = 0
    last: dict[str, Any] = field(factory=dict)

    def control(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """Take new troubles, and tell everything."""
        if "troubles" in wish:
            self.troubles = [[Trouble(**each), each.get("times", 1_000_000)] for each in wish["troubles"]]
        if wish.get("forget"):
            self.drop_all()
        return {"seen": self.seen, "shells": len(self.shells), "most_shells": self.most_shells, "last": self.last}

    def drop_all(self) -> None:
        """Lose all shells, as a service does that is started anew."""
        for shell in self.shells.values():
            for command in shell.commands.values():
                command.terminate()
        self.shells.clear()

    def trouble(self, verb: str) -> Trouble | None:
        """What goes wrong with this request."""
        for entry in self.troubles:
            if entry[0].verb == verb and entry[1]:
                entry[1] -= 1
                found: Trouble = entry[0]
                return found
        return None

    async def answer(self, body: bytes) -> tuple[int, bytes]:
        """Answer an envelope."""
        root = ET.fromstring(body)  # noqa: S314  (our own client's)
        header, content = root.find(f"{{{S}}}Header"), root.find(f"{{{S}}}Body")
        assert header is not None
        assert content is not None
        action, message = header.findtext(f"{{{A}}}Action") or "", header.findtext(f"{{{A}}}MessageID") or ""
        try:
            return 200, envelope(f"{action}Response", message, await self._dispatch(action, header, content))
        except Fault as fault:
            return 500, envelope("http://schemas.dmtf.org/wbem/wsman/1/wsman/fault", message, _fault(fault))

    async def _dispatch(self, action: str, header: ET.Element, body: ET.Element) -> str:
        verb = action.rsplit("/", 1)[1]
        self.seen[verb] += 1
        trouble = self.trouble(verb)
        if trouble is not None and trouble.kind == "fault":
            raise Fault(trouble.code, trouble.body or "as it was told to")
        if verb == "Create":
            return self._create(header, body)
        shell = self.shells.get(next((e.text or "" for e in header.iter(f"{{{W}}}Selector")), ""))
        if shell is None:
            raise Fault(NO_SHELL, "The shell was not found on the server.", "w:InvalidSelectors")
        if verb == "Delete":
            return self._delete(shell)
        if verb == "Command":
            return await self._command(shell, header, body)
        patience = float(re.sub(r"[^0-9.]", "", header.findtext(f"{{{W}}}OperationTimeout") or "") or 60)
        element = next(e for e in body.iter() if e.get("CommandId"))
        command = shell.commands.get(element.get("CommandId") or "")
        if command is None:
            raise Fault(NO_SHELL, "The command was not found on the server.", "w:InvalidSelectors")
        match verb:
            case "Receive":
                return await self._receive(command, element, patience)
            case "Send":
                return await self._send(command, element, patience)
        return self._signal(shell, command, element)

    def _create(self, header: ET.Element, body: ET.Element) -> str:
        if len(self.shells) >= self.options.max_shells:
            most = self.options.max_shells
            raise Fault(SHELL_QUOTA, f"This user is allowed a maximum number of {most} concurrent shells.")
        codepage = next((e.text or "" for e in header.iter(f"{{{W}}}Option") if e.get("Name") == "WINRS_CODEPAGE"), "")
        variables = {e.get("Name") or "": e.text or "" for e in body.iter(f"{{{R}}}Variable")}
        name = str(uuid.uuid4()).upper()
        self.shells[name] = Shell(variables, next(body.iter(f"{{{R}}}WorkingDirectory"), body).text, codepage)
        self.most_shells = max(self.most_shells, len(self.shells))
        self.last = {"env": variables, "codepage": codepage}
        selector = f'<w:SelectorSet><w:Selector Name="ShellId">{name}</w:Selector></w:SelectorSet>'
        where = f"<w:ResourceURI>{R}/cmd</w:ResourceURI>{selector}"
        return f"<x:ResourceCreated><a:ReferenceParameters>{where}</a:ReferenceParameters></x:ResourceCreated>"

    def _delete(self, shell: Shell) -> str:
        for command in shell.commands.values():
            command.terminate()
        self.shells = {name: each for name, each in self.shells.items() if each is not shell}
        return ""

    async def _command(self, shell: Shell, header: ET.Element, body: ET.Element) -> str:
        if sum(each.started for each in self.shells.values()) >= self.options.max_operations:
            raise Fault(OPERATION_QUOTA, "This user has reached the maximum number of concurrent operations.")
        shell.started += 1
        options = {e.get("Name"): e.text for e in header.iter(f"{{{W}}}Option")}
        line, rest = (body.findtext(f".//{{{R}}}{name}") or "" for name in ("Command", "Arguments"))
        env = environment(shell.env, self.options.programs)
        try:
            if options.get("WINRS_SKIP_CMD_SHELL") == "TRUE":
                words = argv(line, rest, env, shell.cwd)
            else:
                words = ["/bin/sh", "-c", line]
            cwd = shell.cwd or self.options.home
            if cwd and not await anyio.Path(cwd).is_dir():
                raise NotADirectoryError(cwd)
            command = await Command.start(words, env, cwd, self.tasks)
        except NotADirectoryError as error:
            raise Fault(NO_DIRECTORY, "The directory name is invalid.") from error
        except FileNotFoundError as error:
            raise Fault(0x80070000 + NO_FILE, "The system cannot find the file specified.") from error
        except PermissionError as error:
            raise Fault(DENIED, "Access is denied.") from error
        name = str(uuid.uuid4()).upper()
        shell.commands[name] = command
        return f"<rsp:CommandResponse><rsp:CommandId>{name}</rsp:CommandId></rsp:CommandResponse>"

    async def _receive(self, command: Command, element: ET.Element, patience: float) -> str:
        received = await command.receive(patience)
        if command.is_terminated:
            raise Fault(ABORTED, "The I/O operation has been aborted because of an application request.")
        if received is None:
            raise Fault(TIMED_OUT, "The service cannot complete the operation in time.", "w:TimedOut")
        name, (streams, status) = element.get("CommandId"), received
        text = "".join(
            f'<rsp:Stream Name="{stream}" CommandId="{name}">{base64.b64encode(data).decode()}</rsp:Stream>'
            for stream, data in streams
        )
        state, code = ("Running", "") if status is None else ("Done", f"<rsp:ExitCode>{status}</rsp:ExitCode>")
        state = f'<rsp:CommandState CommandId="{name}" State="{R}/CommandState/{state}">{code}</rsp:CommandState>'
        return f"<rsp:ReceiveResponse>{text}{state}</rsp:ReceiveResponse>"

    async def _send(self, command: Command, element: ET.Element, patience: float) -> str:
        if command.is_feeding:
            raise Fault(BUSY, "The requested resource is in use.")
        if not command.takes_input:
            raise Fault(BROKEN_PIPE, "The pipe has been ended.")
        data, end = base64.b64decode(element.text or ""), element.get("End") == "true"
        if not await command.feed(data, end=end, patience=patience, tasks=self.tasks):
            raise Fault(TIMED_OUT, "The service cannot complete the operation in time.", "w:TimedOut")
        return "<rsp:SendResponse/>"

    def _signal(self, shell: Shell, command: Command, element: ET.Element) -> str:
        command.terminate()
        shell.commands.pop(element.get("CommandId") or "")
        return "<rsp:SignalResponse/>"


@define(eq=False)
class Conversation:
    """One connection; NTLM proves who is at its other end once."""

    service: Service
    stream: ByteStream
    context: Any = None

    async def serve(self) -> None:
        """Answer requests until the client goes."""
        reader = BufferedByteReceiveStream(self.stream)
        gone = (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
        async with self.stream:
            with suppress(*gone, HungUp, ssl.SSLError):
                while True:
                    head = (await reader.receive_until(b"\r\n\r\n", 65536)).decode("latin-1").split("\r\n")
                    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
                    body = await reader.receive_exactly(int(headers.get("content-length", 0)))
                    await self._answer(head[0].split()[1], Request(headers, body))

    async def _answer(self, path: str, request: Request) -> None:
        if path == "/control":
            await self._reply(200, json.dumps(self.service.control(json.loads(request.body))).encode())
            return
        self.service.seen["requests"] += 1
        proof = request.headers.get("authorization", "")
        demand = self._log_in(proof)
        if demand is None and not request.body:
            await self._reply(200)
        elif demand is None:
            await self._perform(request)
        elif proof or not await self._troubled("Probe"):
            await self._reply(401, b"", demand)

    async def _perform(self, request: Request) -> None:
        is_encrypted = "multipart/encrypted" in request.headers.get("content-type", "")
        plain = self._unwrap(request.body) if is_encrypted else request.body
        verb = re.search(rb"Action[^>]*>[^<]*/(\w+)<", plain)
        if verb and await self._troubled(verb[1].decode()):
            return
        status, answer = await self.service.answer(plain)
        if is_encrypted:
            await self._reply(status, self._wrap(answer), {"Content-Type": ENCRYPTED})
        else:
            await self._reply(status, answer)

    def _log_in(self, proof: str) -> dict[str, str] | None:
        """None once it is known who asks; else what the client is told."""
        options = self.service.options
        scheme, _, token = proof.partition(" ")
        if scheme not in options.auth and self.context is not None and self.context.complete:
            return None
        if scheme == "Basic" and "Basic" in options.auth:
            self.service.seen["basic"] += 1
            right = base64.b64encode(f"{options.user}:{options.password}".encode()).decode()
            return None if token == right else self._offer
        if scheme == "Negotiate" and "Negotiate" in options.auth:
            return self._negotiate(base64.b64decode(token))
        return self._offer

    @property
    def _offer(self) -> dict[str, str]:
        return {"WWW-Authenticate": ", ".join(self.service.options.auth)}

    def _negotiate(self, token: bytes) -> dict[str, str] | None:
        """Take a step of NTLM's; None once it was the last, and right."""
        if self.context is None or self.context.complete:
            self.context = spnego.server(protocol="negotiate", options=spnego.NegotiateOptions.use_ntlm)
        try:
            reply = self.context.step(token)
        except spnego.exceptions.SpnegoError:
            self.context = None
            return self._offer
        if not self.context.complete:
            return {"WWW-Authenticate": f"Negotiate {base64.b64encode(reply or b'').decode()}"}
        self.service.seen["ntlm"] += 1
        return None

    def _unwrap(self, body: bytes) -> bytes:
        part = body.split(b"application/octet-stream\r\n", 1)[1]
        part = part[: part.rindex(b"--Encrypted Boundary")]
        (size,) = struct.unpack("<I", part[:4])
        self.service.seen["encrypted"] += 1
        plain: bytes = self.context.unwrap_winrm(part[4 : 4 + size], part[4 + size :])
        return plain

    def _wrap(self, answer: bytes) -> bytes:
        sealed = self.context.wrap_winrm(answer)
        head = (
            "--Encrypted Boundary\r\n\tContent-Type: application/HTTP-SPNEGO-session-encrypted\r\n"
            f"\tOriginalContent: type=application/soap+xml;charset=UTF-8;Length={len(answer)}\r\n"
            "--Encrypted Boundary\r\n\tContent-Type: application/octet-stream\r\n"
        )
        size = struct.pack("<I", len(sealed.header))
        return b"".join((head.encode(), size, sealed.header, sealed.data, b"--Encrypted Boundary--\r\n"))

    async def _troubled(self, verb: str) -> bool:
        """Do wrong, if that is wished; tells whether it was."""
        trouble = self.service.trouble(verb) if verb not in self._faulty() else None
        if trouble is None:
            return False
        self.service.seen[trouble.kind] += 1
        match trouble.kind:
            case "late":
                await anyio.sleep(0.5)
                return False
            case "stall":
                await anyio.sleep_forever()
            case "hang up":
                raise HungUp
            case "drip":
                await self.stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while True:
                    await self.stream.send(b"x")
                    await anyio.sleep(0.05)
            case "flood":
                await self.stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
                while True:
                    await self.stream.send(bytes(1 << 16))
        await self._reply(trouble.status, trouble.body.encode(), trouble.headers)
        return True

    def _faulty(self) -> set[str]:
        """Verbs whose trouble is a proper fault, which the service sees to."""
        return {trouble.verb for trouble, left in self.service.troubles if trouble.kind == "fault" and left}

    async def _reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        told = {"Content-Type": "application/soap+xml;charset=UTF-8", **(headers or {}), "Content-Length": len(body)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        await self.stream.send(f"HTTP/1.1 {status} -\r\n{lines}\r\n".encode() + body)


def envelope(action: str, relates_to: str, body: str) -> bytes:
    """Wrap a body."""
    spaces = f'xmlns:s="{S}" xmlns:a="{A}" xmlns:w="{W}" xmlns:rsp="{R}" xmlns:x="{X}"'
    header = f"<a:Action>{action}</a:Action><a:MessageID>uuid:{uuid.uuid4()}</a:MessageID>"
    header += f"<a:RelatesTo>{relates_to}</a:RelatesTo>"
    return f"<s:Envelope {spaces}><s:Header>{header}</s:Header><s:Body>{body}</s:Body></s:Envelope>".encode()


def _fault(fault: Fault) -> str:
    detail = f'<f:WSManFault xmlns:f="{F}" Code="{fault.code}" Machine="test"><f:Message>-</f:Message></f:WSManFault>'
    code = f"<s:Value>s:Receiver</s:Value><s:Subcode><s:Value>{fault.subcode}</s:Value></s:Subcode>"
    reason = f'<s:Reason><s:Text xml:lang="en-US">{escape(fault.reason)}</s:Text></s:Reason>'
    return f"<s:Fault><s:Code>{code}</s:Code>{reason}<s:Detail>{detail}</s:Detail></s:Fault>"


async def serve(options: Options) -> None:
    """Serve until standard input ends; tells the port on standard output."""
    listener: Any = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=options.port)
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    if options.certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.certificate)
        listener = TLSListener(listener, context, standard_compatible=False)
    async with anyio.create_task_group() as tasks:
        service = Service(options, tasks)
        handle: Callable[[ByteStream], Awaitable[None]] = lambda stream: Conversation(service, stream).serve()  # noqa: E731
        tasks.start_soon(partial(listener.serve, handle))
        print(port, flush=True)  # noqa: T201
        await anyio.wait_readable(sys.stdin)
        service.drop_all()
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    chosen = Options(**json.loads(sys.argv[1]))
    users = Path(sys.argv[2])
    users.write_text(f":{chosen.user}:{chosen.password}\n")
    os.environ["NTLM_USER_FILE"] = str(users)
    anyio.run(serve, chosen)
