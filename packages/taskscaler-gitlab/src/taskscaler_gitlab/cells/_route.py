"""Which cell a call is for: pure.

A call is for the cell that its token names. If it names none, for the cells that are remembered for it; else for all
cells, which are asked in turn. A request for a job that several cells may answer is a `Round`.
"""

import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum, auto
from hashlib import sha256
from http import HTTPStatus
from typing import Generic, TypeVar

from attrs import define, field, frozen

from gitlab_jobs import read_token

PATIENCE = 0.5
"""Seconds until the next cell is asked while one has not answered."""

PAUSE = 3.0
"""Seconds between two requests to one cell that answers at once, as between those of a runner."""

AWAY = 5.0
"""Seconds until a cell is asked again that does not answer, or is busy."""

PARTING = 2.0
"""Seconds in which answers may still come from cells that were hung up on."""

AT_ONCE = 5.0
"""Seconds in which the cells may answer a request that is not to be held. A job that comes later is kept."""

GRACE = 1.0
"""Seconds in which other cells may answer after one that has given a job: one whose answer is not on the wire yet when
it is hung up on may drop it, and the job with it."""

SURVEY = 600
"""Seconds after which the cells that did not know a runner are asked again."""

K = TypeVar("K")
V = TypeVar("V")


def hint(token: str, cells: Collection[str]) -> str | None:
    """The cell that a token names, if it is one of these; None: it names none, or none that there is."""
    cell = read_token(token).cell
    return None if cell is None or str(cell) not in cells else str(cell)


def hashed(*parts: str) -> bytes:
    """What is remembered of a token, and of what belongs to it."""
    digest = sha256()
    for each in parts:
        encoded = each.encode(errors="replace")
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return digest.digest()


class Memory(Generic[K, V]):
    """What was found out, and costs a question to find out again: the latest, up to a number."""

    def __init__(self, most: int) -> None:
        """Remember so much."""
        self._most = most
        self._known: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        """How much is remembered."""
        return len(self._known)

    def recall(self, key: K) -> V | None:
        """What is remembered."""
        if key in self._known:
            self._known.move_to_end(key)
        return self._known.get(key)

    def remember(self, key: K, value: V) -> None:
        """Remember it; what was not asked for longest is forgotten."""
        self._known[key] = value
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def forget(self, key: K) -> None:
        """Do not remember it any more."""
        self._known.pop(key, None)


_REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})


def is_foreign(status: int, headers: Mapping[str, str]) -> bool:
    """Whether an answer may mean that what was asked about is at another cell: a refusal without a job's state."""
    return status in _REFUSALS and "Job-Status" not in headers


def is_away(status: int | None) -> bool:
    """Whether a cell cannot answer at the moment, so that nothing follows from what it says."""
    return status is None or status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def in_order(cells: Sequence[str], first: int, away: Collection[str]) -> Sequence[str]:
    """The cells in the order in which to ask them: each begins at times, those that do not answer come last."""
    turned = [*cells[first % len(cells) :], *cells[: first % len(cells)]]
    return sorted(turned, key=lambda each: each in away)


# --- a request for a job -----------------------------------------------------------------------------------------


@frozen
class Ask:
    """Ask a cell for a job."""

    cell: str
    ticket: str | None
    """What the runner has seen of it, for it to hold the request until there is more; None: it answers at once."""


@frozen
class HangUp:
    """Say to a cell that its answer is not wanted any more; one that is on its way comes all the same."""

    cell: str


@frozen
class Give:
    """Answer with the job of this cell."""

    cell: str


@frozen
class Keep:
    """Keep the job of this cell, which has come too late or too much, for the next request of the runner."""

    cell: str


@frozen
class Nothing:
    """Answer that there is no job."""


@frozen
class Refuse:
    """Answer that nobody knows the runner."""


@frozen
class Unavailable:
    """Answer that no cell that may know the runner can be asked."""


Action = Ask | HangUp | Give | Keep | Nothing | Refuse | Unavailable


class _Standing(Enum):
    TURN = auto()
    """It is to be asked whether there is a job now."""

    OPEN = auto()
    """It has been asked, and has not answered."""

    REST = auto()
    """It is to be asked again, and to hold the request."""

    OUT = auto()
    """It does not know the runner."""


@define
class _Cell:
    standing: _Standing = _Standing.TURN
    ticket: str = ""
    since: float = 0.0
    """When it was asked."""

    until: float = 0.0
    """When to ask it again."""

    is_held: bool = False
    """Whether it was asked to hold the request."""

    knows: bool = False
    """Whether it has said that it knows the runner."""

    is_hung_up: bool = False


@define
class Round:
    """One request of a runner, and what becomes of it at several cells.

    All cells are asked for a job in turn, each once the one before has answered or `PATIENCE` has passed, so that two
    do not hand out a job each to a runner that wants one. Once none has any, all of them hold a request at once; or, if
    the runner's request is not to be held, it is answered that there is none. A job that comes from a second cell even
    so, or too late, is kept for the runner's next request.

    Each method takes the time and returns what is to be done, in this order.
    """

    order: Sequence[str]
    """The cells, in the order in which to ask them."""

    deadline: float
    """When the runner gets its answer at the latest, but for `PARTING`."""

    tickets: Mapping[str, str] = field(factory=dict)
    """What is known already of what the runner has seen."""

    may_hold: bool = field(default=True, kw_only=True)
    """Whether the request may be held while no cell has a job; else no cell is asked twice."""

    away: Collection[str] = field(default=(), kw_only=True)
    """The cells that did not answer a moment ago: who is not to be held waits for none of them, unless all are."""

    is_answered: bool = field(default=False, init=False)
    _cells: dict[str, _Cell] = field(init=False)
    _closed_at: float | None = field(default=None, init=False)
    _given_at: float | None = field(default=None, init=False)
    _seen: float = field(default=-math.inf, init=False)
    """When `look` was called last."""

    def __attrs_post_init__(self) -> None:
        """Begin with nobody asked."""
        asked = [each for each in self.order if self.may_hold or each not in self.away] or self.order
        self._cells = {
            each: _Cell(_Standing.TURN if each in asked else _Standing.REST, self.tickets.get(each, ""))
            for each in self.order
        }

    @property
    def known(self) -> dict[str, str]:
        """The cells that know the runner or may know it, with their tickets."""
        return {name: each.ticket for name, each in self._cells.items() if each.standing is not _Standing.OUT}

    @property
    def open(self) -> Sequence[str]:
        """The cells that have been asked and have not answered."""
        return [name for name, each in self._cells.items() if each.standing is _Standing.OPEN]

    @property
    def late(self) -> Sequence[str]:
        """The cells that have had their time, if the round is over."""
        return [] if self.may_hold else self.open

    @property
    def wake(self) -> float | None:
        """When `look` is due next; None: not before the next answer."""
        if self.is_answered:
            return None if self._given_at is None or self._is_hung_up else self._given_at + GRACE
        if self._closed_at is not None:
            return self._closed_at + PARTING
        times = [each.since + PATIENCE for each in self._quick()]
        times += [each.until for each in self._cells.values() if each.standing is _Standing.REST]
        return min([*(each for each in times if each > self._seen), self.deadline])

    def look(self, now: float) -> Sequence[Action]:
        """Do what is due."""
        self._seen = now
        if self.is_answered:
            is_due = self._given_at is not None and now >= self._given_at + GRACE
            return self._hang_up(only_held=True) if is_due else []  # the others answer by themselves
        if self._closed_at is None and now >= self.deadline:
            return self._close(now) if self.may_hold else self._end()
        if self._closed_at is not None:
            return self._end() if now >= self._closed_at + PARTING or not self.open else []
        return self._next(now)

    def answered(
        self, cell: str, status: int | None, ticket: str | None, now: float, *, pause: float = 0.0
    ) -> Sequence[Action]:
        """A cell has answered; *status* is None if it did not, *pause* what it asked for."""
        found = self._cells[cell]
        found.standing = _Standing.REST
        found.until = now + pause
        if status == HTTPStatus.CREATED:
            found.knows, found.ticket = True, ticket or found.ticket
            if self.is_answered:
                return [Keep(cell)]
            self.is_answered, self._given_at = True, now
            return [Give(cell)]
        self._note(found, status, ticket, now, pause)
        return self.look(now)

    def has_another(self, now: float) -> Sequence[Action]:
        """The runner was given a job that was kept for it: what the cells hand out from now on is kept."""
        self.is_answered, self._given_at = True, now
        return []

    def abandon(self) -> Sequence[Action]:
        """The runner has hung up: nobody wants an answer any more. Who answers at once does so: it may be a job."""
        self.is_answered = True
        return self._hang_up(only_held=True)

    def _note(self, found: _Cell, status: int | None, ticket: str | None, now: float, pause: float) -> None:
        if status == HTTPStatus.NO_CONTENT:
            found.knows, found.ticket = True, ticket or found.ticket
            if found.is_held or not found.ticket:  # else it was asked only for what there is now
                found.until = max(found.until, found.since + PAUSE)
        elif status in _REFUSALS and not found.knows:
            found.standing = _Standing.OUT
        elif is_away(status):
            found.until = now + max(AWAY, pause)
        else:  # a conflict with another runner, or what nobody knows
            found.knows = found.knows or status == HTTPStatus.CONFLICT
            found.until = now + max(PAUSE, pause)

    def _next(self, now: float) -> Sequence[Action]:
        standing = {each.standing for each in self._cells.values()}
        if standing == {_Standing.OUT}:
            self.is_answered = True
            return [Refuse()]
        if not standing & {_Standing.OPEN, _Standing.TURN} and not any(each.knows for each in self._cells.values()):
            self.is_answered = True
            return [Unavailable()]
        if any(each.since + PATIENCE > now for each in self._quick()):
            return []
        for name, each in self._cells.items():
            if each.standing is _Standing.TURN:
                return [self._ask(name, each, now, None)]
        if not self.may_hold:
            return [] if self.open else self._end()
        due = [(name, each) for name, each in self._cells.items() if each.standing is _Standing.REST]
        return [self._ask(name, each, now, each.ticket or None) for name, each in due if each.until <= now]

    def _ask(self, name: str, cell: _Cell, now: float, ticket: str | None) -> Ask:
        cell.standing, cell.since, cell.is_held = _Standing.OPEN, now, ticket is not None
        return Ask(name, ticket)

    def _close(self, now: float) -> Sequence[Action]:
        self._closed_at = now
        return [*self._hang_up(), *([] if self.open else self._end())]

    def _end(self) -> Sequence[Action]:
        self.is_answered = True
        return [Nothing() if any(each.knows for each in self._cells.values()) else Unavailable()]

    def _hang_up(self, *, only_held: bool = False) -> Sequence[Action]:
        hung_up = []
        for name in self.open:
            if not self._cells[name].is_hung_up and (self._cells[name].is_held or not only_held):
                self._cells[name].is_hung_up = True
                hung_up.append(HangUp(name))
        return hung_up

    @property
    def _is_hung_up(self) -> bool:
        open_ = [each for each in self._cells.values() if each.standing is _Standing.OPEN]
        return all(each.is_hung_up or not each.is_held for each in open_)

    def _quick(self) -> Iterator[_Cell]:
        """The cells that should answer at once."""
        return (each for each in self._cells.values() if each.standing is _Standing.OPEN and not each.is_held)
