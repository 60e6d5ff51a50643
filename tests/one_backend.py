"""Tests for which one of the two backends is enough: always, or in the suite.

Always: how an SDK's answers are translated. The SDKs run in threads and know of no backend. What the groups themselves
do asynchronously, the conformance suite checks on both. In a ``conftest.py``: ``anyio_backend = one_backend``.

In the suite: all but the conformance suite on the fake cloud, where the backends matter most. With ``--full`` the same
tests run on both, and with ``--rest`` on the one that the suite leaves out, so that continuous integration runs each
once.

Shells, in which jobs for GitLab run, are the same: the suite runs each test in one of those that this machine has.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from zlib import crc32

import pytest
from attrs import frozen

from tests.in_part import LATER, is_in_part, is_sampled_out

IN_TURN = (
    "examples/puddle/tests/",
    "tests/conformance/test_azure.py",
    "tests/conformance/test_connectors.py",
    "tests/conformance/test_docker.py",
    "tests/conformance/test_exec.py",
    "tests/conformance/test_gcp.py",
    "tests/conformance/test_local.py",
    "tests/executor_docker/",
    "tests/fleeting/",
    "tests/fleeting_aws/test_conformance.py",
    "tests/fleeting_docker/",
    "tests/fleeting_exec/test_docker_machine.py",
    "tests/gitlab_jobs/",
    "tests/job_steps/",
    "tests/taskscaler/",
    "tests/taskscaler_gitlab/",
)
"""Where tests are, as their ids begin, that run on one backend in the suite: which one, their names decide, so that
each backend meets about half of each subject. The conformance suite on the fake cloud runs on both."""

BACKENDS = ("asyncio", "trio")


@frozen(kw_only=True)
class Runs:
    """What was collected, and which of the runs has it: each test belongs to suite or rest, what has parts to both."""

    all: Sequence[pytest.Item]
    suite: Sequence[pytest.Item]
    rest: Sequence[pytest.Item]
    later: Sequence[pytest.Item]
    """Of the rest, what the suite has in no form, and of what it has samples of, the others."""


COLLECTED = pytest.StashKey[Runs]()
"""Where a run's configuration has what was collected."""


@pytest.fixture
def one_backend() -> str:
    """Run each asynchronous test once."""
    return "asyncio"


def runs_of(items: Iterable[pytest.Item]) -> Runs:
    """Divide what was collected between the suite and ``--rest``.

    Of what the suite has samples of, ``--later`` runs the others on the one backend on which the suite would.
    """
    everything = [*items]
    later = {item for item in everything if item.nodeid.startswith(LATER)}
    of_the_other = left_to_the_other(item for item in everything if item not in later)
    later |= {item for item in everything if item not in of_the_other and is_sampled_out(item)}
    left_out = later | of_the_other
    return Runs(
        all=everything,
        suite=[item for item in everything if item not in left_out],
        rest=[item for item in everything if item in left_out or is_in_part(item)],
        later=[item for item in everything if item in later],
    )


def left_to_the_other(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Find those of which the same on the other backend, or in another shell, is enough for the suite."""
    in_turn = [item for item in items if item.nodeid.startswith(IN_TURN)]
    there = _grouped([item for item in in_turn if _backend(item)], apart=_backend)
    others = {item for same in there for item in same if len(same) > 1 and not _is_its_turn(item)}
    # of those that are left, so that no test is left out in each shell because of its backend
    left = [item for item in in_turn if item not in others and "shell" in _params(item)]
    for same in _grouped(left, apart=_backend_and_shell):
        turn = crc32(same[0].nodeid.encode()) % len(same)
        others.update(same[:turn] + same[turn + 1 :])
    return others


def alike(item: pytest.Item) -> object:
    """What a test has in common with the same one on the other backend, or in another shell: all but these."""
    return _key(item, _backend_and_shell(item))


def _grouped(items: Iterable[pytest.Item], apart: Callable[[pytest.Item], set[str]]) -> Iterable[list[pytest.Item]]:
    """Those that are the same but for the parameters that are set apart; in order, as pytest has them."""
    groups: defaultdict[object, list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[_key(item, apart(item))].append(item)
    return groups.values()


def _key(item: pytest.Item, apart: set[str]) -> object:
    # pytest's indices say nothing here, since it counts them anew; what values are is the same object in each variant
    others = sorted((each, id(value)) for each, value in _params(item).items() if each not in apart)
    return item.nodeid.partition("[")[0], *others


def _params(item: pytest.Item) -> Mapping[str, object]:
    callspec = getattr(item, "callspec", None)
    return callspec.params if callspec else {}


def _backend(item: pytest.Item) -> set[str]:
    return {each for each, value in _params(item).items() if isinstance(value, str) and value in BACKENDS}


def _backend_and_shell(item: pytest.Item) -> set[str]:
    return _backend(item) | {"shell"}


def _is_its_turn(item: pytest.Item, minor: int = sys.version_info.minor) -> bool:
    """Whether the test's name decides for its backend: on every other Python for the other one.

    So each test meets both of them on the Pythons of ``nox -s pythons``, where nothing runs what is left out.
    """
    backend = next(str(_params(item)[each]) for each in _backend(item))
    name = item.nodeid.replace(backend, "", 1)
    return backend == BACKENDS[(crc32(name.encode()) + minor + 1) % 2]
