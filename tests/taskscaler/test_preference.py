"""The order in which pools are asked: bounded, forgetful, and explained."""

from hypothesis import given
from hypothesis import strategies as st

from taskscaler.core._preference import FEWEST, MEMORY, TOO_MANY, Losses
from tests.strategies import EPOCH

POOLS = ["spot", "other-spot", "on-demand"]

STAYS = st.lists(
    st.tuples(st.sampled_from(POOLS), st.booleans(), st.booleans(), st.floats(0.0, 2 * MEMORY)), max_size=60
)
"""Of each instance: the pool, whether it was taken, whether that was announced, and how long after the first."""


def told(stays: list[tuple[str, bool, bool, float]]) -> Losses:
    """What is known after all of these have come and gone."""
    losses = Losses()
    for number, (pool, taken, announced, after) in enumerate(sorted(stays, key=lambda stay: stay[3])):
        instance, at = f"i-{number}", EPOCH + after
        losses.arrived(pool, instance, "zone-a/small")
        if taken and announced:
            losses.announced(pool, instance, at)
            losses.announced(pool, instance, at)
        losses.gone(pool, instance, at, taken=taken)
    return losses


def taken_from(losses: Losses, pool: str, count: int, at: float = EPOCH, *, taken: bool = True) -> None:
    """So many instances come and go."""
    for number in range(count):
        losses.arrived(pool, f"i-{number}", "zone-a/small")
        losses.gone(pool, f"i-{number}", at, taken=taken)


@given(STAYS, st.floats(0.0, 4 * MEMORY))
def test_a_pool_loses_one_place_at_the_most(stays: list[tuple[str, bool, bool, float]], after: float) -> None:
    """The order has all pools, none loses its place to one that is deprioritised, and each of those has its reason."""
    losses, now = told(stays), EPOCH + after
    order = losses.order(POOLS, now)
    assert sorted(order) == sorted(POOLS)
    for place, pool in enumerate(POOLS):
        assert order.index(pool) <= place + 1
        assert order.index(pool) <= place or losses.deprioritises(pool, now)
        assert bool(losses.why(pool, now)) == losses.deprioritises(pool, now)


@given(STAYS)
def test_what_was_taken_is_forgotten_in_time(stays: list[tuple[str, bool, bool, float]]) -> None:
    """Preference comes back by itself."""
    assert told(stays).order(POOLS, EPOCH + 3 * MEMORY + 1) == POOLS


def test_one_loss_is_chance() -> None:
    """Fewer than a few change nothing, whatever their share."""
    losses = Losses()
    taken_from(losses, "spot", FEWEST - 1)
    assert losses.order(POOLS, EPOCH + 1) == POOLS
    taken_from(losses, "spot", 1)
    assert losses.order(POOLS, EPOCH + 1) == ["other-spot", "spot", "on-demand"]


def test_many_that_were_given_up_make_a_few_losses_bearable() -> None:
    """It is the share that counts."""
    losses = Losses()
    taken_from(losses, "spot", FEWEST)
    assert losses.deprioritises("spot", EPOCH + 1)
    taken_from(losses, "spot", int(FEWEST / TOO_MANY), taken=False)
    assert not losses.deprioritises("spot", EPOCH + 1)


def test_two_shaky_pools_both_come_after_the_steady_one() -> None:
    """Of each other they keep their order."""
    losses = Losses()
    taken_from(losses, "spot", FEWEST)
    taken_from(losses, "other-spot", FEWEST)
    assert losses.order(POOLS, EPOCH + 1) == ["on-demand", "spot", "other-spot"]


def test_why_says_what_was_taken_of_which_offering() -> None:
    """Numbers, the time that they are about, and where."""
    losses = Losses()
    taken_from(losses, "spot", 3)
    taken_from(losses, "spot", 1, taken=False)
    assert losses.why("spot", EPOCH + 1) == (
        "the cloud took 3 of the 4 instances that ended in the last 30m (zone-a/small: 3 of 4)"
    )
    assert not losses.why("on-demand", EPOCH + 1)


def test_an_instance_that_was_never_ready_counts_for_nothing() -> None:
    """Only what was of use can be taken."""
    losses = Losses()
    losses.announced("spot", "i-1", EPOCH)
    losses.gone("spot", "i-1", EPOCH, taken=True)
    assert not losses.deprioritises("spot", EPOCH + 1)
