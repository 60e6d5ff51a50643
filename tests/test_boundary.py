"""What is public, what only taskscaler may use, and who imports what."""

import ast
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import fleeting
from tests.test_workspace import PACKAGES, ROOT, read

PUBLIC = {
    "fleeting",
    "fleeting.archives",
    "fleeting.connectors",
    "fleeting.connectors.powershell",
    "fleeting.connectors.ssh",
    "fleeting.connectors.winrm",
    "fleeting.errors",
    "fleeting.events",
    "fleeting.plugins",
    "fleeting.testing",
}
"""What everybody may import; it stays as it is until the next major version."""

LOADED_BY_NAME = {
    "fleeting.connectors.local",
    "fleeting.groups",
    "fleeting.groups.local",
    "fleeting.groups.static",
    "fleeting.testing.live",
}
"""What entry points and pytest's ``-p`` name; nobody imports from there."""

UNSTABLE = {
    "fleeting.cli",
    "fleeting.cli.streaming",
    "fleeting.config",
    "fleeting.core",
    "fleeting.core.messages",
    "fleeting.journal",
    "fleeting.runtime",
}
"""What taskscaler may import too, which pins the minor version."""

SOURCES = ROOT / "packages/fleeting/src/fleeting"

INDEPENDENT = {"gitlab-jobs"}
"""Packages for people who use neither a fleet nor a scaler."""

OURS = {"taskscaler", "taskscaler-gitlab"}
"""Packages that may use what is unstable of fleeting, and require one minor version of it."""

PLUGINS = [
    *sorted(package for package in PACKAGES if package.name not in {"fleeting", *OURS}),
    SOURCES / "groups",
    *sorted(path for path in ROOT.glob("examples/*") if path.is_dir()),
]
"""Where what may import public names only is."""


PAGES = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")]


def imports(source: str) -> Iterator[tuple[str, str, int]]:
    """Find what a source takes from elsewhere: the module, the name (empty: the module itself), the line."""
    tree = ast.parse(source)
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: imports are absolute"
            yield from ((node.module or "", each.name, node.lineno) for each in node.names)
        elif isinstance(node, ast.Import):
            modules |= {each.name for each in node.names}
            yield from ((each.name, "", node.lineno) for each in node.names)
    if "fleeting" in modules:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fleeting":
                yield "fleeting", node.attr, node.lineno


def trespasses(sources: Path, namespaces: set[str]) -> list[str]:
    """Find what is imported of fleeting although it is in none of the namespaces."""
    is_ours = sources == SOURCES / "groups"
    return [
        f"{source.relative_to(ROOT)}:{line} {module} {name}"
        for source in sorted(sources.rglob("*.py"))
        for module, name, line in imports(source.read_text())
        if not is_in(namespaces, module, name) and not (is_ours and module.startswith("fleeting.groups"))
    ]


def is_in(namespaces: set[str], module: str, name: str) -> bool:
    """Whether a name of fleeting, or a module, is in one of the namespaces; other projects' always are."""
    if module.partition(".")[0] != "fleeting":
        return True
    return f"{module}.{name}" in namespaces or (module in namespaces and (not name or name in names_of(module)))


def names_of(namespace: str) -> set[str]:
    """The names that a namespace exports; ``fleeting.core.messages`` has nothing but such."""
    module = import_module(namespace)
    return set(getattr(module, "__all__", [name for name in dir(module) if not name.startswith("_")]))


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.name)
def test_plugins_import_only_public_names(plugin: Path) -> None:
    """What comes with the suite has no door that other people's plugins lack."""
    assert trespasses(plugin, PUBLIC) == []


@pytest.mark.parametrize("package", sorted(OURS))
def test_taskscaler_imports_what_is_declared(package: str) -> None:
    """Nothing private: what it shares with fleeting, fleeting knows about."""
    assert trespasses(ROOT / "packages" / package, PUBLIC | UNSTABLE) == []


def test_the_documentation_imports_only_public_names() -> None:
    """Every program and every piece of one that a page shows."""
    found = [
        f"{page.relative_to(ROOT)}: {module} {name}"
        for page in PAGES
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
        for module, name in re.findall(r"^from (fleeting[\w.]*) import (\w+(?:, \w+)*)", block, flags=re.MULTILINE)
        + [("fleeting", name) for name in re.findall(r"(?<![\w.])fleeting\.(\w+)", block)]
        for each in name.split(", ")
        if not is_in(PUBLIC, module, each)
    ]
    assert found == []


@pytest.mark.parametrize("name", sorted(INDEPENDENT))
def test_what_is_independent_imports_nothing_of_ours(name: str) -> None:
    """Who writes a runner without our fleet installs neither it nor what it needs."""
    names = {each.name.replace("-", "_") for each in PACKAGES if each.name != name}
    found = [
        f"{source.relative_to(ROOT)}:{line} {module}"
        for source in sorted((ROOT / "packages" / name).rglob("*.py"))
        for module, _, line in imports(source.read_text())
        if module.partition(".")[0] in names
    ]
    assert found == []
    required = {Requirement(line).name for line in read(ROOT / "packages" / name)["project"]["dependencies"]}
    assert not required & {each.name for each in PACKAGES}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_nothing_private_is_imported_from_another_package(package: Path) -> None:
    """Whatever has an underscore may change at any time."""
    own = package.name.replace("-", "_")
    names = {each.name.replace("-", "_") for each in PACKAGES} - {own}
    found = [
        f"{source.relative_to(ROOT)}:{line} {module} {name}"
        for source in sorted(package.rglob("*.py"))
        for module, name, line in imports(source.read_text())
        if module.partition(".")[0] in names and any(part.startswith("_") for part in f"{module}.{name}".split("."))
    ]
    assert found == []


def test_what_is_not_public_is_private_by_name() -> None:
    """Every module without an underscore in its path is declared in one of three ways."""
    found = {
        info.name
        for info in pkgutil.walk_packages([str(SOURCES)], "fleeting.")
        if not any(part.startswith("_") for part in info.name.split("."))
    }
    assert found | {"fleeting"} == PUBLIC | LOADED_BY_NAME | UNSTABLE


@pytest.mark.parametrize("namespace", sorted(PUBLIC | UNSTABLE - {"fleeting.core.messages"}))
def test_a_namespace_has_what_it_exports(namespace: str) -> None:
    """In the order that ruff has for it, and each once."""
    module = import_module(namespace)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert len(set(module.__all__)) == len(module.__all__)


def test_each_name_has_one_public_place() -> None:
    """What is in two places is documented in neither."""
    places = Counter(
        name for namespace in PUBLIC | UNSTABLE - {"fleeting.core.messages"} for name in names_of(namespace)
    )
    assert [name for name, times in places.items() if times > 1] == []


def test_the_root_stays_small() -> None:
    """What few need has a place of its own."""
    assert len(fleeting.__all__) <= 50


def test_the_package_says_what_is_stable() -> None:
    """In its first docstring, where whoever looks for a name begins."""
    said = set(re.findall(r"`(fleeting\.\w+)`", fleeting.__doc__ or ""))
    assert said == {name for name in PUBLIC | UNSTABLE if name.count(".") == 1}


@pytest.mark.parametrize(
    "package", [each for each in PACKAGES if each.name not in {"fleeting", *INDEPENDENT}], ids=lambda each: each.name
)
def test_a_package_requires_the_fleeting_that_it_was_made_for(package: Path) -> None:
    """Plugins take any of this major version; what uses more, any of this minor version."""
    project = read(package)["project"]
    lines = [*project["dependencies"], *project.get("optional-dependencies", {}).get("fleet", ())]
    (required,) = (each for each in map(Requirement, lines) if each.name == "fleeting")
    here = Version(version("fleeting"))
    minor, major = f"{here.major}.{here.minor + 1}", f"{here.major + 1}"
    end = minor if package.name in OURS else major
    assert required.specifier == SpecifierSet(f">={here.major}.{here.minor},<{end}")
