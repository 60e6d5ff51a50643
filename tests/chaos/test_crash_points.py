"""A manager killed wherever it stores or asks for something: the next one finds everything, and does no harm."""

import pytest
from attrs import evolve

from fleeting import Capability, Preexisting
from taskscaler import Policy
from taskscaler._types import PoolSettings
from tests.chaos.play import play
from tests.chaos.story import CLEANUP_COMMAND, READY_COMMAND, CrashPoint, Job, Story, Trouble, Wish

PLACES = ("commit", "init", "update", "increase", "decrease", "connect_info", "heartbeat", "dial", "withdraw")

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


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("capable", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_killed_at_every_point(backend: str, after: bool, capable: bool) -> None:  # noqa: FBT001
    """Killed before or after each commit and each call: nothing leaks, nothing is lost, no limit is passed."""
    cloud = SCRIPT.cloud if capable else {**SCRIPT.cloud, "capabilities": frozenset()}
    check_every_point(evolve(SCRIPT, backend=backend, cloud=cloud), after=after)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("keep_used", [True, False], ids=["kept", "replaced"])
def test_killed_at_every_point_where_instances_wear(after: bool, keep_used: bool) -> None:  # noqa: FBT001
    """No job is ever put on a slot that was used and not cleaned, on an instance too old, or on a dead one."""
    check_every_point(evolve(WORN, keep_used=keep_used), after=after)


def check_every_point(script: Story, *, after: bool) -> None:
    """Play it as it is, then once for each place that its managers come by."""
    whole = play(script)
    assert whole.violations == []
    assert whole.jobs == len(script.jobs)
    unmet = {place for place in PLACES if not whole.places[place]}
    assert unmet == (set() if script.cloud["capabilities"] else {"withdraw"})
    points = [
        CrashPoint(place=place, number=number, after=after)
        for place in PLACES
        for number in range(1, whole.places[place] + 1)
    ]
    wrong = {}
    for point in points:
        result = play(evolve(script, crash=point))
        if result.violations:
            wrong[f"{place_of(point)} of {whole.places[point.place]}"] = result.violations[0]
    assert wrong == {}


def place_of(point: CrashPoint) -> str:
    """In words."""
    return f"{'after' if point.after else 'before'} {point.place} {point.number}"
