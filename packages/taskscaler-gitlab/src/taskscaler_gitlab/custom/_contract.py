"""What gitlab-runner says to the driver of its custom executor, and what it wants to hear: pure.

Of its variables, those that begin with ``CUSTOM_ENV_`` are the job's: whoever writes a job may write them, too. The
others are gitlab-runner's and the operator's. Which job it is, a file says that the job cannot write.
"""

import difflib
import json
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from posixpath import isabs

from attrs import field, frozen

from fleeting.config import harmless
from fleeting.errors import WrongArguments

FLEET_VARIABLE = "TASKSCALER_FLEET"
"""With which a job chooses among the fleets that the operator offers."""

SOCKET_VARIABLE = "TASKSCALER_SOCKET"
"""In which the first call passes on to the others where the fleet is."""

SHELL_VARIABLE = "TASKSCALER_SHELL"
"""In which it passes on what the scripts are for."""

SHELLS = ("bash", "sh")
"""For which gitlab-runner can write scripts that run here."""

OF_JOB = "CUSTOM_ENV_"
_BUILD, _SYSTEM, _CODE_FILE = "BUILD_FAILURE_EXIT_CODE", "SYSTEM_FAILURE_EXIT_CODE", "BUILD_EXIT_CODE_FILE"
_RESPONSE = "JOB_RESPONSE_FILE"
_JOB_ID = f"{OF_JOB}CI_JOB_ID"
_SHEBANG = re.compile(rb"#!\s*(?:/usr/bin/env\s+|/\S*/)(\S+)[ \t]*\r?\n")
_SHOWN = 60
_MOST = 255
"""An exit status."""


class JobsMistake(WrongArguments):
    """The job asks for what it cannot have: it has failed, and GitLab does not try it again."""


@frozen(kw_only=True)
class Codes:
    """The exit statuses that gitlab-runner wants, and where it wants the script's."""

    build: int = 1
    """The job has failed."""

    system: int = 2
    """We have."""

    file: Path | None = None
    """Where the script's own exit status is written; None: this gitlab-runner does not want it."""


@frozen(kw_only=True)
class CalledFor:
    """The job for which we are called."""

    id: int
    token: str = field(repr=False)

    @property
    def key(self) -> str:
        """Names it among all jobs of all GitLabs; nobody can make a job that has another's."""
        return f"gitlab-{self.id}-{sha256(self.token.encode()).hexdigest()[:12]}"


def codes_of(env: Mapping[str, str]) -> Codes:
    """Read the exit statuses; what cannot be one is as if it were not there."""
    file = env.get(_CODE_FILE)
    return Codes(build=_code(env.get(_BUILD), 1), system=_code(env.get(_SYSTEM), 2), file=Path(file) if file else None)


def _code(given: str | None, default: int) -> int:
    return int(given) if given and re.fullmatch("[0-9]{1,3}", given) and 0 < int(given) <= _MOST else default


def response_file(env: Mapping[str, str]) -> Path:
    """Where gitlab-runner has put what GitLab says of the job.

    Raises:
        WrongArguments: We were not called by a gitlab-runner.
    """
    if not env.get(_RESPONSE):
        what = f"{_RESPONSE} is not set; this is a command for the custom executor of gitlab-runner, which sets it"
        raise WrongArguments(what)
    return Path(env[_RESPONSE])


def called_for(env: Mapping[str, str], response: bytes) -> CalledFor:
    """Read for which job we are called.

    Args:
        env: Our variables.
        response: What is in the file that they name.

    Raises:
        WrongArguments: That is none.
        JobsMistake: The job claims to be another.
    """
    try:
        data = json.loads(response)
    except ValueError:
        data = None
    match data:
        case {"id": int(id_), "token": str(token)} if id_ > 0 and token:
            found = CalledFor(id=id_, token=token)
        case _:
            raise WrongArguments(f"{env[_RESPONSE]} has no job of GitLab's; use gitlab-runner 15.4 or later")
    if env.get(_JOB_ID, str(found.id)) != str(found.id):  # without it, the file has said all
        said = _shown(env[_JOB_ID])
        raise JobsMistake(f"the job {found.id} sets CI_JOB_ID to {said}; remove that variable from it")
    return found


def fleets_of(given: tuple[str, ...]) -> dict[str, str]:
    """Read what the operator offers, each as ``NAME=SOCKET``, in their order.

    Raises:
        WrongArguments: That is not how one is written, or two have the same name.
    """
    found: dict[str, str] = {}
    for each in given:
        name, equals, socket = each.partition("=")
        if not equals or not socket or not re.fullmatch(r"[A-Za-z0-9._-]{1,60}", name):
            raise WrongArguments(f"--fleet: expected NAME=SOCKET, found {each!r}")
        if name in found:
            raise WrongArguments(f"--fleet: two are called {name!r}; give each a name of its own")
        found[name] = socket
    return found


def choose(env: Mapping[str, str], fleets: Mapping[str, str], socket: str | None) -> str | None:
    """Choose a job's fleet, by its own variable, among those that the operator offers and no others.

    Args:
        env: Our variables.
        fleets: The sockets of the fleets that are offered, by their names.
        socket: What jobs get that choose none; None: the first of those, or the user's only one.

    Returns:
        The socket. None: the user's only one.

    Raises:
        JobsMistake: It chooses what is not offered.
    """
    wanted = env.get(f"{OF_JOB}{FLEET_VARIABLE}", "")
    if not wanted:
        return socket if socket is not None else next(iter(fleets.values()), None)
    if wanted in fleets:
        return fleets[wanted]
    asked = f"the job asks for the fleet {_shown(wanted)} in {FLEET_VARIABLE}"
    if not fleets:
        raise JobsMistake(f"{asked}, but its runner offers no choice; remove the variable")
    near = difflib.get_close_matches(wanted, fleets, 1)
    hint = f"did you mean {near[0]!r}?" if near else "name one of those"
    raise JobsMistake(f"{asked}, but its runner has {', '.join(fleets)}; {hint}")


def check_directory(option: str, path: str) -> None:
    """See that a directory on the instances can be meant.

    Raises:
        WrongArguments: It cannot.
    """
    if not isabs(path):
        raise WrongArguments(f"{option}: expected an absolute path on the instances, found {path!r}")


def configuration(*, socket: Path, builds_dir: str, cache_dir: str, shell: str, version: str) -> Mapping[str, object]:
    """What gitlab-runner asks for first: where jobs work, and what it tells the calls that follow.

    Several slots of an instance share its directories, so the path of a job's begins with the number of its runner's
    job at that time.
    """
    return {
        "driver": {"name": "taskscaler", "version": version},
        "builds_dir": builds_dir,
        "cache_dir": cache_dir,
        "builds_dir_is_shared": True,
        "shell": shell,
        "job_env": {SOCKET_VARIABLE: str(socket), SHELL_VARIABLE: shell},
    }


def shell_for(script: bytes) -> str:
    """Read from a script's first line what runs it.

    Raises:
        WrongArguments: That is nothing which runs here.
    """
    found = _SHEBANG.match(script)
    shell = found[1].decode(errors="replace") if found else ""
    if shell not in SHELLS:
        what = f"the script is for {_shown(shell)}" if shell else "the script does not say which shell it is for"
        raise WrongArguments(f'{what}; set shell = "bash" in the config.toml of gitlab-runner')
    return shell


def ending(status: int, codes: Codes) -> tuple[int, str | None]:
    """Say how to end after a script.

    Args:
        status: The script's own exit status, as a shell has it.
        codes: What gitlab-runner wants.

    Returns:
        Our exit status, and what its file is to say; None: nothing.
    """
    if status == 0:
        return 0, None
    return codes.build, str(status) if codes.file is not None else None


def _shown(text: str) -> str:
    return repr(harmless(text)[:_SHOWN])
