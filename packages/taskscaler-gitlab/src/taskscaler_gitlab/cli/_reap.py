"""``taskscaler-gitlab reap``: the same as ``taskscaler reap``, for a file that has to be right for `run`, too."""

from pathlib import Path
from typing import TypedDict

from fleeting import PluginNotFound
from fleeting.cli import WRONG, WRONG_FILE, report_errors
from taskscaler.cli.reap import policy_of, reap_fleet
from taskscaler_gitlab._config import read_config


class Wish(TypedDict):
    """What may be removed, as the options say it."""

    expired_for: float
    at_most: int
    unmarked: float | None


def reap_config(path: Path, runner: str | None, wish: Wish, *, remove: bool, as_json: bool) -> int:
    """Show or remove what is left of managers that have died; returns the exit status."""
    policy = policy_of(**wish)
    try:
        read_config(path, runner=runner)
    except (*WRONG_FILE, PluginNotFound) as error:
        return report_errors([error], WRONG)
    return reap_fleet(path, runner, policy, remove=remove, as_json=as_json)
