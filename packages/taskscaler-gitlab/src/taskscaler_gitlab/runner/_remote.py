"""Where the sources of a job come from, and which hosts get its token for that: pure."""

import posixpath
import re
from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit, urlunsplit

from attrs import frozen

from gitlab_jobs import Job
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab.runner._errors import JobInvalid
from taskscaler_gitlab.runner._options import shown
from taskscaler_gitlab.runner._variables import JobEnvironment

UNFIT = re.compile(r"[\x00-\x20\x7f]")
"""What no address and no refspec has in it."""

_SCHEMES = frozenset({"http", "https", "ssh", "git", "file"})


@frozen(kw_only=True)
class Remote:
    """Where sources come from."""

    url: str
    """The repository, without credentials."""

    hosts: tuple[str, ...]
    """Scheme and host of all addresses of this GitLab: who gets the job's token."""

    rewrites: tuple[tuple[str, str], ...] = ()
    """Beginnings of addresses, and what to take for them instead."""

    @classmethod
    def of(cls, job: Job, environment: JobEnvironment, settings: RunnerSettings) -> "Remote":
        """Where those of a job come from.

        Raises:
            JobInvalid: It does not say, or nothing that git could use.
        """
        named = _address(job.git_info.repo_url)
        base = _address(settings.clone_url) if settings.clone_url else named
        if settings.clone_url:
            path = environment.content("CI_PROJECT_PATH") or job.job_info.project_full_path
            if not path or UNFIT.search(path):
                raise JobInvalid(f"clone_url: the job does not say which project it belongs to, found {shown(path)}")
            url = base._replace(path=posixpath.join("/", base.path, f"{path.lstrip('/')}.git"))
        else:
            url = named
        addresses = (url, named, urlsplit(settings.url))
        hosts = (urlunsplit((each.scheme, _host(each), "", "", "")) for each in addresses if _is_http(each))
        web = base if settings.clone_url else urlsplit(settings.url)
        return cls(
            url=urlunsplit(_without_user(url)),
            hosts=tuple(dict.fromkeys(hosts)),
            rewrites=tuple(_rewrites(web, environment)) if environment.git.submodules_by_https else (),
        )


def _address(url: str) -> SplitResult:
    """An address that git can fetch from."""
    if not url:
        raise JobInvalid("the job has no address of a repository; set GIT_STRATEGY to none if it needs no sources")
    try:
        split = urlsplit(url)
    except ValueError:
        split = urlsplit("")
    is_whole = bool(split.netloc or split.scheme == "file") and not UNFIT.search(url)
    if split.scheme not in _SCHEMES or not is_whole or _host(split).startswith("-"):  # ssh takes that for an option
        raise JobInvalid("the job's repository has no address that git can use; expected one such as https://host/path")
    return split


def _is_http(url: SplitResult) -> bool:
    return url.scheme in {"http", "https"}


def _host(url: SplitResult) -> str:
    return url.netloc.rpartition("@")[2]


def _without_user(url: SplitResult) -> SplitResult:
    """The address without user and password; over SSH it has a user, and never a secret."""
    user = f"{(url.username or 'git')}@" if url.scheme == "ssh" else ""
    return url._replace(netloc=user + _host(url))


def _rewrites(web: SplitResult, environment: JobEnvironment) -> Iterator[tuple[str, str]]:
    """GitLab's addresses for SSH, and what is fetched instead."""
    if not _is_http(web):
        return
    instead = urlunsplit(_without_user(web)).rstrip("/")
    host = (
        environment.content("CI_SERVER_SHELL_SSH_HOST") or environment.content("CI_SERVER_HOST") or web.hostname or ""
    )
    port = environment.content("CI_SERVER_SHELL_SSH_PORT")
    if port in {"", "22"}:
        yield f"git@{host}:", f"{instead}/"
        yield f"ssh://git@{host}/", f"{instead}/"
    else:
        yield f"ssh://git@{host}:{port}/", f"{instead}/"
