"""What would be, in simulated time: `simulate`, `compare`, `tune`."""

import sys
from pathlib import Path
from typing import Any

import click

from fleeting.cli import Commands
from taskscaler.cli._commands._options import FILE, JSON, as_new_file
from taskscaler.cli._what_if import TIMES, asks, question_of

commands = Commands()


def _as_report(context: click.Context, parameter: click.Parameter, given: Path | None) -> Path | None:
    if given is not None and given.exists() and not given.is_file():  # which would be replaced by one
        raise click.BadParameter(f"{given} is not a regular file; name one, or one that does not exist yet")
    if given is not None and given.exists() and not _is_page(given):  # but the trace, or the fleet's file
        what = "an HTML page that a report may replace"
        raise click.BadParameter(f"{given} exists, and is not {what}; name another file")
    return as_new_file(context, parameter, given)


def _is_page(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            begin = file.read(32).strip().lower()
    except OSError:
        return False
    return not begin or begin.startswith((b"<!doctype html", b"<html"))


@commands.command(epilog=TIMES, short_help="Compare fleets or policies on given jobs: cost against waiting.")
@asks
@click.argument("others", metavar="[OTHER]...", nargs=-1, type=FILE)
@click.option(
    "--policy",
    "policies",
    metavar="SPEC",
    multiple=True,
    help="FLEET once more with this policy instead of its own, such as idle_count=5,idle_time=20m; also "
    "scale_factor, scale_factor_limit and mode. May be given several times.",
)
@JSON
@click.option(
    "--report",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_as_report,
    help="Write the frontier of cost against waiting as a picture: one HTML file that needs no other.",
)
def compare(
    *,
    others: tuple[Path, ...],
    policies: tuple[str, ...],
    as_json: bool,
    report: Path | None,
    **given: Any,  # noqa: ANN401  (see `asks`)
) -> None:
    """Run the same jobs on several fleets in simulated time, and print what each costs and how long its jobs wait.

    FLEET and each OTHER are files as of simulate. They stand beside a fleet that knows all jobs in advance and lets
    none wait, and one that always has the size that the highest peak takes.
    """
    from taskscaler.cli._compare import compare_files

    sys.exit(compare_files(question_of(given), others, policies, as_json=as_json, report=report))


@commands.command(epilog=TIMES, short_help="Simulate a fleet: waiting, hours and cost for given jobs.")
@asks
@JSON
@click.option(
    "--report",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_as_report,
    help="Write a report with pictures: one HTML file that needs no other.",
)
def simulate(*, as_json: bool, report: Path | None, **given: Any) -> None:  # noqa: ANN401  (see `asks`)
    """Run jobs on the fleet of the file FLEET in simulated time, and print how long they wait and what that costs.

    FLEET is a jobs file, one without [[jobs]], or the config.toml of GitLab Runner. The scaler that decides is the one
    that runs a fleet; only time, the cloud and the jobs are simulated. No instance is created, and no cloud is
    contacted. The same arguments give the same result.
    """
    from taskscaler.cli._simulate import simulate_file

    sys.exit(simulate_file(question_of(given), as_json=as_json, report=report))


_TUNE_EPILOG = """
Exit status: 0 if the settings meet the target on both parts, 1 if none do or the jobs cannot be run on such a fleet, 2
if the file, the trace or the arguments are wrong.
"""


@commands.command(
    epilog=_TUNE_EPILOG, short_help="Find the cheapest settings with which jobs wait no longer than they may."
)
@asks
@click.option(
    "--wait",
    "waits",
    metavar="TARGET",
    multiple=True,
    required=True,
    help="For how long jobs may wait, such as p95=10s: 95% of them at most ten seconds; or mean=2s. May be given "
    "several times.",
)
@click.option(
    "--judge-from",
    metavar="WHEN",
    help="Judge by the jobs from then on, and fit to those before: a time such as 2026-01-05T00:00Z, or a share of the "
    "trace's time such as 60%.  [default: two thirds of the days are fitted to]",
)
@JSON
def tune(*, waits: tuple[str, ...], judge_from: str | None, as_json: bool, **given: Any) -> None:  # noqa: ANN401  (see `asks`)
    """Find the cheapest policy for the fleet of the file FLEET with which jobs wait no longer than they may.

    Settings are fitted to the first part of the jobs, by some thirty simulations, and judged by the rest. What is
    printed is the policy to put into the file, what it costs and how long jobs wait, beside the file's own and a fleet
    that knows all jobs in advance, and how far other days may differ. TIME and FLEET are as of simulate.
    """
    from taskscaler.cli._tune import tune_file

    sys.exit(tune_file(question_of(given), waits, judge_from, as_json=as_json))
