"""When the cloud's view is fetched, and what of it has to be looked at. Pure.

`Views` owns what the last view showed, the pace of fetching, and notices of instances that no view has shown yet. What
is made of what a view shows is the plan's.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from fleeting._types import Observed
from fleeting.core import messages
from fleeting.core._context import REMEMBER_LOST, Context
from fleeting.core._due import VIEW
from fleeting.core._early_notices import EarlyNotices
from fleeting.core._last_view import LastView

REST = 4.0
"""A view is fetched no sooner than this many times what the last one took after it, so that a large group is not read
without end; at once all the same if something is odd."""


class Difference(NamedTuple):
    """What of a view has to be looked at."""

    first: bool
    """Whether it is the first view of all."""

    known: list[str]
    """Known instances that it shows, and that have changed or wait for something."""

    fresh: list[str]
    """Those that are not known, the oldest first."""

    missing: list[str]
    """Known instances that it may not show."""


class Views:
    """The views of one group."""

    def __init__(self, context: Context, last_view: LastView, now: float) -> None:
        """Before the first view; *last_view* is the one that the table reports changes to."""
        self._context = context
        self._last = last_view
        self.early_notices = EarlyNotices(max(context.config.intent_timeout, REMEMBER_LOST))
        self.viewed = False
        """Whether the cloud's view has been seen at least once."""

        self.refused: frozenset[str] = frozenset()
        """Instances that stood in the group before anything was asked for, and because of which it is refused."""

        self.started = now
        """When the last view that was fetched began to be, or the one that is being fetched."""

        self.under_way = False
        self._again = False
        self._rested_at = now

    # --- fetching ----------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Have the first one fetched with the next tick."""
        self._context.timers.set(VIEW, now)

    def fetch(self, now: float) -> None:
        """Fetch the view, unless that is under way: then once more after it."""
        if self.under_way:
            self._again = True
            return
        self.under_way = True
        self.started = now
        self._context.timers.cancel(VIEW)
        self._context.turn.actions.append(messages.Update(self._context.pool))

    def fetch_again(self) -> None:
        """Something is odd about the view that is being looked through: fetch the next one right after it."""
        self._again = True

    def expect(self, now: float) -> None:
        """A change is coming: do not wait for the long interval."""
        if not self.under_way:
            config = self._context.config
            soon = now + min(config.update_interval_when_expecting, config.update_interval)
            self._context.timers.advance(VIEW, max(soon, self._rested_at))

    def ended(self, now: float, *, expecting: bool, at_least: float = 0.0) -> None:
        """Fetch the next view at once if something is odd, else when it is time, or as late as the cloud wants.

        *expecting*: whether the view should change soon.
        """
        self.under_way = False
        again, self._again = self._again, False
        if again and not at_least:
            self.fetch(now)
            return
        config = self._context.config
        interval = config.update_interval_when_expecting if expecting else config.update_interval
        rest = max(at_least, min(interval, config.update_interval))
        self._context.timers.set(VIEW, max(now + rest, self._rested_at))

    def rest(self, now: float) -> None:
        """Let the cloud rest after a view, the longer the more that has cost: a large group's takes many calls.

        Never for longer than the usual interval: what seems to have taken an hour was a process that slept.
        """
        self._rested_at = now + min(REST * (now - self.started), self._context.config.update_interval)

    @property
    def settled(self) -> bool:
        """Whether a next view is due, and leads to nothing but the one after it if it shows what the last one did."""
        if not self.viewed or self.under_way or self._again or VIEW not in self._context.timers:
            return False
        return self._last.settled and not self.early_notices.any

    def postpone(self, at: float) -> None:
        """Fetch the next view only then."""
        self._context.timers.set(VIEW, at)

    # --- what differs ------------------------------------------------------------------------------------

    def compare(self, view: Mapping[str, Observed], changed: Collection[str] | None, now: float) -> Difference:
        """Take in a view; nothing is said of those that look as they did, and wait for nothing."""
        first, self.viewed = not self.viewed, True
        differing, missing = self._last.compare(view, changed)
        by_id = self._context.table.by_id
        fresh = [instance for instance in differing if instance not in by_id]
        fresh.sort(key=lambda each: (view[each].created_at or now, each))
        known = [instance for instance in differing if instance in by_id]
        return Difference(first, known, fresh, missing)

    def look_at(self, instance: str) -> None:
        """Have a known instance looked at with the next view, even if that shows it, or does not, as the last one."""
        self._last.look_at(instance)

    def compared(self, view: Mapping[str, Observed], fresh: Iterable[str]) -> None:
        """All of it was looked through; of those that were not known before, some may not be known still."""
        self._last.unknown(instance for instance in fresh if instance not in self._context.table.by_id)
        self.early_notices.forget(self.started, view)
