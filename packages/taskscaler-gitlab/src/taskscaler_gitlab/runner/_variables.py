"""The environment of a job: which variables it has, with which values, and which directory its project is in: pure.

The order in which they are put together decides who wins, the later of two with one name:

1. what the runner says first: the image, the runner's short token, ``environment`` of its configuration, the
   directories, the numbers of the slot, the certificates;
2. what GitLab sends with the job, where the order is GitLab's own precedence;
3. what nobody overrides: whether the instance is shared, the runner's version, the directory for temporary files.

Then the references in all values are replaced once, see `_expansion`.

Source: ``common/build.go`` and ``common/spec/variables.go`` of gitlab-runner.
"""

import base64
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from urllib.parse import unquote, urlsplit

from attrs import field, frozen

from gitlab_jobs import Image, Job, Masker, Variable, shorten
from taskscaler_gitlab._names_of_traces import brings_context
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab.runner._errors import JobInvalid
from taskscaler_gitlab.runner._expansion import Budget
from taskscaler_gitlab.runner._logins import AUTH_CONFIG, read_auth_config
from taskscaler_gitlab.runner._options import GitSettings, JobOptions, Read, read_options, shown, within
from taskscaler_gitlab.runner._shell import NAME, quote
from taskscaler_gitlab.runner._values import TEMPORARY, Variables, cleaned, said, whole

ENV_FILE = "gitlab-runner.env"
"""What ``GITLAB_ENV`` names, among the temporary files; no variable can have this name."""

GIT_CONFIG = "git.config"
"""What git is configured by beside its own files, likewise."""

_USER = "gitlab-ci-token"
_STATUS = "CI_JOB_STATUS"

_SHELLS_OWN = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})
"""Variables that bash sets by itself and lets nobody set."""

_SECRET = 8
"""Characters of the shortest password that is hidden in logs: GitLab masks nothing shorter either."""

MAX_WRITTEN = 4_000_000
"""Characters of all variables together as a shell reads them: each stage of a job begins with them. Programs that get
more than two million bytes of them do not even start, as Linux is set up ordinarily."""

_UNFIT = re.compile(r"[\x00-\x1f\x7f]")
_NAMED = 5


@frozen(kw_only=True)
class Place:
    """Where a job runs."""

    builds_dir: str
    """The directory that projects are below, absolute, as the job sees it."""

    instance: str
    """The instance."""

    slot: int
    """The number of the job's slot on it, from 0."""

    concurrent_id: int = 0
    """A number that no other job has that runs on the instance: its slot's."""

    concurrent_project_id: int = 0
    """The same; a project's jobs are among them."""

    architecture: str = "linux/amd64"
    """The instance's system and processor."""

    shared: bool = True
    """Whether jobs of others come to this instance too, before, after or beside it."""

    private_builds: bool = False
    """Whether no other slot sees `builds_dir`, as in a container of its own."""

    custom_build_dir: bool = True
    """Whether jobs choose a directory by ``GIT_CLONE_PATH``."""


@frozen(kw_only=True)
class JobEnvironment:
    """The variables of a job as its shell has them, and what they ask of the runner."""

    exports: Mapping[str, str] = field(repr=False)
    """Names and values; that of a file is its path."""

    files: Mapping[str, str] = field(repr=False)
    """What is in the files of variables, by their paths: below `temp_dir`."""

    builds_dir: str
    """The directory that projects are below."""

    project_dir: str
    """The project's: where the job's script runs."""

    phrases: tuple[str, ...] = field(repr=False)
    """What no log may show."""

    problems: tuple[str, ...]
    """What was not understood or is left out, one line each, for the job's log; mask it."""

    git: GitSettings
    """How its sources come."""

    options: JobOptions
    """What else it asks for."""

    variables: Variables = field(repr=False)
    """What all of this was made of."""

    _budget: Budget = field(factory=Budget, repr=False, eq=False)
    """What is left for texts that are no variables: paths, keys, names, what is only for services."""

    @property
    def temp_dir(self) -> str:
        """Where the runner keeps files for the job: only its user may read them."""
        return f"{self.project_dir}.tmp"

    @property
    def env_file(self) -> str:
        """The file that ``GITLAB_ENV`` names: ``KEY=value`` in it is exported in the job's later stages."""
        return posixpath.join(self.temp_dir, ENV_FILE)

    def get(self, name: str, default: str = "") -> str:
        """A variable's value; of a file, its path."""
        return self.variables.get(name) if name in self.variables else default

    def content(self, name: str) -> str:
        """A variable's value; of a file, what is in it."""
        return self.variables.content(name)

    def expand(self, text: str) -> str:
        """Replace the references in a text, as in a cache's key or the name of an image.

        Raises:
            JobInvalid: The text becomes too long, or all of them together.
        """
        return self._budget.expand(whole(text), self.get)

    def of_service(self, service: Image) -> Mapping[str, str]:
        """The variables of a service beside the job: the job's public ones, and its own.

        Those of its own may refer to all that the job has; the job's are as the job has them.
        """
        own = [cleaned(each) for each in service.variables]
        mine = {each.key: each.value for each in own}
        names = dict(self.variables.public)

        def value(name: str) -> str:
            return mine[name] if name in mine else self.get(name)

        for each in own:
            names[each.key] = each.value if each.raw else self._budget.expand(each.value, value)
        return {name: value for name, value in names.items() if NAME.fullmatch(name) and "\0" not in value}

    def preamble(self, *, write_files: bool = True) -> str:
        """What every stage begins with, for any POSIX shell: the variables, and what earlier stages added to them.

        Args:
            write_files: Whether the files are written; stages on the same instance find them.
        """
        lines = list(self._writing()) if write_files else []
        lines += [f"export {name}={quote(value)}" for name, value in self.exports.items()]
        return "\n".join([*lines, f"export GITLAB_ENV={quote(self.env_file)}", _READ_ENV])

    def cleanup(self) -> str:
        """What removes the files again, for any POSIX shell."""
        paths = [*self.files, self.env_file, posixpath.join(self.temp_dir, GIT_CONFIG)]
        return "\n".join(f"rm -f {quote(path)}" for path in paths)

    def _writing(self) -> Iterator[str]:
        directory = quote(self.temp_dir)
        yield f"[ ! -L {directory} ] || rm -f {directory}"  # what an earlier job put there leads nowhere
        yield f"mkdir -p {directory} || exit 1"
        # Without a umask, as for the image that takes care of sources, what it makes is for the users of others too.
        yield 'case "$(umask)" in *000) _gl_mode=777 ;; *) _gl_mode=700 ;; esac'
        yield f'chmod "$_gl_mode" {directory} 2>/dev/null || [ -w {directory} ] || exit 1'
        yield f"rm -rf {quote(self.env_file)} || exit 1"
        for path, text in self.files.items():
            yield f"rm -rf {quote(path)} && (umask 077 && printf '%s' {quote(text)} > {quote(path)}) || exit 1"


_READ_ENV = r"""if [ -f "$GITLAB_ENV" ]; then
  while IFS= read -r _gl_line || [ -n "$_gl_line" ]; do
    case "$_gl_line" in *=*) ;; *) continue ;; esac
    case "${_gl_line%%=*}" in
      '' | [0-9]* | *[!A-Za-z0-9_]*) ;;
      BASHOPTS | BASH_VERSINFO | EUID | PPID | SHELLOPTS | UID) ;;
      *) export "$_gl_line" ;;
    esac
  done < "$GITLAB_ENV"
else
  mkdir -p "${GITLAB_ENV%/*}" && : > "$GITLAB_ENV"
fi"""


_NONE: Mapping[str, str] = {}


def environment_of(
    job: Job, settings: RunnerSettings, place: Place, trace_env: Mapping[str, str] = _NONE
) -> JobEnvironment:
    """Put together what a job's shell has.

    Args:
        job: The job, as GitLab sent it.
        settings: The runner's configuration.
        place: Where it runs.
        trace_env: With which its own spans join its trace, unless it, or the configuration, has variables for that.

    Raises:
        JobInvalid: The job cannot run like this; the message is fit for its log.
    """
    try:
        return _environment_of(job, settings, place, trace_env)
    except JobInvalid as error:
        masker = Masker(_phrases(job, [cleaned(each) for each in job.variables]))
        message = masker.feed(str(error).encode(errors="replace")) + masker.end()
        raise JobInvalid(message.decode(errors="replace"), reason=error.reason) from None


def _environment_of(job: Job, settings: RunnerSettings, place: Place, trace_env: Mapping[str, str]) -> JobEnvironment:
    sent = [cleaned(each) for each in job.variables]
    joins = [] if brings_context(sent, settings.variables) else [said(*each) for each in trace_env.items()]
    nowhere = Variables(before=_before(job, settings, place, ""), sent=sent, after=_after(place, ""))
    first = _read(job, settings, nowhere)
    project = _project_dir(job, settings, place, first)
    before = [*joins, *_before(job, settings, place, project)]
    variables = Variables(before=before, sent=sent, after=_after(place, project))
    read = _read(job, settings, variables)
    exports = _exports(variables, variables.names)
    files = {variables.get(name): variables.content(name) for name in exports if variables.is_file(name)}
    _check_size([*exports.items(), *files.items()])
    return JobEnvironment(
        exports=exports,
        files=files,
        builds_dir=place.builds_dir,
        project_dir=project,
        phrases=tuple(_phrases(job, sent, variables.masked, variables.content(AUTH_CONFIG))),
        problems=(*_left_out(variables), *read.problems),
        git=read.git,
        options=read.options,
        variables=variables,
    )


def _before(job: Job, settings: RunnerSettings, place: Place, project: str) -> list[Variable]:
    """What the job's own variables may override."""
    image = [Variable(key="CI_JOB_IMAGE", value=whole(job.image.name))] if job.image.name else []
    configured = [Variable(key=name, value=whole(value)) for name, value in settings.variables.items()]
    fixed = {
        "CI_BUILDS_DIR": place.builds_dir,
        "CI_PROJECT_DIR": project,
        "CI_CONCURRENT_ID": str(place.concurrent_id),
        "CI_CONCURRENT_PROJECT_ID": str(place.concurrent_project_id),
        "CI_SERVER": "yes",
        _STATUS: "running",
        "CI_JOB_TIMEOUT": str(job.timeout),
        "CI_JOB_TOKEN": job.token,  # GitLab sends it too; what plays GitLab in a test may not
    }
    return [
        *image,
        said("CI_RUNNER_SHORT_TOKEN", shorten(settings.token)),
        *configured,
        *(said(name, value) for name, value in fixed.items()),
        *_certificates(settings),
    ]


def _certificates(settings: RunnerSettings) -> list[Variable]:
    """What vouches for GitLab, and for this runner, as files."""
    files = {
        "CI_SERVER_TLS_CA_FILE": settings.ca_chain,
        "CI_SERVER_TLS_CERT_FILE": settings.tls_cert,
        "CI_SERVER_TLS_KEY_FILE": settings.tls_key,
    }
    return [Variable(key=name, value=text, file=True, raw=True) for name, text in files.items() if text]


def _after(place: Place, project: str) -> list[Variable]:
    """What nothing overrides."""
    ours = version("taskscaler-gitlab")
    fixed = {
        "CI_SHARED_ENVIRONMENT" if place.shared else "CI_DISPOSABLE_ENVIRONMENT": "true",
        "CI_RUNNER_VERSION": ours,
        "CI_RUNNER_REVISION": f"taskscaler-gitlab-{ours}",
        "CI_RUNNER_EXECUTABLE_ARCH": place.architecture,
        "TASKSCALER_INSTANCE": place.instance,
        "TASKSCALER_SLOT": str(place.slot),
        TEMPORARY: f"{project}.tmp" if project else "",
    }
    return [said(name, value) for name, value in fixed.items()]


def _read(job: Job, settings: RunnerSettings, variables: Variables) -> Read:
    return read_options(
        variables.content,
        job.git_info,
        may_fetch=job.allow_git_fetch,
        may_trace=not settings.debug_trace_disabled,
        job_timeout=job.timeout,
        feature_flags=settings.feature_flags,
    )


def _project_dir(job: Job, settings: RunnerSettings, place: Place, read: Read) -> str:
    """Where the project is: below the directory of its runner and slot, unless the job names a place."""
    if not place.builds_dir.startswith("/"):
        raise JobInvalid(f"builds_dir: expected an absolute path, found {shown(place.builds_dir)}")
    if read.clone_path:
        if not place.custom_build_dir:
            raise JobInvalid("GIT_CLONE_PATH: this runner does not let jobs choose a directory; leave the variable out")
        return within(read.clone_path, place.builds_dir)
    own = () if place.private_builds else (_part(shorten(settings.token)), str(place.slot))
    suffix = "-empty" if read.git.strategy == "empty" else ""
    return posixpath.join(place.builds_dir, *own, slug_of(job)) + suffix


def _part(text: str) -> str:
    """A text as one part of a path."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text) or "_"


def slug_of(job: Job) -> str:
    """The project's path at GitLab, below which nothing else is; its number, if the path is not one."""
    try:
        path = unquote(urlsplit(job.git_info.repo_url).path).removesuffix(".git")
    except ValueError:
        path = ""
    slug = posixpath.normpath("/" + path).lstrip("/")
    is_path = slug and ".." not in slug and not _UNFIT.search(slug) and whole(slug) == slug
    return slug if is_path else f"project-{job.job_info.project_id}"


def _exports(variables: Variables, names: Iterable[str]) -> dict[str, str]:
    """What a shell can have of these, with its value."""
    return {name: _without_nul(name, variables) for name in names if NAME.fullmatch(name) and name not in _SHELLS_OWN}


def _check_size(named: Iterable[tuple[str, str]]) -> None:
    """See that no job fills the manager's memory with its variables."""
    if sum(len(name) + len(quote(value)) for name, value in named) > MAX_WRITTEN:
        raise JobInvalid(
            f"the job's variables have more than {MAX_WRITTEN} characters together, as a shell reads them; make them"
            " shorter, or put what is long into a file of the project"
        )


def _without_nul(name: str, variables: Variables) -> str:
    if "\0" in variables.content(name):
        raise JobInvalid(
            f"the variable `{name}` has a NUL character in its value, which no shell can hold; encode it, for example"
            " as Base64",
            reason="script_failure",
        )
    return variables.get(name)


def _left_out(variables: Variables) -> Iterator[str]:
    """What the shell does not get, in a line for each reason."""
    unfit = [name for name in variables.names if not NAME.fullmatch(name)]
    if unfit:
        yield (
            f"{_list(unfit)}: not exported, a shell cannot have a variable of this name; use letters, digits and"
            " underscores, and begin with a letter"
        )
    if own := [name for name in variables.names if name in _SHELLS_OWN]:
        yield f"{_list(own)}: not exported, bash sets this by itself; choose another name"


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"variable {', '.join(shown(name) for name in names[:_NAMED])}{more}"


def _phrases(
    job: Job, variables: Iterable[Variable], values: Iterable[str] = (), auth_config: str = ""
) -> Iterator[str]:
    """What no log may show: masked values as they were sent and as they are, tokens, passwords.

    The job's token also as HTTP has it: git prints its headers if it is asked to.
    """
    yield from filter(None, dict.fromkeys([*(each.value for each in variables if each.masked), *values]))
    tokens = [job.token, *(each.token for each in job.dependencies)]
    passwords = [*(each.password for each in job.credentials), *_passwords(auth_config)]
    yield from {each for each in (*tokens, *passwords, _password(job.git_info.repo_url)) if len(each) >= _SECRET}
    if len(job.token) >= _SECRET:
        yield base64.b64encode(f"{_USER}:{job.token}".encode(errors="replace")).decode()


def _passwords(auth_config: str) -> list[str]:
    try:
        return [each.password for each in read_auth_config(auth_config).values()]
    except JobInvalid:  # where it is used, the job fails
        return []


def _password(url: str) -> str:
    try:
        return unquote(urlsplit(url).password or "")
    except ValueError:
        return ""
