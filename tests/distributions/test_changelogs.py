"""The changelogs: what is in them, and that every fragment will be."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_changelog_has_its_version(package: Path) -> None:
    """The newest heading is that of the package's version, with the day on which it was made."""
    number = tomllib.loads((package / "pyproject.toml").read_text())["project"]["version"]
    headings = re.findall(r"^## (.*)$", (package / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(number)} \(\d{{4}}-\d\d-\d\d\)", headings[0])
    assert len(set(headings)) == len(headings)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_fragment_is_left_out(package: Path) -> None:
    """One whose kind is not declared would be dropped without a word: all packages have the same kinds."""
    read = [tomllib.loads((each / "pyproject.toml").read_text())["tool"]["towncrier"]["type"] for each in PACKAGES]
    assert all(types == read[0] for types in read)
    kinds = {each["directory"] for each in read[0] if each["showcontent"]}
    fragments = [path.name for path in package.glob("changelog.d/*") if path.name != ".gitignore"]
    assert [name for name in fragments if not re.fullmatch(rf"(\+[\w-]+|\d+)\.({'|'.join(kinds)})\.md", name)] == []
