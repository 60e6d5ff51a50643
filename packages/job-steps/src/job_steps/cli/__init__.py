"""The command ``job-steps``: steps on this machine, without GitLab."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from job_steps._durations import parse_time
from job_steps._errors import JobStepsError
from job_steps._printable import printable

EXISTING = click.Path(exists=True, path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


class _Time(click.ParamType[float]):
    """A number of seconds, or such as 30s, 10m or 2h."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401  (a default is a number)
        """Give seconds."""
        seconds = parse_time(value) if isinstance(value, str) else float(value)
        return seconds or self.fail(f"{value!r} is not a time; expected one such as 30s, 10m or 2h", param, ctx)


TIME = _Time()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="job-steps")
def main() -> None:
    """Run and test GitLab's steps and functions on this machine."""


def _shared(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of everything that runs steps."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, the log to standard error."),
        click.option("--timeout", metavar="TIME", type=TIME, help="How long all steps together may take, such as 10m."),
        click.option(
            "--cache",
            metavar="DIR",
            type=click.Path(path_type=Path),
            help="Keep fetched repositories for later runs.",
        ),
        click.option(
            "--work-dir", metavar="DIR", type=DIRECTORY, default=Path(), help="Run steps in another directory."
        ),
        click.option(
            "--variable",
            "variables",
            metavar="NAME=VALUE",
            multiple=True,
            help="A variable of the job (`vars`).",
        ),
        click.option("--breakpoint-timeout", metavar="TIME", help="How long all breakpoints may hold, such as 10m."),
        click.option("--breakpoints", metavar="FILE", type=FILE, help="Take breakpoints from a file."),
        click.option("--break", "breaks", metavar="STEP[:WHEN]", multiple=True, help="Stop at this step; see above."),
        click.option("--env", metavar="NAME=VALUE", multiple=True, help="An environment variable for the steps."),
    ):
        command = option(command)
    return command


@main.command(short_help="Run a function, or a list of steps.")
@click.argument("file", metavar="FILE", type=EXISTING)
@click.option(
    "--input",
    "inputs",
    metavar="NAME=VALUE",
    multiple=True,
    help="An input; arrays and structs as JSON.",
)
@_shared
def run(file: Path, **options: Any) -> None:  # noqa: ANN401  (those of `_shared`)
    """Run a function, or a list of steps, and print what it prints.

    FILE is a func.yml or step.yml, a directory with one, or a file with a list of steps as a job has it under `run`.
    Paths in it begin at its own directory. Steps have your environment.

    --break STEP stops the run before that step, and again if it fails. --break STEP:before, STEP:after or STEP:failure
    stops at that moment only. STEP is a step's name, or its path, such as build/lint; * and ? match any characters.
    --breakpoints names a file with a list of breakpoints, and the variable JOB_STEPS_BREAKPOINTS may hold some,
    separated by commas. At the prompt, type help.

    Exit status: 0 if all steps succeeded, 1 if one failed, 2 if the file or an argument is wrong, 130 after Ctrl-C.
    """
    from job_steps.cli._running import run_file

    _end(lambda: run_file(file, **options))


@main.command(short_help="Run the steps of a job again, on this machine.")
@click.argument("file", metavar="FILE", type=FILE)
@click.option("--job", metavar="NAME", default="", help="Which job of a jobs file.")
@_shared
def replay(file: Path, job: str, **options: Any) -> None:  # noqa: ANN401  (those of `_shared`)
    """Run the steps of a job here, as a runner or a batch would.

    FILE is the JSON with which GitLab answers a runner's request for a job; the job must have `run`. Or it is a jobs
    file of taskscaler, whose name ends in .toml: then --job names a job that has the executor `steps`.

    Steps run in this directory. It stands for the project, at the job's commit, or has the files that the job needs.
    The steps have the job's variables in their environment; --variable and --env replace them.

    Breakpoints and the exit status are those of run.
    """
    from job_steps.cli._running import replay_job, replay_payload

    is_batch = file.suffix == ".toml"
    if job and not is_batch:
        raise click.UsageError("--job is for jobs files, whose names end in .toml")
    _end(lambda: replay_job(file, job, **options) if is_batch else replay_payload(file, **options))


@main.command(short_help="Run the tests beside functions.")
@click.argument("directory", metavar="[DIR]", type=DIRECTORY, default=Path())
@click.option("--only", metavar="TEXT", default="", help="Run only tests whose name contains this.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each test.")
@click.option(
    "--timeout", metavar="TIME", type=TIME, default=600.0, show_default="10m", help="How long one test may take."
)
def test(directory: Path, *, only: str, as_json: bool, timeout: float) -> None:
    """Run the tests of all functions in DIR and below; without DIR, in this directory.

    The tests of func.yml are in func.test.yml beside it. Each runs in an empty directory of its own. Of your
    environment, it gets PATH only.

    Exit status: 0 if all tests passed, 1 if one did not, 2 if a file is wrong or there are no tests, 130 after Ctrl-C.
    """
    from job_steps.cli._testing import run_tests

    _end(lambda: run_tests(directory, only=only, as_json=as_json, timeout=timeout))


@main.command(short_help="Look at a job that is held at a breakpoint.")
@click.argument("job", metavar="[JOB]", default="")
@click.option("--list", "lists", is_flag=True, help="List the jobs that are held, and exit.")
@click.option("--json", "as_json", is_flag=True, help="List them as JSON.")
@click.option("--break", "breaks", metavar="STEP[:WHEN]", multiple=True, help="Add a breakpoint; see run --help.")
@click.option("--continue", "decision", flag_value="continue", help="Let the job go on, without a prompt.")
@click.option("--abort", "decision", flag_value="abort", help="Cancel the job, without a prompt.")
@click.option("--socket", "sockets", metavar="PATH", multiple=True, help="The socket of an agent on this host.")
@click.option("--via", metavar="COMMAND", help="A command that reaches another host, such as 'ssh -t HOST'.")
def attach(job: str, via: str | None, **options: Any) -> None:  # noqa: ANN401  (those above)
    """Look at a job that is held at a breakpoint, and let it go on.

    JOB is the job's name as its log shows it, or the beginning of that name. You can leave it out if only one job is
    held. If the job is running, the command waits until it is held. At the prompt, type help; quit leaves the job held.

    The command asks your agents on this host. --via COMMAND asks those of another host: COMMAND runs a shell command
    line there, such as 'ssh -t HOST', 'fleeting ssh jobs.toml INSTANCE --' or 'docker exec -it NAME sh -c'.

    Exit status: 0 if it was done, 1 if somebody else had decided before, 2 if there is no such job, 130 after Ctrl-C.
    """
    from job_steps.cli._attaching import attach_here, attach_via

    _end(lambda: attach_via(via, job, **options) if via else attach_here(job, **options))


def _end(action: Callable[[], int]) -> None:
    """Run a command, and end with its status; errors are one line."""
    try:
        status = action()
    except JobStepsError as error:
        click.echo(f"error: {printable(str(error))}", err=True)
        status = 2
    except BrokenPipeError:
        sys.stderr.close()  # nobody reads any more, and Python would say so
        status = 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"error: {where}{error.strerror or error}", err=True)
        status = 2
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
