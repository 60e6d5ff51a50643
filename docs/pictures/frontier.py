"""Draws what policies cost and how long jobs wait with them: the picture of "Which settings to choose".

What it draws was measured on a trace that cannot be committed (``benchmarks/traces/README.md``), and stands in
``frontier.json``. With ``--trace`` and ``--judge-from``, that is measured anew: the jobs from then on, boot 60 s, one
job at once on an instance. ``nox -s pictures`` draws it.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskscaler.config import PoolTable
from taskscaler.simulation import Fleet, parse_columns, read_trace, simulate
from taskscaler.simulation._bound import clairvoyant
from taskscaler.simulation._cells import read_time
from taskscaler.simulation._page import BLUE, GREEN, GREY, ORANGE, RED, check_drawing, picture
from taskscaler.simulation._policies import parse_policy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HERE = Path(__file__).parent
BOOT = 60.0

CURVES: Mapping[str, Sequence[str]] = {
    "idle_count 0": [f"idle_time={minutes}m" for minutes in (1, 2, 3, 5, 8, 10, 15, 20, 30)],
    'mode = "adaptive"': [f"mode=adaptive,idle_time={minutes}m" for minutes in (2, 5, 8, 13, 20, 30)],
    "scale_factor 0.5": [f"scale_factor=0.5,idle_time={minutes}m" for minutes in (2, 5, 10, 20)],
    "idle_count 1": [f"idle_count=1,idle_time={minutes}m" for minutes in (1, 2, 5, 10, 20)],
    "idle_count 2": [f"idle_count=2,idle_time={minutes}m" for minutes in (2, 5, 20)],
    "idle_count 5": [f"idle_count=5,idle_time={minutes}m" for minutes in (5, 20)],
}
"""Policies by the curve that they stand on."""

PURPLE = "#CC79A7"
COLORS = dict(zip(CURVES, (BLUE, PURPLE, GREEN, ORANGE, RED, GREY), strict=True))


def measure(trace: Path, columns: str | None, since: str) -> None:
    """Run the jobs from then on with each policy, and write what came of it."""
    jobs = read_trace(trace, parse_columns(columns) if columns else None).jobs.between(read_time(since), float("inf"))
    bound = clairvoyant(jobs, boot=BOOT)
    points = {name: [_point(policy, jobs, bound.instance_hours) for policy in curve] for name, curve in CURVES.items()}
    data = {"jobs": len(jobs), "clairvoyant_hours": round(bound.instance_hours, 2), "curves": points}
    (HERE / "frontier.json").write_text(json.dumps(data, indent=1) + "\n")


def _point(policy: str, jobs: Any, hours: float) -> Mapping[str, object]:  # noqa: ANN401  (jobs, as they are read)
    outcome = simulate(Fleet(pools=(PoolTable(plugin="simulated"),), policies=(parse_policy(policy),)), jobs)
    p95, p99 = (round(outcome.waits.quantile(share), 2) for share in (0.95, 0.99))
    times = round(outcome.instance_hours / hours, 3)
    return {"policy": policy, "times": times, "p95": p95, "p99": p99, "bought": outcome.bought}


def draw() -> str:
    """Draw it as SVG."""
    data = json.loads((HERE / "frontier.json").read_text())
    check_drawing()
    return picture(lambda axes: _draw(axes, data["curves"]), height=4.6)


def _draw(axes: "Axes", curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    for name, points in curves.items():
        times, waits = [each["times"] for each in points], [each["p95"] for each in points]
        axes.plot(times, waits, color=COLORS[name], marker="o", markersize=4, linewidth=1.2, label=name)
        for each in points:
            if not each["p95"] and name != next(iter(curves)):  # there is no room for all of them
                continue
            minutes = each["policy"].rpartition("idle_time=")[2]
            place = each["times"], each["p95"]
            axes.annotate(minutes, place, xytext=(3, 4), textcoords="offset points", fontsize=7, color=COLORS[name])
    axes.axvline(1.0, color=GREY, linewidth=1.0, linestyle="--", label="clairvoyant")
    axes.axhline(10.0, color=GREY, linewidth=0.6)
    axes.set_xlabel("instance-hours, as a multiple of the clairvoyant's")
    axes.set_ylabel("95% of the jobs waited at most that, s")
    axes.set_xlim(left=0.9)
    axes.set_ylim(bottom=-1)
    axes.legend(loc="upper right", frameon=False)


def make() -> None:
    """Draw it into its file."""
    (HERE / "frontier.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--columns")
    parser.add_argument("--judge-from", default="2024-12-01")
    given = parser.parse_args()
    if given.trace is not None:
        measure(given.trace, given.columns, given.judge_from)
    make()
