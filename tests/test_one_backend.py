"""What the suite leaves out runs with ``--rest``, and nothing falls out of both."""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import cast

import pytest
from attrs import field, frozen

from tests.in_part import IN_PART, LATER, SAMPLED, SAMPLES
from tests.one_backend import BACKENDS, COLLECTED, IN_TURN, _is_its_turn, alike, runs_of

SHELLS = ("sh", "bash", "dash")


@frozen(kw_only=True, eq=False)
class Callspec:
    """What pytest knows of a test's parameters."""

    params: Mapping[str, object]


@frozen(kw_only=True, eq=False)
class Item:
    """A test with parameters, as far as it matters for which run it is in."""

    nodeid: str
    callspec: Callspec
    fixturenames: Sequence[str] = field(factory=list)


def variants(name: str, **values: Sequence[object]) -> Iterator[Item]:
    """One test for each combination, the first parameter being the outermost."""
    for each in product(*values.values()):
        id_ = "-".join(map(str, each))
        params = dict(zip(values, each, strict=True))
        yield Item(nodeid=f"{IN_TURN[-1]}{name}[{id_}]", callspec=Callspec(params=params))


def collected(*options: str) -> set[str]:
    """What a run with these options would run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_nothing_falls_out_of_both_runs(pytestconfig: pytest.Config) -> None:
    """Of what was collected here, each test is in the suite or where ``--rest`` looks, what has parts in both."""
    runs = pytestconfig.stash[COLLECTED]
    assert {*runs.suite, *runs.rest} == {*runs.all}
    assert [item.nodeid for item in runs.later if item in {*runs.suite} or item not in {*runs.rest}] == []
    places = (*IN_TURN, *IN_PART, *LATER, *SAMPLED)
    assert [item.nodeid for item in runs.rest if not item.nodeid.startswith(places)] == []
    both = {*runs.suite} & {*runs.rest}
    assert [item.nodeid for item in both if not item.nodeid.startswith(IN_PART)] == []


def test_each_test_is_in_the_suite_or_later_in_one_of_its_variants(pytestconfig: pytest.Config) -> None:
    """Whatever its other parameters are, on one backend and in one shell; what has samples, in either of the two."""
    runs = pytestconfig.stash[COLLECTED]
    times: defaultdict[object, int] = defaultdict(int)
    for item in (*runs.suite, *(item for item in runs.later if item.nodeid.startswith(SAMPLED))):
        times[alike(item)] += 1
    if not any("[" in each for each in pytestconfig.args):
        unseen = [item.nodeid for item in runs.all if not times[alike(item)]]
        assert [nodeid for nodeid in unseen if not nodeid.startswith(LATER)] == []
    assert [item.nodeid for item in runs.suite if item.nodeid.startswith(IN_TURN) and times[alike(item)] > 1] == []


def test_every_sample_is_there(pytestconfig: pytest.Config) -> None:
    """And is one of what is sampled, of which there is more; looked at where whole files were collected."""
    assert [each for each in SAMPLES if not each.startswith(SAMPLED)] == []
    runs = pytestconfig.stash[COLLECTED]
    if not any("::" in each for each in pytestconfig.args):
        there, later = ([item.nodeid for item in items] for items in (runs.all, runs.later))
        files = tuple({nodeid.partition("::")[0] for nodeid in there})
        assert [each for each in SAMPLES if each.startswith(files) and not _is_begun(each, there)] == []
        assert [each for each in SAMPLED if each.startswith(files) and not _is_begun(each, later)] == []


def _is_begun(place: str, nodeids: Sequence[str]) -> bool:
    return any(nodeid.startswith(place) for nodeid in nodeids)


@pytest.mark.parametrize("outermost", ["anyio_backend", "shell", "case"])
def test_the_order_of_parameters_is_no_matter(outermost: str) -> None:
    """Each case runs on one backend and in one shell, and over many tests each of these has its share."""
    values: dict[str, Sequence[object]] = {"anyio_backend": BACKENDS, "shell": SHELLS, "case": range(4)}
    ordered = {outermost: values[outermost], **values}
    items = [item for number in range(50) for item in variants(f"test_it.py::test_{number}", **ordered)]
    suite = cast("Sequence[Item]", runs_of(cast("Sequence[pytest.Item]", items)).suite)
    assert len(suite) == 50 * 4
    assert len({alike(cast("pytest.Item", item)) for item in suite}) == 50 * 4
    for shell, backend in product(SHELLS, BACKENDS):
        share = [item for item in suite if {shell, backend} <= {*item.callspec.params.values()}]
        assert len(share) > 15, (shell, backend)


def test_what_has_one_backend_only_runs_on_it() -> None:
    """Mutants of checks run on one of both in turn; none of them is left out because its name says the other."""
    items = [item for number in range(50) for item in variants(f"test_it.py::test_{number}", anyio_backend=["trio"])]
    runs = runs_of(cast("Sequence[pytest.Item]", items))
    assert ([*runs.suite], [*runs.rest]) == (cast("list[pytest.Item]", items), [])


def test_two_pythons_have_both_backends() -> None:
    """Each test runs on one on 3.11 and on the other on 3.12, and so on; on each Python, half of all run on either."""
    for item in variants("test_it.py::test_it", anyio_backend=BACKENDS, case=range(50)):
        turns = [_is_its_turn(cast("pytest.Item", item), minor) for minor in (11, 12, 13, 14)]
        assert turns in ([True, False, True, False], [False, True, False, True])


def test_both_runs_together_are_all_there_is(full: bool) -> None:  # noqa: FBT001  (a fixture)
    """As pytest itself collects them, each in a process of its own; in full only, since it takes long."""
    if full:
        suite, rest, later, everything = collected(), collected("--rest"), collected("--later"), collected("--full")
        assert suite | rest == everything
        assert rest - suite > later > set()
