"""Batches: those that a daemon runs, and what is known of all of them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleeting.cli import Commands
from taskscaler.cli._commands._options import (
    DAEMON_EPILOG,
    FILE,
    JSON,
    JUNIT,
    SOCKET,
    as_price,
    directory_of,
    results_of,
)

if TYPE_CHECKING:
    from taskscaler._socket import Place

commands = Commands()


@commands.command(
    epilog="Exit status: 0 if the daemon has accepted the batch, 1 if none answers or it refuses, 2 if the file or the "
    "arguments are wrong.",
    short_help="Hand a batch over to a daemon, and leave.",
)
@click.argument("jobs", metavar="JOBS", type=FILE)
@SOCKET
@JSON
def submit(jobs: Path, socket: "Place | None", *, as_json: bool) -> None:
    """Hand the jobs of the file JOBS over to the daemon, which runs them on its fleet; print the id of the batch.

    The files that the jobs need are sent along. JOBS has no [autoscaler], [executors] or [report]: the daemon's apply,
    and reports are made by `taskscaler run`. The batch goes on if the daemon is killed and started again.
    """
    from taskscaler.cli import _batches

    sys.exit(_batches.submit(jobs, socket, as_json=as_json))


@commands.command("jobs", epilog=DAEMON_EPILOG, short_help="List the batches of a daemon, or the jobs of a batch.")
@click.argument("batch", metavar="[BATCH]", required=False)
@SOCKET
@JSON
def list_jobs(batch: str | None, socket: "Place | None", *, as_json: bool) -> None:
    """List the jobs of BATCH; without BATCH, list the batches of the daemon.

    The daemon's own user sees all batches, other users see their own.

    BATCH is the id that `taskscaler submit` has printed, or a directory with results.
    """
    from taskscaler.cli import _batches

    if batch is None:
        sys.exit(_batches.list_batches(socket, as_json=as_json))
    sys.exit(_batches.list_jobs(batch, socket, as_json=as_json))


@commands.command(
    epilog="Exit status: 0 if every job succeeded, 1 if not, or if no daemon answers or it refuses, 2 if the arguments "
    "are wrong.",
    short_help="Wait until a batch is over.",
)
@click.argument("batch", metavar="BATCH")
@SOCKET
@JSON
def wait(batch: str, socket: "Place | None", *, as_json: bool) -> None:
    """Wait until BATCH is over, also while the daemon is restarted, and exit as it went.

    BATCH is the id that `taskscaler submit` has printed, or a directory with the results of a batch that another
    command runs.
    """
    from taskscaler.cli import _batches

    sys.exit(_batches.wait(batch, socket, as_json=as_json))


@commands.command(epilog=DAEMON_EPILOG, short_help="Bring the results of a batch of a daemon here.")
@click.argument("batch", metavar="BATCH")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Directory for the results, which is made.  [default: taskscaler-results/<BATCH>]",
)
@SOCKET
def fetch(batch: str, output: Path | None, socket: "Place | None") -> None:
    """Bring the logs, the artifacts and the record of BATCH here, once it is over.

    BATCH is the id that `taskscaler submit` has printed. What `taskscaler run` leaves is in the directory then:
    `explain` and `report` take it.
    """
    from taskscaler.cli import _batches

    sys.exit(_batches.fetch(batch, output, socket))


@commands.command(epilog=DAEMON_EPILOG, short_help="End a batch that a daemon or another command runs.")
@click.argument("batch", metavar="BATCH")
@SOCKET
@JSON
def cancel(batch: str, socket: "Place | None", *, as_json: bool) -> None:
    """End BATCH: running jobs are ended, and no more are started. What has finished stays finished.

    BATCH is the id that `taskscaler submit` has printed, or a directory with the results of a batch that another
    command runs: that gets SIGTERM.
    """
    from taskscaler.cli import _batches

    sys.exit(_batches.cancel(batch, socket, as_json=as_json))


@commands.command(
    epilog="Exit status: 0 if there is an answer, 1 if no daemon gives one, 2 if the arguments are wrong.",
    short_help="Explain why a batch went as it did, or why it waits.",
)
@click.argument("batch", metavar="[BATCH]", required=False)
@click.option(
    "--job", metavar="JOB", help="Explain one job, as `logs` takes it: what it waits for, and why it was retried."
)
@click.option("--instance", metavar="ID", help="Explain one instance: why it is there, or why it went.")
@SOCKET
@JSON
def explain(batch: str | None, job: str | None, instance: str | None, *, socket: "Place | None", as_json: bool) -> None:
    """Explain BATCH, whether it is over, was interrupted, or is still running.

    BATCH is a directory with results, or the id of a batch that was submitted to the daemon, or of a job that runs on
    its fleet, as `taskscaler jobs` shows it. Without it, explain the fleet of the daemon; a job is then the key of a
    lease.

    Why was there no capacity, why were jobs retried, what happened to the instances, and what will happen next?
    The command changes nothing and contacts no cloud.
    """
    if job is not None and instance is not None:
        raise click.UsageError("--job and --instance cannot be combined; ask for one at a time")
    from taskscaler.cli import _operate

    if batch is None:
        sys.exit(_operate.explain(socket, job=job, instance=instance, as_json=as_json))
    from taskscaler._batch_id import JOB_ID
    from taskscaler.cli._explain import explain_results

    if JOB_ID.fullmatch(batch) and directory_of(batch, socket) is None:
        if job is not None or instance is not None:
            raise click.UsageError(f"{batch} is one job; leave out --job and --instance")
        sys.exit(_operate.explain(socket, job=batch, instance=None, as_json=as_json))
    sys.exit(explain_results(results_of(batch, socket), job=job, instance=instance, as_json=as_json))


@commands.command(
    epilog="Exit status: 0 if there is a log to show, or none yet, 2 if the directory or the arguments are wrong.",
    short_help="Show the last lines of a job's log.",
)
@click.argument("batch", metavar="BATCH")
@click.argument("job", metavar="[JOB]", required=False)
@click.option(
    "-n",
    "--lines",
    metavar="LINES",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many of the last lines to show.",
)
@click.option("-f", "--follow", is_flag=True, help="Also show what follows, until the job is over.")
@SOCKET
def logs(batch: str, job: str | None, lines: int, socket: "Place | None", *, follow: bool) -> None:
    """Show the last lines of the log of JOB, one of the jobs of BATCH.

    BATCH is a directory with results, or the id of a batch that was submitted to the daemon.

    JOB is a name, a pattern that matches one job, such as 'train-*7', or '#N' for the Nth job of the batch, from 1;
    quote the last two. It may be left out if a daemon's batch has only one. Another command may be running the batch.
    With -f, what the job prints is shown as it comes, in all its tries, until the job is over or nothing runs the batch
    any more.
    """
    if directory := directory_of(batch, socket):
        from taskscaler.cli._logs import show_log

        if job is None:
            raise click.UsageError("the job is missing; name it after the directory, or write '#1' for the first")
        sys.exit(show_log(directory, job, lines=lines, follow=follow))
    from taskscaler.cli import _batches

    sys.exit(_batches.show_log(batch, job or "", socket, lines=lines, follow=follow))


_REPORT_EPILOG = """
Exit status: 0 on success, 1 if the timeline could not be drawn or written, 2 if the directory or the arguments
are wrong.
"""


@commands.command(epilog=_REPORT_EPILOG, short_help="Summarise a batch: times, utilisation, cost, timeline.")
@click.argument("batch", metavar="BATCH")
@click.option(
    "--price-per-hour",
    metavar="X",
    callback=as_price,
    help="What one instance costs an hour, in any currency.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@JUNIT
@SOCKET
def report(
    batch: str, price_per_hour: float | None, *, as_json: bool, junit: Path | None, socket: "Place | None"
) -> None:
    """Summarise BATCH.

    BATCH is a directory with results, or the id of a batch that was submitted to the daemon.

    Draws the timeline again, and prints how long jobs waited and ran, how well the instances were used, how many
    instance-hours they took and, with a price, what they cost. The batch may be over, interrupted, or running.
    """
    from taskscaler.cli._for_ci import ForCI
    from taskscaler.cli._timeline import look_back

    sys.exit(look_back(results_of(batch, socket), ForCI(junit=junit), price_per_hour=price_per_hour, as_json=as_json))
