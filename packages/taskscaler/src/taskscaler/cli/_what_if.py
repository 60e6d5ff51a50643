"""The options of the commands that simulate: which jobs, and what the cloud is like. All else is imported later."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from attrs import frozen

from fleeting.cli import as_duration
from taskscaler.cli._commands._options import FILE, RUNNER

F = TypeVar("F", bound=Callable[..., Any])


@frozen(kw_only=True)
class Question:
    """What is asked: which fleet, which jobs, which cloud; nothing was read yet."""

    fleet: Path
    runner: str | None
    trace: Path | None
    synthetic: str | None
    columns: str | None
    since: str | None
    until: str | None
    fit: tuple[Path, ...]
    acquire_timeout: float | None
    seed: int
    cloud: Mapping[str, tuple[str, ...]]
    """By the fields of `PoolEnvironment`."""


_CLOUD = {
    "boot": ("TIME", "From a request for an instance until it runs.  [default: 60s]"),
    "ready": ("TIME", "From then until it takes jobs: connecting and the ready command.  [default: 0s]"),
    "delete": ("TIME", "From a deletion until the instance is gone.  [default: 0s]"),
    "suspend": ("TIME", "What suspending takes, with suspended_count.  [default: 10s]"),
    "resume": ("TIME", "What resuming takes, with suspended_count.  [default: 10s]"),
    "clean": ("TIME", "What instance_cleanup_command takes.  [default: 0s]"),
    "answer": ("TIME", "What the cloud takes to answer a call.  [default: 0s]"),
    "boot_failure": ("SHARE", "The share of instances that fail to boot, such as 1%.  [default: 0]"),
    "ready_failure": ("SHARE", "The share of instances that run and never become ready.  [default: 0]"),
    "stock_outs": ("SPEC", "When the cloud has no capacity, such as every=exp(24h),lasts=exp(10m).  [default: never]"),
    "preemptions": ("SPEC", "When the cloud takes instances back, such as after=exp(24h),notice=2m.  [default: never]"),
}

TIMES = """
TIME is 60s, a range as 40s..90s, exp(60s) with its mean, or lognormal(60s, 2m) with median and 95th percentile; a
shell wants parentheses in quotes. Options of the cloud hold for all pools, or for one, as in --boot spot:90s. They win
over what --fit finds.

Exit status: 0 if the simulation ran, 1 if its jobs cannot be run on such a fleet, 2 if the file, the trace or the
arguments are wrong.
"""


def asks(command: F) -> F:
    """Give a command all options that make a `Question`, under one parameter of that name."""
    for field, (metavar, words) in reversed(_CLOUD.items()):
        option = click.option(f"--{field.replace('_', '-')}", metavar=f"[POOL:]{metavar}", multiple=True, help=words)
        command = option(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = [
    click.argument("fleet", metavar="FLEET", type=FILE),
    RUNNER,
    click.option(
        "--trace",
        metavar="PATH",
        type=click.Path(exists=True, path_type=Path),
        help="The jobs: CSV or Parquet with when each was submitted and how long it ran, the JSON of GitLab's API at "
        "/jobs, the results of a batch, or a directory with such results.",
    ),
    click.option(
        "--synthetic",
        metavar="SPEC",
        help="Made-up jobs instead, such as jobs=100000,over=168h,duration=exp(6m),daily=0.8,weekend=0.3; also "
        "bursts=0.1,burst_jobs=50 and begins=2026-01-05.",
    ),
    click.option(
        "--columns",
        metavar="SPEC",
        help="Which columns of a table have what, such as submit=queued_at,duration=took, or start=NAME,end=NAME for "
        "the duration.  [default: those with usual names]",
    ),
    click.option("--since", metavar="TIME", help="Only jobs submitted from then on, such as 2026-01-05T00:00Z."),
    click.option("--until", metavar="TIME", help="Only jobs submitted before then."),
    click.option(
        "--fit",
        metavar="RESULTS",
        multiple=True,
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Take times, failures and losses of instances from the results of a batch, or of those in a directory. "
        "May be given several times.",
    ),
    click.option(
        "--acquire-timeout",
        metavar="DURATION",
        callback=as_duration,
        help="Refuse a job that has waited that long for a slot.  [default: it waits]",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Of all that is left to chance."),
]


def question_of(given: Mapping[str, Any]) -> Question:
    """Make one of what those options gave. Raises UsageError if they contradict each other."""
    if (given["trace"] is None) is (given["synthetic"] is None):
        raise click.UsageError("give either --trace PATH, with jobs that have run, or --synthetic SPEC")
    if given["columns"] is not None and given["trace"] is None:
        raise click.UsageError("--columns needs --trace PATH, a table")
    names = ("fleet", "runner", "trace", "synthetic", "columns", "since", "until", "fit", "acquire_timeout", "seed")
    return Question(**{name: given[name] for name in names}, cloud={field: given[field] for field in _CLOUD})
