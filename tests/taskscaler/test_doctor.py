"""``taskscaler doctor``: each way to break a fleet gets a line with its cause and what to do; nothing is changed."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from attrs import field, frozen
from click.testing import CliRunner, Result

from taskscaler.cli import _doctor, main
from tests.clouds import hide_clouds

FILES = Path(__file__).parent / "config"
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "doctor.md"
SOURCES = Path(_doctor.__file__).parent
FLEET = '[autoscaler]\nplugin = "local"\nplugin_config = {{ directory = "{here}/group" }}\n'
SECRET = "s3cret-of-a-test"
LINE = re.compile(r"(ok|warning|problem) +(\w+)(?: \((.+?)\))?: (.*?)(?:; (.*?))?(?: \[(\w+)\])?")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the state of fleets away from that of whoever runs the tests, and start commands in an empty directory."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    return tmp_path / "state-home"


def doctor(*arguments: str | Path) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)], prog_name="taskscaler")


def found(result: Result) -> list[Mapping[str, str | None]]:
    """What JSON says that was found."""
    assert result.stderr == ""
    answer = json.loads(result.stdout)
    assert answer["version"] == 1
    order = ["ok", "warning", "problem"]
    findings: list[Mapping[str, str | None]] = answer["findings"]
    assert answer["grade"] == max((each["grade"] or "" for each in findings), key=order.index)
    assert result.exit_code == (answer["grade"] == "problem")
    return findings


def wrong(result: Result) -> list[Mapping[str, str | None]]:
    """What is not as it should be, but for the clock of the machine that the tests run on."""
    return [each for each in found(result) if each["grade"] != "ok" and each["check"] != "clock"]


# --- the command -----------------------------------------------------------------------------------------


def test_without_a_file_this_machine_is_looked_at(home: Path) -> None:
    """Every plugin that is installed is loaded, and nothing is made."""
    checks = [each["check"] for each in found(doctor("--json"))]
    assert list(dict.fromkeys(checks)) == ["python", "versions", "clock", "plugin", "state", "managers", "results"]
    assert checks.count("plugin") > 8
    assert not home.exists()


def test_a_file_that_works(tmp_path: Path, home: Path) -> None:
    """Only what it needs is loaded; the group is looked at, and not made."""
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET.format(here=tmp_path))
    result = doctor(path, "--json")
    assert wrong(result) == []
    said = {each["check"]: each["found"] for each in found(result)}
    assert said["file"] == f"{path} is valid"
    assert said["plugin"] is not None
    assert said["plugin"].startswith("connector local: fleeting ")
    assert said["group"] is not None
    assert said["group"].endswith(": 0 instances")
    assert not home.exists()
    assert not (tmp_path / "group").exists()


def test_lines_say_what_json_says(tmp_path: Path) -> None:
    """The same findings in the same order, each on one line, and their number below."""
    path = tmp_path / "fleet.toml"
    path.write_text("[autoscaler]\nplugin = 'local'\nidle_tme = 1\nmax_instances = '2'\n")
    *lines, empty, summary = doctor(path).stdout.splitlines()
    assert empty == ""
    findings = found(doctor(path, "--json"))
    assert len(lines) == len(findings)
    for line, each in zip(lines, findings, strict=True):
        parts = LINE.fullmatch(line)
        assert parts is not None, line
        if each["check"] != "clock":
            assert parts[4] == (each["found"] or "").partition("; ")[0]
            assert list(parts.group(1, 2, 3, 6)) == [each[key] for key in ("grade", "check", "pool", "code")]
    assert re.findall(r"\d+", summary)[0] == "2"
    assert doctor(path).exit_code == 1


def test_offline_contacts_nothing(tmp_path: Path) -> None:
    """Neither group nor instance; a line says so."""
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET.format(here=tmp_path))
    findings = found(doctor(path, "--json", "--offline"))
    assert [each["found"] for each in findings if each["check"] == "group"] == ["not looked at: --offline"]
    assert "connection" not in {each["check"] for each in findings}


@pytest.mark.parametrize(
    "arguments", [["--runner", "x"], ["nowhere.toml"], ["--timeout", "0"], ["--timeout", "soon"], ["."]]
)
def test_wrong_arguments(arguments: Sequence[str]) -> None:
    """Are refused before anything is looked at."""
    result = doctor(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.endswith(" [FL101]\n")


def test_a_runner_of_gitlabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is read as it is; what is left unsaid or unsupported there is a warning."""
    hide_clouds(monkeypatch)
    findings = wrong(doctor(FILES / "aws-mac.toml", "--json", "--offline"))
    assert {each["check"] for each in findings} == {"file", "plugin"}
    assert any((each["found"] or "").startswith("vm_isolation: ") for each in findings)
    (missing,) = [each for each in findings if each["grade"] == "problem"]
    assert (missing["do"], missing["code"]) == ("pip install fleeting-aws", "FL120")


def test_the_page_has_every_key_and_every_check(tmp_path: Path) -> None:
    """What is in the JSON is documented, and what is documented is in the JSON."""

    def keys(text: str) -> set[str]:
        return {name for line in text.splitlines() for name in re.findall(r"^\| `(\w+)` \|", line)}

    path = tmp_path / "fleet.toml"
    path.write_text(FLEET.format(here=tmp_path))
    answer = json.loads(doctor(path, "--json").stdout)
    _, checks, objects = re.split(r"^## (?:What it looks at|JSON)$", PAGE.read_text(), flags=re.MULTILINE)
    whole, _, finding = objects.partition("Each finding has:")
    assert keys(whole) == answer.keys()
    assert keys(finding) == answer["findings"][0].keys()
    assert {each["check"] for each in answer["findings"]} <= keys(checks)
    sources = "".join(each.read_text() for each in SOURCES.glob("*.py"))
    named = {name for found in re.findall(r'check="(\w+)"|_(?:look|check)\("(\w+)"', sources) for name in found if name}
    assert named | {"group", "results", "managers", "state", "quota", "connection"} == keys(checks)


# --- what can be wrong -----------------------------------------------------------------------------------


@frozen(kw_only=True)
class Broken:
    """A fleet that is broken in one way."""

    toml: str = FLEET
    code: str | None
    check: str
    grade: str = "problem"
    cause: str
    """Must be in what was found."""

    cure: str
    """Must be in what to do."""

    around: Callable[[Path], None] = field(default=lambda _: None)
    """Breaks what is not in the file, given the test's directory."""


def state_of_others(here: Path) -> None:
    """Make a directory for the state that everybody can write into."""
    (here / "state-home" / "taskscaler").mkdir(parents=True)
    (here / "state-home" / "taskscaler").chmod(0o777)


def state_is_a_file(here: Path) -> None:
    """Leave a file where the directory would be."""
    (here / "state-home").mkdir()
    (here / "state-home" / "taskscaler").touch()


def damaged_state(here: Path) -> None:
    """Leave what is no journal."""
    state = here / "state-home" / "taskscaler"
    state.mkdir(parents=True, mode=0o700)
    (state / "fleet-1.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 4096)


def closed_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


STATIC = '[autoscaler]\nplugin = "static"\nplugin_config.state_dir = "{here}/taken"\n'
BROKEN: Mapping[str, Broken] = {
    "a wrong key": Broken(
        toml=f"{FLEET}idle_tme = 1\n",
        code="FL112",
        check="file",
        cause="unknown key `idle_tme`",
        cure="correct its name",
    ),
    "no TOML": Broken(toml="[autoscaler\n", code="FL111", check="file", cause="invalid TOML at line 1", cure="bracket"),
    "a plugin that is not installed": Broken(
        toml='[autoscaler]\nplugin = "aws"\n',
        code="FL120",
        check="file",
        cause='"aws" is not an installed plugin',
        cure="pip install fleeting-aws",
    ),
    "a plugin that nobody knows": Broken(
        toml='[autoscaler]\nplugin = "locl"\n', code="FL120", check="file", cause='"locl"', cure="did you mean `local`?"
    ),
    "a key that is not there": Broken(
        toml=f'{FLEET}connector_config.key_path = "{{here}}/id"\n',
        code="FL116",
        check="file",
        cause="is not a private key file that you can read",
        cure="permissions",
    ),
    "a host that is not reached": Broken(
        toml=f'{STATIC}plugin_config.hosts = [{{{{ address = "127.0.0.1", port = {closed_port()} }}}}]\n'
        'plugin_config.username = "ci"\nplugin_config.password = "x"\nconnector_config.timeout = "2s"\n',
        code="FL401",
        check="connection",
        cause="127.0.0.1 ",
        cure="firewall",
    ),
    "a docker daemon that is not there": Broken(
        toml='[autoscaler]\nplugin = "docker"\nplugin_config.socket = "{here}/docker.sock"\n',
        code="FL300",
        check="group",
        cause="/docker.sock",
        cure="start the Docker daemon, or set socket",
    ),
    "a directory for state that others can write": Broken(
        code="FL202", check="state", cause="can be written by another user", cure="chmod", around=state_of_others
    ),
    "a file in place of the directory for state": Broken(
        code="FL202", check="state", cause="taskscaler is a file", cure="set dir in", around=state_is_a_file
    ),
    "a damaged journal": Broken(
        code="FL202", check="managers", cause=".sqlite is damaged: ", cure="move it away", around=damaged_state
    ),
    "a program of the cloud's that is not there": Broken(
        toml='[autoscaler]\nplugin = "exec"\nplugin_config.command = ["{here}/cloud"]\n',
        code=None,
        check="group",
        cause="/cloud",
        cure="",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named_with_its_cure(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By exactly one line that is not ok."""
    hide_clouds(monkeypatch)
    broken = BROKEN[name]
    broken.around(tmp_path)
    path = tmp_path / "fleet.toml"
    path.write_text(broken.toml.format(here=tmp_path))
    (finding,) = wrong(doctor(path, "--json"))
    assert broken.cause in (finding["found"] or "")
    assert broken.cure in (finding["do"] or "")
    assert finding["do"], "each has something to do"
    assert (finding["check"], finding["grade"]) == (broken.check, broken.grade)
    if broken.code is not None:
        assert finding["code"] == broken.code


# --- plugins that misbehave ------------------------------------------------------------------------------

PLUGIN = """
import os, time
from attrs import frozen, field
from fleeting import GroupPlugin, hookimpl

@frozen(kw_only=True)
class Config:
    pin: str = field(default="", repr=False)

class Group:
    def __init__(self, config):
        self.config = config
    async def init(self, settings):
        print("loud", self.config.pin)
        {init}
    async def update(self): ...
    async def increase(self, count, *, intent): ...
    async def decrease(self, instances): ...
    async def connect_info(self, instance): ...
    async def heartbeat(self, instance): ...
    async def shutdown(self): ...

{top}

@hookimpl
def fleeting_group():
    return GroupPlugin(config=Config, group=Group, interface_version=1, secrets=frozenset({{"pin"}}))
"""


def install(directory: Path, *, init: str = "pass", top: str = "") -> None:
    """Put a plugin into a directory, as pip would."""
    directory.mkdir(exist_ok=True)
    (directory / "unruly_of_a_test.py").write_text(PLUGIN.format(init=init, top=top))
    info = directory / "unruly_of_a_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: unruly-of-a-test\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fleeting.groups]\nunruly = unruly_of_a_test\n")


def doctor_elsewhere(path: Path, plugins: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, which has one more plugin."""
    program = "import sys; from taskscaler.cli import main; sys.exit(main(prog_name='taskscaler'))"
    command = [sys.executable, "-c", program, "doctor", str(path), *arguments]
    return subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(plugins), **env},
        capture_output=True,
        text=True,
        check=False,
    )


TWO_POOLS = """
[autoscaler]
[[autoscaler.pools]]
name = "bad"
plugin = "unruly"
plugin_config.pin = "{secret}"
[[autoscaler.pools]]
name = "good"
plugin = "local"
plugin_config.directory = "{here}/group"
"""

UNRULY: Mapping[str, tuple[str, str, int]] = {
    "raises what no plugin may": (
        "raise RuntimeError('the pin is ' + self.config.pin)",
        "RuntimeError: the pin is",
        60,
    ),
    "ends the program": ("raise SystemExit(7)", "SystemExit: 7", 60),
    "raises many": ("raise ExceptionGroup('two', [ValueError(1), KeyError(2)])", "ValueError: 1", 60),
    "never answers": ("import anyio; await anyio.sleep_forever()", "opening the group took longer than 3s", 3),
    "blocks the loop": ("time.sleep(3600)", "opening the group: no result after 11s", 3),
}
"""What a plugin does when its group is opened, what must be said of it, and the seconds for each check."""


@pytest.mark.slow
@pytest.mark.parametrize("name", UNRULY)
def test_an_unruly_plugin_ends_only_its_line(name: str, tmp_path: Path) -> None:
    """The other pool is looked at, the command ends, and nothing of the secret is shown."""
    init, said, timeout = UNRULY[name]
    install(tmp_path / "plugins", init=init)
    path = tmp_path / "fleet.toml"
    path.write_text(TWO_POOLS.format(here=tmp_path, secret=SECRET))
    done = doctor_elsewhere(path, tmp_path / "plugins", "--json", "--timeout", str(timeout))
    assert (done.returncode, done.stderr) == (1, "")
    findings = json.loads(done.stdout)["findings"]
    bad = [each for each in findings if each["pool"] == "bad" and each["grade"] != "ok"]
    assert said in bad[0]["found"]
    assert bad[0]["do"]
    (good,) = [each for each in findings if each["pool"] == "good" and each["check"] == "group"]
    assert good["grade"] == "ok"
    assert SECRET not in done.stdout + done.stderr
