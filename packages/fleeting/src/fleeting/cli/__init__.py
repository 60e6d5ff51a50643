"""The command ``fleeting``: looks at a group of instances, and works on it by hand.

What a command needs is imported when it runs: help must come at once. What the commands of the suite share is for
taskscaler's, and may change with any minor version.
"""

import sys
from pathlib import Path

import click

from fleeting.cli._commandline import (
    EXPECTED,
    FAILED,
    SIGNALLED,
    SUCCEEDED,
    WRONG,
    WRONG_FILE,
    Commands,
    as_duration,
    fitted,
    folded,
    in_lines,
    outcome,
    report_errors,
)

__all__ = [
    "EXPECTED",
    "FAILED",
    "SIGNALLED",
    "SUCCEEDED",
    "WRONG",
    "WRONG_FILE",
    "Commands",
    "as_duration",
    "fitted",
    "folded",
    "in_lines",
    "main",
    "outcome",
    "report_errors",
]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

_EPILOG = """
Exit status: 0 on success, 1 if an operation failed, 2 if the file or the arguments are wrong.
"""

_EPILOG_OF_COMMANDS = """
Exit status: the command's own, 128 plus the signal's number if a signal ended it, 255 if it could not be run.
"""

_RUNNER = click.option("--runner", metavar="NAME", help="Which of the [[runners]] in a GitLab Runner config.toml.")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fleeting")
def main() -> None:
    """List, change and use a group of cloud instances by hand.

    CONFIG is a TOML file with the keys plugin, plugin_config and connector_config: at the top level, under [autoscaler]
    as in a jobs file, or under [runners.autoscaler] as in a GitLab Runner config.toml.
    """


@main.command(short_help="List the installed plugins.")
def plugins() -> None:
    """List the installed groups, connectors, executors and observers."""
    from fleeting.cli._plugins import list_plugins

    sys.exit(list_plugins())


@main.command("list", epilog=_EPILOG)
@click.argument("config", metavar="CONFIG", type=_FILE)
@_RUNNER
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per instance, one per line.")
def list_(config: Path, runner: str | None, *, as_json: bool) -> None:
    """List the instances of a group.

    You can do this, and run commands, while a manager runs the group; you cannot change the group then.
    """
    from fleeting.cli._group import list_instances, perform

    sys.exit(perform(list_instances, config, runner, as_json=as_json))


@main.command(epilog=_EPILOG)
@click.argument("config", metavar="CONFIG", type=_FILE)
@click.argument("count", metavar="N", type=click.IntRange(min=1))
@_RUNNER
def increase(config: Path, runner: str | None, count: int) -> None:
    """Ask the cloud for N more instances.

    A manager of the group sees them as preexisting or unexpected instances, and may remove them.
    """
    from fleeting.cli._group import increase_group, perform

    sys.exit(perform(increase_group, config, runner, manage=True, count=count))


@main.command(epilog=_EPILOG)
@click.argument("config", metavar="CONFIG", type=_FILE)
@click.argument("instances", metavar="INSTANCE...", nargs=-1, required=True)
@_RUNNER
def decrease(config: Path, runner: str | None, instances: tuple[str, ...]) -> None:
    """Delete instances, whatever runs on them."""
    from fleeting.cli._group import decrease_group, perform

    sys.exit(perform(decrease_group, config, runner, manage=True, instances=instances))


@main.command(epilog=_EPILOG_OF_COMMANDS, short_help="Run a command on an instance.")
@click.argument("config", metavar="CONFIG", type=_FILE)
@click.argument("instance", metavar="INSTANCE")
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@_RUNNER
@click.option("--stdin", "-i", is_flag=True, help="Pass standard input on to the command.")
def run(config: Path, runner: str | None, instance: str, command: tuple[str, ...], *, stdin: bool) -> None:
    """Run a command on an instance and stream its output.

    One word is a line for the instance's shell; several words are a program and its arguments, without a shell.
    """
    from fleeting.cli._group import perform
    from fleeting.cli._run import run_on_instance
    from fleeting.cli.streaming import UNABLE

    line = _line(command)
    sys.exit(perform(run_on_instance, config, runner, failed=UNABLE, instance=instance, command=line, stdin=stdin))


@main.command(epilog=_EPILOG_OF_COMMANDS, short_help="Open a terminal on an instance.")
@click.argument("config", metavar="CONFIG", type=_FILE)
@click.argument("instance", metavar="INSTANCE")
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@_RUNNER
def ssh(config: Path, runner: str | None, instance: str, command: tuple[str, ...]) -> None:
    """Open a terminal on an instance, over any connector that supports terminals.

    The terminal runs the login shell, or the command. All keys go to the instance, including Ctrl-C. If standard input
    or output is not a terminal, the command gets none either: it reads the input, and its two outputs stay separate.
    """
    from fleeting.cli._group import perform
    from fleeting.cli._ssh import open_shell
    from fleeting.cli.streaming import UNABLE

    line = _line(command) if command else None
    sys.exit(perform(open_shell, config, runner, failed=UNABLE, instance=instance, command=line))


@main.command(epilog=_EPILOG, short_help="Copy files to or from an instance.")
@click.argument("config", metavar="CONFIG", type=_FILE)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@_RUNNER
def cp(config: Path, runner: str | None, source: str, target: str) -> None:
    """Copy a file or a directory to or from an instance: INSTANCE:PATH is on it, any other path is local.

    Directories are copied recursively. If DST is a directory, the copy goes into it; otherwise DST is the name of the
    copy. A relative path on the instance starts where commands start. The copy appears at DST only once it is
    complete.
    """
    if ":" not in source + target:
        raise click.UsageError("neither SRC nor DST is on an instance; write INSTANCE:PATH for one of them")
    from fleeting.cli._copy import copy
    from fleeting.cli._group import perform

    sys.exit(perform(copy, config, runner, source=source, target=target))


@main.command("new-plugin", short_help="Start a plugin for a cloud.")
@click.argument("name")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Where to put it; by default, here.",
)
def new_plugin(name: str, directory: Path) -> None:
    """Write a package fleeting-NAME that passes lint, type checks and the conformance suite.

    Its cloud is in memory; comments say what to replace.
    """
    from fleeting.cli._commandline import outcome
    from fleeting.cli._new_plugin import new_plugin

    sys.exit(outcome(lambda: new_plugin(name, directory)))


def _line(command: tuple[str, ...]) -> str | tuple[str, ...]:
    return command[0] if len(command) == 1 else command
