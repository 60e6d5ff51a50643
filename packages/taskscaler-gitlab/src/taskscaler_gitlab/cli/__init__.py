"""The command ``taskscaler-gitlab``: a CI runner on a fleet.

What a command needs is imported when it runs: help must come at once.
"""

import sys
from pathlib import Path

import click

from fleeting.cli import Commands

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_RUNNER = click.option("--runner", metavar="NAME", help="Which of the [[runners]], if the file has several.")
_EPILOG = """
Exit status: 0 on success, 1 if GitLab or the fleet does not answer as it should, 2 if the file or the arguments are
wrong.
"""


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="taskscaler-gitlab")
def main() -> None:
    """Run GitLab's jobs on a fleet of instances.

    CONFIG is GitLab Runner's config.toml, as it is.
    """


@main.command(epilog=_EPILOG, short_help="See whether a runner could begin.")
@click.argument("config", metavar="CONFIG", type=_FILE)
@_RUNNER
def check(config: Path, runner: str | None) -> None:
    """Ask GitLab whether the token is good, and say what of the file is ignored.

    Nothing is changed anywhere.
    """
    from taskscaler_gitlab.cli._check import check_config

    sys.exit(check_config(config, runner))
