"""What the tutorial tells its readers to write is what examples/puddle is, and that passes (its own tests)."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fleeting.cli._new_plugin import files_of
from fleeting.testing import CHECKS, Trouble
from tests.conformance.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
PUDDLE = ROOT / "examples" / "puddle"
PLUGIN = sorted((PUDDLE / "src").rglob("*.py"))
PAGE = (ROOT / "docs" / "tutorials" / "write-a-plugin.md").read_text()

COPIED = [
    "tests/puddle_endpoint.py",
    "tests/test_conformance.py",
    "src/fleeting_puddle/_config.py",
    "src/fleeting_puddle/_cloud.py",
    "src/fleeting_puddle/_group.py",
]
"""What readers put into the generated package; all but the first are printed on the page."""


def code_in(file: Path) -> set[int]:
    """The lines of a file that are neither empty, nor comments, docstrings or imports."""
    text = file.read_text()
    lines = {number for number, line in enumerate(text.splitlines(), start=1) if line.strip()[:1] not in ("", "#")}
    for node in ast.walk(ast.parse(text)):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and (is_docstring or isinstance(node, ast.Import | ast.ImportFrom)):
            lines -= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return lines


def test_the_plugin_has_less_than_100_lines_of_code() -> None:
    """As the tutorial promises."""
    assert sum(len(code_in(file)) for file in PLUGIN) < 100


@pytest.mark.parametrize("path", COPIED[1:])
def test_the_page_has_the_files_word_for_word(path: str) -> None:
    """A reader who copies them has what was tested."""
    assert f"`{path}`" in PAGE
    assert f"```python\n{(PUDDLE / path).read_text()}```" in PAGE, f"{path} is not in the tutorial as it is"


def test_the_page_has_the_harness_word_for_word() -> None:
    """The one function of the endpoint that is shown."""
    endpoint = (PUDDLE / "tests" / "puddle_endpoint.py").read_text()
    (shown,) = re.findall(r"^```python\n(def harness_for.*?)```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert shown in endpoint


@pytest.mark.slow
@pytest.mark.usefixtures("what_mypy_knows")
def test_who_does_what_the_page_says_arrives(tmp_path: Path) -> None:
    """Generated, with the files of the page in their places, the package passes lint, types and every check.

    On one backend: examples/puddle, which is the same files, is part of the suite, on both.
    """
    for path, text in files_of("puddle").items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for path in COPIED:
        (tmp_path / path).write_text((PUDDLE / path).read_text())
    said = ""
    for command in (
        ["ruff", "check"],
        ["ruff", "format", "--check"],
        ["mypy"],
        ["pytest", "-p", "no:cacheprovider", "-k", "asyncio"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said += done.stdout
    assert "skipped" not in said
    assert f"{len(CHECKS)} passed" in said


@pytest.mark.parametrize("path", ["pyproject.toml", "src/fleeting_puddle/__init__.py", "tests/conftest.py"])
def test_what_is_not_told_stays_as_generated(path: str) -> None:
    """The tutorial begins with ``fleeting new-plugin puddle``, and says which files to change."""
    assert (PUDDLE / path).read_text() == files_of("puddle")[path]


def test_the_numbers_are_right() -> None:
    """Those of checks and of mutants."""
    assert f"All {len(CHECKS)} checks" in PAGE
    assert f"{len(MUTANTS)} ways" in PAGE


def test_the_endpoint_has_every_trouble() -> None:
    """None is there in name only: something in the endpoint asks for it."""
    endpoint = (PUDDLE / "tests" / "puddle_endpoint.py").read_text()
    assert [kind for kind in Trouble if f"Trouble.{kind.name}" not in endpoint] == []
