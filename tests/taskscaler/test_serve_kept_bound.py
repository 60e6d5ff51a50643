"""Until when a lease is kept, whatever its clients and its command do: properties of the pure part."""

from math import inf

import pytest
from attrs.exceptions import FrozenInstanceError
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from taskscaler._kept_bounds import DEFAULT_TIME, MOST_TIME
from taskscaler.serve._kept import LOOK_INTERVAL, Due, Kept

SECONDS = st.floats(0.1, 5000)
BOUNDS = st.floats(1, 4000)


class KeptMachine(RuleBasedStateMachine):
    """The model: who has the lease since when, when its command ends, and that somebody does what is due, on time."""

    def __init__(self) -> None:
        """A client has it."""
        super().__init__()
        self.now = 1000.0
        self.kept = Kept(key="k", name="n", uid=7)
        self.left_at: float | None = None
        self.command_ends = -inf
        self.ended_at: float | None = None

    @rule(ttl=BOUNDS | st.none(), idle_timeout=BOUNDS | st.none(), there=st.booleans())
    def is_wanted(self, ttl: float | None, idle_timeout: float | None, *, there: bool) -> None:
        """A client keeps it otherwise; what it does not name stays."""
        if self.left_at is None and self.ended_at is None:
            before = self.kept
            self.kept = before.wanted(ttl, idle_timeout, stays=None, there=there or None)
            assert self.kept.ttl == (ttl or before.ttl)
            assert self.kept.idle_timeout == (idle_timeout or before.idle_timeout)
            assert self.kept.stays

    @rule(runs=SECONDS | st.just(0.0))
    def is_left(self, runs: float) -> None:
        """Its client goes, and a command that it has left runs for so long."""
        if self.left_at is None and self.ended_at is None:
            self.left_at = self.now
            self.command_ends = self.now + runs if self.kept.there and runs else -inf
            self.kept = self.kept.left(self.now)
            assert self.kept.left(self.now + 1) is self.kept, "whoever has left it cannot leave it again"

    @rule()
    def is_taken(self) -> None:
        """A client comes in time."""
        if self.ended_at is None:
            self.left_at, self.kept = None, self.kept.taken()

    @rule(seconds=SECONDS)
    def passes(self, seconds: float) -> None:
        """Time does, and what is due is done at its moment."""
        until = self.now + seconds
        while self.ended_at is None and self.kept.next_at <= until:
            self.now = max(self.now, self.kept.next_at)
            match self.kept.due(self.now):
                case Due.END:
                    self.ended_at = self.now
                    self.ends_neither_too_soon_nor_too_late()
                case Due.LOOK:
                    self.kept = self.kept.seen(self.now, running=self.command_ends > self.now)
                case Due.NOTHING:
                    raise AssertionError("something was due, and then nothing was")
        self.now = until

    def ends_neither_too_soon_nor_too_late(self) -> None:
        """Never under a client; at the latest after its ttl; never before it was idle for as long as it may be."""
        assert self.left_at is not None
        ttl_ends = self.left_at + self.kept.ttl
        assert self.now <= ttl_ends
        if self.now < ttl_ends:
            assert self.kept.idle_timeout is not None
            idle_since = max(self.left_at, self.command_ends)
            assert idle_since + self.kept.idle_timeout <= self.now
            assert self.now <= idle_since + self.kept.idle_timeout + min(LOOK_INTERVAL, self.kept.idle_timeout)

    @invariant()
    def what_is_due_is_foreseen(self) -> None:
        """Something is due exactly from `next_at` on; nothing ever is while a client has it."""
        if self.ended_at is None:
            assert (self.kept.due(self.now) is Due.NOTHING) == (self.now < self.kept.next_at)
            assert (self.kept.next_at == inf) == (self.left_at is None)


TestKeptMachine = KeptMachine.TestCase


@pytest.mark.parametrize("bound", [0.0, -1.0, MOST_TIME + 1, inf, float("nan")])
def test_no_lease_is_kept_for_ever_or_for_nothing(bound: float) -> None:
    """Each bound has a least and a most."""
    kept = Kept(key="k", name="n", uid=7)
    assert kept.ttl == DEFAULT_TIME
    for ttl, idle_timeout in ((bound, None), (None, bound)):
        with pytest.raises(ValueError, match="must be"):
            kept.wanted(ttl, idle_timeout, stays=None, there=None)
    with pytest.raises(FrozenInstanceError):
        kept.ttl = bound  # type: ignore[misc]
