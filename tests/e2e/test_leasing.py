"""Commands that have a slot of a daemon's fleet for as long as they run, here and there."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.leasing import begun, held, leased, room_for_two
from tests.taskscaler.services import COMMAND, Service, command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A daemon with room for two."""
    with room_for_two(tmp_path, monkeypatch) as service:
        yield service


def test_a_command_has_a_slot(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment names it, its exit status is ours, and so are its outputs; it may run on the instance."""
    monkeypatch.setenv("TASKSCALER_EXTERNAL_ADDR", "that of a slot in which this runs")
    here = leased("--key", "mine", "--", "env")
    variables = dict(line.partition("=")[::2] for line in here.stdout.splitlines() if line.startswith("TASKSCALER_"))
    instance = variables["TASKSCALER_INSTANCE"]
    assert variables | {"TASKSCALER_SLOT": "0"} == {
        "TASKSCALER_KEY": "mine",
        "TASKSCALER_POOL": "default",
        "TASKSCALER_INSTANCE": instance,
        "TASKSCALER_SLOT": "0",
        "TASKSCALER_SOCKET": str(service.socket),
        "TASKSCALER_PROTOCOL": "local",
        "TASKSCALER_INTERNAL_ADDR": str(tmp_path / "fleet" / instance / "agent.sock"),
    }
    for arguments, stdin, expected in (
        (("--", "echo out; echo err >&2; exit 3"), "", (3, "out\n", "err\n")),
        (("--", "cat"), "in", (0, "in", "")),
        (("--", "printf", "%s|", "a b", "c"), "", (0, "a b|c|", "")),
        (("--", "kill -KILL $$"), "", (137, "", "")),
        (("--remote", "--", "basename $(dirname $PWD | xargs dirname); exit 4"), "", (4, "fleet\n", "")),
        (("--remote", "--stdin", "--", "cat"), "in", (0, "in", "")),
        (("--remote", "--", "printf", "%s|", "a b", "c"), "", (0, "a b|c|", "")),
    ):
        done = leased(*arguments, stdin=stdin)
        assert (done.returncode, done.stdout, done.stderr) == expected, arguments


def test_signals_end_what_they_should(service: Service) -> None:
    """A command here gets them, one there is ended by them, and so is the wait for a slot; no slot stays held."""
    with begun("--", "trap 'echo got; exit 7' TERM; echo begun; sleep 60 & wait") as process:
        assert held(service) == 1
        process.send_signal(signal.SIGTERM)
        assert (process.wait(), process.stdout.read() if process.stdout else "") == (7, "got\n")
    with begun("--remote", "--", "echo begun; exec sleep 60") as process:
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    with (
        begun("--key", "a", "--", "echo begun; exec sleep 60") as first,
        begun("--", "echo begun; exec sleep 60") as second,
    ):
        refused = leased("--key", "a", "--", "true")
        assert (refused.returncode, "is in use" in refused.stderr) == (255, True), refused
        late = leased("--timeout", "3s", "--", "true")
        assert (late.returncode, "taskscaler lease: " in late.stderr, "within 3s" in late.stderr) == (255, True, True)
        with subprocess.Popen([*COMMAND, "lease", "--", "true"], stderr=subprocess.PIPE, text=True) as waiting:
            assert waiting.stderr
            assert "limit of 2 instances" in waiting.stderr.readline()
            waiting.send_signal(signal.SIGINT)
            assert waiting.wait() == 130
        for each in (first, second):
            each.send_signal(signal.SIGTERM)
            assert each.wait() == 143


@pytest.mark.usefixtures("service")
def test_what_a_command_has_started_gets_signals_too(tmp_path: Path) -> None:
    """Without a terminal all of it does, so that nothing works on without a slot; Ctrl-C comes once, not twice."""
    line = "sh -c 'trap \"echo got; exit\" TERM; echo begun; while :; do sleep 0.1; done'; echo not reached"
    run = [*COMMAND, "lease", "--", line]
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        assert (process.stdout.read(), process.wait()) == ("got\n", 143)
    (tmp_path / "count.sh").write_text(
        "trap 'n=$((n+1)); echo got' INT; trap 'echo $n in all; exit 5' TERM\n"
        "echo begun $PPID; while :; do sleep 0.1 & wait; done\n"
    )
    inside = 'exec "$@" </dev/null', "sh", *COMMAND, "lease", "--", "sh", str(tmp_path / "count.sh")
    terminal = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    run = [sys.executable, "-c", terminal, "sh", "-c", *inside]
    with subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin
        assert process.stdout
        begun, _, pid = process.stdout.readline().partition(" ")
        assert begun == "begun"
        process.stdin.write("\x03")
        process.stdin.flush()
        assert process.stdout.readline() == "^Cgot\n"
        os.kill(int(pid), signal.SIGTERM)
        assert (process.stdout.readline(), process.wait()) == ("1 in all\n", 5)


@pytest.mark.usefixtures("service")
def test_a_command_whose_slot_is_lost_is_ended(tmp_path: Path) -> None:
    """With a status of its own, and the reason; what cannot be is refused before a slot is taken."""
    (tmp_path / "started.sh").write_text(
        f"trap 'echo ended > {tmp_path}/ended; exit' TERM; echo begun; while :; do sleep 0.1; done\n"
    )
    line = f'echo "$TASKSCALER_INSTANCE" > {tmp_path}/where; sh {tmp_path}/started.sh; echo not reached'
    with begun("--", line) as process:
        instance = (tmp_path / "where").read_text().strip()
        os.kill(int((tmp_path / "fleet" / instance / "agent.pid").read_text()), signal.SIGKILL)
        assert process.wait() == 254
        assert process.stderr
        assert f"lost its slot on {instance}" in process.stderr.read()
    assert (tmp_path / "ended").read_text() == "ended\n"
    for arguments, status, what in (
        (("--", "nosuchprogram", "x"), 2, "no program 'nosuchprogram'"),
        (("--stdin", "--", "cat"), 2, "needs --remote"),
        (("--key", "", "--", "true"), 2, "--key is empty"),
        (("--timeout", "soon", "--", "true"), 2, "is not a duration"),
        (("--socket", "/nowhere.sock", "--", "true"), 255, "no daemon answers"),
        ((), 2, "missing argument"),
    ):
        code, said = command("lease", *arguments)
        assert (code, what in said) == (status, True), (arguments, said)
