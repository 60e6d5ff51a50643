"""The agent as one file: this package and what it imports, all of it pure Python, for whatever Python an instance has.

Built from what is installed here. Compiled modules are left out: every package in it does without. Equal contents have
equal bytes, and so one name on every instance.
"""

import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from attrs import field, frozen

from job_steps._agent_errors import AgentError

PACKAGES: Final = ("anyio", "attr", "attrs", "exceptiongroup", "h2", "hpack", "hyperframe", "idna", "job_steps", "yaml")
"""What the agent imports beside Python's own library."""

MODULES: Final = ("typing_extensions",)
"""The same, of one file each."""

LEFT_OUT: Final = frozenset(
    {
        "anyio/_backends/_trio.py",
        "anyio/pytest_plugin.py",
        "job_steps/_bring.py",
        "job_steps/_zipapp.py",
        "job_steps/cli",
        "job_steps/client.py",
        "job_steps/executor",
        "job_steps/tracing.py",
        "job_steps/usage.py",
        "yaml/cyaml.py",
    }
)
"""What it has no use for: what of these can be imported at all needs something that is not in it."""

_MAIN: Final = "_zipapp_main.py"
_THE_FIRST_MOMENT: Final = (1980, 1, 1, 0, 0, 0)
"""That a zip file can name."""

_MODE: Final = 0o644 << 16


@frozen
class Zipapp:
    """The agent, ready to be uploaded."""

    data: bytes = field(repr=False)
    """The file."""
    name: str
    """Of 16 hexadecimal digits, by its contents: where it is on instances."""


@cache
def zipapp() -> Zipapp:
    """Build the agent; the second time, it is there.

    Raises:
        AgentError: Something is missing here.
    """
    contents = dict(sorted(_contents()))
    names, written = hashlib.sha256(), io.BytesIO()
    with zipfile.ZipFile(written, "w") as file:
        for name, data in contents.items():
            names.update(f"{name}\0{len(data)}\0".encode() + data)
            entry = zipfile.ZipInfo(name, _THE_FIRST_MOMENT)
            entry.external_attr = _MODE
            entry.create_system = 3  # Unix, whatever this is
            file.writestr(entry, data, zipfile.ZIP_DEFLATED, compresslevel=6)
    return Zipapp(written.getvalue(), names.hexdigest()[:16])


def _contents() -> Iterator[tuple[str, bytes]]:
    """Each file's name in the zipapp, and what is in it."""
    for package in PACKAGES:
        directory = _place_of(package).parent
        for path in directory.rglob("*.py"):
            name = path.relative_to(directory.parent).as_posix()
            if not any(name == one or name.startswith(f"{one}/") for one in LEFT_OUT):
                yield name, path.read_bytes()
    for module in MODULES:
        yield f"{module}.py", _place_of(module).read_bytes()
    yield "__main__.py", Path(__file__).with_name(_MAIN).read_bytes()


def _place_of(module: str) -> Path:
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        raise AgentError(f"the agent cannot be built: {module} is not installed here; install job-steps again")
    return Path(found.origin)
