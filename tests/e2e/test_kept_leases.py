"""Leases that outlive the shell that began them: kept slots, commands that run on, and working trees on instances."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.hosts import plugin_config, running
from tests.e2e.leasing import SOON_MISSED, begun, held, here, leased, leases, prepare, room_for_two, work_of
from tests.taskscaler.services import Service, command, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ATTACHABLE = "echo begun; i=0; while [ ! -e {stop} ]; do i=$((i+1)); echo line $i; sleep 0.1; done; exit 7"


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A daemon with room for two."""
    with room_for_two(tmp_path, monkeypatch) as service:
        yield service


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A working tree of git's, with a file that is tracked, and one that is ignored."""
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    git(tree, "init", "--quiet")
    for name, content in (("a", "one\n"), ("inner/b", "two\n"), (".gitignore", "*.o\n.nox/\n"), ("gone", "three\n")):
        (tree / name).write_text(content)
    git(tree, "add", "--all")
    git(tree, "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "--quiet", "--message", "x")
    return tree


def git(tree: Path, *arguments: str) -> None:
    """Have git do something."""
    found = shutil.which("git")
    assert found
    subprocess.run([found, "-C", str(tree), *arguments], check=True, capture_output=True)


def test_a_slot_is_kept_for_the_next_command(service: Service) -> None:
    """The same slot, here or there, whatever daemon there is; it says so, and goes back when it is stopped."""
    first = leased("--keep", "--key", "dev", "--ttl", "2h", "--", 'echo "$TASKSCALER_INSTANCE $TASKSCALER_SLOT"')
    assert first.returncode == 0
    assert "dev is kept for 2h; `taskscaler lease --key dev` uses it again, `taskscaler stop dev`" in first.stderr
    assert (held(service), leases(service)["dev"]["pid"]) == (1, None)
    again = leased("--key", "dev", "--", 'echo "$TASKSCALER_INSTANCE $TASKSCALER_SLOT"; exit 3')
    assert (again.returncode, again.stdout) == (3, first.stdout)
    there = leased("--key", "dev", "--remote", "--", "basename $(dirname $PWD)")
    assert there.stdout.split() == first.stdout.split()[:1]
    with begun("--key", "dev", "--", "echo begun; exec sleep 60") as holder:
        for arguments, status in ((("lease", "--key", "dev", "--", "true"), 255), (("attach", "dev"), 255)):
            done = here(*arguments)
            assert (done.returncode, done.stdout) == (status, ""), arguments
            assert len(done.stderr.splitlines()) == 1
        assert f"process {holder.pid} uses the lease 'dev'" in here("attach", "dev").stderr
        assert command("stop", "dev") == (0, "stop         dev has ended, and its slot was given back\n")
        assert holder.wait() == 254
        assert holder.stderr
        assert "it was stopped" in holder.stderr.read()
    assert leases(service) == {}


def test_a_command_runs_on_when_its_shell_and_its_daemon_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever attaches gets all of its output and its exit status, also over a kill; then the slot goes back."""
    prepare(tmp_path, monkeypatch)
    stop = tmp_path / "stop"
    with serving(tmp_path) as service:
        done = leased("-d", "--key", "dev", "--remote", "--", ATTACHABLE.format(stop=stop))
        assert done.returncode == 0, done.stderr
        assert "next         taskscaler attach dev, taskscaler stop dev" in done.stdout
        assert held(service) == 1
        with begun("dev", verb="attach") as follower:
            follower.kill()
        with begun("dev", verb="attach") as follower:  # as soon as the daemon has noticed
            follower.kill()
        service.process.kill()
        service.process.wait()
    with serving(tmp_path) as service:
        with begun("dev", verb="attach") as follower:
            follower.send_signal(signal.SIGINT)
            assert follower.wait() == 130
            assert follower.stderr
            said = follower.stderr.read()
            assert "dev is left as it is, and kept for 8h; `taskscaler attach dev` follows it again" in said
            assert "`taskscaler stop dev` ends it" in said
        assert leased("-d", "--key", "dev", "--remote", "--", "true").returncode == 255
        follower = begun("dev", verb="attach")
        service.process.kill()
        service.process.wait()
    with follower, serving(tmp_path) as service:
        stop.touch()
        assert follower.wait() == 7
        assert follower.stdout
        lines = follower.stdout.read().splitlines()
        assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]
        assert here("attach", "dev").returncode == 255
        while held(service):
            """The daemon removes what was left there."""
        assert command("drain", "--delete")[0] == 0


def test_a_command_that_was_left_running_is_stopped(service: Service, tmp_path: Path) -> None:
    """With all that it has started, and its files; a lease that was to be kept is kept when it has ended by itself."""
    pid = tmp_path / "pid"
    done = leased("-d", "--key", "dev", "--remote", "--", f"echo $$ > {pid}; mkdir -p x; sleep 600 & wait")
    assert done.returncode == 0
    with begun("--key", "dev", "--remote", "--", "echo begun; exec sleep 600") as beside:
        assert command("stop", "dev")[0] == 0
        assert beside.wait() == 254
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
    assert leased("-d", "--key", "dev", "--remote", "--", "echo begun; exec sleep 600").returncode == 0
    with begun("dev", verb="attach") as follower:
        instance = str(leases(service)["dev"]["instance"])
        os.kill(int((tmp_path / "fleet" / instance / "agent.pid").read_text()), signal.SIGKILL)
        assert follower.wait() == 254
        assert follower.stderr
        assert f"lost its slot on {instance}" in follower.stderr.read()
    assert leases(service) == {}
    assert leased("-d", "--keep", "--key", "dev", "--remote", "--", "echo said; exit 5").returncode == 0
    for _ in range(2):
        seen = here("attach", "dev")
        assert (seen.returncode, seen.stdout, seen.stderr) == (5, "said\n", "")
    assert leased("-d", "--key", "dev", "--remote", "--", "echo more").returncode == 0
    assert here("attach", "dev").stdout == "more\n"
    assert json.loads(command("leases", "--json")[1])["leases"][0]["kept"]
    assert command("stop", "dev")[0] == 0
    assert held(service) == 0


def test_a_working_tree_comes_along(service: Service, tmp_path: Path, tree: Path) -> None:
    """As git knows it, and as it is now each time; what commands have made there stays, until the lease is stopped."""
    (tree / "a").write_text("changed\n")
    (tree / "new name\n").write_text("new\n")
    (tree / "ignored.o").touch()
    (tree / "gone").unlink()
    (tree / "link").symlink_to("a")
    (tree / "inner" / "run").write_text("#!/bin/sh\necho ran\n")
    (tree / "inner" / "run").chmod(0o755)
    look = "find . -type f -o -type l | LC_ALL=C sort; cat a link; inner/run; echo made > made.o"
    first = leased("--keep", "--key", "dev", "--remote", "--sync", "--", look, cwd=tree)
    there = ["", "./.gitignore", "./a", "./inner/b", "./inner/run", "./link", "./new name"]  # whose name has two lines
    assert (first.returncode, first.stdout.split("\n")) == (0, [*there, "changed", "changed", "ran", ""])
    [directory] = work_of(tmp_path, str(leases(service)["dev"]["instance"])).joinpath(".taskscaler").iterdir()
    (tree / "new name\n").unlink()
    (tree / "inner" / "b").unlink()
    (tree / "inner" / "run").unlink()
    (tree / "link").unlink()
    (tree / "link").mkdir()
    (tree / "link" / "inside").write_text("in\n")
    second = leased("--key", "dev", "--remote", "--sync", "--", "find . | LC_ALL=C sort", cwd=tree / "link")
    assert second.stdout.split() == [".", "./inside"]
    third = leased("--key", "dev", "--remote", "--", "cd ..; find . | LC_ALL=C sort; cat made.o")
    assert third.stdout.split() == [".", "./.gitignore", "./a", "./link", "./link/inside", "./made.o", "made"]
    assert command("stop", "dev")[0] == 0
    assert not directory.exists()
    with begun("--remote", "--sync", "--", "echo begun; exec sleep 60", cwd=tree) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr
        assert "SIGINT: ending the command, and giving back the slot" in process.stderr.read()
    assert leases(service) == {}
    once = leased("--remote", "--sync", "--", "cat a; exit 4", cwd=tree)
    assert (once.returncode, once.stdout) == (4, "changed\n")
    while held(service):
        """The daemon removes what was brought."""
    assert [*directory.parent.iterdir()] == []


def test_what_is_not_a_working_tree_is_refused_before_a_slot_is_taken(
    service: Service, tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one line each: no tree, too large a tree, no git, bounds out of range, options that do not fit."""
    with (tree / "large").open("wb") as large:
        large.truncate(5 << 30)
    (tmp_path / "empty").mkdir()
    (tmp_path / "bin").mkdir()
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / ".git").write_text("gitdir: /nowhere\n")
    without_git: Callable[[], None] = lambda: monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # noqa: E731
    remote = ("lease", "--remote")
    for arguments, where, status, what in (
        ((*remote, "--sync", "--", "true"), tmp_path / "empty", 2, "is not in one; run the command in one"),
        ((*remote, "--sync", "--", "true"), tree, 2, "has 5 GiB in 5 files, more than the limit of 4 GiB"),
        ((*remote, "--sync", "--", "true"), tree / ".git", 2, "is not in one"),
        ((*remote, "--sync", "--", "true"), odd, 2, "is not in one"),
        (("lease", "--sync", "--", "true"), tree, 2, "--sync needs --remote"),
        (("lease", "-d", "--", "true"), tree, 2, "-d needs --remote; use nohup, tmux or systemd-run"),
        (("lease", "--ttl", "1h", "--", "true"), tree, 2, "--ttl needs --keep or -d"),
        (("lease", "--keep", "--ttl", "0", "--", "true"), tree, 2, "expected 1s to 7d, found 0s"),
        (("lease", "--keep", "--ttl", "169h", "--", "true"), tree, 2, "expected 1s to 7d, found 7d1h"),
        (("lease", "--keep", "--idle-timeout", "soon", "--", "true"), tree, 2, "is not a duration"),
        (("attach", "nope"), tree, 255, "the lease 'nope' is not kept; `taskscaler leases` lists"),
        (("attach", "nope", "--offset", "-1"), tree, 2, "--offset"),
        (("attach", ""), tree, 2, "KEY is empty"),
        (("stop", "nope"), tree, 1, "no lease is kept under the key 'nope'"),
        (("stop", "batch:1:a"), tree, 1, "keys that begin with 'batch:'"),
        (("stop",), tree, 2, "missing argument"),
    ):
        done = here(*arguments, cwd=where)
        assert (done.returncode, what in done.stderr, done.stdout) == (status, True, ""), (arguments, done)
        assert len(done.stderr.splitlines()) == 1, done.stderr
    assert leased("--keep", "--key", "dev", "--", "true").returncode == 0
    done = here("attach", "dev")
    assert (done.returncode, "no command was left running in dev; start one with" in done.stderr) == (255, True)
    assert command("stop", "dev")[0] == 0
    without_git()
    done = here("lease", "--remote", "--sync", "--", "true", cwd=tree)
    assert (done.returncode, "--sync needs git, which is not installed here" in done.stderr) == (2, True), done.stderr
    assert held(service) == 0


def test_nothing_works_on_here_when_the_command_that_has_its_slot_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has started ends, too, at once if it is willing, and long before the slot goes to others."""
    prepare(tmp_path, monkeypatch)
    (tmp_path / "loop.sh").write_text(
        f"trap 'echo ended > {tmp_path}/ended; exit' TERM; echo begun; while :; do sleep 0.05; done\n"
    )
    with serving(tmp_path) as service:
        with begun("--", f"sh {tmp_path}/loop.sh; echo not reached") as process:
            process.kill()
            process.wait()
            assert process.stdout
            assert process.stdout.read() == "", "it is closed once nothing is left of the command"
        assert (tmp_path / "ended").read_text() == "ended\n"
        assert held(service) == 1
        [lease] = leases(service).values()
        assert lease["pid"] == process.pid


def test_on_a_host_reached_over_ssh_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tree: Path) -> None:
    """A tree comes along, a command runs on, its output is read from any byte, and nothing of it is left in the end."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("TASKSCALER_SOCKET", raising=False)
    with running(tmp_path, 1) as hosts:
        state = f'[autoscaler.state_storage]\ndir = "{tmp_path}/state"\n'
        fleet = f'[autoscaler]\nplugin = "static"\nmax_instances = 1\n{state}{plugin_config(tmp_path, hosts)}\n'
        (tmp_path / "fleet.toml").write_text(fleet)
        with serving(tmp_path) as service:
            waits = f"while [ ! -e {tmp_path}/stop ]; do sleep 0.05; done"
            line = f"cat a; echo $$ > {tmp_path}/pid; {waits}; exit 3"
            done = leased("-d", "--keep", "--key", "dev", "--remote", "--sync", "--", line, cwd=tree)
            assert done.returncode == 0, done.stderr
            beside = leased("--key", "dev", "--remote", "--", "cat a; touch made")
            assert (beside.returncode, beside.stdout) == (0, "one\n")
            (tmp_path / "stop").touch()
            for offset, text in (("0", "one\n"), ("2", "e\n"), ("9", "")):
                seen = here("attach", "dev", "--offset", offset)
                assert (seen.returncode, seen.stdout) == (3, text), seen
            home = tmp_path / "home-0"
            assert len([*home.glob(".taskscaler/lease-*/tree/made")]) == 1
            assert (
                leased("-d", "--key", "dev", "--remote", "--", f"echo $$ > {tmp_path}/pid; sleep 600").returncode == 0
            )
            assert command("stop", "dev")[0] == 0
            assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
            assert [*home.glob(".taskscaler/*")] == [*home.glob(".fleeting/detached/lease-*")] == []
            assert held(service) == 0


def test_a_key_whose_command_was_killed_begins_anew(service: Service) -> None:
    """The next command with it has nothing of that, and keeps nothing that it was not asked to."""
    with begun("--remote", "--key", "job", "--", "echo begun; sleep 600", program=SOON_MISSED) as process:
        process.kill()
        process.wait()
    done = leased("--remote", "--key", "job", "--", "echo done")
    assert (done.returncode, done.stdout, "uses it again" in done.stderr) == (0, "done\n", False), done.stderr
    assert "job" not in leases(service)


def test_a_key_whose_command_was_killed_begins_anew_with_new_bounds(
    service: Service, tmp_path: Path, tree: Path
) -> None:
    """How long it is to be kept says nothing of what was left: the tree of the command that was killed is gone."""
    line = "echo begun; sleep 600"
    with begun("--remote", "--sync", "--key", "job", "--", line, cwd=tree, program=SOON_MISSED) as process:
        process.kill()
        process.wait()
    done = leased("--remote", "--keep", "--ttl", "1h", "--key", "job", "--", "pwd")
    assert (done.returncode, "job is kept for 1h" in done.stderr) == (0, True), done.stderr
    assert done.stdout == f"{work_of(tmp_path, str(leases(service)['job']['instance']))}\n"
    assert command("stop", "job")[0] == 0


def runs(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has reaped yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_command_over_ssh_ends_before_its_slot_is_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tree: Path
) -> None:
    """Its shell here was killed, so nobody ended it, and it writes nothing that would; nor is it willing to end."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("TASKSCALER_SOCKET", raising=False)
    with running(tmp_path, 1) as hosts:
        state = f'[autoscaler.state_storage]\ndir = "{tmp_path}/state"\n'
        fleet = f'[autoscaler]\nplugin = "static"\nmax_instances = 1\n{state}{plugin_config(tmp_path, hosts)}\n'
        (tmp_path / "fleet.toml").write_text(fleet)
        home, pid = tmp_path / "home-0", tmp_path / "pid"
        with serving(tmp_path) as service:
            done = leased("--remote", "--stdin", "--", "pwd; echo wrong >&2; cat; exit 7", stdin="typed")
            assert (done.returncode, done.stdout) == (7, f"{home}\ntyped")
            assert done.stderr.splitlines()[-1] == "wrong"
            assert [*home.glob(".taskscaler/*")] == []
            deaf = f"trap '' TERM HUP; echo $$ > {pid}; echo begun; while :; do sleep 0.05; done"
            for options in ((), ("--sync",)):
                with begun("--remote", "--key", "job", *options, "--", deaf, cwd=tree) as process:
                    process.kill()
                    process.wait()
                assert runs(int(pid.read_text())), "over SSH, nobody has ended it"
                [lease] = leases(service).values()
                assert lease["kept"], "so the daemon does, in its time"
                assert command("stop", "job")[0] == 0, "or when it is asked to"
                assert not runs(int(pid.read_text()))
                assert held(service) == 0
                assert [*home.glob(".taskscaler/*")] == []
            for following in (("-d", "--remote"), ()):  # whatever comes next in a lease that is kept
                with begun("--remote", "--keep", "--key", "job", "--", deaf, program=SOON_MISSED) as process:
                    process.kill()
                    process.wait()
                assert runs(int(pid.read_text()))
                done = leased(*following, "--key", "job", "--", "true")
                assert (done.returncode, runs(int(pid.read_text()))) == (0, False), done.stderr
            assert command("stop", "job")[0] == 0
