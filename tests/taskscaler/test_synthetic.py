"""Jobs that are made up, and distributions as people write them."""

from collections import Counter
from random import Random
from statistics import mean

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from taskscaler.simulation import (
    Constant,
    Distribution,
    Empirical,
    Exponential,
    LogNormal,
    Synthetic,
    Uniform,
    parse_distribution,
    parse_synthetic,
)

DAY = 86400.0


def test_synthetic_jobs_come_by_day_and_week() -> None:
    """Most by day, fewest by night, few at the weekend; as many as were asked for, in order, within the time."""
    made = Synthetic(jobs=20_000, over=14 * DAY, daily=0.8, weekend=0.25, duration=Exponential(60.0)).make(0)
    assert len(made) == 20_000
    begins = Synthetic().begins
    assert begins <= made.begins <= made.ends <= begins + 14 * DAY
    assert list(made.submits) == sorted(made.submits)
    by_hour = Counter(int(at % DAY // 3600) for at in made.submits)
    assert by_hour[14] + by_hour[15] > 5 * (by_hour[2] + by_hour[3])
    by_day = Counter(int((at - begins) // DAY) % 7 for at in made.submits)
    assert 0.2 < (by_day[5] + by_day[6]) / (by_day[0] + by_day[1]) < 0.3
    assert mean(made.durations) == pytest.approx(60, rel=0.05)


def test_no_job_is_longer_than_a_year() -> None:
    """Else a simulation of it would take for ever."""
    with pytest.raises(ValueError, match="duration: a job would run for 1000d, expected at most a year"):
        Synthetic(jobs=1, duration=Constant(1000 * DAY)).make(0)


def test_bursts() -> None:
    """A share of the jobs comes many at once."""
    made = Synthetic(jobs=1000, bursts=0.5, burst_jobs=50).make(3)
    assert len(made) == 1000
    sizes = Counter(made.submits).values()
    assert sum(size for size in sizes if size >= 50) == 500


def test_a_seed_makes_the_same_jobs() -> None:
    """And another seed makes others; so do all else that is changed no more than that."""
    synthetic = Synthetic(jobs=100, duration=Exponential(60.0))
    assert synthetic.make(1).submits == synthetic.make(1).submits
    assert synthetic.make(1).submits != synthetic.make(2).submits
    assert synthetic.make(1).durations == evolve(synthetic, daily=1.0).make(1).durations


def test_synthetic_as_people_write_it() -> None:
    """Each key with its value; a comma within a distribution separates nothing."""
    text = "jobs=100,over=24h,duration=lognormal(60s, 5m),daily=0.5,weekend=0,bursts=0.1,burst_jobs=5,begins=2026-01-05"
    assert parse_synthetic(text) == Synthetic(
        jobs=100,
        over=DAY,
        duration=LogNormal(60.0, 300.0),
        daily=0.5,
        weekend=0.0,
        bursts=0.1,
        burst_jobs=5,
        begins=1767571200.0,
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("job=5", "found 'job=5'; did you mean `jobs`?"),
        ("", "expected key=value pairs such as"),
        ("wild=5", "found 'wild=5'; the keys are jobs, over"),
        ("jobs=five", "jobs: expected a whole number, found 'five'"),
        ("jobs=0", "'jobs' must be >= 1"),
        ("jobs=99999999999", "'jobs' must be <= 20000000"),
        ("daily=2", "'daily' must be <= 1"),
        ("daily=nan", "daily: expected a number such as 0.5, found 'nan'"),
        ("over=10", 'write "10s"'),
        ("over=48h,weekend=0,begins=2026-01-03", "no job comes at a weekend"),
        ("begins=soon", "expected a time such as"),
        ("duration=60", "duration: expected 60s, 40s..90s"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, says: str) -> None:
    """With what may stand there."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (its words are looked at)
        parse_synthetic(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "distribution"),
    [
        ("90s", Constant(90.0)),
        ("0", Constant(0.0)),
        (" 40s .. 1m30s ", Uniform(40.0, 90.0)),
        ("exp(6m)", Exponential(360.0)),
        ("lognormal(1m,2m)", LogNormal(60.0, 120.0)),
    ],
)
def test_distributions_as_people_write_them(text: str, distribution: Distribution) -> None:
    """What is read is written in the same way."""
    read = parse_distribution(text)
    assert read == distribution
    assert parse_distribution(str(read)) == read


@pytest.mark.parametrize("text", ["60", "90s..40s", "exp()", "exp(1s,2s)", "lognormal(2m,1m)", "normal(1s)", "-5s", ""])
def test_what_is_no_distribution_is_refused(text: str) -> None:
    """With all forms that there are."""
    with pytest.raises(ValueError, match=r"expected 60s, 40s\.\.90s .* or lognormal"):
        parse_distribution(text)


@given(
    st.one_of(
        st.builds(Exponential, st.floats(0, 1e12)),
        st.builds(LogNormal, st.just(60.0), st.floats(60, 1e12)),
        st.builds(Uniform, st.floats(0, 10), st.floats(10, 1e12)),
        st.builds(Empirical.of, st.lists(st.floats(0, 1e12), min_size=1)),
    ),
    st.integers(),
)
def test_samples(distribution: Distribution, seed: int) -> None:
    """They are whole microseconds, not negative, and no age of the world long."""
    sample = distribution.sample(Random(seed))
    assert 0 <= sample <= 10 * 365 * DAY
    assert sample == round(sample, 6)


def test_what_was_measured_comes_again() -> None:
    """Quantiles of the samples are those of the values, of which a thousand are kept."""
    measured = Empirical.of([float(each) for each in range(5001)])
    assert len(measured.values) == 1000
    random = Random(0)
    samples = sorted(measured.sample(random) for _ in range(2000))
    assert samples[1000] == pytest.approx(2500, rel=0.05)
    assert measured.quantile(0.5) == pytest.approx(2500, rel=0.01)
    assert (measured.values[0], measured.values[-1]) == (0, 5000)
    assert Empirical.of([7.0]).sample(random) == 7.0
