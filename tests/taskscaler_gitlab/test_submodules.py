"""Submodules of projects, from the same GitLab."""

import subprocess
from pathlib import Path

import pytest

from gitlab_jobs import Job
from tests.taskscaler_gitlab.projects import BUSYBOX, GIT, Project, Server, Slot

pytestmark = pytest.mark.slow


@pytest.fixture
def inner(server: Server, tmp_path: Path) -> Project:
    """A project without submodules."""
    project = server.project(f"group/{tmp_path.name}-inner")
    project.commit({"in": "1"})
    return project


@pytest.fixture
def lib(server: Server, tmp_path: Path, inner: Project) -> Project:
    """A project with one, named by an address relative to its own."""
    project = server.project(f"group/{tmp_path.name}-lib")
    project.add_submodule("in ner", f"../{tmp_path.name}-inner.git", inner)
    project.commit({"lib": "1"})
    return project


@pytest.fixture
def top(server: Server, project: Project, lib: Project) -> Project:
    """A project with that one."""
    project.add_submodule("deep/lib", f"{server.url}/{lib.path}.git", lib)
    return project


def wanted(project: Project, strategy: str, files: dict[str, str], **variables: str) -> Job:
    """A job after a commit of these files."""
    sha = project.commit(files)
    return project.job(sha, depth=20, GIT_SUBMODULE_STRATEGY=strategy, **variables)


def advance(top: Project, lib: Project, files: dict[str, str]) -> None:
    """Commit to the submodule, and take that into the project."""
    sha = lib.commit(files)
    top.git("-C", "deep/lib", "fetch", "-q", "origin")
    top.git("-C", "deep/lib", "checkout", "-q", sha)


def test_submodules_come_as_the_job_wants(slot: Slot, top: Project, lib: Project) -> None:
    """None, the project's own, or theirs too; a later job gets what changed, and nothing that is left over."""
    nothing = wanted(top, "none", {"a": "1"})
    assert slot.fetch(nothing).status == 0
    assert slot.files(nothing) == {"a", ".gitmodules"}
    normal = wanted(top, "normal", {"a": "2"})
    ran = slot.fetch(normal)
    assert ran.status == 0, ran.output
    assert slot.files(normal) == {"a", ".gitmodules", "deep/lib/lib", "deep/lib/.gitmodules"}
    recursive = wanted(top, "recursive", {"a": "3"})
    ran = slot.fetch(recursive)
    assert ran.status == 0, ran.output
    assert slot.files(recursive) >= {"deep/lib/lib", "deep/lib/in ner/in"}
    (slot.project(recursive) / "deep/lib/left").touch()
    (slot.project(recursive) / "deep/lib/in ner/in").write_text("changed")
    advance(top, lib, {"more": "2"})
    later = wanted(top, "recursive", {"a": "4"})
    ran = slot.fetch(later)
    assert ran.status == 0, ran.output
    assert slot.files(later) >= {"deep/lib/more", "deep/lib/in ner/in"}
    assert "deep/lib/left" not in slot.files(later)
    assert (slot.project(later) / "deep/lib/in ner/in").read_text() == "1"
    assert slot.git(later, "status", "--porcelain") == ""


@pytest.mark.needs("busybox")
def test_an_image_with_nothing_but_busybox_and_git(one_slot: Slot, top: Project, lib: Project, tmp_path: Path) -> None:
    """As those that are made of Alpine: its `find`, `sed` and `grep` do as well."""
    place = tmp_path / "applets"
    place.mkdir()
    names = subprocess.run([BUSYBOX, "--list"], check=True, capture_output=True, text=True).stdout.split()
    for name in names:
        (place / name).symlink_to(BUSYBOX)
    (place / "git").symlink_to(GIT)
    slot = Slot(tmp_path, (str(place / "sh"),), one_slot.gitlab, {"PATH": str(place)})
    first = wanted(top, "recursive", {"a": "1"})
    ran = slot.fetch(first)
    assert ran.status == 0, ran.output
    damage = "mkdir .git/hooks; touch .git/index.lock .git/modules/deep/lib/config.lock"
    assert slot.run(f"cd {slot.project(first)}\n{damage}\necho gitdir: /evil > deep/lib/.git").status == 0
    advance(top, lib, {"more": "2"})
    job = wanted(top, "recursive", {"a": "2"})
    ran = slot.fetch(job)
    assert ran.status == 0, ran.output
    assert "lead out of this repository" in ran.output
    assert slot.files(job) >= {"a", "deep/lib/more", "deep/lib/in ner/in"}
    assert not (slot.project(job) / ".git" / "hooks").exists()
    assert "applet not found" not in ran.output


def test_only_some_of_them(one_slot: Slot, top: Project, lib: Project, server: Server) -> None:
    """Those whose paths the job names."""
    top.add_submodule("other", f"{server.url}/{lib.path}.git", lib)
    job = wanted(top, "normal", {"a": "1"}, GIT_SUBMODULE_PATHS="other", GIT_SUBMODULE_UPDATE_FLAGS="--jobs 2")
    ran = one_slot.fetch(job)
    assert ran.status == 0, ran.output
    assert one_slot.files(job) == {"a", ".gitmodules", "other/lib", "other/.gitmodules"}


def test_their_history_is_as_deep_as_the_job_wants(one_slot: Slot, top: Project, lib: Project) -> None:
    """By a variable of its own, apart from the project's."""
    for number in range(4):
        advance(top, lib, {"lib": f"v{number}"})
    job = wanted(top, "normal", {"a": "1"}, GIT_SUBMODULE_DEPTH="2")
    ran = one_slot.fetch(job)
    assert ran.status == 0, ran.output
    assert one_slot.git(job, "-C", "deep/lib", "rev-list", "--count", "HEAD") == "2"


def test_the_latest_of_a_branch(one_slot: Slot, top: Project, lib: Project) -> None:
    """With `--remote`, a submodule is what its branch is, which a shallow clone does not have at first."""
    sha = lib.commit({"dev": "1"}, "refs/heads/dev")
    top.git("config", "-f", ".gitmodules", "submodule.deep/lib.branch", "dev")
    job = wanted(top, "normal", {"a": "1"}, GIT_SUBMODULE_UPDATE_FLAGS="--remote", GIT_SUBMODULE_DEPTH="1")
    for _ in range(2):
        ran = one_slot.fetch(job)
        assert (ran.status, "again..." in ran.output) == (0, False), ran.output
        assert one_slot.git(job, "-C", "deep/lib", "rev-parse", "HEAD") == sha


def test_a_submodule_that_moves(one_slot: Slot, top: Project, lib: Project, server: Server) -> None:
    """To another address, to another path, and away: the next job has what its commit says."""
    assert one_slot.fetch(wanted(top, "recursive", {"a": "1"})).status == 0
    moved = server.project(f"{lib.path}-moved")
    sha = moved.commit({"moved": "1"})
    top.git("config", "-f", ".gitmodules", "submodule.deep/lib.url", f"{server.url}/{moved.path}.git")
    top.git("-C", "deep/lib", "fetch", "-q", str(moved.bare), "main")
    top.git("-C", "deep/lib", "checkout", "-q", sha)
    job = wanted(top, "recursive", {"a": "2"})
    ran = one_slot.fetch(job)
    assert ran.status == 0, ran.output
    assert one_slot.files(job) == {"a", ".gitmodules", "deep/lib/moved"}
    top.git("mv", "deep/lib", "elsewhere")
    job = wanted(top, "recursive", {"a": "3"})
    ran = one_slot.fetch(job)
    assert ran.status == 0, ran.output
    assert one_slot.files(job) == {"a", ".gitmodules", "elsewhere/moved"}
    top.git("rm", "-q", "elsewhere")
    job = wanted(top, "recursive", {"elsewhere": "a file"})
    ran = one_slot.fetch(job)
    assert ran.status == 0, ran.output
    assert one_slot.files(job) == {"a", ".gitmodules", "elsewhere"}


def test_addresses_for_ssh_are_fetched_by_https(one_slot: Slot, project: Project, lib: Project) -> None:
    """With the job's token, if it says so."""
    project.add_submodule("lib", f"git@gitlab.internal:{lib.path}.git", lib)
    variables = {"GIT_SUBMODULE_FORCE_HTTPS": "true", "CI_SERVER_HOST": "gitlab.internal"}
    job = wanted(project, "normal", {"a": "1"}, **variables)
    ran = one_slot.fetch(job)
    assert ran.status == 0, ran.output
    assert "lib/lib" in one_slot.files(job)


def test_scripts_fetch_in_submodules_too(one_slot: Slot, top: Project) -> None:
    """With the token of their environment."""
    job = wanted(top, "recursive", {"a": "1"})
    assert one_slot.fetch(job).status == 0
    environment = one_slot.environment(job)
    ran = one_slot.run(f"{environment.preamble()}\ncd {environment.project_dir}/deep/lib/in*\ngit fetch origin main")
    assert ran.status == 0, ran.output


@pytest.mark.parametrize("damage", ["rm -rf .git/modules/deep/lib/HEAD", "rm -rf .git/modules/deep/lib/objects/*"])
def test_a_damaged_submodule_is_cloned_again(one_slot: Slot, top: Project, lib: Project, damage: str) -> None:
    """Whatever a killed job left of it."""
    first = wanted(top, "recursive", {"a": "1"})
    assert one_slot.fetch(first).status == 0
    assert one_slot.run(f"cd {one_slot.project(first)}\n{damage}").status == 0
    advance(top, lib, {"more": "2"})
    job = wanted(top, "recursive", {"a": "2"})
    ran = one_slot.fetch(job)
    assert ran.status == 0, ran.output
    assert one_slot.files(job) >= {"a", "deep/lib/more", "deep/lib/in ner/in"}
