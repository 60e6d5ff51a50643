"""Runs the report: the user's own command over the results, on this machine."""

import os
import shutil
from pathlib import Path
from subprocess import DEVNULL, PIPE

import anyio
from anyio import to_thread

from fleeting import format_duration
from taskscaler._errors import ReportFailed
from taskscaler._jobsfile import Report
from taskscaler.batch import Results
from taskscaler.batch._results import write_atomically

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
    await to_thread.run_sync(write_atomically, results.directory / "report.txt", text.encode())
    return text


def _copy(report: Report, source: Path, target: Path) -> None:
    for name in report.files:
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, place, dirs_exist_ok=True)
        else:
            shutil.copy(source / name, place)


async def _run(report: Report, directory: Path) -> str:
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    try:
        with anyio.fail_after(report.timeout):
            done = await anyio.run_process(
                report.command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, check=False, cwd=directory, env=env
            )
    except TimeoutError as error:
        raise ReportFailed(f"the report took longer than {format_duration(report.timeout)}") from error
    except OSError as error:
        raise ReportFailed(f"the report cannot be run: {error.strerror}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-2000:]
        raise ReportFailed(f"the report exited with {done.returncode}" + (f"\n{said}" if said else ""))
    return done.stdout.decode(errors="replace")
