"""Open intents: what was asked of the cloud and has not been accounted for yet. Pure.

An intent is written to the journal before the cloud is asked, and counts against every ceiling until
its instances have appeared, or it is withdrawn, has failed, or has expired. One whose outcome is unknown
counts in full: the cloud may have heard it.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain
from math import inf

from attrs import define, frozen

from fleeting.core._blocks import Blocks

CLOCK_SKEW = 60.0
"""Seconds by which a cloud's clock may differ from ours."""


@frozen(kw_only=True)
class IntentRecord:
    """An open intent, as the journal keeps it; a closed one is dropped."""

    pool: str
    count: int
    accepted: int | None
    """How many the cloud said it accepted, less those taken back; None while that is unknown."""

    matched: int
    requested_at: float
    asked_at: float
    in_flight: bool = True
    """Whether the call may still begin: a manager that died can have been about to make it."""


@define
class Intent:
    """One request for more instances."""

    id: str
    count: int
    requested_at: float
    asked_at: float
    """When the cloud was last asked, or last heard of it: what it brings is waited for from then on."""

    accepted: int | None = None
    matched: int = 0
    in_flight: bool = True
    """Whether the cloud is being asked right now."""

    overdue: bool = False
    """Whether a view did not show what it should have brought by then; one bad view decides nothing."""

    unanswered: bool = False
    """Whether an earlier try was never answered, so that a later refusal does not settle it."""

    whole: bool = True
    """Whether all that has come of it is still there, and none of it was taken back: a cloud that is asked again may
    bring that once more."""

    @property
    def outstanding(self) -> int:
        """How many instances may still appear for it."""
        missing = (self.count if self.accepted is None else self.accepted) - self.matched
        return missing if missing > 0 else 0  # noqa: FURB136  (`max` takes twice as long, and all ask this)

    def record(self, pool: str) -> IntentRecord:
        """For the journal."""
        return IntentRecord(
            pool=pool,
            count=self.count,
            accepted=self.accepted,
            matched=self.matched,
            requested_at=self.requested_at,
            asked_at=self.asked_at,
            in_flight=self.in_flight,
        )


@define
class Numbered:
    """Gives the ids of intents: a token of this manager's life, and a number."""

    token: str
    last: int = 0

    def another(self) -> str:
        """One that was not there yet."""
        self.last += 1
        return f"{self.token}-{self.last}"


Candidates = Sequence[Sequence[Intent]]
"""Intents in order, in blocks: what was withdrawable at one time, or a part of it."""


@define(eq=False)
class Exchange:
    """Requests that were taken back together: nobody knows whose."""

    given_up: Sequence[str]
    """The intents that were given up for them, in part at least."""

    candidates: Candidates
    """Those of which the cloud may have taken some instead."""

    block: int = 0
    """Blocks of them, from the first on, in which none is open any more."""

    first: int = 0
    """How many in the next one, from the first on, are known not to be open any more."""


class Intents:
    """The open intents, oldest first."""

    def __init__(self) -> None:
        """Start with none."""
        self._open: dict[str, Intent] = {}
        self._exchanges: dict[str, Exchange] = {}
        """By intent that was given up, in part at least."""

        self._recent_exchanges: deque[Exchange] = deque()
        """All of them, the oldest first."""

        self._numbers: dict[str, int] = {}
        """The place of each open intent among all that ever were opened."""

        self._opened = 0
        self._withdrawable: Blocks[Intent] = Blocks()
        """Those that `withdrawable` gives, by when they were asked for last, and by number."""

        self._in_flight: dict[str, Intent] = {}
        """Those that the cloud is being asked for, the longest first."""

        self._overdue: set[str] = set()
        self.outstanding = 0
        """Instances that may still appear, over all open intents."""

        self.unfilled = 0
        """The part of them that the cloud has answered, and that could be taken back."""

    def __iter__(self) -> Iterator[Intent]:
        """The open intents, oldest first."""
        return iter(self._open.values())

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def __getitem__(self, intent: str) -> Intent:
        """The open intent of that id, which must be open."""
        return self._open[intent]

    def get(self, intent: str) -> Intent | None:
        """The open intent of that id, if it is open."""
        return self._open.get(intent)

    @property
    def asked_since(self) -> float | None:
        """When the cloud was asked what it has left unanswered for the longest; None: nothing. O(1)."""
        return next(iter(self._in_flight.values())).asked_at if self._in_flight else None

    @property
    def unfilled_since(self) -> float:
        """When the cloud was asked for the oldest of those that `withdrawable` gives; infinite: for none. O(1)."""
        first = self._withdrawable.first
        return inf if first is None else first[0]

    @property
    def any_overdue(self) -> bool:
        """Whether a view did not show what one of them should have brought. O(1)."""
        return bool(self._overdue)

    def open(self, intent: Intent) -> None:
        """Take in a new one."""
        self._open[intent.id] = intent
        self._numbers[intent.id] = self._opened
        self._opened += 1
        self._count(intent)

    def asked(self, intent: Intent, now: float) -> None:
        """The cloud is being asked for it, perhaps again."""
        self._uncount(intent)
        intent.in_flight = True
        intent.asked_at = now
        intent.overdue = False
        self._count(intent)

    def accepted(self, intent: Intent, accepted: int, now: float) -> None:
        """Note the cloud's answer; a cloud that claims more than was asked is not believed."""
        self._uncount(intent)
        intent.accepted = max(0, min(accepted, intent.count))
        intent.in_flight = intent.overdue = False
        intent.asked_at = now
        self._count(intent)

    def not_answered(self, intent: Intent, now: float) -> None:
        """Nobody knows what the cloud made of it."""
        self._uncount(intent)
        intent.in_flight = intent.overdue = False
        intent.unanswered = True
        intent.asked_at = now
        self._count(intent)

    def missed(self, intent: Intent) -> None:
        """A view did not show what it should have brought by then."""
        self._uncount(intent)
        intent.overdue = True
        self._count(intent)

    def matched(self, intent: Intent) -> None:
        """Note that an instance appeared for it. O(1), but for the last of those that it may bring."""
        before = intent.outstanding
        intent.matched += 1
        after = intent.outstanding
        self.outstanding += after - before
        if not intent.in_flight and before:
            self.unfilled += after - before
            if not after:
                self._withdrawable.remove((intent.asked_at, self._numbers[intent.id]))

    def _count(self, intent: Intent) -> None:
        """Make it part of the sums; `_uncount` it before anything about it changes."""
        self.outstanding += intent.outstanding
        if intent.in_flight:
            self._in_flight[intent.id] = intent
        elif intent.outstanding:
            self.unfilled += intent.outstanding
            self._withdrawable.add((intent.asked_at, self._numbers[intent.id]), intent)
        if intent.overdue:
            self._overdue.add(intent.id)

    def _uncount(self, intent: Intent) -> None:
        """Take it out of the sums."""
        self.outstanding -= intent.outstanding
        if not intent.in_flight and intent.outstanding:
            self.unfilled -= intent.outstanding
            self._withdrawable.remove((intent.asked_at, self._numbers[intent.id]))
        self._in_flight.pop(intent.id, None)
        self._overdue.discard(intent.id)

    @property
    def withdrawable(self) -> Candidates:
        """Those that the cloud has answered and that still wait for instances, the next to expire first.

        A withdrawal is a number, and nobody knows whose requests it took: what is left has to be waited for as long
        as the youngest of them asks.
        """
        return self._withdrawable.snapshot()

    def take_back(self, count: int, candidates: Candidates) -> list[Intent]:
        """Give up *count* outstanding instances of the candidates, in their order; returns those it changed."""
        changed = []
        for intent in chain.from_iterable(candidates):
            if not count:
                break
            given_up = min(count, intent.outstanding if intent.id in self._open else 0)
            if given_up:
                self._uncount(intent)
                intent.accepted = intent.matched + intent.outstanding - given_up
                self._count(intent)
                count -= given_up
                changed.append(intent)
        self._note_exchange(changed, candidates)
        return changed

    def _note_exchange(self, changed: Sequence[Intent], candidates: Candidates) -> None:
        """Nobody knows whose requests were taken back: what was given up may come in the place of what was not."""
        if changed:
            exchange = Exchange([intent.id for intent in changed], candidates)
            self._exchanges.update(dict.fromkeys(exchange.given_up, exchange))
            self._recent_exchanges.append(exchange)
        while self._recent_exchanges and self._is_over(self._recent_exchanges[0]):
            over = self._recent_exchanges.popleft()
            for intent in over.given_up:
                if self._exchanges.get(intent) is over:
                    del self._exchanges[intent]

    def _is_over(self, exchange: "Exchange") -> bool:
        """Whether none of its candidates is open any more. O(1) but for those that were closed since this was asked."""
        blocks = exchange.candidates
        while exchange.block < len(blocks):
            block = blocks[exchange.block]
            while exchange.first < len(block) and block[exchange.first].id not in self._open:
                exchange.first += 1
            if exchange.first < len(block):
                return False
            exchange.block, exchange.first = exchange.block + 1, 0
        return True

    def close(self, intent: Intent) -> None:
        """Forget it, with whatever is still outstanding."""
        self._uncount(intent)
        del self._open[intent.id], self._numbers[intent.id]

    def match_carried(self, carried: str | None) -> Intent | None:
        """The intent that a new instance carries, if that still waits for one; else one that waits in its place."""
        intent = self._open.get(carried or "")
        if intent is not None and intent.outstanding:
            return intent
        exchange = self._exchanges.get(carried or "")
        if exchange is None or self._is_over(exchange):
            return None
        candidates = chain.from_iterable(exchange.candidates[exchange.block :])
        return next((each for each in candidates if each.id in self._open and each.outstanding), None)


class MatchByTime:
    """Matches the new instances of one view to intents where they carry none; for *n* of each, O(n log n).

    Of those intents that wait and were not asked for later than the instance was created, it gives the next to expire.
    Nothing but `Intents.matched` and `Intents.close` may be done between two matches.
    """

    def __init__(self, intents: Iterable[Intent]) -> None:
        """Begin with a view."""
        self._waiting = [(each.in_flight, each.asked_at, number, each) for number, each in enumerate(intents)]
        self._begin()

    def _begin(self) -> None:
        """None of them was asked for early enough, as far as anybody has looked."""
        self._later = [(entry[3].requested_at, entry[2], entry) for entry in self._waiting if entry[3].outstanding]
        heapify(self._later)
        self._fits: list[tuple[bool, float, int, Intent]] = []
        self._latest = -inf

    def match(self, created_at: float | None) -> Intent | None:
        """The intent for an instance; instances had better come in the order in which they were created."""
        latest = inf if created_at is None else created_at + CLOCK_SKEW
        if latest < self._latest:
            self._begin()
        self._latest = latest
        while self._later and self._later[0][0] <= latest:
            heappush(self._fits, heappop(self._later)[-1])
        while self._fits and not self._fits[0][3].outstanding:
            heappop(self._fits)
        return self._fits[0][3] if self._fits else None
