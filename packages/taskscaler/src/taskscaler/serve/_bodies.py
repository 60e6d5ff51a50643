"""What requests say: the schemas of their bodies."""

from collections.abc import Mapping
from math import inf
from typing import Any, Literal

from attrs import Attribute, field, fields, frozen
from attrs.validators import and_, ge, le, optional

from taskscaler._kept_bounds import LEAST_TIME, MOST_TIME
from taskscaler._wire import DEFAULT_TTL, LEAST_TTL, MOST_TTL

LONGEST_KEY = 512
LONGEST_WHY = 1000
LONGEST_FILE = 200
LONGEST_NUMBER = 12
"""Digits of a number in an address."""

MOST_POOLS = 100
"""Pools that a request names: more than a fleet has."""

MOST_RECLAIMED = 1000
"""Leases in one request; whoever holds more asks again."""


def _a_name(_: object, __: "Attribute[Any]", value: str) -> None:
    if not (0 < len(value) <= LONGEST_KEY and value.isprintable()):
        raise ValueError(f"1 to {LONGEST_KEY} characters that can be printed")


def _short(_: object, __: "Attribute[Any]", value: str) -> None:
    if len(value) > LONGEST_WHY or not value.isprintable():
        raise ValueError(f"at most {LONGEST_WHY} characters that can be printed")


def _a_wait(_: object, __: "Attribute[Any]", value: float | None) -> None:
    if value is not None and not 0 <= value < inf:
        raise ValueError("seconds, at least 0")


def _name() -> Any:  # noqa: ANN401  (attrs')
    return field(validator=_a_name)


def _wait() -> Any:  # noqa: ANN401  (attrs')
    return field(default=None, validator=_a_wait)


@frozen(kw_only=True)
class Nothing:
    """A body without keys."""


@frozen(kw_only=True)
class OpenClient:
    """Begins a client, or has it live on."""

    ttl: float = field(default=DEFAULT_TTL, validator=and_(ge(LEAST_TTL), le(MOST_TTL)))
    """Seconds that the client may be silent without a connection before all that it holds goes back."""

    leases: tuple[str, ...] = field(default=())
    """Keys of leases that it had before it lost its connection."""

    @leases.validator
    def _few(self, _: object, value: tuple[str, ...]) -> None:
        if len(value) > MOST_RECLAIMED:
            raise ValueError(f"at most {MOST_RECLAIMED} keys")


@frozen(kw_only=True)
class Acquire:
    """Waits for a slot."""

    key: str = _name()
    """Names the work."""

    request: str = _name()
    """Made up by the client: the same request sent twice gives the same lease."""

    timeout: float | None = _wait()
    """Seconds to wait; the fleet's `instance_acquire_timeout` if missing."""

    expected_duration: float | None = _wait()
    """Seconds that the work takes at the most."""

    place: int | None = field(default=None, validator=optional(ge(0)))
    """The place in the queue of an earlier lease."""

    persistent: bool = False
    """Whether the lease outlives the client: it is detached then, and anybody of the same user may reattach it."""

    pools: tuple[str, ...] = field(default=())
    """Names of the pools that the slot may be of, in order of preference; any if missing."""

    @pools.validator
    def _known_by_name(self, _: object, value: tuple[str, ...]) -> None:
        if len(value) > MOST_POOLS:
            raise ValueError(f"at most {MOST_POOLS} names")


@frozen(kw_only=True)
class Resume:
    """Waits for a lease that is suspended, or detached."""

    key: str = _name()
    request: str = _name()
    timeout: float | None = _wait()


@frozen(kw_only=True)
class Replace(Resume):
    """Swaps a lease that is held or suspended for one on another instance."""

    lease: str = field(default="", validator=_short)
    """As the answer to the acquire had it; empty: it is suspended."""

    why: str = field(default="", validator=_short)
    """What is wrong with the old instance; for people to read."""


@frozen(kw_only=True)
class OfLease:
    """Names a lease that the client holds."""

    key: str = _name()
    lease: str = _name()
    """As the answer to the acquire had it: a key may have been used again since."""


def _a_bound() -> Any:  # noqa: ANN401  (attrs')
    return field(default=None, validator=optional(and_(ge(LEAST_TIME), le(MOST_TIME))))


@frozen(kw_only=True)
class Keep(OfLease):
    """Has a lease outlive its client. What is missing stays as it is, or as it is by default."""

    ttl: float | None = _a_bound()
    """Seconds for which the lease is kept while no client has it, 1 to 604,800; 8 hours by default."""

    idle_timeout: float | None = _a_bound()
    """The same, but a command that was left running counts as a client. By default, only `ttl` counts."""

    stays: bool | None = None
    """Whether the lease is to be kept when the command that was left in it is over; yes by default."""

    there: bool | None = None
    """Whether the client leaves a command or files on the instance, for the daemon to remove in the end."""

    noted: bool | None = None
    """Whether it is noted there which command runs, always: if that is gone in the end, the instance is removed."""


@frozen(kw_only=True)
class OfRequest:
    """Names a request that nobody waits for any more, whether or not it was granted."""

    key: str = _name()
    request: str = _name()


@frozen(kw_only=True)
class Suspend(OfLease):
    """Lets a lease sleep."""

    ttl: float | None = _wait()
    """Seconds after which it ends; if missing, never."""

    again: bool = False
    """Whether it was resumed in vain: it ends when it would have before."""


@frozen(kw_only=True)
class Suspect(OfLease):
    """Says that something is wrong with a lease's instance."""

    why: str = field(default="", validator=_short)
    what: Literal["suspect", "cut_off", "unreachable"] = "suspect"
    """``suspect``: it gets no new work. ``cut_off``: a connection died, so the cloud is asked for it. ``unreachable``:
    it is unhealthy and cannot be reached, so the lease is lost."""


@frozen(kw_only=True)
class OfKey:
    """Names a key."""

    key: str = _name()


@frozen(kw_only=True)
class Reserve(OfKey):
    """Keeps a slot."""

    timeout: float | None = _wait()
    """Seconds to wait for one; if missing, the answer comes at once."""

    request: str = field(default="", validator=_short)
    """Made up by the client: the same request sent twice is one reservation."""


@frozen(kw_only=True)
class OfInstance:
    """Names an instance."""

    instance: str = _name()
    why: str = field(default="", validator=_short)
    """For people to read."""


@frozen(kw_only=True)
class Link:
    """Lets somebody see the status page."""

    changes: bool = False
    """Whether they may change something, too."""


@frozen(kw_only=True)
class Drain:
    """Ends the work, and the daemon."""

    timeout: float | None = _wait()
    """Seconds to wait until no lease is held; if missing, for ever."""

    delete: bool = False
    """Whether the instances are deleted, too."""


@frozen(kw_only=True)
class Explain:
    """Asks about the whole, an instance or a key."""

    instance: str | None = None
    key: str | None = None
    form: str = "answer"
    """``answer``: as `taskscaler explain --json`; ``value``: for `taskscaler.remote`, of the same release only."""


def _a_file(_: object, __: "Attribute[Any]", value: str) -> None:
    if not 0 < len(value) <= LONGEST_FILE or "/" in value or value in {".", ".."} or not value.isprintable():
        raise ValueError(f"the name of a file, at most {LONGEST_FILE} characters without a slash")


@frozen(kw_only=True)
class Submit:
    """Hands over a batch; its files follow, as a tar archive."""

    name: str = field(validator=_a_file)
    """Which of the files has the jobs."""

    request: str = field(default="", validator=_short)
    """Made up by the client: the same request of the same user sent twice is one batch."""


@frozen(kw_only=True)
class OfBatch:
    """Names a batch."""

    batch: str = _name()


@frozen(kw_only=True)
class Jobs(OfBatch):
    """Asks for some jobs of a batch."""

    first: int = field(default=0, validator=ge(0))
    """Place of the first, from 0."""

    most: int = field(default=MOST_RECLAIMED, validator=and_(ge(0), le(MOST_RECLAIMED)))
    """How many."""


@frozen(kw_only=True)
class Log(OfBatch):
    """Asks for the end of a job's log."""

    job: str = field(default="", validator=lambda _, __, value: None if not value else _a_name(_, __, value))
    """Its name, a pattern that matches one job, or ``#N`` for the Nth, from 1; missing: the only one."""

    lines: int = field(default=20, validator=ge(0))
    """How many of the last lines."""

    after: int | None = field(default=None, validator=optional(ge(0)))
    """Where to go on, as an earlier answer had it in ``next``; *lines* does not count then."""

    follow: bool = False
    """Whether to send what the job prints later, too, until it is over."""

    places: bool = False
    """Whether to answer with lines of JSON: each has ``data``, in base64, and ``next``, where to go on *after* it. The
    last one has ``over``: false, if the daemon ends before the job, and the next one can be asked to go on."""


def of_query(query: Mapping[str, str], cls: type) -> dict[str, object]:
    """Read what is in an address as what the schema wants there; what is none is left for the schema to refuse."""
    kinds = {each.name: each.type for each in fields(cls)}
    return {name: _typed(value, kinds.get(name)) for name, value in query.items()}


def _typed(value: str, kind: object) -> object:
    if kind in (int, int | None) and value.isascii() and value.isdigit() and len(value) <= LONGEST_NUMBER:
        return int(value)
    if kind is bool:
        return {"true": True, "false": False}.get(value, value)
    return value
