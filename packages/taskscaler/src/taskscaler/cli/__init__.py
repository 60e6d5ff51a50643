"""The command ``taskscaler``. What a command needs is imported when it runs: help must come at once."""

import click

from fleeting.cli import Commands
from taskscaler.cli._commands import COMMANDS

__all__ = ["main"]


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="taskscaler")
def main() -> None:
    """Run jobs on a fleet of instances that grows and shrinks with them."""


for _command in COMMANDS:
    main.add_command(_command)
