"""What the last view showed, so that of the next one only what differs has to be looked at. Pure."""

from collections.abc import Collection, Iterable, Mapping

from fleeting._types import Observed


class LastView:
    """Compares each view with the one before. To find no difference in 10,000 instances takes about a millisecond."""

    def __init__(self) -> None:
        """Before the first view, which differs in all that it shows."""
        self._shown: dict[str, Observed] = {}
        self._open: dict[str, None] = {}
        self._forgotten: dict[str, None] = {}
        """Those that were shown when they came not to be known any more, and that no view was looked at for since."""

        self._unknown: tuple[str, ...] = ()

    def look_at(self, instance: str) -> None:
        """Have a known instance looked at with the next view, even if that shows it, or does not, as the last one."""
        self._open[instance] = None

    def forget(self, instance: str) -> None:
        """It is not known any more; a view that shows it still, or again, is looked at as if that were news."""
        self._open.pop(instance, None)
        if self._shown.pop(instance, None) is not None:
            self._forgotten[instance] = None

    def unknown(self, instances: Iterable[str]) -> None:
        """These were shown and are not known: each view that shows them is looked at for them."""
        self._unknown = tuple(instances)

    @property
    def settled(self) -> bool:
        """Whether of a view that shows what the last one did nothing has to be looked at."""
        return not (self._open or self._forgotten or self._unknown)

    def compare(
        self, view: Mapping[str, Observed], changed: Collection[str] | None = None
    ) -> tuple[list[str], list[str]]:
        """Which instances have to be looked at that this view shows, and which may be missing that it does not show.

        O(changed), if at least those are given that the last view showed otherwise; else O(instances).
        """
        open_, self._open = self._open, {}
        forgotten, self._forgotten = self._forgotten, {}
        if changed is None:
            changed = _differences(self._shown, view)
            if changed:
                self._shown = dict(view)
        else:
            changed = self._update(view, (*changed, *forgotten))
        looked_at = dict.fromkeys((*open_, *self._unknown, *changed))
        differing = [each for each in looked_at if each in view]
        return differing, [each for each in dict.fromkeys((*open_, *changed)) if each not in view]

    def _update(self, view: Mapping[str, Observed], changed: Iterable[str]) -> list[str]:
        """Remember how it shows these; returns those that it or the last one shows."""
        shown = self._shown
        known = [each for each in dict.fromkeys(changed) if each in view or each in shown]
        for instance in known:
            if instance in view:
                shown[instance] = view[instance]
            else:
                del shown[instance]
        return known


def _differences(last: Mapping[str, Observed], now: Mapping[str, Observed]) -> list[str]:
    """Which instances two views do not show alike.

    Most views show the same instances in the same order. Their looks are compared field by field then, since a call of
    `Observed.__eq__` for each instance takes most of the time that a view of an unchanged fleet takes.
    """
    if list(last) == list(now):
        return [
            each
            for each, was, is_ in zip(now, last.values(), now.values(), strict=True)
            if was is not is_
            and (
                was.state is not is_.state
                or was.created_at != is_.created_at
                or was.intent != is_.intent
                or was.offering != is_.offering
            )
        ]
    differing = [
        each for each, observed in now.items() if (before := last.get(each)) is not observed and before != observed
    ]
    return [*differing, *(each for each in last if each not in now)]
