"""The sources of jobs, from a real repository, in every shell of this machine."""

from pathlib import Path

import pytest
from attrs import evolve
from trustme import CA

from taskscaler_gitlab.runner._sources import sources_script
from tests.taskscaler_gitlab.projects import GIT, SHELL, TOKEN, Project, Server, Slot, serving


def test_a_project_is_cloned_and_then_fetched(slot: Slot, project: Project) -> None:
    """The second job gets what is new, and nothing that the first one left."""
    first = project.job(project.commit({"a": "1", "b/c": "2"}))
    ran = slot.fetch(first)
    assert (ran.status, ran.output.endswith("the end\n")) == (0, True), ran.output
    assert slot.head(first) == first.git_info.sha
    assert slot.files(first) == {"a", "b/c"}
    marker = slot.project(first) / ".git" / "kept"
    marker.touch()
    (slot.project(first) / "left").write_text("x")
    (slot.project(first) / "a").write_text("changed")
    project.git("rm", "-q", "b/c")
    second = project.job(project.commit({"d": "3"}))
    ran = slot.fetch(second)
    assert ran.status == 0, ran.output
    assert slot.head(second) == second.git_info.sha
    assert slot.files(second) == {"a", "d"}
    assert (slot.project(second) / "a").read_text() == "1"
    assert marker.exists()


def test_the_token_is_seen_nowhere(slot: Slot, project: Project, server: Server, tmp_path: Path) -> None:
    """Not among the arguments of any process, in no file of the instance, and not in the output."""
    other = server.project(f"group/{tmp_path.name}-lib")
    other.commit({"lib": "1"})
    project.add_submodule("lib", f"{server.url}/{other.path}.git", other)
    recorder = slot.with_programs(git=f'printf "%s\\n" "$@" >> {tmp_path}/arguments\nexec {GIT} "$@"')
    job = project.job(project.commit({"a": "1"}), GIT_SUBMODULE_STRATEGY="normal")
    with server.watching() as seen:
        for _ in range(2):
            ran = recorder.fetch(job, after="git fetch -q origin main\ngit config -l")
            assert ran.status == 0, ran.output
            assert TOKEN not in ran.output
        processes = seen.read_bytes()
    assert slot.files(job) >= {"a", "lib/lib"}
    assert "fetch" in (tmp_path / "arguments").read_text().splitlines()
    below = [place for place in tmp_path.rglob("*") if place.is_file() and not place.is_symlink()]
    assert [str(place) for place in below if TOKEN.encode() in place.read_bytes()] == []
    assert b"fetch" in processes or not Path("/proc/self").exists()
    assert TOKEN.encode() not in processes
    assert any("known" in line for line in server.requests)


def test_the_job_itself_may_use_git(one_slot: Slot, project: Project) -> None:
    """A script fetches and pushes with the token of its environment."""
    job = project.job(project.commit({"a": "1"}))
    environment = one_slot.environment(job)
    assert one_slot.fetch(job).status == 0
    project.git("--git-dir", str(project.bare), "config", "http.receivepack", "true")
    script = "cd {}\ngit fetch origin main\ngit push -q origin HEAD:refs/heads/new\n"
    ran = one_slot.run(environment.preamble() + "\n" + script.format(environment.project_dir))
    assert ran.status == 0, ran.output
    assert project.git("--git-dir", str(project.bare), "rev-parse", "new") == job.git_info.sha


def test_no_other_helper_is_asked(one_slot: Slot, project: Project, tmp_path: Path) -> None:
    """One that stores passwords, in the configuration of the instance's user, never learns the token."""
    job = project.job(project.commit({"a": "1"}))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text("[credential]\n\thelper = store\n")
    assert one_slot.fetch(job).status == 0
    assert not (tmp_path / "home" / ".git-credentials").exists()


def test_the_token_goes_to_this_gitlab_only(one_slot: Slot, project: Project, tmp_path: Path) -> None:
    """A submodule that is elsewhere is asked for without it, and nobody is asked for a password."""
    with serving(tmp_path / "elsewhere") as elsewhere:
        other = elsewhere.project("lib")
        other.commit({"lib": "1"})
        project.add_submodule("lib", f"{elsewhere.url}/lib.git", other)
        job = project.job(project.commit({"a": "1"}), GIT_SUBMODULE_STRATEGY="normal")
        ran = one_slot.fetch(job)
        assert ran.status != 0
        assert "could not read Username" in ran.output
        assert {line.split()[2] for line in elsewhere.requests} == {"unknown"}


def test_history_is_as_deep_as_the_job_wants(one_slot: Slot, project: Project) -> None:
    """Few commits, and all of them for a later job that wants all."""
    shas = [project.commit({"a": str(number)}) for number in range(5)]
    shallow, whole = project.job(shas[-1], depth=2), project.job(shas[-1], depth=0)
    assert one_slot.fetch(shallow).status == 0
    assert one_slot.git(shallow, "rev-list", "--count", "HEAD") == "2"
    assert one_slot.fetch(whole).status == 0
    assert one_slot.git(whole, "rev-list", "--count", "HEAD") == "5"


@pytest.mark.parametrize(
    ("ref", "source", "refspec"),
    [
        ("v1", "refs/tags/v1", "+refs/tags/v1:refs/tags/v1"),
        ("refs/merge-requests/3/head", "refs/merge-requests/3/head", "+refs/merge-requests/3/head:refs/pipelines/9"),
        ("a'b $(touch evil) `x` \"", "refs/heads/it's-$(touch${IFS}evil)", None),
        ("--upload-pack=touch evil", "refs/heads/x", "+refs/heads/x:refs/remotes/origin/x"),
    ],
)
def test_what_a_job_is_of(slot: Slot, project: Project, ref: str, source: str, refspec: str | None) -> None:
    """Tags, merge requests, and branches of any name."""
    sha = project.commit({"a": "1"}, source)
    job = project.job(sha, ref=ref, refspecs=[refspec or f"+{source}:refs/remotes/origin/its"])
    ran = slot.fetch(job)
    assert ran.status == 0, ran.output
    assert slot.head(job) == sha
    assert not list(slot.root.rglob("evil*"))
    assert f"(ref is {ref})" in ran.output


def test_a_moved_project_is_fetched_from_where_it_is(one_slot: Slot, project: Project, server: Server) -> None:
    """The clone of an earlier job follows."""
    job = project.job(project.commit({"a": "1"}), GIT_CLONE_PATH="$CI_BUILDS_DIR/its")
    assert one_slot.fetch(job).status == 0
    moved = server.project(f"{project.path}-moved")
    later = moved.job(moved.commit({"b": "2"}), GIT_CLONE_PATH="$CI_BUILDS_DIR/its")
    assert one_slot.fetch(later).status == 0
    assert one_slot.head(later) == later.git_info.sha
    assert one_slot.git(later, "remote", "get-url", "origin") == f"{server.url}/{moved.path}.git"


def test_sources_come_from_clone_url(one_slot: Slot, project: Project, server: Server) -> None:
    """Instead of the address that the job names, with the same token."""
    job = project.job(project.commit({"a": "1"}))
    job = evolve(job, git_info=evolve(job.git_info, repo_url="https://gitlab.invalid/its/address.git"))
    ran = one_slot.fetch(job, clone_url=server.url)
    assert ran.status == 0, ran.output
    assert one_slot.git(job, "remote", "get-url", "origin") == f"{server.url}/{project.path}.git"


def test_strategies(slot: Slot, project: Project) -> None:
    """`clone` keeps nothing, `none` keeps everything and fetches nothing, `empty` has nothing, elsewhere."""
    sha = project.commit({"a": "1"})
    clone, none, empty = (project.job(sha, GIT_STRATEGY=name) for name in ("clone", "none", "empty"))
    assert slot.fetch(none).status == 0
    assert slot.files(none) == set()
    (slot.project(none) / "left").touch()
    assert slot.fetch(none).status == 0
    assert slot.files(none) == {"left"}
    stubborn = slot.project(none) / "stubborn"
    stubborn.mkdir()
    (stubborn / "x").touch()
    stubborn.chmod(0o555)
    ran = slot.fetch(clone)
    assert ran.status == 0, ran.output
    assert slot.files(clone) == {"a"}
    assert slot.fetch(empty).status == 0
    (slot.project(empty) / "x").touch()
    assert slot.fetch(empty).status == 0
    assert (slot.files(empty), slot.files(clone)) == (set(), {"a"})


def test_without_checkout_the_files_stay(one_slot: Slot, project: Project) -> None:
    """What is new is fetched, and what is checked out does not change."""
    job = project.job(project.commit({"a": "1"}))
    assert one_slot.fetch(job).status == 0
    later = project.job(project.commit({"a": "2"}), GIT_CHECKOUT="false")
    ran = one_slot.fetch(later)
    assert (ran.status, "Skipping Git checkout" in ran.output) == (0, True)
    assert (one_slot.project(later) / "a").read_text() == "1"
    assert one_slot.git(later, "cat-file", "-t", later.git_info.sha) == "commit"


def test_flags_of_git(one_slot: Slot, project: Project) -> None:
    """What a job says of cleaning and fetching goes to git, `none` for none."""
    job = project.job(project.commit({"a": "1"}), GIT_CLEAN_FLAGS="-ffdx -e kept*", GIT_FETCH_EXTRA_FLAGS="--prune -v")
    assert one_slot.fetch(job).status == 0
    for name in ("kept-1", "left"):
        (one_slot.project(job) / name).touch()
    assert "origin/main" in one_slot.fetch(job).output
    assert one_slot.files(job) == {"a", "kept-1"}
    (one_slot.project(job) / "left").touch()
    assert one_slot.fetch(project.job(job.git_info.sha, GIT_CLEAN_FLAGS="none")).status == 0
    assert one_slot.files(job) == {"a", "kept-1", "left"}


def test_hooks_run_around_the_sources(slot: Slot, project: Project) -> None:
    """In the shell that fetches: what the first one exports reaches git, the last one is in the project."""
    job = project.job(project.commit({"a": "1"}))
    ran = slot.fetch(job, before="export GIT_TRACE_SETUP=1\necho before", after="cat a\nexit 3")
    assert ran.status == 3
    assert "git_dir: .git" in ran.output
    assert ran.output.index("before") < ran.output.index("Fetching changes") < ran.output.rindex("1")


def test_a_failing_hook_fails(slot: Slot, project: Project) -> None:
    """At its first failing command, as with GitLab Runner."""
    job = project.job(project.commit({"a": "1"}))
    script = sources_script(job, slot.environment(job), slot.settings(), before="echo one\nfalse\necho two")
    ran = slot.run(f"{slot.environment(job).preamble()}\n{script}")
    assert (ran.status, ran.output) == (1, "one\n")


def test_variables_that_shells_read_are_in_nobodys_way(slot: Slot, project: Project, tmp_path: Path) -> None:
    """A job may set them for its script."""
    trap = tmp_path / "trap" / ".git"
    trap.mkdir(parents=True)
    (trap / "config").touch()
    variables = {
        "IFS": "0/gt7",
        "CDPATH": str(trap.parent),
        "POSIXLY_CORRECT": "1",
        "_gl_project": "/",
        "_gl_reused": "x",
    }
    job = project.job(project.commit({"a": "1"}), depth=20, **variables)
    for _ in range(2):
        ran = slot.fetch(job)
        assert ran.status == 0, ran.output
    assert slot.files(job) == {"a"}
    assert (trap / "config").exists()


def test_a_gitlab_with_an_authority_of_its_own(tmp_path: Path) -> None:
    """What `tls-ca-file` has is known to git, for the sources and for the script; nobody else is believed."""
    authority = CA()
    issued = authority.issue_cert("127.0.0.1")
    (tmp_path / "server.pem").write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    with serving(tmp_path / "server", tmp_path / "server.pem") as server:
        project = server.project("group/project")
        job = project.job(project.commit({"a": "1"}))
        slot = Slot(tmp_path, SHELL, server.url)
        assert "certificate" in slot.fetch(job).output
        slot = evolve(slot, authority=authority.cert_pem.bytes().decode())
        ran = slot.fetch(job, after="git fetch -q")
        assert ran.status == 0, ran.output


def test_partial_clones(one_slot: Slot, project: Project) -> None:
    """Files come as they are needed, also in a clone that is used again; a job that wants all of them gets all."""
    project.git("--git-dir", str(project.bare), "config", "uploadpack.allowFilter", "true")
    flags = {"GIT_FETCH_EXTRA_FLAGS": "--prune --quiet --filter=blob:none"}
    for number in range(2):
        job = project.job(project.commit({"a": f"{number}", "b": f"{number}"}), depth=20, **flags)
        ran = one_slot.fetch(job)
        assert ran.status == 0, ran.output
        assert "damaged" not in ran.output
    whole = project.job(project.commit({"a": "3"}))
    ran = one_slot.fetch(whole, after="git log -p > /dev/null")
    assert ran.status == 0, ran.output
    assert one_slot.files(whole) == {"a", "b"}


def test_a_native_clone(one_slot: Slot, project: Project) -> None:
    """`git clone` with the job's flags, where it asks for that."""
    project.commit({"a": "1"})
    job = project.job(
        project.commit({"a": "2"}),
        GIT_STRATEGY="clone",
        FF_USE_GIT_NATIVE_CLONE="true",
        GIT_CLONE_EXTRA_FLAGS="--config its.own=here",
    )
    ran = one_slot.fetch(job)
    assert ran.status == 0, ran.output
    assert one_slot.head(job) == job.git_info.sha
    assert one_slot.git(job, "config", "its.own") == "here"


def test_repositories_with_longer_hashes(slot: Slot, project: Project) -> None:
    """A project with SHA-256 is cloned, and fetched by the next job."""
    for place, bare in ((project.work, ()), (project.bare, ("--bare",))):
        place.rename(place.with_name(f"{place.name}.old"))
        place.mkdir()
        project.git("init", "-q", *bare, "-b", "main", "--object-format=sha256", str(place))
    project.git("remote", "add", "origin", str(project.bare))
    for number in range(2):
        job = project.job(project.commit({"a": str(number)}))
        job = evolve(job, git_info=evolve(job.git_info, repo_object_format="sha256"))
        ran = slot.fetch(job)
        assert ran.status == 0, ran.output
        assert slot.head(job) == job.git_info.sha


def test_an_instance_without_git_says_so(one_slot: Slot, project: Project, tmp_path: Path) -> None:
    """One line, and what to do."""
    job = project.job(project.commit({"a": "1"}))
    (tmp_path / "empty").mkdir()
    for name in ("mkdir", "chmod", "rm", "printf"):
        (tmp_path / "empty" / name).symlink_to(f"/bin/{name}" if Path(f"/bin/{name}").exists() else f"/usr/bin/{name}")
    ran = evolve(one_slot, environ={"PATH": str(tmp_path / "empty")}).fetch(job)
    assert ran.status == 1
    assert "git is not installed here; install it" in ran.output


def test_large_files_come_where_git_has_lfs(one_slot: Slot, project: Project, tmp_path: Path) -> None:
    """By a pull of their own, after a checkout that leaves pointers; or not at all, if the job says so."""
    log = tmp_path / "lfs"
    lfs = one_slot.with_programs(git_lfs=f'echo "$1 $GIT_LFS_SKIP_SMUDGE" >> {log}')
    job = project.job(project.commit({"a": "1"}))
    assert lfs.fetch(job).status == 0
    assert log.read_text().splitlines() == ["version 1", "pull 1"]
    log.unlink()
    assert lfs.fetch(project.job(job.git_info.sha, GIT_LFS_SKIP_SMUDGE="true")).status == 0
    assert not log.exists()
