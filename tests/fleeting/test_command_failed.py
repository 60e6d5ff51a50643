"""What is said of a command of the user's that has failed."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import CommandFailed, Completed

PRINTED = st.text(st.characters(exclude_categories=["Cc", "Cs"]))
"""Without control characters: some begin a string that takes all that follows with it, as on a terminal."""


@given(PRINTED, PRINTED, PRINTED)
def test_a_failed_setting_is_named_and_its_command_is_not_shown(before: str, secret: str, after: str) -> None:
    """Bash repeats a line that it cannot parse; what else a command says stays."""
    command = f"login --token marker-{secret}\nshort"
    said = [f"{before}`{line}'{after}".encode() for line in command.splitlines()]
    completed = Completed(exit_status=2, stderr=b"\n".join([*said, b"no disk"]))
    error = CommandFailed.of_setting("instance_ready_command", command, completed)
    assert str(error).startswith("'instance_ready_command' exited with 2: ")
    assert str(error).endswith("no disk")
    assert "marker" not in str(error)


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize(
    "command",
    [
        "sh -c 'kill -9 $$' marker-of-ours; exit 3",
        "set -x; true --token marker-of-ours; exit 3",
        "echo $((marker-of-ours +  ))",
        "true --token marker-of-ours (",
        'true --token "marker-of-ours',
    ],
    ids=["killed", "traced", "no-number", "no-sense", "no-end"],
)
def test_no_part_of_a_command_is_shown_that_a_shell_repeats(shell: str, command: str) -> None:
    """Of what was killed, bash repeats a part; whoever debugs a command has all of it traced."""
    ended = subprocess.run([shell, "-c", command], capture_output=True, check=False)
    completed = Completed(exit_status=ended.returncode, stderr=ended.stderr)
    assert "marker-of-ours" not in str(CommandFailed.of_setting("instance_ready_command", command, completed))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("install-the-tools --all", "sh: 1: install-the-tools: not found"),
        ("test -e x || { echo 'the disk is full again' >&2; exit 3; }", "the disk is full again"),
        ("apt-get install libsomething-dev", "E: Unable to locate package libsomething-dev"),
    ],
)
def test_what_tells_why_a_command_failed_stays(command: str, said: str) -> None:
    """What it says itself, and a single word of which a shell says that it has not found it."""
    completed = Completed(exit_status=3, stderr=said.encode())
    error = CommandFailed.of_setting("instance_ready_command", command, completed)
    assert str(error) == f"'instance_ready_command' exited with 3: {said}"


@given(st.binary(max_size=300), st.text(max_size=100), st.integers(0, 60), st.integers(0, 60))
def test_what_a_shell_repeats_is_all_that_is_taken_out(said: bytes, command: str, start: int, size: int) -> None:
    """Whatever the bytes are: nothing fails, and of other lines nothing is missing."""
    part = command.encode(errors="replace")[start : start + size].replace(b"\n", b" ")
    mine = said.replace(b"+", b"-").replace(b":", b"-")
    completed = Completed(exit_status=3, stderr=b"sh: 1: " + part + b"\n" + mine)
    error = CommandFailed.of_setting("s", command.encode(errors="replace").decode(), completed)
    hidden = [line.strip() for line in command.splitlines() if len(line.strip()) >= 8]
    if not any(line.encode(errors="replace") in mine for line in hidden):
        assert error.completed.stderr.endswith(b"\n" + mine)
