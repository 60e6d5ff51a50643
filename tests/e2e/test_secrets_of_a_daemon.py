"""A daemon whose cloud and hosts fail, with a secret in every setting that takes one: nothing that it leaves has any.

The search is for each secret as it is, as JSON, URLs, base64 and hexadecimal digits write it, and broken into lines.
"""

import json
import signal
import socket
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
from attrs import define, field

from tests.planted import Found, command_lines, files, in_url, leaks, planted
from tests.taskscaler import services
from tests.taskscaler.services import Service, command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECRETS: Mapping[str, str] = {
    **planted("argument", "variable", "password", "ready", "reset", "user", "path", "header", "job", "answer"),
    "token": "s3cret-token-" + "t" * 30,
}

FLEET = """
[autoscaler]
max_instances = 3
update_interval_when_expecting = "20ms"
instance_acquire_timeout = "60s"
backoff_initial = "100ms"

[autoscaler.state_storage]
dir = "HERE/state"

[autoscaler.observers.webhook]
url = "http://me:USER@127.0.0.1:CLOSED/PATH"
headers = { Authorization = 'Bearer HEADER' }

[[autoscaler.pools]]
name = "cloud"
max_instances = 1
plugin = "exec"
[autoscaler.pools.plugin_config]
command = ["sh", "HERE/cloud", 'ARGUMENT']
env = { CLOUD = 'VARIABLE' }
state_dir = "HERE/requests"

[[autoscaler.pools]]
name = "hosts"
max_instances = 1
plugin = "static"
connector_config = { timeout = "2s" }
[autoscaler.pools.plugin_config]
state_dir = "HERE/taken"
username = "nobody"
password = 'PASSWORD'
reset_command = 'echo RESET; exit 3'
HOSTS

[[autoscaler.pools]]
name = "works"
max_instances = 1
plugin = "local"
instance_ready_command = "TOKEN='READY'; test -e HERE/was-there || { touch HERE/was-there; exit 3; }"
plugin_config = { directory = "HERE/fleet" }
"""

CLOUD = """
[ "$2" = list ] && { echo '{"instances": []}'; exit; }
echo "bad usage: $0 $* ($1, $CLOUD)" >&2
echo "$1" | base64 >&2
exit 1
"""

JOBS = """
[[jobs]]
name = "fails"
script = "exit 3"
env = { TOKEN = 'JOB' }
retries = 1

[[jobs]]
name = "never"
script = "true"
env = { TOKEN = 'JOB' }
needs = ["fails"]
"""

SHOWN = (
    ("status",),
    ("status", "--json"),
    ("jobs",),
    ("jobs", "--json"),
    ("instances", "--json"),
    ("leases", "--json"),
    ("explain",),
    ("explain", "--json"),
)

AS_TALKATIVE_AS_CAN_BE = (
    "import functools, logging, taskscaler.serve as s; "
    "s.run_daemon = functools.partial(s.run_daemon, level=logging.DEBUG); "
    "from taskscaler.cli import main; main()"
)


@define
class Scene:
    """A daemon's files, and what was heard of it."""

    here: Path
    heard: list[Found] = field(factory=list)

    def write(self) -> None:
        """Write its configuration, and what it names."""
        with socket.create_server(("127.0.0.1", 0)) as unused:
            closed = unused.getsockname()[1]
        own = {name.upper(): secret for name, secret in SECRETS.items()}
        hosts = f'hosts = [{{ address = "127.0.0.1", port = {closed} }}]'
        own |= {"USER": in_url(own["USER"]), "PATH": in_url(own["PATH"]), "HERE": str(self.here), "HOSTS": hosts}
        own |= {"READY": own["READY"].replace('"', '\\"'), "CLOSED": str(closed)}
        for name, text in (("fleet.toml", FLEET), ("jobs.toml", JOBS), ("cloud", CLOUD), ("token", own["TOKEN"])):
            for word in sorted(own, key=len, reverse=True) if name.endswith("toml") else ():
                text = text.replace(word, own[word]) if word not in {"TOKEN", "ANSWER"} else text  # noqa: PLW2901
            (self.here / name).touch(mode=0o600)
            (self.here / name).write_text(text)

    def is_own(self, path: Path) -> bool:
        """Whether a file is there to have a secret: what the user has written, and the jobs of a batch."""
        written = {self.here / name for name in ("fleet.toml", "jobs.toml", "token")}
        return path in written or ("batches" in path.parts and path.name == "jobs.toml")

    def show(self, service: Service, tcp: str, metrics: str) -> None:
        """Ask the daemon for all that it shows."""
        socket_ = ("--socket", str(service.socket))
        status, said = command("submit", *socket_, "--json", str(self.here / "jobs.toml"))
        assert status == 0, said
        batch = str(json.loads(said)["batch"])
        waited = command("wait", *socket_, batch)
        leased = command("lease", *socket_, "--key", "mine", "--", "false")
        assert (waited[0], leased[0]) == (1, 1), (waited, leased)
        output = str(self.here / "out")
        for arguments in (
            *SHOWN,
            ("jobs", batch),
            ("logs", batch, "fails"),
            ("explain", batch, "--json"),
            ("fetch", batch, "--output", output),
        ):
            self.heard.append((" ".join(arguments), command(*arguments, *socket_)[1].encode()))
        self.heard.append(("report", command("report", output, "--json")[1].encode()))
        self.heard.append(("check", command("check", str(self.here / "fleet.toml"))[1].encode()))
        self.heard += self.answers(service.socket, tcp)
        self.heard.append(("metrics", httpx.get(metrics, trust_env=False).content))
        self.heard += command_lines()

    def answers(self, path: Path, tcp: str) -> Iterator[Found]:
        """What the daemon answers to whoever asks for something, on its socket and over TCP."""
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as local:
            known = local.get("/v1/openapi.json").json()["paths"]
            for each in (each for each, verbs in known.items() if "get" in verbs and "event" not in each):
                yield f"GET {each}", local.get(each.replace("{", "").replace("}", "")).content
            yield "POST", local.post("/v1/leases", json={"key": SECRETS["answer"] + "\0"}).content.replace(b"\0", b"")
        for token in (SECRETS["token"], SECRETS["answer"].replace('"', "")):
            answer = httpx.get(f"{tcp}/v1/status", headers={"authorization": f"Bearer {token}"}, trust_env=False)
            yield f"status over TCP ({answer.status_code})", answer.content


def after(lines: list[str], words: str) -> str:
    """The word that comes after some others in what was printed."""
    (line,) = (line for line in lines if words in line)
    return line.split(words)[1].split()[0].strip(';"')


@pytest.mark.parametrize("style", ["json", "text", "journal"])
def test_nothing_that_a_daemon_leaves_has_a_secret(
    style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, full: bool
) -> None:
    """Its log at its most talkative, what its commands and its API answer, metrics, journals, results, processes."""
    if style != "json" and not full:
        pytest.skip("in full")
    scene = Scene(tmp_path)
    scene.write()
    monkeypatch.setattr(services, "COMMAND", (sys.executable, "-c", AS_TALKATIVE_AS_CAN_BE))
    tcp = ("--listen", "127.0.0.1:0", "--token-file", str(tmp_path / "token"))
    with TemporaryDirectory() as short:
        env = {"XDG_RUNTIME_DIR": short}
        options = (*tcp, "--metrics", "127.0.0.1:0", "--log-format", style)
        with services.serving(tmp_path, *options, env=env) as service:
            service.socket = Path(short) / "taskscaler" / "fleet.sock"
            scene.show(service, after(service.lines, "listening on "), after(service.lines, "metrics: "))
            service.process.send_signal(signal.SIGTERM)
            rest, _ = service.process.communicate()
    log = "\n".join([*service.lines, rest])
    for needed in ("increase_failed", "prepare_failed", "webhook_fails", "try_ended", "lease_ended", "jobs_given_up"):
        assert needed in log, f"the test has not provoked {needed}: {log}"
    if style == "json":
        assert all(json.loads(line) for line in log.splitlines() if line)
    everything = [*scene.heard, ("log", log.encode()), *files(tmp_path, scene.is_own)]
    assert any("sqlite" in where or where.endswith(".db") for where, _ in everything)
    assert not leaks(SECRETS, everything)


def test_a_secret_is_found_however_it_is_spelled() -> None:
    """Else the search would find nothing anywhere."""
    secrets = planted("one")
    (secret,) = secrets.values()
    coded = "YWJj" + b64encode(secret.encode()).decode()
    for text in (
        secret,
        json.dumps(secret),
        in_url(secret),
        secret[:7] + "\n" + secret[7:],
        coded[:9] + "\n" + coded[9:],
    ):
        assert leaks(secrets, [("there", f"words {text} words".encode())]), text
    assert not leaks(secrets, [("there", b"s3c+ret")])
