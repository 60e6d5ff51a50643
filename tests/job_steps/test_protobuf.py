"""Our messages are Google's, byte for byte as far as that is laid down; what is none leads to one error."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from attrs import asdict, fields
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from job_steps import _messages as says
from job_steps._protobuf import MalformedMessage, decode, encode

Kind = descriptor_pb2.FieldDescriptorProto

STEP_PROTO: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "Variable": {"key": (1, "string"), "value": (2, "string"), "file": (3, "bool"), "masked": (4, "bool")},
    "Job": {"variables": (1, "repeated Variable"), "build_dir": (4, "string")},
    "RunRequest": {
        "id": (1, "string"),
        "work_dir": (2, "string"),
        "env": (3, "map"),
        "job": (5, "Job"),
        "steps": (6, "string"),
        "time_limit": (15001, "double"),
        "breakpoints": (15002, "repeated string"),
        "breakpoint_timeout": (15003, "double"),
        "policy": (15004, "string"),
    },
    "StatusRequest": {"id": (1, "string")},
    "FollowLogsRequest": {"id": (1, "string"), "offset": (2, "int64")},
    "FollowLogsResponse": {"data": (1, "bytes")},
    "Timestamp": {"seconds": (1, "int64"), "nanos": (2, "int32")},
    "Status": {
        "id": (1, "string"),
        "message": (2, "string"),
        "status": (3, "int32"),
        "start_time": (5, "Timestamp"),
        "end_time": (6, "Timestamp"),
        "cause": (15001, "int32"),
        "held_time": (15002, "double"),
    },
    "StatusResponse": {"jobs": (1, "repeated Status")},
    "Results": {"tree": (1, "bytes"), "is_final": (2, "bool")},
    "Held": {
        "id": (1, "string"),
        "number": (2, "int64"),
        "path": (3, "repeated string"),
        "when": (4, "string"),
        "ends_in": (5, "double"),
        "result": (6, "bytes"),
    },
    "Helds": {"held": (1, "repeated Held"), "is_final": (2, "bool")},
    "ByHold": {"id": (1, "string"), "number": (2, "int64")},
    "Environment": {"env": (1, "map"), "work_dir": (2, "string")},
    "Decide": {"id": (1, "string"), "number": (2, "int64"), "decision": (3, "string")},
    "Decided": {"ended": (1, "string")},
    "AddBreakpoints": {"id": (1, "string"), "breakpoints": (2, "repeated string")},
}
"""The messages as the step runner's ``proto/step.proto`` has them, at 0.11.0, with what we add."""

OURS = {
    "Variable": says.VariableMessage,
    "Job": says.Job,
    "RunRequest": says.RunMessage,
    "StatusRequest": says.ById,
    "FollowLogsRequest": says.FollowLogsMessage,
    "FollowLogsResponse": says.LogsMessage,
    "Timestamp": says.Timestamp,
    "Status": says.StatusMessage,
    "StatusResponse": says.StatusesMessage,
    "Results": says.ResultsMessage,
    "Held": says.HeldMessage,
    "Helds": says.HeldsMessage,
    "ByHold": says.ByHold,
    "Environment": says.EnvironmentMessage,
    "Decide": says.DecideMessage,
    "Decided": says.DecidedMessage,
    "AddBreakpoints": says.AddBreakpointsMessage,
}

NAMES = sorted(OURS)


def _googles() -> Mapping[str, type[Message]]:
    file = descriptor_pb2.FileDescriptorProto(name="step.proto", package="proto", syntax="proto3")
    for name, members in STEP_PROTO.items():
        described = file.message_type.add(name=name)
        for member, (number, written) in members.items():
            added = described.field.add(name=member, number=number, label=Kind.LABEL_OPTIONAL)
            kind, is_many = written.removeprefix("repeated "), written.startswith("repeated ")
            if kind == "map":
                entry = described.nested_type.add(name=f"{member.title()}Entry")
                entry.options.map_entry = True
                for at, part in enumerate(("key", "value"), 1):
                    entry.field.add(name=part, number=at, label=Kind.LABEL_OPTIONAL, type=Kind.TYPE_STRING)
                kind, is_many = f"{name}.{entry.name}", True
            if is_many:
                added.label = Kind.LABEL_REPEATED
            if kind[0].isupper():
                added.type, added.type_name = Kind.TYPE_MESSAGE, f".proto.{kind}"
            else:
                added.type = Kind.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"proto.{name}")) for name in STEP_PROTO}


GOOGLES = _googles()

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "string": _TEXT,
    "bytes": st.binary(max_size=40),
    "bool": st.booleans(),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "double": st.floats(allow_nan=False).filter(lambda value: math.copysign(1, value) > 0 or value),
    "map": st.dictionaries(_TEXT, _TEXT, max_size=4),
}


def _of(kind: str) -> st.SearchStrategy[Any]:
    if kind.startswith("repeated "):
        one = kind.removeprefix("repeated ")
        return st.lists(_VALUES[one] if one in _VALUES else _messages(one), max_size=3).map(tuple)
    return _VALUES[kind] if kind in _VALUES else st.none() | _messages(kind)


def _messages(name: str) -> st.SearchStrategy[Any]:
    return st.builds(OURS[name], **{member: _of(kind) for member, (_, kind) in STEP_PROTO[name].items()})


def _as_ours(name: str, theirs: Any) -> Any:  # noqa: ANN401  (Google's are made at run time)
    """Google's message as one of ours, read field by field."""
    values = {}
    for member, (_, kind) in STEP_PROTO[name].items():
        value = getattr(theirs, member)
        if kind.startswith("repeated "):
            of = kind.removeprefix("repeated ")
            value = tuple(_as_ours(of, one) if of in OURS else one for one in value)
        elif kind == "map":
            value = dict(value)
        elif kind in OURS:
            value = _as_ours(kind, value) if theirs.HasField(member) else None
        values[member] = value
    return OURS[name](**values)


def test_every_field_has_the_number_that_the_step_runner_gives_it() -> None:
    """No message has a field that the table does not have."""
    assert {name: [one.name for one in fields(kind)] for name, kind in OURS.items()} == {
        name: list(members) for name, members in STEP_PROTO.items()
    }


@given(st.sampled_from(NAMES).flatmap(lambda name: st.tuples(st.just(name), _messages(name))))
def test_google_reads_what_we_write_and_we_what_google_writes(named: tuple[str, Any]) -> None:
    """Both directions lose nothing, and what we write is what Google would."""
    name, ours = named
    theirs = GOOGLES[name].FromString(encode(ours))
    assert _as_ours(name, theirs) == ours
    assert decode(OURS[name], theirs.SerializeToString()) == ours
    if "env" not in asdict(ours, recurse=False):  # the order of a mapping is nobody's
        assert theirs.SerializeToString(deterministic=True) == encode(ours)


@given(st.sampled_from(NAMES), st.binary(max_size=200))
def test_what_is_no_message_is_malformed_as_google_has_it(name: str, data: bytes) -> None:
    """Whatever arrives is read as Google reads it, or refused."""
    try:
        theirs: Any = GOOGLES[name].FromString(data)
    except DecodeError:
        with pytest.raises(MalformedMessage):
            decode(OURS[name], data)
        return
    ours: Any = decode(OURS[name], data)
    if name not in ("Timestamp", "Status", "StatusResponse"):  # an int32 that is longer is cut by Google
        assert repr(_as_ours(name, theirs)) == repr(ours)


@given(_messages("Status"), st.integers(16000, 18000), st.binary(max_size=30))
def test_fields_of_a_newer_service_are_passed_over(status: says.StatusMessage, number: int, value: bytes) -> None:
    """What nobody knows yet changes nothing of what is known."""

    def varint(rest: int) -> bytes:
        return bytes([rest]) if rest < 0x80 else bytes([rest & 0x7F | 0x80]) + varint(rest >> 7)

    unknown = varint(number << 3 | 2) + varint(len(value)) + value
    group = varint(number << 3 | 3) + unknown + varint(number << 3 | 4)
    assert decode(says.StatusMessage, unknown + encode(status) + group) == status


def test_a_message_that_comes_in_parts_is_merged() -> None:
    """As elsewhere: the last value of each field counts."""
    first = says.StatusMessage(start_time=says.Timestamp(seconds=1, nanos=2))
    second = says.StatusMessage(start_time=says.Timestamp(seconds=3))
    found = decode(says.StatusMessage, encode(first) + encode(second))
    assert found.start_time == says.Timestamp(seconds=3, nanos=2)


@pytest.mark.parametrize("depth", [101, 100_000])
def test_what_is_nested_without_end_is_refused(depth: int) -> None:
    """Groups within groups end in an error, not in a crash."""
    with pytest.raises(MalformedMessage, match="groups"):
        decode(says.ById, b"\x0b" * depth)


@given(st.datetimes(timezones=st.just(UTC)))
def test_moments_keep_their_microseconds(moment: datetime) -> None:
    """A moment that is written is read again as what it was."""
    stamp = says.Timestamp.of(moment)
    assert stamp is not None
    assert stamp.moment == moment


def test_a_moment_beyond_every_calendar_is_none() -> None:
    """A hostile service can name one."""
    assert says.Timestamp(seconds=2**62).moment is None
    assert says.Timestamp(nanos=-5).moment == datetime(1970, 1, 1, tzinfo=UTC)
