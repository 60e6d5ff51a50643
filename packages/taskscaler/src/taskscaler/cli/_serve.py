"""``taskscaler serve``: reads the file of a fleet, and serves it until it is stopped."""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from string import Template

import anyio

from fleeting import PluginNotFound
from fleeting.cli import SUCCEEDED, WRONG, WRONG_FILE, outcome, report_errors
from fleeting.errors import WrongArguments
from taskscaler._errors import NoDaemon
from taskscaler._open_files import allow_open_files
from taskscaler.cli._log import logging_on

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


def serve_fleet(
    path: Path, *, runner: str | None, socket: Path | None, group: str | None, stop_timeout: float, unit: bool
) -> int:
    """Serve the fleet of a file, and return the exit status. What goes wrong is printed on standard error."""
    if missing := [name for name in ("anycorn", "starlette", "cattrs") if find_spec(name) is None]:
        why = f"the daemon needs {missing[0]}, which is not installed; install taskscaler[serve]"
        return report_errors([WrongArguments(why)], WRONG)
    from taskscaler.serve._daemon import Daemon
    from taskscaler.serve._fleet_file import read_fleet_file
    from taskscaler.serve._listen import place_of

    try:
        file = read_fleet_file(path, runner)
        place = place_of(path, socket, group)
    except (*WRONG_FILE, PluginNotFound, NoDaemon) as error:
        return report_errors([error], WRONG)
    if unit:
        print(_unit(path, runner, socket, group, stop_timeout), end="")  # noqa: T201  (what was asked for)
        return SUCCEEDED

    def say(line: str) -> None:
        print(line, flush=True)  # noqa: T201  (for who has started it, or the service manager's log)

    for note in file.notes:
        say(f"note: {note}")

    async def run() -> int:
        return await Daemon(file, place, group, stop_timeout, say, runner).run()

    def serve() -> int:
        allow_open_files()
        with logging_on(sys.stderr):
            return anyio.run(run)

    return outcome(serve)


def _unit(path: Path, runner: str | None, socket: Path | None, group: str | None, stop_timeout: float) -> str:
    """Write the unit of systemd that serves the fleet as this command would."""
    program = shutil.which(sys.argv[0]) or shutil.which("taskscaler") or "taskscaler"
    words = [str(Path(program).absolute()), "serve", str(path.absolute()), f"--stop-timeout={stop_timeout:g}s"]
    words += [f"--runner={runner}"] if runner is not None else []
    words += [f"--socket={socket.absolute()}"] if socket is not None else []
    words += [f"--socket-group={group}"] if group is not None else []
    command = " ".join(map(_quoted, words))
    return _UNIT.substitute(name=path.name, command=command, timeout=f"{stop_timeout + _MARGIN:g}")


def _quoted(word: str) -> str:
    """Write a word as systemd reads it: nothing in it means anything."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != word or " " in word else word
