"""Notices of instances that no view has shown yet. Pure."""

from collections.abc import Container

from attrs import define

from fleeting.core import messages

MISSED = 2
"""Views in a row that do not show an instance, after which it does not exist: one bad read decides nothing."""

MOST = 10_000
"""So many are kept, of the last instances that had one: a cloud may announce the end of any number of others."""


@define
class _Kept:
    """A notice, and until when it is kept."""

    notice: messages.Noticed
    until: float
    """Views that were fetched at this time or later, and do not show the instance, let it be forgotten."""

    missed: int = 0
    """How many of these there have been in a row."""


class EarlyNotices:
    """Kept until their instances appear, or should have."""

    def __init__(self, patience: float) -> None:
        """Start with none; *patience*: seconds after its time for which a notice is kept, whatever views show."""
        self._patience = patience
        self._kept: dict[str, _Kept] = {}

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self._kept)

    def keep(self, notice: messages.Noticed, now: float) -> None:
        """Remember it; of several of one instance, the one of the earliest deadline."""
        before = self._kept.pop(notice.instance, None)
        if before is not None:
            notice = min(before.notice, notice, key=lambda each: each.deadline)
        self._kept[notice.instance] = _Kept(notice, max(now, notice.deadline) + self._patience)
        if len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]

    def take(self, instance: str) -> messages.Noticed | None:
        """That of an instance which has appeared; None: there was none."""
        kept = self._kept.pop(instance, None)
        return kept.notice if kept is not None else None

    def forget(self, seen_at: float, shown: Container[str]) -> None:
        """Drop those whose instances a view that was fetched then should have shown, and not only that one.

        One that it shows as deleted stays: the cloud may take that back.
        """
        for id_, each in self._kept.items():
            if id_ in shown:
                each.missed = 0
            elif each.until <= seen_at:
                each.missed += 1
        self._kept = {id_: each for id_, each in self._kept.items() if each.missed < MISSED}
