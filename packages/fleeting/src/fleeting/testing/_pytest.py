"""What is of use with pytest only: the fixture for virtual time, the conformance suite as a test class."""

import sysconfig
from pathlib import Path
from traceback import FrameSummary, extract_tb, format_list
from typing import Any

import pytest

from fleeting.testing._conformance import CHECKS, Check, judge, name_of
from fleeting.testing._harness import Harness, MakeHarness, NotApplicable, NotChecked, NotOpened, Violation
from fleeting.testing._virtual_time import virtual_backend


@pytest.fixture(params=["asyncio", "trio"])
def virtual_time(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run each test on both backends in virtual time; to be used under the name ``anyio_backend``."""
    return virtual_backend(request.param)


_NOT_OPENED = pytest.StashKey[dict[type, str]]()
"""The test that has failed because `init` raised, by class."""

_OTHERS = {Path(__file__).parents[1], *(Path(path) for path in sysconfig.get_paths().values())}
"""Where the code of others is."""


class GroupConformance:
    """The conformance suite; a plugin's tests subclass it and override `make_harness`.

    ::

        class TestMyGroup(GroupConformance):
            @pytest.fixture
            def make_harness(self, tmp_path: Path) -> MakeHarness:
                @asynccontextmanager
                async def make() -> AsyncIterator[Harness]:
                    async with my_cloud(tmp_path) as cloud:
                        yield Harness(make=lambda: MyGroup(cloud.url), kill=cloud.terminate)

                return make
    """

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def make_harness(self) -> MakeHarness:
        """Give what sets up a cloud resource for one check."""
        raise NotImplementedError(f"{type(self).__name__} must override the fixture make_harness")

    @pytest.mark.parametrize("check", CHECKS, ids=name_of)
    async def test_contract(self, check: Check, make_harness: MakeHarness, request: pytest.FixtureRequest) -> None:
        """The group keeps the clause of the contract that the check is about, or the clause is not about it.

        A violation is one sentence, with the lines of the plugin that an error came from. Which clauses do not apply,
        and why, stands in the properties of pytest's XML report. What could not be checked is reported as skipped, with
        what to give the harness. If `init` raises, that is one failure, and all other checks are skipped.
        """
        verdict: Violation | NotApplicable | None = None
        async with make_harness() as harness:
            verdict = await _verdict(check, harness)
        if isinstance(verdict, NotOpened):
            broken = request.config.stash.setdefault(_NOT_OPENED, {})
            if (first := broken.setdefault(type(self), request.node.nodeid)) != request.node.nodeid:
                pytest.skip(f"not run, because init raises: see {first.rpartition('::')[2]}")
        # Out here, because a task group in the author's fixture would wrap what is raised within it.
        if isinstance(verdict, Violation):
            pytest.fail(_shown(verdict), pytrace=False)
        if isinstance(verdict, NotChecked):
            pytest.skip(f"not checked: {verdict}")
        if verdict is not None:
            request.node.user_properties.append(("not_applicable", str(verdict)))


async def _verdict(check: Check, harness: Harness) -> Violation | NotApplicable | None:
    """Put a group through a check; None: it keeps the clause."""
    try:
        await judge(check, harness)
    except (Violation, NotApplicable) as verdict:
        return verdict
    return None


def _shown(violation: Violation) -> str:
    """What an author needs: the clause and what was seen, and where in the plugin an error came from, if it was one."""
    cause = violation.__cause__
    frames = [] if cause is None else [each for each in extract_tb(cause.__traceback__) if _is_the_authors(each)]
    return "\n".join([str(violation), *format_list(frames)]).rstrip()


def _is_the_authors(frame: FrameSummary) -> bool:
    """Whether it is neither in here, nor of Python, nor installed: an author needs to see nothing of these."""
    return not any(Path(frame.filename).is_relative_to(place) for place in _OTHERS)
