"""Batches of `taskscaler run --daemon` share a fleet with a script, while one of them and the daemon are killed."""

import json
import os
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest

from taskscaler import sync
from tests.taskscaler.services import COMMAND, command, serving, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOBS = """
[autoscaler]
plugin = "unheard of"

[[jobs]]
name = "first"
copies = 4
files = ["data"]
artifacts = ["made"]
script = '''
cat data/x; echo "$TASKSCALER_JOB_NAME" >> {here}/ran; echo made > made
until [ -e {here}/go ]; do sleep 0.1; done
echo end
'''

[[jobs]]
name = "last"
needs = ["first"]
script = 'echo "$TASKSCALER_JOB_NAME" >> {here}/ran'
"""


def prepare(here: Path) -> None:
    """Write the jobs file of a batch whose jobs wait for a file."""
    (here / "data").mkdir(parents=True)
    (here / "data" / "x").write_text("here\n")
    (here / "jobs.toml").write_text(JOBS.format(here=here))


def begin(stack: ExitStack, here: Path, *options: str) -> "subprocess.Popen[str]":
    """Run a batch as a command of its own."""
    arguments = [*COMMAND, "run", str(here / "jobs.toml"), "--output", str(here / "results"), *options]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def wait_until(done: Callable[[], object]) -> None:
    """Look again and again until it is so."""
    while not done():
        Event().wait(0.05)


def lines(path: Path) -> list[str]:
    """Give the lines of a file, if it is there."""
    return path.read_text().split() if path.exists() else []


def test_one_is_killed_and_the_daemon_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job runs once, that of the killed batch, too, which is resumed; nothing is held, no instance is left."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("TASKSCALER_SOCKET", raising=False)
    write(tmp_path, idle=0, most=7)
    here = {name: tmp_path / name for name in "abc"}
    with ExitStack() as stack:
        service = stack.enter_context(serving(tmp_path))
        for each in here.values():
            prepare(each)
        runs = {name: begin(stack, each, "--daemon") for name, each in here.items()}
        with sync.connect() as scaler, scaler.acquire("script") as lease:
            wait_until(lambda: sum(len(lines(each / "ran")) for each in here.values()) == 6)  # all other slots
            wait_until(lambda: scaler.capacity().pending == 6)  # so that all three know the daemon before it is killed
            runs["b"].kill()
            runs["b"].wait()
            for _ in range(2):
                service.process.kill()
                service.process.wait()
                service = stack.enter_context(serving(tmp_path))
            for each in here.values():
                (each / "go").touch()
            resumed = command("run", "--resume", str(here["b"] / "results"))
            assert resumed[0] == 0, resumed[1]
            said = {name: runs[name].communicate()[0] for name in "ac"}
            assert lease.instance
        assert {name: runs[name].returncode for name in "ac"} == {"a": 0, "c": 0}, said
        assert all("note: [autoscaler] has no effect" in each for each in said.values())
        for each in here.values():
            ran = Counter(lines(each / "ran"))
            assert ran == Counter([*(f"first-0{number}" for number in range(1, 5)), "last"])
            logs = [(each / "results" / "logs" / f"first-0{number}.log").read_text() for number in range(1, 5)]
            assert logs == ["here\nend\n"] * 4
            assert len([*(each / "results" / "artifacts").glob("*/made")]) == 4
        status, shown = command("status", "--json")
        state = json.loads(shown)
        assert (status, state["capacity"]["acquired"], state["leases"]) == (0, 0, 0)
        status, shown = command("explain", str(here["a"] / "results"))
        assert (status, "no scaling decision was recorded" in shown) == (0, True), shown
        assert command("drain", "--delete")[0] == 0
        assert service.process.wait() == 0
    assert not list((tmp_path / "fleet").glob("default-*"))


def test_ctrl_c_ends_this_batch_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped at once, it gives its slots back; the other goes on. What cannot be is refused, and leaves nothing."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("TASKSCALER_SOCKET", raising=False)
    write(tmp_path, idle=0, most=8)
    one, two = tmp_path / "one", tmp_path / "two"
    with ExitStack() as stack:
        for each in (one, two):
            prepare(each)
        refusals = [
            (("run", str(one / "jobs.toml"), "--daemon"), 1, "no daemon has a socket"),
            (("run", "--daemon=/nowhere.sock", str(one / "jobs.toml")), 1, "no daemon answers at /nowhere.sock"),
            (("run", str(one / "jobs.toml")), 2, "unheard of"),
            (("run", "--daemon", "--resume", str(one)), 2, "is resumed where it was started"),
        ]
        monkeypatch.chdir(tmp_path)
        for arguments, code, what in refusals:
            status, said = command(*arguments)
            assert (status, what in said) == (code, True), (arguments, said)
        assert not (tmp_path / "taskscaler-results").exists() or not [*(tmp_path / "taskscaler-results").iterdir()]
        service = stack.enter_context(serving(tmp_path))
        runs = [begin(stack, each, f"--daemon={service.socket}") for each in (one, two)]
        wait_until(lambda: len(lines(one / "ran")) == len(lines(two / "ran")) == 4)
        for number in (2, 2):
            os.kill(runs[0].pid, number)
            Event().wait(0.5)
        assert runs[0].wait() == 130
        status, shown = command("status", "--json")
        assert json.loads(shown)["leases"] == 4
        (one / "go").touch()
        (two / "go").touch()
        said, _ = runs[1].communicate()
        assert runs[1].returncode == 0, said
        status, said = command("run", "--resume", str(one / "results"))
        assert (status, "5 succeeded" in said) == (0, True), said
        assert command("drain", "--delete")[0] == 0


def test_more_jobs_than_connections_that_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits has a connection open, and the system gives only so many: the others wait for their turn here."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("TASKSCALER_SOCKET", raising=False)
    write(tmp_path, idle=3, most=3)
    (tmp_path / "jobs.toml").write_text('[[jobs]]\nname = "a"\ncopies = 80\nscript = "true"\ndetach = false\n')
    with serving(tmp_path):
        few = (
            f"ulimit -n 64 && exec {shlex.join(COMMAND)} run {tmp_path}/jobs.toml --daemon --output {tmp_path}/results"
        )
        result = subprocess.run(["/bin/sh", "-c", few], capture_output=True, text=True, check=False)
        assert (result.returncode, "80 succeeded" in result.stdout) == (0, True), result
        assert command("drain", "--delete")[0] == 0
