"""The book of intents: what was asked of the cloud and has not been accounted for yet. Pure.

An intent is written to the journal before the cloud is asked, and counts against every ceiling until
its instances have appeared, or it is withdrawn, has failed, or has expired. One whose outcome is unknown
counts in full: the cloud may have heard it.
"""

from collections.abc import Iterable, Iterator
from math import inf

from attrs import define, frozen

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

    doubtful: bool = False
    """Whether an earlier try was never answered, so that a later refusal does not settle it."""

    @property
    def outstanding(self) -> int:
        """How many instances may still appear for it."""
        return max(0, (self.count if self.accepted is None else self.accepted) - self.matched)

    def record(self, pool: str) -> IntentRecord:
        """For the journal."""
        return IntentRecord(
            pool=pool,
            count=self.count,
            accepted=self.accepted,
            matched=self.matched,
            requested_at=self.requested_at,
            asked_at=self.asked_at,
        )


class Intents:
    """The open intents, oldest first."""

    def __init__(self) -> None:
        """Start with none."""
        self._open: dict[str, Intent] = {}
        self._taken_back_with: dict[str, list[str]] = {}
        """By intent that was given up, in part at least: those of which the cloud may have taken one in its place."""

        self.outstanding = 0
        """Instances that may still appear, over all open intents."""

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

    def open(self, intent: Intent) -> None:
        """Take in a new one."""
        self._open[intent.id] = intent
        self.outstanding += intent.outstanding

    def accepted(self, intent: Intent, accepted: int) -> None:
        """Note the cloud's answer; a cloud that claims more than was asked is not believed."""
        before = intent.outstanding
        intent.accepted = max(0, min(accepted, intent.count))
        intent.in_flight = False
        self.outstanding += intent.outstanding - before

    def matched(self, intent: Intent) -> None:
        """Note that an instance appeared for it."""
        intent.matched += 1
        self.outstanding -= 1

    @property
    def withdrawable(self) -> list[Intent]:
        """Those that the cloud has answered and that still wait for instances, the next to expire first.

        A withdrawal is a number, and nobody knows whose requests it took: what is left has to be waited for as long
        as the youngest of them asks.
        """
        return sorted(
            (each for each in self if not each.in_flight and each.outstanding), key=lambda intent: intent.asked_at
        )

    def take_back(self, count: int, candidates: Iterable[Intent]) -> list[Intent]:
        """Give up *count* outstanding instances of the candidates, in their order; returns those it changed."""
        changed, candidates = [], list(candidates)
        for intent in candidates:
            given_up = min(count, intent.outstanding if intent.id in self._open else 0)
            if given_up:
                intent.accepted = intent.matched + intent.outstanding - given_up
                self.outstanding -= given_up
                count -= given_up
                changed.append(intent)
        self._note_exchange(changed, candidates)
        return changed

    def _note_exchange(self, changed: Iterable[Intent], candidates: Iterable[Intent]) -> None:
        """Nobody knows whose requests were taken back: what was given up may come in the place of what was not."""
        ids = [intent.id for intent in candidates]
        known = {**self._taken_back_with, **{intent.id: ids for intent in changed}}
        self._taken_back_with = {id_: others for id_, others in known.items() if any(map(self._awaits, others))}

    def _awaits(self, intent: str) -> bool:
        return intent in self._open and self._open[intent].outstanding > 0

    def close(self, intent: Intent) -> None:
        """Forget it, with whatever is still outstanding."""
        self.outstanding -= intent.outstanding
        del self._open[intent.id]

    def match_carried(self, carried: str | None) -> Intent | None:
        """The intent that a new instance carries, if that still waits for one; else one that waits in its place."""
        if carried is None:
            return None
        fits = [carried, *self._taken_back_with.get(carried, ())]
        return next((self._open[intent] for intent in fits if self._awaits(intent)), None)

    def match_by_time(self, created_at: float | None) -> Intent | None:
        """Where instances carry nothing: of those that wait and were not asked for later, the next to expire."""
        latest = inf if created_at is None else created_at + CLOCK_SKEW
        fits = [intent for intent in self if intent.outstanding and intent.requested_at <= latest]
        return min(fits, key=lambda intent: (intent.in_flight, intent.asked_at), default=None)
