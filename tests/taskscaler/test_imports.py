"""What a bare import brings along, as a fresh interpreter sees it."""

import subprocess
import sys

import pytest

from tests.test_boundary import PUBLIC, UNSTABLE

HEAVY = (
    "anyio.abc",
    "asyncio",
    "azure",
    "boto3",
    "botocore",
    "cattrs",
    "click",
    "google",
    "http.client",
    "matplotlib",
    "numpy",
    "paramiko",
    "pluggy",
    "pytest",
    "rich",
    "sqlite3",
    "trio",
    "typing_extensions",
    "winrm",
)
"""Cloud SDKs, plotting libraries, and whatever else is only needed by some."""


@pytest.mark.parametrize("module", ["fleeting", "taskscaler", "taskscaler.cli"])
def test_a_bare_import_is_light(module: str) -> None:
    """No cloud SDK and no plotting library is loaded, nor anything else that only some need."""
    heavy = [name for name in HEAVY if (module, name) != ("taskscaler.cli", "click")]
    program = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_a_run_brings_no_http_client_along() -> None:
    """A batch without JUnit XML needs no parser of it, nor what that imports."""
    program = "import sys, taskscaler.cli._run; print('http.client' in sys.modules, 'xml.sax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "False False\n"


@pytest.mark.parametrize("module", ["fleeting.cli", "taskscaler.cli"])
def test_help_brings_no_core_along(module: str) -> None:
    """Nor connectors or a journal: whoever runs a command that needs none waits for none."""
    names = ("fleeting.core", "fleeting.connectors", "fleeting.journal", "fleeting.runtime", "taskscaler.core")
    program = f"import sys, {module}; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("module", ["taskscaler.cli._lease", "taskscaler.serve"])
def test_neither_a_lease_nor_a_daemon_brings_the_doctor_along(module: str) -> None:
    """They share sentences with it, and need none of what its checks import, which takes longer than all the rest."""
    names = ("packaging", "taskscaler.cli._doctor")
    program = f"import sys, {module}; print([name for name in sys.modules if name.startswith({names})])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_each_namespace_can_be_imported_first() -> None:
    """Names are imported when they are asked for, so nothing else has made an order that only works by chance."""
    names = [name for name in sorted(PUBLIC | UNSTABLE) if name != "fleeting.testing"]  # which needs pytest
    program = f"""
import os, importlib
for name in {names!r}:
    child = os.fork()
    if not child:
        importlib.import_module(name)
        os._exit(0)
    assert not os.waitpid(child, 0)[1], name
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)


@pytest.mark.parametrize("module", ["fleeting", "taskscaler"])
def test_what_is_public_is_declared_and_there(module: str) -> None:
    """Everything in `__all__` exists, in order, and nothing else that looks public is importable."""
    program = (
        f"import {module} as m, types; print([n for n in dir(m) if not n.startswith('_') and n not in m.__all__"
        f" and n != 'TYPE_CHECKING' and not isinstance(getattr(m, n), types.ModuleType)],"
        f" [n for n in m.__all__ if not hasattr(m, n)])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[] []\n"
