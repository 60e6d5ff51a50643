"""Bad arguments in programs: each is refused where it is given, as a TypeError or a ValueError in plain words."""

import math
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest

from fleeting import ConnectorConfig, LoopClock, PlanConfig, ScaleThrottle
from fleeting.connectors.local import LocalConnection
from fleeting.testing import FakeCloud, FakeGroup
from taskscaler import Policy, Pool, Taskscaler, sync
from taskscaler.batch import Job, run_batch
from taskscaler.executors import JobSpec
from taskscaler.futures import Call, FleetExecutor
from tests.golden import Golden

GROUP: Any = FakeGroup(FakeCloud())
SPEC = JobSpec(name="a", script="true")
A_JOB = Job(spec=SPEC)


def pool(**settings: Any) -> Pool:  # noqa: ANN401  (whatever somebody may try)
    """A pool with these settings."""
    return Pool(GROUP, **settings)


def scaler(**settings: Any) -> Taskscaler:  # noqa: ANN401  (as above)
    """A scaler with these settings."""
    return Taskscaler(Pool(GROUP), **settings)


def executor(**settings: Any) -> FleetExecutor:  # noqa: ANN401  (as above)
    """An executor of a scaler that is not open, which is found only after the arguments."""
    return FleetExecutor(sync.Taskscaler(Pool(GROUP)), **settings)


def spec(**settings: Any) -> JobSpec:  # noqa: ANN401  (as above)
    """A job's specification."""
    return JobSpec(**{"name": "a", "script": "true", **settings})


def job(**settings: Any) -> Job:  # noqa: ANN401  (as above)
    """A job."""
    return Job(**{"spec": SPEC, **settings})


def run(function: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **settings: Any) -> None:  # noqa: ANN401  (as above)
    """Call and await a function."""

    async def call() -> None:
        await function(*args, **settings)

    anyio.run(call)


def batch(**settings: Any) -> None:  # noqa: ANN401  (as above)
    """Run a batch."""
    given = {"jobs": [A_JOB], "executors": {"instance": None}, "output": Path("/nowhere/results")}

    async def call() -> None:
        anything: Any = {"scaler": None, "clock": LoopClock(), **given, **settings}
        await run_batch(**anything)

    anyio.run(call)


async def enter_by_async_with() -> None:
    """Enter the scaler for threads as the other one is entered."""
    async with sync.Taskscaler(Pool(GROUP)):
        pass


def enter_by_with() -> None:
    """Enter the scaler for coroutines as the other one is entered."""
    with Taskscaler(Pool(GROUP)):
        pass


def command(command: Any = "true", **settings: Any) -> None:  # noqa: ANN401  (as above)
    """Run a command over a connection."""
    run(lambda: LocalConnection.__new__(LocalConnection).run(command, **settings))


BAD: dict[str, Callable[[], object]] = {
    "policy: a count with a fraction": lambda: Policy(idle_count=1.5),  # type: ignore[arg-type]
    "policy: a count that is a boolean": lambda: Policy(idle_count=True),
    "policy: a count that is a string": lambda: Policy(idle_count="3"),  # type: ignore[arg-type]
    "policy: a negative count": lambda: Policy(idle_count=-1),
    "policy: seconds as in a file": lambda: Policy(idle_time="20m"),  # type: ignore[arg-type]
    "policy: seconds that are a boolean": lambda: Policy(idle_time=True),
    "policy: seconds without an end": lambda: Policy(idle_time=math.inf),
    "policy: seconds that are no number": lambda: Policy(idle_time=math.nan),
    "policy: negative seconds": lambda: Policy(idle_time=-1.0),
    "policy: a factor as a string": lambda: Policy(scale_factor="1.5"),  # type: ignore[arg-type]
    "policy: an infinite factor": lambda: Policy(scale_factor=math.inf),
    "policy: a mode as a word": lambda: Policy(preemptive_mode="yes"),  # type: ignore[arg-type]
    "policy: one period": lambda: Policy(periods="* 8-15 * * mon-fri"),  # type: ignore[arg-type]
    "policy: a period that is a number": lambda: Policy(periods=(8,)),  # type: ignore[arg-type]
    "policy: no period": lambda: Policy(periods=()),
    "policy: an hour too many": lambda: Policy(periods=("* 25 * * *",)),
    "policy: an unknown time zone": lambda: Policy(timezone="Berlin"),
    "policy: a time zone that is none": lambda: Policy(timezone=None),  # type: ignore[arg-type]
    "pool: a plugin's name": lambda: Pool("local"),  # type: ignore[arg-type]
    "pool: the class of a group": lambda: Pool(dict),  # type: ignore[arg-type]
    "pool: jobs at once with a fraction": lambda: pool(capacity_per_instance=2.0),
    "pool: no jobs at once": lambda: pool(capacity_per_instance=0),
    "pool: a ceiling with a fraction": lambda: pool(max_instances=1e3),
    "pool: a negative ceiling": lambda: pool(max_instances=-1),
    "pool: a name that is a number": lambda: pool(name=1),
    "pool: a command in several strings": lambda: pool(instance_ready_command=["cloud-init", "status"]),
    "pool: a time-out as in a file": lambda: pool(instance_cleanup_timeout="1m"),
    "pool: no time to clean": lambda: pool(instance_cleanup_timeout=0.0),
    "pool: an age below zero": lambda: pool(max_instance_age=-3600),
    "pool: a switch that is a number": lambda: pool(heartbeat_on_acquire=1),
    "pool: an unknown word": lambda: pool(preexisting="adpot"),
    "pool: a table as in a file": lambda: pool(connector_config={"password": "s3cret"}),
    "pool: a throttle that is a number": lambda: pool(scale_throttle=5),
    "pool: a hook that is called already": lambda: pool(ready_hook=True),
    "pool: negative retries": lambda: pool(shutdown_deletion_retries=-1),
    "throttle: nothing gets through": lambda: ScaleThrottle(limit=0),
    "throttle: no number": lambda: ScaleThrottle(limit=math.nan),
    "throttle: a burst of nothing": lambda: ScaleThrottle(burst=0),
    "plan: an interval of nothing": lambda: PlanConfig(update_interval=0),
    "plan: a threshold of nothing": lambda: PlanConfig(failure_threshold=0),
    "connector: a port as a string": lambda: ConnectorConfig(protocol_port="22"),  # type: ignore[arg-type]
    "connector: a port beyond all": lambda: ConnectorConfig(protocol_port=65536),
    "connector: a password that is a number": lambda: ConnectorConfig(password=12345),  # type: ignore[arg-type]
    "connector: no time to dial": lambda: ConnectorConfig(timeout=0),
    "connector: one silence": lambda: ConnectorConfig(keepalive_misses=1),
    "connector: a fingerprint in words": lambda: ConnectorConfig(certificate="the usual one"),
    "scaler: a group": lambda: Taskscaler(GROUP),
    "scaler: no pool": lambda: Taskscaler([]),
    "scaler: two pools with one name": lambda: Taskscaler([Pool(GROUP), Pool(GROUP)]),
    "scaler: a group among pools": lambda: Taskscaler([Pool(GROUP), GROUP]),
    "scaler: one policy": lambda: scaler(policies=Policy()),
    "scaler: policies as in a file": lambda: scaler(policies=[{"idle_count": 1}]),
    "scaler: a ceiling with a fraction": lambda: scaler(max_instances=2.5),
    "scaler: a negative ceiling": lambda: scaler(max_instances=-1),
    "scaler: a wait as in a file": lambda: scaler(acquire_timeout="15m"),
    "scaler: a time to reattach as in a file": lambda: scaler(reattach_timeout="10m"),
    "scaler: a negative wait": lambda: scaler(acquire_timeout=-1),
    "scaler: a wait that is no number": lambda: scaler(acquire_timeout=math.nan),
    "scaler: a switch as a word": lambda: scaler(delete_instances_on_shutdown="no"),
    "scaler: an observer that is no function": lambda: scaler(observers=["webhook"]),
    "scaler: one that looks on with a journal": lambda: scaler(observe_only=True, journal=object()),
    "scaler: entered by with": enter_by_with,
    "scaler: the one for threads entered by async with": lambda: anyio.run(enter_by_async_with),
    "acquire: a key that is a number": lambda: run(scaler().acquire_lease, 7),
    "acquire: a wait as in a file": lambda: run(scaler().acquire_lease, "a", timeout="5m"),
    "acquire: a negative wait": lambda: run(scaler().acquire_lease, "a", timeout=-5),
    "acquire: a duration that is no number": lambda: run(scaler().acquire_lease, "a", expected_duration=math.nan),
    "reserve: a key that is a job": lambda: run(scaler().reserve, A_JOB),
    "resume: a wait as a boolean": lambda: run(scaler().resume, "a", timeout=True),
    "cordon: an instance that is none": lambda: run(scaler().cordon, None),
    "retain: a reason that is none": lambda: run(scaler().retain, "i-1", None),
    "drain: a negative wait": lambda: run(scaler().drain, -1.0),
    "executor: a pool": lambda: FleetExecutor(Pool(GROUP)),  # type: ignore[arg-type]
    "executor: the scaler for coroutines": lambda: FleetExecutor(scaler()),  # type: ignore[arg-type]
    "executor: negative retries": lambda: executor(retries=-1),
    "executor: retries with a fraction": lambda: executor(retries=1.5),
    "executor: a wait as in a file": lambda: executor(acquire_timeout="1h"),
    "executor: a place that is a number": lambda: executor(artifacts=3),
    "job: a name that is a path": lambda: spec(name="../a"),
    "job: a script that is a list": lambda: spec(script=["make", "test"]),
    "job: a script with half a character": lambda: spec(script="echo \ud800"),
    "job: a variable with half a character": lambda: spec(env={"TOKEN": "\ud800"}),
    "job: a variable that is a number": lambda: spec(env={"A": 3}),
    "job: variables as a list": lambda: spec(env=["A=3"]),
    "job: a file by its name": lambda: spec(files={"a.txt": "a.txt"}),
    "job: one artifact": lambda: spec(artifacts="report.xml"),
    "job: a time-out as in a file": lambda: spec(timeout="5m"),
    "job: no time": lambda: spec(timeout=0),
    "job: a time-out without an end": lambda: spec(timeout=math.inf),
    "job: a script instead of a specification": lambda: job(spec="true"),
    "job: a duration below zero": lambda: job(expected_duration=-1.0),
    "job: a log without room": lambda: job(log_limit=100),
    "job: an executor that is a class": lambda: job(executor=dict),
    "call: a function itself": lambda: Call(math.sqrt),  # type: ignore[arg-type]
    "call: a function without its module": lambda: Call("sqrt"),
    "call: a Python with arguments": lambda: Call("math:sqrt", python="python3 -O"),
    "call: a negative time-out": lambda: Call("math:sqrt", timeout=-1),
    "batch: one job": lambda: batch(jobs=A_JOB),
    "batch: scripts": lambda: batch(jobs=["true"]),
    "batch: a job twice": lambda: batch(jobs=[A_JOB, A_JOB]),
    "batch: an executor that is not there": lambda: batch(executors={"docker": None}),
    "batch: executors in a list": lambda: batch(executors=["instance"]),
    "batch: results in a file": lambda: batch(output=3),
    "batch: patience as in a file": lambda: batch(patience="15m"),
    "command: a variable that is a number": lambda: command(env={"A": 3}),
    "command: variables as a list": lambda: command(env=["A=3"]),
    "command: an argument that is a number": lambda: command(["sleep", 3]),
    "command: no command": lambda: command(None),
    "command: a directory that is a path": lambda: command(cwd=Path("/tmp")),  # noqa: S108  (never used)
}
"""What somebody may try, by what is wrong with it."""


@pytest.mark.parametrize("name", BAD)
def test_a_bad_argument_is_refused_where_it_is_given(golden: Golden, name: str) -> None:
    """Which one, what was expected, what was found; on one line, and nothing has been begun."""
    with pytest.raises((TypeError, ValueError)) as caught:
        BAD[name]()
    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)
    golden(f"bad_arguments/{name}", f"{type(caught.value).__name__}: {caught.value}")


def test_the_golden_file_has_no_other_arguments(golden: Golden) -> None:
    """A bad argument that goes takes its sentence along."""
    golden.has_only("bad_arguments/", BAD)


def test_what_is_unusual_but_right_is_taken() -> None:
    """Integers for seconds, endless waits, lists for tuples, a path as a string."""
    assert Policy(idle_time=60, periods=["* * * * *"]).idle_time == 60  # type: ignore[arg-type]  # as programs do
    assert scaler(acquire_timeout=math.inf, policies=()) is not None
    assert spec(timeout=5, artifacts=["x"], files={"x": Path("x")}).timeout == 5
    assert pool(preexisting="adopt", ready_hook=None).cleans is False
