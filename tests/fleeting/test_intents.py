"""Which intent explains a new instance that carries none."""

from itertools import chain
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from fleeting.core._intents import CLOCK_SKEW, Intent, Intents, MatchByTime
from tests.strategies import EPOCH

times = st.sampled_from([EPOCH + each for each in (-200.0, -61.0, -60.0, -59.0, -1.0, 0.0, 1.0, 100.0)])
INTENTS = st.lists(st.tuples(st.integers(1, 3), times, times, st.sampled_from(["asked", "accepted", "not answered"])))


def naive_match(intents: Intents, created_at: float | None) -> Intent | None:
    """Look through all of them."""
    latest = inf if created_at is None else created_at + CLOCK_SKEW
    fits = [intent for intent in intents if intent.outstanding and intent.requested_at <= latest]
    return min(fits, key=lambda intent: (intent.in_flight, intent.asked_at), default=None)


def opened(drawn: list[tuple[int, float, float, str]]) -> Intents:
    """Intents of which the cloud has answered some."""
    intents = Intents()
    for number, (count, requested_at, asked_at, then) in enumerate(drawn):
        intent = Intent(f"intent-{number}", count, requested_at, asked_at)
        intents.open(intent)
        if then == "accepted":
            intents.accepted(intent, count, asked_at)
        elif then == "not answered":
            intents.not_answered(intent, asked_at)
    return intents


@given(INTENTS, st.lists(st.none() | times), st.booleans())
def test_the_index_of_a_view_matches_as_a_search_does(
    drawn: list[tuple[int, float, float, str]],
    created: list[float | None],
    sort: bool,  # noqa: FBT001  (drawn)
) -> None:
    """Whether instances come in the order of their creation or not, dated or not."""
    intents = opened(drawn)
    index = MatchByTime(intents)
    for each in sorted(created, key=lambda at: at or EPOCH) if sort else created:
        expected, intent = naive_match(intents, each), index.match(each)
        assert intent is expected
        if intent is not None:
            intents.matched(intent)
            if not (intent.outstanding or intent.in_flight):
                intents.close(intent)


@given(
    INTENTS, st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["ask", "accept", "unanswered", "miss", "close"])))
)
def test_the_sums_are_those_of_a_recount(
    drawn: list[tuple[int, float, float, str]], changes: list[tuple[int, str]]
) -> None:
    """What is outstanding, unfilled, overdue or unanswered for longest is counted as intents change."""
    intents = opened(drawn)
    for number, change in changes:
        intent = intents.get(f"intent-{number}")
        if intent is None:
            continue
        match change:
            case "ask":
                intents.asked(intent, max(each.asked_at for each in intents))
            case "accept":
                intents.accepted(intent, 1, intent.asked_at)
            case "unanswered":
                intents.not_answered(intent, intent.asked_at)
            case "miss":
                intents.missed(intent)
            case "close":
                intents.close(intent)
        asked = {each.asked_at for each in intents if each.in_flight}
        assert intents.outstanding == sum(each.outstanding for each in intents)
        assert intents.unfilled == sum(each.outstanding for each in intents if not each.in_flight)
        unfilled = [each for each in intents if each.outstanding and not each.in_flight]
        assert [*chain(*intents.withdrawable)] == sorted(unfilled, key=lambda intent: intent.asked_at)
        assert intents.unfilled_since == min((each.asked_at for each in unfilled), default=inf)
        assert intents.any_overdue == any(each.overdue for each in intents)
        assert (intents.asked_since is None) == (not asked)
        assert intents.asked_since is None or intents.asked_since in asked


@given(
    INTENTS,
    st.lists(
        st.tuples(st.sampled_from(["take back", "close", "match", "unanswered"]), st.integers(0, 9)),
        min_size=1,
        max_size=20,
    ),
)
def test_what_was_taken_back_may_come_in_the_place_of_any_candidate(
    drawn: list[tuple[int, float, float, str]], changes: list[tuple[str, int]]
) -> None:
    """As looking through all that were candidates at the time shows."""
    intents = opened(drawn)
    candidates: dict[str, list[Intent]] = {}
    for change, number in changes:
        intent = intents.get(f"intent-{number}")
        if change == "take back":
            could = intents.withdrawable
            for each in intents.take_back(number, could):
                candidates[each.id] = [*chain(*could)]
                if not each.outstanding:
                    intents.close(each)
        elif intent is not None and change == "close":
            intents.close(intent)
        elif intent is not None and change == "unanswered":
            intents.not_answered(intent, intent.asked_at + 1)
        elif intent is not None and intent.outstanding:
            intents.matched(intent)
        for carried in [f"intent-{each}" for each in range(len(drawn))]:
            own = intents.get(carried)
            fits = [each for each in [own, *candidates.get(carried, ())] if each is not None and each.outstanding]
            expected = next((each for each in fits if intents.get(each.id) is each), None)
            assert intents.match_carried(carried) is expected
    assert intents.match_carried(None) is None
