"""The workspace keeps its own promises: one test command, pinned versions, complete packages, guarded tests."""

import ast
import os
import re
import socket
import subprocess
import sys
import tokenize
import tomllib
from functools import cache
from importlib.metadata import distribution, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import trio
from anyio.lowlevel import checkpoint
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests import pages
from tests.in_part import IN_PART, LATER, SAMPLED, SAMPLES
from tests.one_backend import COLLECTED, IN_TURN

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))


def read(project: Path) -> dict[str, Any]:
    """Return a project's pyproject.toml."""
    return tomllib.loads((project / "pyproject.toml").read_text())


def pins() -> dict[str, str]:
    """Return the pinned versions by canonical name."""
    pinned = (line.split("==") for line in read(ROOT)["tool"]["uv"]["constraint-dependencies"])
    return {canonicalize_name(name): number for name, number in pinned}


def collect(wanted: Requirement, seen: set[tuple[str, str]]) -> None:
    """Collect what is wanted, each extra by itself, and everything that it needs here, however far away."""
    name = canonicalize_name(wanted.name)
    for extra in {"", *wanted.extras}:
        if (name, extra) not in seen:
            seen.add((name, extra))
            for requirement in map(Requirement, requires(name) or ()):
                if not requirement.marker or requirement.marker.evaluate({"extra": extra}):
                    collect(requirement, seen)


def test_continuous_integration_runs_the_readmes_test_command() -> None:
    """The second command of the README is a line of .ci/run, word for word."""
    commands = re.findall(r"python3 -m venv [^`\n]*", (ROOT / "README.md").read_text())
    assert len(commands) == 2
    assert commands[1] in (ROOT / ".ci" / "run").read_text().splitlines()


def test_what_the_suite_leaves_out_is_there() -> None:
    """Nothing is left out for good because it was renamed."""
    for place in (*IN_PART, *IN_TURN, *LATER, *SAMPLED, *SAMPLES):
        file, _, names = place.partition("[")[0].partition("::")
        assert (ROOT / file).exists()
        name = names.partition("::")[0]
        assert not name or re.search(f"(def|class) {name}", (ROOT / file).read_text()), place
    assert all(f'"{option}"' in (ROOT / "noxfile.py").read_text() for option in ("--rest", "--later"))
    assert "run nox -s later" in (ROOT / ".ci" / "run").read_text()


def test_every_state_machine_has_more_seeds(pytestconfig: pytest.Config) -> None:
    """`nox -s full` plays each with other examples, wherever it is; what is collected here is looked at."""
    machines = {
        item.path.relative_to(ROOT).as_posix() for item in pytestconfig.stash[COLLECTED].all if item.name == "runTest"
    }
    listed = (ROOT / "noxfile.py").read_text()
    assert [each for each in sorted(machines) if f'"{each}"' not in listed] == []


def test_the_first_command_fetches_no_sdk() -> None:
    """Who tries the quickstart, with --no-dev, does not wait for hundreds of megabytes of clouds nobody asked for."""
    seen: set[tuple[str, str]] = set()
    for requirement in map(Requirement, read(ROOT)["project"]["dependencies"]):
        collect(requirement, seen)
    names = {name for name, _ in seen}
    assert {"taskscaler", "paramiko", "matplotlib"} <= names
    assert not names & {"boto3", "google-cloud-compute", "azure-mgmt-compute", "pytest"}
    assert "uv run --no-dev taskscaler run" in (ROOT / "README.md").read_text()


def test_jobs_in_containers_need_no_ssh_and_bring_no_group() -> None:
    """The executor shares the client of the Engine API with the group of containers, and nothing else of it."""
    seen: set[tuple[str, str]] = set()
    collect(Requirement("executor-docker"), seen)
    names = {name for name, _ in seen}
    assert {"fleeting", "fleeting-docker-engine", "taskscaler"} <= names
    assert not names & {"fleeting-docker", "paramiko"}
    groups = [each for name in names for each in distribution(name).entry_points if each.group == "fleeting.groups"]
    assert sorted(each.name for each in groups) == ["local", "static"]


INSTALLED_GROUPS = ("dev", "docs") if find_spec("sphinx") else ("dev",)
"""The site's is there where ``nox -s docs`` builds it, which runs the test below."""


@pytest.mark.parametrize("group", INSTALLED_GROUPS)
def test_every_version_is_pinned_and_the_pinned_one_is_installed(group: str) -> None:
    """What the workspace needs, indirectly too, has its version in the root pyproject.toml."""
    project = read(ROOT)
    asked_for = [*project["project"]["dependencies"], *project["dependency-groups"][group]]
    seen: set[tuple[str, str]] = set()
    for requirement in map(Requirement, asked_for):
        collect(requirement, seen)
    needed = {name for name, _ in seen} - {package.name for package in PACKAGES}
    assert "matplotlib" in needed
    assert {name: version(name) for name in needed} == {name: pins().get(name) for name in needed}


def test_every_dependency_of_a_package_is_pinned() -> None:
    """Those of extras and of plugins that are not installed by default too."""
    own = {package.name for package in PACKAGES}
    for package in PACKAGES:
        project = read(package)["project"]
        extras = project.get("optional-dependencies", {}).values()
        for line in [*project["dependencies"], *(line for extra in extras for line in extra)]:
            assert canonicalize_name(Requirement(line).name) in own | pins().keys()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_is_complete(package: Path) -> None:
    """Types, licence, readme and changelog fragments are shipped with each."""
    project = read(package)["project"]
    assert (package / project["readme"]).is_file()
    assert (package / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert "Typing :: Typed" in project["classifiers"]
    assert (package / "src" / package.name.replace("-", "_") / "py.typed").is_file()
    assert (package / "CHANGELOG.md").is_file()


NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
"""Tokens that make no line one of code; a docstring is found by the parser."""


def lines_of_code(source: Path) -> int:
    """Count the lines with code on them: not blank, not only a comment, and not of a docstring."""
    with source.open("rb") as file:
        tokens = [each for each in tokenize.tokenize(file.readline) if each.type not in NO_CODE and each.string]
    lines = {line for each in tokens for line in range(each.start[0], each.end[0] + 1)}
    strings = [
        each
        for each in ast.walk(ast.parse(source.read_text()))
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)
    ]
    return len(lines - {line for each in strings for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)})


def test_lines_of_code_are_counted_as_the_documentation_says(tmp_path: Path) -> None:
    """A module with one statement on two lines has two."""
    source = tmp_path / "module.py"
    source.write_text('"""About."""\n\n# why\nX = (\n    1)  # one\n"""What it is,\nat length."""\n')
    assert lines_of_code(source) == 2


CLOUDS = [package for package in PACKAGES if package.name in {"fleeting-aws", "fleeting-azure", "fleeting-gcp"}]


@pytest.mark.parametrize("package", CLOUDS, ids=lambda package: package.name)
def test_a_clouds_plugin_stays_small(package: Path) -> None:
    """Three or four files beside the root, and fewer lines of code than its page says, 750 at most."""
    sources = sorted(package.glob("src/*/**/*.py"))
    assert len([source for source in sources if source.name != "__init__.py"]) in {3, 4}
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    told = re.search(rf"^### {package.name}\n\nFewer than (\d+) lines of code", page, flags=re.MULTILINE)
    assert told
    assert sum(lines_of_code(source) for source in sources) < int(told[1]) <= 750


def test_fleeting_never_imports_what_is_above_it() -> None:
    """Dependencies have one direction, and nothing imports a plugin by name."""
    above = re.compile(r"^\s*(?:from|import) (?:taskscaler|executor_docker|fleeting_\w+)", flags=re.MULTILINE)
    sources = (ROOT / "packages/fleeting/src").rglob("*.py")
    assert [path for path in sources if above.search(path.read_text())] == []


def test_nothing_but_fleeting_archives_unpacks() -> None:
    """What is in tarfile and shutil follows links, and its filters are newer than the oldest Python that we run on."""
    calls = [
        f"{source}:{node.lineno}"
        for source in ROOT.glob("packages/*/src/**/*.py")
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"extract", "extractall", "unpack_archive", "data_filter"}
    ]
    assert calls == []


TAKE_IN = """
import sys, tempfile
from pathlib import Path
from fleeting.archives import pack
from taskscaler.executors.artifacts import take_in

with tempfile.TemporaryDirectory() as directory:
    base = Path(directory)
    (base / "file").write_text("content")
    (base / "archive").write_bytes(b"".join(pack({"out/file": base / "file"})))
    missing = take_in(base / "archive", base / "contents", base / "target", ["out/*", "other"], limit=100)
    print(missing, (base / "target" / "out" / "file").read_text())
"""


def test_the_systems_own_python_takes_artifacts_in() -> None:
    """The README's first command runs on it; here it may not be what runs the tests. Debian 12 has 3.11.2."""
    pythons = {sys.executable, "/usr/bin/python3"}
    supported = SpecifierSet(read(ROOT)["project"]["requires-python"])
    installed = [path for path in sys.path if "site-packages" in path or not path.startswith(sys.base_prefix)]
    for python in filter(os.path.exists, pythons):
        asked = [python, "-c", "import platform; print(platform.python_version())"]
        number = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        if number in supported:
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(installed)}
            done = subprocess.run([python, "-c", TAKE_IN], check=False, capture_output=True, text=True, env=env)
            assert (number, done.stdout, done.stderr) == (number, "['other'] content\n", "")


def links(page: Path) -> set[tuple[Path, str]]:
    """What a page of the repository links to beside it: files, with the headings in them if any is named."""
    targets = (link.partition("#") for link in pages.links(page.read_text()) if "://" not in link)
    return {((page.parent / path).resolve() if path else page, heading) for path, _, heading in targets}


BELOW = [
    path for path in ROOT.glob("[!.]*/**/*.md") if not any(part[0] == "." for part in path.relative_to(ROOT).parts)
]
PAGES = [*ROOT.glob("*.md"), *BELOW]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_leads_nowhere(page: Path) -> None:
    """Whatever a page links to beside it is there, and so is the heading."""
    found = links(page)
    assert [str(target) for target, _ in found if not target.exists()] == []
    assert [f"{file}#{name}" for file, name in found if name and name not in anchors(file)] == []


@cache
def anchors(page: Path) -> set[str]:
    """The headings of a page; hundreds of links lead to some."""
    return pages.anchors(page.read_text())


def test_every_page_of_the_documentation_is_in_its_index() -> None:
    """A page that nothing leads to is not read."""
    there = {path for path in ROOT.glob("docs/*/*.md") if path.name != "README.md"}
    linked = {target for target, _ in links(ROOT / "docs" / "README.md")}
    assert [str(page.relative_to(ROOT)) for page in there - linked] == []


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
def test_the_guard_refuses_other_machines(host: str) -> None:
    """A connection fails before a packet leaves, and ``except Exception`` does not hide it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        with pytest.raises(pytest.fail.Exception, match="tests stay on this machine"):
            sock.connect((host, 9))
        with pytest.raises(pytest.fail.Exception, match="tests stay on this machine"):
            sock.sendto(b"", (host, 9))


def test_the_guard_refuses_to_look_names_up() -> None:
    """Even a name's look-up would ask another machine."""
    with pytest.raises(pytest.fail.Exception, match=r"'cloud\.example'"):
        socket.getaddrinfo("cloud.example", 443)


@pytest.mark.anyio
async def test_asynchronous_tests_run_on_both_backends(anyio_backend: str) -> None:
    """The fixture's name is the library that runs."""
    await checkpoint()
    assert trio.lowlevel.in_trio_run() == (anyio_backend == "trio")
