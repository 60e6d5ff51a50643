"""Groups for the command ``fleeting``: a file that names one, and what is done with it from outside."""

import json
import os
import select
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from attrs import define, field, frozen
from click.testing import CliRunner, Result

from fleeting.cli import main
from tests.fleeting.local_agents import agent_of
from tests.fleeting.sshd import private, sshd

COMMAND = str(Path(sys.executable).with_name("fleeting"))

_IN_TERMINAL = 'exec <>"$0" >&0 2>&0 && exec "$@"'

Modes: TypeAlias = list[int | list[bytes | int]]


@frozen
class Fleet:
    """A file that names a group in a directory of its own."""

    config: Path
    group: Path
    lose: Callable[[str], None] = lambda _: None
    """Breaks the connections to an instance."""

    def fleeting(self, command: str, *arguments: str) -> Result:
        """Run a command of ``fleeting`` on it."""
        return CliRunner().invoke(main, [command, str(self.config), *arguments])

    def piped(self, command: str, *arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        """Run a command in a process of its own, between pipes."""
        line = [COMMAND, command, str(self.config), *arguments]
        return subprocess.run(line, input=stdin, capture_output=True, check=False)

    def instances(self) -> list[dict[str, str]]:
        """What it lists."""
        return [json.loads(line) for line in self.fleeting("list", "--json").stdout.splitlines()]

    def grow(self) -> str:
        """Let one instance run, and tell its id."""
        assert self.fleeting("increase", "1").exit_code == 0
        while not (running := [each["id"] for each in self.instances() if each["state"] == "running"]):
            pass
        return running[0]

    def remove(self) -> None:
        """Leave nothing of it."""
        while left := [each["id"] for each in self.instances()]:
            self.fleeting("decrease", *left)


@contextmanager
def local_fleet(directory: Path) -> Iterator[Fleet]:
    """A group of agents that does not exist yet."""
    config, group = directory / "fleet.toml", directory / "group"
    config.write_text(f'plugin = "local"\nplugin_config = {{ directory = "{group}", name = "f", orphan_ttl = "5m" }}\n')
    fleet = Fleet(config, group, lambda instance: os.kill(agent_of(group, instance), 9))
    yield fleet
    fleet.remove()


@contextmanager
def ssh_fleet(directory: Path, *settings: str) -> Iterator[Fleet]:
    """A group of one host, which is ours, over SSH."""
    with sshd(directory / "sshd", *settings) as server:
        key = private(directory / "key", server.user_key.private)
        config = directory / "fleet.toml"
        config.write_text(
            f'plugin = "static"\n[plugin_config]\nname = "h"\nstate_dir = "{directory}/state"\n'
            f'[[plugin_config.hosts]]\nname = "host"\naddress = "127.0.0.1"\nport = {server.port}\n'
            f'username = "{server.info.user}"\nkey_path = "{key}"\nhost_key = "{server.host_key.strip()}"\n'
        )
        fleet = Fleet(config, directory / "state", lambda _: server.signal(9))
        yield fleet
        fleet.remove()


@define(eq=False)
class Screen:
    """A terminal, and a command that runs in it; we are who types and looks."""

    _end: int
    _theirs: int
    before: Modes
    process: "subprocess.Popen[bytes]"
    shown: bytes = field(default=b"", init=False)
    is_open: bool = field(default=True, init=False)

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._end, keys)

    def wait_for(self, text: bytes) -> bytes:
        """Look until the text is shown; returns all that came up to its end, which is then gone from `shown`."""
        while text not in self.shown:
            self.shown += os.read(self._end, 65536)
        found, _, self.shown = self.shown.partition(text)
        return found + text

    def resize(self, columns: int, rows: int) -> None:
        """Pull at the window's corner."""
        termios.tcsetwinsize(self._end, (rows, columns))

    def end(self) -> int:
        """Wait for the command's end, and return its exit status; what it still showed is in `shown`."""
        status = self.process.wait()
        while select.select([self._end], [], [], 0)[0]:
            self.shown += os.read(self._end, 65536)
        return status

    def close(self) -> None:
        """Close the window."""
        os.close(self._theirs)
        os.close(self._end)
        self.is_open = False

    @property
    def modes(self) -> Modes:
        """How the terminal behaves."""
        return termios.tcgetattr(self._theirs)


@contextmanager
def screen(command: Sequence[str], *, columns: int = 80, rows: int = 24, term: str = "xterm") -> Iterator[Screen]:
    """Run a command in a terminal that controls it."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(ours, (rows, columns))
    before = termios.tcgetattr(theirs)
    line = ["/bin/sh", "-c", _IN_TERMINAL, os.ttyname(theirs), *command]
    process = subprocess.Popen(line, start_new_session=True, env={**os.environ, "TERM": term})
    window = Screen(ours, theirs, before, process)
    try:
        yield window
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        if window.is_open:
            window.close()
