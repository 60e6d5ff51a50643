"""The picture of a timeline: the same each time, sound whatever things are called, legible however many there are."""

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting.config import parse_duration
from taskscaler._names import shortened
from taskscaler._recorded_run import recorded
from taskscaler.batch import Begun, JobState
from taskscaler.report import Bar, Phase, Row, Span, Timeline, figure_out
from tests.later import Later

if TYPE_CHECKING:
    import matplotlib as mpl

    from taskscaler.report import _draw as picture
else:
    mpl = Later("matplotlib")
    picture = Later("taskscaler.report._draw")

START = 1_700_000_000.0
NOTHING = recorded(Path("results"), [Begun(at=START, jobs=())], running=False)
TEXT = "{http://www.w3.org/2000/svg}text"


def timeline(instances: int, *, slots: int = 2, name: str = "results", job: str = "job") -> Timeline:
    """A fleet that grows to some size, works and goes, with something of every kind."""
    random, rows = Random(1), []
    for number in range(instances):
        began = START + number * 100 / instances
        ready, leaves, gone = began + 40, began + 500, began + 520
        phases = ((Phase.BOOT, began, ready), (Phase.READY, ready, leaves), (Phase.LEAVING, leaves, gone))
        spans = tuple(Span(phase=phase, began=at, ended=until) for phase, at, until in phases)
        bars = []
        for slot in range(slots):
            at = ready
            while at < leaves - 100:
                until = at + random.uniform(10, 100)
                state = random.choice(list(JobState))
                bars.append(Bar(job=job, slot=slot, began=at, ended=until, number=random.choice([1, 2]), state=state))
                at = until
        rows.append(
            Row(
                pool="p",
                instance=f"i-{number:04}",
                slots=slots,
                spans=spans,
                bars=tuple(bars),
                lost=not number,
                left=False,
            )
        )
    queue = ((START, 7), (START + 100, 0))
    return Timeline(name=name, began=START, ended=START + 620, rows=tuple(rows), queue=queue)


def pictures(drawn: Timeline) -> tuple[ET.Element, bytes]:
    """Draw, and give the SVG as a tree and the PNG as it is."""
    figures = figure_out(NOTHING, drawn)
    by_format = picture.draw(drawn, figures)
    return ET.fromstring(by_format["svg"]), by_format["png"]  # noqa: S314  (we have just written it)


def texts(svg: ET.Element) -> list[str]:
    """All that is written in a picture."""
    return ["".join(each.itertext()) for each in svg.iter(TEXT)]


def test_the_same_timeline_gives_the_same_picture() -> None:
    """Byte for byte, whatever its user has set for other pictures; and these settings stay."""
    drawn = timeline(5)
    figures = figure_out(NOTHING, drawn)
    once = picture.draw(drawn, figures)
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert picture.draw(drawn, figures) == once
        assert mpl.rcParams["font.size"] == 30
    assert once["png"].startswith(b"\x89PNG")
    assert b"<dc:date>" not in once["svg"]


def test_everything_is_named() -> None:
    """Instances, jobs where there is room, the times, and in the legend each kind that occurs."""
    written = texts(pictures(timeline(5))[0])
    assert {"results", "i-0000", "i-0004", "job", "waiting jobs", "0", "2m", "10m"} <= set(written)
    assert {"boot", "idle", "removal", "job that failed", "job that lost its instance", "lost", "tried again"} <= set(
        written
    )
    assert "nobody watched" not in written


@pytest.mark.parametrize(("instances", "slots"), [(1, 1), (5, 2), (200, 1), (200, 4)])
def test_labels_never_overlap(instances: int, slots: int) -> None:
    """They are thinned out, evenly and never to none; no picture is much higher than two screens."""
    svg, _ = pictures(timeline(instances, slots=slots))
    labels = [each for each in svg.iter(TEXT) if "".join(each.itertext()).startswith("i-")]
    heights = sorted(float(each.attrib["y"]) for each in labels)
    assert min((after - before for before, after in pairwise(heights)), default=99) >= 6
    assert len(labels) >= min(instances, 30)
    assert float(svg.attrib["height"].removesuffix("pt")) < 2000


@pytest.mark.parametrize("name", ["$\\frac{a$", "<&>\"'", "a\x00b\x1b[1m\ud800", "漢字", "ä" * 300, ""])
def test_names_are_only_names(name: str) -> None:
    """Whatever others call things, it is no formula and no markup, and what XML has no place for is left out."""
    svg, _ = pictures(timeline(2, name=name, job=name))
    assert shortened("".join(each if each.isprintable() else "?" for each in name), 80) in [*texts(svg), ""]


def test_a_run_of_which_nothing_is_known_has_a_picture() -> None:
    """No instance, no time, no job."""
    svg, _ = pictures(Timeline(name="results", began=START, ended=START, rows=(), queue=()))
    assert "waiting jobs" in texts(svg)


@given(st.floats(0, 1e8))
def test_times_are_written_at_round_distances(duration: float) -> None:
    """From zero to the end, at most eleven, all as far apart; each label means what it stands at."""
    at = picture.ticks(duration)
    assert at[0] == 0
    assert at[-1] <= duration
    assert len(at) <= 11
    assert len(at) > 3 or duration < 0.5
    assert [parse_duration(picture.clock(each)) for each in at] == pytest.approx(at)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0"), (0.2, "200ms"), (30, "30s"), (90, "1m30s"), (120, "2m"), (7200, "2h"), (5400, "1h30m")],
)
def test_round_times_are_written_short(seconds: float, text: str) -> None:
    """Without units of which there are none."""
    assert picture.clock(seconds) == text


@given(st.text(max_size=20), st.integers(1, 15))
def test_a_long_name_loses_its_middle(name: str, most: int) -> None:
    """It is as long as it may be; one that fits stays."""
    short = shortened(name, most)
    assert len(short) == min(len(name), most)
    assert short == name if len(name) <= most else "…" in short
