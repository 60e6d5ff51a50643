"""An image with a Python, made from the one that runs the tests; nothing is pulled."""

import os
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from fleeting_docker_engine import Engine
from tests.fleeting_docker_engine.daemons import Daemon, root_file_system

PYTHON_IMAGE = "taskscaler-test/python:1"
"""A shell with its tools, and a Python with its library."""

_LEFT_OUT = {
    *("test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "tkinter", "site-packages", "__pycache__"),
    *("pydoc_data", "distutils"),
}
"""Directories of the library that no agent needs."""


def import_python(target: Daemon) -> None:
    """Make the image."""
    repository, _, tag = PYTHON_IMAGE.rpartition(":")

    async def load(engine: Engine) -> None:
        query = {"fromSrc": "-", "repo": repository, "tag": tag}
        await engine.progress("POST", "/images/create", query=query, body=_python())

    target.use(load)


def _python() -> bytes:
    """The root file system of the daemons' own image with what Python needs, where it is here."""
    program = Path(sys.executable).resolve()
    library = Path(sysconfig.get_paths()["stdlib"])
    buffer = BytesIO(root_file_system())
    files = [program, *_files_of(library)]
    needed = {each for file in (program, *library.glob("lib-dynload/*.so")) for each in _libraries_of(file)}
    with tarfile.open(fileobj=buffer, mode="a") as tar:
        for file in dict.fromkeys((*files, *sorted(needed))):
            tar.add(os.path.realpath(file), str(file).lstrip("/"), recursive=False)
        link = tarfile.TarInfo("bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, str(program)
        tar.addfile(link)
    return buffer.getvalue()


def _files_of(directory: Path) -> Iterator[Path]:
    for place, directories, names in os.walk(directory):
        directories[:] = [each for each in directories if each not in _LEFT_OUT and not each.startswith("config-")]
        yield from (Path(place, each) for each in names)


def _libraries_of(file: Path) -> Iterator[Path]:
    """What the loader brings in for a file, and the loader."""
    said = subprocess.run(["/usr/bin/ldd", str(file)], capture_output=True, text=True, check=False).stdout
    for word in said.split():
        if word.startswith("/"):
            yield Path(word)
