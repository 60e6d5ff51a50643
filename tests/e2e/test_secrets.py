"""Secrets in every setting that has some, and a fleet in which all goes wrong: none of them is told to anybody."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from attrs import define, field
from click.testing import CliRunner

from taskscaler.cli import main
from tests.fleeting.sshd import sshd

COMMAND = str(Path(sys.executable).with_name("taskscaler"))
MARK = "s3cret"
"""Part of every secret, and of nothing else."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOBS = """
[[jobs]]
name = "fails"
script = "test ${TOKEN#s3} = cret-env && mkfifo pipe && exit 3"
env = { TOKEN = "s3cret-env" }

[[jobs]]
name = "leaves"
script = "umask 0; mkdir open; echo x > open/file; chmod 777 open/file"
env = { TOKEN = "s3cret-env" }
artifacts = ["open"]

[report]
command = ["sh", "-c", "umask; echo x > made"]
files = ["open-file"]
"""

LOCAL = """
[autoscaler]
plugin = "local"
max_instances = 1
update_interval_when_expecting = "20ms"
backoff_initial = "100ms"
instance_ready_command = "test -e DIR/was-there || { touch DIR/was-there; TOKEN=s3cret-ready; exit 3; }"
instance_cleanup_command = "TOKEN=s3cret-cleanup; echo no broom >&2; exit 4"
plugin_config = { directory = "DIR/fleet" }

[executors.instance]
cleanup_script = "TOKEN=s3cret-script; exit 5"
"""

EXEC = """
[autoscaler]
plugin = "exec"
max_instances = 1
instance_acquire_timeout = "1s"

[autoscaler.plugin_config]
command = ["sh", "DIR/cloud", "--token=s3cret-argument", "s3cret-other"]
env = { CLOUD = "s3cret-variable" }
"""

CLOUD = """
[ "$3" = list ] && { echo '{"instances": []}'; exit; }
echo "bad usage: $0 $* (${1#*=}, $CLOUD)" >&2
exit 1
"""

STATIC = """
[autoscaler]
plugin = "static"
max_instances = 1
instance_acquire_timeout = "5s"
update_interval = "100ms"
connector_config = { timeout = "2s" }

[autoscaler.plugin_config]
username = "nobody"
password = "s3cret-password"
reset_command = "TOKEN=s3cret-reset; exit 3"
hosts = [{ address = "127.0.0.1", port = PORT, host_key = "KEY" }]
"""

WEBHOOK = """
[autoscaler.observers.webhook]
url = "http://me:s3cret-user@127.0.0.1:PORT/s3cret-path"
headers = { Authorization = "Bearer s3cret-header" }
"""


@define
class Heard:
    """What the webhook's server was sent."""

    port: int
    bodies: bytearray = field(factory=bytearray)


@contextmanager
def listening() -> Iterator[Heard]:
    """Serve a webhook."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.bodies.extend(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server, ThreadPoolExecutor(1) as pool:
        heard = Heard(server.server_port)
        pool.submit(server.serve_forever)
        try:
            yield heard
        finally:
            server.shutdown()


@define
class Place:
    """Where a batch is run, by a careless user."""

    directory: Path

    @property
    def output(self) -> Path:
        """Its results."""
        return self.directory / "out"

    @property
    def state(self) -> dict[str, str]:
        """Where the user's state is."""
        return {"XDG_STATE_HOME": str(self.directory / "state")}

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start the command, with a umask that keeps nothing from anybody."""
        return subprocess.Popen(
            [COMMAND, *arguments],
            env={**os.environ, **self.state},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            umask=0,
        )

    def ask(self, *arguments: str) -> bytes:
        """Run the command, and return all that it says."""
        with self.start(*arguments) as process:
            said, _ = process.communicate()
        return said

    def write(self, fleet: str, webhook: Heard) -> str:
        """Write a jobs file, and what it names."""
        (self.directory / "open-file").touch(mode=0o666)
        (self.directory / "cloud").write_text(CLOUD)
        text = fleet.replace("DIR", str(self.directory)) + WEBHOOK.replace("PORT", str(webhook.port)) + JOBS
        (self.directory / "jobs.toml").write_text(text)
        return str(self.directory / "jobs.toml")

    def telling(self) -> list[str]:
        """The files with a secret in them."""
        files = [path for path in self.output.rglob("*") if path.is_file()]
        return sorted(str(path.relative_to(self.output)) for path in files if MARK.encode() in path.read_bytes())

    def open_to_others(self) -> list[Path]:
        """What others can do anything with."""
        everything = [self.output, *self.output.rglob("*")]
        return [path for path in everything if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077]

    def read(self, *arguments: str) -> bytes:
        """Run a command here that writes nothing, and return all that it says."""
        done = CliRunner().invoke(main, arguments, env=self.state, prog_name="taskscaler")
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.output_bytes

    def explanations(self) -> bytes:
        """What a person and a program are told of the results."""
        job = ("explain", str(self.output), "--job", "fails", "--json")
        told = self.read("explain", str(self.output)), self.read(*job), self.read("report", str(self.output), "--json")
        assert all(told)
        return b"".join(told)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """One whose results' directory is there, and open to everybody."""
    place = Place(tmp_path)
    place.output.mkdir()
    place.output.chmod(0o777)
    return place


def fails_quietly(place: Place, fleet: str) -> bytes:
    """Run a batch that fails, and return all that anybody could hear of it."""
    with listening() as webhook:
        path = place.write(fleet, webhook)
        told = place.read("check", path)
        told += place.ask("run", path, "--output", str(place.output), "--log-format", "json")
        assert b'"event": "increase' in told, told
        assert webhook.bodies
    told += place.explanations() + bytes(webhook.bodies)
    assert MARK.encode() not in told, told.decode()
    assert {*place.telling()} <= {"resume/jobs.toml"}  # which stays where there is something to go on with
    assert place.open_to_others() == []
    return told


@pytest.mark.usefixtures("pictures")
def test_commands_and_variables_that_fail_are_named_and_not_shown(place: Place) -> None:
    """Readiness, clean-up and the job itself; and what all of it leaves is for our user alone."""
    told = fails_quietly(place, LOCAL).decode()
    assert "'instance_ready_command' exited with 3" in told
    assert "'instance_cleanup_command' exited with 4: no broom" in told
    assert "exited with 5" in told
    assert stat.S_IMODE((place.output / "artifacts" / "leaves" / "open" / "file").stat().st_mode) == 0o700
    assert (place.output / "made").read_text() == "x\n"


@pytest.mark.usefixtures("pictures_in_full")
def test_a_program_that_repeats_its_arguments_is_not_repeated(place: Place) -> None:
    """Nor its variables."""
    told = fails_quietly(place, EXEC).decode()
    assert "bad usage: " in told


@pytest.mark.usefixtures("pictures_in_full")
def test_a_password_that_is_refused_is_not_shown(tmp_path: Path, place: Place) -> None:
    """By a host that takes none."""
    with sshd(tmp_path / "sshd") as server:
        fleet = STATIC.replace("PORT", str(server.port)).replace("KEY", server.host_key)
        told = fails_quietly(place, fleet).decode()
    assert "refuses the login of nobody" in told, told


def test_what_is_kept_to_go_on_is_private(place: Place) -> None:
    """A batch that is killed leaves its jobs file, for its user alone, and nothing else with a secret in it."""
    with listening() as webhook:
        path = place.write(LOCAL.replace("TOKEN=s3cret-ready; exit 3", "true"), webhook)
        Path(path).write_text(Path(path).read_text().replace("mkfifo pipe && exit 3", "mkfifo pipe && read x < pipe"))
        with place.start("run", path, "--output", str(place.output)) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if b"fails runs on" in line:
                    process.send_signal(signal.SIGKILL)
    assert place.telling() == ["resume/jobs.toml"]
    assert place.open_to_others() == []
    assert MARK.encode() not in place.explanations()
