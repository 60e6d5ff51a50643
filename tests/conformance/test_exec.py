"""The group of executables keeps the contract, with a shell script as its cloud and real processes as instances."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleeting.testing import GroupConformance, Harness, MakeHarness
from tests.conformance.harnesses import LONG, WHAT_TAKES_AN_ENDPOINT
from tests.fleeting_exec.clouds import Cloud


class TestExec(GroupConformance):
    """The suite, over a script with room for three, which says no more than it must."""

    @pytest.fixture
    def make_harness(self, tmp_path: Path) -> MakeHarness:
        """Make a cloud in a directory of its own, and leave no process in it."""

        @asynccontextmanager
        async def make() -> AsyncIterator[Harness]:
            cloud = Cloud.of_processes(tmp_path)

            async def kill(instance: str) -> None:
                cloud.kill(instance)

            async def alive() -> set[str]:
                return set(cloud.pids())

            try:
                yield Harness(
                    make=lambda: cloud.group(max_size=3, owner_mark=True),
                    make_other=lambda: cloud.group(max_size=3, owner_mark=True, state_dir=str(tmp_path / "other")),
                    kill=kill,
                    alive=alive,
                    deadline=LONG,
                    settle=0.1,
                    poll=0.01,
                    unknown_id="default-000000000000-1",
                    cannot=dict.fromkeys(
                        WHAT_TAKES_AN_ENDPOINT,
                        "its cloud is whatever the executables are; what they may do is tried in tests/fleeting_exec",
                    ),
                )
            finally:
                assert not cloud.pids(), "instances were left behind"
                cloud.clear_away()

        return make
