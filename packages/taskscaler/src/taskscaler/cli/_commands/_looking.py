"""What looks at a file's fleet, and at what may be wrong there: `check`, `doctor`, `reap`, `errors`, `dashboards`."""

import sys
from pathlib import Path
from typing import Unpack

import click

from fleeting.cli import Commands
from taskscaler.cli._commands._options import FILE, JSON, RUNNER, as_price
from taskscaler.reap_options import REAP_EPILOG, ReapWish, reap_options

commands = Commands()

_CHECK_EPILOG = """
Exit status: 0 if all is well, 1 if the cloud or the instance cannot be reached, 2 if the file or the arguments
are wrong.
"""


@commands.command(epilog=_CHECK_EPILOG, short_help="Show what a file means and what would happen.")
@click.argument("config", metavar="CONFIG", type=FILE)
@RUNNER
@click.option("--offline", is_flag=True, help="Contact neither the cloud nor an instance.")
@click.option(
    "--price-per-hour", metavar="X", callback=as_price, help="What one instance costs an hour, in any currency."
)
@click.option("--settings", is_flag=True, help="Show the settings that have their defaults, too.")
def check(config: Path, runner: str | None, *, offline: bool, settings: bool, price_per_hour: float | None) -> None:
    """Show what CONFIG means and what would happen now; change nothing.

    CONFIG is a jobs file, or the config.toml of GitLab Runner. The group is opened only to look at it, even while a
    manager runs it. If an instance is running, one is dialled.

    Of a jobs file, its jobs are shown, and what the first minute of the batch would be: how many instances are
    requested, why so many, and what they cost if you say what one costs.
    """
    from taskscaler.cli._check import check_file

    sys.exit(check_file(config, runner=runner, offline=offline, settings=settings, price_per_hour=price_per_hour))


@commands.command(
    epilog="Exit status: 0 if there is no problem, though maybe warnings; 1 if there is one; 2 if the arguments are "
    "wrong.",
    short_help="Look for what keeps a fleet from working, and say what to do.",
)
@click.argument("file", metavar="[FILE]", type=FILE, required=False)
@RUNNER
@click.option("--offline", is_flag=True, help="Contact neither the cloud nor an instance.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True, max=3600),
    default=30,
    show_default=True,
    help="How long each check may take.",
)
@JSON
def doctor(file: Path | None, runner: str | None, timeout: float, *, offline: bool, as_json: bool) -> None:
    """Look at configuration, credentials, quotas, connections and versions, and say what to do.

    FILE is a jobs file, a fleet without jobs, or the config.toml of GitLab Runner. Its groups are opened only to look
    at them, even while a manager runs them, and a few running instances, or hosts of a fixed list, are dialled. Without
    FILE, only this machine is looked at: Python, plugins, the directory for state.

    Each finding is a line: ok, warning or problem, what was found, and what to do. Nothing is created or changed at the
    cloud.
    """
    from taskscaler.cli._doctor import examine

    if runner is not None and file is None:
        raise click.UsageError("--runner needs FILE, the config.toml that the runner is in")
    sys.exit(examine(file, runner=runner, offline=offline, as_json=as_json, patience=timeout))


@commands.command(epilog=REAP_EPILOG, short_help="Remove the instances of managers that have died.")
@click.argument("fleet", metavar="FLEET", type=FILE)
@RUNNER
@reap_options
def reap(fleet: Path, runner: str | None, **wish: Unpack[ReapWish]) -> None:
    """Show, and with --remove delete, the instances in the groups of FLEET whose manager has died.

    FLEET is a jobs file, a fleet without jobs, or the config.toml of GitLab Runner. A manager marks its groups, and
    renews the marks while it lives. A group whose mark has expired for long enough is marked by this command, so that
    nobody takes it meanwhile, and its instances are deleted. What a manager on this machine has on record stays: it
    takes that up when it starts. A group without a mark, and one whose cloud has no place for marks, is left alone.

    This is safe while managers run, of this file and of others.
    """
    from taskscaler.cli.reap import reap_fleet

    sys.exit(reap_fleet(fleet, runner, **wish))


@commands.command()
@click.argument("code", required=False)
def errors(code: str | None) -> None:
    """Explain what an error means, and what to do.

    CODE is the code in brackets at the end of the error's line, such as FL112. Without CODE, list all errors.
    """
    from fleeting.config import did_you_mean
    from fleeting.errors import catalogue
    from taskscaler.cli._errors import print_catalogue, print_entry

    if code is None:
        print_catalogue()
    elif entry := catalogue().get(code.strip("[]").upper()):
        print_entry(entry)
    else:
        hint = did_you_mean(code, catalogue()) or "run taskscaler errors to list all codes"
        raise click.UsageError(f"no error has the code {code!r}; {hint}")


@commands.command(short_help="Write a dashboard for Grafana, and alert rules for Prometheus.")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def dashboards(directory: Path) -> None:
    """Write taskscaler-dashboard.json and taskscaler-alerts.yaml into the directory DIR.

    Import the first into Grafana, and list the second under rule_files in Prometheus' configuration. Both use the
    metrics that `run` and `serve` show with --metrics.
    """
    from taskscaler.cli._dashboards import write_dashboards

    sys.exit(write_dashboards(directory))
