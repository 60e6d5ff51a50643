"""What jobs ask of their runner by variables: how sources come, how often things are tried, for how long: pure.

They are read from values whose references are replaced. What cannot be read has no effect but a line in the log that
says what is done instead, as in GitLab Runner; only what GitLab Runner fails for is an error here.

Source: ``common/build_settings.go`` of gitlab-runner.
"""

import posixpath
import re
from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

from attrs import field, frozen

from fleeting import ConfigError
from fleeting.config import parse_duration
from gitlab_jobs import GitInfo
from taskscaler_gitlab.runner._errors import JobInvalid

T = TypeVar("T")

Strategy = Literal["clone", "fetch", "none", "empty"]
SubmoduleStrategy = Literal["none", "normal", "recursive"]
Compression = Literal["fastest", "fast", "default", "slow", "slowest"]

MAX_ATTEMPTS = 10

AFTER_SCRIPT = 300.0
"""Seconds that an ``after_script`` has if the job does not say otherwise."""

_STRATEGIES: tuple[Strategy, ...] = ("clone", "fetch", "none", "empty")
_SUBMODULES: tuple[SubmoduleStrategy, ...] = ("none", "normal", "recursive")
_COMPRESSIONS: tuple[Compression, ...] = ("fastest", "fast", "default", "slow", "slowest")
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_SHOWN = 60


@frozen(kw_only=True)
class GitSettings:
    """How the sources of a job come to it."""

    strategy: Strategy = "clone"
    """Clone again, fetch what is new, leave what is there, or an empty directory."""

    checkout: bool = True
    """Whether the job's commit is checked out."""

    depth: int = 0
    """Commits of history; 0: all."""

    object_format: str = "sha1"
    """``sha1`` or ``sha256``."""

    clean_flags: tuple[str, ...] = ("-ffdx",)
    """For ``git clean`` after the checkout; empty: it is not run."""

    fetch_flags: tuple[str, ...] = ("--prune", "--quiet")
    """For ``git fetch``."""

    clone_flags: tuple[str, ...] = ()
    """For ``git clone``, if that is used."""

    native_clone: bool = False
    """Whether ``git clone`` brings the sources of the strategy ``clone``."""

    submodules: SubmoduleStrategy = "none"
    """Whether submodules come too, and theirs."""

    submodule_paths: tuple[str, ...] = ()
    """Which; empty: all."""

    submodule_depth: int = 0
    """Commits of their history; 0: all."""

    submodule_flags: tuple[str, ...] = ()
    """For ``git submodule update``."""

    submodules_by_https: bool = False
    """Whether submodules that are named by GitLab's SSH address come by HTTPS."""

    skip_lfs: bool = False
    """Whether large files stay pointers."""

    @property
    def has_repository(self) -> bool:
        """Whether git is used at all."""
        return self.strategy in {"clone", "fetch"}


@frozen(kw_only=True)
class JobOptions:
    """What a job asks for beside its sources."""

    get_sources_attempts: int = 1
    """How often fetching sources is tried."""

    artifact_download_attempts: int = 1
    """How often each download of artifacts is tried."""

    restore_cache_attempts: int = 1
    """How often each cache is tried."""

    after_script_ignore_errors: bool = True
    """Whether a failing ``after_script`` is none of the job's failures."""

    script_timeout: float | None = None
    """Seconds for the script; None: as long as the job may take."""

    after_script_timeout: float | None = AFTER_SCRIPT
    """Seconds for the ``after_script``."""

    debug_trace: bool = False
    """Whether the shell prints each command that it runs."""

    exit_code_check: bool = False
    """Whether the script ends at a command that fails even if the job has turned that off in its shell."""

    script_sections: bool = False
    """Whether a command of several lines is shown whole, in a section that is collapsed."""

    job_cleanup: bool = False
    """Whether the project's directory is left as it was checked out, or not at all."""

    failed_cache_cleanup: bool = False
    """Whether what came of a cache is removed if it cannot be unpacked to its end."""

    artifact_compression: Compression = "default"
    """How hard it is tried to make artifacts small."""


@frozen(kw_only=True)
class Read:
    """What was read of a job's variables."""

    git: GitSettings
    """For its sources."""

    options: JobOptions
    """For the rest."""

    clone_path: str = ""
    """Where its sources are to be; empty: where the runner wants."""

    problems: tuple[str, ...] = ()
    """What could not be read, one line each."""


def read_options(
    value: Callable[[str], str],
    git: GitInfo,
    *,
    may_fetch: bool,
    may_trace: bool = True,
    job_timeout: float,
    feature_flags: Mapping[str, bool] | None = None,
) -> Read:
    """Read what a job asks for.

    Args:
        value: The value of a variable, empty if there is none.
        git: What GitLab says of the sources.
        may_fetch: Whether sources of earlier jobs may be brought up to date: the strategy if the job names none.
        may_trace: Whether the runner allows ``CI_DEBUG_TRACE``.
        job_timeout: Seconds that the job may take.
        feature_flags: Those of the runner's configuration, which no job overrides.

    Raises:
        JobInvalid: The job cannot get its sources like this.
    """
    reader = _Reader(value, feature_flags or {})
    strategy: Strategy = reader.choice("GIT_STRATEGY", _STRATEGIES, "fetch" if may_fetch else "clone")
    settings = GitSettings(
        strategy=strategy,
        checkout=reader.boolean("GIT_CHECKOUT", default=True) and strategy in {"clone", "fetch"},
        depth=max(0, git.depth),
        object_format=_object_format(git),
        clean_flags=reader.flags("GIT_CLEAN_FLAGS", ("-ffdx",)),
        fetch_flags=reader.flags("GIT_FETCH_EXTRA_FLAGS", ("--prune", "--quiet")),
        clone_flags=reader.flags("GIT_CLONE_EXTRA_FLAGS", ()),
        native_clone=reader.flag("FF_USE_GIT_NATIVE_CLONE"),
        submodules=_submodules(value("GIT_SUBMODULE_STRATEGY")) if strategy in {"clone", "fetch"} else "none",
        submodule_paths=_paths(value("GIT_SUBMODULE_PATHS")),
        submodule_depth=max(0, reader.number("GIT_SUBMODULE_DEPTH", git.depth)),
        submodule_flags=reader.flags("GIT_SUBMODULE_UPDATE_FLAGS", ()),
        submodules_by_https=reader.boolean("GIT_SUBMODULE_FORCE_HTTPS", default=False),
        skip_lfs=reader.boolean("GIT_LFS_SKIP_SMUDGE", default=False),
    )
    if settings.clone_flags and not (settings.native_clone and strategy == "clone"):
        reader.problems.append(
            "GIT_CLONE_EXTRA_FLAGS: not used; it needs GIT_STRATEGY: clone and FF_USE_GIT_NATIVE_CLONE: true"
        )
    options = JobOptions(
        get_sources_attempts=reader.attempts("GET_SOURCES_ATTEMPTS"),
        artifact_download_attempts=reader.attempts("ARTIFACT_DOWNLOAD_ATTEMPTS"),
        restore_cache_attempts=reader.attempts("RESTORE_CACHE_ATTEMPTS"),
        after_script_ignore_errors=reader.boolean("AFTER_SCRIPT_IGNORE_ERRORS", default=True),
        script_timeout=reader.seconds("RUNNER_SCRIPT_TIMEOUT", None, job_timeout),
        after_script_timeout=reader.seconds("RUNNER_AFTER_SCRIPT_TIMEOUT", AFTER_SCRIPT, job_timeout),
        debug_trace=reader.debug_trace(may_trace=may_trace),
        exit_code_check=reader.flag("FF_ENABLE_BASH_EXIT_CODE_CHECK"),
        script_sections=reader.flag("FF_SCRIPT_SECTIONS"),
        job_cleanup=reader.flag("FF_ENABLE_JOB_CLEANUP"),
        failed_cache_cleanup=reader.flag("FF_CLEAN_UP_FAILED_CACHE_EXTRACT"),
        artifact_compression=reader.choice("ARTIFACT_COMPRESSION_LEVEL", _COMPRESSIONS, "default"),
    )
    return Read(git=settings, options=options, clone_path=value("GIT_CLONE_PATH"), problems=tuple(reader.problems))


def within(path: str, directory: str) -> str:
    """The path without ``.`` and ``..``, if it is below the directory.

    Raises:
        JobInvalid: It is not.
    """
    cleaned = posixpath.normpath(posixpath.join("/", path))
    if not cleaned.startswith(directory.rstrip("/") + "/"):
        raise JobInvalid(f"GIT_CLONE_PATH: expected a directory below {directory}, found {shown(path)}")
    return cleaned


def shown(text: str) -> str:
    """A value in a message: quoted, on one line, cut if it is long."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _object_format(git: GitInfo) -> str:
    found = git.repo_object_format or "sha1"
    if found not in {"sha1", "sha256"}:
        raise JobInvalid(f"the repository's object format: expected sha1 or sha256, found {shown(found)}")
    return found


def _submodules(found: str) -> SubmoduleStrategy:
    for strategy in _SUBMODULES:
        if strategy == (found or "none"):
            return strategy
    raise JobInvalid(f"GIT_SUBMODULE_STRATEGY: expected none, normal or recursive, found {shown(found)}")


def _paths(found: str) -> tuple[str, ...]:
    paths = tuple(found.split())
    if ":(exclude)" in paths:
        raise JobInvalid(
            "GIT_SUBMODULE_PATHS: `:(exclude)` stands alone; write it before a path, without a space between them"
        )
    return paths


@frozen
class _Reader:
    """Reads values; what cannot be read is noted, and has its default."""

    value: Callable[[str], str]
    feature_flags: Mapping[str, bool]
    problems: list[str] = field(factory=list)

    def choice(self, name: str, known: tuple[T, ...], default: T) -> T:
        if not (found := self.value(name)):
            return default
        for each in known:
            if each == found:
                return each
        return self._instead(name, f"one of {', '.join(map(str, known))}", found, default)

    def boolean(self, name: str, *, default: bool) -> bool:
        found = self.value(name)
        if not found or found in _TRUE | _FALSE:
            return found in _TRUE if found else default
        return self._instead(name, "true or false", found, default)

    def flag(self, name: str) -> bool:
        return self.feature_flags[name] if name in self.feature_flags else self.boolean(name, default=False)

    def number(self, name: str, default: int) -> int:
        found = self.value(name)
        if not found or _NUMBER.fullmatch(found):
            return int(found) if found else default
        return self._instead(name, "a number", found, default)

    def attempts(self, name: str) -> int:
        found = self.number(name, 1)
        within = min(max(found, 1), MAX_ATTEMPTS)
        if within != found:
            self._instead(name, f"1 to {MAX_ATTEMPTS} attempts", str(found), within)
        return within

    def flags(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        found = self.value(name)
        if found == "none":
            return ()
        return tuple(found.split()) if found else default

    def seconds(self, name: str, default: float | None, most: float) -> float | None:
        if not (found := self.value(name).strip()):
            return default
        try:
            seconds = parse_duration(found)
        except ConfigError:
            return self._instead(name, "a duration such as 10m or 1h30m", found, default, "its default")
        if seconds > most:
            self.problems.append(f"{name}: {found} is longer than the job may take, which is {most:g} s")
            return most
        return seconds or default

    def debug_trace(self, *, may_trace: bool) -> bool:
        wanted = self.boolean("CI_DEBUG_TRACE", default=False)
        if wanted and not may_trace:
            self.problems.append("CI_DEBUG_TRACE: this runner does not allow it; no effect")
        return wanted and may_trace

    def _instead(self, name: str, expected: str, found: str, used: T, says: str = "") -> T:
        shows = says or (str(used).lower() if isinstance(used, bool) else str(used))
        self.problems.append(f"{name}: expected {expected}, found {shown(found)}; {shows} is used instead")
        return used
