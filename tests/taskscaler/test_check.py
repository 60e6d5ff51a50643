"""``taskscaler check``: what it says of files and of clouds (see tests/golden), and that it changes nothing."""

import io
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, fields_dict
from click.testing import CliRunner, Result
from rich.console import Console

from fleeting import (
    AuthFailed,
    FleetingError,
    GroupInfo,
    GroupRefused,
    ProviderError,
    ScaleThrottle,
    Settings,
    Unreachable,
)
from fleeting.testing import FakeCloud, FakeGroup, Fault, UpdateFault
from taskscaler import Policy, config
from taskscaler.cli import main
from taskscaler.cli._check import _Look
from taskscaler.cli._fleet import fleet_rows
from taskscaler.cli._log import logging_to
from taskscaler.cli._paragraphs import Paragraphs
from taskscaler.config import Autoscaler, StateStorage
from tests.clouds import WITHOUT_CLOUDS, hide_clouds
from tests.golden import Golden

FILES = Path(__file__).parent / "config"
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "gitlab-config.md"
QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart" / "jobs.toml"


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the state of fleets away from that of whoever runs the tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    return tmp_path / "state-home"


def check(*arguments: str | Path) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, ["check", *map(str, arguments)], prog_name="taskscaler")


def rows(output: str) -> dict[str, list[str]]:
    """What is said under each label."""
    said: dict[str, list[str]] = {}
    label = ""
    for line in filter(None, output.splitlines()):
        label = line[:13].strip() or label
        said.setdefault(label, []).append(line[13:])
    return said


Pin = Callable[[str, str], None]


@pytest.fixture
def pin(golden: Golden, tmp_path: Path) -> Pin:
    """Compare what is said with tests/golden, under a name; the files are in ``<files>``, the test is ``<here>``."""

    def pin(name: str, text: str) -> None:
        golden(f"check/{name}", text.replace(str(FILES), "<files>").replace(str(tmp_path), "<here>"))

    return pin


def test_the_golden_file_has_nothing_else_of_this(golden: Golden) -> None:
    """What is no longer said is taken out."""
    golden.has_only("check/", re.findall(r'[^"]\bpin\("([^"]+)"', Path(__file__).read_text()))
    golden.has_only("check_runner/", [" ".join(arguments) for arguments, _ in WRONG_RUNNERS])
    golden.has_only("check_file/", WRONG_FILES)
    golden.has_only("check_policies/", POLICIES)


# --- files -----------------------------------------------------------------------------------------------


def test_a_file_is_told_without_its_cloud(monkeypatch: pytest.MonkeyPatch, pin: Pin) -> None:
    """Settings in words; what is ignored, unsupported, left unsaid."""
    hide_clouds(monkeypatch)
    result = check(FILES / "aws-mac.toml", "--offline")
    assert (result.exit_code, result.stderr) == (0, "")
    said = rows(result.stdout)
    assert [(label, len(lines)) for label, lines in said.items()] == [
        ("file", 1),
        ("runner", 1),
        ("unsupported", 1),
        ("note", 3),
        ("ignored", 1),
        ("plugin", 1),
        ("fleet", 1),
        ("connection", 1),
        ("at start", 1),
        ("policy", 1),
        ("state", 1),
        ("at end", 1),
        ("in the file", 10),
        ("as in GitLab", 5),
        ("by default", 1),
    ]
    assert said["runner"][0].startswith("macOS on AWS, 8 ")
    assert said["unsupported"][0].startswith("vm_isolation: ")
    assert [note.split()[0] for note in said["note"]] == ["state_storage", "preexisting", "the"]
    assert said["ignored"] == ["runners.url, runners.token, runners.instance"]
    assert re.findall(r"\d+", said["fleet"][0]) == ["4", "2"], "instances, and jobs at once on each"
    assert re.findall(r"\d+", said["policy"][0]) == ["2", "24", "0", "0"], "slots, and for how long"
    pin("aws-mac", result.stdout)


def test_the_guide_shows_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Line for line, of one of our examples of a config.toml."""
    hide_clouds(monkeypatch)
    said = check(FILES / "aws-docker.toml", "--offline").stdout
    said = said.replace(str(FILES / "aws-docker.toml"), "/etc/gitlab-runner/config.toml")
    assert f"```\n{said.replace(str(FILES), '/etc/gitlab-runner')}```" in GUIDE.read_text()


@pytest.mark.parametrize("name", sorted(path.stem for path in FILES.glob("*.toml")))
def test_no_secret_is_told(name: str) -> None:
    """Whatever is in the file."""
    runner = ["--runner", "zone b"] if name == "google-zones" else []
    result = check(FILES / f"{name}.toml", "--offline", *runner)
    assert result.exit_code == 0
    for secret in ("glrt-", "-password", "-secret"):
        assert secret not in result.output


def test_a_jobs_file_is_told_too(pin: Pin) -> None:
    """With how many jobs it has, instead of a runner."""
    result = check(QUICKSTART, "--offline")
    said = rows(result.stdout)
    assert said["jobs"][0].startswith("40, ")
    assert {"at start", "at end"} <= said.keys()
    assert "runner" not in said
    pin("quickstart", result.stdout.replace(str(QUICKSTART), "jobs.toml"))


def test_a_fleet_without_jobs_is_told_too(tmp_path: Path) -> None:
    """As a file that describes a fleet for others to use; nothing is planned for it."""
    (tmp_path / "fleet.toml").write_text('[autoscaler]\nplugin = "local"\nmax_instances = 2\n')
    result = check(tmp_path / "fleet.toml", "--offline")
    assert (result.exit_code, result.stderr) == (0, "")
    said = rows(result.stdout)
    assert said["jobs"] == ["none in this file"]
    assert "first minute" not in said


def test_every_setting_is_shown_with_where_it_comes_from(tmp_path: Path) -> None:
    """Each once; what a pool takes over comes from the fleet, and what may be secret is not shown."""
    (tmp_path / "jobs.toml").write_text(
        """
        [autoscaler]
        plugin = "local"
        capacity_per_instance = 2
        connector_config = { password = "s3cret", keepalive = "10s" }
        instance_ready_command = "login s3cret"
        [[autoscaler.pools]]
        name = "a"
        connector_config = { username = "me" }
        [[autoscaler.policy]]
        idle_time = "5m"
        [[jobs]]
        name = "x"
        script = "true"
        """
    )
    result = check(tmp_path / "jobs.toml", "--offline", "--settings")
    assert (result.exit_code, result.stderr) == (0, "")
    said = rows(result.stdout)
    assert "s3cret" not in result.output
    of_file, of_fleet, by_default = said["in the file"], said["of the fleet"], said["by default"]
    assert "instance_ready_command = (not shown)" in of_file
    assert {'policy[0].idle_time = "5m0s"', "connector_config.password = (not shown)"} <= set(of_file)
    assert 'pools[0].connector_config.username = "me"' in of_file
    assert {"pools[0].capacity_per_instance = 2", 'pools[0].connector_config.keepalive = "10s"'} <= set(of_fleet)
    assert {"pools[0].max_instances = 0", "delete_instances_on_shutdown = true"} <= set(by_default)
    names = [setting.partition(" = ")[0] for setting in (*of_file, *of_fleet, *by_default)]
    assert len(set(names)) == len(names)
    assert set(fields_dict(Autoscaler)) <= {re.split(r"[.[]", name)[0] for name in names}


def test_a_price_makes_a_cost() -> None:
    """It is in no file of ours."""
    said = rows(check(QUICKSTART, "--offline", "--price-per-hour", "0.25").stdout)
    assert said["first minute"][-1] == "they cost 1.00 per hour"


WRONG_RUNNERS: Sequence[tuple[Sequence[str], Sequence[str]]] = [
    (["google-zones.toml"], ["zone b", "zone c", "--runner"]),
    (["policies.toml", "--runner", "x"], ["x", "by the clock"]),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG_RUNNERS)
def test_a_wrong_choice_of_runner(golden: Golden, arguments: Sequence[str], words: Sequence[str]) -> None:
    """Is told with the names that there are."""
    result = check(FILES / arguments[0], *arguments[1:])
    assert (result.exit_code, result.stdout) == (2, "")
    assert all(word in result.stderr for word in words)
    golden(f"check_runner/{' '.join(arguments)}", result.stderr.replace(str(FILES), "<files>"))


WRONG_FILES: Mapping[str, tuple[str, Sequence[str], Sequence[str]]] = {
    "empty": ("", [], ["config.toml", "[[runners]]", "[autoscaler]"]),
    "a runner of a jobs file": ("[autoscaler]\n", ["--runner", "x"], ["config.toml", "jobs file"]),
    "no TOML": ("[autoscaler\n", [], ["invalid TOML at "]),
    "no such plugin": ("[[runners]]\nautoscaler.plugin = 'asw'\n", ["--offline"], ["'asw'", "fleeting.groups"]),
    "an unknown key": (
        "[[runners]]\nautoscaler.plugin = 'local'\nautoscaler.plugin_config.boot = 1\n",
        ["--offline"],
        ["`boot`", "runners[0].autoscaler.plugin_config"],
    ),
}
"""Texts, arguments, and words that must be in the error."""


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_wrong_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden, name: str) -> None:
    """Is told in one sentence, and nothing is reported."""
    hide_clouds(monkeypatch)
    text, arguments, words = WRONG_FILES[name]
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    result = check(path, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert all(word in result.stderr for word in words)
    assert result.stderr.count("\n") == 1
    said = result.stderr.replace(str(tmp_path), "<here>")
    golden(f"check_file/{name}", said.replace(f"installed: {', '.join(WITHOUT_CLOUDS)})", "installed: <groups>)"))


def test_a_missing_plugin_is_no_fault_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """But the cloud cannot be asked without it."""
    hide_clouds(monkeypatch)
    result = check(FILES / "google-docker.toml")
    assert result.exit_code == 1
    assert result.stderr.endswith("; pip install fleeting-gcp [FL120]\n")
    assert rows(result.stdout)["plugin"] == ["googlecloud"]


NOON = 1783512000.0
"""12:00 UTC on Wednesday, 8 July 2026."""


POLICIES: Mapping[str, tuple[Sequence[Policy], int | None]] = {
    "none": ((), None),
    "none that applies": ((Policy(periods=("* 3 * * *",), idle_count=1),), None),
    "two that apply": (
        (Policy(), Policy(periods=("* 12 * * *", "* 1 * * *"), timezone="", idle_count=2, idle_time=90)),
        1,
    ),
    "as many as are in use": (
        (Policy(scale_factor=0.5), Policy(scale_factor=2, scale_factor_limit=9, idle_count=3)),
        1,
    ),
}
"""Policies, and which of them applies at `NOON`."""


@pytest.mark.parametrize("name", POLICIES)
def test_policies_are_told_with_the_one_that_holds(golden: Golden, name: str) -> None:
    """In the order of the file, in words; and if none holds, what holds without."""
    policies, applies = POLICIES[name]
    told = [
        text for label, text in fleet_rows(Autoscaler(plugin="fake", policy=tuple(policies)), NOON) if label == "policy"
    ]
    assert len(told) == len(policies) + (applies is None)
    assert [n for n, text in enumerate(told) if text.endswith("; applies now")] == (
        [] if applies is None else [applies]
    )
    assert told[-1].startswith("none") == (applies is None)
    golden(f"check_policies/{name}", "\n".join(told))


def test_fixed_hosts_are_given_back() -> None:
    """They are not removed, and the file need not say how many there are."""

    def told(fleet: Autoscaler) -> Mapping[str, str]:
        return dict(fleet_rows(fleet, NOON))

    static = told(Autoscaler(plugin="static"))
    assert static["at end"] == "hosts are given back"
    assert static["fleet"].startswith("as many instances as the group allows; ")
    assert told(Autoscaler(plugin="fake"))["at end"] == "instances are removed"
    assert told(Autoscaler(plugin="static", delete_instances_on_shutdown=False))["at end"] == "instances stay"


# --- clouds ----------------------------------------------------------------------------------------------


class Talk:
    """What a look says."""

    def __init__(self) -> None:
        """Begin without a word."""
        self.file = io.StringIO()
        self.report = Paragraphs(Console(file=self.file, width=100))

    @property
    def text(self) -> str:
        """All of it; how long dialling took is ``<time>``."""
        return re.sub(r"(?m)^(dialled .* in )[\d.]+s$", r"\1<time>", self.file.getvalue())

    @property
    def rows(self) -> dict[str, list[str]]:
        """By label."""
        return rows(self.file.getvalue())


async def look(group: FakeGroup, talk: Talk, **settings: Any) -> int:  # noqa: ANN401  (the fields of an `Autoscaler`)
    """Look at a group."""
    fleet = Autoscaler(**{"plugin": "fake", "max_instances": 8, "policy": (Policy(idle_count=3),), **settings})
    return await _Look(fleet, [group], talk.report, group.dial).run()


def cloud_with(instances: int) -> FakeCloud:
    """A cloud in which somebody else has made instances."""
    cloud = FakeCloud(max_size=20)
    cloud.launch(instances)
    return cloud


@pytest.mark.anyio
async def test_an_empty_group_would_be_filled(pin: Pin) -> None:
    """The decision and its reason, and nothing to dial."""
    cloud, talk = FakeCloud(max_size=20), Talk()
    assert await look(FakeGroup(cloud), talk) == 0
    assert talk.rows["group"] == [f"{cloud.identity}, at most 20 instances"]
    assert talk.rows["instances"] == ["none"]
    assert talk.rows["dialled"][0].startswith("none: ")
    assert talk.rows["would do"] == ["request 3 instances"]
    assert "3 to keep idle" in talk.rows["because"][0]
    assert "at start" not in talk.rows
    pin("an empty group", talk.text)
    assert cloud.size == 0


@pytest.mark.anyio
@pytest.mark.parametrize(("wanted", "advised"), [(0, False), (20, False), (21, True)])
async def test_a_ceiling_below_ours_is_told(pin: Pin, wanted: int, *, advised: bool) -> None:
    """What the cloud does not let the group have never comes, whatever the file says."""
    talk = Talk()
    assert await look(FakeGroup(FakeCloud(max_size=20)), talk, max_instances=wanted) == 0
    advice = talk.rows.get("advice", [])
    assert [re.findall(r"\d+", sentence) for sentence in advice] == ([["20", "21"]] if advised else [])
    if advised:
        pin("a ceiling below ours", "\n".join(advice))


@pytest.mark.anyio
async def test_a_group_with_instances_is_dialled(pin: Pin) -> None:
    """One of them; they count, and what becomes of them at the start is told."""
    cloud, talk = cloud_with(2), Talk()
    assert await look(FakeGroup(cloud), talk) == 0
    first, second = sorted(cloud.alive)
    assert talk.rows["instances"] == [f"2: {first} running, {second} running"]
    assert talk.rows["dialled"][0].startswith(f"{first} over fake in ")
    assert talk.rows["would do"] == ["request 1 instance"]
    assert "unless" in talk.rows["at start"][0]
    pin("a group with instances", talk.text)


@pytest.mark.anyio
async def test_a_look_changes_nothing() -> None:
    """No lock, no journal, no increase, no decrease, no command on the instance."""
    cloud = cloud_with(6)
    before = cloud.alive
    storage = StateStorage(dir="/nonexistent/state")
    assert await look(FakeGroup(cloud), Talk(), state_storage=storage, delete_instances_on_shutdown=True) == 0
    assert cloud.alive == before
    assert {call.method for call in cloud.calls} <= {"init", "update", "connect_info", "dial", "heartbeat", "shutdown"}


@pytest.mark.anyio
async def test_what_would_be_removed_is_named(pin: Pin) -> None:
    """Idle instances that nothing needs."""
    cloud, talk = cloud_with(2), Talk()
    storage = StateStorage(enabled=False)
    assert await look(FakeGroup(cloud), talk, policy=(), state_storage=storage) == 0
    first, second = sorted(cloud.alive)
    assert talk.rows["would do"] == ["remove 2 instances"]
    assert f"would remove {first}, {second}" in talk.rows["because"][0]
    assert "unless" not in talk.rows["at start"][0], "no state is kept"
    pin("what would be removed", talk.text)


@pytest.mark.anyio
async def test_many_instances_are_counted(pin: Pin) -> None:
    """Ten are named, the rest is a number; what limits growth is in the reason."""
    cloud, talk = cloud_with(12), Talk()
    settings = {"max_instances": 20, "policy": (Policy(idle_count=18),)}
    assert await look(FakeGroup(cloud), talk, scale_throttle=ScaleThrottle(limit=1, burst=2), **settings) == 0
    assert talk.rows["instances"][0].startswith("12: ")
    assert talk.rows["instances"][0].endswith(", 2 more")
    assert talk.rows["would do"] == ["request 2 instances"]
    assert ": scale_throttle" in talk.rows["because"][0]
    pin("many instances", talk.text)


class Advising(FakeGroup):
    """A group that found something to be changed."""

    async def init(self, settings: Settings) -> GroupInfo:
        """Open it."""
        return evolve(await super().init(settings), advice=("turn instance protection on",))


@pytest.mark.anyio
async def test_what_the_cloud_says_is_passed_on() -> None:
    """Advice of the plugin, and problems of the cloud."""
    cloud, talk = FakeCloud(), Talk()
    cloud.run_out("no m5.large in zone a")
    assert await look(Advising(cloud), talk) == 0
    assert talk.rows["advice"] == ["turn instance protection on"]
    assert talk.rows["problem"] == ["no m5.large in zone a"]


@pytest.mark.anyio
async def test_a_cloud_that_refuses() -> None:
    """Its own word comes out."""
    cloud = FakeCloud()
    cloud.faults.init.once(Fault(refuse=GroupRefused("the group scales by itself")))
    with pytest.raises(GroupRefused, match="scales by itself"):
        await look(FakeGroup(cloud), Talk())
    cloud.faults.update.always(UpdateFault(refuse=AuthFailed("no permission to describe the group")))
    with pytest.raises(AuthFailed, match="no permission"):
        await look(FakeGroup(cloud), Talk())


@pytest.mark.anyio
async def test_a_view_that_came_late_is_not_decided_on() -> None:
    """What the scaler did not see would be missing from its decision."""
    cloud = cloud_with(2)
    cloud.faults.update.once(UpdateFault(refuse=ProviderError("try again")))
    with pytest.raises(ProviderError, match="second try"):
        await look(FakeGroup(cloud), Talk())


@pytest.mark.anyio
@pytest.mark.parametrize("error", [Unreachable("nothing answers"), ConnectionRefusedError("port 22")])
async def test_an_instance_that_cannot_be_dialled(
    error: FleetingError | OSError, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1, and the decision is told all the same."""
    cloud, talk = cloud_with(1), Talk()
    cloud.faults.dial.once(Fault(refuse=error))
    assert await look(FakeGroup(cloud), talk) == 1
    (instance,) = cloud.alive
    message, _, do = capsys.readouterr().err.partition("; ")
    assert message == f"error: {instance} cannot be dialled: {error}"
    assert do.endswith("[FL400]\n")
    assert talk.rows["would do"] == ["request 2 instances"]


@pytest.mark.anyio
async def test_beside_a_manager(tmp_path: Path) -> None:
    """A look at a group that is managed, locked, and in use."""
    path = tmp_path / "config.toml"
    path.write_text(
        f"""
        [[runners]]
        [runners.autoscaler]
        plugin = "local"
        plugin_config = {{ directory = "{tmp_path / "group"}" }}
        state_storage = {{ enabled = true }}
        delete_instances_on_shutdown = true
        """
    )
    runner, talk = config.load(path), Talk()
    async with runner.scaler() as scaler, scaler.acquire("job-1") as lease:
        assert await _Look(runner.autoscaler, runner.groups(), talk.report).run() == 0
        assert lease.instance in talk.rows["dialled"][0]
        async with lease.dial() as connection:
            assert (await connection.run("true")).ok


def test_the_whole_command(state_home: Path) -> None:
    """A group that is not there yet is looked at, and not made."""
    result = check(QUICKSTART)
    assert (result.exit_code, result.stderr) == (0, "")
    assert list(rows(result.stdout))[-3:] == ["would do", "because", "first minute"]
    assert not state_home.exists()


def test_what_is_logged_during_a_look_is_shown_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    """A group with advice logs a warning; that had the command end, once a log had to be a file of our own."""
    with logging_to(None):
        logging.getLogger("fleeting.aws").warning("group_advice")
    assert capsys.readouterr() == ("", "")


def test_a_log_that_cannot_be_opened_ends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is opened for the first line, which is logged in the middle of other work."""
    with logging_to(tmp_path / "gone" / "fleet.log"):
        logging.getLogger("fleeting.aws").warning("group_advice")
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_texts_are_wrapped_beside_their_labels() -> None:
    """Nothing runs over the edge, and every line but the first of a row is indented."""
    file = io.StringIO()
    report = Paragraphs(Console(file=file, width=40, force_terminal=True, color_system=None, no_color=True))
    report.add(("label", "a sentence that is longer than the line is wide"), ("label", "[bold]another[/bold] \x1b[2J"))
    report.add(("other", ""))
    assert file.getvalue().splitlines() == [
        "label        a sentence that is longer",
        "             than the line is wide",
        "             [bold]another[/bold]",
        "",
        "other        ",
    ]
