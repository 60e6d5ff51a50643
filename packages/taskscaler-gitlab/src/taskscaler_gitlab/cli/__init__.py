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
    """Ask GitLab whether the token is good, look at the fleet, and say what of the file is ignored.

    Nothing is changed anywhere, and the runner may run meanwhile.
    """
    from taskscaler_gitlab.cli._check import check_config

    sys.exit(check_config(config, runner))


_SOCKET = click.option(
    "--socket", type=click.Path(path_type=Path), help="Where the daemon listens.  [default: named after CONFIG]"
)


@main.command(short_help="Run a runner's jobs on its fleet.")
@click.argument("config", metavar="CONFIG", type=_FILE)
@_RUNNER
@_SOCKET
@click.option("--socket-group", metavar="GROUP", help="Let the users of a group connect, too.")
def run(config: Path, runner: str | None, socket: Path | None, socket_group: str | None) -> None:
    """Ask GitLab for jobs, and run them on the fleet of CONFIG.

    This is a daemon like that of `taskscaler serve`: it answers on the same socket, to the same commands. `taskscaler
    status` says whether it asks for jobs, `taskscaler jobs` lists them, and `explain`, `logs` and `cancel` take one of
    them, such as gitlab-17. A file with several runners that have a fleet needs --runner, and one process for each.

    SIGHUP reloads the file. SIGTERM or Ctrl-C asks for no more jobs, waits for those that run, for shutdown_timeout,
    and leaves the rest to the next start, which goes on with them; a second one ends at once.
    """
    from taskscaler_gitlab.cli._run import run_service

    sys.exit(run_service(config, runner=runner, socket=socket, group=socket_group))


@main.command(epilog=_EPILOG, short_help="Add a runner to a file.")
@click.argument("config", metavar="CONFIG", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--url", metavar="URL", required=True, help="Where GitLab is.")
@click.option(
    "--token",
    metavar="TOKEN",
    envvar="CI_SERVER_TOKEN",
    required=True,
    help="The runner's (glrt-...), or a registration token of an older GitLab; also $CI_SERVER_TOKEN.",
)
@click.option("--name", metavar="NAME", default="fleet", show_default=True, help="What to call the runner.")
@click.option("--executor", metavar="EXECUTOR", default="instance", show_default=True, help="Or docker-autoscaler.")
@click.option("--plugin", metavar="PLUGIN", default="local", show_default=True, help="Where its instances are.")
def register(config: Path, *, url: str, token: str, name: str, executor: str, plugin: str) -> None:
    """Add a runner to CONFIG once GitLab has accepted its token; the file is made if it is missing.

    Other users see options of commands that run: better pass the token as $CI_SERVER_TOKEN.
    """
    from taskscaler_gitlab.cli._token import register as add

    sys.exit(add(config, url=url, token=token, name=name, executor=executor, plugin=plugin))


@main.command(epilog=_EPILOG, short_help="Take a runner off GitLab.")
@click.argument("config", metavar="CONFIG", type=_FILE)
@_RUNNER
def unregister(config: Path, runner: str | None) -> None:
    """Take a runner off GitLab; of one that was created there, only this machine. CONFIG is left as it is."""
    from taskscaler_gitlab.cli._token import unregister as take_off

    sys.exit(take_off(config, runner))


@main.command("reset-token", epilog=_EPILOG, short_help="Have a runner's token replaced.")
@click.argument("config", metavar="CONFIG", type=_FILE)
@_RUNNER
def reset_token(config: Path, runner: str | None) -> None:
    """Have GitLab replace a runner's token, and put the new one into CONFIG.

    A token that ends is replaced by `run` after three quarters of its life; this is for one that others have seen.
    """
    from taskscaler_gitlab.cli._token import reset_token as replace

    sys.exit(replace(config, runner))
