"""What a benchmark needs of the machine: each says so, and one that lacks it is skipped with a line that says what."""

import os
import shutil
import socket
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from attrs import frozen

SKIPPED = 77
"""What a benchmark that was skipped exits with: automake's convention for tests, which `nox -s bench` knows."""


@frozen
class Need:
    """Something that a machine may lack."""

    name: str
    remedy: str
    is_there: Callable[[], bool]


def _docker_answers() -> bool:
    """Whether there is a daemon, or all that the tests need to start one."""
    path = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    with socket.socket(socket.AF_UNIX) as sock:
        if sock.connect_ex(path) == 0:
            return True
    return os.geteuid() == 0 and Path("/usr/sbin/dockerd").exists() and Path("/usr/bin/busybox").exists()


DOCKER = Need("Docker daemon", "apt-get install docker.io busybox-static, as root", _docker_answers)
SSHD = Need("OpenSSH server", "apt-get install openssh-server", Path("/usr/sbin/sshd").exists)
SSH = Need("OpenSSH client", "apt-get install openssh-client", lambda: shutil.which("ssh") is not None)
CHROMIUM = Need("Chromium", "apt-get install chromium, as root", lambda: shutil.which("chromium") is not None)
NAMESPACES = Need("right to make namespaces", "run it as root", lambda: os.geteuid() == 0)
HYPERQUEUE = Need("HyperQueue", "uv sync, on Linux", lambda: find_spec("hyperqueue") is not None)
PROC = Need("/proc file system", "run it on Linux", Path("/proc/self/statm").exists)


def run(measure: Callable[[], object], *needs: Need) -> None:
    """Measure, and end as skipped if the machine lacks something, also if that shows only meanwhile.

    Args:
        measure: The benchmark. What it uses of the tests may skip itself, as it does there.
        needs: What it takes.
    """
    for need in needs:
        if not need.is_there():
            _skip(f"this machine has no {need.name}; {need.remedy}")
    try:
        measure()
    except pytest.skip.Exception as skipped:
        _skip(str(skipped))


def _skip(why: str) -> None:
    print(f"{Path(sys.argv[0]).name} skipped: {why}", file=sys.stderr, flush=True)
    raise SystemExit(SKIPPED)
