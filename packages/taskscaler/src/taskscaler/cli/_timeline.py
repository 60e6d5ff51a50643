"""``taskscaler report``, and the picture that a run leaves: the results of a batch, drawn and summed up."""

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from attrs import asdict
from rich.console import Console
from rich.text import Text

from fleeting.cli import EXPECTED, FAILED, SUCCEEDED, WRONG, report_errors
from fleeting.plugins import span, write_whole
from taskscaler._errors import NotRecorded, PicturesMissing, TaskscalerError
from taskscaler._recorded_run import RecordedRun, read_run
from taskscaler._uses import in_words
from taskscaler._wording import counted, used_in_words
from taskscaler.batch import Begun, JobState, Results
from taskscaler.cli._for_ci import ForCI
from taskscaler.cli._summary import LABELS, print_row, time_taken
from taskscaler.cli._text import amount, listed
from taskscaler.report import Figures, Spread, Timeline, figure_out, lay_out

VERSION = 1
"""Of what ``--json`` prints; raised when a key changes its meaning or goes."""

log = logging.getLogger("taskscaler.timeline")


def look_back(directory: Path, for_ci: ForCI, *, price_per_hour: float | None, as_json: bool) -> int:
    """Draw the timeline of a batch again, print its figures, and return the exit status."""
    try:
        run = read_run(directory)
        begun = run.events[0]
        jobs_file = Path(begun.jobs_file) if isinstance(begun, Begun) else Path()
        for_ci.leave(run.state, Results(directory), jobs_file, Console())
        _check_recorded(run)
    except EXPECTED as error:
        return report_errors([error], WRONG)
    timeline = lay_out(run)
    figures, status = figure_out(run, timeline, price_per_hour=price_per_hour), SUCCEEDED
    try:
        with Console(stderr=True).status("drawing the timeline …"):
            drawn = _draw(timeline, figures, Results(directory))
    except PicturesMissing as error:  # who wants figures need not want pictures
        drawn = None
        print(f"note: {error} [{error.entry.code}]", file=sys.stderr)  # noqa: T201
    except OSError as error:
        drawn, status = None, report_errors([error], FAILED)
    if as_json:
        print(json.dumps(figures_as_json(figures, drawn), indent=2))  # noqa: T201  (what was asked for)
    else:
        print_figures(Console(), figures, drawn)
    return status


def leave_timeline(results: Results) -> str:
    """Draw the timeline of a run that has just ended; print where it is, or why there is none.

    A picture is not worth a batch: whatever goes wrong with it is logged and reported, and no more.
    """
    try:
        run = _read(results.directory)
        timeline = lay_out(run)
        return str(_draw(timeline, figure_out(run, timeline), results))
    except (TaskscalerError, OSError) as error:
        return f"none: {error}"
    except Exception as error:
        log.exception("timeline_failed")
        return f"none: it could not be drawn ({type(error).__name__}); see {results.fleet_log}"


def _read(directory: Path) -> RecordedRun:
    run = read_run(directory)
    _check_recorded(run)
    return run


def _check_recorded(run: RecordedRun) -> None:
    if not run.fleet_recorded:
        raise NotRecorded(f"the fleet of {run.directory} was not recorded; see fleet.log and the logs there")


def _draw(timeline: Timeline, figures: Figures, results: Results) -> Path:
    """Draw into the results, and print where the picture is that can be zoomed into."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns of fonts and caches that are none of ours
    try:
        from taskscaler.report._draw import draw
    except ImportError as error:
        raise PicturesMissing(
            f"the timeline needs matplotlib; pip install 'taskscaler[pictures]',"
            f" then taskscaler report {results.directory}"
        ) from error
    for format_, picture in draw(timeline, figures).items():
        write_whole(results.timeline(format_), picture)
    return results.timeline("svg")


def print_figures(console: Console, figures: Figures, timeline: Path | None) -> None:
    """Print the figures for people."""
    for label, text in _sums(figures):
        print_row(console, label, text, wrap=console.is_terminal)
    spreads = {"waited": figures.waited, "ran": figures.ran, "booted": figures.booted}
    rows = [(label, map(span, (each.median, each.p95, each.max))) for label, each in spreads.items() if each]
    if rows:
        console.print()
        _print_columns(console, "", ("median", "95%", "longest"), "dim")
    for label, durations in rows:
        _print_columns(console, label, durations)
    if timeline is not None:
        console.print()
        print_row(console, "timeline", str(timeline), wrap=False)


def _print_columns(console: Console, label: str, cells: Iterable[str], style: str = "") -> None:
    line = "  ".join(f"{cell:>8}" for cell in cells)
    console.print(Text.assemble((f"{label:<{LABELS}}", "dim"), (line, style)), highlight=False, soft_wrap=True)


def _sums(figures: Figures) -> Iterator[tuple[str, str]]:
    states = (f"{figures.states[each.value]} {each.words}" for each in JobState if each.value in figures.states)
    again = f", {figures.retried} retried" if figures.retried else ""
    yield "jobs", f"{figures.jobs}: {listed(states)}{again}"
    yield "time", time_taken(figures.duration, figures.paused)
    yield "fleet", f"{counted(figures.instances, 'instance')}, {figures.lost} lost"
    if figures.utilisation is not None and figures.utilisation_overall is not None:
        ready, overall = f"{figures.utilisation:.1%}", f"{figures.utilisation_overall:.1%}"
        yield "in use", f"{ready} of the ready slots; {overall} with boot and removal"
    if used := used_in_words(figures.cpu_time, figures.peak_memory, figures.disk_written):
        yield "used", used
    yield from (("steps" if first else "", line) for first, line in _marked(in_words(figures.steps)))
    yield "paid for", f"{amount(figures.instance_hours)} instance-hours{_shares(figures)}"
    if figures.cost is not None:
        each = "" if figures.cost_per_job is None else f", {amount(figures.cost_per_job)} a job that succeeded"
        price = figures.currency if figures.price_per_hour is None else f"at {figures.price_per_hour:g} an hour"
        yield "cost", f"{amount(figures.cost)} {price}".strip() + each


def _marked(lines: Iterable[str]) -> Iterator[tuple[bool, str]]:
    """Say which is the first."""
    yield from ((number == 0, line) for number, line in enumerate(lines))


def _shares(figures: Figures) -> str:
    parts = {
        "busy": figures.busy_time,
        "idle": figures.idle_time,
        "boot": figures.boot_time,
        "removal": figures.leaving_time,
        "kept": figures.held_time,
        "nobody watched": figures.unwatched_time,
    }
    whole = figures.instance_time
    shares = listed(f"{name} {part / whole:.0%}" for name, part in parts.items() if whole and part > 0)
    return f": {shares}" if shares else ""


def figures_as_json(figures: Figures, timeline: Path | None) -> Mapping[str, object]:
    """Give the figures to programs; every duration in seconds."""
    return {
        "version": VERSION,
        "duration": figures.duration,
        "paused": figures.paused,
        "jobs": {"total": figures.jobs, "states": dict(figures.states), "retried": figures.retried},
        "waited": _spread(figures.waited),
        "ran": _spread(figures.ran),
        "instances": {"total": figures.instances, "lost": figures.lost, "booted": _spread(figures.booted)},
        "instance_time": {
            "total": figures.instance_time,
            "boot": figures.boot_time,
            "busy": figures.busy_time,
            "idle": figures.idle_time,
            "leaving": figures.leaving_time,
            "held": figures.held_time,
            "unwatched": figures.unwatched_time,
        },
        "instance_hours": figures.instance_hours,
        "slot_time": figures.slot_time,
        "utilisation": figures.utilisation,
        "utilisation_overall": figures.utilisation_overall,
        "cpu_time": figures.cpu_time,
        "peak_memory": figures.peak_memory,
        "disk_written": figures.disk_written,
        "steps": [*map(asdict, figures.steps)],
        "price_per_hour": figures.price_per_hour,
        "cost": figures.cost,
        "currency": figures.currency,
        "cost_per_job": figures.cost_per_job,
        "timeline": None if timeline is None else str(timeline),
    }


def _spread(spread: Spread | None) -> Mapping[str, float] | None:
    return None if spread is None else asdict(spread)
