"""`serve`: a fleet for everybody on this host, and who may come to it how."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleeting.cli import Commands, as_duration
from taskscaler.cli._commands._options import FILE, METRICS, RUNNER, TRACES, as_place

if TYPE_CHECKING:
    from taskscaler.cli._log_formats import LogFormat

commands = Commands()


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
    callback=as_place,
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


@commands.command(epilog=_SERVE_EPILOG, short_help="Serve a fleet to everybody on this host, as a service.")
@click.argument("fleet", metavar="FLEET", type=FILE)
@RUNNER
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
    callback=as_duration,
    help="How long leases have to end after SIGTERM or Ctrl-C.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=as_place,
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
    type=FILE,
    help="With --listen and --http: speak TLS with this certificate, in PEM.",
)
@click.option(
    "--tls-key",
    metavar="FILE",
    type=FILE,
    help="Its key, in PEM.  [default: in the same file]",
)
@_HTTP
@_HTTP_NO_LINK
@METRICS
@TRACES
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
