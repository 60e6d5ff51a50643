"""Whose limit it is that no more jobs are asked for: one sentence, whatever the numbers."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from taskscaler_gitlab._limits import Facts, describe

IDLE = Facts(url="http://gitlab.test", jobs=0, requests=0, concurrent=4, limit=0, request_limit=1)
ALL = st.builds(
    Facts,
    url=st.just("http://gitlab.test"),
    jobs=st.integers(0, 9),
    requests=st.integers(0, 9),
    concurrent=st.integers(1, 9),
    limit=st.integers(0, 9),
    request_limit=st.integers(1, 9),
    waits_for_slot=st.booleans(),
    is_draining=st.booleans(),
    trouble=st.sampled_from(["", "no answer"]),
    silent_for=st.floats(0, 4000),
)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (IDLE, "0 of at most 4 jobs; the next request is due in a moment"),
        (evolve(IDLE, requests=1), "a request is open, with a slot reserved (at most 1 at once for now)"),
        (evolve(IDLE, requests=2), "2 requests are open, each with a slot reserved"),
        (evolve(IDLE, jobs=4), "4 of at most 4 jobs; no more are asked for, because of concurrent = 4"),
        (evolve(IDLE, jobs=2, limit=2), "because of limit = 2 in [[runners]]"),
        (evolve(IDLE, trouble="503"), "GitLab does not answer as it should, and requests are repeated (503)"),
        (evolve(IDLE, waits_for_slot=True), "until the fleet has a slot to reserve"),
        (evolve(IDLE, is_draining=True), "because the daemon is ending"),
        (evolve(IDLE, silent_for=60.0), "three times in a row, it is asked again in 1m"),
    ],
)
def test_it_says_whose_limit_it_is(facts: Facts, said: str) -> None:
    """The first of all reasons that holds."""
    assert said in describe(facts)


@given(ALL)
def test_there_is_always_one_sentence(facts: Facts) -> None:
    """On one line; and with room for one more job, nobody's limit is blamed."""
    sentence = describe(facts)
    assert sentence.startswith(f"http://gitlab.test: {facts.jobs} of at most ")
    assert "\n" not in sentence
    assert not (facts.has_room and "because of" in sentence)


@given(ALL)
def test_requests_never_bring_more_jobs_than_allowed(facts: Facts) -> None:
    """Each open one may bring a job."""
    if facts.has_room:
        assert facts.jobs + facts.requests + 1 <= min(facts.concurrent, facts.limit or facts.concurrent)
