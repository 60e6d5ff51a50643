"""The page for programs that drive the commands says of each what is true; so does the index for such readers."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
from attrs import frozen
from click.testing import CliRunner

import fleeting.cli
import taskscaler.cli
from docs.site import stage
from fleeting import LoopClock, Observed, Settings, State, dial
from fleeting.cli._group import OpenGroup, _as_dict
from fleeting.runtime import GroupDriver
from fleeting.testing import FakeCloud, FakeGroup
from taskscaler._recorded_run import read_run
from taskscaler.cli._timeline import figures_as_json
from taskscaler.report import figure_out, lay_out

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/agents.md").read_text()
OLD = ROOT / "tests/taskscaler/old_results"
COMMANDS: Mapping[str, click.Command] = {
    f"{program} {name}": command
    for program, group in {"taskscaler": taskscaler.cli.main, "fleeting": fleeting.cli.main}.items()
    for name, command in group.commands.items()
    if not command.hidden
}


@frozen
class Row:
    """What the page says of a command."""

    changes: str
    prints_json: str
    statuses: str


ROWS = {
    name: Row(*cells)
    for name, *cells in re.findall(
        r"^\| `((?:taskscaler|fleeting) [\w-]+)` \| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE
    )
}
"""The table of the commands."""


def keys_of(command: str) -> set[str]:
    """The keys of what a command prints as JSON."""
    (cell,) = re.findall(rf"^\| `{re.escape(command)}` \| .+? \| (.+?) \|$", PAGE, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", cell))


def test_every_command_has_a_row() -> None:
    """A new command is safe or not, and a program has to know that."""
    assert sorted(ROWS) == sorted(COMMANDS)
    assert {row.changes for row in ROWS.values()} <= {"nothing", "files", "instance", "fleet"}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_says_what_the_command_says(name: str) -> None:
    """Whether it prints JSON, and the numbers of its exit statuses, as its own help has them."""
    row, command = ROWS[name], COMMANDS[name]
    assert row.prints_json.startswith("yes") == any(parameter.name == "as_json" for parameter in command.params)
    if command.epilog:
        assert set(re.findall(r"\b\d+\b", row.statuses)) == set(re.findall(r"\b\d+\b", command.epilog))
    else:
        assert row.statuses.startswith("0: ")


def test_the_json_is_all_described() -> None:
    """Every command that prints it."""
    described = set(re.findall(r"`((?:taskscaler|fleeting) [\w-]+) --json`(?=, `| \|)", PAGE))
    assert described == {name for name, row in ROWS.items() if row.prints_json.startswith("yes")}


def test_the_keys_of_a_doctor_and_of_an_explanation(tmp_path: Path) -> None:
    """As they are printed."""
    fleet = tmp_path / "fleet.toml"
    fleet.write_text('[autoscaler]\nplugin = "local"\n')
    found = CliRunner().invoke(taskscaler.cli.main, ["doctor", str(fleet), "--offline", "--json"])
    assert json.loads(found.stdout).keys() == keys_of("taskscaler doctor --json")
    explained = CliRunner().invoke(taskscaler.cli.main, ["explain", str(recorded()), "--json"])
    assert keys_of("taskscaler explain --json") <= json.loads(explained.stdout).keys()


def recorded() -> Path:
    """Results that a release has left."""
    return next(path.parent for path in sorted(OLD.rglob("*.jsonl")) if (path.parent / "results.json").exists())


def test_the_keys_of_a_report() -> None:
    """As they are printed."""
    run = read_run(recorded())
    figures = figure_out(run, lay_out(run), price_per_hour=None)
    assert figures_as_json(figures, None).keys() == keys_of("taskscaler report --json")


@pytest.mark.anyio
async def test_the_keys_of_an_instance() -> None:
    """As they are printed."""
    clock = LoopClock()
    driver = GroupDriver(
        FakeGroup(FakeCloud()), pool="", connector=Settings(owner="x", clock=clock).connector, dial=dial
    )
    info = await driver.open(Settings(owner="x", clock=clock, observe_only=True))
    group = OpenGroup(driver=driver, clock=clock, info=info)
    assert (await _as_dict(group, "i-1", Observed(state=State.CREATING))).keys() == keys_of("fleeting list --json")


# --- llms.txt --------------------------------------------------------------------------------------------

INDEX = stage.index_for_programs((ROOT / stage.FRONT).read_text(), stage.places(ROOT))


def test_the_index_is_as_its_readers_expect() -> None:
    """A title, a summary as a quotation, and sections with lists of links; what is for programs comes first."""
    title, summary, *_ = INDEX.split("\n\n")
    assert re.fullmatch(r"# .+", title)
    assert re.fullmatch(r"> .+", summary)
    assert re.findall(r"^## (.+)$", INDEX, re.MULTILINE)[0] == "For programs that run the commands"
    assert "](docs/guides/agents.md)" not in INDEX


def test_the_index_leads_to_every_page_as_text() -> None:
    """Each once at least, where it is published; and to nothing that is not there."""
    links = re.findall(r"\]\((\S+?)\)", INDEX)
    raw = f"{stage.HOME}/raw/main/"
    assert all(link.startswith(raw) for link in links)
    paths = {link.removeprefix(raw).partition("#")[0] for link in links}
    assert all((ROOT / path).is_file() for path in paths)
    assert {path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*/*.md")} <= paths
    assert {path.relative_to(ROOT).as_posix() for path in ROOT.glob("packages/*/README.md")} <= paths
