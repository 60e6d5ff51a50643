"""A daemon as a process of its own, on the local group, and commands that ask it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import define, field
from click.testing import CliRunner

from taskscaler.cli import main
from taskscaler.cli._ask import ask

FLEET = """
[autoscaler]
plugin = "local"
update_interval_when_expecting = "20ms"
plugin_config = {{ directory = "{here}/fleet", orphan_ttl = "3m" }}
max_instances = {most}
[autoscaler.state_storage]
dir = "{here}/state"
[[autoscaler.policy]]
idle_count = {idle}
idle_time = "1h"
"""

"""Its instances have time until a daemon that was killed has a successor, which takes a busy machine half a minute."""

COMMAND = (sys.executable, "-c", "from taskscaler.cli import main; main()")
"""What starts the command as a process."""

CLIENT = {"taskscaler-client": "0" * 32}


@define
class Service:
    """A daemon, as whoever has started it sees it."""

    process: "subprocess.Popen[str]"
    socket: Path
    lines: list[str] = field(factory=list)

    def wait_for(self, text: str) -> str:
        """Read what it prints until a line has this."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if text in line:
                return self.lines[-1]
        raise AssertionError(f"it ended without {text!r}: {self.lines}")

    def line_with(self, text: str) -> str:
        """Find a line that has this, also among those that are read already."""
        return next((line for line in self.lines if text in line), None) or self.wait_for(text)

    def ask(self, method: str, path: str, **sent: Any) -> Mapping[str, Any]:  # noqa: ANN401  (httpx's)
        """Ask it as a client."""
        return ask(self.socket, method, path, headers=CLIENT, **{"timeout": None, **sent})

    def end(self, *numbers: int) -> int:
        """Send it signals, and wait for its end."""
        for number in numbers:
            self.process.send_signal(number)
        return self.process.wait()


def write(here: Path, *, idle: int = 1, most: int = 3) -> None:
    """Write the fleet's file."""
    (here / "fleet.toml").write_text(FLEET.format(here=here, idle=idle, most=most))


@contextmanager
def serving(
    here: Path, *options: str, env: Mapping[str, str] | None = None, file: str = "fleet.toml"
) -> Iterator[Service]:
    """Run a daemon on the fleet's file, which is ready when the body begins and gone after it."""
    command = [*COMMAND, "serve", str(here / file)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(here), **(env or {})}
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            service = Service(process, here / "taskscaler" / f"{Path(file).stem}.sock")
            service.wait_for("ready: ")
            yield service
        finally:
            process.kill()


def command(*arguments: str) -> tuple[int, str]:
    """Run a command here; gives its status and all that it printed."""
    result = CliRunner().invoke(main, arguments, prog_name="taskscaler")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@contextmanager
def printing(*arguments: str) -> Iterator[Callable[[], tuple[str, str, int]]]:
    """Run a command that has printed a line when the body begins; gives what waits for all of it, and its end."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, *arguments], stdout=pipe, stderr=pipe, bufsize=0) as process:  # see below
        try:
            assert process.stdout
            line = process.stdout.readline()  # of what comes after it, a buffer would keep some from `communicate`

            def wait() -> tuple[str, str, int]:
                said, wrong = process.communicate()
                return (line + said).decode(), wrong.decode(), process.returncode

            yield wait
        finally:
            process.kill()


def first_line(*arguments: str) -> str:
    """Run a command that prints on and on until it has printed a line; gives that."""
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        line = process.stdout.readline()
        process.kill()
        return line
