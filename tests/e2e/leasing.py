"""``taskscaler lease`` as a process, and a daemon with room for two, on the local group."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskscaler.cli import main
from tests.taskscaler.services import COMMAND, Service, command, serving, write


def ran(*arguments: str, stdin: str = "", cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a command of taskscaler's as a process, and wait for its end."""
    run = [*COMMAND, *arguments]
    return subprocess.run(run, input=stdin, capture_output=True, text=True, check=False, cwd=cwd)


def here(*arguments: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run one here, with an empty standard input, as if it were a process: most of what that costs is to start it."""
    with chdir(cwd or Path.cwd()):
        done = CliRunner().invoke(main, arguments, prog_name="taskscaler")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def leased(*arguments: str, stdin: str = "", cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a command with a slot, and wait for its end; one there that reads nothing needs no process here."""
    if "--remote" in arguments and "--stdin" not in arguments:
        return here("lease", *arguments, cwd=cwd)
    return ran("lease", *arguments, stdin=stdin, cwd=cwd)


SOON_MISSED = (sys.executable, "-c", "from taskscaler.cli import _lease, main; _lease.TTL = 10.0; main()")
"""Starts the command as a process whose daemon notices after 10 s, not 30, that the process was killed. On a busy
machine, a command that lives may not get to report for 3 s."""


def begun(
    *arguments: str, verb: str = "lease", cwd: Path | None = None, program: Sequence[str] = COMMAND
) -> "subprocess.Popen[str]":
    """Run one until it has printed a line, without a terminal."""
    process = subprocess.Popen(
        [*program, verb, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=cwd,
    )
    assert process.stdout
    assert process.stdout.readline() == "begun\n", process.stderr and process.stderr.read()
    return process


def held(service: Service) -> int:
    """Count the slots that are held."""
    return int(service.ask("GET", "/status")["capacity"]["acquired"])


def work_of(here: Path, instance: str) -> Path:
    """Where commands start on an instance."""
    return here / "fleet" / instance / "work"


def leases(service: Service) -> Mapping[str, Mapping[str, object]]:
    """The leases that there are, by key."""
    return {each["key"]: each for each in service.ask("GET", "/leases")["leases"]}


@contextmanager
def room_for_two(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A daemon in which nothing is held in the end."""
    prepare(here, monkeypatch)
    with serving(here) as service:
        yield service
        while held(service):
            """The daemon removes what was left there, which takes the time that processes take to end."""
        assert command("drain", "--delete")[0] == 0


def prepare(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the fleet's file, and have commands find the daemon."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(here))
    monkeypatch.delenv("TASKSCALER_SOCKET", raising=False)
    write(here, idle=2, most=2)
    fleet = here / "fleet.toml"
    fleet.write_text(fleet.read_text().replace("max_instances", 'update_interval = "1s"\nmax_instances', 1))
