"""The command ``gitlab-jobs``: a GitLab on your desk."""

import sys
from pathlib import Path

import click

from gitlab_jobs._errors import GitLabJobsError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gitlab-jobs")
def main() -> None:
    """Try runners without a GitLab."""


@main.command(short_help="Be a GitLab that hands out the jobs of a file.")
@click.argument("jobs", metavar="JOBS", type=click.Path(path_type=Path))
@click.option("--bind", metavar="HOST:PORT", default="127.0.0.1:0", help="Where to listen; by default any free port.")
@click.option("--token", metavar="TOKEN", help="The runner's token; by default a new one, which is printed.")
@click.option(
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path("gitlab"),
    show_default=True,
    help="For logs and artifacts.",
)
@click.option("--allow-remote", is_flag=True, help="Listen on an address that other machines reach, without TLS.")
def fake(jobs: Path, bind: str, token: str | None, output: Path, *, allow_remote: bool) -> None:
    """Hand out the jobs of a file to any GitLab runner, until all have ended.

    Prints the address and the token that a runner needs, then each change of a job's state. The log of job 7 is kept
    as 7.log in the directory, its artifacts as 7-0.zip, 7-1.zip and so on.

    A runner for it: gitlab-runner run-single --url URL --token TOKEN --executor shell, or taskscaler-gitlab.

    Exit status: 0 if every job ended as the file says, 1 if one did not, 2 if the file or the arguments are wrong, 130
    after Ctrl-C.
    """
    try:
        from gitlab_jobs.cli._fake import serve_jobs
    except ModuleNotFoundError as error:
        click.echo(f"error: {error.name} is not installed; pip install 'gitlab-jobs[server]'", err=True)
        sys.exit(2)
    try:
        status = serve_jobs(jobs, bind, token, output, allow_remote=allow_remote)
    except GitLabJobsError as error:
        click.echo(f"error: {error}", err=True)
        status = 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"error: {where}{error.strerror or error}", err=True)
        status = 2
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
