"""How many slots in use will be free again before an instance that is asked for now would be ready. Pure; O(1).

Where jobs are shorter than a boot, an instance that is bought because a job has taken an idle slot is ready when that
slot has long been free again: it is one too many. But while some jobs end, others begin. At a steady load as many do,
and nothing is gained. So it is only what is in use beyond the mean of the last minutes that is expected to fall back to
it, by as much as is due within a boot if jobs are as long as they have been lately::

    expected = (in use - mean in use) * (1 - exp(-boot / mean length of jobs))

The mean forgets within a few boots, so that work which does not end as expected is made up for after those.
"""

from math import exp, floor, inf, log

from attrs import define, frozen

BOOTS = 5.0
"""After so many boots a moment counts for a third in what is the mean in use."""

MEMORY = 3600.0
"""After so many seconds a job counts for a third in how long jobs take."""

ENOUGH = 3.0
"""So many jobs have to have ended, as far as remembered, before it is known how long they take."""

MARGIN_PER_BOOT = 0.01
"""The same as a share of a boot, if that is more: what is missing then may be asked for so much later, together with
what is missing soon after."""

MARGIN = 1e-3
"""Seconds beyond the moment at which fewer are expected: then it is so, whatever rounding does."""


@frozen
class Expected:
    """What will be released, as far as can be told."""

    slots: int
    until: float
    """When they are fewer, if nothing else happens, in seconds since the epoch."""


NOTHING_EXPECTED = Expected(0, inf)


@define(eq=False)
class Releases:
    """What was in use, and for how long jobs had it."""

    _at: float
    """When something was noted last, in seconds since the epoch."""

    _boot: float | None = None
    """Seconds until an instance that is asked for is ready; None: unknown, and nothing is expected."""

    _in_use: int = 0
    """Slots, since then."""

    _mean: float = 0.0
    """Slots in use in the last minutes, until then."""

    _held: float = 0.0
    """Seconds that slots were in use, as far as remembered."""

    _ended: float = 0.0
    """Jobs that ended, as far as remembered."""

    def note(self, in_use: int, now: float) -> None:
        """So many slots are in use from now on. O(1)."""
        if in_use != self._in_use:
            self._add_up(now)
            self._in_use = in_use

    def note_end(self, now: float) -> None:
        """A job has released its slot."""
        self._add_up(now)
        self._ended += 1.0

    def note_boot(self, seconds: float | None, now: float) -> None:
        """From now on it is known how long booting takes, if it is."""
        if seconds != self._boot:
            self._add_up(now)
            self._boot = seconds

    def expected(self, now: float) -> Expected:
        """How many of the slots in use will be free within a boot, besides those that will be taken meanwhile.

        Until something is noted, this is what was expected at first, less what time takes of it: asking has no part.

        Args:
            now: Seconds since the epoch, not before what was noted last.
        """
        more = self._in_use - self._mean
        if not self._boot or more <= 0 or self._ended < ENOUGH or not self._held:
            return NOTHING_EXPECTED
        at_first = more * (1 - exp(-self._boot * self._ended / self._held))
        slots = floor(at_first * self._fading(now) + 0.5)
        if not slots:
            return NOTHING_EXPECTED
        lasts = BOOTS * self._boot * log(at_first / (slots - 0.5))
        return Expected(slots, self._at + lasts + max(MARGIN, self._boot * MARGIN_PER_BOOT))

    def awaited(self, waiting_since: float | None, price: float, now: float) -> Expected:
        """How many of those that wait are better left to a release than bought an instance for.

        A boot that somebody waits for is worth the *price*, so a second of waiting is worth ``price / boot``, and an
        instance costs its boot at least. So one that is expected to wait for less than ``boot * boot / price`` is left
        to a release, and nobody for longer than a boot. If one has waited for that long, it was expected wrongly.

        Args:
            waiting_since: When the first of them began to wait; None: nobody does.
            price: Seconds of an instance.
            now: Seconds since the epoch.
        """
        if waiting_since is None or not self._boot or self._ended < ENOUGH or not self._held:
            return NOTHING_EXPECTED
        worth = min(self._boot, self._boot * self._boot / price)
        slots = floor(self._in_use * worth * self._ended / self._held)
        until = waiting_since + worth
        return Expected(slots, until) if slots and now < until else NOTHING_EXPECTED

    @property
    def boot(self) -> float | None:
        """Seconds until an instance that is asked for is ready; None: unknown."""
        return self._boot

    def _add_up(self, now: float) -> None:
        """Take in the time that has passed."""
        passed = now - self._at
        if passed > 0:
            left = exp(-passed / (BOOTS * self._boot)) if self._boot else 1.0  # as `_fading`
            self._mean = self._in_use + (self._mean - self._in_use) * left
            forgotten = exp(-passed / MEMORY)
            self._held = self._held * forgotten + self._in_use * MEMORY * (1 - forgotten)
            self._ended *= forgotten
            self._at = now

    def _fading(self, now: float) -> float:
        """What is left by now of what was in use beyond the mean, or less; all of it while no boot is known."""
        return exp(-max(0.0, now - self._at) / (BOOTS * self._boot)) if self._boot else 1.0
