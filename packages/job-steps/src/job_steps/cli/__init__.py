"""The command ``job-steps``: steps on this machine, without GitLab."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from job_steps._errors import JobStepsError
from job_steps._printable import printable

EXISTING = click.Path(exists=True, path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
SECONDS = click.FloatRange(min=0, min_open=True)
DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="job-steps")
def main() -> None:
    """Run and test GitLab's steps and functions on this machine."""


def _shared(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of everything that runs steps."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, the log in error."),
        click.option("--timeout", metavar="SECONDS", type=SECONDS, help="For all steps."),
        click.option(
            "--cache", metavar="DIR", type=click.Path(path_type=Path), help="Where fetched repositories stay."
        ),
        click.option("--work-dir", metavar="DIR", type=DIRECTORY, default=Path(), help="Where steps run."),
        click.option("--variable", "variables", metavar="NAME=VALUE", multiple=True, help="A variable of the job."),
        click.option("--breakpoint-timeout", metavar="TIME", help="How long all breakpoints may hold, such as 10m."),
        click.option("--breakpoints", metavar="FILE", type=FILE, help="A file with breakpoints."),
        click.option("--break", "breaks", metavar="STEP[:WHEN]", multiple=True, help="Stop there; see above."),
        click.option("--env", metavar="NAME=VALUE", multiple=True, help="A variable of the environment."),
    ):
        command = option(command)
    return command


@main.command(short_help="Run a function, or a list of steps.")
@click.argument("file", metavar="FILE", type=EXISTING)
@click.option("--input", "inputs", metavar="NAME=VALUE", multiple=True, help="An input; arrays and structs as JSON.")
@_shared
def run(file: Path, **options: Any) -> None:  # noqa: ANN401  (those of `_shared`)
    """Run a function, or a list of steps, and print what it prints.

    FILE is a func.yml or step.yml, a directory with one, or a file with a list of steps as a job has it under `run`.
    Paths in it begin at its own directory. Steps have your environment.

    With --break, the run stops before a step and if it fails, or only at one of the moments before, after and failure:
    --break build/lint:after. STEP may have * and ?. --breakpoints names a file with a list of such breakpoints; the
    variable JOB_STEPS_BREAKPOINTS may have some, with commas between them. At the prompt, help shows what you can do.

    Exit status: 0 if all steps succeeded, 1 if one failed, 2 if the file or the arguments are wrong, 130 after Ctrl-C.
    """
    from job_steps.cli._running import run_file

    _end(lambda: run_file(file, **options))


@main.command(short_help="Run the steps of a job that GitLab handed out.")
@click.argument("payload", metavar="PAYLOAD", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_shared
def replay(payload: Path, **options: Any) -> None:  # noqa: ANN401  (those of `_shared`)
    """Run the steps of a job that GitLab handed out, with its variables.

    PAYLOAD is the JSON that GitLab answers to a runner's request for a job; the job has to have `run`. Steps run in the
    directory that you are in, which stands for the project: check the job's commit out first. Options replace what the
    job has.

    Exit status and --break: as for run.
    """
    from job_steps.cli._running import replay_payload

    _end(lambda: replay_payload(payload, **options))


@main.command(short_help="Run the tests beside functions.")
@click.argument("directory", metavar="DIR", type=DIRECTORY, default=Path())
@click.option("--only", metavar="TEXT", default="", help="Only tests that have this in their name.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON lines, one for each test.")
@click.option("--timeout", metavar="SECONDS", type=SECONDS, default=600, show_default=True, help="For one test.")
def test(directory: Path, *, only: str, as_json: bool, timeout: float) -> None:
    """Run the tests of all functions in a directory, and in those below.

    The tests of func.yml are in func.test.yml beside it. Each runs in an empty directory of its own, with PATH and
    nothing else of your environment.

    Exit status: 0 if all passed, 1 if one did not, 2 if a file is wrong or there is no test, 130 after Ctrl-C.
    """
    from job_steps.cli._testing import run_tests

    _end(lambda: run_tests(directory, only=only, as_json=as_json, timeout=timeout))


@main.command(short_help="Look at jobs that are held at breakpoints.")
@click.argument("job", metavar="[JOB]", default="")
@click.option("--list", "lists", is_flag=True, help="List the jobs that are held, and do nothing else.")
@click.option("--json", "as_json", is_flag=True, help="List them as JSON.")
@click.option("--break", "breaks", metavar="STEP[:WHEN]", multiple=True, help="Add a breakpoint to the job.")
@click.option("--continue", "decision", flag_value="continue", help="Let the job go on, without a prompt.")
@click.option("--abort", "decision", flag_value="abort", help="Cancel the job, without a prompt.")
@click.option("--socket", "sockets", metavar="PATH", multiple=True, help="Where an agent listens on this host.")
@click.option("--via", metavar="COMMAND", help="What reaches another host, such as 'ssh -t HOST'.")
def attach(job: str, via: str | None, **options: Any) -> None:  # noqa: ANN401  (those above)
    """Look at a job that is held at a breakpoint, and let it go on.

    JOB is the job's name, as its log has it, or how that begins; without it, the only job that is held. A job that runs
    is waited for. At the prompt, help shows what you can do; quit leaves the job held.

    Jobs are looked for at the agents of this host that are yours. --via runs the agent's own attach on another host: it
    is a command to which a shell's command line is added, such as 'ssh -t HOST', 'fleeting ssh jobs.toml INSTANCE --'
    or 'docker exec -it NAME sh -c'.

    Exit status: 0 if that was done, 1 if it was decided otherwise before, 2 if there is no such job, 130 after Ctrl-C.
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
