"""How fast more may be asked for: a token bucket and a backoff, pure.

Libraries for both exist, but they read a clock; these take `now`, so that the simulator can drive them.
"""

from collections.abc import Callable
from typing import NamedTuple

from attrs import define, field

from fleeting.core._chance import Chance

UNANSWERED = 30.0
"""Seconds after which nothing more is asked of a cloud that has not answered the last request yet."""


@define
class TokenBucket:
    """*limit* tokens a second, at most *burst* saved up; a negative limit never runs out."""

    limit: float
    burst: float
    _tokens: float
    _as_of: float

    @classmethod
    def full(cls, limit: float, burst: float, now: float) -> "TokenBucket":
        """Start with all that can be saved up."""
        return cls(limit, burst, burst, now)

    def available(self, now: float) -> int | None:
        """How many whole tokens there are; None: without limit."""
        if self.limit < 0:
            return None
        rounding = 1e-9 + self.limit * 1e-6  # of the sums, and of `now`, whose last digit is a quarter of a microsecond
        return int(self._saved(now) + rounding)

    def take(self, count: int, now: float) -> None:
        """Use *count* tokens, at most as many as are available."""
        if self.limit >= 0:
            self._tokens = self._saved(now) - count
            self._as_of = now

    def outlook(self, now: float) -> tuple[int | None, float | None]:
        """The same, and when there is one more than now; None if that never comes."""
        available = self.available(now)
        if available is None or self.limit == 0:
            return available, None
        return available, now + (1 - (self._saved(now) - available)) / self.limit

    def _saved(self, now: float) -> float:
        """Tokens and parts of one; *now* may lie ahead."""
        return min(self.burst, self._tokens + (now - self._as_of) * self.limit)


@define
class Backoff:
    """Exponential, capped, with jitter: each failure in a row doubles the wait."""

    initial: float
    cap: float
    _chance: Chance

    failures: int = 0
    until: float = 0.0
    """Nothing is to be tried before this time."""

    reason: str = ""
    """Why the last failure in a row came."""

    last: tuple[float, str] | None = None
    """When and why the last failure of all came, whatever succeeded since."""

    left_alone_until: float = 0.0
    """The cloud has asked to be left alone until then, which no success of something asked for earlier takes back."""

    _left_alone_reason: str = ""

    def failed(self, reason: str, now: float, retry_after: float | None = None) -> None:
        """Note a failure. Several of one burst count once, or the wait would explode."""
        self.reason = reason
        self.last = now, reason
        if now >= self.until:
            self.failures += 1
            full = min(self.cap, self.initial * 2.0 ** min(self.failures - 1, 30))
            self.until = now + full * (0.5 + 0.5 * self._chance.draw())
        if retry_after is not None and now + retry_after > self.left_alone_until:
            self.left_alone_until, self._left_alone_reason = now + retry_after, reason
        self.until = max(self.until, self.left_alone_until)

    def succeeded(self) -> None:
        """Forget the failures; but what the cloud has asked for holds."""
        self.failures = 0
        self.until = self.left_alone_until
        self.reason = self._left_alone_reason

    def lift(self, reason: str, now: float) -> None:
        """What led to it is over: try again as soon as the cloud lets us. The next failure doubles the wait anyway."""
        if reason == self.reason:
            self.until = min(self.until, max(now, self.left_alone_until))

    def active(self, now: float) -> bool:
        """Whether nothing is to be tried now."""
        return now < self.until


@define
class Backoffs:
    """Of a group: of requests that failed, of problems of the group as a whole, and of those of each offering.

    Which offering a request is filled from, the group chooses: it is held back only while all that are known are.
    """

    requests: Backoff
    group: Backoff
    _make: Callable[[], Backoff]
    _offerings: dict[str, Backoff] = field(factory=dict)

    @classmethod
    def of(cls, initial: float, cap: float, chance: Chance) -> "Backoffs":
        """Start without failures."""

        def make() -> Backoff:
            return Backoff(initial, cap, chance)

        return cls(make(), make(), make)

    def of_problems(self, offering: str | None) -> Backoff:
        """That of the problems with an offering, which is known from now on; None: with the whole group."""
        return self.group if offering is None else self._offerings.setdefault(offering, self._make())

    @property
    def holding(self) -> Backoff:
        """The one that keeps more from being asked for, as long as it is active. O(offerings)."""
        longest = self.requests if self.requests.until > self.group.until else self.group
        if not self._offerings:  # as mostly; and each decision asks
            return longest
        soonest = min(self._offerings.values(), key=lambda each: each.until)
        return longest if longest.until > soonest.until else soonest

    @property
    def last(self) -> tuple[float, str] | None:
        """When and why the last failure of all came; None: there was none."""
        every = (self.requests, self.group, *self._offerings.values())
        return max((each.last for each in every if each.last is not None), default=None)

    def succeeded(self, offering: str | None) -> None:
        """One of that offering came to be of use."""
        self.requests.succeeded()
        self.group.succeeded()
        if offering is not None:
            self.of_problems(offering).succeeded()


OURS = "max_instances"
"""The limit that is a setting of ours."""


class Limits(NamedTuple):
    """What stands between a wish for more instances and asking for them."""

    room: int | None
    """How many more the ceiling allows; None: any number."""

    tokens: int | None
    """How many more the throttle allows now; None: any number."""

    tokens_at: float | None
    """When the throttle allows one more than now; None: never, or it does not limit."""

    blocked_until: float | None
    """Nothing is asked for before this time; None: not backing off."""

    blocked_why: str = ""
    room_is: str = OURS
    """What sets the ceiling, in words: `OURS`, or as `GroupInfo.max_size_is`."""

    def allowed(self, wanted: int) -> int:
        """How many of *wanted* may be asked for now."""
        if self.blocked_until is not None:
            return 0
        if self.room is not None and self.room < wanted:
            wanted = self.room
        if self.tokens is not None and self.tokens < wanted:
            wanted = self.tokens
        return max(0, wanted)
