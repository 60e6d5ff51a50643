"""The report of a comparison: one HTML page with the frontier of cost against waiting. See `_page` for the rest."""

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from taskscaler.simulation._compare import Comparison
from taskscaler.simulation._page import BLUE, GREY, ORANGE, RED, framed, picture, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def frontier_page(
    title: str, rows: Iterable[tuple[str, str]], comparison: Comparison, cells: Iterable[list[str]]
) -> str:
    """Make the page.

    Args:
        title: Of the comparison.
        rows: What to say first: labels and texts.
        comparison: What came of it.
        cells: The table of all fleets, its head first.
    """
    sections = [
        f"<h1>{escape(title)}</h1>",
        table(rows),
        "<h2>Cost against waiting</h2>",
        picture(lambda axes: _draw(axes, comparison), height=4.2),
        "<p>Below and left is better. The line connects the fleets that no other beats in both.</p>",
        "<h2>All of them</h2>",
        _cells(cells),
    ]
    return framed(title, sections)


def _cells(cells: Iterable[list[str]]) -> str:
    lines = []
    for number, row in enumerate(cells):
        tag = "td" if number else "th"
        first, *others = row
        rest = "".join(f'<{tag} class="n">{escape(cell)}</{tag}>' for cell in others)
        lines.append(f"<tr><{tag}>{escape(first)}</{tag}>{rest}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _draw(axes: "Axes", comparison: Comparison) -> None:
    """A point for each fleet, and the line of those that no other beats."""
    best = comparison.frontier
    others = [entry for entry in comparison.entries if entry not in best]
    cost = comparison.cost
    axes.plot([cost(each) for each in best], [each.wait for each in best], color=BLUE, marker="o", markersize=5)
    axes.plot([cost(each) for each in others], [each.wait for each in others], color=GREY, marker="o", linestyle="")
    for entry in comparison.entries:
        place = cost(entry), entry.wait
        axes.annotate(entry.name, place, xytext=(5, 4), textcoords="offset points", fontsize=7.5)
    if comparison.currency is None:
        hours = comparison.clairvoyant.instance_hours
        axes.axvline(hours, color=ORANGE, linewidth=1.2, label="clairvoyant")
        most = max(map(cost, comparison.entries))
        if comparison.always_max.instance_hours <= 2 * most:
            axes.axvline(comparison.always_max.instance_hours, color=RED, linewidth=1.2, label="always the peak's size")
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, ncols=2)
    axes.set_xlabel(f"cost, {comparison.currency}" if comparison.currency else "billed instance-hours")
    axes.set_ylabel("95% waited no longer than that, s")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
