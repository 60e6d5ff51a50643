"""A manager killed wherever it stores or asks for something: the next one finds everything, and does no harm."""

from collections.abc import Iterator, Sequence
from functools import cache

import pytest
from attrs import evolve

from fleeting import Capability, Preexisting
from taskscaler import Policy
from taskscaler._types import PoolSettings
from tests.chaos.play import Result, play
from tests.chaos.story import CLEANUP_COMMAND, READY_COMMAND, CrashPoint, Job, Story, Trouble, Wish

PLACES = ("commit", "init", "update", "increase", "decrease", "connect_info", "heartbeat", "dial", "withdraw")

FEW = 4
"""Points of a place at which a manager is killed in the suite, of up to 69: of each script before two of them, and
after the others. ``pytest --full`` takes all, before and after."""

SCRIPT = Story(
    seed=1,
    pool=PoolSettings(
        name="pool",
        capacity_per_instance=2,
        max_use_count=3,
        max_instances=3,
        update_interval=20.0,
        update_interval_when_expecting=2.0,
        deletion_retry_interval=10.0,
        heartbeat_interval=20.0,
        intent_timeout=40.0,
        instance_ready_timeout=60.0,
        backoff_initial=1.0,
        backoff_cap=5.0,
        preexisting=Preexisting.REFUSE,
        instance_ready_command=READY_COMMAND,
    ),
    policy=Policy(idle_time=10.0),
    jobs=(
        Job(key="first", at=0, duration=12.0),
        Job(key="second", at=0, duration=14.0, wish=Wish.DIAL),
        Job(key="third", at=1, duration=8.0),
        Job(key="reserved", at=3, duration=5.0, wish=Wish.RESERVE, patience=4.0),
        Job(key="unwanted", at=3, duration=0.0, wish=Wish.UNRESERVE, patience=9.0),
        Job(key="cancelled", at=9, duration=60.0, wish=Wish.CANCEL, patience=20.0),
        *(Job(key=f"burst-{number}", at=30, duration=6.0) for number in range(8)),
        *(Job(key=f"unserved-{number}", at=80, duration=5.0, wish=Wish.CANCEL, patience=9.0) for number in range(3)),
        Job(key="late", at=160, duration=3.0, wish=Wish.DIAL),
    ),
    troubles=(
        Trouble(at=16.0, kind="instance vanishes, busy"),
        Trouble(at=41.0, kind="increase unknown, done"),
        Trouble(at=79.0, kind="stock-out"),
    ),
    cloud={
        "capabilities": frozenset({Capability.NAMED_CREATE, Capability.WITHDRAW}),
        "boot_time": 3.0,
        "appear_after": 1.0,
        "delete_time": 2.0,
        "latency": {
            "update": 0.1,
            "increase": 0.5,
            "decrease": 0.5,
            "withdraw": 0.5,
            "connect_info": 0.1,
            "dial": 0.1,
        },
    },
    commit_time=0.01,
    least_faults=0,
)
"""Growth, work, worn-out instances, one that is lost, an unknown outcome, reservations, shrinking to nothing, and
requests that are taken back because those who waited for them have gone."""

WORN = evolve(
    SCRIPT,
    pool=evolve(
        SCRIPT.pool,
        max_instance_age=30.0,
        instance_cleanup_command=CLEANUP_COMMAND,
        heartbeat_on_acquire=True,
    ),
    troubles=(*SCRIPT.troubles, Trouble(at=33.0, kind="clean-up fails")),
)
"""The same where instances grow old, are cleaned between jobs, and have to show that they live before each."""

LASTING = {
    "first": 0.0,
    "second": 2.0,
    "third": 30.0,
    **{f"burst-{number}": 30.0 * (number % 2) for number in range(4)},
}
"""Jobs with persistent leases, and when somebody comes back for them: in time, or not."""


def lasting(script: Story) -> Story:
    """The same, where jobs outlive their managers."""
    jobs = tuple(evolve(job, returns=LASTING.get(job.key)) for job in script.jobs)
    return evolve(script, jobs=jobs, reattach_timeout=10.0)


def outlived(script: Story) -> Story:
    """The same, where a manager is dead already, and the next one finds detached leases, whose owners come back."""
    script = lasting(script)
    return evolve(script, troubles=(Trouble(at=9.0, kind="crash while jobs ran"), *script.troubles))


SCRIPTS = {
    f"{backend}-{'named' if capable else 'unnamed'}": evolve(
        SCRIPT, backend=backend, cloud=SCRIPT.cloud if capable else {**SCRIPT.cloud, "capabilities": frozenset()}
    )
    for backend in ("asyncio", "trio")
    for capable in (True, False)
} | {
    "worn-kept": evolve(WORN, keep_used=True),
    "worn-replaced": evolve(WORN, keep_used=False),
    "lasting": lasting(SCRIPT),
    "lasting-worn": lasting(evolve(WORN, backend="trio")),
    "lasting-outlived": outlived(SCRIPT),
    "lasting-outlived-worn": outlived(evolve(WORN, backend="trio")),
}
"""On both backends, in clouds that can do something and in such that cannot; after a crash what wears is used on, or
replaced, and jobs begin again, or go on, over one crash or two."""


def places_of(script: Story) -> list[str]:
    """Where its managers come by."""
    return [place for place in PLACES if script.cloud["capabilities"] or place != "withdraw"]


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quiet")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_nobody_is_killed(name: str) -> None:
    """The script comes by all places, and nothing is wrong with it."""
    result = unharmed(name)
    assert result.violations == []
    assert result.jobs == len(SCRIPTS[name].jobs)
    assert [place for place in PLACES if result.places[place]] == places_of(SCRIPTS[name])


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name, script in SCRIPTS.items() for place in places_of(script)]
)
def test_killed_at(name: str, place: str, after: bool, full: bool) -> None:  # noqa: FBT001  (parameters of pytest's)
    """Killed before or after a commit or a call: nothing leaks, nothing is lost, no limit is passed.

    Where instances wear, no job is ever put on a slot that was used and not cleaned, on an instance too old, or on a
    dead one.
    """
    there = unharmed(name).places[place]
    wrong = {}
    for number in range(1, there + 1) if full else every_other(there, after=after, first=[*SCRIPTS].index(name) % 2):
        result = play(evolve(SCRIPTS[name], crash=CrashPoint(place=place, number=number, after=after)))
        if result.violations:
            wrong[f"{number} of {there}"] = result.violations[0]
    assert wrong == {}


def test_some_points_are_the_first_the_last_and_some_between() -> None:
    """Always the same ones, as far apart as can be; all, where there are no more."""
    assert [list(some_of(number, 4)) for number in (0, 1, 3, 4, 5, 10, 69)] == [
        [],
        [1],
        [1, 2, 3],
        [1, 2, 3, 4],
        [1, 2, 3, 5],
        [1, 4, 7, 10],
        [1, 23, 46, 69],
    ]


def test_a_script_dies_before_some_points_and_after_the_others() -> None:
    """The next script dies there the other way round; none leaves a place out."""
    assert every_other(69, after=False, first=0) == every_other(69, after=True, first=1) == [1, 46]
    assert every_other(69, after=True, first=0) == every_other(69, after=False, first=1) == [23, 69]
    assert [every_other(1, after=after, first=0) for after in (False, True)] == [[1], [1]]


def every_other(there: int, *, after: bool, first: int) -> Sequence[int]:
    """Half of the few points of a place, so that killing before and after them meets all."""
    points = [*some_of(there, FEW)]
    return points[(first + after) % 2 :: 2] or points


def some_of(number: int, most: int) -> Iterator[int]:
    """At most so many of the numbers from 1 to *number*: the first, the last, and an even sample of those between."""
    if number <= most:
        yield from range(1, number + 1)
    else:
        yield from (1 + step * (number - 1) // (most - 1) for step in range(most))


@cache  # a worker plays it once for all points
def unharmed(name: str) -> Result:
    """What comes of the script if nobody is killed."""
    return play(SCRIPTS[name])
