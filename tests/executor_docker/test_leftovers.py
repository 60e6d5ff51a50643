"""What a manager that was killed has left is found by its labels; what others need is left alone."""

import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import anyio
import pytest

from executor_docker import DockerConfig, DockerExecutor
from executor_docker._owner import INSTANCE, MANAGER, RUN, SLOT, UNIT, Owner
from executor_docker._remains import clear
from fleeting import Unreachable
from tests.executor_docker.benches import Bench, bench_on, bench_over_ssh
from tests.fleeting_docker_engine.daemons import IMAGE, Daemon

pytestmark = pytest.mark.anyio

HOLD = """
import sys
from pathlib import Path
from executor_docker._owner import Owner
owner = Owner(Path(sys.argv[1]))
owner.claim()
with owner.at_work("job", "i-other", 0) as unit:
    print(*(f"{key}={value}" for key, value in unit.labels.items()), sep="\\n", flush=True)
    print(flush=True)
    sys.stdin.read()
"""


@pytest.fixture
async def bench(docker: Daemon, tmp_path: Path) -> AsyncIterator[Bench]:
    """Start an instance."""
    async with bench_on(docker, tmp_path) as bench:
        yield bench


async def leave(bench: Bench, labels: dict[str, str]) -> str:
    """Leave a container with a nameless volume, a network and a volume behind; returns a name for them."""
    name = f"left-{labels[UNIT]}"
    async with bench.docker.engine() as engine:
        await engine.ask("POST", "/networks/create", json={"Name": name, "Labels": labels})
        await engine.ask("POST", "/volumes/create", json={"Name": name, "Labels": labels})
        body = {"Image": IMAGE, "Cmd": ["sleep", "1000"], "Labels": labels, "Volumes": {"/nameless": {}}}
        body["HostConfig"] = {"NetworkMode": name}
        await engine.ask("POST", "/containers/create", query={"name": name}, json=body)
        await engine.ask("POST", f"/containers/{name}/start")
    return name


async def remains(bench: Bench, name: str) -> int:
    """Count what is left of that."""
    return sum(name in each for each in await bench.docker.holdings())


async def test_what_a_killed_run_has_left_is_cleared_away_and_not_before(bench: Bench) -> None:
    """Another run of the same manager keeps what is its own for as long as it lives: the kernel tells."""
    root = bench.directory / "owner"
    before = await bench.docker.holdings()
    async with await anyio.open_process([sys.executable, "-c", HOLD, str(root)]) as other:
        assert other.stdout is not None
        said = b""
        while not said.endswith(b"\n\n"):
            said += await other.stdout.receive()
        labels = dict(line.split("=", 1) for line in said.decode().split())
        name = await leave(bench, labels)
        await bench.run("true")
        assert await remains(bench, name) == 3
        other.kill()
    await bench.run("true")
    assert await bench.docker.holdings() == before


@pytest.mark.parametrize("owner", ["stranger", "owner"])
async def test_a_job_that_another_run_has_on_the_same_slot_goes_on(bench: Bench, owner: str) -> None:
    """Two managers may list one host, or one user's two batches may: each calls it by one name, and counts from 0."""
    config = DockerConfig(socket=bench.docker.socket, image=IMAGE, network="none")
    other = DockerExecutor(config, Owner(bench.directory / owner))
    before = await bench.docker.holdings()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(bench.run, "echo up; exec sleep 1000", executor=other))
        await bench.output.lines(1)
        theirs = await bench.docker.holdings() - before
        await bench.run("true")
        assert await bench.docker.holdings() - before == theirs
        tasks.cancel_scope.cancel()
    assert len(theirs) == 1
    assert await bench.docker.holdings() == before


async def test_what_a_stranger_has_left_is_left_alone_on_whatever_slot(bench: Bench) -> None:
    """Nothing proves that he is dead."""
    labels = {MANAGER: "stranger", RUN: "0" * 12, INSTANCE: bench.slot.instance, SLOT: "0", UNIT: "1" * 12}
    before = await bench.docker.holdings()
    name = await leave(bench, labels)
    await bench.run("true", slot=0)
    assert await remains(bench, name) == 3
    async with bench.docker.engine() as engine:
        await clear(engine, lambda found: found.get(MANAGER) == "stranger")
    assert await bench.docker.holdings() == before


async def test_a_network_that_is_in_use_is_left_for_the_next_time(bench: Bench) -> None:
    """A daemon that is busy makes and ends what a killed manager asked for while the next job begins there."""
    before = await bench.docker.holdings()
    name, labels = "late", {MANAGER: "stranger", UNIT: "3" * 12}
    async with bench.docker.engine() as engine:
        await engine.ask("POST", "/networks/create", json={"Name": name, "Labels": labels})
        body = {"Image": IMAGE, "Cmd": ["sleep", "1000"], "HostConfig": {"NetworkMode": name}}
        await engine.ask("POST", "/containers/create", query={"name": name}, json=body)
        await engine.ask("POST", f"/containers/{name}/start")
        await clear(engine, lambda found: found.get(MANAGER) == "stranger")
        assert await remains(bench, name) == 2
        await engine.ask("DELETE", f"/containers/{name}", query={"force": True})
        await clear(engine, lambda found: found.get(MANAGER) == "stranger")
    assert await bench.docker.holdings() == before


async def test_a_job_lost_with_its_instance_is_cleared_away_by_the_next_on_that_daemon(
    docker: Daemon, tmp_path: Path
) -> None:
    """Instances may share a daemon; one of them dies with its connection, and nobody could clear up."""
    before = await docker.holdings()
    async with bench_over_ssh(docker, tmp_path) as (bench, server):
        executor = bench.executor()
        async with anyio.create_task_group() as tasks:

            async def lose() -> None:
                with pytest.raises(Unreachable):
                    await bench.run("echo up; exec sleep 1000", executor=executor)

            tasks.start_soon(lose)
            await bench.output.lines(1)
            server.lose()
    assert len(await docker.holdings() - before) == 1
    async with bench_on(docker, tmp_path / "other") as another:
        await another.run("true", executor=executor)
    assert await docker.holdings() == before


async def test_jobs_at_the_same_time_leave_each_other_alone(bench: Bench) -> None:
    """Of one executor, and of several of one user."""
    executors = [
        DockerExecutor(DockerConfig(socket=bench.docker.socket, image=IMAGE), Owner(bench.directory / "owner"))
    ]
    executors.append(DockerExecutor(DockerConfig(socket=bench.docker.socket, image=IMAGE), executors[0]._owner))
    async with anyio.create_task_group() as tasks:
        for slot in range(6):

            async def run(slot: int) -> None:
                script = f"sleep 0.3; echo job {slot}"
                outcome = await bench.run(script, slot=slot, executor=executors[slot % 2])
                assert outcome.exit_code == 0

            tasks.start_soon(run, slot)
    assert sorted(bench.lines()) == [f"job {slot}" for slot in range(6)]
