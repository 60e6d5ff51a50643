"""Runs the report: the user's own command over the results, on this machine."""

import os
import shutil
from pathlib import Path
from subprocess import DEVNULL, PIPE

import anyio
from anyio import to_thread

from fleeting.plugins import format_duration, hide_tree, make_private, write_whole
from taskscaler._errors import ReportFailed
from taskscaler._jobsfile import Report
from taskscaler.batch import Results

PASSED_ON = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "PATH", "SYSTEMROOT", "TMPDIR", "TZ", "USER")
"""All of this machine's environment that the command gets: no tokens of whoever runs the batch."""


async def make_report(report: Report, source: Path, results: Results) -> str:
    """Run the command in the results' directory and keep what it prints as ``report.txt``.

    Args:
        report: What to run; its files are copied into the results first.
        source: The directory that these files are in.
        results: Of a batch that is over.

    Returns:
        What it printed.

    Raises:
        ReportFailed: With what it said on its error output.
        OSError: A file could not be copied or written.
    """
    await to_thread.run_sync(_copy, report, source, results.directory)
    text = await _run(report, results.directory)
    await to_thread.run_sync(write_whole, results.directory / "report.txt", text.encode())
    return text


def _copy(report: Report, source: Path, target: Path) -> None:
    for name in report.files:
        place = target / name
        make_private(place.parent)
        if (source / name).is_dir():
            shutil.copytree(source / name, place, dirs_exist_ok=True)
            hide_tree(place)
        else:
            shutil.copy(source / name, place)
            place.chmod(place.stat().st_mode & 0o700)


async def _run(report: Report, directory: Path) -> str:
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    try:
        with anyio.fail_after(report.timeout):
            done = await anyio.run_process(
                report.command,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                check=False,
                cwd=directory,
                env=env,
                umask=0o077,  # what it leaves among the results is for our user alone, as they are
            )
    except TimeoutError as error:
        raise ReportFailed(f"the report took longer than {format_duration(report.timeout)}") from error
    except OSError as error:
        raise ReportFailed(f"the report cannot be run: {error.strerror}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-2000:]
        raise ReportFailed(f"the report exited with {done.returncode}" + (f"\n{said}" if said else ""))
    return done.stdout.decode(errors="replace")
