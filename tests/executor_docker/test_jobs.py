"""What a job gets in its container, and what is told of it afterwards; on a real daemon."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from taskscaler.executors import Verdict
from tests.executor_docker.benches import Bench, bench_on
from tests.fleeting_docker.daemons import Daemon

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left")]

NAP = "exec sleep 1000"


@pytest.fixture
async def bench(docker: Daemon, tmp_path: Path) -> AsyncIterator[Bench]:
    """Start an instance."""
    async with bench_on(docker, tmp_path) as bench:
        yield bench


async def test_a_script_that_ends_well_has_succeeded_and_what_it_used_is_known(bench: Bench) -> None:
    """Exit code 0; CPU and memory come from the container's own control group."""
    outcome = await bench.run("echo hello; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
    assert (outcome.verdict, outcome.exit_code, outcome.why, outcome.warnings) == (Verdict.SUCCEEDED, 0, "", ())
    assert bench.said == "hello\n"
    assert outcome.cpu_time is not None
    assert 0.01 < outcome.cpu_time < 60
    assert outcome.peak_memory is not None
    assert 2**16 < outcome.peak_memory < 2**30


async def test_both_outputs_are_one_in_the_order_of_writing(bench: Bench) -> None:
    """What goes to standard error stands between what goes to standard output; nothing of ours is in it."""
    await bench.run("for n in 1 2 3 4 5 6; do echo out $n; echo err $n >&2; done")
    assert bench.lines() == [f"{where} {n}" for n in range(1, 7) for where in ("out", "err")]


async def test_the_first_command_that_fails_ends_a_script(bench: Bench) -> None:
    """As with the instance executor."""
    outcome = await bench.run("echo before\n(exit 3)\necho after")
    assert (outcome.verdict, outcome.exit_code, outcome.why) == (Verdict.FAILED, 3, "exited with 3")
    assert bench.said == "before\n"
