"""The session of the guide to breakpoints, typed into a terminal as it is printed there."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import anyio
import pytest
from attrs import define

from tests.e2e.leftovers import environment

PAGE = Path(__file__).parents[2] / "docs/guides/breakpoints.md"
POLL = 0.05
"""Seconds between two looks at one."""

SECRET = "hunter2hunter2"

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.needs("tmux"),
]


@define
class Terminal:
    """Two windows of a terminal of our own."""

    socket: Path
    directory: Path
    env: dict[str, str]

    def tmux(self, *arguments: str) -> str:
        """Have tmux do something."""
        command = ["tmux", "-S", str(self.socket), "-f", "/dev/null", *arguments]
        done = subprocess.run(command, env=self.env, cwd=self.directory, capture_output=True, text=True, check=True)
        return done.stdout

    def open(self, name: str) -> None:
        """Open a window that is wide enough for each line."""
        shell = self.env["SHELL"]
        if not self.socket.exists():
            self.tmux("new-session", "-d", "-s", "s", "-n", name, "-x", "500", "-y", "100", shell)
        else:
            self.tmux("new-window", "-d", "-t", "s", "-n", name, shell)

    def screen(self, name: str) -> list[str]:
        """The lines of a window, without those that are empty at the end."""
        return self.tmux("capture-pane", "-p", "-S", "-", "-t", f"s:{name}").rstrip().splitlines()

    def type(self, name: str, text: str) -> None:
        """Type a line."""
        self.tmux("send-keys", "-t", f"s:{name}", "-l", text)
        self.tmux("send-keys", "-t", f"s:{name}", "Enter")

    async def seen(self, name: str, is_so: Callable[[list[str]], object]) -> list[str]:
        """Wait until a window shows something."""
        lines: list[str] = []
        try:
            while not is_so(lines := self.screen(name)):  # noqa: ASYNC110  (tmux does not say when it changes)
                await anyio.sleep(POLL)
        except BaseException:
            sys.stderr.write("\n".join([f"the window {name} shows:", *lines, ""]))
            raise
        return lines


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: what is tested are programs."""
    return "asyncio"


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """Open one, in a directory with nothing in it, whose shell has the prompt of the guide."""
    (tmp_path / "w").mkdir()
    shell = tmp_path / "shell"
    shell.write_text("#!/bin/sh\nPS1='$ ' exec /bin/sh -i\n")
    shell.chmod(0o755)
    env = {**environment(tmp_path), "SHELL": str(shell), "TERM": "dumb", "LC_ALL": "C.UTF-8"}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    opened = Terminal(tmp_path / "t", tmp_path / "w", env)
    opened.open("run")
    opened.open("look")
    yield opened
    opened.tmux("kill-server")


def blocks(language: str) -> list[str]:
    """Those of the guide."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)


async def test_the_guides_session_is_as_printed(terminal: Terminal) -> None:
    """Line by line, but for paths and the name of the job; what is masked is on no screen."""
    jobs, step, (session,) = blocks("toml")[0], blocks("yaml")[1], blocks("text")
    (terminal.directory / "jobs.toml").write_text(jobs)
    (terminal.directory / "publish").mkdir()
    (terminal.directory / "publish" / "step.yml").write_text(step)
    terminal.type("run", "taskscaler run jobs.toml --output results")
    log = terminal.directory / "results" / "logs" / "release.log"
    await terminal.seen("run", lambda _: log.exists() and attach_in(log.read_text()))
    attach = attach_in(log.read_text())
    printed = attach_in(session)
    expected = session.replace(printed, attach).replace(printed.split()[-1], attach.split()[-1]).splitlines()
    typed = [line for line in expected if line.startswith(("$ ", "(job-steps) "))]
    assert len(typed) == 11
    for number, line in enumerate(typed):
        prompt, _, text = line.partition(" ")
        await terminal.seen("look", partial(is_asked, prompt=prompt, number=number))
        terminal.type("look", text)
    lines = await terminal.seen("look", partial(is_asked, prompt="$", number=len(typed)))
    assert lines[:-1] == expected
    ended = await terminal.seen("run", lambda lines: any("1 succeeded" in line for line in lines))
    assert SECRET not in "\n".join([*lines, *ended, log.read_text()])
    assert SECRET in jobs


def attach_in(text: str) -> str:
    """How to attach, as a log says it; empty if it does not."""
    found = re.search(r"To attach, run on this host: (.+)\n", text)
    return found[1] if found else ""


def is_asked(lines: Sequence[str], prompt: str, number: int) -> bool:
    """Whether the last line is a prompt, after so many that were answered."""
    answered = [line for line in lines[:-1] if line.startswith(("$ ", "(job-steps) "))]
    return bool(lines) and lines[-1].strip() == prompt and len(answered) == number


async def test_what_the_session_types_can_be_read() -> None:
    """No line of it needs a quote that is not closed: the terminal would wait for it."""
    (session,) = blocks("text")
    assert all(shlex.split(line) for line in session.splitlines() if line.startswith("$ "))
