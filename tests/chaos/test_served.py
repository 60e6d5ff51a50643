"""Stories of a daemon, its clients and its batches, whoever of them is killed."""

from functools import cache

import pytest
from attrs import evolve

from taskscaler.batch._log_reader import LogReader
from taskscaler.serve._holders import Holders
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

CHUNKS, FEW, MANY = 4, 2, 30
"""Stories are played in so many parts; each has so many in the suite, and with ``--full``."""

POINTS = 2
"""Commits at which the daemon is killed in the suite; ``--full`` takes all."""

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
    for number in range(1, there + 1) if full else some_of(there, POINTS):
        crash = CrashPoint(place="commit", number=number, after=after)
        outcome = play_served(evolve(SCRIPT, backend=backend, crash=crash))
        if outcome.wrong:
            wrong[f"{number} of {there}"] = outcome.wrong[0]
    assert wrong == {}


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
