"""Draws a timeline, with matplotlib. The same timeline gives the same SVG, byte for byte.

No kind is recognised by its colour alone: jobs that did not succeed are hatched, boot and removal are thinner than what
is ready. The colours are those of Okabe and Ito, which people of any colour vision can distinguish.
"""

import io
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import ceil
from typing import NamedTuple

import matplotlib as mpl
from attrs import define, frozen
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as MplPath
from matplotlib.ticker import MaxNLocator

from fleeting.plugins import format_duration
from taskscaler._names import shortened
from taskscaler.batch import JobState
from taskscaler.report._figures import Figures
from taskscaler.report._timeline import Bar, Phase, Row, Timeline

_WIDTH = 12.0
"""Inches, as all lengths here that are not seconds."""

_HIGHEST_LANE, _LOWEST_LANE = 0.3, 0.02
_ROOM_FOR_LANES = 13.0
"""Lanes become lower before the picture becomes higher than that."""

_TALL = 6.0

_GAP = 0.3
"""Between two instances, in lanes."""

_HEAD, _QUEUE, _BETWEEN, _AXIS, _LEGEND = 0.65, 0.8, 0.1, 0.3, 0.45
_LABELS, _RIGHT = 2.0, 0.25

_LABEL_SIZE = 8.0
_SMALL_SIZE = 6.0
_POINT = 1 / 72
_LINE = 1.25
"""Height of a line of text, in font sizes."""

_CHARACTER = 0.62
"""Width of a usual character, in font sizes."""

_LONGEST_LABEL = 26
_LONGEST_TITLE = 80
_MOST_TICKS = 10
_STEPS = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3600 * hours for hours in (1, 2, 3, 6, 12, 24, 48, 168)),
)
"""Seconds between two ticks that people like to count in."""


@frozen(kw_only=True)
class _Look:
    """How something is painted, and what the legend calls it."""

    label: str
    color: str
    hatch: str = ""
    edge: str = "white"
    height: float = 1.0
    """Share of its lane."""


_BACKGROUND = {
    Phase.BOOT: _Look(label="boot", color="#F0E442", edge="#A59B00", height=0.5),
    Phase.READY: _Look(label="idle", color="#E3E3E3", edge="none"),
    Phase.LEAVING: _Look(label="removal", color="#777777", edge="none", height=0.2),
    Phase.HELD: _Look(label="kept", color="none", hatch="----", edge="#777777", height=0.5),
    Phase.UNWATCHED: _Look(label="nobody watched", color="none", hatch="....", edge="#999999", height=0.5),
}
_SUCCEEDED = _Look(label="job", color="#0072B2")
_RUNNING = _Look(label="job, not over", color="#56B4E9", hatch="...")
_FAILED = _Look(label="job that failed", color="#D55E00", hatch="////")
_LOST = _Look(label="job that lost its instance", color="#CC79A7", hatch="xxxx", edge="black")
_CANCELLED = _Look(label="job that was cancelled", color="#999999", hatch="\\\\\\\\")
_BARS = {
    JobState.SUCCEEDED: _SUCCEEDED,
    JobState.QUEUED: _RUNNING,
    JobState.RUNNING: _RUNNING,
    JobState.FAILED: _FAILED,
    JobState.TIMED_OUT: _FAILED,
    JobState.LOST: _LOST,
    JobState.CANCELLED: _CANCELLED,
    JobState.NO_CAPACITY: _CANCELLED,
    JobState.SKIPPED: _CANCELLED,
}
_WAITING = "#E69F00"


class _Box(NamedTuple):
    """In seconds since the epoch, and lanes from above."""

    left: float
    right: float
    top: float
    bottom: float

    @property
    def corners(self) -> Sequence[tuple[float, float]]:
        """All four, and where they close."""
        left, right, top, bottom = self
        return (left, top), (right, top), (right, bottom), (left, bottom), (left, top)


_OUTLINE = (MplPath.MOVETO, MplPath.LINETO, MplPath.LINETO, MplPath.LINETO, MplPath.CLOSEPOLY)
"""How the corners of a box are joined."""


def draw(timeline: Timeline, figures: Figures) -> Mapping[str, bytes]:
    """Draw a timeline, with its figures in a line above it.

    Returns:
        The picture by format: ``svg`` and ``png``.
    """
    title = _written(timeline.name, _LONGEST_TITLE)
    with mpl.rc_context(), warnings.catch_warnings(action="ignore"):  # of letters that the font does not have
        _set_up()
        figure = _Drawing.of(timeline).draw(figures)
        return {
            "svg": _saved(figure, "svg", {"Date": None, "Creator": "taskscaler", "Title": title}),
            "png": _saved(figure, "png", {"Software": "taskscaler", "Title": title}),
        }


def _set_up() -> None:
    """Draw alike everywhere, whatever a user likes in other pictures."""
    mpl.rcdefaults()
    mpl.rcParams.update(
        {
            "font.family": "DejaVu Sans",  # comes with matplotlib
            "font.size": 9.0,
            "hatch.linewidth": 0.7,
            "svg.fonttype": "none",  # text stays text: it can be searched for
            "svg.hashsalt": "taskscaler",  # else ids differ each time
            "text.parse_math": False,  # a dollar is a dollar
        }
    )


def ticks(duration: float, most: int = _MOST_TICKS) -> list[float]:
    """Choose where to write the time: at round distances, at most so many after the first."""
    step = next((step for step in _STEPS if duration / step <= most), ceil(duration / most / _STEPS[-1]) * _STEPS[-1])
    return [number * step for number in range(int(duration / step) + 1)]


def _written(name: str, most: int) -> str:
    """Write a name that somebody else gave: no longer than there is room, and without what XML has no place for."""
    return shortened("".join(character if character.isprintable() else "?" for character in name), most)


def _saved(figure: Figure, format_: str, metadata: Mapping[str, str | None]) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=format_, metadata=dict(metadata), dpi=110)
    return buffer.getvalue()


@define
class _Drawing:
    """One picture on its way."""

    timeline: Timeline
    lane: float
    """Height of a lane."""

    tops: Sequence[float]
    """Where each row begins, in lanes from above."""

    height: float
    """Of all rows, in lanes."""

    @classmethod
    def of(cls, timeline: Timeline) -> "_Drawing":
        """Find a place for every row."""
        tops, top = [], 0.0
        for row in timeline.rows:
            tops.append(top)
            top += row.slots + _GAP
        height = max(1.0, top)
        lane = max(_LOWEST_LANE, min(_HIGHEST_LANE, _ROOM_FOR_LANES / height))
        return cls(timeline, lane, tops, height)

    @property
    def tall(self) -> bool:
        """Whether the lower end of the picture is out of sight when one looks at the upper."""
        return self.height * self.lane > _TALL

    @property
    def seconds_per_inch(self) -> float:
        """The scale of the time axis."""
        return (self.timeline.duration or 1.0) / (_WIDTH - _LABELS - _RIGHT)

    def draw(self, figures: Figures) -> Figure:
        """Draw it all."""
        fleet = self.height * self.lane
        below = _AXIS + _LEGEND
        between = _AXIS if self.tall else _BETWEEN
        total = _HEAD + _QUEUE + between + fleet + below
        figure = Figure(figsize=(_WIDTH, total))
        width = _WIDTH - _LABELS - _RIGHT

        def place(bottom: float, height: float) -> Axes:
            return figure.add_axes((_LABELS / _WIDTH, bottom / total, width / _WIDTH, height / total))

        axes = place(below, fleet)
        self._fleet(axes)
        self._queue(place(below + fleet + between, _QUEUE))
        left, top = 0.15 / _WIDTH, 1 - 0.12 / total
        figure.text(left, top, _written(self.timeline.name, _LONGEST_TITLE), va="top", fontsize=12, fontweight="bold")
        figure.text(left, top - 0.23 / total, _sums(figures), va="top")
        began = datetime.fromtimestamp(self.timeline.began, UTC)
        figure.text(1 - _RIGHT / _WIDTH, top, f"{began:%Y-%m-%d %H:%M} UTC", va="top", ha="right", color="#555555")
        handles = list(self._legend())
        figure.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 0), ncols=len(handles), frameon=False)
        return figure

    def _fleet(self, axes: Axes) -> None:
        """Draw the instances and their jobs."""
        for phase, look in _BACKGROUND.items():
            self._paint(axes, look, self._spans(phase, look), zorder=1)
        for look in dict.fromkeys(_BARS.values()):
            self._paint(axes, look, self._jobs(look), zorder=2)
        self._marks(axes)
        self._names(axes)
        axes.set_xlim(self.timeline.began, self.timeline.began + (self.timeline.duration or 1.0))
        axes.set_ylim(self.height, -_GAP)
        at = ticks(self.timeline.duration)
        axes.set_xticks([self.timeline.began + each for each in at], [clock(each) for each in at])
        axes.tick_params(axis="x", labeltop=self.tall, top=self.tall)
        axes.grid(axis="x", color="#CCCCCC", linewidth=0.5)
        axes.set_axisbelow(True)
        self._row_labels(axes)
        axes.spines[["top", "right", "left"]].set_visible(False)

    def _queue(self, axes: Axes) -> None:
        """Draw how many jobs wait."""
        timeline = self.timeline
        steps = [(timeline.began, 0), *timeline.queue]
        times, counts = [at for at, _ in steps] + [timeline.ended], [n for _, n in steps] + [steps[-1][1]]
        axes.fill_between(times, counts, step="post", color=_WAITING, alpha=0.5, linewidth=0)
        axes.plot(times, counts, drawstyle="steps-post", color=_WAITING, linewidth=1.2)
        axes.set_xlim(timeline.began, timeline.began + (timeline.duration or 1.0))
        axes.set_ylim(0, max(1, *counts) * 1.05)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
        axes.set_ylabel("waiting jobs", rotation=0, ha="right", va="center")
        axes.tick_params(axis="x", length=0, labelbottom=False)
        axes.tick_params(axis="y", labelsize=_LABEL_SIZE)
        axes.spines[["top", "right"]].set_visible(False)

    def _spans(self, phase: Phase, look: _Look) -> Iterator[_Box]:
        """Give the boxes of a phase; what is thin is so once for all slots."""
        for top, row in zip(self.tops, self.timeline.rows, strict=True):
            inset = row.slots * (1 - look.height) / 2
            for span in row.spans:
                if span.phase is phase:
                    yield _Box(span.began, span.ended, top + inset, top + row.slots - inset)

    def _jobs(self, look: _Look) -> Iterator[_Box]:
        for top, _, bar in self._bars():
            if _BARS[bar.state] is look:
                yield _Box(bar.began, bar.ended, top + 0.06, top + 0.94)

    def _bars(self) -> Iterator[tuple[float, Row, Bar]]:
        """Give every bar, with the top of its lane."""
        for top, row in zip(self.tops, self.timeline.rows, strict=True):
            for bar in row.bars:
                yield top + bar.slot, row, bar

    def _paint(self, axes: Axes, look: _Look, boxes: Iterable[_Box], *, zorder: int) -> None:
        """Paint boxes: all those that look alike at once, which is a hundred times faster than one by one."""
        narrow = 4 * _POINT * self.seconds_per_inch  # hardly wider than an outline
        by_outline: dict[float, list[_Box]] = {0.0: [], 0.6: []}
        for box in boxes:
            by_outline[0.6 if box.right - box.left > narrow else 0.0].append(box)
        for outline, alike in by_outline.items():
            if alike:
                axes.add_patch(
                    PathPatch(
                        MplPath([corner for box in alike for corner in box.corners], _OUTLINE * len(alike)),
                        facecolor=look.color,
                        edgecolor=look.edge,
                        linewidth=outline,
                        hatch=look.hatch or None,
                        zorder=zorder,
                    )
                )

    def _marks(self, axes: Axes) -> None:
        """Mark what was lost where it ends, and what was tried again where it begins."""
        lost = [(bar.ended, top + 0.5) for top, _, bar in self._bars() if bar.state is JobState.LOST]
        for top, row in zip(self.tops, self.timeline.rows, strict=True):
            if row.lost and not any(at == row.ended and top <= y <= top + row.slots for at, y in lost):
                lost.append((row.ended, top + row.slots / 2))
        again = [(bar.began, top + 0.5) for top, _, bar in self._bars() if bar.number > 1]
        for marks, marker in ((lost, "X"), (again, "o")):
            axes.scatter(
                [at for at, _ in marks],
                [y for _, y in marks],
                s=self._mark_size**2,
                marker=marker,
                facecolor="black" if marker == "X" else "white",
                edgecolor="white" if marker == "X" else "black",
                linewidth=0.8,
                zorder=4,
                clip_on=False,
            )

    @property
    def _mark_size(self) -> float:
        """In points: as high as a lane, within reason."""
        return max(5.0, min(10.0, self.lane / _POINT * 0.55))

    def _names(self, axes: Axes) -> None:
        """Write the names of jobs into their bars, where there is room."""
        if self.lane < _SMALL_SIZE * _LINE * _POINT:
            return
        size = min(_LABEL_SIZE, self.lane / _POINT / 1.8)
        for top, _, bar in self._bars():
            look = _BARS[bar.state]
            room = bar.duration / self.seconds_per_inch / _POINT - 2 * size
            if len(bar.job) * size * _CHARACTER <= room:
                axes.text(
                    (bar.began + bar.ended) / 2,
                    top + 0.5,
                    _written(bar.job, len(bar.job)),
                    fontsize=size,
                    ha="center",
                    va="center_baseline",
                    color="black" if look.hatch else "white",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0} if look.hatch else None,
                    zorder=3,
                )

    def _row_labels(self, axes: Axes) -> None:
        """Name the instances; where there are too many, every so manyth."""
        rows = self.timeline.rows
        pitch = self.height / max(1, len(rows)) * self.lane
        size = _LABEL_SIZE if pitch > _LABEL_SIZE * _LINE * _POINT else _SMALL_SIZE
        step = ceil(size * _LINE * _POINT / pitch)
        pools = len({row.pool for row in rows}) > 1
        named = list(zip(self.tops, rows, strict=True))[::step]
        axes.set_yticks(
            [top + row.slots / 2 for top, row in named],
            [_written(f"{row.pool}/{row.instance}" if pools else row.instance, _LONGEST_LABEL) for _, row in named],
            fontsize=size,
        )
        axes.tick_params(axis="y", length=2 if step > 1 else 0)

    def _legend(self) -> Iterable[Artist]:
        """Explain what occurs, and nothing else."""
        looks = [_BARS[bar.state] for _, _, bar in self._bars()]
        phases = {span.phase for row in self.timeline.rows for span in row.spans}
        shown = [look for look in dict.fromkeys(_BARS.values()) if look in looks]
        shown += [look for phase, look in _BACKGROUND.items() if phase in phases]
        for look in shown:
            yield Patch(facecolor=look.color, edgecolor=look.edge, hatch=look.hatch or None, label=look.label)
        if any(row.lost for row in self.timeline.rows) or _LOST in looks:
            yield _mark("X", "black", "white", "lost")
        if any(bar.number > 1 for _, _, bar in self._bars()):
            yield _mark("o", "white", "black", "tried again")


def _mark(marker: str, face: str, edge: str, label: str) -> Line2D:
    return Line2D(
        [], [], linestyle="", marker=marker, markersize=8, markerfacecolor=face, markeredgecolor=edge, label=label
    )


def clock(seconds: float) -> str:
    """Write a round time as short as can be: ``90s`` is ``1m30s``, and two minutes are ``2m``."""
    text = format_duration(seconds)
    for zero in ("m0s", "h0m"):
        text = text.removesuffix(zero) + zero[0] if text.endswith(zero) else text
    return text if seconds else "0"


def _sums(figures: Figures) -> str:
    used = "" if figures.utilisation is None else f" · ready slots in use: {figures.utilisation:.0%}"
    time = format_duration(float(round(figures.duration)))
    return f"jobs: {figures.jobs} · instances: {figures.instances} · time: {time}{used}"
