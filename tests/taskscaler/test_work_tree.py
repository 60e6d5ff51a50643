"""Working trees as git knows them, and how they come to an instance and are kept like that there."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleeting import ConnectError
from fleeting.errors import WrongArguments
from taskscaler.cli import _work_tree
from taskscaler.cli._bring_along import bring, find_tree
from taskscaler.cli._work_tree import WorkTree, find_work_tree
from tests.taskscaler.here import Here

GIT = shutil.which("git") or "git"
LEASE = ".taskscaler/lease-1"


def git(tree: Path, *arguments: str) -> None:
    """Have git do something, as nobody in particular."""
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "protocol.file.allow=always")
    subprocess.run([GIT, "-C", str(tree), *who, *arguments], check=True, capture_output=True)


def write(tree: Path, **files: str) -> Path:
    """Write files; two underscores are a slash."""
    for name, content in files.items():
        path = tree / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tree


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """One with two files that are tracked."""
    tree = write(tmp_path / "tree", a="one", inner__b="two")
    git(tree, "init", "--quiet")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "x")
    return tree


def test_what_belongs_to_it_is_what_git_says(tree: Path) -> None:
    """Changed, staged, new and renamed files and links; not ignored ones, deleted ones, nor what is no file."""
    write(tree, a="changed", staged="s", new__n="n", ignored="i", **{".gitignore": "ignored\n/local/\n"}, local__x="x")
    git(tree, "add", "staged")
    git(tree, "mv", "inner/b", "moved")
    (tree / "link").symlink_to("nowhere")
    os.mkfifo(tree / "pipe")
    odd = tree / os.fsdecode(b"\xff \n'")
    odd.write_text("")
    found = find_work_tree(tree / "new")
    assert set(found.files) == {"a", "staged", "new/n", ".gitignore", "moved", "link", odd.name}
    assert (found.root, found.prefix) == (tree, "new/")
    assert found.size == sum(path.lstat().st_size for path in found.files.values())
    assert find_work_tree(tree).prefix == ""


def test_repositories_inside_come_along(tree: Path, tmp_path: Path) -> None:
    """Submodules and repositories that are none, with what they ignore; the .git of neither."""
    other = write(tmp_path / "other", o="o", **{".gitignore": "junk\n"})
    git(other, "init", "--quiet")
    git(other, "add", "--all")
    git(other, "commit", "--quiet", "--message", "x")
    git(tree, "submodule", "--quiet", "add", str(other), "sub")
    write(tree, sub__new="n", sub__junk="j")
    shutil.copytree(other, tree / "beside")
    names = set(find_work_tree(tree).files)
    assert names == {
        "a",
        "inner/b",
        ".gitmodules",
        "sub/o",
        "sub/.gitignore",
        "sub/new",
        "beside/o",
        "beside/.gitignore",
    }
    assert set(find_work_tree(tree / "sub").files) == {"o", ".gitignore", "new"}


def test_a_merge_that_is_under_way_names_no_file_twice(tree: Path) -> None:
    """What is in conflict comes as it lies there."""
    git(tree, "checkout", "--quiet", "-b", "side")
    git(write(tree, a="side"), "commit", "--quiet", "--all", "--message", "x")
    git(tree, "checkout", "--quiet", "-")
    git(write(tree, a="main"), "commit", "--quiet", "--all", "--message", "x")
    with pytest.raises(subprocess.CalledProcessError):
        git(tree, "merge", "side")
    found = find_work_tree(tree)
    assert sorted(found.files) == ["a", "inner/b"]
    assert "<<<<" in found.files["a"].read_text()


def test_there_is_no_more_in_it_than_fits(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file or byte too many is refused, with what there is and what to do."""
    monkeypatch.setattr(_work_tree, "LARGEST", 6)
    assert find_work_tree(tree).size == 6
    write(tree, c="x")
    with pytest.raises(WrongArguments, match=r"has 7 .* in 3 files, more than the limit of 6 .*; have git ignore"):
        find_work_tree(tree)
    monkeypatch.setattr(_work_tree, "MOST_FILES", 2)
    with pytest.raises(WrongArguments, match="has more than 2 files"):
        find_work_tree(tree)


@pytest.mark.parametrize("broken", ["bare", "damaged", "none"])
def test_what_git_refuses_is_one_sentence(tmp_path: Path, broken: str) -> None:
    """A bare repository, a damaged one, and none: with what to do."""
    if broken == "bare":
        git(tmp_path, "init", "--quiet", "--bare")
    elif broken == "damaged":
        git(tmp_path, "init", "--quiet")
        (tmp_path / ".git" / "config").write_text("[core\n")
    with pytest.raises(WrongArguments, match="mend that first" if broken == "damaged" else "is not in one") as caught:
        find_work_tree(tmp_path)
    assert "\n" not in str(caught.value)


NAMES = st.sampled_from(["a", "a/b", "a/b/c", "d", "d/e", "-f", "g h\n'\"$(i)", "..j"])
TREES = st.dictionaries(NAMES, st.sampled_from(["", "x", "->d"]), max_size=5)


def consistent(files: Mapping[str, str]) -> dict[str, str]:
    """Leave out what lies below a file."""
    return {name: files[name] for name in files if not any(name.startswith(f"{other}/") for other in files)}


def made_of(root: Path, files: Mapping[str, str]) -> WorkTree:
    """A tree with these files, and links."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content.startswith("->"):
            path.symlink_to(content.removeprefix("->"))
        else:
            path.write_text(content)
    return WorkTree(root=root, prefix="", files={name: root / name for name in files}, size=0)


def seen(root: Path) -> dict[str, str]:
    """What is in a directory: files and links."""
    return {
        str(path.relative_to(root)): f"->{path.readlink()}" if path.is_symlink() else path.read_text()
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@settings(max_examples=40)
@given(steps=st.lists(st.tuples(TREES, st.booleans()), min_size=1, max_size=4))
def test_a_tree_is_there_as_it_is_here_each_time(steps: list[tuple[dict[str, str], bool]]) -> None:
    """Whatever was changed, deleted, or is a directory now that was a file; and what commands made there stays."""
    with TemporaryDirectory() as directory:
        home, root = Path(directory, "home"), Path(directory, "root")
        home.mkdir()
        made: dict[str, str] = {}
        for number, (files, makes) in enumerate(steps):
            tree = made_of(root, consistent(files))
            where = anyio.run(partial(bring, Here(home), tree, LEASE, again=number > 0))
            there = Path(where)
            assert there == home / LEASE / "tree"
            assert seen(there) == seen(root) | made
            if makes:
                made[f"made-{number}"] = "m"
                (there / f"made-{number}").write_text("m")
        assert (home / LEASE).stat().st_mode & 0o777 == 0o700


pytestmark = [pytest.mark.anyio, pytest.mark.needs("tar")]


async def test_a_command_comes_back_to_where_it_was(tree: Path, tmp_path: Path) -> None:
    """The directory is found again, whatever it is called; where nothing was brought, there is none."""
    home = Here(tmp_path)
    assert await find_tree(home, LEASE) is None
    odd = write(tree, **{"inner__$(x) 'y__z": "z"}) / "inner" / "$(x) 'y"
    where = await bring(home, find_work_tree(odd), LEASE, again=False)
    assert where == str(tmp_path / LEASE / "tree" / "inner" / "$(x) 'y")
    assert await find_tree(home, LEASE) == where
    shutil.rmtree(where)
    with pytest.raises(ConnectError, match="is not there any more"):
        await find_tree(home, LEASE)


async def test_what_cannot_be_brought_is_one_sentence(tree: Path, tmp_path: Path) -> None:
    """A file that vanishes or cannot be read here, and one that is in the way there."""
    found = find_work_tree(tree)
    (tree / "a").unlink()
    with pytest.raises(WrongArguments, match=r"tree/a cannot be read \(No such file or directory\)"):
        await bring(Here(tmp_path), found, LEASE, again=False)
    write(tree, a="again")
    (tmp_path / LEASE / "tree" / "inner" / "b" / "full").mkdir(parents=True)
    with pytest.raises(ConnectError, match=r"the working tree could not be brought along: tar .*inner/b"):
        await bring(Here(tmp_path), find_work_tree(tree), LEASE, again=True)


async def test_a_list_that_leads_elsewhere_deletes_nothing_there(tree: Path, tmp_path: Path) -> None:
    """What the instance says was brought is no reason to touch anything outside."""
    await bring(Here(tmp_path), find_work_tree(tree), LEASE, again=False)
    write(tmp_path, mine="kept")
    names = ("../../../mine", str(tmp_path / "mine"), "inner/../../../../mine", "a\0b", "gone")
    write(tmp_path / LEASE, list="\0".join(names), tree__gone="g")
    await bring(Here(tmp_path), find_work_tree(tree), LEASE, again=True)
    assert (tmp_path / "mine").read_text() == "kept"
    assert seen(tmp_path / LEASE / "tree") == {"a": "one", "inner/b": "two"}
