"""The daemon as a process among others: its socket, signals, the service manager, and the commands that ask it."""

import grp
import json
import os
import signal
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from taskscaler import sync
from taskscaler._errors import SocketRefused
from taskscaler.executors import JobSpec
from taskscaler.futures import Call, FleetExecutor
from taskscaler.serve import _listen
from taskscaler.serve._listen import listening, place_of
from taskscaler.serve._notify import watchdog_interval
from tests.taskscaler.services import command, serving, write


def test_a_socket_for_a_group_is_where_other_users_look() -> None:
    """Not in a directory that only the daemon's own user can go through."""
    assert place_of(Path("here/fleet.toml"), None, "builders") == Path("/run/taskscaler/fleet.sock")
    assert place_of(Path("here/fleet.toml"), Path("/srv/a.sock"), "builders") == Path("/srv/a.sock")


@pytest.mark.anyio
async def test_a_socket_for_a_group_opens_nobody_s_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the one that is there for such sockets is opened to all, for what is in it has modes of its own."""
    group, home = grp.getgrgid(os.getgid()).gr_name, tmp_path / "home"
    home.mkdir()
    for mode in (0o700, 0o740):
        home.chmod(mode)
        with pytest.raises(SocketRefused, match=f"members of the group cannot go through {home}; let them"):
            async with listening(home / "a.sock", group):
                pass
        assert stat.S_IMODE(home.stat().st_mode) == mode
    made = home / "for" / "sockets"
    for _ in range(2):  # the second time it was there
        async with listening(made / "a.sock", group):
            assert [stat.S_IMODE(each.stat().st_mode) for each in (made, made.parent)] == [0o710, 0o710]
    monkeypatch.setattr(_listen, "GROUP_DIRECTORY", home)
    async with listening(home / "a.sock", group):
        assert stat.S_IMODE(home.stat().st_mode) == 0o741


@pytest.mark.slow
def test_one_daemon_has_the_fleet_and_answers_its_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first look to the end of the fleet, with nothing but commands."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("TASKSCALER_SOCKET", raising=False)
    write(tmp_path)
    with serving(tmp_path) as service:
        assert stat.S_IMODE(service.socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(service.socket.parent.stat().st_mode) == 0o700
        status, said = command("status")
        assert status == 0
        assert "instance-hours, price unknown" in said
        assert f"process {service.process.pid}" in said

        pid = f"process {service.process.pid}"
        for other in ((), ("--socket", f"{tmp_path}/other.sock")):  # the same socket; the same group
            status, said = command("serve", str(tmp_path / "fleet.toml"), *other)
            assert status == 1
            assert pid in said

        service.ask("POST", "/client", json={"ttl": 600})
        instance = service.ask("POST", "/acquire", json={"key": "a", "request": "1"})["instance"]
        assert command("cordon", instance, "--why", "a disk")[0] == 0
        status, said = command("instances", "--json")
        assert [each["cordoned"] for each in json.loads(said)["instances"] if each["id"] == instance] == ["a disk"]
        assert command("cordon", instance, "--undo")[0] == 0
        assert "has held slot 0" in command("explain", "--job", "a")[1]
        assert command("retain", "nope")[0] == 1

        write(tmp_path, idle=2, most=5)
        status, said = command("reload")
        assert (status, "max_instances changed from 3 to 5: takes effect when" in said) == (0, True)
        (tmp_path / "fleet.toml").write_text("[autoscaler]\nplugin = 7\n")
        assert command("reload")[0] == 1
        assert service.ask("GET", "/capacity")["acquired"] == 1

        status, said = command("drain", "--delete", "--timeout", "10ms")
        assert (status, "leases are still held" in said, "taskscaler leases" in said) == (1, True, True)
        service.ask("DELETE", "/client")
        assert service.process.wait() == 0
    assert not service.socket.exists()
    assert not list((tmp_path / "fleet").glob("*-*")), "the instances are gone"


@pytest.mark.slow
def test_signals_reload_drain_and_end(tmp_path: Path) -> None:
    """SIGHUP reloads; the first SIGTERM waits for leases, as long as it says; the second does not."""
    write(tmp_path)
    with serving(tmp_path, "--stop-timeout=5m") as service:
        service.ask("POST", "/client", json={"ttl": 600})
        service.ask("POST", "/acquire", json={"key": "a", "request": "1"})
        service.process.send_signal(signal.SIGHUP)
        assert service.wait_for("policies were reloaded")
        service.process.send_signal(signal.SIGTERM)
        assert "waiting at most 5m for 1 lease" in service.wait_for("stopping:")
        assert service.ask("GET", "/status")["state"] == "draining"
        assert service.end(signal.SIGTERM) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_a_lease_that_does_not_end_in_time_does_not_keep_the_daemon(tmp_path: Path) -> None:
    """When the bound has passed, it says so and ends, as well as any."""
    write(tmp_path)
    with serving(tmp_path, "--stop-timeout=10ms") as service:
        service.ask("POST", "/client", json={"ttl": 600})
        service.ask("POST", "/acquire", json={"key": "a", "request": "1"})
        service.process.send_signal(signal.SIGINT)
        assert service.wait_for("1 lease did not end in time")
        assert service.process.wait() == 0


@pytest.mark.slow
def test_the_service_manager_learns_how_it_is(tmp_path: Path) -> None:
    """It is ready only once it serves; it gives signs of life, and says when it reloads and stops."""
    write(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        heard: list[str] = []

        def wait_for(state: str) -> None:
            while state not in heard:
                heard.extend(manager.recv(4096).decode().splitlines())
            heard.clear()

        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"}
        with serving(tmp_path, env=env) as service:
            wait_for("READY=1")
            wait_for("WATCHDOG=1")
            service.process.send_signal(signal.SIGHUP)
            wait_for("RELOADING=1")
            wait_for("READY=1")
            service.process.send_signal(signal.SIGTERM)
            wait_for("STOPPING=1")


def test_a_watchdog_of_another_process_is_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is inherited, malformed or zero is passed over."""
    for usec, pid, interval in (("2000000", "", 1.0), ("2000000", "1", None), ("x", "", None), ("0", "", None)):
        monkeypatch.setenv("WATCHDOG_USEC", usec)
        monkeypatch.setenv("WATCHDOG_PID", pid)
        assert watchdog_interval() == interval


def test_the_unit_starts_what_was_asked_for(tmp_path: Path) -> None:
    """Absolute paths, every option, and nothing that systemd would expand."""
    write(tmp_path)
    odd = tmp_path / "100% $odd"
    odd.mkdir()
    (odd / "fleet.toml").write_text((tmp_path / "fleet.toml").read_text())
    status, unit = command(
        "serve",
        str(odd / "fleet.toml"),
        "--unit",
        "--stop-timeout",
        "2m",
        "--socket-group",
        "builders",
        "--listen",
        "[::1]:8443",
        "--token-file",
        str(odd / "token"),
        "--tls-cert",
        str(odd / "fleet.toml"),
        "--http",
        "127.0.0.1:8080",
        "--http-no-link",
    )
    assert status == 0
    place = f"{tmp_path}/100%% $$odd"
    assert f'serve "{place}/fleet.toml" --stop-timeout=120s --socket-group=builders --listen=[::1]:8443 ' in unit
    assert "RuntimeDirectory=taskscaler" in unit
    assert "SupplementaryGroups=builders" in unit
    options = f'"--token-file={place}/token" --http=127.0.0.1:8080 --http-no-link "--tls-cert={place}/fleet.toml"\n'
    assert options in unit
    assert "Type=notify\n" in unit
    assert "TimeoutStopSec=150\n" in unit
    elsewhere = ("--socket", "/srv/a.sock", "--socket-group", "builders")
    status, unit = command("serve", str(odd / "fleet.toml"), "--unit", *elsewhere)
    assert (status, "RuntimeDirectory" in unit, "SupplementaryGroups=builders\n" in unit) == (0, False, True)


@pytest.mark.slow
def test_it_listens_on_tcp_if_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says where, and where the token is; a batch that was submitted there is waited for there."""
    write(tmp_path, most=1)
    monkeypatch.delenv("TASKSCALER_SOCKET", raising=False)
    with serving(tmp_path, "--listen", "127.0.0.1:0") as service:
        said = next(line for line in service.lines if line.startswith("listening on "))
        url, token = said.removeprefix("listening on ").split("; the token is in ")
        assert Path(token).is_relative_to(tmp_path / "state" / "tokens")
        monkeypatch.setenv("TASKSCALER_TOKEN_FILE", token)
        (tmp_path / "jobs.toml").write_text("[[jobs]]\nname = 'a'\nscript = 'echo hello'\n")
        status, said = command("submit", str(tmp_path / "jobs.toml"), "--json", "--socket", url)
        assert status == 0, said
        batch = json.loads(said)["batch"]
        assert command("wait", batch, "--socket", url)[0] == 0
        assert command("logs", batch, "a", "--socket", url) == (0, "hello\n")
        status, said = command("report", batch, "--socket", url)
        assert (status, f"taskscaler fetch {batch}" in said) == (1, True)
        assert command("fetch", batch, "--socket", url, "--output", str(tmp_path / "fetched"))[0] == 0
        assert (tmp_path / "fetched" / "results.json").exists()


@pytest.mark.slow
def test_a_daemon_that_is_killed_gives_its_leases_back(tmp_path: Path) -> None:
    """Twice, while a program holds a slot: it goes on, and no slot is held afterwards."""
    write(tmp_path, idle=0, most=1)
    with ExitStack() as stack:
        service = stack.enter_context(serving(tmp_path))
        scaler = stack.enter_context(sync.connect(service.socket))
        with scaler.acquire("a") as lease:
            for _ in range(2):
                service.process.kill()
                service.process.wait()
                service = stack.enter_context(serving(tmp_path))
                with lease.dial() as connection:
                    said = connection.run(["echo", lease.instance]).stdout
                assert said.decode().strip() == lease.instance
                assert lease.loss is None
        assert scaler.acquire_lease("b").instance == lease.instance


@pytest.mark.slow
def test_work_is_submitted_to_a_daemons_fleet(tmp_path: Path) -> None:
    """As to one's own: scripts and calls run in its slots, one of them fails, and none is held in the end."""
    write(tmp_path, most=2)
    with serving(tmp_path) as service:
        with sync.connect(service.socket) as scaler, FleetExecutor(scaler, artifacts=tmp_path / "artifacts") as fleet:
            echoed = [fleet.submit("echo $1; exit $2", str(number), str(number // 5)) for number in range(6)]
            left = fleet.submit(JobSpec(name="leaves", script="echo left > file", artifacts=("file",)))
            computed = fleet.submit(Call("math:gcd"), 12, 18)
            assert [each.result().output for each in echoed] == [b"%d\n" % number for number in range(6)]
            assert [each.result().exit_code for each in echoed] == [0, 0, 0, 0, 0, 1]
            assert left.result().exit_code == 0
            assert computed.result() == 6
        assert (tmp_path / "artifacts" / "leaves" / "file").read_text() == "left\n"
        assert service.ask("GET", "/capacity")["acquired"] == 0
