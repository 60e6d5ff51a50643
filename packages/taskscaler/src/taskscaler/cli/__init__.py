"""The command ``taskscaler``. What a command needs is imported when it runs: help must come at once."""

import sys
from pathlib import Path

import click

_EPILOG = """
Exit status: 0 if all went well, 1 if a job failed, 2 if the file or the arguments are wrong,
130 after Ctrl-C.
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="taskscaler")
def main() -> None:
    """Run jobs on a fleet of instances that grows and shrinks with them."""


@main.command(epilog=_EPILOG)
@click.argument("jobs", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the results, new or empty.  [default: taskscaler-results/<name>-<time>]",
)
def run(jobs: Path, output: Path | None) -> None:
    """Run every job of the file JOBS and wait for all of them.

    The results are one log per job, the artifacts, and results.json. Ctrl-C lets the jobs that run end and begins
    no more; a second one stops at once. Either way no instance is left.
    """
    from taskscaler.cli._run import run_jobs_file

    sys.exit(run_jobs_file(jobs, output))
