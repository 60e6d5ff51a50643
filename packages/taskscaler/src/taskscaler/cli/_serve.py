"""``taskscaler serve``: reads the file of a fleet, and serves it until it is stopped."""

import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from attrs import frozen

from fleeting import PluginNotFound
from fleeting.cli import EXPECTED, FAILED, SUCCEEDED, WRONG, WRONG_FILE, report_errors
from fleeting.errors import WrongArguments
from taskscaler._errors import NoDaemon

if TYPE_CHECKING:
    from taskscaler.cli._log_formats import LogFormat

_UNIT = Template("""\
[Unit]
Description=taskscaler, the fleet of $name
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
ExecStart=$command
ExecReload=/bin/kill -HUP $$MAINPID
WatchdogSec=60
Restart=on-failure
RestartSec=2
TimeoutStopSec=$timeout
# Instances of the plugin "local" are processes of this service, and outlive a restart of it.
KillMode=process
$shared
[Install]
WantedBy=default.target
""")

_RUNTIME = """\
# Members of the group find the socket in /run/taskscaler, which other fleets may share.
RuntimeDirectory=taskscaler
RuntimeDirectoryPreserve=yes
"""

_SHARED = Template("""\
${runtime}# This is for the system's manager, in /etc/systemd/system; give it a user of its own: User=NAME
SupplementaryGroups=$group
""")

_MARGIN = 30
"""Seconds beyond the drain that the service manager waits."""


@frozen(kw_only=True)
class _Listens:
    host: str
    port: int
    certificate: Path | None
    key: Path | None

    @property
    def place(self) -> str:
        """Write it as on the command line."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def tls(self) -> Iterator[tuple[str, Path]]:
        """Give the options of TLS."""
        given = {"tls-cert": self.certificate, "tls-key": self.key}
        yield from ((name, path) for name, path in given.items() if path is not None)


@frozen(kw_only=True)
class Tcp(_Listens):
    """Where the daemon listens over TCP, as the command line has it."""

    token: Path | None


@frozen(kw_only=True)
class Page(_Listens):
    """Where it shows the status page, as the command line has it."""

    without_link: bool = False


@frozen(kw_only=True)
class Served:
    """What is served, and where."""

    path: Path
    """Of the fleet's file."""

    runner: str | None
    socket: Path | None
    group: str | None
    stop_timeout: float
    tcp: Tcp | None
    page: Page | None = None
    log_format: "LogFormat" = "text"
    metrics: str | None = None
    """Where Prometheus finds the metrics; None: as the file has it."""

    traces: bool = False
    """Whether jobs are followed; else as the file has it."""

    def words(self) -> Iterator[str]:
        """Give the arguments that mean the same, wherever they are given."""
        yield str(self.path.absolute())
        yield f"--stop-timeout={self.stop_timeout:g}s"
        if self.runner is not None:
            yield f"--runner={self.runner}"
        if self.socket is not None:
            yield f"--socket={self.socket.absolute()}"
        if self.group is not None:
            yield f"--socket-group={self.group}"
        if self.tcp is not None:
            yield f"--listen={self.tcp.place}"
            if self.tcp.token is not None:
                yield f"--token-file={self.tcp.token.absolute()}"
        if self.page is not None:
            yield f"--http={self.page.place}"
            if self.page.without_link:
                yield "--http-no-link"
        yield from dict.fromkeys(
            f"--{name}={path.absolute()}"
            for each in (self.tcp, self.page)
            if each is not None
            for name, path in each.tls
        )
        yield from self._shown()
        if self.log_format != "text":
            yield f"--log-format={self.log_format}"

    def _shown(self) -> Iterator[str]:
        if self.metrics is not None:
            yield f"--metrics={self.metrics}"
        if self.traces:
            yield "--traces"


def serve_fleet(served: Served, *, unit: bool) -> int:
    """Serve a fleet, and return the exit status. What goes wrong is printed on standard error."""
    if missing := [name for name in ("anycorn", "starlette", "cattrs") if find_spec(name) is None]:
        why = f"the daemon needs {missing[0]}, which is not installed; install taskscaler[serve]"
        return report_errors([WrongArguments(why)], WRONG)
    from taskscaler.serve import place_of, read_fleet_file, run_daemon
    from taskscaler.serve._tcp import Listen

    tcp, page = served.tcp, served.page
    try:
        file = read_fleet_file(served.path, served.runner).shown(served.metrics, traces=served.traces)
        place = place_of(served.path, served.socket, served.group)
        listen = None
        if tcp is not None:
            token = tcp.token or file.token
            listen = Listen(host=tcp.host, port=tcp.port, token=token, certificate=tcp.certificate, key=tcp.key)
        shown = None
        if page is not None:
            shown = Listen(host=page.host, port=page.port, certificate=page.certificate, key=page.key, option="--http")
    except (*WRONG_FILE, PluginNotFound, WrongArguments, NoDaemon) as error:
        return report_errors([error], WRONG)
    except EXPECTED as error:
        return report_errors([error], FAILED)
    if unit:
        print(_unit(served), end="")  # noqa: T201  (what was asked for)
        return SUCCEEDED

    return run_daemon(
        file,
        place,
        group=served.group,
        stop_timeout=served.stop_timeout,
        runner=served.runner,
        listen=listen,
        page=shown,
        page_without_link=page is not None and page.without_link,
        style=served.log_format,
    )


def _unit(served: Served) -> str:
    """Write the unit of systemd that serves the fleet as this command would."""
    program = shutil.which(sys.argv[0]) or shutil.which("taskscaler") or "taskscaler"
    command = " ".join(map(_quoted, [str(Path(program).absolute()), "serve", *served.words()]))
    shared = ""
    if served.group is not None:
        runtime = _RUNTIME if served.socket is None else ""
        shared = _SHARED.substitute(group=_quoted(served.group), runtime=runtime)
    timeout = f"{served.stop_timeout + _MARGIN:g}"
    return _UNIT.substitute(name=served.path.name, command=command, timeout=timeout, shared=shared)


def _quoted(word: str) -> str:
    """Write a word as systemd reads it: nothing in it means anything."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != word or " " in word else word
