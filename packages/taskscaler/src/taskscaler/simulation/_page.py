"""The report of a simulation: one HTML page that holds all it needs, with pictures drawn by matplotlib.

The same outcome gives the same page, byte for byte. The colours are those of Okabe and Ito, which people of any colour
vision can distinguish; lines that could be confused differ in style, too.
"""

import io
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING

from fleeting.plugins import span
from taskscaler._errors import PicturesMissing
from taskscaler.simulation._fleet import Fleet
from taskscaler.simulation._outcome import Outcome, Waits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#777777"
WIDTH, HEIGHT = 10.0, 2.6
"""Inches, of each picture."""

POINTS = 400
"""Of the curve of waits."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top;
  padding: .15rem .8rem .15rem 0; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
th { font-weight: 600; } tr th[scope=row] { font-weight: 400; color: #666; white-space: nowrap; }
svg { width: 100%; height: auto; } footer { color: #666; margin-top: 2rem; font-size: .85rem; }
"""


def check_drawing() -> None:
    """See that there is something to draw with. Raises PicturesMissing if not."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns of fonts and caches that are none of ours
    try:
        import matplotlib.figure  # noqa: F401  (it need only be there)
    except ImportError as error:
        raise PicturesMissing(
            "the report needs matplotlib; pip install 'taskscaler[pictures]', or leave --report out"
        ) from error


def page(name: str, rows: Iterable[tuple[str, str]], outcome: Outcome, fleet: Fleet) -> str:
    """Make the page.

    Args:
        name: Of the fleet.
        rows: What to say first: labels and texts.
        outcome: What came of the simulation.
        fleet: Of which.
    """
    title = f"Simulation of {name}"
    sections = [
        f"<h1>{escape(title)}</h1>",
        table(rows),
        "<h2>Instances and jobs</h2>",
        picture(lambda axes: _draw_instances(axes, outcome, fleet)),
        "<h2>Jobs that waited</h2>",
        picture(lambda axes: _draw_waiting(axes, outcome)),
        "<h2>How long they waited</h2>",
        picture(lambda axes: _draw_longest(axes, outcome)),
        "<h2>How many waited no longer than that</h2>",
        picture(lambda axes: _draw_waits(axes, outcome.waits)),
        "<h2>What was decided, and why</h2>",
        _reasons(outcome),
        *_held_back(outcome),
        f"<footer>seed {outcome.seed}; the same scaler decided here that runs a fleet. Times are UTC.</footer>",
    ]
    return framed(title, sections)


def framed(title: str, sections: Iterable[str]) -> str:
    """Make a page of sections, which are HTML; the title is text."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = "\n".join(sections)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'
    )


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Make a table of labels and texts; a label that is repeated is shown once."""
    before, lines = "", []
    for label, text in rows:
        lines.append(f'<tr><th scope="row">{escape("" if label == before else label)}</th><td>{escape(text)}</td></tr>')
        before = label
    return f"<table>{''.join(lines)}</table>"


def _reasons(outcome: Outcome) -> str:
    lines = [
        f'<tr><td>{escape(why)}</td><td class="n">{reason.decisions:,}</td><td class="n">{reason.instances:,}</td></tr>'
        for why, reason in outcome.reasons.items()
    ]
    head = '<tr><th>why</th><th class="n">decisions</th><th class="n">instances</th></tr>'
    return f"<table>{head}{''.join(lines)}</table>"


def _held_back(outcome: Outcome) -> Iterator[str]:
    if outcome.held_back:
        yield "<h2>What held requests back</h2>"
        yield table((span(seconds), why) for why, seconds in outcome.held_back.items())


def picture(draw: Callable[["Axes"], None], height: float = HEIGHT) -> str:
    """Draw one picture, so many inches high, as SVG that stands in the page."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "taskscaler", "svg.fonttype": "path", "font.size": 9.0}):
        mpl.rcParams["text.parse_math"] = False  # a dollar is a dollar
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#E3E3E3", linewidth=0.6)
        axes.set_axisbelow(True)
        draw(axes)
        target = io.StringIO()
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    return text[text.index("<svg") :]  # what stands before it is for files


def _draw_instances(axes: "Axes", outcome: Outcome, fleet: Fleet) -> None:
    """Slots that there are, and those in use: the most in each step, so that no peak is lost between two."""
    times = _times(outcome)
    capacity = {pool.capacity_per_instance for pool in fleet.pools}
    slots = capacity.pop() if len(capacity) == 1 else 0
    series = outcome.series
    axes.step(times, series.peak_instances, where="post", color=BLUE, linewidth=1.2, label="instances")
    if slots > 1:
        offered = [each * slots for each in series.peak_instances]
        axes.step(times, offered, where="post", color=GREY, linewidth=0.9, linestyle="--", label="their slots")
    running, label = series.peak_busy, "jobs that run"
    axes.fill_between(times, running, step="post", color=ORANGE, alpha=0.6, linewidth=0, label=label)
    axes.set_ylim(bottom=0)
    _finish(axes, outcome)


def _draw_waiting(axes: "Axes", outcome: Outcome) -> None:
    """The most jobs that waited at once."""
    color, label = RED, "the most jobs that waited at once"
    axes.fill_between(_times(outcome), outcome.series.waiting, step="post", color=color, linewidth=0, label=label)
    axes.set_ylim(bottom=0, top=max(1.0, 1.05 * max(outcome.series.waiting, default=0)))
    _finish(axes, outcome)


def _draw_longest(axes: "Axes", outcome: Outcome) -> None:
    """The longest and the mean wait of the jobs that began."""
    times, series = _times(outcome), outcome.series
    axes.fill_between(times, series.longest_wait, step="post", color=GREEN, alpha=0.5, linewidth=0, label="longest, s")
    axes.step(times, series.mean_wait, where="post", color=BLUE, linewidth=0.9, label="mean, s")
    axes.set_ylim(bottom=0, top=max(1.0, 1.05 * max(series.longest_wait, default=0.0)))
    _finish(axes, outcome)


def _draw_waits(axes: "Axes", waits: Waits) -> None:
    """The share of all jobs that waited no longer than that."""
    shares = [each / POINTS for each in range(POINTS + 1)]
    values = [waits.quantile(share) for share in shares]
    axes.step(values, [share * 100 for share in shares], where="post", color=BLUE, linewidth=1.2)
    for share in (0.5, 0.95, 0.99):
        at = waits.quantile(share)
        if not at:  # the curve begins above it
            continue
        axes.plot([at], [share * 100], marker="o", color=RED, markersize=4)
        axes.annotate(f"{share:.0%}: {at:.3g} s", (at, share * 100), xytext=(6, -10), textcoords="offset points")
    axes.set_xlabel("seconds")
    axes.set_ylabel("% of jobs")
    at_once = waits.at_once / waits.count if waits.count else 0.0
    axes.set_ylim(max(0, int(at_once * 10) * 10 - 10), 101)
    axes.set_xlim(0, max(1.0, waits.quantile(0.999) * 1.05))


def _finish(axes: "Axes", outcome: Outcome) -> None:
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, ncols=3)
    _ticks(axes, outcome)


def _times(outcome: Outcome) -> Sequence[float]:
    """When each step ends, in seconds from the begin; the last one may do so early."""
    ends = [(number + 1) * outcome.series.step for number in range(len(outcome.series.instances))]
    return [*ends[:-1], min(ends[-1], outcome.ended - outcome.began)] if ends else []


_TICKS: Mapping[float, str] = {
    60.0: "%H:%M",
    300.0: "%H:%M",
    900.0: "%H:%M",
    3600.0: "%H:%M",
    3 * 3600.0: "%d %b %H:%M",
    6 * 3600.0: "%d %b %H:%M",
    12 * 3600.0: "%d %b %H:%M",
    86400.0: "%d %b",
    2 * 86400.0: "%d %b",
    7 * 86400.0: "%d %b",
    28 * 86400.0: "%d %b %Y",
    182 * 86400.0: "%d %b %Y",
}
"""Seconds between two ticks that people count in, and how their times are written."""

MOST_TICKS = 10


def _ticks(axes: "Axes", outcome: Outcome) -> None:
    """Mark times that people count in, between the begin and the end."""
    whole = max(outcome.ended - outcome.began, 1.0)
    step = next((each for each in _TICKS if whole / each <= MOST_TICKS), max(_TICKS))
    first = -outcome.began % step
    places = [first + number * step for number in range(int((whole - first) // step) + 1)] if first <= whole else []
    axes.set_xticks(places, [_written(outcome.began + at, _TICKS[step]) for at in places])
    axes.set_xlim(0, whole)


def _written(at: float, form: str) -> str:
    return datetime.fromtimestamp(at, UTC).strftime(form)
