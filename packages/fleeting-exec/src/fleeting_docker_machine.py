"""An executable for the `exec` group that works through Docker Machine: ``fleeting-docker-machine``.

    fleeting-docker-machine DRIVER [OPTION ...] create|destroy|status NAME
    fleeting-docker-machine DRIVER [OPTION ...] list

Options are those of ``docker-machine create``, as GitLab Runner's ``MachineOptions`` has them: the two dashes at their
beginning may be left out. Docker Machine exits with 1 for nearly everything, so a failure is recognised by the
error codes of the clouds in what it said.

It is started for every question, so it imports nothing but the standard library: the statuses are the ``os.EX_*`` for
which `fleeting_exec.ExitCode` has names.
"""

import json
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

_STATES: Mapping[str, str] = {
    "Running": "running",
    "Starting": "creating",
    "Paused": "suspended",
    "Saved": "suspended",
    "Stopping": "failed",
    "Stopped": "failed",
}
"""A machine that was stopped ran jobs, and nobody starts it again. All other states, such as ``Error`` and
``Timeout``, say that Docker Machine could not learn it, which one bad answer from the cloud is enough for."""

_CODES: Mapping[int, Sequence[str]] = {
    os.EX_UNAVAILABLE: (
        "AllocationFailed",
        "InsufficientInstanceCapacity",
        "SkuNotAvailable",
        "SpotMaxPriceTooLow",
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "ZonalAllocationFailed",
        "resource_unavailable",
    ),
    os.EX_CANTCREAT: (
        "InstanceLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "QUOTA_EXCEEDED",
        "QuotaExceeded",
        "VcpuLimitExceeded",
        "quotaExceeded",
        "resource_limit_exceeded",
    ),
    os.EX_TEMPFAIL: (
        "RequestLimitExceeded",
        "Throttling",
        "TooManyRequests",
        "rateLimitExceeded",
        "rate_limit_exceeded",
    ),
    os.EX_NOPERM: (
        "AccessDenied",
        "AuthFailure",
        "AuthorizationFailed",
        "ExpiredToken",
        "InvalidClientTokenId",
        "UnauthorizedOperation",
        "invalid_grant",
    ),
}
"""Error codes of clouds: not words of a message, which change."""

_USAGE = """\
Usage: fleeting-docker-machine DRIVER [OPTION ...] create|destroy|status NAME
       fleeting-docker-machine DRIVER [OPTION ...] list
"""

_HELP = f"""\
{_USAGE}
Creates, lists and destroys machines with Docker Machine, for a fleet whose plugin is exec:

  [autoscaler.plugin_config]
  command = ["fleeting-docker-machine", "amazonec2", "amazonec2-region=eu-west-1"]

The plugin adds the words from create on. DRIVER and each OPTION are those of docker-machine create, with or without
the two leading dashes; docker-machine create --driver DRIVER --help lists them.

Exit status: 0 if all went well, 64 if the arguments are wrong, and otherwise the status of the exec contract for what
went wrong, such as 69 if the cloud has no capacity.
"""

_FORMAT = r"{{.Name}}\t{{.State}}"
_KEPT = 100
"""Lines of output in which an error code is looked for: the last ones."""


class Failed(Exception):
    """Docker Machine failed, and has said why; what to exit with."""

    def __init__(self, code: int) -> None:
        """Take the exit status."""
        self.code = code


def main() -> NoReturn:
    """Do what the command line says."""
    try:
        sys.exit(_dispatch(sys.argv[1:]))
    except Failed as failure:
        sys.exit(failure.code)
    except KeyError as missing:
        sys.exit(f"there is no {missing.args[0]} in the environment; it is the name of the group, and set by fleeting")
    except FileNotFoundError:
        sys.exit("there is no program docker-machine; install it, or add its directory to PATH in plugin_config.env")


def _dispatch(arguments: Sequence[str]) -> int:
    match arguments:
        case ["-h" | "--help", *_]:
            print(_HELP, end="")  # noqa: T201
        case [_, *_, "list"]:
            print(json.dumps({"instances": [_describe(*each) for each in _machines().items()]}))  # noqa: T201
        case [_, *_, "status", name]:
            return _status(name)
        case [driver, *options, "create", name]:
            _run("create", "--driver", driver, *(f"--{option.removeprefix('--')}" for option in options), name)
        case [_, *_, "destroy", name]:
            _destroy(name)
        case _:
            print(_USAGE, end="", file=sys.stderr)  # noqa: T201
            return os.EX_USAGE
    return os.EX_OK


def _status(name: str) -> int:
    state = _machines(name).get(name)
    if state is None:
        return os.EX_NOINPUT
    described = _describe(name, state)
    if described["state"] == "running":
        described |= _way_to(name)
    print(json.dumps(described))  # noqa: T201
    return os.EX_OK


def _destroy(name: str) -> None:
    """Remove a machine. What counts is whether it is gone: some releases exit with 0 though they failed."""
    code = 1
    try:
        _run("rm", "-y", name)
    except Failed as failure:
        code = failure.code
    if name in _machines(name):
        raise Failed(code)


def _machines(name: str | None = None) -> dict[str, str]:
    """States by name: of all machines of ours, or of this one; others may share the store."""
    group = re.escape(os.environ["FLEETING_GROUP"])
    ours = f"{group}-[0-9a-f]{{12}}-[0-9]+" if name is None else re.escape(name)
    lines = _ask("ls", "--format", _FORMAT, "--filter", f"name=^{ours}$").splitlines()
    listed = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return {each: state for each, state in listed.items() if re.fullmatch(ours, each)}


def _describe(name: str, state: str) -> dict[str, Any]:
    return {"name": name, "state": _STATES.get(state, "unknown")}


def _way_to(name: str) -> dict[str, Any]:
    """How to connect, as Docker Machine itself does."""
    driver = _driver_in(_ask("inspect", name))
    key = os.path.join(driver.get("StorePath") or "", "machines", name, "id_rsa")  # noqa: PTH118  (no need of a path)
    return {
        "internal_addr": driver.get("IPAddress") or _ask("ip", name).strip(),
        "port": driver.get("SSHPort") or 22,
        "user": driver.get("SSHUser") or "root",
        "key_path": driver.get("SSHKeyPath") or key,
    }


def _driver_in(inspected: str) -> dict[str, Any]:
    try:
        driver = json.loads(inspected)["Driver"]
    except (ValueError, TypeError, KeyError, RecursionError):
        driver = None
    if not isinstance(driver, dict):
        sys.exit("docker-machine inspect did not print a JSON object with a Driver; run it by hand to see why")
    return driver


def _ask(*arguments: str) -> str:
    """Run Docker Machine and return what it prints; what it says goes to our own error output."""
    done = subprocess.run(["docker-machine", *arguments], stdout=subprocess.PIPE, check=False)  # noqa: S603, S607
    if done.returncode:
        raise Failed(1)
    return done.stdout.decode(errors="replace")


def _run(*arguments: str) -> None:
    """Run Docker Machine, pass on all that it says, and fail with what that means."""
    said: deque[str] = deque(maxlen=_KEPT)
    with subprocess.Popen(  # noqa: S603
        ["docker-machine", *arguments],  # noqa: S607
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            sys.stderr.write(line)
            said.append(line)
    if process.returncode:
        raise Failed(_meaning(" ".join(said)))


def _meaning(said: str) -> int:
    words = set(re.findall(r"\w+", said))
    return next((code for code, codes in _CODES.items() if not words.isdisjoint(codes)), 1)


if __name__ == "__main__":
    main()
