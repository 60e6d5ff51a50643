"""What an agent takes along runs on Python 3.10, which instances may have, though tests run on later ones."""

import ast
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "packages/job-steps/src/job_steps"
LATER = {
    "asyncio": "*",
    "contextlib": {"chdir"},
    "datetime": {"UTC"},
    "enum": {"StrEnum", "ReprEnum", "verify", "member", "nonmember"},
    "hashlib": {"file_digest"},
    "tomllib": "*",
    "typing": {"Self", "assert_never", "assert_type", "reveal_type", "Never", "LiteralString", "Unpack", "override"},
    "wsgiref.types": "*",
}
"""What came into the standard library after 3.10, by module, as far as one is tempted to use it."""

BUILTINS = {"BaseExceptionGroup", "ExceptionGroup"}
"""The same, of what needs no import."""


def taken_along() -> list[Path]:
    """Find the modules; what only managers have, which need taskscaler, may be newer."""
    return sorted(path for path in SOURCES.rglob("*.py") if SOURCES / "executor" not in path.parents)


@pytest.mark.parametrize("source", taken_along(), ids=lambda path: str(path.relative_to(SOURCES)))
def test_a_module_needs_no_later_python(source: Path) -> None:
    """Neither its syntax nor what it imports."""
    tree = ast.parse(source.read_text(), feature_version=(3, 10))
    later = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in LATER:
            names = LATER[node.module]
            later += [f"{node.module}.{each.name}" for each in node.names if names == "*" or each.name in names]
        elif isinstance(node, ast.Import):
            later += [each.name for each in node.names if LATER.get(each.name) == "*"]
        elif isinstance(node, ast.Name) and node.id in BUILTINS:
            later.append(node.id)
        elif isinstance(node, ast.TryStar if sys.version_info >= (3, 11) else ()):
            later.append("except*")
    assert later == []
