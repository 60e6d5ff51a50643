"""The site's pages: what is made of the repository's and of the code. That Sphinx takes them, `nox -s docs` shows."""

import inspect
from enum import Enum
from pathlib import Path
from posixpath import dirname, join, normpath

import attrs
import pytest
from attrs import field, frozen

from docs.site import api, stage
from docs.site.fields import Field, fields
from fleeting import Duration
from tests import pages

ROOT = Path(__file__).parents[2]
PLACES = stage.places(ROOT)


@pytest.fixture(scope="session")
def site() -> dict[str, str]:
    """Every page of the site, as Sphinx gets it."""
    staged = {to: stage.stage((ROOT / source).read_text(), source, PLACES) for source, to in PLACES.items()}
    front = staged["index.md"] + api.index() + stage.index(PLACES)
    return {**staged, **dict(api.pages()), "index.md": front}


def test_every_link_of_the_site_leads_to_a_page_or_a_picture(site: dict[str, str]) -> None:
    """Or elsewhere; and what it leads to in the repository is there."""
    lost = []
    for place, text in site.items():
        for link in pages.links(text):
            path, _, heading = link.partition("#")
            target = normpath(join(dirname(place), path)) if path else place
            if link.startswith(stage.HOME):
                there = (
                    ROOT / path.removeprefix(f"{stage.HOME}/blob/main/").removeprefix(f"{stage.HOME}/tree/main/")
                ).exists()
            elif "://" in link:
                there = True
            elif target in site:
                there = not heading or heading in pages.anchors(site[target]) or f"{{#{heading}}}" in site[target]
            else:
                there = (ROOT / "docs" / target).is_file() and target.startswith("pictures/")
            lost += [] if there else [f"{place}: {link}"]
    assert lost == []


def test_every_page_is_in_the_navigation_once(site: dict[str, str]) -> None:
    """A page in two places of it would be open in both; one in none is found by search only."""
    listed = [
        f"{line}.md"
        for table in stage.navigation(site["index.md"])
        for line in table.splitlines()
        if line and not line.startswith(("`", ":"))
    ]
    assert sorted(listed) == sorted(site.keys() - {"index.md"})


def test_the_front_page_says_what_this_is_and_what_it_is_not(site: dict[str, str]) -> None:
    """In its first two paragraphs, and in the README's."""
    for text in (
        site["index.md"],
        (ROOT / "README.md").read_text(),
        (ROOT / "packages/taskscaler/README.md").read_text(),
    ):
        _, what, what_not, *_ = text.split("\n\n")
        assert "grows and shrinks" in what or "just large enough" in what
        assert "not" in what_not
        assert {"Kubernetes", "service"} <= {word.strip(".,") for word in what_not.split()}


@pytest.mark.parametrize(
    ("link", "source", "led"),
    [
        ("guides/aws.md#settings", "docs/README.md", "guides/aws.md#settings"),
        ("../../packages/fleeting-aws/README.md", "docs/guides/aws.md", "../packages/fleeting-aws.md"),
        (f"{stage.HOME}/blob/main/docs/guides/aws.md", "packages/fleeting-aws/README.md", "../guides/aws.md"),
        ("../reference/errors.md#FL302", "docs/guides/aws.md", "../reference/errors.md#fl302"),
        ("../pictures/error.svg", "docs/guides/aws.md", "../pictures/error.svg"),
        ("../../examples/puddle", "docs/guides/aws.md", f"{stage.HOME}/tree/main/examples/puddle"),
        ("noxfile.py", "CONTRIBUTING.md", f"{stage.HOME}/blob/main/noxfile.py"),
        ("#settings", "docs/guides/aws.md", "#settings"),
        ("https://docs.python.org/3/", "docs/guides/aws.md", "https://docs.python.org/3/"),
    ],
)
def test_links_lead_where_their_pages_are(link: str, source: str, led: str) -> None:
    """To the page on the site if there is one, else to the repository where it is published."""
    assert stage.lead(link, source, PLACES) == led


def test_blocks_of_code_stay_as_they_are() -> None:
    """What looks like a link there is part of a program."""
    text = "[a](b.md)\n\n```python\nx = y[0](b.md)\n```\n"
    assert stage.stage(text, "docs/guides/aws.md", PLACES).endswith("```python\nx = y[0](b.md)\n```\n")


def test_a_diagram_of_states_becomes_a_table() -> None:
    """The site draws none."""
    diagram = "```mermaid\nstateDiagram-v2\n    [*] --> ready: seen\n    ready --> [*]\n```"
    table = "| from | when | to |\n|---|---|---|\n|  | seen | ready |\n| ready |  |  |"
    assert stage.stage(diagram, "docs/guides/aws.md", PLACES) == table


class Word(Enum):
    """Of a file."""

    YES = "yes"


@frozen
class Example:
    """Settings."""

    required: str
    """Above, with a | in it."""

    wait: Duration = field(default=90.0)
    """Seconds: more than one."""

    word: Word | None = Word.YES
    many: tuple[str, ...] = ("a",)
    made: dict[str, str] = field(factory=dict)
    on: bool = True
    _private: int = 0


def test_fields_are_read_with_all_that_is_known_of_them() -> None:
    """Types as they are written, defaults, and the literals below them."""
    assert list(fields(Example)) == [
        Field("required", "str", str, attrs.NOTHING, False, "Above, with a | in it."),
        Field("wait", "Duration", None, 90.0, False, "Seconds: more than one."),
        Field("word", "Word | None", Word, Word.YES, False, ""),
        Field("many", "tuple[str, ...]", None, ("a",), False, ""),
        Field("made", "dict[str, str]", None, None, True, ""),
        Field("on", "bool", bool, True, False, ""),
    ]


def test_settings_are_shown_as_files_have_them() -> None:
    """Words in quotes, durations with their unit, truth in lower case."""
    assert api.rows(list(fields(Example))).splitlines()[2:] == [
        "| `required` | string | required | Above, with a \\| in it. |",
        '| `wait` | duration | `"90s"` | Seconds: more than one. |',
        '| `word` | `"yes"` | `"yes"` |  |',
        '| `many` | list of strings | `["a"]` |  |',
        "| `made` | table of strings |  |  |",
        "| `on` | true or false | `true` |  |",
    ]


@pytest.mark.parametrize("module", api.PUBLIC)
def test_every_public_field_is_described(module: str) -> None:
    """By a sentence below it, which the reference shows."""
    classes = (value for _, value in api.exported(module) if inspect.isclass(value) and attrs.has(value))
    assert [f"{each.__name__}.{part.name}" for each in classes for part in fields(each) if not part.meaning] == []


@pytest.mark.parametrize("table", api.TABLES, ids=lambda table: table.place)
def test_every_setting_is_described(table: api.Table) -> None:
    """The same, for those who write files."""
    assert [part.name for part in table.fields if not part.meaning] == []
