"""`run`: the jobs of a file, on a fleet of their own or a daemon's."""

import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleeting.cli import Commands
from taskscaler.cli._commands._options import FILE, JUNIT, METRICS, TRACES

if TYPE_CHECKING:
    from taskscaler._jobsfile import Format
    from taskscaler.cli._log_formats import LogFormat

commands = Commands()

_EPILOG = """
Exit status: 0 if every job succeeded, 1 if a job failed or the fleet could not be opened, 2 if the file or the
arguments are wrong, 130 after Ctrl-C, 143 after SIGTERM.
"""


def _a_hyphen(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    if given not in (None, "-"):
        raise click.UsageError(f"got unexpected extra argument ({given})")
    return given


class _Run(click.Command):
    """A command with options whose values may be left out, even where the name of a file follows."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments."""
        given = [*args, ""]
        filled = [
            f"{arg}=1" if arg == "--fail-fast" and not following.isdigit() else f"{arg}=" if arg == "--daemon" else arg
            for arg, following in pairwise(given)
        ]
        try:
            return super().parse_args(ctx, filled)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise


@commands.command(epilog=_EPILOG, cls=_Run)
@click.argument("jobs", metavar="JOBS", type=FILE, required=False)
@click.argument("stdin", metavar="[-]", callback=_a_hyphen, required=False)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl", "csv"]),
    help="With -: what standard input is.  [default: JSON Lines if it begins with {, else CSV]",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the results, new or empty.  [default: taskscaler-results/<name>-<time>]",
)
@click.option(
    "--resume",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Resume the interrupted batch whose results are in DIR.",
)
@click.option(
    "--rerun",
    type=click.Choice(["failed", "lost", "all"]),
    multiple=True,
    help="With --resume: also run jobs again that failed or timed out, whose instances were lost, or all jobs. May be "
    "given several times.",
)
@click.option(
    "--only",
    metavar="JOB",
    multiple=True,
    help="Run only these jobs: a name, a pattern such as 'train-*', or '#N' for the Nth job, from 1. May be given "
    "several times. The other jobs wait for --resume.",
)
@click.option(
    "--fail-fast",
    metavar="[N]",
    type=click.IntRange(min=1),
    help="Start no more jobs once N jobs have failed; running jobs finish.  [default if given: 1]",
)
@click.option(
    "--daemon",
    metavar="[=SOCKET]",
    is_flag=False,
    flag_value="",
    help="Run the jobs on the fleet of a daemon (see taskscaler serve), which may run others at the same time.  "
    "[default if given: the socket in TASKSCALER_SOCKET, or the only one in $XDG_RUNTIME_DIR/taskscaler]",
)
@METRICS
@click.option(
    "--log-format",
    type=click.Choice(["text", "json", "journal"]),
    help="Write the fleet's events on standard error, too: as text, as one JSON object per line, or for systemd's "
    "journal. Standard output keeps the progress and the summary.  [default: only into fleet.log, among the results]",
)
@TRACES
@JUNIT
@click.option(
    "--annotations",
    type=click.Choice(["github", "gitlab"]),
    help="For each failed job, print an annotation for GitHub Actions, or write a code quality report for GitLab into "
    "the results.",
)
def run(
    jobs: Path | None,
    stdin: str | None,
    output: Path | None,
    resume: Path | None,
    *,
    format_: "Format | None",
    rerun: tuple[str, ...],
    only: tuple[str, ...],
    fail_fast: int | None,
    daemon: str | None,
    metrics: str | None,
    log_format: "LogFormat | None",
    traces: bool,
    junit: Path | None,
    annotations: str | None,
) -> None:
    """Run every job of the file JOBS and wait for all of them.

    The results are one log per job, the artifacts, and results.json. Ctrl-C starts no more jobs and lets running jobs
    finish; a second Ctrl-C stops at once, and so does SIGTERM. Either way no instance is left behind. SIGHUP reloads
    the policies.

    With -, JOBS has the fleet and its defaults, and the jobs are read from standard input: a JSON object on each line,
    or CSV with a header. Each has a name, and a script or a command; other columns of CSV are variables.

    --resume DIR resumes a batch that was interrupted, even by kill -9 or a power failure: finished jobs stay
    finished, jobs that were running run again, and the others run. With --rerun, also a batch that is over is resumed,
    and jobs run again that did not end as they should; earlier attempts stay in the results. Jobs that are not over are
    run as the jobs file has them now.

    With --daemon, the fleet is a daemon's, and [autoscaler] in JOBS has no effect; all else is as without it. Ctrl-C
    ends this batch only. --resume needs no --daemon: a batch is resumed where it was started.
    """
    from taskscaler.cli._choice import Wishes
    from taskscaler.cli._for_ci import ForCI

    wishes = Wishes(only=only, rerun=rerun, fail_fast=fail_fast)
    for_ci = ForCI(junit=junit, annotations=annotations)
    if resume is None:
        if jobs is None:
            raise click.UsageError("missing argument 'JOBS'; to resume an interrupted batch, use --resume DIR")
        if rerun:
            raise click.UsageError("--rerun needs --resume DIR, the results of the batch whose jobs run again")
        if format_ and not stdin:
            raise click.UsageError("--format needs -, which reads the jobs from standard input")
        from taskscaler.cli._run import run_jobs_file, run_stream

        socket = None if daemon is None else _daemon_at(daemon)
        shown: dict[str, Any] = {"socket": socket, "metrics": metrics, "traces": traces, "style": log_format}
        if stdin:
            sys.exit(run_stream(jobs, output, wishes, for_ci, format_=format_, **shown))
        sys.exit(run_jobs_file(jobs, output, wishes, for_ci, **shown))
    if jobs is not None:
        raise click.UsageError("--resume takes no file; the batch keeps the file that it was started with")
    if output is not None:
        raise click.UsageError("--resume takes no --output; the results stay in the batch's own directory")
    if daemon is not None:
        raise click.UsageError("--resume takes no --daemon; a batch is resumed where it was started")
    from taskscaler.cli._run import resume_batch

    sys.exit(resume_batch(resume, wishes, for_ci, metrics=metrics, traces=traces, style=log_format))


def _daemon_at(given: str) -> Path:
    """Find the socket that --daemon means; exits if there is none, or its instances cannot be reached."""
    from fleeting import FleetingError
    from fleeting.cli import FAILED, WRONG, report_errors
    from fleeting.errors import WrongArguments
    from taskscaler._socket import check_ours, find_socket

    try:
        place = find_socket(given)
        if not isinstance(place, Path):
            check_ours(place, "have it run the jobs itself, with taskscaler submit")
    except FleetingError as error:
        sys.exit(report_errors([error], WRONG if isinstance(error, WrongArguments) else FAILED))
    return Path(str(place))
