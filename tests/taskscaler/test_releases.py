"""What is expected to be released before a boot: bounded, nothing at a steady load, and over in time."""

from hypothesis import given
from hypothesis import strategies as st

from fleeting.core import Limits
from taskscaler import Policy
from taskscaler.config import PoolTable
from taskscaler.core._decide import Supply, decide, idle_to_ask_for
from taskscaler.core._releases import BOOTS, MARGIN_PER_BOOT, NOTHING_EXPECTED, Expected, Releases
from taskscaler.simulation import Fleet, Jobs, simulate
from tests.taskscaler.strategies import policies, supplies

BEGINS = 1_700_000_000.0
USES = st.lists(st.tuples(st.floats(0.01, 500), st.integers(0, 20), st.integers(0, 3)), min_size=1, max_size=20)


def after(uses: list[tuple[float, int, int]], boot: float | None = 60.0) -> tuple[Releases, int, float]:
    """What was in use for how long, and how many jobs ended then; what is now; and when that is."""
    releases, now, in_use = Releases(0.0), 0.0, 0
    releases.note_boot(boot, now)
    for seconds, in_use, ended in uses:
        now += seconds
        for _ in range(ended):
            releases.note_end(now)
        releases.note(in_use, now)
    return releases, in_use, now


@given(USES, st.floats(1, 1000))
def test_no_more_is_expected_than_is_in_use_and_it_is_over_in_time(
    uses: list[tuple[float, int, int]], boot: float
) -> None:
    """If nothing happens, fewer are expected at the moment that is named, as many until then, and none in the end.

    Until then but for a hundredth of a boot, which is as late as what is missing may be asked for.
    """
    releases, in_use, now = after(uses, boot)
    expected = releases.expected(now)
    assert 0 <= expected.slots <= in_use
    if expected.slots:
        assert expected.until > now
        assert releases.expected(expected.until).slots < expected.slots
        just_before = expected.until - MARGIN_PER_BOOT * boot - 0.01
        assert releases.expected(max(now, just_before)).slots == expected.slots
    assert releases.expected(now + 20 * BOOTS * boot) == NOTHING_EXPECTED
    releases.note_boot(None, now)
    assert releases.expected(now) == NOTHING_EXPECTED


def test_at_a_steady_load_nothing_is_expected() -> None:
    """As many jobs begin as end: what is in use is what is usually in use."""
    releases, _, now = after([(10.0, 20, 5)] * 200)
    assert releases.expected(now) == NOTHING_EXPECTED


def test_a_peak_of_short_jobs_is_expected_to_end() -> None:
    """Those are soon free again that are in use beyond the usual; and if jobs take long, they are not."""
    short, _, now = after([(30.0, 1, 1)] * 200)
    short.note(6, now)
    assert short.expected(now).slots == 4
    long, _, now = after([(30.0, 1, 0)] * 199 + [(30.0, 1, 3)])
    long.note(6, now)
    assert long.expected(now).slots == 0


@given(st.lists(supplies(), min_size=1, max_size=3), policies, st.integers(0, 30), st.integers(0, 30))
def test_nobody_waits_for_a_release(pools: list[Supply], policy: Policy, pending: int, slots: int) -> None:
    """What waits is asked for all the same; less is asked for of what is to be idle, and nothing else is different."""
    plain, counting, never_idle = (
        decide(pools, 0, pending, each, 100.0, releases=Expected(count, 107.0))
        for each, count in ((policy, 0), (policy, slots), (Policy(), 0))
    )
    assert never_idle.increase <= counting.increase <= plain.increase
    assert counting.expected <= min(slots * (1 + policy.scale_factor) + 1, plain.idle_target)
    assert (counting.spare, counting.target, counting.removals) == (plain.spare, plain.target, plain.removals)
    if counting.expected:
        assert counting.look_again_at <= 107.0
        assert "expected to be released" in str(counting)
        return
    assert counting == plain


def test_in_words() -> None:
    """The decision says what it does not ask for, and why."""
    free = Limits(room=None, tokens=None, tokens_at=None, blocked_until=None)
    supply = Supply(pool="p", slots=1, kept=5, coming=0, usable=3, in_use=2, excess=0, limits=free)
    decision = decide([supply], 0, 0, Policy(idle_count=5), 100.0, releases=Expected(1, 130.0))
    assert str(decision) == (
        "7 slots, 7 instances (2 in use, 5 to keep idle); p has 5, requests 1 more; "
        "1 slot to keep idle is expected to be released before a new instance would be ready"
    )
    assert idle_to_ask_for(Policy(idle_count=1, scale_factor=1.0), in_use=10, releases=3) == 4


def test_a_fleet_does_not_buy_for_peaks_that_end_before_it_could() -> None:
    """Jobs of 20 s, a few at a time, run on what is kept idle; once a boot is known, nothing is bought for them."""
    fleet = Fleet(pools=(PoolTable(plugin="any"),), policies=(Policy(idle_count=5, idle_time=300.0),))
    jobs = Jobs.of((BEGINS + 600.0 * peak, 20.0) for peak in range(100) for _ in range(4))
    outcome = simulate(fleet, jobs)
    assert outcome.bought <= 5 + 4
    assert outcome.waits.count - outcome.waits.at_once <= 4  # the first ones, which found no fleet


@given(USES, st.floats(1, 1000), st.floats(1, 5000), st.floats(0, 500))
def test_a_waiter_is_left_to_a_release_for_a_boot_at_most(
    uses: list[tuple[float, int, int]], boot: float, price: float, waited: float
) -> None:
    """The fewer the more waiting costs, and nobody where it is not known how long booting takes."""
    releases, _, now = after(uses, boot)
    since = now - waited
    left = releases.awaited(since, price, now)
    assert left.slots >= releases.awaited(since, 2 * price, now).slots
    if left.slots:
        assert now < left.until <= since + min(boot, boot * boot / price) + 1e-6
        assert releases.awaited(since, price, left.until) == NOTHING_EXPECTED
    assert releases.awaited(None, price, now) == NOTHING_EXPECTED
    assert releases.awaited(now - boot - 1e-3, price, now) == NOTHING_EXPECTED
    releases.note_boot(None, now)
    assert releases.awaited(since, price, now) == NOTHING_EXPECTED


@given(st.lists(supplies(), min_size=1, max_size=3), policies, st.integers(0, 30), st.integers(0, 30))
def test_no_more_is_left_to_releases_than_waits(pools: list[Supply], policy: Policy, pending: int, slots: int) -> None:
    """So many fewer slots are asked for, never for idle ones; and nothing else is different."""
    plain = decide(pools, 0, pending, policy, 100.0)
    left = decide(pools, 0, pending, policy, 100.0, waits=Expected(slots, 107.0))
    assert left.awaited <= min(pending, slots)
    assert plain.increase - left.awaited <= left.increase <= plain.increase
    assert (left.spare, left.target, left.removals) == (plain.spare, plain.target, plain.removals)
    if left.awaited:
        assert left.look_again_at <= 107.0
        assert "of those that wait" in str(left)
        return
    assert left == plain
