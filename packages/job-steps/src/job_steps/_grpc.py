"""gRPC on HTTP/2 without any I/O, both ends: bytes in, events out, and bytes to send.

Every call here has one request and any number of responses: that is all that a service for steps needs. What is kept
of a peer is bounded: a message by `LONGEST_MESSAGE`, responses that nobody takes by `_UNTAKEN`, headers and calls at
one time by h2's settings, and what it sends without getting anywhere by `_MOST_USELESS`.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from struct import Struct
from typing import Any, Final, TypeAlias

from attrs import define, field, frozen
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    InformationalResponseReceived,
    PingAckReceived,
    PingReceived,
    PriorityUpdated,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    UnknownFrameReceived,
)
from h2.exceptions import H2Error, NoSuchStreamError, StreamClosedError
from h2.settings import SettingCodes, Settings

from job_steps._call_status import (
    FOR_HTTP,
    FOR_RESET,
    CallStatus,
    Code,
    read_status,
    read_timeout,
    without_control,
    write_said,
    write_timeout,
)

LONGEST_MESSAGE: Final = 16 << 20
"""Bytes; a service in Go takes 4 MiB unless it was told otherwise."""

MOST_CALLS: Final = 100
"""That a peer may have under way on one connection."""

_WINDOW: Final = 256 << 10
"""Bytes of one call that a peer may send ahead."""

_UNTAKEN: Final = 256 << 10
"""Bytes of one call's messages that nobody has taken, above which its peer has to wait."""

_CONNECTION_WINDOW: Final = 4 << 20
"""Bytes of all calls together; calls that wait to be taken do not hold up the others."""

_DUE: Final = 32 << 10
"""Bytes that have to have arrived for the peer to be given room for as many more."""

_CHUNK: Final = 64 << 10
"""Bytes of messages that are handed out to be sent at once, so that what is sent meanwhile does not pile up."""

_MOST_INCOMING: Final = 4 * LONGEST_MESSAGE
"""Bytes of messages that are not whole, or not taken, of all calls of one connection together."""

_MOST_USELESS: Final = 10_000
"""Frames without any part of a message in them, after which a connection is given up."""

_LONGEST_HEADERS: Final = 64 << 10
_PREFIX: Final = Struct(">BI")
_USELESS: Final = (
    InformationalResponseReceived,
    PingAckReceived,
    PingReceived,
    PriorityUpdated,
    RemoteSettingsChanged,
    SettingsAcknowledged,
    StreamReset,
    UnknownFrameReceived,
)

Headers: TypeAlias = Sequence[tuple[str, str]]


@frozen
class CallReceived:
    """Somebody calls, and has said everything."""

    call: int
    path: str
    request: bytes = field(repr=False)
    timeout: float | None
    """Seconds that the caller waits."""


@frozen
class MessageReceived:
    """A response, or one of several."""

    call: int
    data: bytes = field(repr=False)
    """`Connection.take` it once it is of no more concern."""


@frozen
class CallEnded:
    """A call is over: on the caller's side with its status, on the other because the caller gave up."""

    call: int
    status: CallStatus


@frozen
class ConnectionEnded:
    """No call gets anywhere any more; those under way have ended without a status."""

    reason: str


GrpcEvent: TypeAlias = CallReceived | MessageReceived | CallEnded | ConnectionEnded


@define
class _Stream:
    """One call's."""

    path: str = ""
    timeout: float | None = None
    incoming: bytearray = field(factory=bytearray)
    """What has come of messages that are not whole."""

    outgoing: bytearray = field(factory=bytearray)
    """What the peer has no room for yet."""

    ending: Headers | None = None
    """What is sent after that, as trailers; empty: nothing, but the end."""

    requests: list[bytes] = field(factory=list)
    untaken: int = 0
    """Bytes of messages that were handed out and not taken."""

    owed: int = 0
    """Bytes that the peer has used up of its room, and has not been given back."""

    status: CallStatus | None = None
    has_begun: bool = False
    """Whether anything was answered."""


class _Refused(Exception):
    """A call that ends because of what its peer sent; the other calls go on."""

    def __init__(self, code: Code, said: str) -> None:
        super().__init__(said)
        self.status = CallStatus(code, said)


class Connection:
    """One end of a connection; `Caller` and `Callee` are the two."""

    def __init__(self, *, is_client: bool) -> None:
        """Begin; the first bytes to send are there at once."""
        h2 = H2Connection(H2Configuration(client_side=is_client, header_encoding="utf-8"))
        wanted = {
            SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW,
            SettingCodes.MAX_CONCURRENT_STREAMS: MOST_CALLS,
            SettingCodes.MAX_HEADER_LIST_SIZE: _LONGEST_HEADERS,
            SettingCodes.ENABLE_PUSH: 0,
        }
        h2.local_settings = Settings(client=is_client, initial_values=wanted)
        h2.initiate_connection()
        h2.increment_flow_control_window(_CONNECTION_WINDOW - h2.inbound_flow_control_window)
        self._h2 = h2
        self._streams: dict[int, _Stream] = {}
        self._unsent = bytearray()
        self._useless = 0
        self._owed = 0
        self._ended: str | None = None
        self._collect()

    @property
    def ended(self) -> str | None:
        """Why nothing gets through any more; None if it does."""
        return self._ended

    @property
    def unsent(self) -> int:
        """Bytes to send, messages that the peer has no room for left out."""
        return len(self._unsent)

    def backlog(self, call: int) -> int:
        """Bytes of one call's messages that were not handed out to be sent; none if it is over."""
        stream = self._streams.get(call)
        return len(stream.outgoing) if stream else 0

    def receive(self, data: bytes) -> Sequence[GrpcEvent]:
        """Take in what has arrived, cut anywhere; returns what that leads to, in order."""
        if self._ended is not None:
            return ()
        events: list[GrpcEvent] = []
        try:
            for event in self._h2.receive_data(data):
                events += self._on(event)
                if self._ended is not None:
                    break
        except Exception as error:  # noqa: BLE001  (h2's own, or one that nobody foresaw: it ends this connection alone)
            events += self._end(
                f"what it sends is not HTTP/2: {error}" if str(error) else "what it sends is not HTTP/2"
            )
        self._collect()
        return events

    def ended_by_peer(self, reason: str) -> Sequence[GrpcEvent]:
        """Take note that nothing more will arrive."""
        return self._end(reason) if self._ended is None else ()

    def to_send(self) -> bytes:
        """Return bytes that have to be sent now, not too many; empty if there are none."""
        if self._ended is None:
            self._pump()
            self._collect()
        data = bytes(self._unsent)
        self._unsent.clear()
        return data

    def take(self, call: int, size: int) -> None:
        """Give back the room that a message of so many bytes took, so that its peer can send more."""
        if (stream := self._streams.get(call)) and self._ended is None:
            stream.untaken -= size
            self._give_room(call, stream)
            self._collect()

    def ping(self) -> None:
        """Ask for a sign of life: bytes that arrive, whatever they are."""
        if self._ended is None:
            self._h2.ping(bytes(8))
            self._collect()

    def close(self) -> None:
        """Say good-bye; what is under way ends."""
        if self._ended is None:
            self._h2.close_connection()
            self._collect()
            self._end("it was closed")

    def _on(self, event: Event) -> Iterator[GrpcEvent]:
        """What something means that h2 has understood."""
        if isinstance(event, _USELESS) or (isinstance(event, DataReceived) and not event.data):
            self._useless += 1
            if self._useless > _MOST_USELESS:
                self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
                yield from self._end(f"it has sent {_MOST_USELESS} frames that say nothing")
                return
        if isinstance(event, ConnectionTerminated):
            said = (event.additional_data or b"").decode(errors="replace")[:200]
            yield from self._end(f"the other side ends it{f': {said}' if said else ''}")
            return
        call = getattr(event, "stream_id", 0)
        if isinstance(event, DataReceived):
            self._owed += event.flow_controlled_length
            if self._owed >= _DUE:
                self._h2.increment_flow_control_window(self._owed)
                self._owed = 0
        try:
            yield from self._on_call(call, event)
        except _Refused as refused:
            yield from self._refuse(call, refused.status)

    @abstractmethod
    def _on_call(self, call: int, event: Event) -> Iterator[GrpcEvent]:
        """What it means for a call.

        Raises:
            _Refused: This call is over.
        """

    @abstractmethod
    def _refuse(self, call: int, status: CallStatus) -> Iterator[GrpcEvent]:
        """End a call whose peer sends what it must not."""

    def _messages(self, call: int, stream: _Stream, event: DataReceived) -> Iterator[bytes]:
        """Take data in; returns the messages that are whole now."""
        stream.incoming += event.data
        if sum(len(one.incoming) + one.untaken for one in self._streams.values()) > _MOST_INCOMING:
            limit = f"{_MOST_INCOMING >> 20} MiB"
            raise _Refused(Code.RESOURCE_EXHAUSTED, f"the calls of this connection have more than {limit} under way")
        if event.data:
            self._useless = 0
        stream.owed += event.flow_controlled_length
        while len(stream.incoming) >= _PREFIX.size:
            compressed, size = _PREFIX.unpack_from(stream.incoming)
            if compressed:
                raise _Refused(Code.UNIMPLEMENTED, "a message is compressed, which nobody asked for")
            if size > LONGEST_MESSAGE:
                raise _Refused(
                    Code.RESOURCE_EXHAUSTED,
                    f"a message has {size} bytes, more than the limit of {LONGEST_MESSAGE >> 20} MiB",
                )
            if len(stream.incoming) < _PREFIX.size + size:
                break
            message = bytes(stream.incoming[_PREFIX.size : _PREFIX.size + size])
            del stream.incoming[: _PREFIX.size + size]
            stream.untaken += size
            yield message
        self._give_room(call, stream)

    def _give_room(self, call: int, stream: _Stream) -> None:
        """Let the peer send more of a call if what it has sent was taken."""
        if stream.untaken <= _UNTAKEN and stream.owed >= _DUE:
            with suppress(StreamClosedError, NoSuchStreamError):  # it has sent all that it will
                self._h2.increment_flow_control_window(stream.owed, call)
            stream.owed = 0

    def _put(self, stream: _Stream, message: bytes) -> None:
        stream.outgoing += _PREFIX.pack(0, len(message))
        stream.outgoing += message

    def _pump(self) -> None:
        """Hand h2 what the peer has room for."""
        room = _CHUNK
        for call, stream in list(self._streams.items()):
            while stream.outgoing and room > 0:
                size = min(
                    room,
                    self._h2.local_flow_control_window(call),
                    self._h2.max_outbound_frame_size,
                    len(stream.outgoing),
                )
                if size <= 0:
                    break
                is_last = size == len(stream.outgoing) and stream.ending is not None and not stream.ending
                self._h2.send_data(call, bytes(stream.outgoing[:size]), end_stream=is_last)
                del stream.outgoing[:size]
                room -= size
                self._useless = 0
                if is_last:
                    stream.ending = None
                    self._sent(call)
            if not stream.outgoing and stream.ending is not None:
                if stream.ending:
                    self._h2.send_headers(call, stream.ending, end_stream=True)
                else:
                    self._h2.end_stream(call)
                stream.ending = None
                self._sent(call)

    def _sent(self, call: int) -> None:
        """Take note that all of a call was sent."""

    def _reset(self, call: int, code: ErrorCodes) -> None:
        """End a call's stream at once, if it has not ended."""
        self._streams.pop(call, None)
        with suppress(H2Error):  # it is over already
            self._h2.reset_stream(call, code)
        self._collect()

    def _end(self, reason: str) -> Sequence[GrpcEvent]:
        self._ended = without_control(reason)
        self._streams.clear()
        return (ConnectionEnded(self._ended),)

    def _collect(self) -> None:
        self._unsent += self._h2.data_to_send()


class Caller(Connection):
    """The end that calls."""

    def __init__(self) -> None:
        """Begin."""
        super().__init__(is_client=True)

    @property
    def has_room(self) -> bool:
        """Whether another call can begin."""
        most = self._h2.remote_settings.max_concurrent_streams
        return self._ended is None and self._h2.open_outbound_streams < most

    def call(self, path: str, request: bytes, *, timeout: float | None = None) -> int:
        """Begin a call; returns its number, which its events have.

        Args:
            path: Such as ``/proto.StepRunner/Run``.
            request: Its only message.
            timeout: Seconds after which the service need not answer any more.
        """
        number = self._h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "job-steps"),
        ]
        if timeout is not None:
            headers.append(("grpc-timeout", write_timeout(timeout)))
        self._h2.send_headers(number, headers)
        stream = self._streams[number] = _Stream(path=path, ending=())
        self._put(stream, request)
        self._collect()
        return number

    def cancel(self, call: int) -> None:
        """Give a call up; nothing more comes of it."""
        if call in self._streams and self._ended is None:
            self._reset(call, ErrorCodes.CANCEL)

    def _on_call(self, call: int, event: Event) -> Iterator[GrpcEvent]:
        stream = self._streams.get(call)
        if stream is None:
            return
        if isinstance(event, ResponseReceived):
            self._begin(stream, _plain(event.headers))
        elif isinstance(event, TrailersReceived):
            self._note_status(stream, _plain(event.headers))
        elif isinstance(event, DataReceived):
            for data in self._messages(call, stream, event):
                yield MessageReceived(call, data)
        elif isinstance(event, StreamEnded):
            yield from self._over(call, stream)
        elif isinstance(event, StreamReset):
            del self._streams[call]
            code = FOR_RESET.get(int(event.error_code), Code.INTERNAL)
            yield CallEnded(call, stream.status or CallStatus(code, "the service has broken the call off"))

    def _begin(self, stream: _Stream, headers: Mapping[str, str]) -> None:
        """Look at the headers of an answer."""
        status, kind = headers.get(":status", ""), headers.get("content-type", "")
        if status != "200":
            code = FOR_HTTP.get(int(status) if status.isdigit() else 0, Code.UNKNOWN)
            raise _Refused(code, f"what answers is not gRPC: it says HTTP status {status[:3]}")
        if not kind.startswith("application/grpc"):
            raise _Refused(Code.UNKNOWN, f"what answers is not gRPC: it says {kind[:100]!r}")
        self._note_status(stream, headers)

    def _note_status(self, stream: _Stream, headers: Mapping[str, str]) -> None:
        if "grpc-status" in headers:
            stream.status = read_status(headers["grpc-status"], headers.get("grpc-message", ""))

    def _over(self, call: int, stream: _Stream) -> Iterator[GrpcEvent]:
        """End a call whose service has said all."""
        status = stream.status or CallStatus(Code.INTERNAL, "the service has ended the call without a status")
        if stream.incoming and status.code is Code.OK:
            status = CallStatus(Code.INTERNAL, "the service has ended the call within a message")
        if stream.outgoing or stream.ending is not None:
            self._reset(call, ErrorCodes.NO_ERROR)  # it needs to hear no more
        self._streams.pop(call, None)
        yield CallEnded(call, status)

    def _refuse(self, call: int, status: CallStatus) -> Iterator[GrpcEvent]:
        self._reset(call, ErrorCodes.CANCEL)
        yield CallEnded(call, status)


class Callee(Connection):
    """The end that is called."""

    def __init__(self) -> None:
        """Begin."""
        super().__init__(is_client=False)

    def respond(self, call: int, message: bytes) -> None:
        """Send a response; whether there is room for it, `backlog` tells afterwards."""
        if (stream := self._streams.get(call)) and self._ended is None:
            self._begin(call, stream)
            self._put(stream, message)

    def finish(self, call: int, status: CallStatus) -> None:
        """End a call, after its responses."""
        if (stream := self._streams.get(call)) and self._ended is None:
            self._begin(call, stream)
            trailers = [("grpc-status", str(int(status.code)))]
            if status.said:
                trailers.append(("grpc-message", write_said(status.said)))
            stream.ending = trailers

    def _begin(self, call: int, stream: _Stream) -> None:
        if not stream.has_begun:
            stream.has_begun = True
            self._h2.send_headers(call, [(":status", "200"), ("content-type", "application/grpc")])

    def _on_call(self, call: int, event: Event) -> Iterator[GrpcEvent]:
        if isinstance(event, RequestReceived):
            self._asked(call, _plain(event.headers))
        stream = self._streams.get(call)
        if stream is None or (stream.ending is not None and not isinstance(event, StreamReset)):
            return  # it is over, as far as we are concerned
        if isinstance(event, DataReceived):
            stream.requests += self._messages(call, stream, event)
            stream.untaken = 0  # there is one, and it is taken whole
            if len(stream.requests) > 1:
                raise _Refused(Code.UNIMPLEMENTED, "a call has more than one request")
        elif isinstance(event, StreamEnded):
            if len(stream.requests) != 1 or stream.incoming:
                raise _Refused(Code.INTERNAL, "a call has no whole request")
            yield CallReceived(call, stream.path, stream.requests.pop(), stream.timeout)
        elif isinstance(event, StreamReset):
            del self._streams[call]
            yield CallEnded(call, CallStatus(Code.CANCELLED))

    def _asked(self, call: int, headers: Mapping[str, str]) -> None:
        """Look at the headers of a call."""
        self._useless += 1  # until it says something
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith("application/grpc"):
            self._h2.send_headers(call, [(":status", "415")], end_stream=True)
            self._reset(call, ErrorCodes.NO_ERROR)
            return
        timeout = read_timeout(headers.get("grpc-timeout", ""))
        self._streams[call] = _Stream(path=headers.get(":path", ""), timeout=timeout)

    def _refuse(self, call: int, status: CallStatus) -> Iterator[GrpcEvent]:
        self.finish(call, status)
        stream = self._streams[call]
        stream.incoming.clear()
        stream.requests.clear()
        yield from ()

    def _sent(self, call: int) -> None:
        """Forget the call; if its caller goes on, it is told to stop."""
        self._streams.pop(call, None)
        stream = self._h2.streams.get(call)
        if stream is not None and not stream.closed:
            self._h2.reset_stream(call, ErrorCodes.NO_ERROR)


def _plain(headers: Iterable[Any]) -> Mapping[str, str]:
    """Headers as h2 decodes them, the last of each name."""
    return {str(name): str(value) for name, value in headers}
