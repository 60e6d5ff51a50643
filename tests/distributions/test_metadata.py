"""What an index shows of each distribution: addresses, classifiers, extras, and a page that stands alone."""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.pages import anchors

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
HOME = "https://github.com/taskscaler/taskscaler"
"""Where the repository is published."""

SYSTEMS = {"MacOS", "POSIX :: Linux"}
"""Where managers run. Those that talk to a Docker daemon over its socket are for Linux alone."""

PYTHONS = {"3", "3 :: Only", "3.11", "3.12", "3.13", "3.14"}
EXTRAS = {"aws": "fleeting-aws", "azure": "fleeting-azure", "exec": "fleeting-exec", "gcp": "fleeting-gcp"}
"""The clouds by the names that people look for. Docker is two packages."""

pytestmark = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)


def project(package: Path) -> dict[str, Any]:
    """Its table of metadata."""
    read: dict[str, Any] = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    return read


def of(package: Path, topic: str) -> set[str]:
    """Its classifiers of a topic, without that."""
    found = (line.partition(" :: ") for line in project(package)["classifiers"])
    return {rest for first, _, rest in found if first == topic}


def linked(text: str) -> set[str]:
    """What a page links to."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"\]\(([^)\s]+)\)", prose))


def leads_somewhere(url: str) -> bool:
    """Whether a page of the repository is there, with the heading that is asked for."""
    path, _, heading = url.removeprefix(HOME).lstrip("/").partition("#")
    kind, _, place = path.partition("/main/")
    file = ROOT / place
    if kind == "blob":
        return file.is_file() and (not heading or heading in anchors(file.read_text()))
    return (kind == "tree" and file.is_dir()) or path in ("", "issues")


def test_it_has_the_addresses_of_the_project(package: Path) -> None:
    """Each index shows the same five, and each leads to something that exists in the repository."""
    urls = project(package)["urls"]
    assert list(urls) == ["Homepage", "Documentation", "Source", "Changelog", "Issues"]
    assert [url for url in urls.values() if not url.startswith(HOME) or not leads_somewhere(url)] == []


def test_it_says_where_it_runs(package: Path) -> None:
    """Every Python that is tested, the systems of managers, its state, and a licence that tools can read."""
    linux_only = {"executor-docker", "fleeting-docker", "fleeting-docker-engine"}
    pythons = PYTHONS | ({"3.10"} if package.name == "job-steps" else set())  # instances have what they have
    assert of(package, "Programming Language") == {f"Python :: {version}" for version in pythons}
    assert of(package, "Operating System") == (SYSTEMS - {"MacOS"} if package.name in linux_only else SYSTEMS)
    assert of(package, "Development Status") == {"4 - Beta"}
    assert of(package, "Typing") == {"Typed"}
    assert project(package)["license"] == "MIT"
    assert not of(package, "License"), "an expression replaces the classifier, and indexes refuse both"


def test_its_page_stands_alone(package: Path) -> None:
    """An index shows nothing beside it: its links are absolute and right, and no file of the repository is named."""
    page = (package / "README.md").read_text()
    assert [url for url in linked(page) if not url.startswith("https://")] == []
    assert [url for url in linked(page) if url.startswith(HOME) and not leads_somewhere(url)] == []
    assert re.findall(r"`(?:docs|packages|examples|tests|benchmarks)/[^`]*`|`_\w+\.py`", page) == []


def test_its_page_says_how_to_install_and_begin(package: Path) -> None:
    """A command to install it, where a checkout is explained, and a first example, in that order."""
    page = (package / "README.md").read_text()
    command = re.search(r"^```\npip install (\S+)$", page, flags=re.MULTILINE)
    assert command
    wanted = Requirement(command[1].strip("'"))
    extras = project(ROOT / "packages/taskscaler")["optional-dependencies"]
    assert wanted.name == package.name or package.name in {
        Requirement(line).name for extra in wanted.extras for line in extras[extra]
    }
    example = re.search(r"^```(?:python|toml)$", page, flags=re.MULTILINE)
    assert example
    assert command.start() < page.index(f"{HOME}/blob/main/docs/guides/install.md") < example.start()


def test_no_plugin_is_imported_by_what_it_plugs_into(package: Path) -> None:
    """The extras of taskscaler name plugins, which require taskscaler: a circle for installers, never for imports."""
    if package.name not in ("fleeting", "taskscaler"):
        return
    plugins = {each.name.replace("-", "_") for each in PACKAGES} - {"fleeting", "taskscaler"}
    imported = {
        name.partition(".")[0]
        for source in package.glob("src/**/*.py")
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert not plugins & imported
    assert not {Requirement(line).name.replace("-", "_") for line in project(package)["dependencies"]} & plugins


def test_every_distribution_is_in_an_extra_of_taskscaler(package: Path) -> None:
    """`[all]` brings every one, and `[aws]` and the like those of one cloud."""
    extras = project(ROOT / "packages/taskscaler")["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    assert everything.name == "taskscaler"
    assert everything.extras == extras.keys() - {"all"}
    named = {Requirement(line).name for name in everything.extras for line in extras[name]}
    assert package.name in named | {
        "taskscaler",
        "fleeting-docker-engine",  # which the two of docker bring
        "gitlab-jobs",  # which needs no taskscaler
        "job-steps",  # the same
        "taskscaler-gitlab",  # a program, which brings taskscaler
    }
    for extra, plugin in EXTRAS.items():
        assert plugin in {Requirement(line).name for line in extras[extra]}
