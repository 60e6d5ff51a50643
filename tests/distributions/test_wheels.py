"""What is published works elsewhere: installed from its wheels, in an empty environment outside the repository."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from email.parser import HeaderParser
from email.policy import default
from importlib.metadata import requires, version
from pathlib import Path
from socket import create_server

import pytest
from attrs import frozen
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.e2e.leftovers import agents, environment, instances

ROOT = Path(__file__).parents[2]
WANTED = "taskscaler[exec]"
"""With one plugin, which needs no cloud."""

PAGES = (ROOT / "README.md", ROOT / "packages/fleeting/README.md", ROOT / "packages/taskscaler/README.md")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@frozen
class Elsewhere:
    """An environment with the wheels, and an empty directory beside it."""

    base: Path
    wheels: Path

    @property
    def bin(self) -> Path:
        """Where its commands are."""
        return self.base / "venv" / "bin"

    @property
    def home(self) -> Path:
        """A directory for state and temporary files, to see what is left."""
        return self.base / "home"

    @property
    def work(self) -> Path:
        """Where commands run."""
        return self.base / "work"

    @property
    def env(self) -> dict[str, str]:
        """A user's, who has no path to the repository; what Python compiles is kept, because much is run."""
        left_out = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
        return {key: value for key, value in environment(self.home).items() if key not in left_out}

    def install(self, *wanted: str) -> None:
        """Make the environment, and install these with what their wheels require, and nothing else."""
        uv("venv", "--quiet", "--python", sys.executable, self.base / "venv")
        seen: dict[str, set[str]] = {}
        for each in wanted:
            needed(Requirement(each), self.wheels, seen)
        exact = [str(wheel_of(name, self.wheels) or f"{name}=={version(name)}") for name in seen]
        python = ("--quiet", "--python", self.bin / "python")
        uv("pip", "install", *python, "--no-deps", *exact)
        uv("pip", "check", *python)

    def run(self, program: str, *arguments: str | Path) -> str:
        """Run one of its commands; returns what it printed."""
        return run(self.bin / program, *arguments, cwd=self.work, env=self.env)


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Run a command that must succeed; returns its output."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def uv(*arguments: str | Path) -> str:
    """Run uv on what its cache has, or else fetch what is missing, as on a machine whose cache is another's."""
    program = os.environ.get("UV") or shutil.which("uv", path=f"{ROOT / '.uv/bin'}{os.pathsep}{os.environ['PATH']}")
    assert program, "these tests need uv, as `uv run` and .uv/bin have it"
    env = {key: value for key, value in os.environ.items() if value != str(ROOT / "tests/authority.pem")}
    done = subprocess.run(
        [program, *arguments, "--offline"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else run(program, *arguments, env=env)


def needed(wanted: Requirement, wheels: Path, seen: dict[str, set[str]]) -> None:
    """Collect what is needed, by name, with its extras: of ours as the wheels say, of others as they are installed."""
    name = canonicalize_name(wanted.name)
    for extra in {"", *wanted.extras} - seen.setdefault(name, set()):
        seen[name].add(extra)
        for line in required_by_wheel(name, wheels) or requires(name) or ():
            requirement = Requirement(line)
            if not requirement.marker or requirement.marker.evaluate({"extra": extra}):
                needed(requirement, wheels, seen)


def wheel_of(name: str, wheels: Path) -> Path | None:
    """The wheel of one of our distributions."""
    return next(wheels.glob(f"{name.replace('-', '_')}-[0-9]*.whl"), None)


def required_by_wheel(name: str, wheels: Path) -> list[str]:
    """What a wheel says that it requires; nothing if it is not ours."""
    wheel = wheel_of(name, wheels)
    if wheel is None:
        return []
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return list(HeaderParser(policy=default).parsestr(archive.read(metadata).decode()).get_all("Requires-Dist", []))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """Build every distribution and install one with one plugin: nothing else than what the wheels require."""
    base = tmp_path_factory.mktemp("elsewhere")
    there = Elsewhere(base=base, wheels=base / "wheels")
    uv("build", "--quiet", "--all-packages", "--out-dir", there.wheels)
    there.install(WANTED)
    there.work.mkdir()
    (there.home / "tmp").mkdir(parents=True)
    yield there
    assert (agents(there.home), instances(there.home)) == ([], [])


@pytest.fixture(scope="module")
def programs(elsewhere: Elsewhere) -> list[Path]:
    """The Python programs of the READMEs, as files in the directory."""
    files = []
    for page in PAGES:
        for number, program in enumerate(re.findall(r"(?ms)^```python\n(.*?)^```", page.read_text()), start=1):
            file = elsewhere.work / f"{page.parent.name.replace('-', '_')}_{number}.py"
            file.write_text(program)
            files.append(file)
    return files


def test_every_distribution_is_fit_for_an_index(elsewhere: Elsewhere) -> None:
    """A wheel and an sdist of each, which the index's own check accepts without a warning."""
    names = sorted(path.parent.name.replace("-", "_") for path in ROOT.glob("packages/*/pyproject.toml"))
    files = sorted(elsewhere.wheels.glob("*-*"))
    assert sorted(file.name.partition("-")[0] for file in files) == sorted([*names, *names])
    run(sys.executable, "-m", "twine", "check", "--strict", *files)


def test_a_wheel_has_what_its_package_has(elsewhere: Elsewhere) -> None:
    """Scripts, templates and `py.typed` as well as modules; and nothing beside the package but the metadata."""
    for project in ROOT.glob("packages/*/pyproject.toml"):
        wheel = wheel_of(project.parent.name, elsewhere.wheels)
        assert wheel
        sources = project.parent / "src"
        there = {path.relative_to(sources).as_posix() for path in sources.rglob("*") if path.is_file()}
        with zipfile.ZipFile(wheel) as archive:
            packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert packed == {name for name in there if "__pycache__" not in name}


def test_the_readmes_programs_run(elsewhere: Elsewhere, programs: Sequence[Path]) -> None:
    """Each as printed, in a directory that has nothing else, with what the wheels brought."""
    assert len(programs) >= 5
    for program in programs:  # one after the other: by default they share a fleet's name
        assert elsewhere.run("python", program)


def test_the_commands_and_the_plugin_are_there(elsewhere: Elsewhere) -> None:
    """The README's batch runs, and a file that names the plugin is understood."""
    number = tomllib.loads((ROOT / "packages/taskscaler/pyproject.toml").read_text())["project"]["version"]
    assert elsewhere.run("taskscaler", "--version") == f"taskscaler, version {number}\n"
    assert "fleeting_exec" in elsewhere.run("fleeting", "plugins")
    assert "docker-machine" in elsewhere.run("fleeting-docker-machine", "--help")
    (block,) = re.findall(r"(?ms)^```toml\n(.*?)^```", PAGES[2].read_text())
    (elsewhere.work / "jobs.toml").write_text(block)
    elsewhere.run("taskscaler", "run", "jobs.toml", "--output", "out")
    results = json.loads((elsewhere.work / "out/results.json").read_text())
    assert [job["state"] for job in results["jobs"]] == ["succeeded"] * 6


def test_type_checkers_accept_the_readmes_programs(elsewhere: Elsewhere, programs: Sequence[Path]) -> None:
    """Strict ones, mypy and pyright, see the types that the wheels ship: nothing in them is unknown or ignored."""
    python, cache = elsewhere.bin / "python", elsewhere.base / "mypy"
    mypy = ("--strict", "--cache-dir", cache, "--python-executable", python)
    run(sys.executable, "-m", "mypy", *mypy, *programs, cwd=elsewhere.work)
    config = elsewhere.work / "pyrightconfig.json"
    config.write_text(json.dumps({"typeCheckingMode": "strict", "pythonVersion": "3.11"}))
    run(sys.executable, "-m", "basedpyright", "--pythonpath", python, *programs, cwd=elsewhere.work)


def test_the_runners_guide_runs(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """Two commands, a GitLab and a runner, in an environment that has nothing else: twenty jobs end as expected."""
    there = Elsewhere(base=tmp_path, wheels=elsewhere.wheels)
    (there.home / "tmp").mkdir(parents=True)
    there.install("taskscaler-gitlab", "gitlab-jobs[server]")
    with create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    for name in ("config.toml", "jobs.toml"):
        text = (ROOT / "examples/gitlab" / name).read_text()
        (tmp_path / name).write_text(text.replace("127.0.0.1:8929", address))
    env = {**there.env, "XDG_RUNTIME_DIR": str(there.home)}
    fake = (there.bin / "gitlab-jobs", "fake", "jobs.toml", "--token", "glrt-on-your-desk", "--bind", address)
    with (
        subprocess.Popen(fake, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as gitlab,
        subprocess.Popen([there.bin / "taskscaler-gitlab", "run", "config.toml"], cwd=tmp_path, env=env) as runner,
    ):
        said, _ = gitlab.communicate()
        run(there.bin / "taskscaler", "drain", "--delete", cwd=tmp_path, env=env)
        assert runner.wait() == 0
    assert (gitlab.returncode, said.splitlines()[-1]) == (0, "20 of 20 jobs ended as expected"), said
    assert (agents(there.home), instances(there.home)) == ([], [])
