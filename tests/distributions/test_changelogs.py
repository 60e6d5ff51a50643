"""The changelogs: what is in them, and that every fragment will be."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_fragment_is_left_out(package: Path) -> None:
    """One whose kind is not declared would be dropped without a word: all packages have the same kinds."""
    read = [tomllib.loads((each / "pyproject.toml").read_text())["tool"]["towncrier"]["type"] for each in PACKAGES]
    assert all(types == read[0] for types in read)
    kinds = {each["directory"] for each in read[0] if each["showcontent"]}
    fragments = [path.name for path in package.glob("changelog.d/*") if path.name != ".gitignore"]
    assert [name for name in fragments if not re.fullmatch(rf"(\+[\w-]+|\d+)\.({'|'.join(kinds)})\.md", name)] == []
