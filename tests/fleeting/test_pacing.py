"""How fast more may be asked for: never more than the limit in any window, and never a wait without end."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fleeting.core._pacing import Backoff, Backoffs, TokenBucket
from tests.strategies import EPOCH, Drawn

LIMITS = st.sampled_from([0.1, 0.5, 1.0, 3.0, 7.0, 100.0])
BURSTS = st.integers(1, 20)
PAUSES = st.floats(0.0, 30.0, allow_nan=False)


@given(LIMITS, BURSTS, st.lists(st.tuples(PAUSES, st.integers(0, 30)), max_size=30))
def test_no_window_holds_more_than_burst_and_limit(limit: float, burst: int, asks: list[tuple[float, int]]) -> None:
    """From any take to any later one, at most the burst and what flowed in since was taken."""
    now = EPOCH
    bucket = TokenBucket.full(limit, burst, now)
    takes: list[tuple[float, int]] = []
    for pause, wanted in asks:
        now += pause
        available = bucket.available(now)
        assert available is not None
        assert 0 <= available <= burst
        count = min(wanted, available)
        bucket.take(count, now)
        takes.append((now, count))
    for start in range(len(takes)):
        total = 0
        for at, count in takes[start:]:
            total += count
            assert total <= burst + limit * (at - takes[start][0]) + 1e-3


@given(LIMITS, BURSTS, st.floats(0.0, 100.0), st.integers(0, 20))
def test_the_next_token_is_there_when_it_is_said_to_be(limit: float, burst: int, later: float, taken: int) -> None:
    """Whoever takes all tokens and waits until `next_at` gets one, and need not ask a second time."""
    bucket = TokenBucket.full(limit, burst, EPOCH)
    bucket.take(min(taken, burst), EPOCH)
    now = EPOCH + later
    available = bucket.available(now)
    assert available is not None
    bucket.take(available, now)
    at = bucket.outlook(now)[1]
    assert at is not None
    assert at > now
    assert bucket.available(at) == 1


def test_without_a_limit_nothing_runs_out() -> None:
    """A negative limit is none."""
    bucket = TokenBucket.full(-1, 1, EPOCH)
    bucket.take(1000, EPOCH)
    assert bucket.available(EPOCH) is None
    assert bucket.outlook(EPOCH)[1] is None


def test_a_limit_of_zero_gives_the_burst_and_no_more() -> None:
    """What never comes is not waited for."""
    bucket = TokenBucket.full(0, 2, EPOCH)
    bucket.take(2, EPOCH)
    assert bucket.available(EPOCH + 1e6) == 0
    assert bucket.outlook(EPOCH)[1] is None


@given(
    st.floats(0.1, 10.0),
    st.floats(10.0, 1000.0),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=50),
)
def test_backoff_doubles_up_to_its_cap(initial: float, cap: float, jitter: list[float]) -> None:
    """Each failure after the wait at least keeps half of a doubled wait, and none waits longer than the cap."""
    numbers = iter(jitter)
    backoff = Backoff(initial, cap, Drawn(lambda: next(numbers)))
    now = EPOCH
    for failures in range(1, len(jitter) + 1):
        backoff.failed("no capacity", now)
        full = min(cap, initial * 2 ** (failures - 1))
        assert now + full / 2 - 1e-3 <= backoff.until <= now + full + 1e-3
        assert backoff.active(now)
        now = backoff.until
        assert not backoff.active(now)


@given(st.lists(st.floats(0.0, 4.9), max_size=20))
def test_a_burst_of_failures_counts_once(gaps: list[float]) -> None:
    """Ten calls that fail together wait no longer than one."""
    backoff = Backoff(10.0, 300.0, Drawn(lambda: 1.0))
    backoff.failed("first", EPOCH)
    for gap in sorted(gaps):
        backoff.failed("again", EPOCH + gap)
    assert backoff.failures == 1
    assert backoff.until == EPOCH + 10


def test_the_cloud_may_ask_for_a_longer_wait() -> None:
    """`retry_after` counts when it is longer, and does not shorten the wait."""
    backoff = Backoff(10.0, 300.0, Drawn(lambda: 1.0))
    waits = []
    for retry_after in (1.0, 60.0, 5.0):
        backoff.failed("rate limited", EPOCH, retry_after)
        waits.append(backoff.until)
    assert waits == [EPOCH + 10, EPOCH + 60, EPOCH + 60]
    assert all(earlier <= later for earlier, later in pairwise(waits))


def test_success_ends_the_wait() -> None:
    """The next failure starts from the beginning."""
    backoff = Backoff(10.0, 300.0, Drawn(lambda: 1.0))
    backoff.failed("once", EPOCH)
    backoff.succeeded()
    assert not backoff.active(EPOCH)
    backoff.failed("later", EPOCH + 1)
    assert backoff.until == EPOCH + 11


@given(
    st.lists(
        st.tuples(st.sampled_from(["fails", "is throttled", "succeeds", "is lifted"]), st.floats(0.0, 60.0), PAUSES),
        max_size=30,
    )
)
def test_what_the_cloud_asks_for_holds(story: list[tuple[str, float, float]]) -> None:
    """Neither a success of what was asked for earlier nor the end of a problem lets it be asked before its time."""
    backoff, now, left_alone_until = Backoff(5.0, 60.0, Drawn(lambda: 0.5)), EPOCH, EPOCH
    for what, seconds, pause in story:
        now += pause
        match what:
            case "fails":
                backoff.failed("no capacity", now)
            case "is throttled":
                backoff.failed("slow down", now, seconds)
                left_alone_until = max(left_alone_until, now + seconds)
            case "succeeds":
                backoff.succeeded()
            case "is lifted":
                backoff.lift(backoff.reason, now)
        assert backoff.active(now) or now >= left_alone_until
        assert backoff.until >= left_alone_until or left_alone_until == EPOCH
        assert backoff.reason or not backoff.active(now)


OFFERINGS = st.sampled_from([None, "zone-a", "zone-b", "zone-c"])


@given(st.lists(st.tuples(st.booleans(), OFFERINGS, PAUSES), max_size=30))
def test_a_group_is_held_back_while_all_its_known_offerings_are(story: list[tuple[bool, str | None, float]]) -> None:
    """Or the group itself is; and whoever delivers is not held back, nor is the group by another's problem."""
    backoffs, now = Backoffs.of(5.0, 60.0, Drawn(lambda: 0.5)), EPOCH
    for fails, offering, pause in story:
        now += pause
        if fails:
            backoffs.of_problems(offering).failed("none left", now)
        else:
            backoffs.succeeded(offering)
            assert not backoffs.group.active(now)
            assert offering is None or not backoffs.holding.active(now)
        offerings = list(backoffs._offerings.values())
        all_fail = bool(offerings) and all(each.active(now) for each in offerings)
        assert backoffs.holding.active(now) == (all_fail or backoffs.group.active(now))


def test_a_back_off_is_lifted_for_its_own_reason_only() -> None:
    """Another failure since keeps it; and the next one waits longer all the same."""
    backoff = Backoff(5.0, 60.0, Drawn(lambda: 1.0))
    backoff.failed("none left", EPOCH)
    backoff.lift("quota", EPOCH + 1)
    assert backoff.active(EPOCH + 1)
    backoff.lift("none left", EPOCH + 1)
    assert not backoff.active(EPOCH + 1)
    backoff.failed("none left", EPOCH + 2)
    assert backoff.until == EPOCH + 12
