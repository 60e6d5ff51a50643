"""gRPC without I/O: what both ends make of bytes, however these are cut, and of peers that mean no good."""

from collections.abc import Iterator, Sequence

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hypothesis import given
from hypothesis import strategies as st

from job_steps import _grpc
from job_steps._call_status import (
    CallStatus,
    Code,
    read_status,
    read_timeout,
    without_control,
    write_said,
    write_timeout,
)
from job_steps._grpc import (
    Callee,
    CallEnded,
    Caller,
    CallReceived,
    Connection,
    ConnectionEnded,
    GrpcEvent,
    MessageReceived,
)

OK = CallStatus(Code.OK)
CUTS = st.lists(st.integers(1, 40), max_size=30)
ANSWERS = st.lists(st.binary(max_size=300), max_size=5)


def _pieces(data: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    """Cut bytes into pieces of these sizes; the rest is one."""
    for size in sizes:
        if not data:
            return
        yield data[:size]
        data = data[size:]
    if data:
        yield data


def _pass_on(source: Connection, target: Connection, sizes: Sequence[int] = ()) -> list[GrpcEvent]:
    """Have arrive what one end has to send."""
    return [event for piece in _pieces(_all_of(source), sizes) for event in target.receive(piece)]


def _all_of(source: Connection) -> bytes:
    return b"".join(iter(source.to_send, b""))


def _settle(caller: Caller, callee: Callee, sizes: Sequence[int] = ()) -> tuple[list[GrpcEvent], list[GrpcEvent]]:
    """Pass everything on, both ways, until nobody has anything to say; what the caller and the callee learn."""
    for_caller: list[GrpcEvent] = []
    for_callee: list[GrpcEvent] = []
    is_quiet = False
    while not is_quiet:
        there, back = _all_of(caller), _all_of(callee)
        is_quiet = not there and not back
        for_callee += [event for piece in _pieces(there, sizes) for event in callee.receive(piece)]
        for event in [event for piece in _pieces(back, sizes) for event in caller.receive(piece)]:
            for_caller.append(event)
            if isinstance(event, MessageReceived):
                caller.take(event.call, len(event.data))
    return for_caller, for_callee


def _ends() -> tuple[Caller, Callee]:
    caller, callee = Caller(), Callee()
    _settle(caller, callee)
    return caller, callee


class Peer:
    """The other end, as h2 lets it be, with no rules of gRPC."""

    def __init__(self, ours: Connection) -> None:
        """Begin, and hear what ours says first."""
        self.ours = ours
        settings = H2Configuration(
            client_side=isinstance(ours, Callee),
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self.h2 = H2Connection(settings)
        self.h2.initiate_connection()
        self.h2.receive_data(ours.to_send())

    def flush(self) -> Sequence[GrpcEvent]:
        """Have arrive what it has to say, and let it hear the answer."""
        events = self.ours.receive(self.h2.data_to_send())
        if said := _all_of(self.ours):
            self.h2.receive_data(said)
        return events

    def call(self, *, data: bytes = b"", path: str = "/a.B/C", end: bool = True, **more: str) -> int:
        """Call our service."""
        number = self.h2.get_next_available_stream_id()
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "x",
            "content-type": "application/grpc",
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        self.h2.send_headers(number, list(headers.items()))
        self.h2.send_data(number, data, end_stream=end)
        return number


def _framed(message: bytes, *, compressed: int = 0, length: int | None = None) -> bytes:
    return bytes([compressed]) + (len(message) if length is None else length).to_bytes(4, "big") + message


# --- what works -----------------------------------------------------------------------------------------


@given(st.binary(max_size=3000), ANSWERS, CUTS, st.sampled_from(Code), st.text(max_size=30))
def test_any_cut_of_the_bytes_gives_the_same_messages(
    request: bytes, answers: Sequence[bytes], sizes: Sequence[int], code: Code, said: str
) -> None:
    """A call with its responses and its status arrives as it was sent, however the bytes come."""
    caller, callee = _ends()
    number = caller.call("/a.B/C", request, timeout=12.5)
    asked = _pass_on(caller, callee, sizes)
    assert [(one.call, one.path, one.request) for one in asked if isinstance(one, CallReceived)] == [
        (number, "/a.B/C", request)
    ]
    assert len(asked) == 1
    for answer in answers:
        callee.respond(number, answer)
    callee.finish(number, CallStatus(code, said))
    expected = without_control(said.encode(errors="replace").decode())
    assert _settle(caller, callee, sizes)[0] == [
        *(MessageReceived(number, answer) for answer in answers),
        CallEnded(number, CallStatus(code, expected)),
    ]


@pytest.mark.parametrize("size", [1 << 16, (1 << 18) + 1, 5 << 20])
def test_messages_larger_than_every_window_get_through(size: int) -> None:
    """Both ends give each other room while a message is on its way."""
    caller, callee = _ends()
    number = caller.call("/a.B/C", bytes(size))
    _, [asked] = _settle(caller, callee)
    assert isinstance(asked, CallReceived)
    assert len(asked.request) == size
    callee.respond(number, bytes(size))
    callee.finish(number, OK)
    answer, end = _settle(caller, callee)[0]
    assert isinstance(answer, MessageReceived)
    assert len(answer.data) == size
    assert end == CallEnded(number, OK)


def test_who_does_not_take_what_comes_makes_his_peer_wait_and_no_other_call() -> None:
    """A log that nobody reads stops after half a megabyte; a call beside it goes on."""
    caller, callee = _ends()
    slow = caller.call("/a.B/Log", b"")
    _pass_on(caller, callee)
    for _ in range(2000):
        callee.respond(slow, bytes(1000))
    waiting: list[GrpcEvent] = []
    for _ in range(100):
        waiting += _pass_on(callee, caller)
        _pass_on(caller, callee)
    assert len(waiting) < 800
    assert callee.backlog(slow) > 1 << 20
    fast = caller.call("/a.B/C", b"")
    _pass_on(caller, callee)
    callee.respond(fast, bytes(100_000))
    callee.finish(fast, OK)
    assert [event.call for event in _settle_only(callee, caller, fast)] == [fast, fast]
    for event in waiting:
        if isinstance(event, MessageReceived):
            caller.take(slow, len(event.data))
    callee.finish(slow, OK)
    rest, _ = _settle(caller, callee)
    assert len(waiting) + len(rest) == 2001
    assert rest[-1] == CallEnded(slow, OK)


def _settle_only(callee: Callee, caller: Caller, call: int) -> list[CallEnded | MessageReceived]:
    """What the caller learns of one call; nothing of another is taken."""
    found: list[CallEnded | MessageReceived] = []
    for _ in range(20):
        found += [
            event
            for event in _pass_on(callee, caller)
            if isinstance(event, CallEnded | MessageReceived) and event.call == call
        ]
        _pass_on(caller, callee)
    return found


def test_a_call_that_is_given_up_ends_on_the_other_side_too() -> None:
    """Nothing more comes of it, and others go on."""
    caller, callee = _ends()
    number, other = caller.call("/a.B/C", b"1"), caller.call("/a.B/C", b"2")
    _pass_on(caller, callee)
    caller.cancel(number)
    assert _pass_on(caller, callee) == [CallEnded(number, CallStatus(Code.CANCELLED))]
    callee.respond(number, b"late")
    callee.finish(number, OK)
    callee.finish(other, OK)
    assert _settle(caller, callee)[0] == [CallEnded(other, OK)]


def test_a_caller_begins_no_more_calls_than_it_may() -> None:
    """It waits for one to be over."""
    caller, callee = _ends()
    calls = []
    while caller.has_room:
        calls.append(caller.call("/a.B/C", b""))
    assert len(calls) == _grpc.MOST_CALLS
    _pass_on(caller, callee)
    callee.finish(calls[3], OK)
    _settle(caller, callee)
    assert caller.has_room


def test_a_sign_of_life_is_answered() -> None:
    """Each end answers the other's ping, which leads to no event."""
    caller, callee = _ends()
    caller.ping()
    assert _pass_on(caller, callee) == []
    assert callee.unsent
    assert _pass_on(callee, caller) == []


@given(st.floats(1e-6, 1e9))
def test_a_timeout_is_never_sent_as_less_than_it_is(seconds: float) -> None:
    """At most eight digits, and hardly more."""
    written = write_timeout(seconds)
    assert len(written) <= 9
    found = read_timeout(written)
    assert found is not None
    if seconds < 99_999_998:
        assert seconds <= found * (1 + 1e-9) <= seconds * 1.0001 + 1e-8


@pytest.mark.parametrize("value", ["", "1", "S", "123456789S", "-1S", "1.5S", "1h", "٣S"])
def test_what_is_no_timeout_is_none(value: str) -> None:
    """A caller who says something else waits as long as it likes."""
    assert read_timeout(value) is None


@given(st.text(max_size=200))
def test_what_is_said_of_a_call_survives_its_header(said: str) -> None:
    """Line breaks, percents and other alphabets too; the header is printable ASCII."""
    written = write_said(said)
    assert written.isascii()
    assert written.isprintable()
    assert read_status("3", written) == CallStatus(
        Code.INVALID_ARGUMENT, without_control(said.encode(errors="replace").decode())
    )


@pytest.mark.parametrize("code", ["17", "-1", "", "x", "0" * 5000 + "1", "00", "٣"])
def test_a_code_that_nobody_knows_is_unknown(code: str) -> None:
    """Newer ones and nonsense alike."""
    assert read_status(code, "").code is Code.UNKNOWN


# --- peers that mean no good --------------------------------------------------------------------------------


def _refusals(peer: Peer) -> dict[str, str]:
    """The trailers that a caller gets."""
    said: dict[str, str] = {}
    for event in peer.h2.receive_data(_all_of(peer.ours)):
        said.update(getattr(event, "headers", None) or ())
    return said


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (_framed(b"zipped", compressed=1), Code.UNIMPLEMENTED),
        (_framed(b"", length=2**32 - 1), Code.RESOURCE_EXHAUSTED),
        (_framed(b"one") + _framed(b"two"), Code.UNIMPLEMENTED),
        (_framed(b"broken off", length=11), Code.INTERNAL),
        (b"", Code.INTERNAL),
        (b"\0\0", Code.INTERNAL),
    ],
)
def test_a_request_that_is_none_ends_only_its_own_call(data: bytes, code: Code) -> None:
    """It is told why, and the next call on the same connection is taken."""
    callee = Callee()
    peer = Peer(callee)
    peer.call(data=data)
    assert callee.receive(peer.h2.data_to_send()) == []
    assert _refusals(peer)["grpc-status"] == str(int(code))
    number = peer.call(data=_framed(b"fine"))
    assert peer.flush() == [CallReceived(number, "/a.B/C", b"fine", None)]


def test_what_comes_after_a_refusal_is_no_request() -> None:
    """Even if it would be one by itself."""
    callee = Callee()
    peer = Peer(callee)
    number = peer.call(data=_framed(b"zipped", compressed=1), end=False)
    assert callee.receive(peer.h2.data_to_send()) == []
    peer.h2.send_data(number, _framed(b"fine"), end_stream=True)
    assert callee.receive(peer.h2.data_to_send()) == []
    assert _refusals(peer)["grpc-status"] == "12"


def test_a_request_of_something_else_than_grpc_is_refused() -> None:
    """A browser, say."""
    peer = Peer(Callee())
    peer.call(data=_framed(b""), content_type="text/html")
    assert peer.ours.receive(peer.h2.data_to_send()) == []
    assert _refusals(peer)[":status"] == "415"


Answer = Sequence[tuple[str, str]]


@pytest.mark.parametrize(
    ("headers", "data", "trailers", "code"),
    [
        ([(":status", "404")], b"", None, Code.UNIMPLEMENTED),
        ([(":status", "503"), ("content-type", "text/html")], b"<html>", None, Code.UNAVAILABLE),
        ([(":status", "200"), ("content-type", "text/html")], b"<html>", None, Code.UNKNOWN),
        ([(":status", "200"), ("content-type", "application/grpc")], b"", None, Code.INTERNAL),
        ([(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "7")], b"", None, Code(7)),
        (
            [(":status", "200"), ("content-type", "application/grpc")],
            _framed(b"a")[:-1],
            [("grpc-status", "0")],
            Code(13),
        ),
        ([(":status", "200"), ("content-type", "application/grpc")], b"", [("grpc-status", "99")], Code.UNKNOWN),
        ([(":status", "200"), ("content-type", "application/grpc")], b"", [("x", "y")], Code.INTERNAL),
        (
            [(":status", "200"), ("content-type", "application/grpc")],
            _framed(b"", compressed=1),
            [],
            Code.UNIMPLEMENTED,
        ),
        ([(":status", "200"), ("content-type", "application/grpc")], _framed(b"", length=1 << 31), [], Code(8)),
    ],
)
def test_an_answer_that_is_none_ends_only_its_own_call(
    headers: Answer, data: bytes, trailers: Answer | None, code: Code
) -> None:
    """The caller learns what is wrong with it, and the connection goes on."""
    caller = Caller()
    peer = Peer(caller)
    number, other = caller.call("/a.B/C", b""), caller.call("/a.B/C", b"")
    peer.h2.receive_data(caller.to_send())
    peer.h2.send_headers(number, headers, end_stream=trailers is None and not data)
    if data:
        peer.h2.send_data(number, data, end_stream=trailers is None)
    if trailers:
        peer.h2.send_headers(number, trailers, end_stream=True)
    [ended] = caller.receive(peer.h2.data_to_send())
    assert isinstance(ended, CallEnded)
    assert (ended.call, ended.status.code) == (number, code)
    peer.h2.send_headers(other, [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "0")], True)
    assert caller.receive(peer.h2.data_to_send()) == [CallEnded(other, OK)]


@pytest.mark.parametrize(
    ("reset", "code"),
    [
        (ErrorCodes.REFUSED_STREAM, Code.UNAVAILABLE),
        (ErrorCodes.CANCEL, Code.CANCELLED),
        (ErrorCodes.ENHANCE_YOUR_CALM, Code.RESOURCE_EXHAUSTED),
        (ErrorCodes.PROTOCOL_ERROR, Code.INTERNAL),
    ],
)
def test_a_call_whose_stream_is_reset_ends_with_a_code(reset: ErrorCodes, code: Code) -> None:
    """As gRPC's document maps them."""
    caller = Caller()
    peer = Peer(caller)
    number = caller.call("/a.B/C", b"")
    peer.h2.receive_data(caller.to_send())
    peer.h2.reset_stream(number, reset)
    [ended] = peer.flush()
    assert isinstance(ended, CallEnded)
    assert ended.status.code is code


def test_a_service_that_says_good_bye_ends_the_connection_with_its_reason() -> None:
    """All that is under way can be called again elsewhere."""
    caller = Caller()
    peer = Peer(caller)
    caller.call("/a.B/C", b"")
    peer.h2.receive_data(caller.to_send())
    peer.h2.close_connection(additional_data=b"too_many_pings")
    assert caller.receive(peer.h2.data_to_send()) == [ConnectionEnded("the other side ends it: too_many_pings")]
    assert caller.receive(b"more") == ()
    assert not caller.has_room


@given(st.binary(min_size=1, max_size=300), st.booleans())
def test_what_is_not_http_2_ends_the_connection_and_nothing_else(data: bytes, is_caller: bool) -> None:  # noqa: FBT001
    """Random bytes lead to no error of ours, however much of them is a frame by chance."""
    ours: Connection = Caller() if is_caller else Callee()
    for event in (*ours.receive(data), *ours.ended_by_peer("it broke")):
        assert isinstance(event, ConnectionEnded)
    assert ours.ended is not None


def _ping(peer: Peer) -> None:
    peer.h2.ping(b"12345678")


def _settings(peer: Peer) -> None:
    peer.h2.update_settings({SettingCodes.MAX_FRAME_SIZE: 16384})


def _nothing(peer: Peer) -> None:
    peer.h2.send_data(1, b"")


def _priority(peer: Peer) -> None:
    peer.h2.prioritize(1)


def _reset(peer: Peer) -> None:
    number = peer.call(end=False)
    peer.h2.reset_stream(number)


def _extension(peer: Peer) -> None:
    peer.h2._data_to_send += b"\0\0\0\x77\0\0\0\0\1"


@pytest.mark.parametrize("flood", [_ping, _settings, _nothing, _priority, _reset, _extension])
def test_a_flood_of_frames_that_say_nothing_ends_its_connection(flood: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while, with the code for it; what they all lead to is not kept."""
    monkeypatch.setattr(_grpc, "_MOST_USELESS", 100)
    callee = Callee()
    peer = Peer(callee)
    peer.call(end=False)
    events = peer.flush()
    for _ in range(300):
        assert callable(flood)
        flood(peer)
        events = callee.receive(peer.h2.data_to_send())
        if callee.ended is not None:
            break
    assert [event for event in events if isinstance(event, ConnectionEnded)]
    assert callee.ended is not None
    assert "say nothing" in callee.ended
    assert callee.unsent < 20_000


def test_headers_without_end_are_not_kept() -> None:
    """Neither a long one nor one that is never ended."""
    callee = Callee()
    peer = Peer(callee)
    peer.call(path="/" + "x" * 100_000)
    assert [type(event) for event in callee.receive(peer.h2.data_to_send())] == [ConnectionEnded]
    callee = Callee()
    peer = Peer(callee)
    start = b"\0\0\1\1\0\0\0\0\1\x82"  # HEADERS that do not end
    more = b"\0\0\1\x09\0\0\0\0\1\x84"  # CONTINUATION that does not either
    assert [type(event) for event in callee.receive(start + more * 1000)] == [ConnectionEnded]
