"""Since when there has been how much to spare: why a fleet does not give up what it will want again soon. Pure.

An instance goes when it has been idle for `idle_time` and there has been a surplus over the target for `idle_time`.
Without the second condition, the longest idle instance of a kept buffer goes at each momentary surplus, and another
is bought as soon as the next job comes. What has been to spare for so long is the least that there was in that time. It
is kept as a staircase: for each height, since when the surplus has been at least so high.
"""

from bisect import bisect_left

from attrs import define, field


@define(eq=False)
class Surplus:
    """The surplus of a fleet over time, in slots, as far as what comes still depends on it."""

    _heights: list[int] = field(factory=list)
    """Ascending, the last of them the surplus as it is; what was given up is on top of each."""

    _since: list[float] = field(factory=list)
    """Since when it has been at least so high, ascending, in seconds since the epoch."""

    _given_up: int = 0

    def note(self, slots: int, now: float) -> None:
        """There are so many slots to spare from now on; below 0: so many are missing. Amortised O(1)."""
        heights, height = self._heights, slots + self._given_up
        if heights and heights[-1] == height:
            return
        since = now
        while heights and heights[-1] >= height:
            heights.pop()
            since = self._since.pop()
        if slots > 0:
            heights.append(height)
            self._since.append(since)
        elif not heights:
            self._given_up = 0

    def since(self, slots: int, now: float) -> float:
        """Since when so many or more have been to spare; *now* if they are not, or only since now. O(log heights)."""
        place = bisect_left(self._heights, slots + self._given_up)
        return self._since[place] if place < len(self._since) else now

    def give_up(self, slots: int) -> None:
        """So many of them are given up: for the rest it is as if they had never been there. O(heights)."""
        self._given_up += slots
        gone = bisect_left(self._heights, self._given_up + 1)
        del self._heights[:gone]
        del self._since[:gone]
