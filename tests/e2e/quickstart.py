"""The quickstart's files, to run and to change."""

import shutil
from pathlib import Path

PRINTED = Path(__file__).parents[2] / "examples" / "quickstart"
LIBRARY = 'LIBRARY = Path(sysconfig.get_path("stdlib"))'
SCRIPT = 'script = "python3 measure.py"'


def copy(directory: Path, *, whole: bool) -> Path:
    """Copy the quickstart, and return its jobs file.

    Args:
        directory: Where to; made anew.
        whole: Whether the jobs measure all of Python's library. Else all is as printed, but for the 120 small modules
            of `encodings` in the place of 1,800: three minutes of a core become ten seconds.
    """
    shutil.copytree(PRINTED, directory)
    if not whole:
        _replace(directory / "measure.py", LIBRARY, f'{LIBRARY} / "encodings"')
    return directory / "jobs.toml"


def shorten(jobs: Path, copies: int) -> None:
    """Let there be so many jobs, which measure a fortieth each, as before."""
    _replace(jobs, "copies = 40 ", f"copies = {copies} ")


def hold(jobs: Path, which: str, go: Path) -> None:
    """Let the jobs for which a test of the shell's holds wait until there is a file, and so run when a test needs it.

    Args:
        jobs: The jobs file, which is changed.
        which: What ``[`` takes.
        go: The file.
    """
    _replace(jobs, SCRIPT, f"script = '''[ {which} ] && until [ -e {go} ]; do sleep 0.05; done; python3 measure.py'''")


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, f"{file} has changed"
    file.write_text(text.replace(old, new))
