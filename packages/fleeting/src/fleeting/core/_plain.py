"""Messages and steps as plain data that JSON has words for, and back: to be printed, stored, and replayed."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from fleeting.core import messages
from fleeting.core._records import PLAN_RECORDS
from fleeting.core._step import Drop, Put, Step, Write

if TYPE_CHECKING:
    from cattrs import Converter

Message = messages.Command | messages.Fact | messages.Action | messages.Event
"""All that passes into a plan and out of it, but for what it writes."""

CLASSES: Mapping[str, type[Any]] = {each.__name__: each for each in get_args(Message)}
"""The classes of all messages, by the name that they have as plain data."""

_FIELDS: Mapping[str, Mapping[str, Any]] = {name: get_type_hints(cls) for name, cls in CLASSES.items()}


def to_plain(message: Message) -> dict[str, Any]:
    """The message's fields by name, and the name of its class as ``message``."""
    hints = _FIELDS[type(message).__name__]
    fields = {name: _converter().unstructure(getattr(message, name), kind) for name, kind in hints.items()}
    return {"message": type(message).__name__, **fields}


def from_plain(data: Mapping[str, Any]) -> Message:
    """The opposite of `to_plain`.

    Raises:
        KeyError: There is no such message, or a field is missing.
    """
    cls = CLASSES[data["message"]]
    message: Message = cls(
        *(_converter().structure(data[name], kind) for name, kind in _FIELDS[data["message"]].items())
    )
    return message


def step_to_plain(step: Step) -> dict[str, Any]:
    """A plan's step: its writes, actions and events, each in order."""
    return {
        "writes": [_write_to_plain(write) for write in step.writes],
        "actions": [to_plain(action) for action in step.actions],
        "events": [to_plain(event) for event in step.events],
    }


def step_from_plain(data: Mapping[str, Any]) -> Step:
    """The opposite of `step_to_plain`."""
    return Step(
        [_write_from_plain(write) for write in data["writes"]],
        [from_plain(action) for action in data["actions"]],
        [from_plain(event) for event in data["events"]],
    )


def _write_to_plain(write: Write) -> dict[str, Any]:
    record = {"record": _converter().unstructure(write.record)} if isinstance(write, Put) else {}
    return {"kind": write.kind, "key": write.key, **record}


def _write_from_plain(data: Mapping[str, Any]) -> Write:
    if "record" not in data:
        return Drop(data["kind"], data["key"])
    return Put(data["kind"], data["key"], _converter().structure(data["record"], PLAN_RECORDS[data["kind"]]))


@cache
def _converter() -> "Converter":
    from cattrs.preconf.json import make_converter  # a bare ``import fleeting`` need not pay for it

    return make_converter()
