"""``taskscaler serve``: reads the file of a fleet, and serves it until it is stopped."""

import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from string import Template

from attrs import frozen

from fleeting import PluginNotFound
from fleeting.cli import SUCCEEDED, WRONG, WRONG_FILE, report_errors
from fleeting.errors import WrongArguments
from taskscaler._errors import NoDaemon

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

[Install]
WantedBy=default.target
""")

_MARGIN = 30
"""Seconds beyond the drain that the service manager waits."""


@frozen(kw_only=True)
class Tcp:
    """Where the daemon listens over TCP, as the command line has it."""

    host: str
    port: int
    token: Path | None
    certificate: Path | None
    key: Path | None


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
            host = f"[{self.tcp.host}]" if ":" in self.tcp.host else self.tcp.host
            yield f"--listen={host}:{self.tcp.port}"
            files = {"token-file": self.tcp.token, "tls-cert": self.tcp.certificate, "tls-key": self.tcp.key}
            yield from (f"--{name}={path.absolute()}" for name, path in files.items() if path is not None)


def serve_fleet(served: Served, *, unit: bool) -> int:
    """Serve a fleet, and return the exit status. What goes wrong is printed on standard error."""
    if missing := [name for name in ("anycorn", "starlette", "cattrs") if find_spec(name) is None]:
        why = f"the daemon needs {missing[0]}, which is not installed; install taskscaler[serve]"
        return report_errors([WrongArguments(why)], WRONG)
    from taskscaler.serve import place_of, read_fleet_file, run_daemon
    from taskscaler.serve._tcp import Listen

    tcp = served.tcp
    try:
        file = read_fleet_file(served.path, served.runner)
        place = place_of(served.path, served.socket, served.group)
        listen = None
        if tcp is not None:
            token = tcp.token or file.token
            listen = Listen(host=tcp.host, port=tcp.port, token=token, certificate=tcp.certificate, key=tcp.key)
    except (*WRONG_FILE, PluginNotFound, NoDaemon) as error:
        return report_errors([error], WRONG)
    if unit:
        print(_unit(served), end="")  # noqa: T201  (what was asked for)
        return SUCCEEDED

    return run_daemon(
        file, place, group=served.group, stop_timeout=served.stop_timeout, runner=served.runner, listen=listen
    )


def _unit(served: Served) -> str:
    """Write the unit of systemd that serves the fleet as this command would."""
    program = shutil.which(sys.argv[0]) or shutil.which("taskscaler") or "taskscaler"
    command = " ".join(map(_quoted, [str(Path(program).absolute()), "serve", *served.words()]))
    return _UNIT.substitute(name=served.path.name, command=command, timeout=f"{served.stop_timeout + _MARGIN:g}")


def _quoted(word: str) -> str:
    """Write a word as systemd reads it: nothing in it means anything."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != word or " " in word else word
