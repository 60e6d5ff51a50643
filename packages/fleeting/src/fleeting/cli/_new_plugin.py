"""``fleeting new-plugin``: a package to begin with, which passes all checks from the start."""

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

from fleeting._errors import WrongArguments
from fleeting.cli._text import say

_TARGETS = {
    "pyproject.toml.in": "pyproject.toml",
    "README.md.in": "README.md",
    "init.py.in": "src/$module/__init__.py",
    "config.py.in": "src/$module/_config.py",
    "cloud.py.in": "src/$module/_cloud.py",
    "group.py.in": "src/$module/_group.py",
    "conftest.py.in": "tests/conftest.py",
    "test_conformance.py.in": "tests/test_conformance.py",
}
"""Which template makes which file."""

_NAME = re.compile(r"(?=.{1,40}$)[a-z][a-z0-9]*(-[a-z0-9]+)*")
"""Longer ones would break the lines of what is written."""


def new_plugin(name: str, parent: Path) -> int:
    """Write the package into a new directory of *parent*; returns the exit status.

    Raises:
        WrongArguments: The name is none, or taken.
    """
    plain = name.removeprefix("fleeting-")
    if not _NAME.fullmatch(plain):
        raise WrongArguments(f"found the name {name!r}; expected lower-case words with dashes between, like my-cloud")
    target = parent / f"fleeting-{plain}"
    if target.exists():
        raise WrongArguments(f"{target} exists already; choose another name, or another place with --directory")
    for path, text in files_of(plain).items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    say(f"{target} is ready; its README.md says how to go on")
    return 0


def files_of(name: str) -> Mapping[str, str]:
    """The files of a plugin of that name, by their paths."""
    module = f"fleeting_{name.replace('-', '_')}"
    words = {"name": name, "module": module, "title": "".join(map(str.capitalize, name.split("-")))}
    templates = files("fleeting.cli") / "new_plugin"
    made = {
        Template(path).substitute(words): Template((templates / file).read_text(encoding="utf-8")).substitute(words)
        for file, path in _TARGETS.items()
    }
    return {**made, f"src/{module}/py.typed": ""}
