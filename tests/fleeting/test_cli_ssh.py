"""``fleeting ssh``, in a terminal and without one."""

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleeting.fleets import COMMAND, Fleet, local_fleet, screen, ssh_fleet


@pytest.fixture(params=[local_fleet, ssh_fleet])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    """A group of each kind."""
    with request.param(tmp_path) as fleet:
        yield fleet


def line(fleet: Fleet, *command: str) -> list[str]:
    """Write the command line."""
    return [COMMAND, "ssh", str(fleet.config), fleet.grow(), *(["--", *command] if command else [])]


def test_a_terminal_there_as_it_is_here(fleet: Fleet) -> None:
    """Kind and size, at the start and later; in the end all is as before, and the status is the command's."""
    command = "trap 'stty size; exit 3' WINCH; echo $TERM; stty size; echo ready; while :; do read line; done"
    with screen(line(fleet, command), columns=100, rows=40, term="vt100") as terminal:
        assert b"vt100\r\n40 100\r\n" in terminal.wait_for(b"ready")
        assert terminal.modes != terminal.before
        terminal.resize(120, 50)
        assert terminal.end() == 3
        assert b"50 120" in terminal.shown
        assert terminal.modes == terminal.before


def test_a_login_shell(fleet: Fleet) -> None:
    """It is what runs if nothing else is said."""
    with screen(line(fleet)) as terminal:
        terminal.type(b"echo $((20 + 3)); exit 5\r")
        terminal.wait_for(b"23\r\n")
        assert terminal.end() == 5


def test_keys_are_for_the_other_side(fleet: Fleet) -> None:
    """Ctrl-C interrupts what runs there, and nothing here."""
    command = "trap 'echo interrupted' INT; echo ready; read line || read line; echo \"<$line>\"; kill -9 $$"
    with screen(line(fleet, command)) as terminal:
        terminal.wait_for(b"ready")
        terminal.type(b"\x03")
        terminal.wait_for(b"interrupted")
        terminal.type(b"word\r")
        terminal.wait_for(b"<word>")
        assert terminal.end() == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_the_terminal_as_it_was(fleet: Fleet, number: signal.Signals) -> None:
    """The command there ends with the terminal."""
    with screen(line(fleet, "echo =$$=; exec sleep 1000")) as terminal:
        terminal.wait_for(b"=")
        process = os.pidfd_open(int(terminal.wait_for(b"=")[:-1]))
        terminal.process.send_signal(number)
        assert terminal.end() == 128 + number
        assert terminal.modes == terminal.before
    select.select([process], [], [])  # it ends over there
    os.close(process)


def test_a_lost_connection_leaves_the_terminal_as_it_was(fleet: Fleet) -> None:
    """It is told in a sentence, and the status is the one that ssh has."""
    with screen(arguments := line(fleet, "echo ready; exec sleep 1000")) as terminal:
        terminal.wait_for(b"ready")
        fleet.lose(arguments[3])
        assert terminal.end() == 255
        assert b"error: the " in terminal.shown
        assert terminal.modes == terminal.before


def test_a_closed_window_ends_it(fleet: Fleet) -> None:
    """As every command in it."""
    with screen(line(fleet, "echo ready; exec sleep 1000")) as terminal:
        terminal.wait_for(b"ready")
        terminal.close()
        assert terminal.process.wait() == 128 + signal.SIGHUP


def test_without_a_terminal_there_is_none_over_there(fleet: Fleet) -> None:
    """The command reads what comes, and its outputs stay apart; without one, the shell reads commands."""
    instance = fleet.grow()
    done = fleet.piped("ssh", instance, "--", "cat; [ -t 0 ] || echo none >&2; exit 3", stdin=b"in\n")
    assert (done.stdout, done.stderr, done.returncode) == (b"in\n", b"none\n", 3)
    done = fleet.piped("ssh", instance, stdin=b"echo $((20 + 3))\nkill -9 $$\n")
    assert (done.stdout, done.returncode) == (b"23\n", 128 + signal.SIGKILL)


def test_what_cannot_be_opened_is_told(fleet: Fleet) -> None:
    """Before the terminal is touched."""
    with screen([COMMAND, "ssh", str(fleet.config), "nix"]) as terminal:
        assert terminal.end() == 255
        assert b"instance nix does not exist" in terminal.shown
