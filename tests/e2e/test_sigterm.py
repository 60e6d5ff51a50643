"""A script of one's own that is ended by SIGTERM leaves no instance, in either API."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.leftovers import agents, environment

SYNC = """
import fleeting
from taskscaler import Pool, exit_on_sigterm
from taskscaler.sync import Taskscaler

pool = Pool(fleeting.load("local"), max_instances=1, update_interval_when_expecting=0.1)
with exit_on_sigterm(), Taskscaler(pool) as scaler:
    with scaler.acquire("job-1") as lease, lease.dial() as connection:
        connection.run("echo ready; sleep 300", stdout=lambda data: print(data.decode(), end="", flush=True))
print("never")
"""

ASYNC = """
import anyio
import fleeting
from taskscaler import Pool, Taskscaler, exit_on_sigterm


async def show(data):
    print(data.decode(), end="", flush=True)


async def main():
    pool = Pool(fleeting.load("local"), max_instances=1, update_interval_when_expecting=0.1)
    async with exit_on_sigterm(), Taskscaler(pool) as scaler:
        async with scaler.acquire("job-1") as lease, lease.dial() as connection:
            await connection.run("echo ready; sleep 300", stdout=show)
    print("never")


anyio.run(main, backend="{backend}")
"""

FAILING = """
import anyio
from taskscaler import exit_on_sigterm


async def main():
    try:
        async with exit_on_sigterm():
            raise KeyError("as it is")
    except KeyError as error:
        print(error)


anyio.run(main)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.usefixtures("with_trio")
@pytest.mark.parametrize(
    "script",
    [SYNC, ASYNC.format(backend="asyncio"), ASYNC.format(backend="trio")],
    ids=["threads", "asyncio", "trio"],
)
def test_a_script_that_is_terminated_leaves_nothing(home: Path, tmp_path: Path, script: str) -> None:
    """It ends what runs, removes its instance, and exits as shells expect; a second signal does no harm."""
    file = tmp_path / "script.py"
    file.write_text(script)
    with subprocess.Popen(
        [sys.executable, file], env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert agents(home)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        said, wrong = process.communicate()
    assert (process.returncode, said, wrong) == (143, "", "")
    assert agents(home) == []


def test_an_error_of_the_block_comes_out_as_it_is(home: Path, tmp_path: Path) -> None:
    """Not in a group, which nobody would catch."""
    file = tmp_path / "script.py"
    file.write_text(FAILING)
    done = subprocess.run([sys.executable, file], env=environment(home), capture_output=True, text=True, check=True)
    assert done.stdout == "'as it is'\n"
