"""The command ``taskscaler-gitlab``: a CI runner on a fleet.

What a command needs is imported when it runs: help must come at once.
"""

import sys
from pathlib import Path
from typing import Literal, Unpack

import click

from fleeting.cli import Commands, as_duration
from taskscaler.reap_options import REAP_EPILOG, ReapWish, reap_options
from taskscaler_gitlab.cli._our_failure import DriverCommands

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_RUNNER = click.option("--runner", metavar="NAME", help="Which of the [[runners]], if the file has several.")
_RUN_EPILOG = """
Exit status: 0 once it was stopped or drained, 1 if the fleet could not be opened or another daemon has it, 2 if the
file or the arguments are wrong, 130 or 143 if it was stopped at once.
"""
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


@main.command(epilog=_EPILOG, short_help="Check whether a runner could start.")
@click.argument("config", metavar="CONFIG", type=_FILE)
@_RUNNER
@click.option("--canary", is_flag=True, help="Also run a job on the fleet that GitLab knows nothing about.")
@click.option(
    "--job",
    metavar="PAYLOAD",
    type=_FILE,
    help="Only say what the rules of [[dispatch]] make of a job: the JSON that GitLab hands it out with, in a file.",
)
def check(config: Path, runner: str | None, *, canary: bool, job: Path | None) -> None:
    """Ask GitLab whether the token is valid, look at the fleet, and list the keys of the file that are ignored.

    Nothing is changed anywhere, and the runner may be running. With --canary, a job runs as GitLab's jobs do, except
    that this command stands in for GitLab; an instance is created if there is none, and stays for the runner. This is
    refused while the runner is running, while it has unfinished jobs, and, unless the file has `preexisting`, while
    there are instances that it does not know. With --job, nobody is asked anything.
    """
    from taskscaler_gitlab.cli._check import check_config, check_job

    if job is not None and canary:
        raise click.UsageError("--job asks nobody, --canary runs a job; use one of them")
    if job is not None:
        sys.exit(check_job(config, runner, job))
    sys.exit(check_config(config, runner, canary=canary))


_SOCKET = click.option(
    "--socket", type=click.Path(path_type=Path), help="Where the daemon listens.  [default: named after CONFIG]"
)


@main.command(epilog=_RUN_EPILOG, short_help="Run a runner's jobs on its fleet.")
@click.argument("config", metavar="CONFIG", type=_FILE)
@_RUNNER
@_SOCKET
@click.option("--socket-group", metavar="GROUP", help="Let the users of a group connect, too.")
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Show metrics for Prometheus there, at /metrics, without asking for a password.  [default: listen_address]",
)
@click.option(
    "--traces",
    is_flag=True,
    help="Send a trace of each job to OpenTelemetry, as the OTEL_* variables say.  [default: to http://localhost:4318]",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json", "journal"]),
    help="How events are written on standard error; journal is for systemd.  [default: log_format]",
)
def run(
    config: Path,
    runner: str | None,
    socket: Path | None,
    socket_group: str | None,
    *,
    metrics: str | None,
    traces: bool,
    log_format: Literal["text", "json", "journal"] | None,
) -> None:
    """Ask GitLab for jobs, and run them on the fleet of CONFIG.

    This is a daemon like that of `taskscaler serve`: it answers on the same socket, to the same commands. `taskscaler
    status` says whether it asks for jobs, `taskscaler jobs` lists them, and `explain`, `logs` and `cancel` take one of
    them, such as gitlab-17. A file with several runners that have a fleet needs --runner, and one process for each.

    SIGHUP reloads the file. SIGTERM or Ctrl-C asks for no more jobs, waits for those that run, for shutdown_timeout,
    and leaves the rest to the next start, which goes on with them; a second one ends at once.
    """
    from taskscaler_gitlab.cli._run import run_service

    sys.exit(
        run_service(
            config,
            runner=runner,
            socket=socket,
            group=socket_group,
            metrics=metrics,
            traces=traces,
            style=log_format,
        )
    )


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
@click.option(
    "--executor",
    metavar="EXECUTOR",
    default="instance",
    show_default=True,
    help="How jobs run: instance or docker-autoscaler.",
)
@click.option("--plugin", metavar="PLUGIN", default="local", show_default=True, help="Where its instances are.")
def register(config: Path, *, url: str, token: str, name: str, executor: str, plugin: str) -> None:
    """Add a runner to CONFIG once GitLab has accepted its token; the file is created if it is missing.

    Other users of this machine can see the options of running commands; $CI_SERVER_TOKEN keeps the token from them.
    """
    from taskscaler_gitlab.cli._token import register as add

    sys.exit(add(config, url=url, token=token, name=name, executor=executor, plugin=plugin))


@main.command(epilog=REAP_EPILOG, short_help="Remove the instances of runners that have died.")
@click.argument("config", metavar="CONFIG", type=_FILE)
@_RUNNER
@reap_options
def reap(config: Path, runner: str | None, **wish: Unpack[ReapWish]) -> None:
    """Show, and with --remove delete, the instances in the fleet of CONFIG whose manager has died.

    A manager, such as `run`, marks its groups, and renews the marks while it lives. A group whose mark has expired for
    long enough is marked by this command, so that nobody takes it meanwhile, and its instances are deleted. What a
    manager on this machine has on record stays: it takes that up when it starts. A group without a mark, and one whose
    cloud has no place for marks, is left alone.

    This is safe while runners run, of this file and of others. GitLab is not asked anything.
    """
    from taskscaler_gitlab.cli._reap import reap_config

    sys.exit(reap_config(config, runner, **wish))


_CELL = click.option("--cell", metavar="CELL", help="Which of its GitLabs, if the runner has several upstreams.")


@main.command(epilog=_EPILOG, short_help="Remove a runner from GitLab.")
@click.argument("config", metavar="CONFIG", type=_FILE)
@_RUNNER
@_CELL
def unregister(config: Path, runner: str | None, cell: str | None) -> None:
    """Remove a runner from GitLab; of a runner that was created there, only this machine. CONFIG is not changed."""
    from taskscaler_gitlab.cli._token import unregister as take_off

    sys.exit(take_off(config, runner, cell))


@main.command("reset-token", epilog=_EPILOG, short_help="Replace a runner's token.")
@click.argument("config", metavar="CONFIG", type=_FILE)
@_RUNNER
@_CELL
def reset_token(config: Path, runner: str | None, cell: str | None) -> None:
    """Have GitLab replace a runner's token, and put the new one into CONFIG, or into the token file of a cell.

    `run` replaces a token that expires after three quarters of its life; use this for a token that others have seen.
    """
    from taskscaler_gitlab.cli._token import reset_token as replace

    sys.exit(replace(config, runner, cell))


_ROUTE_EPILOG = """
Exit status: 0 once it was stopped, 1 if it cannot listen, 2 if the file is wrong, 130 or 143 if it was stopped at once.
"""


@main.command(epilog=_ROUTE_EPILOG, short_help="Stand before several cells as one GitLab.")
@click.argument("config", metavar="CONFIG", type=_FILE)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json", "journal"]),
    default="text",
    show_default=True,
    help="How events are written on standard error; journal is for systemd.",
)
def route(config: Path, *, log_format: Literal["text", "json", "journal"]) -> None:
    """Pass on what runners and their jobs say to the cell that it is for.

    CONFIG has a table [cells.ID] for each cell, with its url. Runners use the router's address as theirs. Their tokens
    say which cell they belong to, or the cells are asked in turn; a runner that several cells know gets jobs from all.

    SIGTERM or Ctrl-C ends it: requests for jobs are answered, and what is under way may come to its end; a second one
    ends it at once. Jobs do not notice: their runners try again until the router is back.
    """
    from taskscaler_gitlab.cli._route import route as pass_on

    sys.exit(pass_on(config, style=log_format))


@main.command(epilog=_EPILOG, short_help="List the runners that have registered with a router.")
@click.argument("config", metavar="CONFIG", type=_FILE)
@click.option(
    "--remove", metavar="ID", type=click.IntRange(1), help="Remove this one first: its token is refused at once."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def runners(config: Path, *, remove: int | None, as_json: bool) -> None:
    """List the runners that have registered with the router of CONFIG, which may be running.

    Tokens are not shown, but for their first characters: the router itself knows no more than their hashes.
    """
    from taskscaler_gitlab.cli._route import runners as list_them

    sys.exit(list_them(config, as_json=as_json, remove=remove))


_SWITCH_EPILOG = """
Exit status: 0 once it is over, 1 if it is refused or cannot go on, 2 if a file or the arguments are wrong, 130 if it
was interrupted.
"""


@main.command(epilog=_SWITCH_EPILOG, short_help="Exchange a running service for another one.")
@click.argument("config", metavar="CONFIG", type=_FILE)
@click.option("--to", type=click.Choice(["blue", "green"]), help="The colour that is to have the jobs.")
@click.option("--abort", "aborts", is_flag=True, help="Go back: the old colour stays, and the new one goes.")
@click.option("--status", "shows", is_flag=True, help="Only say how far a switch is, and how both colours are.")
def switch(config: Path, *, to: str | None, aborts: bool, shows: bool) -> None:
    """Have one colour of a service take the other's place, while jobs run.

    CONFIG has the tables [colours.blue] and [colours.green], each with the config of a runner whose fleet is its own.
    The new colour starts, and runs a canary; then it asks GitLab for jobs, and once it is answered, the old one asks
    for no more. When the last job of the old one is over, it ends, and its instances are deleted.

    Each step is written down before the next: a switch that was interrupted continues with the same command. It can be
    aborted until the old colour is deleted.
    """
    from taskscaler_gitlab.cli._switch import show
    from taskscaler_gitlab.cli._switch import switch as exchange

    if sum((to is not None, aborts, shows)) != 1:
        raise click.UsageError("use one of --to, --abort and --status")
    sys.exit(show(config) if shows else exchange(config, to=to, aborts=aborts))


_DRIVER_EPILOG = """
Exit status: 0 on success, otherwise what gitlab-runner has put into BUILD_FAILURE_EXIT_CODE if the job has failed, and
into SYSTEM_FAILURE_EXIT_CODE if anything else has.
"""


def _kept_for(context: click.Context, parameter: click.Parameter, given: str) -> float | None:
    from taskscaler.cli.job_slot import check_bound

    seconds = as_duration(context, parameter, given)
    try:
        check_bound("it", seconds)
    except ValueError as error:
        raise click.BadParameter(str(error).removeprefix("it: ")) from error
    return seconds


_DAEMON = click.option(
    "--socket",
    metavar="PATH",
    help="Where the fleet's daemon listens.  [default: as `config` passes it on; the only one of the user's daemons]",
)
_PATIENCE = click.option(
    "--patience",
    metavar="DURATION",
    default="1m",
    show_default=True,
    callback=as_duration,
    help="How long to wait for a daemon that is starting again.",
)


@main.group("custom-executor", cls=DriverCommands, short_help="Run the jobs of a gitlab-runner on a fleet.")
def custom_executor() -> None:
    """Act as the driver of GitLab Runner's custom executor.

    A gitlab-runner whose config.toml names these four commands gets a slot from a fleet's daemon for each of its jobs,
    and runs the job's scripts there. It has to run as the daemon's user.
    """


@custom_executor.command(epilog=_DRIVER_EPILOG, short_help="Print where jobs work: config_exec.")
@click.option("--socket", metavar="PATH", help="Where the fleet's daemon listens.  [default: the user's only one]")
@click.option(
    "--fleet",
    "fleets",
    metavar="NAME=SOCKET",
    multiple=True,
    help="A fleet that jobs may choose with the variable TASKSCALER_FLEET; the first is also --socket's default.",
)
@click.option(
    "--builds-dir",
    metavar="PATH",
    default="/var/tmp/taskscaler/builds",  # noqa: S108  (on the instances)
    show_default=True,
    help="Where jobs work, on the instances.",
)
@click.option(
    "--cache-dir",
    metavar="PATH",
    default="/var/tmp/taskscaler/cache",  # noqa: S108  (on the instances)
    show_default=True,
    help="Where their caches are, on the instances.",
)
@click.option(
    "--shell", type=click.Choice(["bash", "sh"]), default="bash", show_default=True, help="What runs their scripts."
)
def config(*, socket: str | None, fleets: tuple[str, ...], builds_dir: str, cache_dir: str, shell: str) -> None:
    """Print, as JSON, where jobs work on the instances, and pass on to the other commands where the fleet is."""
    from taskscaler_gitlab.custom._driver import configure

    sys.exit(configure(socket=socket, fleets=fleets, builds_dir=builds_dir, cache_dir=cache_dir, shell=shell))


@custom_executor.command(epilog=_DRIVER_EPILOG, short_help="Wait for a slot: prepare_exec.")
@_DAEMON
@_PATIENCE
@click.option(
    "--timeout",
    metavar="DURATION",
    callback=as_duration,
    help="How long to wait for a slot.  [default: for as long as gitlab-runner does]",
)
@click.option(
    "--ttl",
    metavar="DURATION",
    default="15m",
    show_default=True,
    callback=_kept_for,
    help="How long the slot is kept while no command works on it, should gitlab-runner be killed between two.",
)
def prepare(*, socket: str | None, patience: float, timeout: float | None, ttl: float) -> None:
    """Wait for a slot of the fleet, and leave it to the job. What it waits for is printed now and then."""
    from math import inf

    from taskscaler_gitlab.custom._driver import prepare as get_ready

    sys.exit(get_ready(socket=socket, patience=patience, timeout=inf if timeout is None else timeout, ttl=ttl))


@custom_executor.command("run", epilog=_DRIVER_EPILOG, short_help="Run a script of the job: run_exec.")
@click.argument("script", metavar="SCRIPT", type=click.Path(path_type=Path))
@click.argument("stage", metavar="STAGE")
@_DAEMON
@_PATIENCE
def run_script(script: Path, stage: str, *, socket: str | None, patience: float) -> None:
    """Run a SCRIPT of the job, for one STAGE of it, on the instance of its slot.

    SIGTERM is passed on to the script, and its end is waited for; a second one ends it.
    """
    from taskscaler_gitlab.custom._driver import run as run_there

    sys.exit(run_there(script=script, stage=stage, socket=socket, patience=patience))


@custom_executor.command(epilog=_DRIVER_EPILOG, short_help="Give the slot back: cleanup_exec.")
@_DAEMON
@_PATIENCE
def cleanup(*, socket: str | None, patience: float) -> None:
    """End what still runs in the job's slot, and give the slot back. Nothing happens if there is none."""
    from taskscaler_gitlab.custom._driver import clean_up

    sys.exit(clean_up(socket=socket, patience=patience))
