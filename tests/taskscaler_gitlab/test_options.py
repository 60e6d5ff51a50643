"""What jobs ask for by variables: what is understood, and what is said of the rest."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitlab_jobs import GitInfo
from taskscaler_gitlab.runner._errors import JobInvalid
from taskscaler_gitlab.runner._options import GitSettings, JobOptions, Read, read_options


def read(
    variables: Mapping[str, str] | None = None, *, may_fetch: bool = False, may_trace: bool = True, depth: int = 0
) -> Read:
    """What is read of these variables."""
    return read_options(
        lambda name: (variables or {}).get(name, ""),
        GitInfo(depth=depth),
        may_fetch=may_fetch,
        may_trace=may_trace,
        job_timeout=3600.0,
    )


def test_a_job_that_asks_for_nothing() -> None:
    """It gets what GitLab Runner gives."""
    got = read()
    assert (got.git, got.options, got.clone_path, got.problems) == (GitSettings(), JobOptions(), "", ())
    assert read(may_fetch=True).git.strategy == "fetch"
    assert (read(depth=20).git.depth, read(depth=20).git.submodule_depth) == (20, 20)


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("GIT_STRATEGY", "empty", "strategy", "empty"),
        ("GIT_CHECKOUT", "false", "checkout", False),
        ("GIT_CHECKOUT", "T", "checkout", True),
        ("GIT_CLEAN_FLAGS", "-ffdx -e cache/", "clean_flags", ("-ffdx", "-e", "cache/")),
        ("GIT_CLEAN_FLAGS", "none", "clean_flags", ()),
        ("GIT_FETCH_EXTRA_FLAGS", "none", "fetch_flags", ()),
        ("GIT_SUBMODULE_STRATEGY", "recursive", "submodules", "recursive"),
        ("GIT_SUBMODULE_PATHS", "a :(exclude)b", "submodule_paths", ("a", ":(exclude)b")),
        ("GIT_SUBMODULE_DEPTH", "+7", "submodule_depth", 7),
        ("GIT_SUBMODULE_DEPTH", "-7", "submodule_depth", 0),
        ("GIT_SUBMODULE_UPDATE_FLAGS", "--jobs 4", "submodule_flags", ("--jobs", "4")),
        ("GIT_SUBMODULE_FORCE_HTTPS", "1", "submodules_by_https", True),
        ("GIT_LFS_SKIP_SMUDGE", "true", "skip_lfs", True),
    ],
)
def test_what_git_is_asked_for(name: str, value: str, field: str, expected: object) -> None:
    """Each variable has its effect, and no complaint."""
    got = read({name: value})
    assert (getattr(got.git, field), got.problems) == (expected, ())


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("GET_SOURCES_ATTEMPTS", "3", "get_sources_attempts", 3),
        ("RESTORE_CACHE_ATTEMPTS", "10", "restore_cache_attempts", 10),
        ("ARTIFACT_DOWNLOAD_ATTEMPTS", "2", "artifact_download_attempts", 2),
        ("AFTER_SCRIPT_IGNORE_ERRORS", "false", "after_script_ignore_errors", False),
        ("RUNNER_SCRIPT_TIMEOUT", "1m30s", "script_timeout", 90.0),
        ("RUNNER_AFTER_SCRIPT_TIMEOUT", "10m", "after_script_timeout", 600.0),
        ("RUNNER_AFTER_SCRIPT_TIMEOUT", "0s", "after_script_timeout", 300.0),
        ("CI_DEBUG_TRACE", "true", "debug_trace", True),
        ("ARTIFACT_COMPRESSION_LEVEL", "slowest", "artifact_compression", "slowest"),
        ("FF_SCRIPT_SECTIONS", "1", "script_sections", True),
    ],
)
def test_what_else_is_asked_for(name: str, value: str, field: str, expected: object) -> None:
    """Each variable has its effect, and no complaint."""
    got = read({name: value})
    assert (getattr(got.options, field), got.problems) == (expected, ())


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("GIT_STRATEGY", "Clone", "expected one of clone, fetch, none, empty, found 'Clone'; clone is used instead"),
        ("FF_SCRIPT_SECTIONS", "on", "expected true or false, found 'on'; false is used instead"),
        (
            "ARTIFACT_COMPRESSION_LEVEL",
            "9",
            "expected one of fastest, fast, default, slow, slowest, found '9'; default is used instead",
        ),
        ("GIT_CHECKOUT", "yes", "expected true or false, found 'yes'; true is used instead"),
        ("GIT_SUBMODULE_DEPTH", "1_0", "expected a number, found '1_0'; 0 is used instead"),
        ("GIT_SUBMODULE_DEPTH", "9" * 99, f"expected a number, found '{'9' * 60}…'; 0 is used instead"),
        ("GET_SOURCES_ATTEMPTS", "0", "expected 1 to 10 attempts, found '0'; 1 is used instead"),
        ("GET_SOURCES_ATTEMPTS", "99", "expected 1 to 10 attempts, found '99'; 10 is used instead"),
        ("RUNNER_SCRIPT_TIMEOUT", "1 hour", "expected a duration such as 10m or 1h30m, found '1 hour'; its default is"),
        ("RUNNER_SCRIPT_TIMEOUT", "-5m", "expected a duration such as 10m or 1h30m, found '-5m'; its default is used"),
        ("RUNNER_SCRIPT_TIMEOUT", "2h", "2h is longer than the job may take, which is 3600 s"),
        ("GIT_CLONE_EXTRA_FLAGS", "--bare", "not used; it needs GIT_STRATEGY: clone and FF_USE_GIT_NATIVE_CLONE: true"),
    ],
)
def test_what_is_not_understood(name: str, value: str, line: str) -> None:
    """One line says what was found, what was expected, and what is done instead."""
    (problem,) = read({name: value}).problems
    assert problem.startswith(f"{name}: {line}")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"GIT_SUBMODULE_STRATEGY": "deep"},
            "GIT_SUBMODULE_STRATEGY: expected none, normal or recursive, found 'deep'",
        ),
        ({"GIT_SUBMODULE_PATHS": "a :(exclude) b"}, "GIT_SUBMODULE_PATHS: `:\\(exclude\\)` stands alone"),
    ],
)
def test_what_fails_a_job(variables: dict[str, str], message: str) -> None:
    """Only what fails it with GitLab Runner; and not where there are no sources."""
    with pytest.raises(JobInvalid, match=message):
        read(variables)


def test_without_sources_submodules_do_not_matter() -> None:
    """A job that has no repository has none, whatever it says of them."""
    got = read({"GIT_STRATEGY": "none", "GIT_SUBMODULE_STRATEGY": "deep"})
    assert (got.git.submodules, got.git.checkout) == ("none", False)


def test_a_runner_may_forbid_traces() -> None:
    """They would print what is masked badly; a line says so."""
    got = read({"CI_DEBUG_TRACE": "true"}, may_trace=False)
    assert not got.options.debug_trace
    assert got.problems == ("CI_DEBUG_TRACE: this runner does not allow it; no effect",)


@given(
    name=st.sampled_from(
        ["GIT_STRATEGY", "GIT_CHECKOUT", "GIT_SUBMODULE_DEPTH", "GET_SOURCES_ATTEMPTS", "RUNNER_SCRIPT_TIMEOUT"]
    ),
    value=st.text() | st.sampled_from(["0x1", "1e3", "\u0661", "\n1", "1h\n", "∞", "true "]),
)
def test_any_text_is_read_or_complained_about(name: str, value: str) -> None:
    """Nothing else happens, and a complaint is one line."""
    problems = read({name: value}).problems
    assert all(len(problem.splitlines()) == 1 for problem in problems)
