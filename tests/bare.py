"""Run tests with only Python, a shell, coreutils and git on PATH: ``python -m tests.bare``, with pytest's arguments."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which

from tests.needs import REQUIRED
from tests.undeclared import FREE

STARTING = re.compile(r"needs?\(|sshd\(|subprocess|open_process|run_process")
"""What files of tests contain that start programs; these are run unless others are named."""


def main(arguments: list[str]) -> int:
    """Run pytest with a short PATH, and return its exit status."""
    places = [str(path) for path in sorted(Path("tests").rglob("test_*.py")) if STARTING.search(path.read_text())]
    named = [each for each in arguments if each.startswith("tests")]
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o755)  # some tests run programs as another user
        for name in ("python", "python3"):
            python = Path(path) / name
            python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')  # through a link, Python has no environment
            python.chmod(0o755)
        for name in FREE:
            if found := which(name):
                (Path(path) / name).symlink_to(found)
        env = {name: value for name, value in os.environ.items() if name != REQUIRED} | {"PATH": path}
        command = [sys.executable, "-m", "pytest", *arguments, *(() if named else ("-m", "not slow", *places))]
        return subprocess.run(command, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
