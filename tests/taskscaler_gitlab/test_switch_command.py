"""``taskscaler-gitlab switch``: what is refused, and how, and what is on disk of a switch."""

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from attrs import evolve, fields
from click.testing import CliRunner, Result

from fleeting.testing import FakeCloud
from taskscaler_gitlab._paused import is_paused
from taskscaler_gitlab.cli import main
from taskscaler_gitlab.switching._daemons import DaemonColour
from taskscaler_gitlab.switching._file import ColourSettings, SwitchSettings, read_switch_file
from taskscaler_gitlab.switching._kept import KeptSwitch
from taskscaler_gitlab.switching._switch import Life, Refused, Step, Stuck, Switch, abort
from tests.taskscaler.daemons import daemon

CONFIG = """
{top}
[[runners]]
name = "{name}"
url = "http://127.0.0.1:9"
token = "glrt-x"
executor = "instance"
{more}
[runners.autoscaler]
plugin = "local"
plugin_config = {{ directory = "{fleet}" }}
[runners.autoscaler.state_storage]
enabled = true
dir = "{here}/state"
"""


def write(here: Path, *, name: str, path: Path | None = None, fleet: str = "", top: str = "", more: str = "") -> None:
    """Write a colour's configuration."""
    place = here / f"fleet-{fleet or name}"
    path = path or here / f"{name}.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(CONFIG.format(name=name, fleet=place, here=here, top=top, more=more))


def colours(here: Path, *, blue: str = 'config = "blue.toml"', green: str = 'config = "green.toml"') -> Path:
    """Write the file with both."""
    path = here / "colours.toml"
    own = f'[switch]\nstate_dir = "{here}/switch"\n'
    path.write_text(f"{own}[colours.blue]\n{blue}\n[colours.green]\n{green}\n")
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a file and two colours that it is right about; none of them runs."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("blue", "green"):
        write(tmp_path, name=name)
    colours(tmp_path)
    return tmp_path


def command(here: Path, *options: str) -> Result:
    """Run it."""
    return CliRunner().invoke(main, ["switch", str(here / "colours.toml"), *options])


def error(done: Result) -> str:
    """Its only line on standard error."""
    (line,) = done.stderr.splitlines()
    return str(line)


@pytest.mark.parametrize(
    ("green", "says"),
    [
        ('config = "gren.toml"', "is not a file"),
        ("", "missing key `config` in [colours.green]"),
        ('config = ""', "colours.green.config: expected a config.toml, found nothing"),
        ('config = "green.toml"\nstart = [""]', "expected a program and its arguments"),
        ('config = "green.toml"\nsocket = "green.sock"', "expected an absolute path"),
        ('config = "green.toml"\n[colours.red]\nconfig = "red.toml"', "unknown key `red` in [colours]"),
        ('config = "blue.toml"', "the runner of [colours.blue] again"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(here: Path, green: str, says: str) -> None:
    """With the key that it is about; nothing is looked at."""
    colours(here, green=green)
    done = command(here, "--to", "green")
    assert done.exit_code == 2, done.output
    assert says in error(done)
    assert not (here / "switch").exists()


def test_what_both_colours_have_is_a_mistake(here: Path) -> None:
    """The socket, the directory for jobs, the address of the metrics: the second could not start."""
    for name in ("blue", "green"):
        state = f'[runners.taskscaler]\nstate_dir = "{here}/jobs"'
        path = here / name / "config.toml"
        write(here, name=name, path=path, top='listen_address = "127.0.0.1:9252"', more=state)
    colours(here, blue='config = "blue/config.toml"', green='config = "green/config.toml"')
    done = command(here, "--to", "green")
    assert done.exit_code == 2, done.output
    assert len(done.stderr.splitlines()) == 3
    assert f"{here}/run/taskscaler/config.sock, as for blue; set `socket`" in done.stderr
    assert f"keeps its jobs in {here}/jobs, as blue does; set another state_dir" in done.stderr
    assert "on a port of its own" in done.stderr


def test_a_mistake_in_a_configuration_is_that_files(here: Path) -> None:
    """As `run` has it."""
    path = here / "green.toml"
    path.write_text(path.read_text().replace("executor", "executer"))
    done = command(here, "--to", "green")
    assert (done.exit_code, f"{path}: " in done.stderr) == (2, True), done.output


@pytest.mark.parametrize("options", [(), ("--to", "green", "--abort"), ("--abort", "--status"), ("--to", "red")])
def test_one_thing_is_wanted(here: Path, options: tuple[str, ...]) -> None:
    """A colour that there is, or the way back, or a look."""
    done = command(here, *options)
    assert done.exit_code == 2
    assert "use one of --to, --abort and --status" in error(done) or "'red' is not one of 'blue', 'green'" in error(
        done
    )


def test_groups_with_one_identity_are_refused(here: Path) -> None:
    """The new colour's fleet would be deleted with the old one's."""
    write(here, name="green", fleet="blue")
    done = command(here, "--to", "green")
    assert done.exit_code == 1, done.output
    assert "both colours have the group " in error(done)
    assert "give each a fleet of its own" in error(done)
    assert not (here / "switch" / "switch.json").exists()


def test_where_nothing_runs_there_is_nothing_to_switch(here: Path) -> None:
    """It says what to start; a look says the same of both."""
    done = command(here, "--to", "green")
    assert done.exit_code == 1, done.output
    start = f"`taskscaler-gitlab run {here}/green.toml`"
    why = "blue does not run, so there is nothing to switch from; start blue, or start green itself with"
    assert error(done) == f"error: {why} {start}"
    looked = command(here, "--status")
    assert looked.stdout.splitlines() == ["no switch was made", "blue does not run", "green does not run"]
    assert command(here, "--abort").exit_code == 1


def test_there_is_one_switch_at_a_time(here: Path) -> None:
    """The second says which process has it; a look is always allowed."""
    with KeptSwitch(here / "switch").alone():
        done = command(here, "--to", "green")
        assert (done.exit_code, "another `switch` (process" in error(done)) == (1, True)
        assert command(here, "--status").exit_code == 0


def test_a_switch_that_is_under_way_says_how_to_go_on(here: Path) -> None:
    """In its status, and when something else is wanted."""
    file = read_switch_file(here / "colours.toml")
    kept = KeptSwitch(file.directory)
    with kept.alone():
        kept.write(Switch(old="blue", new="green", configs=file.configs).at(Step.POLLING))
    said = command(here, "--status").stdout.splitlines()
    assert said[0].startswith("green asks for jobs, and GitLab answers it (for ")
    assert said[-1] == f"next: taskscaler-gitlab switch {here}/colours.toml --to green, or --abort"
    assert "finish it with --to green, or go back with --abort" in error(command(here, "--to", "blue"))
    write(here, name="green", path=here / "other.toml")
    colours(here, green='config = "other.toml"')
    for option in (("--to", "green"), ("--abort",)):
        done = command(here, *option)
        assert done.exit_code == 1
        assert f"the configurations have changed since the switch began (blue had {here}/blue.toml" in error(done)


def test_each_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    """By its user alone; whole, or as before."""
    kept = KeptSwitch(tmp_path / "switch")
    with kept.alone():
        assert kept.read() is None
        for step in Step:
            switch = Switch(old="green", new="blue", configs={"blue": "/b", "green": "/g"}, begun_at=1.5).at(step)
            turned = abort(switch, 7.0) if switch.can_be_aborted else evolve(switch, changed_at=9.0)
            for each in (switch, turned):
                kept.write(each)
                assert kept.read() == each
    assert kept.path.stat().st_mode & 0o777 == 0o600
    assert kept.directory.stat().st_mode & 0o777 == 0o700


BLUE_TO_RED = json.dumps({
    "version": 1, "old": "blue", "new": "red", "step": "begun", "reached": "begun", "is_aborting": False,
    "begun_at": 1.0, "changed_at": 1.0,
})  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "version None"),
        ('{"version": 2}', "it is of version 2, and this program writes version 1"),
        ('{"version": 1, "old": "blue"}', "cannot be read"),
        (BLUE_TO_RED, "it is from blue to red"),
        (BLUE_TO_RED.replace("red", "blue"), "it is from blue to blue"),
    ],
)
def test_a_state_that_cannot_be_read_is_not_guessed(tmp_path: Path, text: str, says: str) -> None:
    """One sentence names the file, and what to do."""
    kept = KeptSwitch(tmp_path)
    kept.path.write_text(text)
    kept.path.chmod(0o600)
    with pytest.raises(Refused, match="remove the file, and begin again") as caught:
        kept.read()
    assert says in str(caught.value)
    assert str(caught.value).count("\n") == 0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("start", "says"),
    [
        (("/nowhere/start",), "/nowhere/start cannot be run (No such file or directory); correct `start`"),
        (("sh", "-c", "echo no such unit; exit 4"), "exit 4 has ended with status 4; it says: no such unit"),
        (("sh", "-c", "(while test -e stays; do sleep 0.1; done) & echo no such unit; exit 4"), "says: no such unit"),
        ((), "green does not start: it has ended with status"),
    ],
)
async def test_a_colour_that_does_not_start_says_why(
    here: Path, monkeypatch: pytest.MonkeyPatch, start: tuple[str, ...], says: str
) -> None:
    """The command, or what the service has printed; it would have been paused.

    What the command leaves in the background may keep its output open.
    """
    monkeypatch.chdir(here)
    (here / "stays").touch()
    (here / "fleet-green").write_text("in the way")
    file = read_switch_file(here / "colours.toml")
    colour = DaemonColour(evolve(file.colours["green"], start=start), here / "switch" / "green.log", 60.0, print)
    with pytest.raises(Stuck) as caught:
        await colour.start()
    assert says in str(caught.value)
    if not start:
        assert f"{here}/switch/green.log ends with: " in str(caught.value)
    (here / "stays").unlink()
    assert is_paused(file.colours["green"].directory)
    assert (await colour.look(thoroughly=False)).life is Life.AWAY


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("fleet.toml", "runs a release that cannot be paused, or is no `taskscaler-gitlab run`; start it again"),
        ("blue.toml", "is that of a daemon for fleet.toml, not of blue with"),
    ],
)
async def test_a_daemon_in_the_place_of_a_colour_is_left_alone(here: Path, config: str, says: str) -> None:
    """Whether it is another fleet's, or one that gets no jobs from elsewhere."""
    with TemporaryDirectory() as sockets:
        socket = Path(sockets) / "s"
        write(here, name="blue", path=here / config)
        colours(here, blue=f'config = "{config}"\nsocket = "{socket}"')
        colour = DaemonColour(read_switch_file(here / "colours.toml").colours["blue"], here / "log", 60.0, print)
        async with daemon(socket, FakeCloud()):
            for look in (colour.look(thoroughly=True), colour.status()):
                with pytest.raises(Refused) as caught:
                    await look
                assert says in str(caught.value)


@pytest.mark.anyio
async def test_a_fleet_that_nobody_can_see_keeps_a_colour_that_never_ran(here: Path) -> None:
    """Only while it is aborted: there was no fleet if it could not be opened; a warning says so."""
    (here / "fleet-green").write_text("in the way")
    said: list[str] = []
    colour = DaemonColour(read_switch_file(here / "colours.toml").colours["green"], here / "log", 60.0, said.append)
    with pytest.raises(Exception, match="fleet-green"):
        await colour.look(thoroughly=True)
    colour.may_be_unseen = True
    assert (await colour.look(thoroughly=True)).left == 0
    assert "warning: nobody can see whether green has instances" in said[0]


def test_the_guide_has_every_step_and_every_key() -> None:
    """In their order."""
    guide = (Path(__file__).parents[2] / "docs/guides/blue-green.md").read_text()
    steps, colour, own = (re.findall(r"^\| (`\w+`) \|", each, re.MULTILINE) for each in _tables(guide))
    assert steps == [f"`{step.value}`" for step in Step]
    assert colour == [f"`{each.name}`" for each in fields(ColourSettings)]
    assert own == [f"`{each.name}`" for each in fields(SwitchSettings)]


def _tables(guide: str) -> list[str]:
    heads = ("| step |", "| key of `[colours.blue]`", "| key of `[switch]`")
    return [guide.partition(head)[2].partition("\n\n")[0] for head in heads]


def test_the_version_is_in_the_file(tmp_path: Path) -> None:
    """For programs to come."""
    kept = KeptSwitch(tmp_path)
    kept.write(Switch(old="blue", new="green"))
    assert json.loads(kept.path.read_text())["version"] == 1
