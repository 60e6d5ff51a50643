"""The local group keeps the contract, with real processes in real time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleeting.groups.local import LocalConfig, LocalGroup
from fleeting.testing import GroupConformance, Harness, MakeHarness
from tests.conformance.harnesses import LONG, WHAT_TAKES_AN_ENDPOINT
from tests.fleeting import local_agents


def living(directory: Path) -> set[str]:
    """Ids of the instances of a group whose agents are processes, by what these were started with."""
    prefix = f"{directory}/"
    arguments = {argument for process in Path("/proc").glob("[0-9]*") for argument in started_with(process)}
    return {argument.removeprefix(prefix) for argument in arguments if argument.startswith(prefix)}


def started_with(process: Path) -> list[str]:
    """Arguments of a process, none if it has ended."""
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


class TestLocal(GroupConformance):
    """The suite, over a group with room for three that lives in a directory of its own."""

    @pytest.fixture
    def make_harness(self, tmp_path: Path) -> MakeHarness:
        """Make a group's directory, and leave no agent in it."""

        @asynccontextmanager
        async def make() -> AsyncIterator[Harness]:
            directory = tmp_path / "group"
            config = LocalConfig(directory=str(directory), max_size=3)

            async def kill(instance: str) -> None:
                local_agents.kill(local_agents.agent_of(directory, instance))

            async def alive() -> set[str]:
                return living(directory)

            try:
                yield Harness(
                    make=lambda: LocalGroup(config),
                    kill=kill,
                    alive=alive,
                    deadline=LONG,
                    settle=0.1,
                    poll=0.01,
                    unknown_id="default-000000000000",
                    cannot=dict.fromkeys(
                        WHAT_TAKES_AN_ENDPOINT,
                        "the file system is its cloud: nobody answers requests, and there is nothing to log in to",
                    ),
                )
            finally:
                async with local_agents.opened(directory):
                    pass

        return make
