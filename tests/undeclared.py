"""A plugin that fails a test which starts a program that it has not declared.

An audit hook sees the programs that this process starts. Those that its children start are seen by ``nox -s bare``.
"""

import os
import re
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from tests.needs import declared

ROOT = Path(__file__).parents[1]

SHELLS = frozenset({"sh", "bash", "dash"})

_COREUTILS = """
    [ arch b2sum base32 base64 basename basenc cat chcon chgrp chmod chown chroot cksum comm cp csplit
    cut date dd df dir dircolors dirname du echo env expand expr factor false fmt fold groups head
    hostid id install join link ln logname ls md5sum mkdir mkfifo mknod mktemp mv nice nl nohup nproc
    numfmt od paste pathchk pinky pr printenv printf ptx pwd readlink realpath rm rmdir runcon seq
    sha1sum sha224sum sha256sum sha384sum sha512sum shred shuf sleep sort split stat stdbuf stty sum
    sync tac tail tee test timeout touch tr true truncate tsort tty uname unexpand uniq unlink users
    vdir wc who whoami yes
"""
COREUTILS = frozenset(_COREUTILS.split())

FREE = SHELLS | COREUTILS | {"git"}
"""Programs that every test may start; ``nox -s bare`` has these and Python."""

_OURS = tuple(Path(each).resolve() for each in (ROOT, sys.prefix, sys.base_prefix))

_undeclared: list[str] = []
"""The programs that the running test has started without declaring them; no others are recorded."""


def pytest_configure() -> None:
    """Install the hook; it stays for the life of the process."""
    sys.addaudithook(_record)


def _record(event: str, args: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        program, env = args[0], args[3]
    elif event in ("os.exec", "os.posix_spawn"):
        program, env = args[0], args[2]
    else:
        return
    if (name := _name_unless_free(os.fsdecode(program), env)) and name not in declared:
        _undeclared.append(name)


def _name_unless_free(program: str, env: Any) -> str | None:  # noqa: ANN401  (a mapping of str or bytes, or None)
    """Name a program that has to be declared; None if it is free, of the test's own making, or missing."""
    path = os.fsdecode((os.environ if env is None else env).get("PATH", os.defpath))
    found = which(program, path=path)
    if found is None:
        return None
    real = Path(found).resolve()
    temporary = Path(tempfile.gettempdir()).resolve()
    if real.is_relative_to(temporary) or any(real.is_relative_to(each) for each in _OURS):
        return None
    is_link_of_test = Path(found).absolute().is_relative_to(temporary)
    names = [real.name] if is_link_of_test else [Path(found).name, real.name]
    if any(name in FREE or name in declared or re.fullmatch(r"python[0-9.]*", name) for name in names):
        return None
    return names[0]


def _fail_if_undeclared(item: pytest.Item) -> None:
    names = sorted(set(_undeclared))
    _undeclared.clear()
    if names:
        programs = ", ".join(f'"{name}"' for name in names)
        pytest.fail(
            f"undeclared programs started by {item.nodeid}: {programs}; mark the test with needs({programs})",
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Generator[None]:
    """Record nothing of what earlier tests have left running."""
    _undeclared.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test that has passed; errors of its own are told first."""
    result = yield
    _fail_if_undeclared(item)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Fail a test whose fixtures start programs as they end."""
    result = yield
    _fail_if_undeclared(item)
    return result
