"""Notices of instances that no view has shown yet. Pure."""

from collections.abc import Container
from typing import NamedTuple

from fleeting.core import messages


class _Kept(NamedTuple):
    """A notice, and until when it is kept."""

    notice: messages.Noticed
    until: float
    """A view that was fetched at this time or later, and does not show the instance, lets it be forgotten."""


class EarlyNotices:
    """Kept until their instances appear, or should have."""

    def __init__(self, patience: float) -> None:
        """Start with none; *patience*: seconds after its time for which a notice is kept, as requests are."""
        self._patience = patience
        self._kept: dict[str, _Kept] = {}

    def keep(self, notice: messages.Noticed, now: float) -> None:
        """Remember it; of several of one instance, the one of the earliest deadline."""
        before = self._kept.get(notice.instance)
        if before is not None:
            notice = min(before.notice, notice, key=lambda each: each.deadline)
        self._kept[notice.instance] = _Kept(notice, max(now, notice.deadline) + self._patience)

    def take(self, instance: str) -> messages.Noticed | None:
        """That of an instance which has appeared; None: there was none."""
        kept = self._kept.pop(instance, None)
        return kept.notice if kept is not None else None

    def forget(self, seen_at: float, shown: Container[str]) -> None:
        """Drop those whose instances a view that was fetched then should have shown; without one nobody knows.

        One that it shows as deleted stays: the cloud may take that back.
        """
        self._kept = {id_: each for id_, each in self._kept.items() if each.until > seen_at or id_ in shown}
