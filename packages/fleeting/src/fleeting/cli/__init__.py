"""The command ``fleeting``: looks at a group of instances, and works on it by hand.

What a command needs is imported when it runs: help must come at once.
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
    fitted,
    folded,
    in_lines,
    outcome,
    tell,
)

__all__ = [
    "EXPECTED",
    "FAILED",
    "SIGNALLED",
    "SUCCEEDED",
    "WRONG",
    "WRONG_FILE",
    "Commands",
    "fitted",
    "folded",
    "in_lines",
    "main",
    "outcome",
    "tell",
]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

_EPILOG = """
Exit status: 0 if all went well, 1 if something was tried and failed, 2 if the file or the arguments are wrong.
"""

_EPILOG_OF_COMMANDS = """
Exit status: the command's own, 128 and the signal's number if a signal ended it, 255 if it could not be run.
"""

_RUNNER = click.option("--runner", metavar="NAME", help="Which of the [[runners]] of a GitLab Runner's config.toml.")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fleeting")
def main() -> None:
    """Look at a group of cloud instances, and work on it by hand.

    CONFIG is a TOML file with the keys plugin, plugin_config and connector_config: by themselves, under [autoscaler]
    as in a jobs file, or under [runners.autoscaler] as in a GitLab Runner's config.toml.
    """


@main.command(short_help="List what is installed.")
def plugins() -> None:
    """List the groups, connectors, executors and observers that are installed."""
    from fleeting.cli._plugins import list_plugins

    sys.exit(list_plugins())


@main.command("list", epilog=_EPILOG)
@click.argument("config", metavar="CONFIG", type=_FILE)
@_RUNNER
@click.option("--json", "as_json", is_flag=True, help="One JSON object per instance, a line each.")
def list_(config: Path, runner: str | None, *, as_json: bool) -> None:
    """List the instances of a group.

    This and running commands may be done while somebody manages the group; changing it may not.
    """
    from fleeting.cli._group import list_instances, perform

    sys.exit(perform(list_instances, config, runner, as_json=as_json))


@main.command(epilog=_EPILOG)
@click.argument("config", metavar="CONFIG", type=_FILE)
@click.argument("count", metavar="N", type=click.IntRange(min=1))
@_RUNNER
def increase(config: Path, runner: str | None, count: int) -> None:
    """Ask the cloud for N more instances.

    Whoever manages the group meets them as preexisting or unexpected ones, and may remove them.
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
@click.option("--stdin", "-i", is_flag=True, help="Give the command what comes on the standard input.")
def run(config: Path, runner: str | None, instance: str, command: tuple[str, ...], *, stdin: bool) -> None:
    """Run a command on an instance, with its output as it comes.

    One word is a line for the instance's shell; several are a program and its arguments, which no shell touches.
    """
    from fleeting.cli._group import perform
    from fleeting.cli._run import UNABLE, run_on_instance

    line = _line(command)
    sys.exit(perform(run_on_instance, config, runner, failed=UNABLE, instance=instance, command=line, stdin=stdin))


@main.command(epilog=_EPILOG_OF_COMMANDS, short_help="Open a terminal on an instance.")
@click.argument("config", metavar="CONFIG", type=_FILE)
@click.argument("instance", metavar="INSTANCE")
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@_RUNNER
def ssh(config: Path, runner: str | None, instance: str, command: tuple[str, ...]) -> None:
    """Open a terminal on an instance, over whatever connects to it.

    In it runs the login shell, or the command. Keys go to the instance, Ctrl-C too. Where the standard input or output
    is no terminal, the command gets none either: it reads what comes, and its outputs stay apart.
    """
    from fleeting.cli._group import perform
    from fleeting.cli._run import UNABLE
    from fleeting.cli._ssh import open_shell

    line = _line(command) if command else None
    sys.exit(perform(open_shell, config, runner, failed=UNABLE, instance=instance, command=line))


@main.command(epilog=_EPILOG, short_help="Copy files to an instance, or from one.")
@click.argument("config", metavar="CONFIG", type=_FILE)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@_RUNNER
def cp(config: Path, runner: str | None, source: str, target: str) -> None:
    """Copy a file or a directory to an instance, or from one: INSTANCE:PATH is there, any other path is here.

    A directory is copied with all that is in it. If DST is a directory, the copy is put into it, else it gets that
    name. A path on the instance that is not absolute begins where commands start there. Nothing is in its place before
    all of it has come.
    """
    if ":" not in source + target:
        raise click.UsageError("neither SRC nor DST is on an instance; write INSTANCE:PATH for what is")
    from fleeting.cli._copy import copy
    from fleeting.cli._group import perform

    sys.exit(perform(copy, config, runner, source=source, target=target))


@main.command("new-plugin", short_help="Begin a plugin for a cloud.")
@click.argument("name")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Where to put it; here, if it is not given.",
)
def new_plugin(name: str, directory: Path) -> None:
    """Write a package fleeting-NAME that passes lint, types and the conformance suite as it is.

    Its cloud is one in memory; comments say what to replace.
    """
    from fleeting.cli._commandline import outcome
    from fleeting.cli._new_plugin import new_plugin

    sys.exit(outcome(lambda: new_plugin(name, directory)))


def _line(command: tuple[str, ...]) -> str | tuple[str, ...]:
    return command[0] if len(command) == 1 else command
