"""Whether it pays to suspend idle instances, as measured."""

from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from taskscaler.core._payoff import ENOUGH, FORGET, KEPT, WORTH, Payoff

times = st.lists(st.floats(0.1, 1e4), max_size=2 * KEPT)


def measured(boots: list[float], resumes: list[float], now: float = 0.0) -> Payoff:
    """What is known after these, all of them at that time."""
    payoff = Payoff()
    for took in boots:
        payoff.note(took, now, resumed=False)
    for took in resumes:
        payoff.note(took, now, resumed=True)
    return payoff


@given(times, times)
def test_it_pays_unless_enough_say_otherwise(boots: list[float], resumes: list[float]) -> None:
    """The typical one of the last few of each decides, and with too few of either nothing does."""
    verdict = measured(boots, resumes).verdict(1.0)
    known = min(len(boots), len(resumes)) >= ENOUGH
    assert verdict.pays is not (known and median(resumes[-KEPT:]) > WORTH * median(boots[-KEPT:]))


@given(times, times)
def test_it_is_tried_again_after_a_while(boots: list[float], resumes: list[float]) -> None:
    """What was measured long ago says nothing any more."""
    assert measured(boots, resumes, now=50.0).verdict(50.0 + FORGET).pays


@given(times, times, st.floats(1.0, 10.0))
def test_slower_resuming_never_makes_it_pay(boots: list[float], resumes: list[float], by: float) -> None:
    """Nor does quicker booting."""
    if not measured(boots, resumes).verdict(0.0).pays:
        assert not measured(boots, [took * by for took in resumes]).verdict(0.0).pays
        assert not measured([took / by for took in boots], resumes).verdict(0.0).pays


@given(
    st.lists(st.tuples(st.floats(0.0, 3 * FORGET), st.floats(0.1, 1e4)), max_size=2 * KEPT),
    st.lists(st.floats(0.0, 5 * FORGET), min_size=1),
)
def test_what_was_said_before_changes_nothing(measures: list[tuple[float, float]], asked_at: list[float]) -> None:
    """Whoever asks about a later time first is answered as one who does not."""
    payoff = Payoff()
    for at, took in sorted(measures):
        payoff.note(took, at, resumed=False)
    for at in asked_at:
        fresh = [took for noted_at, took in sorted(measures)[-KEPT:] if at < noted_at + FORGET]
        assert payoff.verdict(at).boots == (median(fresh) if len(fresh) >= ENOUGH else None)


def test_it_says_what_was_measured() -> None:
    """As far as anything was."""
    assert str(Payoff().verdict(0.0)) == ""
    assert str(measured([40.0] * 3, []).verdict(0.0)) == "booting takes 40s"
    assert str(measured([40.0] * 3, [4.0] * 3).verdict(0.0)) == "resuming takes 4s, booting 40s"
