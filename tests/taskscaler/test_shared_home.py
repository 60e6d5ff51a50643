"""Hosts that share a home directory, as those do whose homes are on one file server."""

from pathlib import Path

import pytest

from fleeting import LoopClock
from fleeting.groups.static import StaticGroup
from taskscaler import Pool, Taskscaler
from taskscaler.batch import Job, Results, run_batch
from taskscaler.executors import JobSpec
from taskscaler.executors.instance import InstanceConfig, InstanceExecutor
from taskscaler.executors.runs import Runs
from tests.fleeting.static_hosts import running

pytestmark = pytest.mark.anyio

SCRIPT = """
[ -z "$(ls -A)" ]
echo "$TASKSCALER_JOB_NAME" > name
sleep 0.05
[ "$(ls -A)" = name ]
cp name out
"""


def job(name: str) -> Job:
    """Make a job that leaves its name, and sees if anybody else is where it is."""
    spec = JobSpec(name=name, script=SCRIPT, env={"TASKSCALER_JOB_NAME": name}, artifacts=("out",))
    return Job(spec=spec)


async def test_each_job_gets_its_own_artifact(tmp_path: Path) -> None:
    """Forty jobs in two slots on each of two hosts; none sees a file of another, and nothing is left in the home."""
    home = tmp_path / "home"
    home.mkdir()
    names = [f"job-{number}" for number in range(40)]
    executor = InstanceExecutor(InstanceConfig(), Runs("instance", tmp_path / "runs"))
    async with running(tmp_path, 2) as hosts:
        for number in (1, 2):
            await hosts.run(number, f"ln -s {home} taskscaler")
        pool = Pool(StaticGroup(hosts.config()), capacity_per_instance=2, update_interval_when_expecting=0.05)
        async with Taskscaler(pool, delete_instances_on_shutdown=True) as scaler:
            state = await run_batch(
                scaler,
                [job(name) for name in names],
                executors={"instance": executor},
                output=tmp_path / "results",
                clock=LoopClock(),
            )
    assert {record.name: record.why for record in state.records if record.why} == {}
    results = Results(tmp_path / "results")
    assert [(results.artifacts(name) / "out").read_text() for name in names] == [f"{name}\n" for name in names]
    assert len({attempt.instance for record in state.records for attempt in record.attempts}) == 2
    assert [*home.iterdir()] == []
