r"""How the sources of a job come to its instance: text for any POSIX shell, made of what the job says: pure.

What is promised:

- **The job's token is in no URL, no file, no argument and no output.** git asks a credential helper that reads
  ``CI_JOB_TOKEN`` from its environment; the helper is known for the hosts of this GitLab alone, and is the only one
  that is asked for them, so that no other keeps the token.
- **What an earlier job left in a clone has no say.** Its configuration, hooks, attributes, worktrees and half-done
  merges are removed before git looks at them, and so is what is neither file nor directory, at which git would wait;
  submodules lead into the clone's own ``.git/modules`` or are cloned again. Objects, references, the index and the
  files stay: they are what makes a fetch quick. git believes its objects and its index, and so does this: a job that
  *forges* them is believed, too. To check the index costs reading every file (0.2 s of CPU for 10,000, 0.06 s
  without), to check objects costs reading all of history, and one without the other is no gain.
- **A clone that a killed job left behind is no trouble.** Locks and half-written files are removed; if git still cannot
  use it and says itself that it is damaged, it is cloned again.
- **Nothing that a job says is read by a shell or taken for an option.** Everything is quoted, and what git could take
  for an option comes after ``--``, or is refused.

Messages are those of GitLab Runner where it has one, for people and programs that know them.

Source: ``shells/abstract.go`` and ``helpers/url/gitauth.go`` of gitlab-runner, for what users expect.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import version

from gitlab_jobs import Job
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab.runner._errors import JobInvalid
from taskscaler_gitlab.runner._options import GitSettings, shown
from taskscaler_gitlab.runner._remote import UNFIT, Remote
from taskscaler_gitlab.runner._shell import notice, quote, warning
from taskscaler_gitlab.runner._variables import GIT_CONFIG, JobEnvironment

HELPER = (
    """!f() { if [ "$1" = get ]; then printf 'username=%s\\npassword=%s\\n' gitlab-ci-token "$CI_JOB_TOKEN"; fi; }; f"""
)
"""What git asks for credentials; it is in git's configuration, and has no secret in it."""

KEPT = "gitlab.config"
"""The same for the job's own use of git, in the clone: whoever reads the clone may read it, it has no secret in it."""

_SHA = re.compile(r"[0-9a-f]{7,64}", re.IGNORECASE | re.ASCII)
_SHOWN_SHA = 8


def sources_script(
    job: Job, environment: JobEnvironment, settings: RunnerSettings, *, before: str = "", after: str = ""
) -> str:
    """Commands that bring the sources of a job to its project's directory.

    They run after the job's variables are exported, from any directory, with ``errexit`` or without, and end with a
    status other than 0 if there are no sources.

    Args:
        job: The job.
        environment: Its variables.
        settings: The runner's configuration.
        before: Commands of a hook, in the same shell.
        after: Likewise, in the project's directory.

    Raises:
        JobInvalid: The job does not say where its sources are, or which.
    """
    git = environment.git
    if not git.has_repository:
        return _without_git(environment)
    remote = Remote.of(job, environment, settings)
    parts = [
        *_settings_of(job, environment, remote),
        _FUNCTIONS,
        *_functions(job, git),
        before,
        *_configuration(remote, environment),
        f"_gl_sources {'' if git.strategy == 'fetch' else 'afresh'} || exit 1",
        *(["_gl_submodules || exit 1"] if git.submodules != "none" else [notice("Skipping Git submodules setup")]),
        after,
    ]
    return "\n".join(part for part in parts if part) + "\n"


def clear_worktree_script(environment: JobEnvironment) -> str:
    """Commands that remove all files of the project, before sources are fetched another time."""
    if not environment.git.has_repository:
        return ""
    project = quote(environment.project_dir)
    return "\n".join(
        (
            notice("Deleting tracked and untracked files..."),
            f"if [ -d {project}/.git ] && [ ! -L {project} ] && cd {project}; then",
            f"  git {_GUARDED} rm -rf --ignore-unmatch --quiet . </dev/null || :",
            f"  git {_GUARDED} clean -ffdx -q </dev/null || :",
            "fi\n",
        )
    )


def cleanup_script(environment: JobEnvironment) -> str:
    """Commands that leave the project as it was checked out, if the next job fetches, or nothing of it."""
    git, project = environment.git, quote(environment.project_dir)
    if git.strategy == "none":
        return ""
    if git.strategy != "fetch":
        return f"_gl_project={project}\n{_WIPE}\n_gl_wipe\n"
    clean = f"git {_GUARDED} clean -q {_words(git.clean_flags)} </dev/null" if git.clean_flags else ":"
    lines = [f"cd {project} || exit", clean, f"git {_GUARDED} reset -q --hard </dev/null"]
    if git.submodules != "none":
        deep = "--recursive" if git.submodules == "recursive" else ""
        inner = quote(
            f"git clean -q {_words(git.clean_flags)}; git reset -q --hard" if git.clean_flags else "git reset -q --hard"
        )
        lines.append(f"git {_GUARDED} submodule -q foreach {deep} {inner} </dev/null")
    return "\n".join((*lines, ""))


def _without_git(environment: JobEnvironment) -> str:
    project = quote(environment.project_dir)
    if environment.git.strategy == "none":
        return "\n".join((notice("Skipping Git repository setup"), f"mkdir -p {project} || exit 1", _SKIPPED))
    return "\n".join(
        (
            notice("Skipping Git repository setup and creating an empty build directory"),
            f"_gl_project={project}",
            _WIPE,
            f"_gl_wipe && mkdir -p {project} || exit 1",
            _SKIPPED,
        )
    )


_SKIPPED = "\n".join((notice("Skipping Git checkout"), notice("Skipping Git submodules setup"), ""))


def _settings_of(job: Job, environment: JobEnvironment, remote: Remote) -> Iterator[str]:
    """What the functions read."""
    yield f"_gl_project={quote(environment.project_dir)}"
    yield f"_gl_config={quote(posixpath.join(environment.temp_dir, GIT_CONFIG))}"
    yield f"_gl_kept={quote(posixpath.join(environment.project_dir, '.git', KEPT))}"
    yield f"_gl_remote={quote(remote.url)}"
    yield f"export CI_JOB_TOKEN={quote(job.token)}"
    yield "export GIT_TERMINAL_PROMPT=0 GIT_ASKPASS= GCM_INTERACTIVE=Never"
    yield "unset SSH_ASKPASS"
    if not environment.git.skip_lfs:
        yield "export GIT_LFS_SKIP_SMUDGE=1"  # large files come by `git lfs pull`, which needs less memory


def _configuration(remote: Remote, environment: JobEnvironment) -> Iterator[str]:
    """Write git's configuration, in a file beside those of variables; the clone gets a copy."""
    lines = ["[init]", _entry("defaultBranch", "none"), "[fetch]", _entry("recurseSubmodules", "false")]
    lines += ["[gc]", _entry("autoDetach", "false"), "[maintenance]", _entry("autoDetach", "false")]
    lines += ["[credential]", _entry("interactive", "never")]
    for host in remote.hosts:
        lines += [_section("credential", host), _entry("helper", ""), _entry("helper", HELPER)]
        lines += [_entry("username", "gitlab-ci-token"), *_tls(host, environment)]
    for beginning, instead in remote.rewrites:
        lines += [_section("url", instead), _entry("insteadOf", beginning)]
    text = "\n".join((*lines, ""))
    yield 'mkdir -p "${_gl_config%/*}" && rm -rf "$_gl_config" || exit 1'
    yield f"(umask 077 && printf '%s' {quote(text)} > \"$_gl_config\") || exit 1"


def _tls(host: str, environment: JobEnvironment) -> Iterator[str]:
    """What this GitLab is known by, and knows us by."""
    files = {
        "sslCAInfo": "CI_SERVER_TLS_CA_FILE",
        "sslCert": "CI_SERVER_TLS_CERT_FILE",
        "sslKey": "CI_SERVER_TLS_KEY_FILE",
    }
    known = {key: environment.get(name) for key, name in files.items() if environment.get(name)}
    if host.startswith("https:") and known:
        yield _section("http", host)
        yield from (_entry(key, path) for key, path in known.items())


def _section(name: str, subsection: str) -> str:
    return f"[{name} {_quoted(subsection)}]"


def _entry(key: str, value: str) -> str:
    return f"\t{key} = {_quoted(value)}"


def _quoted(text: str) -> str:
    """A value as git's configuration has it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _words(words: Iterable[str]) -> str:
    return " ".join(map(quote, words))


def _functions(job: Job, git: GitSettings) -> Iterator[str]:
    """The steps that depend on the job."""
    yield _function("_gl_init", *_init(job, git))
    yield _function("_gl_fetch", *_fetch(job, git))
    yield _function("_gl_checkout", *_checkout(job, git))
    yield _function("_gl_lfs", *([] if git.skip_lfs else [_LFS]))
    if git.submodules != "none":
        yield from _submodules(git)


def _function(name: str, *lines: str) -> str:
    body = "\n".join(f"  {line}" for line in (lines or (":",)))
    return f"{name}() {{\n{body}\n}}"


def _init(job: Job, git: GitSettings) -> Iterator[str]:
    """Make a repository, or make one of what is there."""
    format_ = "" if git.object_format == "sha1" else f" --object-format={git.object_format}"
    depth = [f"--depth={git.depth}"] if git.depth else []
    ref = job.git_info.ref
    if git.native_clone and git.strategy == "clone" and not ref.startswith("refs/"):
        branch = [f"--branch={ref}"] if ref else []
        yield notice(f"Cloning repository for {ref}..." if ref else "Cloning repository...")
        options = _words([*depth, *branch, *git.clone_flags])
        yield f'_gl_git clone --no-checkout --template= {options} -- "$_gl_remote" . || return'
    else:
        yield f"_gl_git init -q --template={format_} || return"
        yield '_gl_git remote add -- origin "$_gl_remote" || return'
    yield 'cat "$_gl_config" > "$_gl_kept" && _gl_git config include.path "$_gl_kept" || return'


def _fetch(job: Job, git: GitSettings) -> Iterator[str]:
    """Fetch what the job wants."""
    refspecs = job.git_info.refspecs
    if unfit := [each for each in refspecs if not each or each.startswith("-") or UNFIT.search(each)]:
        raise JobInvalid(f"the job wants a refspec that git cannot have: {shown(unfit[0])}")
    yield notice(f"Fetching changes with git depth set to {git.depth}..." if git.depth else "Fetching changes...")
    yield f"set -- --no-recurse-submodules {f'--depth={git.depth}' if git.depth else ''}".rstrip()
    if not git.depth:
        yield '[ ! -f .git/shallow ] || set -- "$@" --unshallow'
    yield f'_gl_git fetch "$@" origin {_words(git.fetch_flags)} -- {_words(refspecs)}'


def _checkout(job: Job, git: GitSettings) -> Iterator[str]:
    """Check out the job's commit, and remove what is not part of it."""
    if not git.checkout:
        yield notice("Skipping Git checkout")
        return
    sha, ref = job.git_info.sha, job.git_info.ref
    if not _SHA.fullmatch(sha):
        raise JobInvalid(f"the job's commit: expected a hash, found {shown(sha)}")
    yield notice(f"Checking out {sha[:_SHOWN_SHA]} as detached HEAD (ref is {ref})...")
    yield '[ -z "$_gl_reused" ] || _gl_forget_attributes || return'
    yield f"_gl_git checkout -f -q {sha} -- || return"
    if git.clean_flags:
        yield f"_gl_git clean {_words(git.clean_flags)} || return"
    yield "_gl_own_submodules"


def _submodules(git: GitSettings) -> Iterator[str]:
    recursive = "--recursive" if git.submodules == "recursive" else ""
    paths = f"-- {_words(git.submodule_paths)}" if git.submodule_paths else ""
    depth = f"--depth={git.submodule_depth}" if git.submodule_depth else ""
    clean = quote(f"git clean -q {_words(git.clean_flags or ('-ffdx',))}")
    heads = quote("git fetch -q origin '+refs/heads/*:refs/remotes/origin/*'")
    is_remote = any(flag.lower() == "--remote" for flag in git.submodule_flags)
    deep = " recursively" if recursive else ""
    limit = f" with git depth set to {git.submodule_depth}" if git.submodule_depth else ""
    yield _function("_gl_sync", f"_gl_git submodule -q sync {recursive} {paths}".rstrip())
    yield _function("_gl_each", f'_gl_git submodule -q foreach {recursive} "$@"')
    yield _function("_gl_clean", f"_gl_each {clean} && _gl_each 'git reset -q --hard'")
    yield _function(
        "_gl_update",
        "_gl_git submodule -q init && _gl_sync || return",
        f"_gl_git submodule update --init {recursive} {depth} {_words(git.submodule_flags)} {paths}".rstrip(),
    )
    yield _function(
        "_gl_submodules",
        notice(f"Updating/initializing submodules{deep}{limit}..."),
        "_gl_git submodule -q init && _gl_sync && _gl_clean || :",
        "if ! _gl_update; then",
        f"  {warning('Updating submodules failed. Retrying...')}",
        *([f"  _gl_each {heads} || :"] if is_remote else []),
        "  _gl_update || { _gl_forget_submodules && _gl_update; } || return",
        "fi",
        notice("Updated submodules"),
        "_gl_clean || return",
        """_gl_git submodule -q foreach --recursive 'git config --replace-all include.path "$_gl_kept"' || return""",
        *([] if git.skip_lfs else ["_gl_lfs_of_submodules"]),
    )


_GUARDED = (
    "-c core.hooksPath=/dev/null -c core.fsmonitor= -c submodule.recurse=false -c safe.directory='*'"
    f" -c http.userAgent={quote('taskscaler-gitlab/' + version('taskscaler-gitlab'))}"
)
"""Options of git that keep what is in a clone from running, and the owner of its files from mattering."""

_LFS = 'if git lfs version >/dev/null 2>&1; then git -c include.path="$_gl_config" lfs pull </dev/null; fi'

_WIPE = """_gl_wipe() {
  cd / || return
  if [ -L "$_gl_project" ]; then rm -f "$_gl_project"; return; fi
  rm -rf "$_gl_project" 2>/dev/null && return
  chmod -R u+rwX "$_gl_project"
  rm -rf "$_gl_project"
}"""

_FUNCTIONS = rf"""set -e
export _gl_kept
if ! command -v git >/dev/null 2>&1; then
  {warning("git is not installed here; install it, or set GIT_STRATEGY to none if the job needs no sources")}
  exit 1
fi
_gl_git() {{
  git -c include.path="$_gl_config" {_GUARDED} "$@" </dev/null
}}
{_WIPE}
_gl_enter() {{
  if [ -L "$_gl_project" ] || {{ [ -e "$_gl_project" ] && [ ! -d "$_gl_project" ]; }}; then
    rm -f "$_gl_project" || return
  fi
  mkdir -p "$_gl_project" && cd "$_gl_project" || return
  if [ -L .git ] || {{ [ -e .git ] && [ ! -d .git ]; }}; then
    rm -f .git || return
  fi
}}
_gl_tidy() {{
  find .git \( ! -type f ! -type d -o -type f \( -name '*.lock' -o -name gc.pid -o -path '*/objects/*' -name 'tmp_*' \
    -o -path '*/objects/[0-9a-f][0-9a-f]/*' -size 0 \) \) -exec rm -f {{}} +
  (cd ./.git && rm -rf {KEPT} HEAD config config.worktree hooks info logs commondir worktrees branches remotes \
    MERGE_HEAD CHERRY_PICK_HEAD REVERT_HEAD BISECT_LOG rebase-apply rebase-merge sequencer) || return
  if [ -d .git/modules ]; then
    find .git/modules \( -name config -o -name config.worktree -o -name commondir \) ! -type d -exec rm -f {{}} +
    find .git/modules -type d \( -name hooks -o -name worktrees -o -name info ! -path '*/objects/info' \) -prune \
      -exec rm -rf {{}} +
  fi
}}
_gl_is_own() {{
  [ -f "$1" ] && [ ! -L "$1" ] && IFS= read -r _gl_line < "$1" || return
  case "$_gl_line" in 'gitdir: '*) _gl_line=${{_gl_line#'gitdir: '}} ;; *) return 1 ;; esac
  _gl_line=${{_gl_line#"$_gl_project/"}}
  while :; do
    case "$_gl_line" in ../*) _gl_line=${{_gl_line#../}} ;; *) break ;; esac
  done
  case "$_gl_line" in
    *..*) return 1 ;;
    .git/modules/*) [ -d "$_gl_project/$_gl_line" ] ;;
    *) return 1 ;;
  esac
}}
_gl_strangers() {{
  _gl_git -C "./$1" -c core.quotePath=false ls-files -s |
    sed -n "s/^160000 [0-9a-f]* [0-9]$(printf '\t')//p" |
    while IFS= read -r _gl_path; do
      if [ ! -e "$1$_gl_path/.git" ] && [ ! -L "$1$_gl_path/.git" ]; then
        continue
      elif _gl_is_own "$1$_gl_path/.git"; then
        (_gl_strangers "$1$_gl_path/")
      else
        rm -rf "$1$_gl_path/.git"
        printf '%s\n' "$1$_gl_path"
      fi
    done
}}
_gl_forget_submodules() {{
  rm -rf .git/modules && _gl_git submodule -q deinit -f --all
}}
_gl_forget_changes() {{
  _gl_git for-each-ref --format='%(refname)' refs/replace | while IFS= read -r _gl_ref; do
    _gl_git update-ref -d "$_gl_ref" || exit
  done || return
  if _gl_git ls-files -v | grep -q '^[[:lower:]S]'; then
    rm -f .git/index
  fi
}}
_gl_forget_attributes() {{
  find . -name .git -prune -o -name .gitattributes ! -type f ! -type d -exec rm -f {{}} +
  _gl_git ls-files -o -z -- ':(glob)**/.gitattributes' | xargs -0 rm -f --
}}
_gl_own_submodules() {{
  if [ -z "$(_gl_strangers '')" ]; then
    return 0
  fi
  {warning("Submodules of an earlier job lead out of this repository; cloning them again...")}
  _gl_forget_submodules
}}
_gl_sources() {{
  if [ -n "$1" ]; then
    _gl_wipe || return
  fi
  _gl_enter || return
  _gl_reused=
  if [ -d .git ]; then
    _gl_reused=1
    _gl_tidy || return
  fi
  if _gl_init && _gl_forget_changes && _gl_fetch && _gl_checkout; then
    _gl_lfs
    return
  fi
  if [ -z "$_gl_reused" ] || _gl_git fsck --connectivity-only --no-dangling --no-reflogs >/dev/null 2>&1; then
    return 1
  fi
  {warning("The repository that an earlier job left here is damaged; cloning it again...")}
  rm -rf .git && _gl_init && _gl_fetch && _gl_checkout && _gl_lfs
}}
_gl_lfs_of_submodules() {{
  if git lfs version >/dev/null 2>&1; then
    _gl_git submodule -q foreach --recursive 'git lfs pull'
  fi
}}"""
