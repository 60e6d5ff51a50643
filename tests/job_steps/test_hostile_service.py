"""Services and instances that mean no good to the manager: what they say ends its own call, at a bounded cost."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import Completed
from job_steps import ResultInvalid, StepResult, _bring, _grpc, _protobuf
from job_steps import _messages as says
from job_steps._call_status import read_status
from job_steps._grpc import Callee, CallEnded, Caller, CallReceived, ConnectionEnded
from job_steps._grpc import Connection as Ours
from job_steps._grpc_server import Handler, Respond, serve
from job_steps._protobuf import MOST_FIELDS, MalformedMessage, decode, encode
from job_steps.client import AgentError, CallFailed, StepRunnerClient, place_agent, step_runner
from tests.job_steps.agents import memory_streams
from tests.job_steps.test_grpc import Peer

# --- protobuf -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", [b"\x0a\x00", b"\x12\x00", b"\x0a\x04\x08\x01\x10\x01"])
def test_a_message_of_millions_of_fields_is_none(field: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known or not, on whatever level: read, each would take a hundred times as much memory as on its way."""
    assert MOST_FIELDS < 1_000_000
    monkeypatch.setattr(_protobuf, "MOST_FIELDS", 1000)
    with pytest.raises(MalformedMessage, match="more than 1000 fields"):
        decode(says.StatusesMessage, field * 1001)
    with pytest.raises(MalformedMessage, match="more than 1000 fields"):
        decode(says.StatusesMessage, (b"\x0a\x64" + b"\x98\x01\x01\x08\x01" * 20) * 200)


def test_what_no_string_can_have_is_lost_and_the_message_is_not() -> None:
    """Half of a character, which Python's strings may have."""
    assert decode(says.ById, encode(says.ById(id="a\ud800b"))) == says.ById(id="a?b")


# --- frames ---------------------------------------------------------------------------------------------------

KINDS = st.sampled_from([0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 77])
FRAMES = st.tuples(KINDS, st.sampled_from([0, 1, 4, 5, 0x20]), st.sampled_from([0, 1, 3, 2]), st.binary(max_size=24))


def _frame(kind: int, flags: int, stream: int, data: bytes) -> bytes:
    return len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + data


@given(st.lists(FRAMES, max_size=6), st.booleans())
def test_frames_in_any_order_end_their_own_connection(frames: Sequence[Any], is_caller: bool) -> None:  # noqa: FBT001
    """Whatever they say: nothing is raised."""
    ours: Ours = Caller() if is_caller else Callee()
    if isinstance(ours, Caller):
        ours.call("/a.B/C", b"x" * 100_000)
    ours.to_send()
    preface = b"" if is_caller else b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    data = preface + b"".join(_frame(*each) for each in ((4, 0, 0, b""), *frames))
    for event in ours.receive(data):
        assert isinstance(event, ConnectionEnded | CallEnded | CallReceived)
    ours.to_send()
    ours.close()


def test_an_error_that_nobody_foresaw_ends_the_connection_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the library that reads frames, for example."""
    caller = Caller()
    monkeypatch.setattr(caller._h2, "receive_data", lambda _: 1 // 0)
    [ended] = caller.receive(b"x")
    assert ended == ConnectionEnded("what it sends is not HTTP/2: integer division or modulo by zero")


def test_calls_of_one_connection_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred of them could send 16 MiB each, of which nothing is whole."""
    monkeypatch.setattr(_grpc, "_MOST_INCOMING", 100_000)
    callee = Callee()
    peer = Peer(callee)
    for number in range(20):
        peer.call(data=b"\0" + (1 << 20).to_bytes(4, "big") + bytes(10_000), end=False)
        callee.receive(peer.h2.data_to_send())
        codes = [dict(getattr(each, "headers", None) or ()) for each in peer.h2.receive_data(callee.to_send())]
        said = [each["grpc-status"] for each in codes if "grpc-status" in each]
        assert said == (["8"] if number >= 9 else [])
        assert sum(len(each.incoming) for each in callee._streams.values()) <= 100_000


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\rb", "\x9b2J", "\x00"])
def test_what_is_said_is_not_obeyed_by_a_terminal(text: str) -> None:
    """In a status, in a good-bye."""
    said = read_status("2", text).said
    assert said.replace("\ufffd", "").isprintable()
    assert "\ufffd" in said
    [ended] = Caller().ended_by_peer(text)
    assert isinstance(ended, ConnectionEnded)
    assert ended.reason == said
    assert read_status("2", "two\nlines\tof it").said == "two\nlines\tof it"


# --- answers --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _service(answers: dict[str, bytes]) -> AsyncIterator[StepRunnerClient]:
    """A service that answers what a test says."""

    def handler(answer: bytes) -> Handler:
        async def handle(_: bytes, respond: Respond) -> None:
            await respond(answer)

        return handle

    ours, theirs = memory_streams()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve, theirs, {path: handler(answer) for path, answer in answers.items()})
        async with step_runner(ours) as client:
            yield client


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (b"[" * 100_000, "not JSON"),
        (b'{"a":' * 100_000, "not JSON"),
        (b"[" + b"[]," * 600_000 + b"[]]", "results of more than 500000 parts"),
        (b"[1]", "no tree"),
        (b"NaN", "no tree"),
        (b"\xff\xfe\xfd", "not JSON"),
    ],
)
async def test_results_that_are_none_fail_their_own_call(tree: bytes, said: str) -> None:
    """However deep they are, and however many."""
    async with _service({says.GET_RESULTS: encode(says.ResultsMessage(tree=tree))}) as client:
        with pytest.raises(CallFailed, match=said):
            await client.results("1")
        with pytest.raises(CallFailed):  # there is none, but the connection goes on
            await client.status("1")


LEAF = {"name": "a", "status": "success"}
USED = {"cpu_seconds": 1, "peak_memory": 1, "read_bytes": 1, "written_bytes": 1}


def _deep(levels: int) -> dict[str, Any]:
    tree: dict[str, Any] = LEAF
    for _ in range(levels):
        tree = {**LEAF, "steps": [tree]}
    return tree


@pytest.mark.parametrize(
    "tree",
    [
        _deep(10_000),
        {**LEAF, "steps": [LEAF] * 30_000},
        {**LEAF, "started": float("nan")},
        {**LEAF, "ended": 1e300},
        {**LEAF, "started": -1},
        {**LEAF, "started": 10**400},
        {**LEAF, "exit_code": float("inf")},
        {**LEAF, "resources": {**USED, "peak_memory": 10**400}},
        {**LEAF, "resources": {**USED, "cpu_seconds": float("nan")}},
        {**LEAF, "status": "exploded"},
        {**LEAF, "steps": 5},
        {**LEAF, "steps": "abc"},
        {**LEAF, "inputs": {"a": [[[float("inf")]]]}},
    ],
)
def test_a_tree_that_no_run_can_have_is_none(tree: dict[str, Any]) -> None:
    """Levels, numbers of steps, times and figures without measure."""
    with pytest.raises(ResultInvalid):
        StepResult.from_dict(tree)


@pytest.mark.anyio
async def test_a_newer_service_is_understood_as_far_as_it_can_be() -> None:
    """States and causes that nobody knows yet, fields too, and times beyond every calendar."""
    status = says.StatusMessage(
        id="1", status=77, cause=99, message="a\x1b[2Jb", start_time=says.Timestamp(seconds=1 << 62)
    )
    newer = encode(status) + b"\xfa\xff\x03\x03new"
    answer = b"\x0a" + bytes([len(newer)]) + newer + b"\x98\x01\x05"
    tree = {**LEAF, "brand": "new", "steps": [{**LEAF, "more": 1}]}
    results = encode(says.ResultsMessage(tree=json.dumps(tree).encode(), is_final=True))
    async with _service({says.STATUS: answer, says.GET_RESULTS: results + b"\x98\x01\x05"}) as client:
        found = await client.status("1")
        assert (found.state.is_over, found.cause.name, found.message) == (False, "NONE", "a\ufffd[2Jb")
        assert found.started_at is None
        got = await client.results("1")
        assert got is not None
        assert got.tree is not None
        assert StepResult.from_dict(got.tree).steps[0].name == "a"


@pytest.mark.anyio
@pytest.mark.parametrize("ends_in", [float("nan"), float("inf"), -1.0, 1e9])
async def test_a_hold_without_end_is_none(ends_in: float) -> None:
    """People see for how long yet, as words or as JSON."""
    held = says.HeldsMessage(held=[says.HeldMessage(id="1", number=1, when="before", ends_in=ends_in)])
    async with _service({says.GET_HELD: encode(held)}) as client:
        with pytest.raises(CallFailed, match="a step that is held without end"):
            await client.held()


class _Shell:
    """A connection to an instance whose shell says what a test says."""

    def __init__(self, said: bytes, *, hangs: bool = False) -> None:
        """Take what it says."""
        self.said, self.hangs = said, hangs

    async def run(self, *_: object, **__: object) -> Completed:
        """Run nothing."""
        if self.hangs:
            await anyio.sleep_forever()
        return Completed(exit_status=0, stdout=self.said)


@pytest.mark.anyio
@pytest.mark.parametrize("said", [b"", b"has /x", b"has /x\n\n", b"nonsense\nhas x\n", b"\xff" * 1000])
async def test_an_instance_that_says_nonsense_has_no_agent(said: bytes) -> None:
    """One sentence says so."""
    connection: Any = _Shell(said)
    with pytest.raises(AgentError, match="the agent cannot be looked for: the instance's shell"):
        await place_agent(connection)


@pytest.mark.anyio
async def test_an_instance_that_says_nothing_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After five minutes."""
    monkeypatch.setattr(_bring, "PLACE_TIMEOUT", 0.01)
    connection: Any = _Shell(b"", hangs=True)
    with pytest.raises(AgentError, match=r"was not placed on the instance within 0\.01 s"):
        await place_agent(connection)
