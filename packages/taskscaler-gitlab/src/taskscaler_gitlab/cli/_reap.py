"""``taskscaler-gitlab reap``: the same as ``taskscaler reap``, for a file that has to be right for `run`, too."""

from pathlib import Path
from typing import Unpack

from fleeting import PluginNotFound
from fleeting.cli import WRONG, WRONG_FILE, report_errors
from taskscaler.cli.reap import reap_fleet
from taskscaler.reap_options import ReapWish
from taskscaler_gitlab._config import read_config


def reap_config(path: Path, runner: str | None, **wish: Unpack[ReapWish]) -> int:
    """Show or remove what is left of managers that have died; returns the exit status."""
    try:
        read_config(path, runner=runner)
    except (*WRONG_FILE, PluginNotFound) as error:
        return report_errors([error], WRONG)
    return reap_fleet(path, runner, **wish)
