"""What end-to-end tests share."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e import quickstart as files
from tests.e2e.leftovers import agents, instances, wait_for_the_end_of


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Directories of our own for temporary files and for state: whatever the fleet leaves on this machine is there."""
    home = tmp_path / "home"
    (home / "tmp").mkdir(parents=True)
    yield home
    wait_for_the_end_of(agents(home))  # the last thing that they do is to remove their directories
    assert list((home / "tmp").iterdir()) == [], "directories or sockets were left behind"
    assert instances(home) == [], "instances were left behind"
    assert agents(home) == [], "processes were left behind"


@pytest.fixture
def quickstart(tmp_path: Path, *, full: bool) -> Path:
    """The quickstart's jobs file, in a directory of our own; as printed, or with less to measure for each job."""
    return files.copy(tmp_path / "quickstart", whole=full)


@pytest.fixture(scope="session")
def without(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Directories of modules in whose place a package is not installed."""
    directories = {name: tmp_path_factory.mktemp(f"without-{name}") for name in ("matplotlib", "trio")}
    for name, directory in directories.items():
        (directory / f"{name}.py").write_text("raise ImportError\n")
    return directories


@pytest.fixture
def pictures() -> None:
    """Let the commands of a test draw their timelines."""


@pytest.fixture
def pictures_in_full(*, full: bool) -> bool:
    """Let them do so if everything is wanted; the suite has another test that looks into pictures."""
    return full


@pytest.fixture
def with_trio() -> None:
    """Let the programs of a test run on trio."""


@pytest.fixture(autouse=True)
def spare_what_is_heavy(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, without: Mapping[str, Path]
) -> None:
    """Let commands run as where neither matplotlib nor trio is installed, unless a test is about what those are for.

    To import the former and draw took more than half of what a small batch costs; the latter, which the HTTP client
    imports if it is there, takes a seventh of the time of a command that asks a daemon.
    """
    names = {*request.fixturenames}
    if "pictures_in_full" in names and request.getfixturevalue("pictures_in_full"):
        names.add("pictures")
    wanted = {"matplotlib": "pictures", "trio": "with_trio"}
    spared = [str(path) for name, path in without.items() if wanted[name] not in names]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [*spared, os.environ.get("PYTHONPATH")])))
