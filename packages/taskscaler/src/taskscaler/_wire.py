"""How the daemon and its clients write values and errors to each other: as JSON, with nothing left to guess."""

from collections.abc import Callable, Mapping
from functools import cache
from math import inf
from typing import Any, TypeVar

from attrs import asdict, frozen
from cattrs.preconf.json import JsonConverter, make_converter

from fleeting import ConfigError, FleetingError, Unreachable
from fleeting.errors import ConfigProblem, Mistake, WrongArguments
from fleeting.events import Loss, LossKind
from taskscaler._errors import (
    DaemonRefused,
    KeyInUse,
    LeaseExpired,
    LeaseLost,
    NoCapacity,
    NoSuchInstance,
    NotDetached,
    NotHeld,
    NotSuspended,
    TaskscalerError,
)
from taskscaler.core._slots import Capacity

T = TypeVar("T")


class ClientUnknown(Exception):
    """The client was never opened, or has ended: it holds nothing any more. It opens itself again."""

    def __str__(self) -> str:
        """For who speaks to the daemon without our client."""
        return "the client is unknown: it was never opened, or was silent for too long; open it again"


CLIENT = "taskscaler-client"
"""The header that names the client: a secret, and so in no address."""

MOST_PROBLEMS = 100
"""Of a file, in one answer."""

DEFAULT_TTL = 30.0
"""Seconds after which a client that has gone silent gives its leases back, unless it names another bound."""

MOST_TTL = 600.0
"""So long a bound may be, in seconds; also how long leases wait for their clients after a restart."""

LEAST_TTL = 1.0


@frozen(kw_only=True)
class LeaseFacts:
    """A lease, as the daemon gives it to its client."""

    key: str
    """What it was acquired under."""

    lease: str
    """Names it for good: its key may be used again once it has ended."""

    pool: str
    instance: str
    slot: int
    place: int
    persistent: bool
    """Whether it outlives its client."""


@frozen(kw_only=True)
class KeptFacts:
    """How a lease is kept beyond its client, as the daemon gives it to that."""

    name: str
    """Names what the client leaves on the instance."""

    ttl: float
    idle_timeout: float | None
    stays: bool
    """Whether it is to be kept when the command that was left in it is over."""

    there: bool
    """Whether the daemon looks on the instance for what was left."""

    noted: bool = False
    """Whether it is noted there which command runs, always: if that is gone, nobody knows."""


@cache
def converter() -> JsonConverter:
    """Write what JSON has no word for, a span without end, as ``"inf"``."""
    made = make_converter(forbid_extra_keys=False)
    made.register_unstructure_hook(float, lambda value: "inf" if value == inf else value)
    made.register_structure_hook(float, lambda value, _: float(value))
    return made


def to_plain(value: object) -> Any:  # noqa: ANN401  (what JSON has)
    """Write a value as plain data."""
    return converter().unstructure(value)


def from_plain(data: object, cls: type[T]) -> T:
    """Read a value.

    Raises:
        DaemonRefused: It is none: the other end is of another release.
    """
    try:
        return converter().structure(data, cls)
    except Exception as error:  # whatever cattrs makes of it
        raise DaemonRefused(f"the daemon's answer is no {cls.__name__}; use the daemon's own release") from error


def error_as_data(error: Exception) -> dict[str, object]:
    """Write an error, with what its class keeps beside the message."""
    entry = getattr(error, "entry", DaemonRefused.entry)
    return {"code": entry.code, "type": type(error).__name__, "message": str(error), **_kept_by(error)}


_KEPT = ("possible", "key", "at", "held", "instance", "detached")
"""What errors keep beside their messages, by the names of their attributes."""


def _kept_by(error: Exception) -> dict[str, object]:
    kept = {name: getattr(error, name) for name in _KEPT if isinstance(error, TaskscalerError) and hasattr(error, name)}
    match error:
        case NoCapacity():
            return {**kept, "capacity": None if error.capacity is None else to_plain(error.capacity)}
        case NotDetached():
            return {**kept, "why": str(error).removeprefix(f"the lease {error.key!r} ")}
        case LeaseLost():
            return {**kept, "loss": loss_as_data(error.loss)}
        case ConfigError():
            return {
                "source": error.source,
                "problems": [_problem_as_data(each) for each in error.problems[:MOST_PROBLEMS]],
            }
    return kept


_ERRORS: Mapping[str, Callable[[Mapping[str, Any]], Exception]] = {
    "NoCapacity": lambda data: NoCapacity(
        data["message"], possible=bool(data["possible"]), capacity=_capacity_of(data.get("capacity"))
    ),
    "KeyInUse": lambda data: KeyInUse(data["key"]),
    "LeaseExpired": lambda data: LeaseExpired(data["key"], float(data["at"])),
    "NotDetached": lambda data: NotDetached(data["key"], data["why"], held=bool(data["held"])),
    "NotHeld": lambda data: NotHeld(data["key"], detached=bool(data["detached"])),
    "NotSuspended": lambda data: NotSuspended(data["key"]),
    "NoSuchInstance": lambda data: NoSuchInstance(data["instance"], data["message"]),
    "LeaseLost": lambda data: LeaseLost(data["key"], data["instance"], loss_of(data["loss"])),
    "ClientUnknown": lambda _: ClientUnknown(),
    "Unreachable": lambda data: Unreachable(data["message"]),
    "ConfigError": lambda data: ConfigError(list(map(_problem_of, data["problems"])), source=data["source"]),
    "ValueError": lambda data: ValueError(data["message"]),
    "WrongArguments": lambda data: WrongArguments(data["message"]),
}


def error_of(data: object) -> Exception:
    """Read an error; one that this release does not know is `DaemonRefused`."""
    match data:
        case {"type": str(kind), "message": str(message), **more}:
            said: Mapping[str, Any] = {str(key): value for key, value in more.items()}
            try:
                make = _ERRORS.get(kind)
                return make({**said, "message": message}) if make is not None else DaemonRefused(message)
            except (LookupError, TypeError, ValueError, DaemonRefused):
                return DaemonRefused(message)
    return DaemonRefused("the daemon refused, and did not say why; look at its log")


def _capacity_of(data: object) -> Capacity | None:
    return None if data is None else from_plain(data, Capacity)


def _problem_as_data(problem: ConfigProblem) -> dict[str, str]:
    return {**asdict(problem, recurse=False), "mistake": problem.mistake.name}


def _problem_of(data: Mapping[str, str]) -> ConfigProblem:
    return ConfigProblem(**{**data, "mistake": Mistake[data["mistake"]]})  # type: ignore[arg-type]


def loss_as_data(loss: Loss) -> dict[str, str]:
    """Write why a lease was lost."""
    return {"kind": loss.kind.value, "detail": loss.detail}


def loss_of(data: object) -> Loss:
    """Read why a lease was lost."""
    match data:
        case {"kind": str(kind), "detail": str(detail)} if kind in {each.value for each in LossKind}:
            return Loss(LossKind(kind), detail)
    return Loss(LossKind.KILLED, "the daemon did not say why")


EXPECTED = (FleetingError, ValueError, TypeError)
"""What answers a request; anything else is a mistake of ours."""
