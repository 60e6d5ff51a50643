"""What earlier jobs leave in a clone: damage is repaired, and what was put there on purpose has no say."""

import shutil
from pathlib import Path

import pytest
from attrs import evolve, frozen

from gitlab_jobs import Job
from taskscaler_gitlab.runner._sources import clear_worktree_script, sources_script
from tests.taskscaler_gitlab.projects import GIT, SHELL, TOKEN, Project, Server, Slot

pytestmark = pytest.mark.slow


@frozen
class Clone:
    """A slot on which a job has left its clone, to be copied for each test, and the job that comes next."""

    slot: Slot
    first: Job
    next: Job

    def copy(self, to: Slot) -> None:
        """Leave the same on another slot, as if the job had run there."""
        shutil.copytree(self.slot.root, to.root, symlinks=True, dirs_exist_ok=True)
        for file in to.root.rglob("config"):
            file.write_text(file.read_text().replace(str(self.slot.root), str(to.root)))
        for index in to.project(self.first).rglob(".git"):  # remembers which files there were before
            to.git(self.first, "-C", str(index.parent), "update-index", "-q", "--refresh")


@pytest.fixture(scope="session")
def of_a_file(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone of the last commit alone, with one file, which changes."""
    project, slot = server.project("group/of-a-file"), Slot(tmp_path_factory.mktemp("clone"), SHELL, server.url)
    project.commit({"a": "1"})
    first = project.job(project.commit({"a": "2"}), depth=1)
    assert slot.fetch(first).status == 0
    return Clone(slot, first, project.job(project.commit({"a": "3"}), depth=1))


TEXT = "1\n2\n"


@pytest.fixture(scope="session")
def of_a_directory(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone of two files, which do not change."""
    project = server.project("group/of-a-directory")
    slot = Slot(tmp_path_factory.mktemp("clone"), SHELL, server.url)
    first = project.job(project.commit({"a": TEXT, "b/c": TEXT}))
    assert slot.fetch(first).status == 0
    return Clone(slot, first, project.job(project.commit({"d": "1"})))


@pytest.fixture(scope="session")
def of_a_submodule(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Clone, str]:
    """A clone with a submodule, and which commit of that comes next."""
    project, other = server.project("group/of-a-submodule"), server.project("group/of-a-submodule-lib")
    slot = Slot(tmp_path_factory.mktemp("clone"), SHELL, server.url)
    other.commit({"lib": "1"})
    project.add_submodule("lib", f"{server.url}/{other.path}.git", other)
    first = project.job(project.commit({"a": "1"}), GIT_SUBMODULE_STRATEGY="recursive")
    assert slot.fetch(first).status == 0
    latest = other.commit({"lib": "2"})
    project.git("-C", "lib", "fetch", "-q", "origin")
    project.git("-C", "lib", "checkout", "-q", latest)
    job = project.job(project.commit({"a": "2"}), GIT_SUBMODULE_STRATEGY="recursive")
    return Clone(slot, first, job), latest


DAMAGES = {
    "locks": "touch .git/index.lock .git/HEAD.lock .git/config.lock .git/shallow.lock .git/refs/heads/x.lock"
    " .git/packed-refs.lock .git/refs/remotes/origin/main.lock",
    "no head": "rm .git/HEAD",
    "half a head": ": > .git/HEAD",
    "a head elsewhere": "echo 'ref: ../../../x' > .git/HEAD",
    "half an index": "printf DIRC > .git/index",
    "no objects": "rm -rf .git/objects",
    "an empty object": "rm -rf .git/objects/*; git init -q .; echo x | git hash-object -w --stdin; chmod -R +w .git;"
    " find .git/objects -type f -exec sh -c ': > \"$1\"' sh {} ';'",
    "empty packs": "chmod -R +w .git/objects; find .git/objects -type f -exec sh -c ': > \"$1\"' sh {} ';'",
    "a branch that is none": "echo x > .git/refs/remotes/origin/main",
    "an empty branch": ": > .git/refs/remotes/origin/main",
    "half a list of branches": "echo 'not one' > .git/packed-refs",
    "a shallow file that is none": "echo x > .git/shallow",
    "an empty configuration": ": > .git/config",
    "a broken configuration": "echo '[x' > .git/config",
    "killed early": "rm -rf .git; mkdir -p .git/objects/pack .git/refs; : > .git/objects/pack/tmp_pack_1",
    "a file in its place": "rm -rf .git; echo 'gitdir: /nowhere' > .git",
    "a link in its place": "mv .git ../elsewhere; ln -s ../elsewhere .git",
    "a link to nowhere": "rm -rf .git; ln -s nowhere .git",
    "a merge": "git -c user.name=x -c user.email=x commit -q --allow-empty -m x; git checkout -q -b y HEAD~1;"
    " : > .git/MERGE_HEAD; mkdir .git/rebase-merge",
    "a worktree": "git worktree add -q ../other -b main",
    "not a directory": 'cd ..; rm -rf "$OLDPWD"; echo x > "$OLDPWD"',
    "directories in the way": "rm a; mkdir -p a/b; touch a/b/c",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_repaired(one_slot: Slot, of_a_file: Clone, damage: str) -> None:
    """Whatever a killed job left, the next one has its sources, and all of them."""
    of_a_file.copy(one_slot)
    job = of_a_file.next
    one_slot.run(f"cd {one_slot.project(job)}\n{damage}")
    ran = one_slot.fetch(job)
    assert ran.status == 0, ran.output
    assert one_slot.head(job) == job.git_info.sha
    assert one_slot.files(job) == {"a"}
    assert one_slot.git(job, "status", "--porcelain") == ""
    assert (
        one_slot.run(f"cd {one_slot.project(job)}\ngit fsck --connectivity-only --no-dangling --no-reflogs").output
        == ""
    )


def test_a_clone_is_kept_if_it_is_not_to_blame(one_slot: Slot, project: Project) -> None:
    """A commit that is not there, or a GitLab that is away, costs no clone."""
    job = project.job(project.commit({"a": "1"}))
    assert one_slot.fetch(job).status == 0
    marker = one_slot.project(job) / ".git" / "kept"
    marker.touch()
    ran = one_slot.fetch(project.job("0" * 40))
    assert (ran.status, "damaged" in ran.output) == (1, False)
    away = evolve(job, git_info=evolve(job.git_info, repo_url="http://127.0.0.1:9/x.git"))
    script = sources_script(away, one_slot.environment(job), one_slot.settings())
    assert one_slot.run(script).status == 1
    assert marker.exists()


def test_a_killed_fetch_is_finished(slot: Slot, project: Project) -> None:
    """A git that dies while it fetches, with its machine or its job, leaves nothing that stops the next one."""
    job = project.job(project.commit({f"file-{number}": "x" * number for number in range(200)}))
    killer = """case " $* " in *" fetch "*) (sleep 0.01; kill -KILL $$) & ;; esac"""
    assert slot.with_programs(git=f'{killer}\nexec {GIT} "$@"').fetch(job).status != 0
    ran = slot.fetch(job)
    assert ran.status == 0, ran.output
    assert slot.head(job) == job.git_info.sha


def traps(evil: str) -> dict[str, str]:
    """What a job may leave in its clone for the next one, which would run `evil`."""
    script = f"printf '#!/bin/sh\\n{evil}\\n' > {{0}}; chmod +x {{0}}"
    inner = script.format(".git/modules/lib/hooks/post-checkout")
    hooks = "; ".join(script.format(f".git/hooks/{name}") for name in ("post-checkout", "reference-transaction"))
    monitor = f"core.fsmonitor '{evil} false'"
    return {
        "hooks": f"mkdir -p .git/hooks; {hooks}",
        "a directory of hooks": f"mkdir hooks; {script.format('hooks/post-checkout')}; git config core.hooksPath hooks",
        "fsmonitor": f"git config {monitor}",
        "a filter": f"git config filter.x.smudge '{evil} cat'; mkdir -p .git/info;"
        " echo '* filter=x' > .git/info/attributes; rm a",
        "the worktree's own": f"git config extensions.worktreeConfig true; git config --worktree {monitor}",
        "a link": f"git config -f ../its {monitor}; ln -sf ../../its .git/config",
        "another directory": f"""git init -q ../own; git -C ../own config {monitor};
            echo ../../own/.git > .git/commondir""",
        "another helper": f"git config --add credential.helper '!{evil} cat'",
        "another address": "git config url.http://127.0.0.1:9/.insteadOf http://",
        "a proxy": "git config http.proxy http://127.0.0.1:9",
        "hooks of a submodule": f"mkdir -p .git/modules/lib/hooks; {inner}",
        "fsmonitor of a submodule": f"git -C lib config {monitor}",
        "a link in a submodule": f"git config -f ../its {monitor}; ln -sf ../../../../its .git/modules/lib/config",
        "a submodule elsewhere": f"""mv .git/modules/lib ../own; echo "gitdir: $PWD/../own" > lib/.git;
            git config -f ../own/config {monitor}; git config -f ../own/config core.worktree $PWD/lib""",
        "a submodule with a directory": f"""rm lib/.git; cp -r .git/modules/lib lib/.git;
            git config -f lib/.git/config --unset core.worktree; git config -f lib/.git/config {monitor}""",
        "submodules elsewhere": f"""mv .git/modules ../own; ln -s ../../own .git/modules;
            git config -f ../own/lib/config {monitor}; git config -f ../own/lib/config core.worktree $PWD/lib""",
        "a command to update a submodule": f"git config submodule.lib.update '!{evil} git checkout -q'",
    }


@pytest.mark.parametrize("trap", list(traps("")))
def test_what_was_left_does_not_run(one_slot: Slot, of_a_submodule: tuple[Clone, str], trap: str) -> None:
    """Neither while sources are fetched, nor when the next job's script uses git."""
    clone, latest = of_a_submodule
    clone.copy(one_slot)
    job = clone.next
    evil = f"touch {one_slot.root}/evil;"
    ran = one_slot.run(f"set -e\ncd {one_slot.project(job)}\n{traps(evil)[trap]}")
    assert ran.status == 0, ran.output
    (one_slot.root / "evil").unlink(missing_ok=True)
    ran = one_slot.fetch(job, after="git status >/dev/null\ngit -C lib status >/dev/null\ngit submodule status")
    assert ran.status == 0, ran.output
    assert latest in ran.output
    assert one_slot.files(job) == {"a", "lib/lib", ".gitmodules"}
    assert not (one_slot.root / "evil").exists()
    assert TOKEN not in ran.output


FSMONITOR = r"""printf '#!/bin/sh\nprintf "x\\0"\n' > .git/monitor; chmod +x .git/monitor
git config core.fsmonitor .git/monitor; git update-index --fsmonitor; git status; echo evil > a"""
"""A monitor of files that says of none that it has changed: the index remembers that."""

BELIEFS = {
    "unchanged": "git update-index --assume-unchanged a; echo evil > a",
    "skipped": "git update-index --skip-worktree a; echo evil > a",
    "replaced": "git replace $(git rev-parse HEAD:a) $(echo evil | git hash-object -w --stdin); git pack-refs --all;"
    " rm a",
    "sparse": "git sparse-checkout set b",
    "excluded": "mkdir -p .git/info; echo a > .git/info/exclude; echo '/a -diff' > .git/info/attributes; rm a",
    "monitored": FSMONITOR,
    "a split index": "git update-index --split-index; echo evil > a",
    "half of a split index": "git update-index --split-index; rm .git/sharedindex.*",
    "a cache of what is untracked": "git config core.untrackedCache true; git update-index --untracked-cache;"
    " git status; touch b/new",
    "grafts": "mkdir -p .git/info; git rev-parse HEAD > .git/info/grafts",
    "other objects that are gone": "echo /nonexistent > .git/objects/info/alternates",
    "other objects that are its own": "echo ../objects > .git/objects/info/alternates",
    "files elsewhere": "git config core.worktree /nonexistent",
    "files elsewhere, as the worktree's own": "git config extensions.worktreeConfig true;"
    " git config --worktree core.worktree /nonexistent",
    "branches in the way": "git branch none; git branch $(git rev-parse HEAD)",
    "a format that is not known": "git config core.repositoryformatversion 99",
    "objects that are at the server": "git config extensions.partialClone origin;"
    " git config remote.origin.promisor true",
    "a graph of commits that is wrong": "git commit-graph write --reachable; chmod +w .git/objects/info/commit-graph;"
    " printf xxxxxxxxxxxx | dd of=.git/objects/info/commit-graph bs=1 seek=200 conv=notrunc",
    "attributes that are untracked": "echo '* text eol=crlf' > .gitattributes; rm a",
    "attributes that were added": "echo '* text eol=crlf' > .gitattributes; git add .gitattributes; rm a",
    "attributes of a directory": "echo '* text eol=crlf' > b/.gitattributes; rm b/c",
    "attributes that are a link": "echo '* text eol=crlf' > x; ln -s x .gitattributes; rm a",
    "a pipe in place of the index": "rm .git/index; mkfifo .git/index",
    "pipes in place of what git reads": "for each in packed-refs shallow FETCH_HEAD objects/info/alternates"
    " objects/info/commit-graph; do rm -f .git/$each; mkfifo .git/$each; done",
    "pipes among the files": "rm a b/c; mkfifo a b/c .gitattributes b/.gitattributes .gitmodules",
}


@pytest.mark.parametrize("change", BELIEFS.values(), ids=BELIEFS.keys())
def test_files_are_those_of_the_commit(one_slot: Slot, of_a_directory: Clone, change: str) -> None:
    """Whatever an earlier job made git believe of them, or had it wait for."""
    of_a_directory.copy(one_slot)
    job = of_a_directory.next
    ran = one_slot.run(f"set -e\ncd {one_slot.project(job)}\n{change}")
    assert ran.status == 0, ran.output
    ran = one_slot.fetch(job)
    assert ran.status == 0, ran.output
    assert one_slot.files(job) == {"a", "b/c", "d"}
    assert [(one_slot.project(job) / name).read_bytes().decode() for name in ("a", "b/c")] == [TEXT, TEXT]
    assert one_slot.git(job, "status", "--porcelain") == ""


@pytest.mark.parametrize("strategy", ["fetch", "clone", "empty"])
def test_links_lead_nowhere(slot: Slot, project: Project, tmp_path: Path, strategy: str) -> None:
    """A link in place of the project's directory, or of the one for temporary files, is removed, not followed."""
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o755)
    (victim / "precious").write_text("x")
    job = project.job(project.commit({"a": "1"}), GIT_STRATEGY=strategy)
    place = slot.project(job)
    place.parent.mkdir(parents=True)
    place.symlink_to(victim)
    place.with_name(f"{place.name}.tmp").symlink_to(victim)
    assert slot.fetch(job).status == 0
    assert [each.name for each in victim.iterdir()] == ["precious"]
    assert victim.stat().st_mode & 0o777 == 0o755
    assert not place.is_symlink()


def test_the_files_are_removed_before_another_attempt(slot: Slot, project: Project) -> None:
    """Tracked ones and others; the clone stays."""
    job = project.job(project.commit({"a": "1"}))
    assert slot.run(clear_worktree_script(slot.environment(job))).status == 0
    assert slot.fetch(job).status == 0
    (slot.project(job) / "left").touch()
    ran = slot.run(clear_worktree_script(slot.environment(job)))
    assert (ran.status, slot.files(job)) == (0, set()), ran.output
    assert slot.fetch(job).status == 0
    assert slot.files(job) == {"a"}


def test_files_of_another_owner(one_slot: Slot, project: Project) -> None:
    """A clone whose files belong to another user, as of a container, is fetched all the same."""
    job: Job = project.job(project.commit({"a": "1"}))
    assert one_slot.fetch(job).status == 0
    if one_slot.run(f"chown -R 12345 {one_slot.project(job)}").status != 0:
        pytest.skip("only root gives files away")
    ran = one_slot.fetch(project.job(project.commit({"a": "2"})))
    assert ran.status == 0, ran.output
