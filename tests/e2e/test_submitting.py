"""Batches that are submitted to a daemon, beside a script, while the daemon is killed again and again."""

import json
import re
import signal
import stat
import subprocess
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest

from taskscaler import sync
from tests.taskscaler.services import COMMAND, command, first_line, printing, serving, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOBS = """
[[jobs]]
name = "first"
copies = 4
files = ["data"]
script = 'cat data/x; echo "$TASKSCALER_JOB_NAME" >> {ran}; for each in 1 2 3; do echo "$each"; {pause}; done'

[[jobs]]
name = "last"
needs = ["first"]
script = 'echo "$TASKSCALER_JOB_NAME" >> {ran}'
"""


def submit(directory: Path, pause: str = "sleep 1") -> str:
    """Hand over a batch whose jobs pause three times; gives its id."""
    directory.mkdir()
    (directory / "data").mkdir()
    (directory / "data" / "x").write_text("here\n")
    (directory / "jobs.toml").write_text(JOBS.format(ran=directory / "ran", pause=pause))
    status, said = command("submit", str(directory / "jobs.toml"), "--json")
    assert status == 0, said
    batch: str = json.loads(said)["batch"]
    return batch


def test_batches_outlive_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three batches and a script share a fleet; the daemon is killed twice. Each job runs once, and nothing is held.

    Who follows a log meanwhile sees all of it, once.
    """
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("TASKSCALER_SOCKET", raising=False)
    write(tmp_path, idle=0, most=6)
    with ExitStack() as stack:
        service = stack.enter_context(serving(tmp_path))
        batches = [submit(tmp_path / name) for name in ("a", "b", "c")]
        with sync.connect() as scaler, scaler.acquire("script") as lease:
            followed = stack.enter_context(printing("logs", "-f", batches[0], "first-02"))
            for _ in range(2):
                assert first_line("logs", "-f", batches[0], "first-01") == "here\n"
                service.process.kill()
                service.process.wait()
                service = stack.enter_context(serving(tmp_path))
            assert lease.instance
        for batch, name in zip(batches, "abc", strict=True):
            status, said = command("wait", batch)
            assert (status, "succeeded" in said) == (0, True), said
            ran = Counter((tmp_path / name / "ran").read_text().split())
            assert ran == Counter([*(f"first-0{each}" for each in range(1, 5)), "last"])
            status, said = command("logs", batch, "first-01")
            assert said == "here\n1\n2\n3\n"
        assert followed() == ("here\n1\n2\n3\n", "", 0)
        status, said = command("status", "--json")
        shown = json.loads(said)
        assert (shown["capacity"]["acquired"], shown["batches"], shown["jobs"], shown["leases"]) == (0, 0, 0, 0)
        status, said = command("explain", batches[0])
        assert (status, "5 succeeded" in said) == (0, True), said
        assert command("drain", "--delete")[0] == 0
        assert service.process.wait() == 0
    assert not list((tmp_path / "fleet").glob("default-*"))


def test_a_batch_that_was_left_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM waits for its bound, then leaves what runs to the next daemon; what was cancelled stays so."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("TASKSCALER_SOCKET", raising=False)
    write(tmp_path, idle=0, most=4)
    with ExitStack() as stack:
        service = stack.enter_context(serving(tmp_path, "--stop-timeout=100ms"))
        go = tmp_path / "go"
        batch = submit(tmp_path / "a", f"until [ -e {go} ]; do sleep 0.05; done")
        other = submit(tmp_path / "b")
        assert first_line("logs", "-f", batch, "first-01") == "here\n"
        followed = stack.enter_context(printing("logs", "-f", batch, "first-01"))
        assert command("cancel", other)[0] == 0
        service.process.send_signal(signal.SIGTERM)
        assert re.search("[1-4] jobs? of batches", service.wait_for("did not end in time"))
        assert service.process.wait() == 0
        go.touch()
        service = stack.enter_context(serving(tmp_path))
        assert command("wait", batch)[0] == 0
        assert followed() == ("here\n1\n2\n3\n", "", 0)
        ran = Counter((tmp_path / "a" / "ran").read_text().split())
        (twice, times), *_ = ran.most_common(1)
        assert times == 1, command("explain", batch, "--job", twice)
        status, said = command("wait", other)
        assert (status, "cancelled" in said) == (1, True), said
        shared = tmp_path / "shared"
        shared.mkdir()
        shared.chmod(0o777)
        (tmp_path / "bad.toml").write_text('[autoscaler]\nplugin = "local"\n[[jobs]]\nname = "a"\n')
        (tmp_path / "idle.toml").write_text('[[jobs]]\nname = "a"\n')
        for arguments, code, what in (
            (("submit", str(tmp_path / "bad.toml")), 2, "no fleet in a submitted file"),
            (("submit", str(tmp_path / "idle.toml")), 2, "missing key `script`"),
            (("logs", batch, "nope"), 2, "matches no job"),
            (("logs", batch, "first-*"), 2, "name one of them"),
            (("jobs", "12345678"), 1, "there is no batch"),
            (("wait", str(tmp_path / "nothing")), 2, "there is no directory"),
            (("jobs", str(tmp_path)), 2, "holds no results"),
            (("cancel", str(tmp_path / "a")), 2, "holds no results of a batch"),
            (("explain", str(tmp_path), "--socket", str(service.socket)), 2, "cannot be combined"),
            (("explain", batch), 0, "5 succeeded"),
            (("report", batch), 0, "5 succeeded"),
            (("jobs", batch), 0, "first-03"),
            (("fetch", batch, "--output", str(shared / "fetched")), 0, "taskscaler report"),
            (("fetch", batch, "--output", str(shared / "fetched")), 2, "exists already"),
            (("fetch", str(tmp_path / "a"), "--output", str(tmp_path / "other")), 2, "does not belong to a daemon"),
            (("fetch", "12345678", "--output", str(tmp_path / "other")), 1, "there is no batch"),
            (("explain", str(shared / "fetched")), 0, "5 succeeded"),
            (("jobs",), 0, f"{other}     jobs.toml, cancelled"),
        ):
            status, said = command(*arguments)
            assert (status, what in said) == (code, True), (arguments, said)
        assert [path.name for path in shared.iterdir()] == ["fetched"]  # no part of the second one
        assert stat.S_IMODE((shared / "fetched").stat().st_mode) == 0o700
        assert not (tmp_path / "other").exists()
        assert command("drain", "--delete")[0] == 0


def test_a_batch_is_cancelled_by_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a command runs it, which is ended with it, or a daemon, which is not; one that is over stays as it is."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TASKSCALER_SOCKET", raising=False)
    write(tmp_path)
    job = '[[jobs]]\nname = "a"\nscript = "echo here; sleep 300"\n'
    (tmp_path / "jobs.toml").write_text(job)
    (tmp_path / "run.toml").write_text(f'[autoscaler]\nplugin = "local"\n{job}')
    results = tmp_path / "results"
    with subprocess.Popen([*COMMAND, "run", str(tmp_path / "run.toml"), "--output", str(results)]) as run:
        while not (results / "logs" / "a.log").exists():
            assert run.poll() is None
            Event().wait(0.1)
        assert first_line("logs", "-f", str(results), "a") == "here\n"
        status, said = command("cancel", str(results))
        assert (status, "cancelled" in said or "interrupted" in said) == (0, True), said
        assert run.wait() == 128 + signal.SIGTERM
    assert command("cancel", str(results))[0] == 0
    with serving(tmp_path):
        status, said = command("submit", str(tmp_path / "jobs.toml"), "--json")
        batch = json.loads(said)["batch"]
        place = json.loads(command("jobs", batch, "--json")[1])["results"]
        assert first_line("logs", "-f", batch, "a") == "here\n"
        status, said = command("cancel", place)
        assert (status, batch in said) == (0, True), said
        assert json.loads(command("wait", batch, "--json")[1])["state"] == "cancelled"
        assert command("drain", "--delete")[0] == 0
