"""The command ``fleeting``, on a group of real agents."""

import fcntl
import gc
import io
import os
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner

from fleeting import Observation, State
from fleeting.cli import fitted, main
from fleeting.groups.local import LocalGroup
from tests.clouds import hide_clouds
from tests.fleeting.fleets import COMMAND, Fleet, local_fleet
from tests.fleeting.local_agents import opened, started


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """A group that does not exist yet; what comes of it is removed."""
    with local_fleet(tmp_path) as fleet:
        yield fleet


def test_it_names_what_is_installed() -> None:
    """Groups, connectors, executors and observers, with what they come from."""
    listed = CliRunner().invoke(main, ["plugins"]).stdout
    head, *rows = [line.split()[:2] for line in listed.splitlines()]
    assert head == ["KIND", "NAME"]
    shipped = (["group", "local"], ["connector", "ssh"], ["executor", "instance"], ["observer", "webhook"])
    assert all(each in rows for each in shipped)
    assert "fleeting.connectors.local" in listed


def test_only_a_process_of_its_own_is_set_up_for_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector looks less often there, so it begins sooner; in a program that calls it nothing changes."""
    before = gc.get_threshold()
    try:
        assert CliRunner().invoke(main, ["--version"]).exit_code == 0
        assert gc.get_threshold() == before
        gc.set_threshold(700, 10, 10)
        monkeypatch.setattr(sys, "argv", ["fleeting", "--version"])
        with pytest.raises(SystemExit):
            main()
        assert gc.get_threshold() == (20_000, 10, 10)
    finally:
        gc.set_threshold(*before)


def test_a_command_does_not_look_through_what_ends_with_it() -> None:
    """Python would, several times, which took a quarter of a short command."""
    first = "import atexit, gc, sys; atexit.register(lambda: print('spared', gc.get_freeze_count()))"
    command = f"{first}; sys.argv[1:] = ['--version']; from fleeting.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", command], check=True, capture_output=True, text=True)
    word, spared = done.stdout.splitlines()[-1].split()
    assert word == "spared"
    assert int(spared) > 10_000


def test_on_a_terminal_a_long_line_is_broken_between_words() -> None:
    """No word in two parts, what follows is indented; elsewhere a line is a line, to be searched for."""
    ours, theirs = os.openpty()
    try:
        termios.tcsetwinsize(theirs, (24, 30))
        line = "error: jobs.toml: found /a/path-of/more-than/thirty-characters here [FL110]"
        with open(theirs, "w", closefd=False) as terminal:
            assert fitted(line, terminal).splitlines() == [
                "error: jobs.toml: found",
                "  /a/path-of/more-than/thirty-characters",
                "  here [FL110]",
            ]
        assert fitted(line, io.StringIO()) == line
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_group_by_hand(fleet: Fleet) -> None:
    """It grows, is listed, runs commands, and shrinks again."""
    assert fleet.fleeting("list").stdout == f"no instances in local:{os.uname().nodename}:{fleet.group}\n"
    assert fleet.fleeting("increase", "2").stdout == "asked for 2, 2 accepted\n"
    both = [each["id"] for each in fleet.instances()]
    assert len(both) == 2
    assert all(id_ in fleet.fleeting("list").stdout for id_ in both)
    assert fleet.fleeting("decrease", *both).stdout == "".join(f"{id_}: is being deleted\n" for id_ in both)


def test_if_fewer_come_than_were_asked_for_it_says_why(fleet: Fleet) -> None:
    """A ceiling only if that is what is in the way, and what the cloud itself says."""
    host = f'{{ address = "{fleet.group}/nobody.sock", name = "a", protocol = "local" }}'
    settings = f'state_dir = "{fleet.group.parent}", hosts = [{host}]'
    owned = fleet.config.read_text()
    fleet.config.write_text(f'plugin = "static"\nplugin_config = {{ {settings} }}')
    one, two = fleet.fleeting("increase", "1"), fleet.fleeting("increase", "2")
    fleet.config.write_text(owned)
    assert (one.exit_code, two.exit_code) == (1, 1)
    assert "ceiling" not in one.stdout
    assert "the cloud's ceiling for this group is 1, and it has 0\n" in two.stdout
    assert all("the cloud says: a cannot be reached and is not used" in each.stdout for each in (one, two))


def test_if_a_deletion_is_not_accepted_it_says_why(fleet: Fleet) -> None:
    """Here because the host that is given back cannot be reset."""
    agent = fleet.group / fleet.grow() / "agent.sock"
    host = f'{{ address = "{agent}", name = "a", protocol = "local" }}'
    settings = f'state_dir = "{fleet.group.parent}", hosts = [{host}], reset_command = "echo worn out >&2; exit 5"'
    owned = fleet.config.read_text()
    fleet.config.write_text(f"plugin = 'static'\nplugin_config = {{ {settings} }}")
    taken = fleet.grow()
    refused = fleet.fleeting("decrease", taken)
    fleet.config.write_text(owned)
    assert (refused.exit_code, f"{taken}: was not accepted for deletion" in refused.stdout) == (1, True)
    assert "that failed: 'reset_command' exited with 5: worn out" in refused.stdout


def test_what_will_not_run_any_more_is_not_waited_for(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance that boots is worth waiting for, one that goes is not; the message says which it is."""
    instance = fleet.grow()
    for state, advice in ((State.CREATING, "wait until it runs"), (State.DELETING, "use another")):
        view = Observation.of({instance: state})

        async def update(_: object, view: Observation = view) -> Observation:
            await anyio.lowlevel.checkpoint()
            return view

        with monkeypatch.context() as patch:
            patch.setattr(LocalGroup, "update", update)
            done = fleet.fleeting("run", instance, "true")
        assert f"{instance} is {state.value}; " in done.stderr
        assert advice in done.stderr


def test_a_command_is_told_apart_from_a_shell_line(fleet: Fleet) -> None:
    """One word goes through the instance's shell, several do not; output and error output stay apart."""
    instance = fleet.grow()
    line = fleet.fleeting("run", instance, "--", "echo $((1 + 1)); echo no >&2; exit 3")
    assert (line.stdout, line.stderr, line.exit_code) == ("2\n", "no\n", 3)
    assert fleet.fleeting("run", instance, "--", "echo", "$((1 + 1))").stdout == "$((1 + 1))\n"
    assert fleet.fleeting("run", instance, "--", "kill -9 $$").exit_code == 128 + signal.SIGKILL


def test_a_command_is_fed_only_if_asked_for(fleet: Fleet) -> None:
    """A loop that reads lines must not lose them to the commands in it."""
    instance = fleet.grow()
    assert fleet.piped("run", "-i", instance, "cat", stdin=b"one\n").stdout == b"one\n"
    assert fleet.piped("run", instance, "cat", stdin=b"one\n").stdout == b""


def test_a_command_is_fed_as_it_comes(fleet: Fleet) -> None:
    """Nobody has to say all before the answer to the first word."""
    arguments = [COMMAND, "run", "-i", str(fleet.config), fleet.grow(), "cat"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018  (for the type checker)
        for line in (b"one\n", b"two\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == line
        process.stdin.close()
        assert process.wait() == 0


def test_a_file_can_be_read_too(fleet: Fleet) -> None:
    """The kernel has nothing to wait for in one."""
    arguments = [COMMAND, "run", "-i", str(fleet.config), fleet.grow(), "cat"]
    with fleet.config.open("rb") as file:
        assert subprocess.check_output(arguments, stdin=file) == fleet.config.read_bytes()


def test_it_looks_on_while_somebody_manages(fleet: Fleet) -> None:
    """Listing and running work beside a manager; changes are refused, and say why."""

    async def manage() -> None:
        async with opened(fleet.group, name="f") as group:
            (instance,) = await started(group)
            assert [each["id"] for each in await anyio.to_thread.run_sync(fleet.instances)] == [instance]
            ran = await anyio.to_thread.run_sync(fleet.fleeting, "run", instance, "true")
            assert ran.exit_code == 0
            refused = await anyio.to_thread.run_sync(fleet.fleeting, "decrease", instance)
            assert refused.exit_code == 1
            assert "are managed by another process or pool" in refused.stderr

    anyio.run(manage)


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["list", "--runner", "x"], 2, "there is no [[runners]] table"),
        (["increase", "0"], 2, "0 is not in the range x>=1"),
        (["decrease", "f-1"], 1, "instance f-1 does not exist; the group has none"),
        (["run", "f-1", "true"], 255, "instance f-1 does not exist; the group has none"),
    ],
)
def test_what_cannot_be_done_is_told(fleet: Fleet, arguments: list[str], status: int, told: str) -> None:
    """One sentence, and a status that tells a wrong argument from a failed attempt."""
    done = fleet.fleeting(*arguments)
    assert (done.exit_code, told in done.stderr) == (status, True), done.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "plugin = ",
            "invalid TOML at end of document: invalid value; write a value, and put text in quotes",
        ),
        ("plugin = 'aws'", "no plugin 'aws' for fleeting.groups is installed"),
        ("plugin = 'local'\nplugni_config = {}", "unknown key `plugni_config`"),
        (
            "[autoscaler]\nplugin = 'local'\nplugin_config.boot_tme = 1",
            "unknown key `boot_tme` in [autosc",
        ),
        ("[[runners]]\nname = 'a'", "runners: none has a [runners.autoscaler] table"),
        (
            "[[runners]]\nautoscaler = {}\n[[runners]]\nautoscaler = {}",
            "runners: 2 have a [runners.auto",
        ),
    ],
)
def test_a_wrong_file_is_told(fleet: Fleet, text: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the key path, and status 2."""
    hide_clouds(monkeypatch)
    fleet.config.write_text(text)
    done = fleet.fleeting("list")
    fleet.config.write_text(f'plugin = "local"\nplugin_config.directory = "{fleet.group}"')
    assert (done.exit_code, told in done.stderr) == (2, True), done.stderr


def test_a_runner_is_chosen_by_name(fleet: Fleet) -> None:
    """In a GitLab Runner's file, where a bare number is nanoseconds."""
    fleet.config.write_text(f"""
        [[runners]]
        name = "other"
        autoscaler = {{ plugin = "aws" }}
        [[runners]]
        name = "ours"
        [runners.autoscaler]
        plugin = "local"
        capacity_per_instance = 3
        plugin_config = {{ directory = "{fleet.group}", orphan_ttl = 30000000000 }}
    """)
    assert fleet.fleeting("list", "--runner", "ours").stdout.startswith("no instances in local:")
    assert "did you mean `ours`?" in fleet.fleeting("list", "--runner", "our").stderr
    fleet.config.write_text(f'plugin = "local"\nplugin_config.directory = "{fleet.group}"')


def test_a_reader_that_goes_away_ends_the_command(fleet: Fleet) -> None:
    """As in any pipe: without a word, and the remote command does not run on."""
    with running(fleet, "echo $$; exec yes") as (process, pid):
        assert process.stdout is not None
        process.stdout.close()
        assert ended(process) == (141, b"")
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command(fleet: Fleet, number: signal.Signals) -> None:
    """Here and there."""
    with running(fleet, "echo $$; exec sleep 1000") as (process, pid):
        process.send_signal(number)
        assert ended(process) == (128 + number, b"")
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_whose_output_nobody_takes(fleet: Fleet, number: signal.Signals) -> None:
    """A reader that stands still, such as a pager, does not keep us."""
    with running(fleet, "echo $$; exec yes") as (process, pid):
        assert process.stdout is not None
        full = fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ) - select.PIPE_BUF
        while int.from_bytes(fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4)), sys.byteorder) < full:
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait() == 128 + number
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(("closed", "out"), [("<&-", "end\n"), (">&-", ""), ("2>&-", "end\n")])
def test_it_may_be_started_without_standard_streams(fleet: Fleet, closed: str, out: str) -> None:
    """As some daemons do: there is nothing to read, and nobody who reads."""
    instance = fleet.grow()
    for command in (["run", "--stdin"], ["ssh"]):
        name, *options = command
        line = [COMMAND, name, *options, str(fleet.config), instance, "--", "cat; echo err >&2; echo end"]
        by = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh"]
        done = subprocess.run([*by, *line], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, out)
        assert done.stderr in ("err\n", "")


def test_what_is_to_be_ignored_is(fleet: Fleet) -> None:
    """Under nohup, the end of the session is not the end of the command."""
    go = fleet.config.with_name("go")
    os.mkfifo(go)
    ignoring = ["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    with running(fleet, f"echo $$; exec cat {go}", by=ignoring) as (process, _):
        process.send_signal(signal.SIGHUP)
        go.write_text("on")
        assert process.stdout is not None
        assert (process.stdout.read(), process.wait()) == (b"on", 0)


@contextmanager
def running(fleet: Fleet, command: str, *, by: Sequence[str] = ()) -> "Iterator[tuple[subprocess.Popen[bytes], int]]":
    """Run a command that tells its process id first; in between are pipes."""
    arguments = [*by, COMMAND, "run", str(fleet.config), fleet.grow(), "--", command]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())


def ended(process: "subprocess.Popen[bytes]") -> tuple[int, bytes]:
    """Wait for its end; returns the status and what it complained of."""
    assert process.stderr is not None
    return process.wait(), process.stderr.read()
