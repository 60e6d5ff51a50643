"""What property tests of the cores share: a journal as a dictionary, plans to talk to, numbers to choose from."""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, TypeVar

from hypothesis import Phase
from hypothesis import strategies as st

from fleeting import Observation, Observed, PlanConfig, ScaleThrottle, State
from fleeting.core import Chance, Drop, Plan, Put, Step, Write, messages

EPOCH = 1_700_000_000.0
"""Where tests start: at this size a float second is coarse, as it is in production."""

QUICK = (Phase.explicit, Phase.generate, Phase.shrink)
"""For state machines: all but the phase that traces every line, which takes minutes where one fails."""

NO_THROTTLE = ScaleThrottle(limit=-1)

A = TypeVar("A")

seeds = st.integers(0, 2**32 - 1)


class Drawn(Chance):
    """Numbers from a test's own generator."""

    def __init__(self, random: Callable[[], float]) -> None:
        """Draw from it."""
        super().__init__(0)
        self._drawn = random

    def __deepcopy__(self, memo: dict[int, Any]) -> "Drawn":
        """Slotted attrs classes copy their own fields only."""
        return Drawn(deepcopy(self._drawn, memo))

    def draw(self) -> float:
        """See `Chance.draw`."""
        return self._drawn()


class Records:
    """A journal as a dictionary: what would be left after a crash."""

    def __init__(self, records: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Start with a copy of what another left."""
        self.kinds: dict[str, dict[str, Any]] = {kind: dict(kept) for kind, kept in (records or {}).items()}

    def apply(self, writes: Iterable[Write]) -> None:
        """Make them durable, in order."""
        for write in writes:
            match write:
                case Put(kind, key, record):
                    self.kinds.setdefault(kind, {})[key] = record
                case Drop(kind, key):
                    self.kinds.get(kind, {}).pop(key, None)

    def __getitem__(self, kind: str) -> dict[str, Any]:
        """The records of a kind, by key."""
        return self.kinds.get(kind, {})


def a_plan(
    config: PlanConfig,
    *,
    now: float = EPOCH,
    named: bool = False,
    withdraws: bool = False,
    suspends: bool = False,
    recovered: Mapping[str, Mapping[str, Any]] | None = None,
    random: Callable[[], float] = lambda: 0.5,
    seed: int | None = None,
    life: int = 1,
    observing: bool = False,
    journaled: bool = True,
    cls: type[Plan] = Plan,
) -> Plan:
    """A plan whose intents are numbered, by the manager's life too: none comes up twice."""
    return cls(
        config,
        now=now,
        token=f"intent-{life}",
        chance=Drawn(random) if seed is None else Chance(seed),
        named=named,
        withdraws=withdraws,
        suspends=suspends,
        recovered=recovered,
        observing=observing,
        journaled=journaled,
    )


def seen(**states: State) -> messages.Updated:
    """A view that shows these."""
    return messages.Updated(Observation.of(states))


def shows(intents: Mapping[str, str | None], state: State = State.RUNNING) -> messages.Updated:
    """A view of instances that carry these intents."""
    return messages.Updated(Observation({each: Observed(state=state, intent=of) for each, of in intents.items()}))


def of_type(kind: type[A], items: Iterable[object]) -> list[A]:
    """Those of the items that are of that kind."""
    return [item for item in items if isinstance(item, kind)]


def one_intent(step: Step) -> str:
    """The intent of the only increase in the step."""
    (increase,) = of_type(messages.Increase, step.actions)
    return increase.intent


def heard(step: Step) -> list[messages.Event]:
    """The step's events, but for those that only say of which instances something has changed."""
    return [event for event in step.events if not isinstance(event, messages.Changed)]
