"""Caches on the manager: bounded, and nothing goes that a job is taking along or writing."""

import fcntl
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskscaler_gitlab._keeping import Kept, Limits
from taskscaler_gitlab._manager_caches import ABANDONED, Loans, files_of, keep_archive, remove, tidy
from taskscaler_gitlab.runner._caches import KnownCache
from taskscaler_gitlab.runner._stages import When
from taskscaler_gitlab.runner._transfers import keep_caches

NOW = 1_000_000.0
ALL = Limits(age=1e9, size=1 << 40)
NONE = Limits(age=1.0, size=0)


def cache(top: Path, where: str, size: int = 10, used: float = NOW) -> Path:
    """A cache that was used at a time."""
    path = top / f"{where}.tar"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (used, used))
    return path


def left(top: Path) -> list[str]:
    """What is there."""
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())


def test_what_was_used_least_recently_goes_first(tmp_path: Path) -> None:
    """Over all runners and projects; what is too old goes in any case, and what is none of ours stays."""
    cache(tmp_path, "0123456789ab/project-1/a", used=NOW - 3)
    cache(tmp_path, "0123456789ab/project-2/b", used=NOW - 2)
    cache(tmp_path, "project-1/c", used=NOW - 1)
    for other in ("project-1/notes.txt", "mine/project-1/d.tar", "e.tar"):
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).touch()
    others = ["e.tar", "mine/project-1/d.tar", "project-1/notes.txt"]
    assert tidy(tmp_path, ALL, NOW) == []
    assert len(tidy(tmp_path, Limits(age=100, size=20), NOW)) == 1
    assert left(tmp_path) == sorted(["0123456789ab/project-2/b.tar", "project-1/c.tar", *others])
    tidy(tmp_path, Limits(age=2, size=20), NOW)
    assert left(tmp_path) == sorted(["project-1/c.tar", *others])
    tidy(tmp_path, NONE, NOW + 2)
    assert left(tmp_path) == others
    assert tidy(tmp_path / "nowhere", NONE, NOW) == []


def test_a_cache_on_loan_stays(tmp_path: Path) -> None:
    """However full it is, and if the cache is replaced, too; it was used, and goes once it is given back."""
    path = cache(tmp_path, "project-1/a", used=1.0)
    loans = Loans()
    loan = loans.take(path, "0123456789ab-7-1-0")
    assert loan is not None
    assert path.stat().st_mtime > 1.0, "it was used"
    later = path.stat().st_mtime + 2 * ABANDONED
    assert tidy(tmp_path, NONE, later) == []
    assert loans.take(path.with_name("b.tar"), "0123456789ab-7-1-0") is None
    made = tmp_path / "made"
    made.write_bytes(b"new")
    keep_archive(made, path, "0123456789ab-8-1", most=1 << 20)
    tidy(tmp_path, NONE, later)
    assert (loan.read_bytes(), path.exists()) == (b"x" * 10, False)
    loans.give_back()
    assert not loan.exists()


def test_what_a_killed_process_left_goes(tmp_path: Path) -> None:
    """Nobody has a lock on it, and it is old; what has just been begun is given the time to be locked."""
    project = cache(tmp_path, "project-1/a").parent
    for name in (".a.1.loan", ".a.2.draft"):
        (project / name).write_bytes(b"y" * 50)
        os.utime(project / name, (NOW, NOW))
    tidy(tmp_path, Limits(age=1e9, size=110), NOW + ABANDONED)
    assert len(left(tmp_path)) == 3
    with (project / ".a.2.draft").open("rb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        tidy(tmp_path, Limits(age=1e9, size=60), NOW + 2 * ABANDONED)
        assert left(tmp_path) == ["project-1/.a.2.draft", "project-1/a.tar"], "the draft counts"
        tidy(tmp_path, Limits(age=1e9, size=59), NOW + 2 * ABANDONED)
        assert left(tmp_path) == ["project-1/.a.2.draft"]
    tidy(tmp_path, ALL, NOW + 2 * ABANDONED)
    assert left(tmp_path) == []


def test_a_cache_that_is_too_large_for_all_is_not_kept(tmp_path: Path) -> None:
    """It would only be deleted again; and what is outdated by it goes."""
    path, made = cache(tmp_path, "project-1/a"), tmp_path / "made"
    made.write_bytes(b"z" * 100)
    keep_archive(made, path, "1", most=100)
    assert path.read_bytes() == b"z" * 100
    keep_archive(made, path, "1", most=99)
    assert not path.exists()


def test_a_cache_that_cannot_be_kept_costs_no_other(tmp_path: Path) -> None:
    """Nothing is left of it that would count as in use, and what comes after it is kept."""
    out, project = tmp_path / "out", tmp_path / "caches" / "project-1"
    out.mkdir()
    caches = [
        KnownCache(number=number, keys=(key,), patterns=(), untracked=False, pulls=True, pushes=True, when=When.ALWAYS)
        for number, key in enumerate("ab")
    ]
    for cache in caches:
        (out / f"cache-{cache.number}.tar").write_bytes(b"z" * 100)
    obstacle = project / f"{caches[0].names[0]}.tar"
    obstacle.mkdir(parents=True)
    keep_caches(caches, out, project, job="1", most=100)
    assert sorted(project.iterdir()) == sorted([obstacle, project / f"{caches[1].names[0]}.tar"])
    with pytest.raises(IsADirectoryError):
        keep_archive(out / "cache-0.tar", obstacle, "1", most=100)


def test_what_goes_while_caches_are_listed_is_not_found(tmp_path: Path) -> None:
    """A job gives its loans back at any time; the others are found all the same."""
    first, second = cache(tmp_path, "a"), cache(tmp_path, "b")
    with os.scandir(tmp_path) as entries:
        listed = [*entries]
    first.unlink()
    assert [(entry.name, status.st_size) for entry, status in files_of(listed)] == [(second.name, 10)]


@pytest.mark.parametrize("size", [10, 11])
def test_a_cache_that_was_replaced_after_it_was_found_stays(tmp_path: Path, size: int) -> None:
    """It is a new one; and so does what was used."""
    path, made = cache(tmp_path, "project-1/a"), tmp_path / "made"
    found = Kept(name=str(path), used=NOW, size=10)
    made.write_bytes(b"z" * size)
    keep_archive(made, path, "1", most=100)
    assert not remove(found)
    assert path.read_bytes() == b"z" * size
    now = path.stat()
    assert remove(Kept(name=str(path), used=now.st_mtime, size=size))
    assert not path.exists()
    assert not remove(found)


def test_where_files_have_one_name_a_loan_is_a_copy(tmp_path: Path) -> None:
    """Some file systems have no second names."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    loans = Loans(link=refuse)
    loan = loans.take(cache(tmp_path, "project-1/a"), "1")
    assert loan is not None
    assert loan.read_bytes() == b"x" * 10
    loans.give_back()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.floats(1, NOW), st.booleans()), max_size=8),
    st.integers(0, 120),
    st.floats(1, NOW),
)
def test_the_disk_is_bounded_but_for_what_is_in_use(
    tmp_path_factory: pytest.TempPathFactory, caches: list[tuple[int, float, bool]], size: int, age: float
) -> None:
    """Whatever there is, and whoever takes it along."""
    top, loans = tmp_path_factory.mktemp("caches"), Loans()
    lent = []
    for number, (length, used, is_lent) in enumerate(caches):
        path = cache(top, f"project-{number % 3}/{number}", length, used)
        if is_lent:
            loan = loans.take(path, "1")
            assert loan is not None
            lent.append(path)
            os.utime(path, (used, used))
    tidy(top, Limits(age=age, size=size), NOW + 2 * ABANDONED)
    kept = [*top.rglob("[0-9]*.tar")]
    assert all(path in kept for path in lent)
    free = [path for path in kept if path not in lent]
    assert not free or sum(path.stat().st_size for path in kept) <= size
    loans.give_back()
    assert not [*top.rglob(".*")]
