"""What executables print and exit with, as values and errors. Pure.

Whatever was printed, reading it gives a value or raises `ProviderError`. No message repeats what may be secret, and
none has more than one line.
"""

import base64
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from enum import Enum, IntEnum
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import quote, quote_plus

import attrs
from attrs import field, frozen
from attrs.validators import ge, le, optional

from fleeting import (
    AuthFailed,
    CapacityUnavailable,
    ConfigError,
    Problem,
    ProblemKind,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    State,
)
from fleeting.plugins import Mark, structure

OUTPUT_LIMIT = 4 << 20
"""Bytes that ``list`` and ``status`` may print."""

LAST_WORDS = 500
"""Characters of the error output that a message ends with."""

SHORTEST_SECRET = 4
"""A value with fewer characters is not taken out of messages: it would be found in every word."""

_URL_SAFE: Final = str.maketrans("+/", "-_")

_LONGEST_KEY = 40
_LONGEST = 900
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@+-]{0,254}")

T = TypeVar("T")


class ExitCode(IntEnum):
    """What an executable says by the status that it exits with; every other one means: it failed, try later.

    The numbers are those of ``sysexits.h``.
    """

    DONE = 0
    UNKNOWN_COMMAND = 64
    """It does not know this sub-command. Only ``status`` may be missing."""

    NOT_FOUND = 66
    """There is no such instance."""

    NO_CAPACITY = 69
    QUOTA = 73
    RATE_LIMITED = 75
    NOT_ALLOWED = 77


_ERRORS: Mapping[int, tuple[type[ProviderError], ProblemKind]] = {
    ExitCode.NO_CAPACITY: (CapacityUnavailable, ProblemKind.CAPACITY),
    ExitCode.QUOTA: (QuotaExceeded, ProblemKind.QUOTA),
    ExitCode.RATE_LIMITED: (RateLimited, ProblemKind.OTHER),
    ExitCode.NOT_ALLOWED: (AuthFailed, ProblemKind.AUTHORISATION),
}


class Said(Enum):
    """The state of an instance, as an executable says it: one of fleeting's, or unknown at the moment."""

    CREATING = "creating"
    RUNNING = "running"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    DELETING = "deleting"
    DELETED = "deleted"
    FAILED = "failed"
    UNKNOWN = "unknown"

    @property
    def state(self) -> State | None:
        """In fleeting's terms; None if it is unknown."""
        return None if self is Said.UNKNOWN else State(self.value)


def is_name(text: str) -> bool:
    """Whether it can be an instance's name: no program can take it for an option, no log for a line."""
    return _NAME.fullmatch(text) is not None


def _check_name(_: object, __: "attrs.Attribute[str]", value: str) -> None:
    if not is_name(value):
        raise ValueError("1 to 255 of the characters A-Z a-z 0-9 _ . : / @ + -, starting with a letter, digit or _")


def _check_line(_: object, __: "attrs.Attribute[Any]", value: str | None) -> None:
    if value is not None and not (value and value.isprintable()):
        raise ValueError("one line of printable characters, or no such key")


@frozen(kw_only=True)
class Listed:
    """One instance, as ``list`` and ``status`` print it."""

    name: str = field(validator=_check_name)
    state: Said
    created_at: float | None = field(default=None, validator=optional(ge(0)))
    offering: str | None = None
    internal_addr: str | None = field(default=None, validator=_check_line)
    external_addr: str | None = field(default=None, validator=_check_line)
    protocol: str = field(default="ssh", validator=_check_line)
    port: int | None = field(default=None, validator=optional([ge(1), le(65535)]))
    user: str | None = field(default=None, validator=_check_line)
    password: str | None = field(default=None, repr=False)
    key_path: str | None = None
    host_key: str | None = field(default=None, validator=_check_line)
    os: str = field(default="linux", validator=_check_line)
    arch: str = field(default="amd64", validator=_check_line)
    expires_at: float | None = field(default=None, validator=optional(ge(0)))

    @property
    def is_reachable(self) -> bool:
        """Whether it says where the instance is."""
        return bool(self.internal_addr or self.external_addr)


@frozen(kw_only=True)
class Trouble:
    """One problem, as ``list`` prints it."""

    kind: ProblemKind
    message: str
    since: float | None = field(default=None, validator=optional(ge(0)))
    offering: str | None = None


@frozen(kw_only=True)
class _Printed:
    """What ``list`` prints."""

    instances: tuple[Listed, ...]
    problems: tuple[Trouble, ...] = ()


@frozen(kw_only=True)
class _PrintedMark:
    """One mark, as ``marks`` prints it."""

    owner: str = field(validator=_check_line)
    until: float = field(validator=ge(0))


@frozen(kw_only=True)
class _PrintedMarks:
    """What ``marks`` prints."""

    marks: tuple[_PrintedMark, ...]


@frozen
class Listing:
    """The cloud's whole view."""

    instances: Mapping[str, Listed]
    problems: tuple[Problem, ...] = ()


def read_listing(output: bytes, command: str) -> Listing:
    """Read what ``list`` printed.

    Raises:
        ProviderError: It is not what the contract has; says where, and what was expected.
    """
    printed = _read(output, _Printed, command)
    instances = {each.name: each for each in printed.instances}
    if len(instances) < len(printed.instances):
        ((twice, _),) = Counter(each.name for each in printed.instances).most_common(1)
        _refuse(command, f"it lists {twice} twice")
    problems = (
        Problem(kind=each.kind, message=plain(each.message), since=each.since, offering=each.offering)
        for each in printed.problems
    )
    return Listing(instances, tuple(problems))


def read_instance(output: bytes, command: str, name: str) -> Listed:
    """Read what ``status`` printed of the instance of that name. Raises as `read_listing`."""
    listed = _read(output, Listed, command)
    if listed.name != name:
        _refuse(command, f"it was asked about {name}, and describes {listed.name}")
    return listed


def read_marks(output: bytes, command: str) -> list[Mark]:
    """Read what ``marks`` printed. Raises as `read_listing`."""
    printed = _read(output, _PrintedMarks, command).marks
    marks = {each.owner: Mark(owner=each.owner, until=each.until) for each in printed}
    if len(marks) < len(printed):
        ((twice, _),) = Counter(each.owner for each in printed).most_common(1)
        _refuse(command, f"it lists two marks of {twice}")
    return [*marks.values()]


def failure(command: str, code: int, words: str) -> ProviderError:
    """Say that a program exited with something else than 0, in the class that its exit status stands for.

    Args:
        command: What was run, for the message.
        code: Its exit status; a negative one is the number of the signal that ended it.
        words: The end of its error output, plain.
    """
    kind, _ = _ERRORS.get(code, (ProviderError, ProblemKind.OTHER))
    outcome = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
    return kind(f"{command} {outcome}" + (f": {words}" if words else ""))


def kind_of(error: ProviderError) -> ProblemKind:
    """What kind of problem an error is."""
    return next((kind for cls, kind in _ERRORS.values() if isinstance(error, cls)), ProblemKind.OTHER)


def last_words(stderr: bytes, secrets: Collection[str] = ()) -> str:
    """Make the end of some error output fit for a message: one line, without secrets."""
    text = stderr.decode(errors="replace")
    spelled = {each for secret in secrets if len(secret) >= SHORTEST_SECRET for each in _spellings(secret)}
    for each in sorted(spelled, key=len, reverse=True):
        text = text.replace(each, "***")
    return plain(text[-2 * LAST_WORDS :])[-LAST_WORDS:].strip()


def _spellings(secret: str) -> Iterator[str]:
    """Write a secret as clients show it in requests and answers: as it is, in URLs, JSON, hexadecimal and base64.

    Base64 makes four characters of three bytes, so it depends on what stands before; what is common to all is hidden.
    """
    raw = secret.encode(errors="surrogateescape")
    yield from (secret, quote(raw), quote(raw, safe=""), quote_plus(raw), json.dumps(secret)[1:-1], raw.hex())
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + raw).decode()
        part = coded[(0, 2, 3)[before] : len(coded) - (4 if (before + len(raw)) % 3 else 0)]
        if len(part) >= SHORTEST_SECRET:
            yield part
            yield part.translate(_URL_SAFE)


def plain(text: str) -> str:
    """Put text on one line that no terminal or log can misunderstand, cut if it is long."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())[:_LONGEST]


def _read(output: bytes, cls: type[T], command: str) -> T:
    try:
        data = json.loads(output, object_pairs_hook=_table, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        _refuse(command, f"it is not JSON ({error})" if output.strip() else "nothing instead of a JSON object")
    if not isinstance(data, dict):
        _refuse(command, "it is JSON, but not an object")
    try:
        return structure(data, cls)
    except ConfigError as error:
        first, *more = error.problems
        _refuse(command, f"{first}" + (f" (and {len(more)} more)" if more else ""))


def _refuse(command: str, why: str) -> NoReturn:
    raise ProviderError(f"{plain(f'{command} printed invalid output: {why}')}; correct the program") from None


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object, unless it could be understood in two ways."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("an object has the same key twice")
    if any(len(key) > _LONGEST_KEY for key in table):
        raise ValueError(f"a key is longer than {_LONGEST_KEY} characters")
    return table


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
