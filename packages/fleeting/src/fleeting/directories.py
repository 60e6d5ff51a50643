"""Where things are kept on the manager's own machine."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attrs import Attribute


def state_home() -> Path:
    """Tell where the user's programs keep what they must remember; absolute, need not exist.

    Raises:
        RuntimeError: The user has no home directory.

    Source: the XDG base directory specification.
    """
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    return given if given.is_absolute() else Path.home() / ".local" / "state"  # one that is relative is passed over


def is_absolute(_: object, __: "Attribute[Any]", value: str | None) -> None:
    """Refuse, as a validator of a setting, a path that depends on where the manager was started.

    Raises:
        ValueError: It does; says what may stand there.
    """
    if value is not None and not Path(value).is_absolute():
        raise ValueError("an absolute path")
