"""Stories of a daemon, its clients and its batches, whoever of them is killed."""

from functools import cache
from math import inf

import pytest
from attrs import evolve

from taskscaler.batch._log_reader import LogReader
from taskscaler.serve._holders import Holders
from taskscaler.serve._kept import Due, Kept
from tests.chaos.keeping import Leaver
from tests.chaos.served import Backend, Outcome, Program, Served, Submitted, play_served, served_of
from tests.chaos.story import CrashPoint
from tests.chaos.test_crash_points import some_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("quiet"),
    # who is killed closes no generator, and httpx has five for each answer
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"),
]

CHUNKS, FEW, MANY = 4, 2, 20
"""Stories are played in so many parts; each has so many in the suite, and with ``--full``."""

POINTS, REPLACED_POINTS, KEPT_POINTS = 2, 3, 3
"""Commits at which the daemon is killed in the suite; ``--full`` takes all, of the longest script every other one on
each backend."""

SCRIPT = Served(
    seed=1,
    programs=(
        Program(name="script", at=0.0, works=(4.0, 6.0, 3.0)),
        Program(name="reserves", at=1.0, works=(5.0,), reserves=True),
        Program(name="replaces", at=2.0, works=(5.0,), replaces=True),
        Program(name="killed", at=0.5, works=(60.0,), dies_at=20.0),
    ),
    batches=(
        Submitted(name="first", at=0.0, jobs=(6.0, 4.0, 8.0)),
        Submitted(name="second", at=8.0, jobs=(5.0, 5.0)),
        Submitted(name="cancelled", at=3.0, jobs=(9.0, 40.0), cancelled_at=25.0),
    ),
    kills=(17.0,),
    lost_at=(12.0,),
)
"""Three batches and some programs share a daemon that is killed, and an instance vanishes."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_job_of_the_living_ends_once(chunk: int, full: bool) -> None:  # noqa: FBT001  (a parameter of pytest's)
    """No slot stays held, no instance is left, and who follows a log sees all of it once."""
    count = MANY if full else FEW
    wrong, lives, joined = {}, 0, 0
    for seed in range(chunk * MANY, chunk * MANY + count):
        outcome = play_served(served_of(seed))
        lives, joined = lives + outcome.lives, joined + outcome.joined
        if outcome.wrong:
            wrong[seed] = outcome.wrong[0]
    assert wrong == {}
    assert lives > count, "no daemon was killed"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_daemon_killed_at_any_write_of_its_journal(
    backend: Backend,
    after: bool,  # noqa: FBT001  (a parameter of pytest's)
    full: bool,  # noqa: FBT001  (the same)
) -> None:
    """The next one has the same leases and batches; it is killed once more at a moment of the script's."""
    there = unharmed(backend).places["commit"]
    wrong = {}
    for number in range(1 + (backend == "trio"), there + 1, 2) if full else some_of(there, POINTS):
        crash = CrashPoint(place="commit", number=number, after=after)
        outcome = play_served(evolve(SCRIPT, backend=backend, crash=crash))
        if outcome.wrong:
            wrong[f"{number} of {there}"] = outcome.wrong[0]
    assert wrong == {}


REPLACED = Served(
    seed=2,
    programs=(
        Program(name="asleep", at=0.0, works=(5.0,), replaces=True, sleeps=True),
        Program(name="awake", at=0.5, works=(5.0,), replaces=True),
        Program(name="other", at=1.0, works=(30.0,)),
    ),
    batches=(),
    most=2,
)
"""Two programs have a lease replaced, one of them while it sleeps; slots are scarce."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_lease_is_replaced_whatever_write_its_daemon_dies_at(
    backend: Backend,
    after: bool,  # noqa: FBT001  (a parameter of pytest's)
    full: bool,  # noqa: FBT001  (the same)
) -> None:
    """Asleep or not: who has asked gets the other slot from the next daemon, also if the old one is back already."""
    calm = play_served(evolve(REPLACED, backend=backend))
    assert calm.wrong == []
    wrong = {}
    there = calm.places["commit"]
    for number in range(1, there + 1) if full else some_of(there, REPLACED_POINTS):
        crash = CrashPoint(place="commit", number=number, after=after)
        outcome = play_served(evolve(REPLACED, backend=backend, crash=crash))
        if outcome.wrong:
            wrong[number] = outcome.wrong[0]
    assert wrong == {}


KEPT = Served(
    seed=3,
    programs=(Program(name="other", at=4.0, works=(3.0, 3.0, 3.0)),),
    batches=(),
    leavers=(
        Leaver(name="returns", at=0.0, seconds=3.0, ttl=60.0, runs=8.0, returns_at=15.0),
        Leaver(name="is away", at=0.5, seconds=2.0, ttl=15.0, idle_timeout=4.0, runs=100.0),
        Leaver(name="killed", at=1.0, seconds=30.0, ttl=5.0, dies_at=6.0),
        Leaver(name="stopped", at=1.5, seconds=2.0, ttl=60.0, runs=60.0, stopped_at=12.0),
    ),
    most=3,
)
"""Leases are kept whose clients come back, stay away, are killed or are stopped; slots are scarce."""


@pytest.mark.parametrize("place", ["commit", "keep"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_kept_leases_whatever_write_their_daemon_dies_at(backend: Backend, place: str, full: bool) -> None:  # noqa: FBT001  (a parameter of pytest's)
    """They go to nobody else before their bound, with nothing left in them, and to whoever is free at its end."""
    calm = play_served(evolve(KEPT, backend=backend))
    assert calm.wrong == []
    assert (calm.places["commit"] > 10, calm.places["keep"] > 10) == (True, True)
    wrong = {}
    points = [
        CrashPoint(place=place, number=number + 1, after=after)
        for number in range(calm.places[place])
        for after in (False, True)
    ]
    for crash in points if full else points[3 :: len(points) // KEPT_POINTS]:
        outcome = play_served(evolve(KEPT, backend=backend, crash=crash))
        if outcome.wrong:
            wrong[crash] = outcome.wrong[0]
    assert wrong == {}


def test_who_hands_out_what_is_kept_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that ends the leases of whoever is gone, whatever it has promised; and one that ends none."""
    monkeypatch.setattr(Kept, "next_at", property(lambda kept: kept.left_at or inf))
    monkeypatch.setattr(Kept, "due", lambda kept, _: Due.NOTHING if kept.left_at is None else Due.END)
    assert any("too early" in each or "works in" in each for each in play_served(KEPT).wrong)
    monkeypatch.setattr(Kept, "next_at", property(lambda _: inf))
    monkeypatch.setattr(Kept, "due", lambda *_: Due.NOTHING)
    assert any("is kept for ever" in each for each in play_served(KEPT).wrong)


@cache
def unharmed(backend: Backend) -> Outcome:
    """What comes of the script without that."""
    outcome = play_served(evolve(SCRIPT, backend=backend))
    assert outcome.wrong == []
    assert outcome.lives == 2
    assert outcome.joined, "no job outlived a daemon"
    return outcome


def test_who_keeps_what_the_dead_held_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was killed gives its slot back."""
    monkeypatch.setattr(Holders, "_give_back", lambda _, left: list(left))
    assert any("are acquired" in each for each in play_served(evolve(SCRIPT, kills=())).wrong)


def test_who_shows_a_line_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that begins a log again, for a client that has a part of it."""
    again = classmethod(lambda cls, path, whole: cls.at_last_lines(path, whole))
    monkeypatch.setattr(LogReader, "after", again)
    said = play_served(evolve(SCRIPT, lost_at=(), kills=(8.0,))).wrong
    assert any("who followed a log of first" in each for each in said), said
