"""When a runner asks for jobs, and when a call is repeated."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitlab_jobs import Polled, Polling, is_retried, seconds_to_wait


def ask(polling: Polling, now: float, **came: object) -> None:
    """One request, answered at once."""
    assert polling.may_ask(now)
    polling.asked()
    polling.answered(Polled(**{"status": 204, **came}), now)  # type: ignore[arg-type]


def test_after_a_job_the_next_is_asked_for_at_once() -> None:
    """After nothing, three seconds later; and one request is open at a time."""
    polling = Polling(0.0)
    polling.asked()
    assert (polling.may_ask(0.0), polling.wake) == (False, None)
    polling.answered(Polled(status=201), 1.0)
    ask(polling, 1.0)
    assert (polling.may_ask(3.9), polling.wake) == (False, 4.0)
    ask(polling, 4.0, status=None)
    assert polling.wake == 7.0


def test_a_ticket_is_kept_until_there_is_another() -> None:
    """An empty one, or none, does not replace it."""
    polling = Polling(0.0)
    for number, (ticket, kept) in enumerate([(None, None), ("a", "a"), ("", "a"), (None, "a"), ("b", "b")]):
        ask(polling, number * 3.0, ticket=ticket)
        assert polling.ticket == kept


def test_one_of_several_is_asked_as_often_as_it_has_jobs() -> None:
    """As many requests as there may be after a job, and at once after one that was held; one that is busy, later."""
    polling = Polling(0.0, request_concurrency=4, is_eager=True)
    assert polling.limit == 1
    ask(polling, 0.0, status=201)
    assert polling.limit == 4
    ask(polling, 0.0)  # not held: one that may be follows
    assert (polling.limit, polling.wake) == (2, 0.0)
    for since, until, due in ((0.0, 50.0, 50.0), (50.0, 50.1, 53.0)):
        polling.asked()
        polling.answered(Polled(status=204), until, asked_at=since)
        assert polling.wake == due
    ask(polling, 53.0, status=503, wait=20.0)
    assert polling.wake == 73.0


def test_three_refusals_silence_a_runner() -> None:
    """For an hour; anything else in between counts from the beginning."""
    polling = Polling(0.0)
    for number, status in enumerate([403, 403, 500, 403, 403, 403]):
        assert not polling.is_silenced
        ask(polling, number * 3.0, status=status)
    assert (polling.is_silenced, polling.wake) == (True, 15.0 + 3600.0)
    ask(polling, 3615.0)
    assert not polling.is_silenced


def test_jobs_make_more_requests_and_nothing_makes_fewer() -> None:
    """By the tenth, rounded up, to the ceiling; half as many once it was too much, even if a job came of it."""
    polling = Polling(0.0, request_concurrency=3)
    limits = []
    for status in [201, 201, 201, 201, 201, 201, 201, 201, 201, 201, 201, 201, 201]:
        ask(polling, 0.0, status=status)
        limits.append(polling.limit)
    assert limits == [2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3]
    ask(polling, 0.0, status=201, is_retried=True)
    assert polling.limit == 2
    ask(polling, 0.0, status=429)
    assert polling.limit == 1


@given(st.lists(st.tuples(st.sampled_from([201, 204, 403, 429, 503, None]), st.booleans())), st.integers(1, 9))
def test_there_is_always_a_next_request(answers: list[tuple[int | None, bool]], ceiling: int) -> None:
    """Whatever was answered: within the ceiling, and at a time that comes."""
    polling, now = Polling(0.0, request_concurrency=ceiling), 0.0
    for status, is_repeated in answers:
        assert polling.wake is not None
        now = max(now, polling.wake)
        ask(polling, now, status=status, is_retried=is_repeated)
        assert 1 <= polling.limit <= ceiling
    assert polling.wake is not None
    assert polling.wake <= now + 3600.0


def test_a_request_that_we_end_counts_no_more() -> None:
    """As when the runner shuts down, or somebody else needs the slot."""
    polling = Polling(0.0)
    polling.asked()
    polling.cancelled()
    assert polling.may_ask(0.0)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 512, 599])
def test_busy_answers_are_repeated(status: int) -> None:
    """Those that GitLab Runner repeats."""
    assert is_retried(status)


@pytest.mark.parametrize("status", [200, 201, 204, 400, 401, 403, 404, 409, 416, 501, 505, 511])
def test_other_answers_are_not(status: int) -> None:
    """They would be the same again."""
    assert not is_retried(status)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"RateLimit-ResetTime": "Mon, 23 Nov 2026 03:00:40 GMT", "Retry-After": "5"}, 40.0),
        ({"RateLimit-ResetTime": "Mon, 23 Nov 2026 03:00:40 GMT", "Date": "Mon, 23 Nov 2026 03:00:30 GMT"}, 10.0),
        ({"RateLimit-ResetTime": "Mon, 23 Nov 2026 02:00:40 GMT"}, 0.1),
        ({"RateLimit-ResetTime": "Mon, 23 Nov 2099 02:00:40 GMT"}, 3600.0),
        ({"RateLimit-ResetTime": "soon", "Retry-After": "5"}, 5.0),
        ({"Retry-After": "99999"}, 3600.0),
        ({"Retry-After": "-5"}, 0.1),
        ({"Retry-After": "Mon, 23 Nov 2026 03:00:40 GMT"}, 0.1),
        ({"Retry-After": "1" * 5000}, 0.1),
        ({}, 0.1),
    ],
)
def test_the_coordinator_says_how_long_to_wait(headers: dict[str, str], seconds: float) -> None:
    """A wrong clock of ours does not matter if it says what time it has; and nobody makes us wait for ever."""
    assert seconds_to_wait(1, headers, wall=1795402800.0, random=1.0) == pytest.approx(seconds)


@given(attempt=st.integers(1, 100), random=st.floats(0, 1))
def test_without_a_word_the_wait_grows(attempt: int, random: float) -> None:
    """From a tenth of a second to a minute, with at least half of it."""
    whole = min(0.1 * 2.0 ** (attempt - 1), 60.0)
    found = seconds_to_wait(attempt, {}, wall=math.nan, random=random)
    assert whole / 2 <= found <= whole
