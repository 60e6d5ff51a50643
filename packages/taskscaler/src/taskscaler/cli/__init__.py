"""The command ``taskscaler``. What a command needs is imported when it runs: help must come at once."""

import sys
from contextlib import suppress
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleeting.cli import Commands
from taskscaler.cli._what_if import TIMES, asks, question_of

if TYPE_CHECKING:
    from taskscaler._jobsfile import Format
    from taskscaler._socket import Place
    from taskscaler.cli._log_formats import LogFormat

_EPILOG = """
Exit status: 0 if every job succeeded, 1 if a job failed or the fleet could not be opened, 2 if the file or the
arguments are wrong, 130 after Ctrl-C, 143 after SIGTERM.
"""


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="taskscaler")
def main() -> None:
    """Run jobs on a fleet of instances that grows and shrinks with them."""


def _new_file(_: click.Context, __: click.Parameter, given: Path | None) -> Path | None:
    if given is not None and not given.parent.is_dir():
        raise click.BadParameter(f"there is no directory {given.parent}")
    return given


def _new_report(context: click.Context, parameter: click.Parameter, given: Path | None) -> Path | None:
    if given is not None and given.exists() and not given.is_file():  # which would be replaced by one
        raise click.BadParameter(f"{given} is not a regular file; name one, or one that does not exist yet")
    if given is not None and given.exists() and not _is_page(given):  # but the trace, or the fleet's file
        what = "an HTML page that a report may replace"
        raise click.BadParameter(f"{given} exists, and is not {what}; name another file")
    return _new_file(context, parameter, given)


def _is_page(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            begin = file.read(32).strip().lower()
    except OSError:
        return False
    return not begin or begin.startswith((b"<!doctype html", b"<html"))


def _a_hyphen(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    if given not in (None, "-"):
        raise click.UsageError(f"got unexpected extra argument ({given})")
    return given


class _Run(click.Command):
    """A command with options whose values may be left out, even where the name of a file follows."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments."""
        given = [*args, ""]
        filled = [
            f"{arg}=1" if arg == "--fail-fast" and not following.isdigit() else f"{arg}=" if arg == "--daemon" else arg
            for arg, following in pairwise(given)
        ]
        try:
            return super().parse_args(ctx, filled)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise


def _address(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    """Check an address, and leave it as it is written."""
    _place(_, __, given)
    return given


_METRICS = click.option(
    "--metrics",
    metavar="HOST:PORT",
    callback=_address,
    help="Show metrics for Prometheus there, at /metrics, without asking for a password.",
)

_TRACES = click.option(
    "--traces",
    is_flag=True,
    help="Send a trace of each job to OpenTelemetry, as the OTEL_* variables say.  [default: to http://localhost:4318]",
)

_JUNIT = click.option(
    "--junit",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_new_file,
    help="Write JUnit XML: each job is a test case.",
)


@main.command(epilog=_EPILOG, cls=_Run)
@click.argument("jobs", metavar="JOBS", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
@click.argument("stdin", metavar="[-]", callback=_a_hyphen, required=False)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl", "csv"]),
    help="With -: what standard input is.  [default: JSON Lines if it begins with {, else CSV]",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the results, new or empty.  [default: taskscaler-results/<name>-<time>]",
)
@click.option(
    "--resume",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Resume the interrupted batch whose results are in DIR.",
)
@click.option(
    "--rerun",
    type=click.Choice(["failed", "lost", "all"]),
    multiple=True,
    help="With --resume: also run jobs again that failed or timed out, whose instances were lost, or all jobs. May be "
    "given several times.",
)
@click.option(
    "--only",
    metavar="JOB",
    multiple=True,
    help="Run only these jobs: a name, a pattern such as 'train-*', or '#N' for the Nth job, from 1. May be given "
    "several times. The other jobs wait for --resume.",
)
@click.option(
    "--fail-fast",
    metavar="[N]",
    type=click.IntRange(min=1),
    help="Start no more jobs once N jobs have failed; running jobs finish.  [default if given: 1]",
)
@click.option(
    "--daemon",
    metavar="[=SOCKET]",
    is_flag=False,
    flag_value="",
    help="Run the jobs on the fleet of a daemon (see taskscaler serve), which may run others at the same time.  "
    "[default if given: the socket in TASKSCALER_SOCKET, or the only one in $XDG_RUNTIME_DIR/taskscaler]",
)
@_METRICS
@click.option(
    "--log-format",
    type=click.Choice(["text", "json", "journal"]),
    help="Write the fleet's events on standard error, too: as text, as one JSON object per line, or for systemd's "
    "journal. Standard output keeps the progress and the summary.  [default: only into fleet.log, among the results]",
)
@_TRACES
@_JUNIT
@click.option(
    "--annotations",
    type=click.Choice(["github", "gitlab"]),
    help="For each failed job, print an annotation for GitHub Actions, or write a code quality report for GitLab into "
    "the results.",
)
def run(
    jobs: Path | None,
    stdin: str | None,
    output: Path | None,
    resume: Path | None,
    *,
    format_: "Format | None",
    rerun: tuple[str, ...],
    only: tuple[str, ...],
    fail_fast: int | None,
    daemon: str | None,
    metrics: str | None,
    log_format: "LogFormat | None",
    traces: bool,
    junit: Path | None,
    annotations: str | None,
) -> None:
    """Run every job of the file JOBS and wait for all of them.

    The results are one log per job, the artifacts, and results.json. Ctrl-C starts no more jobs and lets running jobs
    finish; a second Ctrl-C stops at once, and so does SIGTERM. Either way no instance is left behind. SIGHUP reloads
    the policies.

    With -, JOBS has the fleet and its defaults, and the jobs are read from standard input: a JSON object on each line,
    or CSV with a header. Each has a name, and a script or a command; other columns of CSV are variables.

    --resume DIR resumes a batch that was interrupted, even by kill -9 or a power failure: finished jobs stay
    finished, jobs that were running run again, and the others run. With --rerun, also a batch that is over is resumed,
    and jobs run again that did not end as they should; earlier attempts stay in the results. Jobs that are not over are
    run as the jobs file has them now.

    With --daemon, the fleet is a daemon's, and [autoscaler] in JOBS has no effect; all else is as without it. Ctrl-C
    ends this batch only. --resume needs no --daemon: a batch is resumed where it was started.
    """
    from taskscaler.cli._choice import Wishes
    from taskscaler.cli._for_ci import ForCI

    wishes = Wishes(only=only, rerun=rerun, fail_fast=fail_fast)
    for_ci = ForCI(junit=junit, annotations=annotations)
    if resume is None:
        if jobs is None:
            raise click.UsageError("missing argument 'JOBS'; to resume an interrupted batch, use --resume DIR")
        if rerun:
            raise click.UsageError("--rerun needs --resume DIR, the results of the batch whose jobs run again")
        if format_ and not stdin:
            raise click.UsageError("--format needs -, which reads the jobs from standard input")
        from taskscaler.cli._run import run_jobs_file, run_stream

        socket = None if daemon is None else _daemon_at(daemon)
        shown: dict[str, Any] = {"socket": socket, "metrics": metrics, "traces": traces, "style": log_format}
        if stdin:
            sys.exit(run_stream(jobs, output, wishes, for_ci, format_=format_, **shown))
        sys.exit(run_jobs_file(jobs, output, wishes, for_ci, **shown))
    if jobs is not None:
        raise click.UsageError("--resume takes no file; the batch keeps the file that it was started with")
    if output is not None:
        raise click.UsageError("--resume takes no --output; the results stay in the batch's own directory")
    if daemon is not None:
        raise click.UsageError("--resume takes no --daemon; a batch is resumed where it was started")
    from taskscaler.cli._run import resume_batch

    sys.exit(resume_batch(resume, wishes, for_ci, metrics=metrics, traces=traces, style=log_format))


def _daemon_at(given: str) -> Path:
    """Find the socket that --daemon means; exits if there is none, or its instances cannot be reached."""
    from fleeting import FleetingError
    from fleeting.cli import FAILED, WRONG, report_errors
    from fleeting.errors import WrongArguments
    from taskscaler._socket import check_ours, find_socket

    try:
        place = find_socket(given)
        if not isinstance(place, Path):
            check_ours(place, "have it run the jobs itself, with taskscaler submit")
    except FleetingError as error:
        sys.exit(report_errors([error], WRONG if isinstance(error, WrongArguments) else FAILED))
    return Path(str(place))


def _a_place(_: click.Context, __: click.Parameter, given: str | None) -> "Place | None":
    if given is None:
        return None
    from fleeting.errors import WrongArguments
    from taskscaler._socket import find_socket

    try:
        return find_socket(given)
    except WrongArguments as error:
        raise click.BadParameter(str(error)) from error


_SOCKET = click.option(
    "--socket",
    metavar="PATH",
    callback=_a_place,
    help="The daemon's socket, or its address, as https://HOST:PORT.  [default: TASKSCALER_SOCKET, or the only one in "
    "$XDG_RUNTIME_DIR/taskscaler]",
)

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def _seconds(_: click.Context, __: click.Parameter, given: str | None) -> float | None:
    from fleeting import ConfigError
    from fleeting.config import parse_duration

    if given is None:
        return None
    try:
        return parse_duration(given)
    except ConfigError as error:
        raise click.BadParameter(f"{given!r} is not a duration such as 90s or 5m") from error


def _place(_: click.Context, __: click.Parameter, given: str | None) -> tuple[str, int] | None:
    if given is None:
        return None
    from fleeting.plugins import place_to_listen

    try:
        return place_to_listen(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


class _SocketPath(click.Path):
    """The path of a socket, where an address might be given, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401  (click's)
        """Take it as a path."""
        from taskscaler._url import is_url

        if is_url(str(value)):
            self.fail("it is a path here; to listen on TCP, use --listen HOST:PORT", param, ctx)
        return super().convert(value, param, ctx)


_HTTP = click.option(
    "--http",
    metavar="HOST:PORT",
    callback=_place,
    help="Show the status page there, to browsers that come by a link (see taskscaler link). Without TLS, HOST has to "
    "be this machine's own, as 127.0.0.1 is.",
)

_HTTP_NO_LINK = click.option(
    "--http-no-link",
    is_flag=True,
    help="With --http on this machine's own address: let everybody on this machine look, without a link.",
)

_SERVE_EPILOG = """
Exit status: 0 once it was stopped or drained, 1 if the fleet could not be opened or another daemon has it, 2 if the
file or the arguments are wrong, 130 or 143 if it was stopped at once.
"""


@main.command(epilog=_SERVE_EPILOG, short_help="Serve a fleet to everybody on this host, as a service.")
@click.argument("fleet", metavar="FLEET", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--runner", metavar="NAME", help="Which runner, if the config.toml has several.")
@click.option(
    "--socket",
    metavar="PATH",
    envvar="TASKSCALER_SOCKET",
    type=_SocketPath(dir_okay=False, path_type=Path),
    help="Where to listen.  [default: TASKSCALER_SOCKET, or $XDG_RUNTIME_DIR/taskscaler/<name of FLEET>.sock]",
)
@click.option(
    "--socket-group",
    metavar="GROUP",
    help="Let the users of this group acquire slots, too. The socket is then in /run/taskscaler by default.",
)
@click.option(
    "--stop-timeout",
    metavar="DURATION",
    default="60s",
    show_default=True,
    callback=_seconds,
    help="How long leases have to end after SIGTERM or Ctrl-C.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=_place,
    help="Listen on TCP, too, for clients that have the token. Without TLS, HOST has to be a loopback address, such as "
    "127.0.0.1.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --listen: the file with the token, which is created if it is missing.  [default: one in the state "
    "directory]",
)
@click.option(
    "--tls-cert",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --listen and --http: speak TLS with this certificate, in PEM.",
)
@click.option(
    "--tls-key",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Its key, in PEM.  [default: in the same file]",
)
@_HTTP
@_HTTP_NO_LINK
@_METRICS
@_TRACES
@click.option(
    "--log-format",
    type=click.Choice(["text", "json", "journal"]),
    default="text",
    show_default=True,
    help="How events are written on standard error: as text, as one JSON object per line, or for systemd's journal, "
    "which then knows their levels.",
)
@click.option("--unit", is_flag=True, help="Print a unit for systemd that serves FLEET like this, and exit.")
def serve(
    fleet: Path,
    runner: str | None,
    socket: Path | None,
    socket_group: str | None,
    *,
    stop_timeout: float,
    listen: tuple[str, int] | None,
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    http: tuple[str, int] | None,
    http_no_link: bool,
    metrics: str | None,
    traces: bool,
    log_format: "LogFormat",
    unit: bool,
) -> None:
    """Own the fleet of the file FLEET, and hand out its slots to the programs of this host.

    FLEET is a jobs file without [[jobs]], or the config.toml of GitLab Runner. The instances outlive the daemon:
    `taskscaler drain --delete` removes them. SIGHUP reloads the policies. SIGTERM or Ctrl-C waits until leases end,
    for --stop-timeout; a second one ends at once.
    """
    from taskscaler.cli._serve import Page, Served, Tcp, serve_fleet

    if listen is None and token_file is not None:
        raise click.UsageError("--token-file needs --listen HOST:PORT")
    if listen is None and http is None and (tls_cert or tls_key):
        raise click.UsageError("--tls-cert and --tls-key need --listen HOST:PORT or --http HOST:PORT")
    if http is None and http_no_link:
        raise click.UsageError("--http-no-link needs --http HOST:PORT, the status page that it opens")
    if tls_key is not None and tls_cert is None:
        raise click.UsageError("--tls-key needs --tls-cert, the certificate that it belongs to")
    tcp = listen and Tcp(host=listen[0], port=listen[1], token=token_file, certificate=tls_cert, key=tls_key)
    page = http and Page(host=http[0], port=http[1], certificate=tls_cert, key=tls_key, without_link=http_no_link)
    served = Served(
        path=fleet,
        runner=runner,
        socket=socket,
        group=socket_group,
        stop_timeout=stop_timeout,
        tcp=tcp or None,
        page=page or None,
        metrics=metrics,
        traces=traces,
        log_format=log_format,
    )
    sys.exit(serve_fleet(served, unit=unit))


@main.command(short_help="Write a dashboard for Grafana, and alert rules for Prometheus.")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def dashboards(directory: Path) -> None:
    """Write taskscaler-dashboard.json and taskscaler-alerts.yaml into the directory DIR.

    Import the first into Grafana, and list the second under rule_files in Prometheus' configuration. Both use the
    metrics that `run` and `serve` show with --metrics.
    """
    from taskscaler.cli._dashboards import write_dashboards

    sys.exit(write_dashboards(directory))


_OPERATE_EPILOG = """
Exit status: 0 on success, 1 if no daemon answers or it refuses, 2 if the arguments are wrong.
"""


@main.command(epilog=_OPERATE_EPILOG, short_help="Print a link to a daemon's status page.")
@click.option("--changes", is_flag=True, help="Let who opens it cordon, retain and drain, too.")
@_SOCKET
@_JSON
def link(socket: "Place | None", *, changes: bool, as_json: bool) -> None:
    """Print a link that opens the status page of a daemon in one browser, once, within 5 minutes.

    The daemon shows the page where --http of `taskscaler serve` says. Who has opened the link may look for 12 hours.
    """
    from taskscaler.cli import _operate

    sys.exit(_operate.link(socket, changes=changes, as_json=as_json))


@main.command(epilog=_OPERATE_EPILOG, short_help="Show a daemon and its fleet on one screen.")
@_SOCKET
@_JSON
def status(socket: "Place | None", *, as_json: bool) -> None:
    """Show the daemon: its pools and slots, who waits, for what, and why."""
    from taskscaler.cli import _operate

    sys.exit(_operate.status(socket, as_json=as_json))


@main.command(epilog=_OPERATE_EPILOG, short_help="List the instances of a daemon's fleet.")
@_SOCKET
@_JSON
def instances(socket: "Place | None", *, as_json: bool) -> None:
    """List the instances of the daemon's fleet, oldest first."""
    from taskscaler.cli import _operate

    sys.exit(_operate.instances(socket, as_json=as_json))


@main.command(epilog=_OPERATE_EPILOG, short_help="Watch a daemon's fleet in the terminal.")
@click.option("--once", is_flag=True, help="Print the fleet as it is now, as plain text, and exit.")
@_SOCKET
def top(socket: "Place | None", *, once: bool) -> None:
    """Watch the daemon's fleet: its instances and slots, what runs and what waits, and what was decided, as it happens.

    Sort with s, filter with /, explain the chosen row with Enter; c cordons an instance and r retains it, after asking
    you. ? shows all keys, q quits.

    Without a terminal, it prints the fleet once, as with --once.
    """
    from taskscaler.cli._top import top as show

    sys.exit(show(socket, once=once))


def _hold(verb: str, undo: str, summary: str, details: str) -> click.Command:
    """Make a command that marks an instance, or takes the mark away."""

    @click.argument("instance", metavar="INSTANCE")
    @click.option("--why", default="", help="The reason, for people to read.")
    @click.option("--undo", "undone", is_flag=True, help=f"Undo an earlier {verb}.")
    @_SOCKET
    @_JSON
    def command(instance: str, why: str, *, undone: bool, socket: "Place | None", as_json: bool) -> None:
        from taskscaler.cli import _operate

        sys.exit(_operate.hold(socket, undo if undone else verb, instance, why, as_json=as_json))

    command.__doc__ = details
    return main.command(verb, epilog=_OPERATE_EPILOG, short_help=summary)(command)


cordon = _hold(
    "cordon",
    "uncordon",
    "Give an instance of a daemon's fleet no new work.",
    "Give an instance no new work, even after a restart of the daemon. What runs there goes on. INSTANCE is its id, or "
    "POOL/ID.",
)
retain = _hold(
    "retain",
    "unretain",
    "Keep an instance of a daemon's fleet from being deleted.",
    "Keep an instance from being deleted, whatever happens, even after a restart of the daemon. INSTANCE is its id, or "
    "POOL/ID.",
)


@main.command(epilog=_OPERATE_EPILOG, short_help="Have a daemon ask for no more jobs.")
@click.option("--undo", "undone", is_flag=True, help="Have it ask again.")
@_SOCKET
@_JSON
def pause(*, undone: bool, socket: "Place | None", as_json: bool) -> None:
    """Have a daemon with jobs from elsewhere ask for no more of them, even after a restart. What is there goes on.

    That is `taskscaler-gitlab run`, which gets its jobs from GitLab. The fleet stays as it is, and serves others.
    """
    from taskscaler.cli import _operate

    sys.exit(_operate.pause(socket, undone=undone, as_json=as_json))


@main.command(epilog=_OPERATE_EPILOG, short_help="Have a daemon end with its last lease.")
@click.option(
    "--timeout", metavar="DURATION", callback=_seconds, help="How long to wait for that.  [default: for ever]"
)
@click.option("--delete", is_flag=True, help="Delete the instances, too.")
@_SOCKET
@_JSON
def drain(socket: "Place | None", *, timeout: float | None, delete: bool, as_json: bool) -> None:
    """Hand out no more slots, wait until no lease is held, and end the daemon."""
    from taskscaler.cli import _operate

    sys.exit(_operate.drain(socket, timeout, delete=delete, as_json=as_json))


@main.command(epilog=_OPERATE_EPILOG, short_help="Have a daemon read its file again.")
@_SOCKET
@_JSON
def reload(socket: "Place | None", *, as_json: bool) -> None:
    """Have the daemon take over the policies as they are in its file now.

    All else that has changed in the file is named: it takes effect when the daemon is restarted.
    """
    from taskscaler.cli import _operate

    sys.exit(_operate.reload(socket, as_json=as_json))


def _bound(_: click.Context, parameter: click.Parameter, given: str | None) -> float | None:
    """Read for how long a lease is kept that nobody uses."""
    from taskscaler._kept_bounds import check_bound

    seconds = _seconds(_, parameter, given)
    try:
        check_bound("it", seconds)
    except ValueError as error:
        raise click.BadParameter(f"{str(error).removeprefix('it: ')}; name a time within that") from error
    return seconds


@main.command(
    epilog="Exit status: COMMAND's own, 128 plus the number of the signal that ended it, 254 if its slot was lost, 255 "
    "if it got no slot or could not be run, 2 if the arguments are wrong. With -d: 0 if COMMAND was started.",
    short_help="Run a command that has a slot of a daemon's fleet.",
)
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--key",
    metavar="KEY",
    help="What the slot is acquired under; one command at a time. A slot that was kept under KEY is used again.  "
    "[default: a new one]",
)
@click.option(
    "--timeout",
    metavar="DURATION",
    callback=_seconds,
    help="How long to wait for a slot.  [default: the fleet's instance_acquire_timeout]",
)
@click.option("--remote", is_flag=True, help="Run COMMAND on the slot's instance, not here.")
@click.option("--stdin", "-i", is_flag=True, help="With --remote: pass standard input on to COMMAND.")
@click.option(
    "--sync",
    is_flag=True,
    help="With --remote: bring the git working tree along, changes included, and run COMMAND in it. Files that git "
    "ignores, and .git, stay here.",
)
@click.option(
    "--detach",
    "-d",
    is_flag=True,
    help="With --remote: start COMMAND and leave it running. `taskscaler attach KEY` follows it, `taskscaler stop KEY` "
    "ends it.",
)
@click.option("--keep", is_flag=True, help="Keep the slot when COMMAND has ended, for the next command with this KEY.")
@click.option(
    "--ttl",
    metavar="DURATION",
    callback=_bound,
    help="With --keep or -d: how long the slot is kept while nobody is using it or attached to it, at most 168h.  "
    "[default: 8h]",
)
@click.option(
    "--idle-timeout",
    metavar="DURATION",
    callback=_bound,
    help="With --keep or -d: the same, but a command that was left running counts as use.  [default: only --ttl "
    "counts]",
)
@_SOCKET
def lease(
    command: tuple[str, ...],
    key: str | None,
    timeout: float | None,
    *,
    remote: bool,
    stdin: bool,
    sync: bool,
    detach: bool,
    keep: bool,
    ttl: float | None,
    idle_timeout: float | None,
    socket: "Place | None",
) -> None:
    """Wait for a slot, run COMMAND, and give the slot back when it ends, however it ends.

    COMMAND runs on this machine. Its environment names the slot: TASKSCALER_KEY, TASKSCALER_POOL, TASKSCALER_INSTANCE,
    TASKSCALER_SLOT, and for the daemon's own user where the instance is: TASKSCALER_PROTOCOL,
    TASKSCALER_INTERNAL_ADDR, TASKSCALER_EXTERNAL_ADDR, TASKSCALER_PORT and TASKSCALER_USER, as far as they are known.
    One word is a line for the shell; several words are a program and its arguments, without a shell.

    With --keep or -d, the slot outlives this command, and the daemon: it is kept until nobody has used it for --ttl,
    or until `taskscaler stop KEY`. `taskscaler leases` lists such slots.

    Ctrl-C and SIGTERM reach COMMAND here, and end it with --remote; while it waits for a slot, they end the wait. A
    command that was started with -d runs on, whatever happens here.
    """
    for given, name, why in (
        (stdin, "--stdin", "a command here reads standard input anyway"),
        (sync, "--sync", "a command here has the working tree anyway"),
        (detach, "-d", "use nohup, tmux or systemd-run to leave a command running here"),
    ):
        if given and not remote:
            raise click.UsageError(f"{name} needs --remote; {why}")
    for bound, name in ((ttl, "--ttl"), (idle_timeout, "--idle-timeout")):
        if bound is not None and not (keep or detach):
            raise click.UsageError(f"{name} needs --keep or -d; without them the slot goes back with COMMAND")
    from taskscaler.cli._lease import Wish, run_leased

    wish = Wish(
        command=command[0] if len(command) == 1 else command,
        key=key,
        timeout=timeout,
        there=remote,
        stdin=stdin,
        sync=sync,
        leave=detach,
        keep=keep,
        ttl=ttl,
        idle_timeout=idle_timeout,
    )
    sys.exit(run_leased(wish, socket))


@main.command(
    epilog="Exit status: the command's own, 128 plus the number of the signal that ended it or this, 254 if its slot "
    "was lost, 255 if there is no such command or it cannot be reached, 2 if the arguments are wrong.",
    short_help="Follow a command that was left running in a lease.",
)
@click.argument("key", metavar="KEY")
@click.option(
    "--offset",
    metavar="BYTES",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Bytes of the output that are not printed again.",
)
@_SOCKET
def attach(key: str, offset: int, *, socket: "Place | None") -> None:
    """Print the output of the command that `taskscaler lease -d` has left running under KEY, until it ends.

    Its standard output and standard error come as one stream. When it has ended, the slot is given back, unless it was
    to be kept (--keep). Ctrl-C leaves the command running; `taskscaler stop KEY` ends it.
    """
    from taskscaler.cli import _kept

    sys.exit(_kept.attach(key, socket, offset=offset))


@main.command(epilog=_OPERATE_EPILOG, short_help="End a lease that is kept, and the command in it.")
@click.argument("key", metavar="KEY")
@_SOCKET
@_JSON
def stop(key: str, *, socket: "Place | None", as_json: bool) -> None:
    """End the lease that is kept under KEY: the command in it, its files on the instance, and the slot goes back.

    A command that uses the lease, here or attached to it, is ended, too.
    """
    from taskscaler.cli import _kept

    sys.exit(_kept.stop(key, socket, as_json=as_json))


@main.command(epilog=_OPERATE_EPILOG, short_help="List the leases of a daemon.")
@_SOCKET
@_JSON
def leases(socket: "Place | None", *, as_json: bool) -> None:
    """List leases and who has them. The daemon's own user sees all of them, other users see their own."""
    from taskscaler.cli import _kept

    sys.exit(_kept.list_leases(socket, as_json=as_json))


_BATCH_EPILOG = """
Exit status: 0 on success, 1 if no daemon answers or it refuses, 2 if the arguments are wrong.
"""


@main.command(
    epilog="Exit status: 0 if the daemon has accepted the batch, 1 if none answers or it refuses, 2 if the file or the "
    "arguments are wrong.",
    short_help="Hand a batch over to a daemon, and leave.",
)
@click.argument("jobs", metavar="JOBS", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_SOCKET
@_JSON
def submit(jobs: Path, socket: "Place | None", *, as_json: bool) -> None:
    """Hand the jobs of the file JOBS over to the daemon, which runs them on its fleet; print the id of the batch.

    The files that the jobs need are sent along. JOBS has no [autoscaler], [executors] or [report]: the daemon's apply,
    and reports are made by `taskscaler run`. The batch goes on if the daemon is killed and started again.
    """
    from taskscaler.cli import _batches

    sys.exit(_batches.submit(jobs, socket, as_json=as_json))


@main.command("jobs", epilog=_BATCH_EPILOG, short_help="List the batches of a daemon, or the jobs of a batch.")
@click.argument("batch", metavar="[BATCH]", required=False)
@_SOCKET
@_JSON
def list_jobs(batch: str | None, socket: "Place | None", *, as_json: bool) -> None:
    """List the jobs of BATCH; without BATCH, list the batches of the daemon.

    The daemon's own user sees all batches, other users see their own.

    BATCH is the id that `taskscaler submit` has printed, or a directory with results.
    """
    from taskscaler.cli import _batches

    if batch is None:
        sys.exit(_batches.list_batches(socket, as_json=as_json))
    sys.exit(_batches.list_jobs(batch, socket, as_json=as_json))


@main.command(
    epilog="Exit status: 0 if every job succeeded, 1 if not, or if no daemon answers or it refuses, 2 if the arguments "
    "are wrong.",
    short_help="Wait until a batch is over.",
)
@click.argument("batch", metavar="BATCH")
@_SOCKET
@_JSON
def wait(batch: str, socket: "Place | None", *, as_json: bool) -> None:
    """Wait until BATCH is over, also while the daemon is restarted, and exit as it went.

    BATCH is the id that `taskscaler submit` has printed, or a directory with the results of a batch that another
    command runs.
    """
    from taskscaler.cli import _batches

    sys.exit(_batches.wait(batch, socket, as_json=as_json))


@main.command(epilog=_BATCH_EPILOG, short_help="Bring the results of a batch of a daemon here.")
@click.argument("batch", metavar="BATCH")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Directory for the results, which is made.  [default: taskscaler-results/<BATCH>]",
)
@_SOCKET
def fetch(batch: str, output: Path | None, socket: "Place | None") -> None:
    """Bring the logs, the artifacts and the record of BATCH here, once it is over.

    BATCH is the id that `taskscaler submit` has printed. What `taskscaler run` leaves is in the directory then:
    `explain` and `report` take it.
    """
    from taskscaler.cli import _batches

    sys.exit(_batches.fetch(batch, output, socket))


@main.command(epilog=_BATCH_EPILOG, short_help="End a batch that a daemon or another command runs.")
@click.argument("batch", metavar="BATCH")
@_SOCKET
@_JSON
def cancel(batch: str, socket: "Place | None", *, as_json: bool) -> None:
    """End BATCH: running jobs are ended, and no more are started. What has finished stays finished.

    BATCH is the id that `taskscaler submit` has printed, or a directory with the results of a batch that another
    command runs: that gets SIGTERM.
    """
    from taskscaler.cli import _batches

    sys.exit(_batches.cancel(batch, socket, as_json=as_json))


def _directory_of(batch: str, socket: "Place | None") -> Path | None:
    """Take a batch as a directory; None: it is the id of a daemon's."""
    from taskscaler._batch_id import directory_of

    directory = directory_of(batch)
    if directory is not None and socket is not None:
        raise click.UsageError("a directory and --socket cannot be combined; ask about a batch or about a daemon")
    return directory


def _results_of(batch: str, socket: "Place | None") -> Path:
    """Find the results directory of a batch, or end with an error."""
    if directory := _directory_of(batch, socket):
        return directory
    from fleeting.cli import outcome
    from taskscaler.cli._batches import results_of

    found: list[Path] = []

    def ask() -> int:
        found.append(results_of(batch, socket))
        return 0

    if status := outcome(ask):
        sys.exit(status)
    return found[0]


def _price(_: click.Context, __: click.Parameter, given: str | None) -> float | None:
    if given is None:
        return None
    with suppress(ValueError):
        if 0 <= (price := float(given)) < inf:
            return price
    raise click.BadParameter(f"{given!r} is not a price such as 0.12")


_CHECK_EPILOG = """
Exit status: 0 if all is well, 1 if the cloud or the instance cannot be reached, 2 if the file or the arguments
are wrong.
"""


@main.command(epilog=_CHECK_EPILOG, short_help="Show what a file means and what would happen.")
@click.argument("config", metavar="CONFIG", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--runner", metavar="NAME", help="Which runner, if the config.toml has several.")
@click.option("--offline", is_flag=True, help="Contact neither the cloud nor an instance.")
@click.option(
    "--price-per-hour", metavar="X", callback=_price, help="What one instance costs an hour, in any currency."
)
@click.option("--settings", is_flag=True, help="Show the settings that have their defaults, too.")
def check(config: Path, runner: str | None, *, offline: bool, settings: bool, price_per_hour: float | None) -> None:
    """Show what CONFIG means and what would happen now; change nothing.

    CONFIG is a jobs file, or the config.toml of GitLab Runner. The group is opened only to look at it, even while a
    manager runs it. If an instance is running, one is dialled.

    Of a jobs file, its jobs are shown, and what the first minute of the batch would be: how many instances are
    requested, why so many, and what they cost if you say what one costs.
    """
    from taskscaler.cli._check import check_file

    sys.exit(check_file(config, runner=runner, offline=offline, settings=settings, price_per_hour=price_per_hour))


@main.command(
    epilog="Exit status: 0 if there is no problem, though maybe warnings; 1 if there is one; 2 if the arguments are "
    "wrong.",
    short_help="Look for what keeps a fleet from working, and say what to do.",
)
@click.argument("file", metavar="[FILE]", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
@click.option("--runner", metavar="NAME", help="Which runner, if the config.toml has several.")
@click.option("--offline", is_flag=True, help="Contact neither the cloud nor an instance.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True, max=3600),
    default=30,
    show_default=True,
    help="How long each check may take.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def doctor(file: Path | None, runner: str | None, timeout: float, *, offline: bool, as_json: bool) -> None:
    """Look at configuration, credentials, quotas, connections and versions, and say what to do.

    FILE is a jobs file, a fleet without jobs, or the config.toml of GitLab Runner. Its groups are opened only to look
    at them, even while a manager runs them, and a few running instances, or hosts of a fixed list, are dialled. Without
    FILE, only this machine is looked at: Python, plugins, the directory for state.

    Each finding is a line: ok, warning or problem, what was found, and what to do. Nothing is created or changed at the
    cloud.
    """
    from taskscaler.cli._doctor import examine

    if runner is not None and file is None:
        raise click.UsageError("--runner needs FILE, the config.toml that the runner is in")
    sys.exit(examine(file, runner=runner, offline=offline, as_json=as_json, patience=timeout))


_REAP_EPILOG = """
Exit status: 0 if every instance that was to be removed is, also if there was none, and without --remove; 1 if a group
could not be looked at, or an instance could not be removed; 2 if the file or the arguments are wrong.
"""


@main.command(epilog=_REAP_EPILOG, short_help="Remove the instances of managers that have died.")
@click.argument("fleet", metavar="FLEET", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--runner", metavar="NAME", help="Which runner, if the config.toml has several.")
@click.option("--remove", is_flag=True, help="Remove them.  [default: only show what would be removed]")
@click.option(
    "--expired-for",
    metavar="DURATION",
    default="1h",
    show_default=True,
    callback=_seconds,
    help="For how long a manager's mark has to have expired, at least 1m: clocks differ.",
)
@click.option(
    "--at-most",
    metavar="N",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="How many instances are removed at once, the oldest first.",
)
@click.option(
    "--unmarked",
    metavar="DURATION",
    callback=_seconds,
    help="Also remove instances that are older than this from groups that nobody has marked. A manager that does not "
    "mark its groups, such as GitLab Runner's own, loses them.",
)
@_JSON
def reap(
    fleet: Path,
    runner: str | None,
    *,
    remove: bool,
    expired_for: float,
    at_most: int,
    unmarked: float | None,
    as_json: bool,
) -> None:
    """Show, and with --remove delete, the instances in the groups of FLEET whose manager has died.

    FLEET is a jobs file, a fleet without jobs, or the config.toml of GitLab Runner. A manager marks its groups, and
    renews the marks while it lives. A group whose mark has expired for long enough is marked by this command, so that
    nobody takes it meanwhile, and its instances are deleted. What a manager on this machine has on record stays: it
    takes that up when it starts. A group without a mark, and one whose cloud has no place for marks, is left alone.

    This is safe while managers run, of this file and of others.
    """
    from taskscaler.cli.reap import policy_of, reap_fleet

    policy = policy_of(expired_for=expired_for, at_most=at_most, unmarked=unmarked)
    sys.exit(reap_fleet(fleet, runner, policy, remove=remove, as_json=as_json))


@main.command()
@click.argument("code", required=False)
def errors(code: str | None) -> None:
    """Explain what an error means, and what to do.

    CODE is the code in brackets at the end of the error's line, such as FL112. Without CODE, list all errors.
    """
    from fleeting.config import did_you_mean
    from fleeting.errors import catalogue
    from taskscaler.cli._errors import print_catalogue, print_entry

    if code is None:
        print_catalogue()
    elif entry := catalogue().get(code.strip("[]").upper()):
        print_entry(entry)
    else:
        hint = did_you_mean(code, catalogue()) or "run taskscaler errors to list all codes"
        raise click.UsageError(f"no error has the code {code!r}; {hint}")


@main.command(
    epilog="Exit status: 0 if there is an answer, 1 if no daemon gives one, 2 if the arguments are wrong.",
    short_help="Explain why a batch went as it did, or why it waits.",
)
@click.argument("batch", metavar="[BATCH]", required=False)
@click.option(
    "--job", metavar="JOB", help="Explain one job, as `logs` takes it: what it waits for, and why it was retried."
)
@click.option("--instance", metavar="ID", help="Explain one instance: why it is there, or why it went.")
@_SOCKET
@_JSON
def explain(batch: str | None, job: str | None, instance: str | None, *, socket: "Place | None", as_json: bool) -> None:
    """Explain BATCH, whether it is over, was interrupted, or is still running.

    BATCH is a directory with results, or the id of a batch that was submitted to the daemon, or of a job that runs on
    its fleet, as `taskscaler jobs` shows it. Without it, explain the fleet of the daemon; a job is then the key of a
    lease.

    Why was there no capacity, why were jobs retried, what happened to the instances, and what will happen next?
    The command changes nothing and contacts no cloud.
    """
    if job is not None and instance is not None:
        raise click.UsageError("--job and --instance cannot be combined; ask for one at a time")
    from taskscaler.cli import _operate

    if batch is None:
        sys.exit(_operate.explain(socket, job=job, instance=instance, as_json=as_json))
    from taskscaler._batch_id import JOB_ID
    from taskscaler.cli._explain import explain_results

    if JOB_ID.fullmatch(batch) and _directory_of(batch, socket) is None:
        if job is not None or instance is not None:
            raise click.UsageError(f"{batch} is one job; leave out --job and --instance")
        sys.exit(_operate.explain(socket, job=batch, instance=None, as_json=as_json))
    sys.exit(explain_results(_results_of(batch, socket), job=job, instance=instance, as_json=as_json))


@main.command(
    epilog="Exit status: 0 if there is a log to show, or none yet, 2 if the directory or the arguments are wrong.",
    short_help="Show the last lines of a job's log.",
)
@click.argument("batch", metavar="BATCH")
@click.argument("job", metavar="[JOB]", required=False)
@click.option(
    "-n",
    "--lines",
    metavar="LINES",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many of the last lines to show.",
)
@click.option("-f", "--follow", is_flag=True, help="Also show what follows, until the job is over.")
@_SOCKET
def logs(batch: str, job: str | None, lines: int, socket: "Place | None", *, follow: bool) -> None:
    """Show the last lines of the log of JOB, one of the jobs of BATCH.

    BATCH is a directory with results, or the id of a batch that was submitted to the daemon.

    JOB is a name, a pattern that matches one job, such as 'train-*7', or '#N' for the Nth job of the batch, from 1;
    quote the last two. It may be left out if a daemon's batch has only one. Another command may be running the batch.
    With -f, what the job prints is shown as it comes, in all its tries, until the job is over or nothing runs the batch
    any more.
    """
    if directory := _directory_of(batch, socket):
        from taskscaler.cli._logs import show_log

        if job is None:
            raise click.UsageError("the job is missing; name it after the directory, or write '#1' for the first")
        sys.exit(show_log(directory, job, lines=lines, follow=follow))
    from taskscaler.cli import _batches

    sys.exit(_batches.show_log(batch, job or "", socket, lines=lines, follow=follow))


@main.command(epilog=TIMES, short_help="Compare fleets or policies on given jobs: cost against waiting.")
@asks
@click.argument("others", metavar="[OTHER]...", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--policy",
    "policies",
    metavar="SPEC",
    multiple=True,
    help="FLEET once more with this policy instead of its own, such as idle_count=5,idle_time=20m; also "
    "scale_factor, scale_factor_limit and mode. May be given several times.",
)
@_JSON
@click.option(
    "--report",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_new_report,
    help="Write the frontier of cost against waiting as a picture: one HTML file that needs no other.",
)
def compare(
    *,
    others: tuple[Path, ...],
    policies: tuple[str, ...],
    as_json: bool,
    report: Path | None,
    **given: Any,  # noqa: ANN401  (see `asks`)
) -> None:
    """Run the same jobs on several fleets in simulated time, and print what each costs and how long its jobs wait.

    FLEET and each OTHER are files as of simulate. They stand beside a fleet that knows all jobs in advance and lets
    none wait, and one that always has the size that the highest peak takes.
    """
    from taskscaler.cli._compare import compare_files

    sys.exit(compare_files(question_of(given), others, policies, as_json=as_json, report=report))


@main.command(epilog=TIMES, short_help="Simulate a fleet: waiting, hours and cost for given jobs.")
@asks
@_JSON
@click.option(
    "--report",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_new_report,
    help="Write a report with pictures: one HTML file that needs no other.",
)
def simulate(*, as_json: bool, report: Path | None, **given: Any) -> None:  # noqa: ANN401  (see `asks`)
    """Run jobs on the fleet of the file FLEET in simulated time, and print how long they wait and what that costs.

    FLEET is a jobs file, one without [[jobs]], or the config.toml of GitLab Runner. The scaler that decides is the one
    that runs a fleet; only time, the cloud and the jobs are simulated. No instance is created, and no cloud is
    contacted. The same arguments give the same result.
    """
    from taskscaler.cli._simulate import simulate_file

    sys.exit(simulate_file(question_of(given), as_json=as_json, report=report))


_TUNE_EPILOG = """
Exit status: 0 if the settings meet the target on both parts, 1 if none do or the jobs cannot be run on such a fleet, 2
if the file, the trace or the arguments are wrong.
"""


@main.command(
    epilog=_TUNE_EPILOG, short_help="Find the cheapest settings with which jobs wait no longer than they may."
)
@asks
@click.option(
    "--wait",
    "waits",
    metavar="TARGET",
    multiple=True,
    required=True,
    help="For how long jobs may wait, such as p95=10s: 95% of them at most ten seconds; or mean=2s. May be given "
    "several times.",
)
@click.option(
    "--judge-from",
    metavar="WHEN",
    help="Judge by the jobs from then on, and fit to those before: a time such as 2026-01-05T00:00Z, or a share of the "
    "trace's time such as 60%.  [default: two thirds of the days are fitted to]",
)
@_JSON
def tune(*, waits: tuple[str, ...], judge_from: str | None, as_json: bool, **given: Any) -> None:  # noqa: ANN401  (see `asks`)
    """Find the cheapest policy for the fleet of the file FLEET with which jobs wait no longer than they may.

    Settings are fitted to the first part of the jobs, by some thirty simulations, and judged by the rest. What is
    printed is the policy to put into the file, what it costs and how long jobs wait, beside the file's own and a fleet
    that knows all jobs in advance, and how far other days may differ. TIME and FLEET are as of simulate.
    """
    from taskscaler.cli._tune import tune_file

    sys.exit(tune_file(question_of(given), waits, judge_from, as_json=as_json))


_REPORT_EPILOG = """
Exit status: 0 on success, 1 if the timeline could not be drawn or written, 2 if the directory or the arguments
are wrong.
"""


@main.command(epilog=_REPORT_EPILOG, short_help="Summarise a batch: times, utilisation, cost, timeline.")
@click.argument("batch", metavar="BATCH")
@click.option(
    "--price-per-hour",
    metavar="X",
    callback=_price,
    help="What one instance costs an hour, in any currency.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@_JUNIT
@_SOCKET
def report(
    batch: str, price_per_hour: float | None, *, as_json: bool, junit: Path | None, socket: "Place | None"
) -> None:
    """Summarise BATCH.

    BATCH is a directory with results, or the id of a batch that was submitted to the daemon.

    Draws the timeline again, and prints how long jobs waited and ran, how well the instances were used, how many
    instance-hours they took and, with a price, what they cost. The batch may be over, interrupted, or running.
    """
    from taskscaler.cli._for_ci import ForCI
    from taskscaler.cli._timeline import look_back

    sys.exit(look_back(_results_of(batch, socket), ForCI(junit=junit), price_per_hour=price_per_hour, as_json=as_json))
