"""Which names were given to which intent, and what became of them. Pure.

Names are ours, not the cloud's: ``<group>-<digest of the intent>-<number>``. So it is known what to look for before
anything is made, an instance carries its intent in its name, and no name ever stands for two.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from hashlib import blake2s
from typing import Self

from attrs import evolve, field, frozen

from fleeting import Observed, State
from fleeting_exec._contract import Listed, plain

REMEMBER = 86400.0
"""Seconds for which a request is remembered after which nothing of it is there."""

_DIGEST_BYTES = 6


class Fate(Enum):
    """What became of a name."""

    OPEN = "open"
    """It is being made."""

    DOOMED = "doomed"
    """It is being made, and is to be destroyed once it is."""

    MADE = "made"
    LEFT = "left"
    """Making it failed, and what that has left behind could not be destroyed yet."""

    ABANDONED = "abandoned"
    """Its manager was killed while it was being made: nobody saw what came of it, so it has to be destroyed."""

    FAILED = "failed"
    """Making it failed, and nothing is left."""

    GONE = "gone"
    """It was made, and destroyed."""


UNSETTLED = frozenset({Fate.OPEN, Fate.DOOMED})
TO_DESTROY = frozenset({Fate.LEFT, Fate.ABANDONED})


@frozen(kw_only=True)
class Request:
    """What was asked for under one intent."""

    intent: str
    asked_at: float
    fates: tuple[Fate, ...] = ()
    """Of each of its names, in their order."""

    @property
    def digest(self) -> str:
        """What stands for the intent in names."""
        return blake2s(self.intent.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()

    @property
    def made(self) -> int:
        """How many instances it brought, those that are gone since included."""
        return sum(fate in (Fate.MADE, Fate.GONE) for fate in self.fates)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is being made for it, nor has to be destroyed."""
        return not {*self.fates} & (UNSETTLED | TO_DESTROY)

    def abandoned(self) -> Self:
        """Have all that is being made destroyed."""
        return evolve(self, fates=tuple(Fate.ABANDONED if fate in UNSETTLED else fate for fate in self.fates))

    def settle(self, number: int, fate: Fate) -> Self:
        """Note what became of one name, by its number from 1."""
        return evolve(self, fates=(*self.fates[: number - 1], fate, *self.fates[number:]))


@frozen
class Requests:
    """All requests that are remembered."""

    group: str
    by_digest: Mapping[str, Request] = field(factory=dict)

    def of(self, intent: str, now: float) -> Request:
        """The request under this intent; an empty one if there was none."""
        fresh = Request(intent=intent, asked_at=now)
        return self.by_digest.get(fresh.digest, fresh)

    def put(self, request: Request) -> "Requests":
        """Take in a request as it is now."""
        return evolve(self, by_digest={**self.by_digest, request.digest: request})

    def names(self, *fates: Fate) -> Iterator[str]:
        """Names with one of these fates."""
        for digest, request in self.by_digest.items():
            for number, fate in enumerate(request.fates, start=1):
                if fate in fates:
                    yield f"{self.group}-{digest}-{number}"

    def find(self, name: str) -> tuple[Request, int] | None:
        """The request that a name belongs to, and its number there; None if it is not one of ours."""
        found = re.fullmatch(rf"{re.escape(self.group)}-([0-9a-f]{{{2 * _DIGEST_BYTES}}})-([1-9][0-9]{{0,8}})", name)
        request = self.by_digest.get(found[1]) if found else None
        if found is None or request is None or int(found[2]) > len(request.fates):
            return None
        return request, int(found[2])

    def fate(self, name: str) -> Fate | None:
        """What became of a name; None if it is not one of ours."""
        found = self.find(name)
        return found[0].fates[found[1] - 1] if found else None

    def name(self, count: int, intent: str, now: float) -> tuple["Requests", list[str]]:
        """Give so many names to an intent, none of which was ever used."""
        request = self.of(intent, now)
        numbers = range(len(request.fates) + 1, len(request.fates) + 1 + count)
        named = evolve(request, fates=(*request.fates, *[Fate.OPEN] * count))
        return self.put(named), [f"{self.group}-{request.digest}-{number}" for number in numbers]

    def taken_over(self) -> "Requests":
        """Begin where an earlier manager ended: what it had not finished nobody saw to its end, so it has to go."""
        return evolve(self, by_digest={digest: request.abandoned() for digest, request in self.by_digest.items()})

    def forgetting(self, listed: Iterable[str], now: float) -> "Requests":
        """Forget what is long settled, and of which nothing is listed."""
        there = {found[0].digest for found in map(self.find, listed) if found}
        kept = {
            digest: request
            for digest, request in self.by_digest.items()
            if digest in there or not request.is_settled or now - request.asked_at < REMEMBER
        }
        return self if len(kept) == len(self.by_digest) else evolve(self, by_digest=kept)

    def view(self, listed: Iterable[Listed], known: Mapping[str, State]) -> dict[str, Observed]:
        """Show what there is.

        Args:
            listed: What the cloud lists.
            known: Last states, for instances whose state the cloud does not know at the moment.
        """
        view = {each.name: self._observe(each, known.get(each.name, State.CREATING)) for each in listed}
        for name in self.names(*TO_DESTROY):
            view.setdefault(name, Observed(state=State.FAILED, intent=self._explanation(name)))
        return view

    def _observe(self, listed: Listed, last: State) -> Observed:
        """See one instance; what is not wholly made is not to be used, whatever the cloud says."""
        state = listed.state.state or last
        match self.fate(listed.name):
            case Fate.OPEN:
                state = State.CREATING
            case Fate.DOOMED:
                state = State.DELETING
            case Fate.LEFT | Fate.ABANDONED:
                state = State.FAILED
        offering = None if listed.offering is None else plain(listed.offering)
        intent = self._explanation(listed.name)
        return Observed(state=state, created_at=listed.created_at, intent=intent, offering=offering)

    def _explanation(self, name: str) -> str | None:
        """The intent that a name was given to; none where the answer was that nothing came of it."""
        found = self.find(name)
        answered = self.fate(name) in (Fate.LEFT, Fate.FAILED)
        return None if found is None or answered else found[0].intent
