"""Services: containers beside a job's, on a network that nobody else is on."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from executor_docker import DockerError, Service
from taskscaler.executors import Verdict
from tests.executor_docker.benches import Bench, bench_on
from tests.fleeting_docker_engine.daemons import IMAGE, Daemon

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left")]

CONFIG = {"network": "job", "allowed_services": (IMAGE,)}


@pytest.fixture
async def bench(docker: Daemon, tmp_path: Path) -> AsyncIterator[Bench]:
    """Start an instance."""
    async with bench_on(docker, tmp_path) as bench:
        yield bench


async def test_a_job_reaches_its_services_by_name_once_they_are_well(bench: Bench) -> None:
    """Each has its own variables and names; the job begins when what a check asks for is there."""
    serve = "sleep 0.5; mkdir /www; echo $WORD >/www/index.html; exec httpd -f -p 80 -h /www"
    web = Service(
        image=IMAGE,
        aliases=("web", "www"),
        env={"WORD": "of the service"},
        command=("/bin/sh", "-c", serve),
        health="wget -q -O /dev/null http://127.0.0.1/",
    )
    other = Service(image=IMAGE, command=("sleep", "1000"))
    script = 'wget -q -O - http://web/ http://www/; echo "$WORD"; ping -c 1 -q busybox >/dev/null'
    outcome = await bench.run(script, options={"services": (web, other)}, config=CONFIG)
    assert (outcome.verdict, bench.said) == (Verdict.SUCCEEDED, "of the service\n" * 2 + "\n")


async def test_a_service_that_ends_fails_the_job_and_its_log_is_shown(bench: Bench) -> None:
    """The job does not begin."""
    broken = Service(image=IMAGE, aliases=("db",), command=("/bin/sh", "-c", "echo no disk; exit 4"), health="true")
    with pytest.raises(DockerError, match=r"^the service db \(.*\) ended with 4 before the job started; its log is"):
        await bench.run("echo job", options={"services": (broken,)}, config=CONFIG)
    assert bench.said == "taskscaler: the last words of the service db:\nno disk\n"


async def test_services_need_a_network_of_the_job_s_own(bench: Bench) -> None:
    """Elsewhere they would have no names, and others would reach them."""
    with pytest.raises(DockerError, match="set network"):
        await bench.run("true", options={"services": (Service(image=IMAGE),)}, config={**CONFIG, "network": "bridge"})


async def test_jobs_without_services_have_a_network_of_their_own_too(bench: Bench) -> None:
    """An address that is theirs alone, or none at all."""
    await bench.run("ip -o -4 address show | grep -vc ' lo '", config={"network": "job"})
    await bench.run("ip -o -4 address show | grep -vc ' lo ' || true", config={"network": "none"})
    assert bench.lines() == ["1", "0"]
